//! PHAZE's area tables (`sim/data/phaze_22nm.toml`): exact on its design space, interpolated between its sizes and
//! extrapolated beyond them.

use super::super::{Accelerator, MemoryScope};
use super::{AreaBreakdown, AreaError, AreaPart};
use crate::units::{Bytes, SquareMillimeters};
use serde::Deserialize;
use std::sync::OnceLock;

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Coefficients {
    tensor_mac_um2: f64,
    vector_lane_um2: f64,
    sram: Vec<SramRow>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct SramRow {
    capacity_kib: u64,
    area_um2: f64,
}

fn read_coefficients() -> Result<&'static Coefficients, AreaError> {
    static TABLE: OnceLock<Result<Coefficients, AreaError>> = OnceLock::new();
    let read = || {
        let table: Result<Coefficients, _> = toml::from_str(include_str!("../../../data/phaze_22nm.toml"));
        table.map_err(|why| AreaError::Coefficients { why: why.to_string() })
    };
    TABLE.get_or_init(read).as_ref().map_err(Clone::clone)
}

impl Coefficients {
    /// Returns a memory's area in um^2: the table's row, linear between rows and beyond the last, and the first row's
    /// area below it.
    fn sram_area(&self, capacity: Bytes) -> f64 {
        let size = capacity.as_f64() / 1024.0;
        let at = |row: &SramRow| row.capacity_kib as f64;
        if let Some(row) = self.sram.iter().find(|row| at(row) == size) {
            return row.area_um2;
        }
        let segment = self.sram.windows(2).find(|pair| size <= at(&pair[1])).or_else(|| self.sram.windows(2).last());
        let Some([low, high]) = segment else {
            return self.sram.first().map_or(0.0, |row| row.area_um2);
        };
        let slope = (high.area_um2 - low.area_um2) / (at(high) - at(low));
        (low.area_um2 + slope * (size - at(low))).max(if size < at(low) { low.area_um2 } else { 0.0 })
    }
}

/// Returns the area of an accelerator: arrays, lanes and every memory on the die.
pub(super) fn phaze_area(accelerator: &Accelerator) -> Result<AreaBreakdown, AreaError> {
    let table = read_coefficients()?;
    let square = |um2: f64| SquareMillimeters(um2 * 1e-6);
    let tensor = &accelerator.tensor;
    let cores = f64::from(tensor.cores);
    let macs =
        f64::from(tensor.arrays_per_core) * f64::from(tensor.rows) * f64::from(tensor.columns) * table.tensor_mac_um2;
    let memories = |scope| accelerator.on_chip.iter().filter(move |level| level.scope == scope);
    let local: f64 = memories(MemoryScope::Core).map(|level| table.sram_area(level.capacity)).sum();
    let global: f64 = memories(MemoryScope::Chip).map(|level| table.sram_area(level.capacity)).sum();
    let vector_cores = f64::from(accelerator.vector.cores);
    let lanes = f64::from(accelerator.vector.lanes) * table.vector_lane_um2;
    let buffer = accelerator.vector.buffer.map_or(0.0, |capacity| table.sram_area(capacity));
    let part = |name, um2| AreaPart { name, area: square(um2) };
    Ok(AreaBreakdown {
        die: vec![
            part("tensor_arrays", cores * macs),
            part("local_buffers", cores * local),
            part("vector_lanes", vector_cores * lanes),
            part("vector_buffers", vector_cores * buffer),
            part("global_buffer", global),
        ],
        in_core: vec![part("tensor_arrays", macs), part("local_buffers", local)],
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::super::super::phaze::{PhazeConfig, design_accelerator};
    use super::super::chip_area as accelerator_area;
    use crate::units::Bytes;
    use std::collections::BTreeSet;

    fn config(num_tc: u32, num_vc: u32, width: u32, depth: u32, mib: u64) -> PhazeConfig {
        let global_buffer = Bytes(mib << 20);
        PhazeConfig { num_tc, num_vc, width, depth, width_vc: width, global_buffer, ..PhazeConfig::tpu_v4_like() }
    }

    fn um2(config: PhazeConfig) -> f64 {
        accelerator_area(&design_accelerator(&config)).unwrap().total_area().0 * 1e6
    }

    #[test]
    fn the_published_points_are_exact() {
        let close =
            |config, expected: f64| assert!((um2(config) / expected - 1.0).abs() < 1e-9, "{} {expected}", um2(config));
        close(config(8, 2, 128, 128, 128), 278_826_676.31);
        close(config(8, 2, 128, 128, 64), 192_009_376.31);
        close(config(8, 2, 128, 128, 2), 106_741_896.31);
    }

    /// PHAZE keeps 29,360 of its 75,712 combinations. Their area is at most the TPUv4-like point's and, unless they
    /// have only one tensor or one vector core, at least 0.3 of it. They have 4,186 distinct tensor and 697 distinct
    /// vector configurations (its cores.json).
    #[test]
    fn the_space_has_the_published_size() {
        let limit = um2(PhazeConfig::tpu_v4_like());
        let (mut kept, mut smallest, mut tensor, mut vector) = (0, f64::INFINITY, BTreeSet::new(), BTreeSet::new());
        let powers = |range: std::ops::RangeInclusive<u32>| range.map(|e| 1_u32 << e);
        for num_tc in powers(0..=12) {
            for num_vc in powers(0..=12) {
                for width in powers(1..=8) {
                    for depth in powers(1..=8) {
                        for mib in powers(1..=7) {
                            let area = um2(config(num_tc, num_vc, width, depth, u64::from(mib)));
                            let large_enough = area >= 0.3 * limit || num_tc == 1 || num_vc == 1;
                            if area <= limit && large_enough {
                                kept += 1;
                                smallest = area.min(smallest);
                                tensor.insert((num_tc, width, depth, mib));
                                vector.insert((num_vc, width, mib));
                            }
                        }
                    }
                }
            }
        }
        assert_eq!(kept, 29_360);
        assert!((smallest / 3_355_047.77 - 1.0).abs() < 1e-8, "{smallest}");
        assert_eq!((tensor.len(), vector.len()), (4186, 697));
    }
}
