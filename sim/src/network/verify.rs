//! Checks a fabric file and reports every fault.

use super::error::FabricFault;
use super::fabric::MAX_TIERS;
use super::tables::{FabricChipTable, FabricFile, TierTable, TopologyName};
use super::torus;
use crate::limits;

/// Largest accepted measured link, GB/s of a whole unit: a hundred times that of the largest node of 2025.
pub(crate) const MOST_GB_PER_S: f64 = 1e6;
/// Smallest accepted measured link, a kilobyte per second; a slower one is a mistake of units.
pub(crate) const LEAST_GB_PER_S: f64 = 1e-6;
/// [`limits::RATE`] in GB/s, as text.
const GB_PER_S: &str = "must be from 0.001 to 1e9";

/// Collects faults under the name of one tier.
struct TierChecker {
    place: String,
    faults: Vec<FabricFault>,
}

impl TierChecker {
    fn add_fault(&mut self, key: &str, value: impl ToString, limit: &'static str, cure: impl Into<String>) {
        let key = format!("{}{key}", self.place);
        self.faults.push(FabricFault { key, value: value.to_string(), limit, cure: cure.into() });
    }

    fn check_rate(&mut self, key: &str, value: Option<f64>) {
        let cure = "give GB/s of one device, one direction";
        match value {
            Some(v) if !(v.is_finite() && v > 0.0) => self.add_fault(key, v, "must be a finite number above 0", cure),
            Some(v) if !limits::RATE.contains(&(v * 1e9)) => {
                self.add_fault(key, limits::format_number(v), GB_PER_S, cure)
            }
            _ => {}
        }
    }

    fn check_fraction(&mut self, key: &str, value: Option<f64>) {
        let cure = "give achieved over nominal bandwidth";
        match value {
            Some(v) if !(v > 0.0 && v <= 1.0) => self.add_fault(key, v, "must be above 0 and at most 1", cure),
            Some(v) if v < limits::LEAST_FRACTION => {
                self.add_fault(key, limits::format_number(v), "must be from 1e-6 to 1", cure)
            }
            _ => {}
        }
    }

    fn check_time(&mut self, key: &str, value: Option<f64>) {
        match value {
            Some(v) if !(v.is_finite() && v >= 0.0) => {
                self.add_fault(key, v, "must be a finite number of at least 0", "give microseconds");
            }
            Some(v) if v * 1e-6 > limits::LONGEST_LATENCY => {
                self.add_fault(key, limits::format_number(v), "must be at most 1000000, a second", "give microseconds");
            }
            _ => {}
        }
    }

    fn check_text(&mut self, key: &str, value: &str, cure: &'static str) {
        if value.trim().is_empty() {
            self.add_fault(key, "\"\"", "must not be empty", cure);
        }
    }
}

/// Returns every fault of a file except those of its `[[chip]]` tables.
pub(crate) fn find_faults(file: &FabricFile) -> Vec<FabricFault> {
    let mut c = TierChecker { place: String::new(), faults: Vec::new() };
    c.check_text("name", &file.name, "give the fabric's name");
    c.check_text("source", &file.source, "say where the figures are from");
    c.check_time("launch_us", Some(file.launch_us));
    if file.tiers.is_empty() || file.tiers.len() > MAX_TIERS {
        c.add_fault(
            "tier",
            format!("{} tables", file.tiers.len()),
            "a fabric has 1 to 4 tiers",
            "list tiers from the innermost outward",
        );
    }
    let mut below = Some(1_u32);
    for (i, tier) in file.tiers.iter().enumerate() {
        c.place = format!("tier[{i}] \"{}\".", tier.name);
        check_figures(&mut c, tier);
        below = check_structure(&mut c, tier, below, i + 1 == file.tiers.len());
    }
    c.faults
}

