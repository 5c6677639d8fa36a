//! Chips drawn to scale: the areas of their compute dies, by part.

use serde::Serialize;
use sim::hardware::area::AreaPart;
use sim::hardware::{Accelerator, chip_area};

/// A chip's compute dies.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PageDie {
    /// The chip's name.
    pub name: String,
    /// The process node.
    pub node: String,
    /// The area of all compute dies in mm².
    pub area_mm2: f64,
    /// The parts, largest first. Their areas add up to the total.
    pub parts: Vec<DiePart>,
}

/// A part of a die.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DiePart {
    /// The name of the part.
    pub name: String,
    /// The area of all its instances in mm².
    pub area_mm2: f64,
    /// The inner parts; empty if the model has none.
    pub parts: Vec<DiePart>,
}

impl PageDie {
    /// Returns the dies of a chip under a name. `None` if the vendor discloses too little for an area model.
    #[must_use]
    pub fn dies_of_chip(name: &str, chip: &Accelerator) -> Option<Self> {
        let areas = chip_area(chip).ok()?;
        let core = areas.core_area().0;
        let part = |part: &AreaPart| {
            let inside = |inner: &AreaPart| DiePart {
                name: inner.name.replace('_', " "),
                // The area over all cores, as in the enclosing part.
                area_mm2: inner.area.0 / core * part.area.0,
                parts: Vec::new(),
            };
            let has_cores = part.name == "cores" && core > 0.0;
            let parts = if has_cores {
                areas.in_core.iter().map(inside).filter(|p| p.area_mm2 > 0.0).collect()
            } else {
                Vec::new()
            };
            DiePart { name: part.name.replace('_', " "), area_mm2: part.area.0, parts }
        };
        let mut parts: Vec<DiePart> = areas.die.iter().map(part).filter(|part| part.area_mm2 > 0.0).collect();
        parts.sort_by(|a, b| b.area_mm2.total_cmp(&a.area_mm2));
        let node = chip.process_node().map_or_else(|| "process unknown".to_owned(), |node| node.to_string());
        Some(Self { name: name.to_owned(), node, area_mm2: areas.total_area().0, parts })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn parts_add_up_to_the_dies() {
        for name in ["tpu_v4", "h100_80gb_sxm", "phaze_tpuv4"] {
            let die = PageDie::dies_of_chip(name, &Accelerator::built_in(name).unwrap()).unwrap();
            let sum: f64 = die.parts.iter().map(|part| part.area_mm2).sum();
            assert!((sum / die.area_mm2 - 1.0).abs() < 1e-9, "{name}: {sum} of {}", die.area_mm2);
            for part in die.parts.iter().filter(|part| !part.parts.is_empty()) {
                let inside: f64 = part.parts.iter().map(|inner| inner.area_mm2).sum();
                assert!((inside / part.area_mm2 - 1.0).abs() < 1e-9, "{name} {}", part.name);
            }
        }
    }
}
