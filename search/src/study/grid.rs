//! Checks PHAZE's grid in a study.

use super::StudyError;
use crate::space::PhazeGrid;

/// Checks the lists of values in PHAZE's grid.
pub(super) fn check(file: &str, s: &PhazeGrid) -> Result<(), StudyError> {
    let fail = |key, value: String, limit, cure| Err(StudyError::Value { file: file.into(), key, value, limit, cure });
    for (key, values, most) in [
        ("space.tensor_cores", &s.tensor_cores, 65_536),
        ("space.vector_cores", &s.vector_cores, 65_536),
        ("space.array_widths", &s.array_widths, 1024),
        ("space.array_depths", &s.array_depths, 1024),
    ] {
        if values.is_empty() {
            return fail(key, "[]".into(), "at least one value is needed", "list the values to try");
        }
        if let Some(v) = values.iter().find(|&&v| v == 0 || v > most) {
            let limit = if most == 1024 { "must be from 1 to 1024" } else { "must be from 1 to 65536" };
            return fail(key, v.to_string(), limit, "remove it");
        }
    }
    if s.global_buffer_mib.is_empty() || s.global_buffer_mib.iter().any(|&v| v == 0 || v > 1 << 20) {
        let value = format!("{:?}", s.global_buffer_mib);
        return fail("space.global_buffer_mib", value, "needs values from 1 to 1048576", "list capacities in MiB");
    }
    if s.hbm_gib.is_empty() || s.hbm_gib.iter().any(|v| !(*v > 0.0 && *v <= 1e6)) {
        return fail(
            "space.hbm_gib",
            format!("{:?}", s.hbm_gib),
            "needs values above 0 and at most 1e6",
            "list capacities in GiB",
        );
    }
    // This holds for every chip: a memory that all cores share is no larger than the memory around it.
    let largest = s.global_buffer_mib.iter().copied().max().unwrap_or_default() as f64;
    if let Some(small) = s.hbm_gib.iter().find(|gib| **gib * 1024.0 < largest) {
        let value = format!("{small:?} beside space.global_buffer_mib = {:?}", s.global_buffer_mib);
        let limit = "an HBM holds at least as much as the global buffer inside it";
        return fail(
            "space.hbm_gib",
            value,
            limit,
            "remove the smaller HBM or the larger buffer, or search them apart",
        );
    }
    if !(0.0..=1.0).contains(&s.min_area_fraction) {
        let value = s.min_area_fraction.to_string();
        return fail("space.min_area_fraction", value, "must be from 0 to 1", "0 removes the lower limit");
    }
    Ok(())
}
