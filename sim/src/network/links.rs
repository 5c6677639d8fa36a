//! Measured links from CSV files, and fabrics that use them.
//!
//! Two forms are read:
//! - A square table. The first line is `gb_per_s,NAME,NAME,...`. Then one line `NAME,x,x,...` per unit gives GB/s of
//!   the whole unit in one direction, in the order of the ranks. It is symmetric, and the diagonal is empty or 0.
//! - Measurements, one per line, with the columns `src_idx`, `dst_idx` and `bandwidth_mbytes_per_s` (MB/s; other
//!   columns are ignored). The column `file` distinguishes several clusters in one file. `diagonal` = 1 marks the lines
//!   of a unit with itself, which measure no link and are skipped.
//!
//! Each ordered pair of units has one measurement, or one per `direction` if the file has that column. mpiGraph
//! measures every transfer twice, at its sender and at its receiver. The model has one rate per pair of units: the mean
//! of all its measurements in both directions. Either all pairs are measured both ways, or all one way.

use super::error::{FabricFault, NetworkError};
use super::fabric::{Fabric, Tier, Topology};
use super::matrix::LinkMatrix;
use super::verify::{self, LEAST_GB_PER_S, MOST_GB_PER_S};
use crate::files::lines::LineCounter;
use crate::units::BytesPerSecond;
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

/// Most units for which [`Fabric::with_written_links`] writes out equal links.
pub const MOST_UNITS: u32 = 4096;

/// The reason why links cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LinksError {
    /// Not a table of either form.
    #[error(
        "{file}: {why}; give `gb_per_s,NAME,...` and a line `NAME,0,50,...` per unit, or columns src_idx, dst_idx, bandwidth_mbytes_per_s"
    )]
    Malformed {
        /// The file.
        file: String,
        /// The fault, with the line.
        why: String,
    },
    /// A line with impossible values.
    #[error("{file}: line {line}{what}")]
    Line {
        /// The file.
        file: String,
        /// The line, the first being 1.
        line: u64,
        /// The key and its value, the limit and the cure. The text starts with a comma or a colon.
        what: String,
    },
    /// The file holds measurements of several clusters, and none was chosen.
    #[error("{file}: holds measurements of {known}; choose one with --links-of")]
    Several {
        /// The file.
        file: String,
        /// Their names.
        known: String,
    },
    /// A cluster that the file does not have.
    #[error("{file}: has no measurements of `{name}`; it holds {known}")]
    NoCluster {
        /// The file.
        file: String,
        /// The name given.
        name: String,
        /// The names it has.
        known: String,
    },
    /// A cluster chosen in a table that holds only one.
    #[error("{file}: --links-of {name}: a table of links holds one cluster; leave the option out")]
    OneCluster {
        /// The file.
        file: String,
        /// The name given.
        name: String,
    },
    /// Impossible links; every fault is listed.
    #[error("{file}: {}", super::error::list_faults(faults))]
    Invalid {
        /// The file.
        file: String,
        /// All faults.
        faults: Vec<FabricFault>,
    },
}

impl LinkMatrix {
    /// Builds links from GB/s of the whole unit, one row per unit; the diagonal is 0.
    ///
    /// # Errors
    /// All faults: rows that are not square, not symmetric, not positive, or not 0 on the diagonal.
    pub fn from_gb_per_s(rows: &[Vec<f64>]) -> Result<Self, Vec<FabricFault>> {
        let faults = verify::find_link_faults(rows);
        if !faults.is_empty() {
            return Err(faults);
        }
        Ok(Self::from_rows(&rows.iter().map(|r| r.iter().map(|x| x * 1e9).collect()).collect::<Vec<_>>()))
    }

    /// Reads either form of a links file. `of` selects a cluster in a file of measurements.
    ///
    /// # Errors
    /// A table of neither form, an ambiguous choice, or impossible links.
    pub fn from_csv(file: &str, text: &str, of: Option<&str>) -> Result<Self, LinksError> {
        let malformed = |why: String| LinksError::Malformed { file: file.into(), why };
        let mut reader = csv::ReaderBuilder::new()
            .flexible(true)
            .trim(csv::Trim::All)
            .comment(Some(b'#'))
            .from_reader(text.as_bytes());
        let head = reader.headers().map_err(|e| malformed(e.to_string()))?.clone();
        let mut lines = LineCounter::new(text.as_bytes());
        let mut records = Vec::new();
        for record in reader.records() {
            let cells = record.map_err(|e| malformed(e.to_string()))?;
            records
                .push(LinkRecord { line: lines.line_at_byte(cells.position().map_or(0, csv::Position::byte)), cells });
        }
        let rows = match (head.get(0), of) {
            (Some("gb_per_s"), Some(name)) => {
                return Err(LinksError::OneCluster { file: file.into(), name: name.into() });
            }
            (Some("gb_per_s"), None) => read_square(&head, &records),
            _ => read_measured(file, &head, &records, of)?,
        };
        let rows = rows.map_err(|LinkLineFault { line, what }| LinksError::Line { file: file.into(), line, what })?;
        Self::from_gb_per_s(&rows).map_err(|faults| LinksError::Invalid { file: file.into(), faults })
    }
}