/// Returns every fault of a `[[chip]]` table.
pub(crate) fn find_chip_faults(file: &FabricFile, chip: &FabricChipTable) -> Vec<FabricFault> {
    let mut c = TierChecker { place: format!("chip \"{}\".", chip.name), faults: Vec::new() };
    if chip.bandwidth_gb_per_s.len() != file.tiers.len() {
        let value = format!("{:?}", chip.bandwidth_gb_per_s);
        c.add_fault("bandwidth_gb_per_s", value, "needs one number per tier", "list them innermost first");
    }
    for v in &chip.bandwidth_gb_per_s {
        c.check_rate("bandwidth_gb_per_s", Some(*v));
    }
    check_dims(&mut c, chip.dims.as_deref().unwrap_or(&[1]));
    if chip.wrap_multiple == Some(0) {
        c.add_fault("wrap_multiple", 0, "must be at least 1", "1 wraps every side");
    }
    c.faults
}

fn check_figures(c: &mut TierChecker, t: &TierTable) {
    c.check_text("name", &t.name, "name the tier");
    c.check_text("source", &t.source, "say where the figures are from");
    c.check_rate("bandwidth_gb_per_s", t.bandwidth_gb_per_s);
    c.check_fraction("achieved_fraction", Some(t.achieved_fraction));
    c.check_time("step_latency_us", Some(t.step_latency_us));
    c.check_time("chunk_overhead_us", Some(t.chunk_overhead_us));
    c.check_time("ring_step_us", t.ring_step_us);
    c.check_rate("final_copy_gb_per_s", t.final_copy_gb_per_s);
    c.check_time("low_latency_step_us", t.low_latency_step_us);
    c.check_fraction("low_latency_fraction", t.low_latency_fraction);
    c.check_time("line_step_us", t.line_step_us);
    c.check_fraction("line_fraction", t.line_fraction);
    c.check_time("line_chunk_us", t.line_chunk_us);
    c.check_time("exchange_step_us", t.exchange_step_us);
    c.check_fraction("exchange_fraction", t.exchange_fraction);
    c.check_time("exchange_chunk_us", t.exchange_chunk_us);
    c.check_rate("exchange_peer_gb_per_s", t.exchange_peer_gb_per_s);
    let exchange = [t.exchange_step_us, t.exchange_fraction, t.exchange_peer_gb_per_s].map(|figure| figure.is_some());
    if exchange.contains(&true) && exchange.contains(&false) {
        c.add_fault(
            "exchange_*",
            "some of three",
            "step_us, fraction and peer_gb_per_s belong together",
            "give all or none",
        );
    }
    for rate in t.group_gb_per_s.iter().flatten() {
        c.check_rate("group_gb_per_s", Some(*rate));
    }
    if t.line_step_us.is_some() != t.line_fraction.is_some() {
        c.add_fault("line_*", "one of two", "step_us and fraction belong together", "give both or neither");
    }
    c.check_time("in_network_latency_us", t.in_network_latency_us);
    c.check_fraction("in_network_fraction", t.in_network_fraction);
    c.check_time("in_network_chunk_us", t.in_network_chunk_us);
    if t.low_latency_step_us.is_some() != t.low_latency_fraction.is_some() {
        c.add_fault("low_latency_*", "one of two", "step_us and fraction belong together", "give both or neither");
    }
    if t.in_network_latency_us.is_some() != t.in_network_fraction.is_some() {
        c.add_fault("in_network_*", "one of two", "latency_us and fraction belong together", "give both or neither");
    }
    let matrix = t.topology == TopologyName::Matrix;
    if t.bandwidth_gb_per_s.is_none() && !matrix {
        c.add_fault(
            "bandwidth_gb_per_s",
            "missing",
            "every tier but a matrix needs it",
            "give GB/s of one device, one direction",
        );
    }
    if t.oversubscription.is_some_and(|x| !(1.0..=limits::MOST_OVERSUBSCRIPTION).contains(&x)) {
        let value = limits::format_number(t.oversubscription.unwrap_or_default());
        c.add_fault("oversubscription", value, "must be a number from 1 to 10000", "1 is a non-blocking tree");
    }
}

