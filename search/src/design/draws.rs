//! Random draws of the cost model's uncertain constants within their ranges. The draws are the same for all designs.

use super::DesignSearch;
use crate::random::SeededRandom;
use crate::space::{ChipFigures, DesignId, Space};
use sim::hardware::constants::{KernelConstants, constant_definitions};
use sim::hardware::energy::EnergyModel;
use sim::hardware::{Accelerator, Constants};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The constants that affect a decision, with their values in every draw.
#[derive(Debug, Clone, PartialEq)]
pub struct ConstantDraws {
    /// The keys, sorted.
    pub keys: Vec<String>,
    /// By draw and key, the place of the value in its range: 0 is the lowest value, 1/2 the nominal one, 1 the highest.
    pub places: Vec<Vec<f64>>,
}

impl ConstantDraws {
    /// Draws the keys independently. Half of the draws lie below the nominal value and half above, each half evenly. A
    /// key's draws depend only on the key, the seed and the number of draws.
    #[must_use]
    pub fn draw_constants(keys: Vec<String>, draws: usize, seed: u64) -> Self {
        // Latin hypercube: every key takes each of `draws` equal parts of its range once.
        let column = |key: &String| {
            let mut random = SeededRandom(seed ^ 0x64_72_61_77 ^ hash_key(key));
            let mut column: Vec<f64> =
                (0..draws).map(|part| (part as f64 + random.next_unit()) / draws.max(1) as f64).collect();
            for at in (1..draws).rev() {
                column.swap(at, random.next_below(at as u64 + 1) as usize);
            }
            column
        };
        let columns: Vec<Vec<f64>> = keys.iter().map(column).collect();
        let places = (0..draws).map(|draw| columns.iter().map(|column| column[draw]).collect()).collect();
        Self { keys, places }
    }

    /// The space under each of the first `most` draws.
    pub(super) fn drawn_spaces(&self, space: &Space, most: usize) -> Vec<Space> {
        let drawn = (0..self.places.len().min(most)).map(|draw| self.values_of_draw(draw));
        drawn.filter_map(|values| space.with_constants(&values)).collect()
    }

    /// The values of a draw, by key.
    #[must_use]
    pub fn values_of_draw(&self, draw: usize) -> BTreeMap<String, f64> {
        let all = constant_definitions();
        let value = |(key, place): (&String, &f64)| {
            let found = all.binary_search_by(|definition| definition.key.cmp(key)).ok()?;
            let definition = &all[found];
            let value = match *place {
                low if low < 0.5 => definition.low + (definition.nominal - definition.low) * 2.0 * low,
                high => definition.nominal + (definition.high - definition.nominal) * (2.0 * high - 1.0),
            };
            Some((key.clone(), value.clamp(definition.low, definition.high)))
        };
        self.keys.iter().zip(&self.places[draw]).filter_map(value).collect()
    }
}

/// A hash of the key (FNV-1a).
fn hash_key(key: &str) -> u64 {
    key.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// The constants that change a design's chip or figures.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InfluentialConstants {
    /// The keys, sorted.
    pub keys: Vec<String>,
    /// By key, true if the constant may change the objective's value. The others change only area or price.
    pub moves_value: Vec<bool>,
}

impl DesignSearch<'_> {
    /// The constants that change at least one of these designs. Left out are constants that a study sets, which are
    /// known, and limits of feasibility, which the question sets.
    ///
    /// # Errors
    /// Only errors that the space's enumeration has already reported.
    pub(super) fn influential_constants(&self, designs: &[DesignId]) -> Result<InfluentialConstants, String> {
        let Some(own) = self.space.with_constants(&BTreeMap::new()) else { return Ok(Default::default()) };
        let nominal: Vec<BuiltDesign> =
            designs.iter().map(|id| self.built_design(&own, *id)).collect::<Result<_, _>>()?;
        let Some(first) = nominal.first() else { return Ok(Default::default()) };
        let kernels = self.constants_of_kernels();
        let mut found = InfluentialConstants::default();
        for definition in constant_definitions() {
            let is_known = definition.limit || first.constants.changed_values().contains_key(&definition.key);
            if is_known || definition.low >= definition.high {
                continue;
            }
            let in_kernels = kernels.contains(definition.key.as_str());
            let (mut changes, mut moves_value) = (in_kernels, in_kernels);
            for value in [definition.low, definition.high] {
                let changed = BTreeMap::from([(definition.key.clone(), value)]);
                let Some(space) = self.space.with_constants(&changed) else { continue };
                for (id, before) in designs.iter().zip(&nominal) {
                    if moves_value {
                        break;
                    }
                    let Ok(after) = self.built_design(&space, *id) else { continue };
                    moves_value = (&after.value, &after.chip) != (&before.value, &before.chip);
                    changes |= moves_value || after.figures != before.figures;
                }
            }
            if changes {
                found.keys.push(definition.key.clone());
                found.moves_value.push(moves_value);
            }
        }
        Ok(found)
    }

    /// The keys of the constants that the kernels of the models' plans take.
    fn constants_of_kernels(&self) -> BTreeSet<&'static str> {
        let prepared = self.workloads.iter().flat_map(|workload| workload.prepared);
        prepared.flat_map(|job| job.table.kernels()).filter_map(KernelConstants::key_of_kernel).collect()
    }

    fn built_design(&self, space: &Space, id: DesignId) -> Result<BuiltDesign, String> {
        let chip = space.chip_of_design(id)?;
        let system_usd = self.least_system_usd(&[space.fabric_of_design(id)], &chip.constants);
        let figures = space.figures_of_design(id, &chip).with_system(system_usd);
        let mut bare = Accelerator { constants: Constants::nominal(), ..chip.clone() };
        if !self.aim.counts_energy() {
            // Energies matter only through the clock that the power limit allows.
            bare.energy = EnergyModel::default();
            for level in bare.on_chip.iter_mut().chain([&mut bare.hbm]) {
                (level.read_energy_per_byte, level.write_energy_per_byte) = Default::default();
            }
        }
        bare.lowered = None;
        Ok(BuiltDesign { constants: chip.constants, value: self.objective_factor(&figures), chip: bare, figures })
    }
}

/// The parts of a design that may depend on constants.
struct BuiltDesign {
    constants: Arc<Constants>,
    /// The factor from its seconds to the objective.
    value: Option<f64>,
    /// The chip, without the fields that do not affect the objective.
    chip: Accelerator,
    figures: ChipFigures,
}