/// A line of the file.
struct LinkRecord {
    line: u64,
    cells: csv::StringRecord,
}

impl LinkRecord {
    fn get(&self, at: usize) -> &str {
        self.cells.get(at).unwrap_or_default()
    }

    fn read_number(&self, at: usize, what: &str) -> Result<f64, LinkLineFault> {
        let text = self.get(at);
        text.parse().map_err(|_| self.wrong_value(format!(", {what} = `{text}`: must be a number; correct it")))
    }

    fn wrong_value(&self, what: String) -> LinkLineFault {
        LinkLineFault { line: self.line, what }
    }
}

/// A faulty line.
struct LinkLineFault {
    line: u64,
    what: String,
}

/// Returns the rows of a square table, whose lines carry the header's names in the same order.
fn read_square(head: &csv::StringRecord, records: &[LinkRecord]) -> LinkRows {
    let names: Vec<&str> = head.iter().skip(1).collect();
    if let Some((at, name)) = names.iter().enumerate().find(|(at, name)| names[..*at].contains(*name)) {
        return Err(LinkLineFault {
            line: 1,
            what: format!(", column {} = `{name}`: another column has this name; rename one", at + 2),
        });
    }
    let row = |(unit, record): (usize, &LinkRecord)| {
        if let Some(name) = names.get(unit).filter(|name| **name != record.get(0)) {
            let limit = format!("must be `{name}`, as in the first line; list the units in one order");
            return Err(record.wrong_value(format!(", name = `{}`: {limit}", record.get(0))));
        }
        let entry = |other: usize| match record.get(other + 1) {
            "" if unit == other => Ok(0.0),
            _ => match record.read_number(other + 1, &format!("entry {other}"))? {
                x if unit == other && x != 0.0 => Err(record.wrong_value(format!(
                    ", entry {other} = {x}: no link leads from a unit to itself; leave it empty"
                ))),
                x => Ok(x),
            },
        };
        (0..record.cells.len().saturating_sub(1)).map(entry).collect()
    };
    records.iter().enumerate().map(row).collect()
}

type LinkRows = Result<Vec<Vec<f64>>, LinkLineFault>;

fn read_measured(
    file: &str,
    head: &csv::StringRecord,
    records: &[LinkRecord],
    of: Option<&str>,
) -> Result<LinkRows, LinksError> {
    let column = |name: &str| head.iter().position(|h| h == name);
    let (Some(from), Some(to), Some(rate)) = (column("src_idx"), column("dst_idx"), column("bandwidth_mbytes_per_s"))
    else {
        let why = format!("line 1: the columns are {}", head.iter().collect::<Vec<_>>().join(", "));
        return Err(LinksError::Malformed { file: file.into(), why });
    };
    let cluster = column("file");
    let name = |r: &LinkRecord| cluster.map_or("", |c| r.get(c)).to_owned();
    let names: BTreeSet<String> = records.iter().map(name).collect();
    let known = names.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ");
    match of {
        None if names.len() > 1 => return Err(LinksError::Several { file: file.into(), known }),
        Some(of) if !names.contains(of) => {
            return Err(LinksError::NoCluster { file: file.into(), name: of.into(), known });
        }
        _ => {}
    }
    let chosen = records.iter().filter(|r| of.is_none_or(|of| name(r) == of));
    let columns = MeasurementColumns { from, to, rate, direction: column("direction"), diagonal: column("diagonal") };
    Ok(average_rates(chosen, &columns))
}

/// Indices of the columns of measurements.
struct MeasurementColumns {
    from: usize,
    to: usize,
    rate: usize,
    direction: Option<usize>,
    diagonal: Option<usize>,
}