/// Checks sizes. Returns the devices of a unit of this tier, if known.
fn check_structure(c: &mut TierChecker, t: &TierTable, below: Option<u32>, outermost: bool) -> Option<u32> {
    let only = |c: &mut TierChecker, present: bool, key: &str, wanted: TopologyName| {
        if present && t.topology != wanted {
            c.add_fault(key, "given", "belongs to another topology", "remove it or change `topology`");
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
            check_dims(c, sides);
            if t.wrap_multiple == Some(0) {
                c.add_fault("wrap_multiple", 0, "must be at least 1", "1 wraps every side");
            }
            if t.twisted == Some(true) && !torus::can_twist(sides, t.wrap_multiple.unwrap_or(1)) {
                c.add_fault(
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
            check_matrix(c, rows);
            Some(rows.len() as u32)
        }
        _ => {
            check_devices(c, t, below, outermost);
            return t.devices;
        }
    };
    let devices = units.zip(below).and_then(|(u, b)| u.checked_mul(b));
    if let Some((given, derived)) = t.devices.zip(devices)
        && given != derived
    {
        c.add_fault(
            "devices",
            given,
            "contradicts the topology's units times the inner tier's devices",
            "remove it: it is derived",
        );
    }
    devices
}

/// Checks `devices` of a tier whose topology does not imply it.
fn check_devices(c: &mut TierChecker, t: &TierTable, below: Option<u32>, outermost: bool) {
    let bounded = !matches!(t.topology, TopologyName::Switch | TopologyName::FatTree);
    match t.devices {
        None if !outermost || bounded => {
            c.add_fault(
                "devices",
                "missing",
                "only an outermost switch or fat tree is unbounded",
                "give the devices of one unit",
            );
        }
        None => {}
        Some(d) => {
            let inner = below.unwrap_or(1).max(1);
            // Papers often state the number of inner units instead of devices. The message then suggests the product.
            let devices = d.checked_mul(inner).filter(|devices| *devices > d && d > 1);
            let hint = devices.map_or_else(String::new, |devices| format!("; did you mean {devices}?"));
            if d < 2 || d <= inner && inner > 1 {
                c.add_fault(
                    "devices",
                    d,
                    "must be at least 2 and above the inner tier's",
                    format!("give the devices of one unit{hint}"),
                );
            } else if d % inner != 0 {
                let cure = format!("give whole units{hint}");
                c.add_fault("devices", d, "must be a multiple of the inner tier's devices", cure);
            }
        }
    }
}

fn check_dims(c: &mut TierChecker, sides: &[u32]) {
    let product = sides.iter().try_fold(1_u32, |a, &b| a.checked_mul(b));
    if sides.is_empty() || sides.len() > 3 || sides.contains(&0) || product.is_none_or(|p| p > 1 << 24) {
        let value = format!("{sides:?}");
        c.add_fault(
            "dims",
            value,
            "needs 1 to 3 sides of at least 1, 2^24 devices at most",
            "list the sides, first fastest",
        );
    }
}

/// Returns every fault of a matrix of links in GB/s of the whole unit.
pub(crate) fn find_link_faults(rows: &[Vec<f64>]) -> Vec<FabricFault> {
    let mut c = TierChecker { place: String::new(), faults: Vec::new() };
    check_matrix(&mut c, rows);
    c.faults
}

/// Checks that a matrix is square, symmetric, positive off its diagonal and 0 on it; reports every bad entry.
fn check_matrix(c: &mut TierChecker, rows: &[Vec<f64>]) {
    let n = rows.len();
    if !(2..=65_536).contains(&n) {
        c.add_fault("links_gb_per_s", format!("{n} rows"), "needs 2 to 65536 rows", "give one row per unit");
    }
    for (i, row) in rows.iter().enumerate() {
        if row.len() != n {
            let value = format!("{} entries", row.len());
            c.add_fault(
                &format!("links_gb_per_s[{i}]"),
                value,
                "must have as many entries as there are rows",
                "the matrix is square",
            );
        }
        for (j, &x) in row.iter().enumerate() {
            let key = format!("links_gb_per_s[{i}][{j}]");
            if j == i {
                if x != 0.0 {
                    c.add_fault(&key, x, "no link leads from a unit to itself", "write 0");
                }
            } else if !(LEAST_GB_PER_S..=MOST_GB_PER_S).contains(&x) {
                c.add_fault(&key, x, "must be from 1e-6 to 1e6", "give GB/s of the whole unit, one direction");
            } else if let Some(&back) = rows.get(j).and_then(|r| r.get(i)).filter(|_| j > i)
                && (x - back).abs() > 1e-9 * x.abs()
            {
                c.add_fault(&key, format!("{x} but {back} back"), "must be symmetric", "average the two directions");
            }
        }
    }
}
