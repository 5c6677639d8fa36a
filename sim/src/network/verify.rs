//! Checks a fabric file and reports every fault.

use super::collective::MAX_TIERS;
use super::error::Fault;
use super::file::{ChipFile, FabricFile, TierFile, TopologyName};
use super::torus;
use crate::limits;

/// The fastest measured link that is believed, GB/s of a whole unit: a hundred times what the largest node of 2025 has.
pub(crate) const MOST_GB_PER_S: f64 = 1e6;
/// The least, a kilobyte a second: slower is a mistake of units.
pub(crate) const LEAST_GB_PER_S: f64 = 1e-6;
/// [`limits::RATE`] in GB/s, in words.
const GB_PER_S: &str = "must be from 0.001 to 1e9";

/// Collects faults under the name of one tier.
struct Checker {
    place: String,
    faults: Vec<Fault>,
}

impl Checker {
    fn fail(&mut self, key: &str, value: impl ToString, limit: &'static str, cure: &'static str) {
        self.faults.push(Fault { key: format!("{}{key}", self.place), value: value.to_string(), limit, cure });
    }

    fn rate(&mut self, key: &str, value: Option<f64>) {
        let cure = "give GB/s of one device, one direction";
        match value {
            Some(v) if !(v.is_finite() && v > 0.0) => self.fail(key, v, "must be a finite number above 0", cure),
            Some(v) if !limits::RATE.contains(&(v * 1e9)) => self.fail(key, limits::plain(v), GB_PER_S, cure),
            _ => {}
        }
    }

    fn fraction(&mut self, key: &str, value: Option<f64>) {
        let cure = "give achieved over nominal bandwidth";
        match value {
            Some(v) if !(v > 0.0 && v <= 1.0) => self.fail(key, v, "must be above 0 and at most 1", cure),
            Some(v) if v < limits::LEAST_FRACTION => self.fail(key, limits::plain(v), "must be from 1e-6 to 1", cure),
            _ => {}
        }
    }

    fn time(&mut self, key: &str, value: Option<f64>) {
        match value {
            Some(v) if !(v.is_finite() && v >= 0.0) => {
                self.fail(key, v, "must be a finite number of at least 0", "give microseconds");
            }
            Some(v) if v * 1e-6 > limits::LONGEST_LATENCY => {
                self.fail(key, limits::plain(v), "must be at most 1000000, a second", "give microseconds");
            }
            _ => {}
        }
    }

    fn text(&mut self, key: &str, value: &str, cure: &'static str) {
        if value.trim().is_empty() {
            self.fail(key, "\"\"", "must not be empty", cure);
        }
    }
}

/// Every fault of a file, its `[[chip]]` tables aside.
pub(crate) fn faults(file: &FabricFile) -> Vec<Fault> {
    let mut c = Checker { place: String::new(), faults: Vec::new() };
    c.text("name", &file.name, "give the fabric's name");
    c.text("source", &file.source, "say where the figures are from");
    c.time("launch_us", Some(file.launch_us));
    if file.tiers.is_empty() || file.tiers.len() > MAX_TIERS {
        c.fail(
            "tier",
            format!("{} tables", file.tiers.len()),
            "a fabric has 1 to 4 tiers",
            "list tiers from the innermost outward",
        );
    }
    let mut below = Some(1_u32);
    for (i, tier) in file.tiers.iter().enumerate() {
        c.place = format!("tier[{i}] \"{}\".", tier.name);
        figures(&mut c, tier);
        below = structure(&mut c, tier, below, i + 1 == file.tiers.len());
    }
    c.faults
}

/// Every fault of a `[[chip]]` table.
pub(crate) fn chip_faults(file: &FabricFile, chip: &ChipFile) -> Vec<Fault> {
    let mut c = Checker { place: format!("chip \"{}\".", chip.name), faults: Vec::new() };
    if chip.bandwidth_gb_per_s.len() != file.tiers.len() {
        let value = format!("{:?}", chip.bandwidth_gb_per_s);
        c.fail("bandwidth_gb_per_s", value, "needs one number per tier", "list them innermost first");
    }
    for v in &chip.bandwidth_gb_per_s {
        c.rate("bandwidth_gb_per_s", Some(*v));
    }
    dims(&mut c, chip.dims.as_deref().unwrap_or(&[1]));
    if chip.wrap_multiple == Some(0) {
        c.fail("wrap_multiple", 0, "must be at least 1", "1 wraps every side");
    }
    c.faults
}