/// Returns the units and the rate (MB/s) of a measurement; `None` for a line that measures no link.
fn read_measurement(
    r: &LinkRecord,
    columns: &MeasurementColumns,
) -> Result<Option<(usize, usize, f64)>, LinkLineFault> {
    let index = |at: usize, what: &str| match r.get(at).parse::<usize>() {
        Ok(i) if i < 65_536 => Ok(i),
        _ => Err(r.wrong_value(format!(", {what} = `{}`: must be an integer from 0 to 65535; correct it", r.get(at)))),
    };
    let (a, b) = (index(columns.from, "src_idx")?, index(columns.to, "dst_idx")?);
    let mb = r.read_number(columns.rate, "bandwidth_mbytes_per_s")?;
    let pair = format!("src_idx = {a}, dst_idx = {b}");
    let marked = match columns.diagonal.map_or("", |at| r.get(at)) {
        "1" => true,
        "0" | "" => false,
        other => {
            return Err(r.wrong_value(format!(
                ", diagonal = `{other}`: must be 0 or 1; 1 marks the lines of a unit with itself"
            )));
        }
    };
    match (marked, a == b) {
        (true, true) => return Ok(None),
        (true, false) => {
            return Err(r.wrong_value(format!(", diagonal = 1: {pair} are two units; write 0, or correct them")));
        }
        (false, true) => {
            let cure = "remove the line, or mark it with diagonal = 1";
            return Err(r.wrong_value(format!(", {pair}: no link leads from a unit to itself; {cure}")));
        }
        (false, false) => {}
    }
    // Checked before averaging, so that a mean cannot hide a bad measurement.
    if !(LEAST_GB_PER_S * 1e3..=MOST_GB_PER_S * 1e3).contains(&mb) {
        let limit = format!("must be a number from {:e} to {:e}", LEAST_GB_PER_S * 1e3, MOST_GB_PER_S * 1e3);
        return Err(r.wrong_value(format!(", bandwidth_mbytes_per_s = {mb}: {limit}; give MB/s of the whole unit")));
    }
    Ok(Some((a, b, mb)))
}

/// By source and destination: the sum of the measurements in GB/s, and their number.
type RateSums = BTreeMap<(usize, usize), (f64, f64)>;

/// By direction, source and destination: the line number.
type SeenDirections<'a> = BTreeMap<(&'a str, usize, usize), u64>;

/// Refuses gaps in the numbering of units, and pairs without a measurement. This check runs before the table of all
/// pairs is allocated. So memory grows with the number of lines, and not with the numbers on them.
fn check_complete(sums: &RateSums, seen: &SeenDirections<'_>) -> Result<(), LinkLineFault> {
    let units: BTreeSet<usize> = sums.keys().flat_map(|(a, b)| [*a, *b]).collect();
    let first_line_of = |unit: usize| {
        let lines = seen.iter().filter(|((_, a, b), _)| *a == unit || *b == unit);
        lines
            .min_by_key(|(_, line)| **line)
            .map_or((1, "src_idx"), |((_, a, _), line)| (*line, if *a == unit { "src_idx" } else { "dst_idx" }))
    };
    if let Some(last) = units.last().copied().filter(|last| *last >= units.len()) {
        let (line, key) = first_line_of(last);
        let (gap, count) = ((0..).find(|unit| !units.contains(unit)).unwrap_or(0), units.len());
        let limit =
            format!("the lines name {count} units but not unit {gap}; units must be numbered from 0 to {}", count - 1);
        return Err(LinkLineFault {
            line,
            what: format!(", {key} = {last}: {limit}; correct it, or add the lines of the missing units"),
        });
    }
    let measured = |a: usize, b: usize| sums.contains_key(&(a, b)) || sums.contains_key(&(b, a));
    let missing = (0..units.len()).find_map(|a| (a + 1..units.len()).find(|b| !measured(a, *b)).map(|b| (a, b)));
    if let Some((a, b)) = missing {
        let limit = format!("all pairs of the {} units need a measurement, but no line joins {a} and {b}", units.len());
        let line = first_line_of(b).0;
        return Err(LinkLineFault {
            line,
            what: format!(", unit {b}: {limit}; add the line src_idx = {a}, dst_idx = {b}"),
        });
    }
    Ok(())
}

