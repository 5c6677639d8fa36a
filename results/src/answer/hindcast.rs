//! The answer of `validate --hindcast`: each built chip beside the best chip that the search finds under the same
//! limits.

use crate::text::{ColumnAlign, TextTable, format_bytes, format_heading, format_percent};
use serde::Serialize;
use sim::hardware::{Accelerator, chip_area, sustained_power};
use sim::kernel::DataType;
use sim::units::Bytes;

/// A hindcast counts as near if the best chip's peak differs from the built chip's by at most this fraction.
pub const NEAR: f64 = 0.15;

/// The hindcasts of several chips.
#[derive(Debug, Clone, Serialize)]
pub struct HindcastAnswer {
    /// Version of the format.
    pub format: u32,
    /// One per chip.
    pub chips: Vec<HindcastEntry>,
}

/// A built chip beside the best chip under the same limits.
#[derive(Debug, Clone, Serialize)]
pub struct HindcastEntry {
    /// The built chip.
    pub chip: String,
    /// The year in which it was deployed.
    pub year: u32,
    /// The process of its compute dies.
    pub node: String,
    /// The area limit in mm²: the modelled area of the built chip.
    pub max_area_mm2: f64,
    /// The power limit in W: the published one of the built chip, or else its modelled power.
    pub max_power_w: f64,
    /// The model that is trained.
    pub model: String,
    /// Chips of the cluster.
    pub devices: u32,
    /// The fabric.
    pub fabric: String,
    /// The built chip, with every peak reached and its clock within the power limit.
    pub real: HindcastSide,
    /// The best chip found.
    pub found: HindcastSide,
    /// The largest fraction by which another chip of the space may be faster than the best one found.
    pub gap: f64,
    /// Peak of the best chip over the peak of the built chip.
    pub peak_ratio: f64,
    /// Step time of the built chip over that of the best chip.
    pub speedup: f64,
}

/// A chip of a hindcast, and its step time.
#[derive(Debug, Clone, Serialize)]
pub struct HindcastSide {
    /// Tensor cores, arrays per core, rows and columns of an array.
    pub arrays: [u32; 4],
    /// Lanes of a vector core.
    pub lanes: u32,
    /// The clock within the limit of power, in MHz.
    pub clock_mhz: f64,
    /// Dense bf16 peak at that clock, in TFLOP/s; 0 without bf16.
    pub peak_tflops: f64,
    /// Memories on the dies, except register files: name and bytes of the whole chip. Innermost first.
    pub memories: Vec<(String, u64)>,
    /// Modelled area of the compute dies in mm².
    pub area_mm2: Option<f64>,
    /// Power under the heaviest sustained load in W.
    pub power_w: f64,
    /// Step time under the fastest plan, in seconds; `None` if no plan fits.
    pub step_s: Option<f64>,
}

impl HindcastSide {
    /// Makes the figures of a chip. `step_s` is the step time under its fastest plan, in seconds.
    #[must_use]
    pub fn of_chip(chip: &Accelerator, step_s: Option<f64>) -> Self {
        let tensor = &chip.tensor;
        let memories = chip.on_chip.iter().filter(|level| level.name != "register_file");
        Self {
            arrays: [tensor.cores, tensor.arrays_per_core, tensor.rows, tensor.columns],
            lanes: chip.vector.lanes,
            clock_mhz: chip.clock.0 / 1e6,
            peak_tflops: chip.peak_flops(DataType::Bf16).map_or(0.0, |peak| peak.0 / 1e12),
            memories: memories
                .map(|level| (level.name.clone(), level.capacity.0 * u64::from(chip.instance_count(level))))
                .collect(),
            area_mm2: chip_area(chip).ok().map(|parts| parts.total_area().0),
            power_w: sustained_power(chip).peak_power().0,
            step_s,
        }
    }

    fn describe_arrays(&self) -> String {
        let [cores, arrays, rows, columns] = self.arrays;
        format!("{cores} x {arrays} x {rows}x{columns}")
    }

    fn describe_memories(&self) -> String {
        let of = |(name, bytes): &(String, u64)| format!("{name} {}", format_bytes(Bytes(*bytes)));
        self.memories.iter().map(of).collect::<Vec<_>>().join(", ")
    }
}

impl HindcastAnswer {
    /// Returns the answer as text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let dash = || "-".to_owned();
        let mut figures = TextTable::new(["chip", "", "arrays", "MHz", "TFLOP/s", "mm²", "W", "step s"]);
        let mut insides = TextTable::new(["chip", "", "lanes", "on the dies"]).align_column(3, ColumnAlign::Left);
        for entry in &self.chips {
            for (of, side) in [("built", &entry.real), ("best", &entry.found)] {
                let chip = if of == "built" { entry.chip.clone() } else { String::new() };
                figures.add_row([
                    chip.clone(),
                    of.to_owned(),
                    side.describe_arrays(),
                    format!("{:.0}", side.clock_mhz),
                    format!("{:.0}", side.peak_tflops),
                    side.area_mm2.map_or_else(dash, |area| format!("{area:.0}")),
                    format!("{:.0}", side.power_w),
                    side.step_s.map_or_else(dash, |step| format!("{step:.2}")),
                ]);
                insides.add_row([chip, of.to_owned(), side.lanes.to_string(), side.describe_memories()]);
            }
        }
        let mut distances =
            TextTable::new(["chip", "year", "node", "mm² at most", "W at most", "peak", "speed", "gap"]);
        for entry in &self.chips {
            distances.add_row([
                entry.chip.clone(),
                entry.year.to_string(),
                entry.node.clone(),
                format!("{:.0}", entry.max_area_mm2),
                format!("{:.0}", entry.max_power_w),
                format!("{:.2}x", entry.peak_ratio),
                format!("{:.2}x", entry.speedup),
                format_percent(entry.gap),
            ]);
        }
        let near = self.chips.iter().filter(|entry| (entry.peak_ratio - 1.0).abs() <= NEAR).count();
        format!(
            "{}{}\n{}{}\n{}{}\nPeak and speed are the best chip's over the built one's. Both are ideal, with modelled \
            energies; the clock obeys the limit of power. The best chip is within {:.0} % of the built chip's peak for \
            {near} of {}.\n",
            format_heading("Built chips, and the best under their constraints"),
            figures.render(),
            format_heading("Inside"),
            insides.render(),
            format_heading("Distances"),
            distances.render(),
            100.0 * NEAR,
            self.chips.len()
        )
    }
}