fn figures(c: &mut Checker, t: &TierFile) {
    c.text("name", &t.name, "name the tier");
    c.text("source", &t.source, "say where the figures are from");
    c.rate("bandwidth_gb_per_s", t.bandwidth_gb_per_s);
    c.fraction("achieved_fraction", Some(t.achieved_fraction));
    c.time("step_latency_us", Some(t.step_latency_us));
    c.time("chunk_overhead_us", Some(t.chunk_overhead_us));
    c.time("ring_step_us", t.ring_step_us);
    c.rate("final_copy_gb_per_s", t.final_copy_gb_per_s);
    c.time("low_latency_step_us", t.low_latency_step_us);
    c.fraction("low_latency_fraction", t.low_latency_fraction);
    c.time("line_step_us", t.line_step_us);
    c.fraction("line_fraction", t.line_fraction);
    c.time("line_chunk_us", t.line_chunk_us);
    c.time("exchange_step_us", t.exchange_step_us);
    c.fraction("exchange_fraction", t.exchange_fraction);
    c.time("exchange_chunk_us", t.exchange_chunk_us);
    c.rate("exchange_peer_gb_per_s", t.exchange_peer_gb_per_s);
    let exchange = [t.exchange_step_us, t.exchange_fraction, t.exchange_peer_gb_per_s].map(|figure| figure.is_some());
    if exchange.contains(&true) && exchange.contains(&false) {
        c.fail("exchange_*", "some of three", "step_us, fraction and peer_gb_per_s belong together", "give all or none");
    }
    for rate in t.group_gb_per_s.iter().flatten() {
        c.rate("group_gb_per_s", Some(*rate));
    }
    if t.line_step_us.is_some() != t.line_fraction.is_some() {
        c.fail("line_*", "one of two", "step_us and fraction belong together", "give both or neither");
    }
    c.time("in_network_latency_us", t.in_network_latency_us);
    c.fraction("in_network_fraction", t.in_network_fraction);
    c.time("in_network_chunk_us", t.in_network_chunk_us);
    if t.low_latency_step_us.is_some() != t.low_latency_fraction.is_some() {
        c.fail("low_latency_*", "one of two", "step_us and fraction belong together", "give both or neither");
    }
    if t.in_network_latency_us.is_some() != t.in_network_fraction.is_some() {
        c.fail("in_network_*", "one of two", "latency_us and fraction belong together", "give both or neither");
    }
    let matrix = t.topology == TopologyName::Matrix;
    if t.bandwidth_gb_per_s.is_none() && !matrix {
        c.fail("bandwidth_gb_per_s", "missing", "every tier but a matrix needs it", "give GB/s of one device, one direction");
    }
    if t.oversubscription.is_some_and(|x| !(1.0..=limits::MOST_OVERSUBSCRIPTION).contains(&x)) {
        let value = limits::plain(t.oversubscription.unwrap_or_default());
        c.fail("oversubscription", value, "must be a number from 1 to 10000", "1 is a non-blocking tree");
    }
}