/// Returns the mean of all measurements between each two units, in GB/s.
fn average_rates<'a>(records: impl Iterator<Item = &'a LinkRecord>, columns: &MeasurementColumns) -> LinkRows {
    let mut sums = RateSums::new();
    let mut seen = SeenDirections::new();
    for record in records {
        let Some((a, b, mb)) = read_measurement(record, columns)? else { continue };
        let direction = columns.direction.map_or("", |at| record.get(at));
        if let Some(first) = seen.insert((direction, a, b), record.line) {
            let limit = format!("line {first} already measures this pair");
            let cure = "keep one of them or their mean, or add a column `direction`";
            return Err(record.wrong_value(format!(", src_idx = {a}, dst_idx = {b}: {limit}; {cure}")));
        }
        let sum = sums.entry((a, b)).or_default();
        (sum.0, sum.1) = (sum.0 + mb * 1e-3, sum.1 + 1.0);
    }
    let one_way: Vec<&(usize, usize)> = sums.keys().filter(|(a, b)| !sums.contains_key(&(*b, *a))).collect();
    if let (Some((a, b)), true) = (one_way.first(), one_way.len() < sums.len()) {
        let line = seen.iter().find(|((_, from, to), _)| (from, to) == (a, b)).map_or(1, |(_, line)| *line);
        let limit = format!("{b} to {a} is not measured, although other pairs are measured both ways");
        return Err(LinkLineFault {
            line,
            what: format!(", src_idx = {a}, dst_idx = {b}: {limit}; add it, or give all pairs one way"),
        });
    }
    check_complete(&sums, &seen)?;
    let units = sums.keys().map(|(a, b)| a.max(b) + 1).max().unwrap_or(0);
    let mut rows = vec![vec![0.0; units]; units];
    for (&(a, b), &(sum, count)) in &sums {
        let (back, back_count) = sums.get(&(b, a)).copied().unwrap_or_default();
        rows[a][b] = (sum + back) / (count + back_count);
        rows[b][a] = rows[a][b];
    }
    Ok(rows)
}

impl Fabric {
    /// Returns this fabric with measured links between units of `unit_devices` devices (its nodes, or 1 for links
    /// between devices). Inner tiers stay. Latencies are those of the replaced tier. The rates are achieved rates, so
    /// no further loss applies.
    ///
    /// # Errors
    /// No tier has units of that size, or none joins them.
    pub fn with_links(&self, links: &LinkMatrix, unit_devices: u32, source: &str) -> Result<Self, NetworkError> {
        let fail = |limit: &str, cure: &str| NetworkError::DoesNotFit {
            fabric: self.name.clone(),
            devices: links.unit_count().saturating_mul(unit_devices),
            limit: limit.to_owned(),
            cure: cure.to_owned(),
        };
        let inner = if unit_devices == 1 {
            0
        } else {
            let at = self.tiers.iter().position(|t| t.devices == unit_devices);
            at.ok_or_else(|| {
                fail(&format!("no tier of it has units of {unit_devices} devices"), "give links between its nodes")
            })? + 1
        };
        let template = if unit_devices == 1 { self.tiers.last() } else { self.tiers.get(inner) };
        let template =
            template.ok_or_else(|| fail("it has no network between its nodes", "choose a fabric of several nodes"))?;
        let slowest = links.slowest_rate();
        let tier = Tier {
            devices: links.unit_count().saturating_mul(unit_devices),
            topology: Topology::Matrix(links.clone()),
            bandwidth: BytesPerSecond(slowest / f64::from(unit_devices)),
            achieved_fraction: 1.0,
            source: format!("links: {source}; latencies: {}", template.source),
            ..template.clone()
        };
        let mut fabric = self.clone();
        fabric.tiers.truncate(inner);
        fabric.tiers.push(tier);
        Ok(fabric)
    }

    /// Returns this fabric with the links of its outermost tier written out: measured links as they are, or equal links
    /// between the units of a switch or fat tree. Every collective keeps its time. `None` for other topologies, and for
    /// switches of one unit, of unknown size, or of more than [`MOST_UNITS`] units.
    #[must_use]
    pub fn with_written_links(&self) -> Option<Self> {
        let unit = self.unit_devices(self.tiers.len().checked_sub(1)?);
        let mut fabric = self.clone();
        let tier = fabric.tiers.last_mut()?;
        let units = tier.devices / unit.max(1);
        match tier.topology {
            Topology::Matrix(_) => return Some(fabric),
            Topology::Switch | Topology::FatTree { .. } => {}
            Topology::FullyConnected { .. } | Topology::Torus { .. } => return None,
        }
        if !(2..=MOST_UNITS).contains(&units) {
            return None;
        }
        tier.bandwidth = BytesPerSecond(tier.shared_rate());
        tier.topology = Topology::Matrix(LinkMatrix::with_uniform_links(units, tier.bandwidth.0 * f64::from(unit)));
        Some(fabric)
    }