/// Checks sizes; returns the devices of a unit of this tier where that is known.
fn structure(c: &mut Checker, t: &TierFile, below: Option<u32>, outermost: bool) -> Option<u32> {
    let only = |c: &mut Checker, present: bool, key: &str, wanted: TopologyName| {
        if present && t.topology != wanted {
            c.fail(key, "given", "belongs to another topology", "remove it or change `topology`");
        }
    };
    only(c, t.dims.is_some(), "dims", TopologyName::Torus);
    only(c, t.twisted.is_some(), "twisted", TopologyName::Torus);
    only(c, t.links_gb_per_s.is_some(), "links_gb_per_s", TopologyName::Matrix);
    only(c, t.group_gb_per_s.is_some(), "group_gb_per_s", TopologyName::Switch);
    only(c, t.oversubscription.is_some(), "oversubscription", TopologyName::FatTree);
    let units = match t.topology {
        TopologyName::Torus => {
            let sides = t.dims.as_deref().unwrap_or(&[]);
            dims(c, sides);
            if t.wrap_multiple == Some(0) {
                c.fail("wrap_multiple", 0, "must be at least 1", "1 wraps every side");
            }
            if t.twisted == Some(true) && !torus::can_twist(sides, t.wrap_multiple.unwrap_or(1)) {
                c.fail(
                    "twisted",
                    true,
                    "needs room for closed sides of n x n x 2n or n x 2n x 2n in dims",
                    "remove it or correct dims",
                );
            }
            sides.iter().try_fold(1_u32, |a, &b| a.checked_mul(b))
        }
        TopologyName::Matrix => {
            let rows = t.links_gb_per_s.as_deref().unwrap_or(&[]);
            matrix(c, rows);
            Some(rows.len() as u32)
        }
        _ => {
            counted(c, t, below, outermost);
            return t.devices;
        }
    };
    let devices = units.zip(below).and_then(|(u, b)| u.checked_mul(b));
    if let Some((given, derived)) = t.devices.zip(devices)
        && given != derived
    {
        c.fail("devices", given, "contradicts the topology's units times the inner tier's devices", "remove it: it is derived");
    }
    devices
}

/// Checks `devices` of a tier whose topology does not imply it.
fn counted(c: &mut Checker, t: &TierFile, below: Option<u32>, outermost: bool) {
    let bounded = !matches!(t.topology, TopologyName::Switch | TopologyName::FatTree);
    match t.devices {
        None if !outermost || bounded => {
            c.fail("devices", "missing", "only an outermost switch or fat tree is unbounded", "give the devices of one unit");
        }
        None => {}
        Some(d) => {
            let inner = below.unwrap_or(1).max(1);
            if d < 2 || d <= inner && inner > 1 {
                c.fail("devices", d, "must be at least 2 and above the inner tier's", "give the devices of one unit");
            } else if d % inner != 0 {
                c.fail("devices", d, "must be a multiple of the inner tier's devices", "give whole units");
            }
        }
    }
}

fn dims(c: &mut Checker, sides: &[u32]) {
    let product = sides.iter().try_fold(1_u32, |a, &b| a.checked_mul(b));
    if sides.is_empty() || sides.len() > 3 || sides.contains(&0) || product.is_none_or(|p| p > 1 << 24) {
        let value = format!("{sides:?}");
        c.fail("dims", value, "needs 1 to 3 sides of at least 1, 2^24 devices at most", "list the sides, first fastest");
    }
}

/// Every fault of a matrix of links, GB/s of the whole unit.
pub(crate) fn link_faults(rows: &[Vec<f64>]) -> Vec<Fault> {
    let mut c = Checker { place: String::new(), faults: Vec::new() };
    matrix(&mut c, rows);
    c.faults
}

/// A matrix must be square, symmetric, positive off its diagonal and 0 on it; every bad entry is named.
fn matrix(c: &mut Checker, rows: &[Vec<f64>]) {
    let n = rows.len();
    if !(2..=65_536).contains(&n) {
        c.fail("links_gb_per_s", format!("{n} rows"), "needs 2 to 65536 rows", "give one row per unit");
    }
    for (i, row) in rows.iter().enumerate() {
        if row.len() != n {
            let value = format!("{} entries", row.len());
            c.fail(&format!("links_gb_per_s[{i}]"), value, "must have as many entries as there are rows", "the matrix is square");
        }
        for (j, &x) in row.iter().enumerate() {
            let key = format!("links_gb_per_s[{i}][{j}]");
            if j == i {
                if x != 0.0 {
                    c.fail(&key, x, "no link leads from a unit to itself", "write 0");
                }
            } else if !(LEAST_GB_PER_S..=MOST_GB_PER_S).contains(&x) {
                c.fail(&key, x, "must be from 1e-6 to 1e6", "give GB/s of the whole unit, one direction");
            } else if let Some(&back) = rows.get(j).and_then(|r| r.get(i)).filter(|_| j > i)
                && (x - back).abs() > 1e-9 * x.abs()
            {
                c.fail(&key, format!("{x} but {back} back"), "must be symmetric", "average the two directions");
            }
        }
    }
}