    /// True if the outermost tier has measured links and some are slower than others.
    #[must_use]
    pub fn links_differ(&self) -> bool {
        self.measured_links().is_some_and(|(links, _)| links.rates_differ())
    }

    /// Returns the measured links of the outermost tier, and the number of devices in one of its units. `None` if it
    /// has none.
    #[must_use]
    pub fn measured_links(&self) -> Option<(&LinkMatrix, u32)> {
        match &self.tiers.last()?.topology {
            Topology::Matrix(links) => Some((links, self.unit_devices(self.tiers.len() - 1))),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const TABLE: &str = "gb_per_s,a,b,c\na,,20,10\nb,20,0,5\nc,10,5,\n";

    fn fabric_fault(text: &str) -> String {
        LinkMatrix::from_csv("x.csv", text, None).unwrap_err().to_string()
    }

    #[test]
    fn both_forms_are_read() {
        let square = LinkMatrix::from_csv("x.csv", TABLE, None).unwrap();
        assert_eq!((square.unit_count(), square.rate_between(0, 1), square.rate_between(2, 1)), (3, 20e9, 5e9));
        let head = "file,src_idx,dst_idx,bandwidth_mbytes_per_s,diagonal\n";
        let text = format!("{head}one,0,0,99,1\none,0,1,1000,0\none,1,0,2000,0\ntwo,0,1,7,0\n");
        let one = LinkMatrix::from_csv("x.csv", &text, Some("one")).unwrap();
        assert_eq!((one.unit_count(), one.rate_between(0, 1), one.rate_between(1, 0)), (2, 1.5e9, 1.5e9));
        assert_eq!(fabric_fault(&text), "x.csv: holds measurements of `one`, `two`; choose one with --links-of");
        let unknown = LinkMatrix::from_csv("x.csv", &text, Some("six")).unwrap_err().to_string();
        assert_eq!(unknown, "x.csv: has no measurements of `six`; it holds `one`, `two`");
    }

    #[test]
    fn links_that_cannot_be_are_named() {
        assert_eq!(
            fabric_fault(&TABLE.replace("b,20", "b,21")),
            "x.csv: links_gb_per_s[0][1] = 20 but 21 back: must be symmetric; average the two directions"
        );
        assert!(
            fabric_fault(&TABLE.replace("20", "-20")).contains("[0][1] = -20: must be from 1e-6 to 1e6; give GB/s")
        );
        assert!(fabric_fault(&TABLE.replace("20", "nan")).contains("NaN: must be from 1e-6 to 1e6"));
        assert!(fabric_fault(&TABLE.replace("20", "fast")).contains("line 2, entry 1 = `fast`: must be a number"));
        assert!(fabric_fault("gb_per_s,a\na,\n").contains("1 rows: needs 2 to 65536 rows"));
        assert!(
            fabric_fault(&TABLE.replace(",5,\n", ",5\n"))
                .contains("[2] = 2 entries: must have as many entries as there are rows")
        );
        assert!(
            fabric_fault("src_idx,dst_idx,bandwidth_mbytes_per_s\n0,1,-3\n")
                .contains("line 2, bandwidth_mbytes_per_s = -3: must be")
        );
        assert!(fabric_fault("a,b\n1,2\n").contains("line 1: the columns are a, b"));
        assert!(
            fabric_fault(&TABLE.replace("b,20,0", "b,20,-1"))
                .contains("line 3, entry 1 = -1: no link leads from a unit to itself; leave it empty")
        );
        assert!(
            fabric_fault(&TABLE.replace("b,20,0", "b,20,7"))
                .contains("line 3, entry 1 = 7: no link leads from a unit to itself")
        );
        assert!(
            fabric_fault(&TABLE.replace("\nb,20", "\nd,20"))
                .contains("line 3, name = `d`: must be `b`, as in the first line")
        );
        assert!(
            fabric_fault(&TABLE.replace("s,a,b,c", "s,a,b,a"))
                .contains("line 1, column 4 = `a`: another column has this name")
        );
        assert!(fabric_fault(&TABLE.replace("20", "1e30")).contains("must be from 1e-6 to 1e6"));
        let chosen = LinkMatrix::from_csv("x.csv", TABLE, Some("x")).unwrap_err().to_string();
        assert_eq!(chosen, "x.csv: --links-of x: a table of links holds one cluster; leave the option out");
        let head = "src_idx,dst_idx,bandwidth_mbytes_per_s\r\n";
        let rows = |rows: &str| fabric_fault(&format!("{head}{rows}"));
        assert!(
            rows("0,1,1e30\r\n").contains("line 2, bandwidth_mbytes_per_s = 1000000000000000000000000000000: must be")
        );
        assert_eq!(
            rows("0,1,5\r\n1,0,5\r\n0,1,6\r\n"),
            "x.csv: line 4, src_idx = 0, dst_idx = 1: line 2 already measures this pair; keep one of them or their mean, \
             or add a column `direction`"
        );
        assert_eq!(
            rows("0,1,5\n1,0,5\n0,2,5\n1,2,5\n2,1,5\n"),
            "x.csv: line 4, src_idx = 0, dst_idx = 2: 2 to 0 is not measured, although other pairs are measured both ways; add it, or give all pairs one way"
        );
        assert_eq!(
            rows("0,1,5\n1,1,5\n"),
            "x.csv: line 3, src_idx = 1, dst_idx = 1: no link leads from a unit to itself; remove the line, or mark it with diagonal = 1"
        );
        let marked = fabric_fault("src_idx,dst_idx,bandwidth_mbytes_per_s,diagonal\n0,1,5,0\n0,2,5,1\n");
        assert_eq!(
            marked,
            "x.csv: line 3, diagonal = 1: src_idx = 0, dst_idx = 2 are two units; write 0, or correct them"
        );
    }

    #[test]
    fn what_is_read_grows_with_the_lines_and_not_with_the_numbers_on_them() {
        let head = "src_idx,dst_idx,bandwidth_mbytes_per_s,diagonal\n";
        let rows = |rows: &str| fabric_fault(&format!("{head}{rows}"));
        // A table of all pairs up to the last number would take 34 GB.
        assert_eq!(
            rows("0,1,5,0\n0,65535,5,0\n1,65535,5,0\n"),
            "x.csv: line 3, dst_idx = 65535: the lines name 3 units but not unit 2; units must be numbered from 0 to 2; correct it, or add the \
             lines of the missing units"
        );
        assert!(rows("7,1,5,0\n").contains("line 2, src_idx = 7: the lines name 2 units but not unit 0; "));
        // A chain of 20,000 units has no gap in its numbering, but 2e8 pairs.
        let chain: String = (0..20_000).map(|unit| format!("{unit},{},5,0\n", unit + 1)).collect();
        assert_eq!(
            rows(&chain),
            "x.csv: line 3, unit 2: all pairs of the 20001 units need a measurement, but no line joins 0 and 2; add the line src_idx = 0, dst_idx = 2"
        );
        assert!(rows("0,1,5,4294967295\n").contains("line 2, diagonal = `4294967295`: must be 0 or 1; "));
    }

    #[test]
    fn a_pair_is_measured_once_each_way_and_by_each_end() {
        let head = "direction,src_idx,dst_idx,bandwidth_mbytes_per_s\n";
        let both_ends = "sent,0,1,1000\nsent,1,0,2000\nreceived,0,1,3000\nreceived,1,0,4000\n";
        let links = LinkMatrix::from_csv("x.csv", &format!("{head}{both_ends}"), None).unwrap();
        assert_eq!((links.rate_between(0, 1), links.rate_between(1, 0)), (2.5e9, 2.5e9));
        let again = fabric_fault(&format!("{head}{both_ends}sent,1,0,2000\n"));
        assert!(
            again.starts_with("x.csv: line 6, src_idx = 1, dst_idx = 0: line 3 already measures this pair; "),
            "{again}"
        );
    }

    #[test]
    fn links_replace_the_network_between_nodes() {
        let links = LinkMatrix::from_csv("x.csv", TABLE, None).unwrap();
        let selene = Fabric::built_in("selene_hdr200x8").unwrap();
        let measured = selene.with_links(&links, 8, "x.csv").unwrap();
        assert_eq!((measured.device_count(), measured.tiers.len(), measured.measured_links().unwrap().1), (24, 2, 8));
        assert_eq!(selene.with_links(&links, 1, "x.csv").unwrap().device_count(), 3);
        assert!(selene.with_links(&links, 7, "x.csv").unwrap_err().to_string().contains("units of 7 devices"));
    }
}
