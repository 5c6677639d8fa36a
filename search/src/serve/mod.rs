//! Finds the chips of a space that serve best: the best chip, the best two for separate pools, and the best chip that
//! also trains.
//!
//! Every chip of the space is built and bounded. Chips are priced in the order of their bounds, until no bound is above
//! the best value found (`bounded`). So the answers equal those of an exhaustive search through all chips and pairs.
//!
//! **Two chips.** The rate of a pool depends on its own chip alone ([`serving::apart`]). On a cluster so large that any
//! division is possible, a pair serves a b / (a + b) requests per device, with rates a and b of its pools. This grows
//! with both rates, so each chip is chosen alone. On a finite cluster replicas are whole, so the choice is joint. Pairs
//! are then tried in the order of the same formula, which bounds them.

mod bounded;
mod objective;
mod pair;
mod train;

pub use bounded::{BoundedValues, JoinedValues, PriceValue, PricedValue};
pub use objective::{ServedObjective, figures_of_built_chip};
pub use pair::{BestPair, ClusterPair};
pub use train::{ChipForBoth, TrainedSpace};

use crate::space::{Combination, CombinationChip, ListedDimension, Space, places_of_combination};
use rayon::prelude::*;
use serving::ServingEngine;
use serving::best::{self, DeviceBounds, ServingAnswer, ServingHardware, ServingQuestion};
use sim::network::Fabric;
use thiserror::Error;

/// Limit on the combinations of a space, because every one is built.
pub const MOST_COMBINATIONS: u64 = 200_000;

/// Why a space cannot be searched.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ServedSpaceError {
    /// The space has more combinations than the limit.
    #[error(
        "its space has {0} combinations; serve builds every one, at most {MOST_COMBINATIONS}: give a study with \
        fewer values"
    )]
    TooLarge(u64),
    /// A combination without a value, or with a field that no chip has.
    #[error("{0}")]
    Space(String),
}

/// A space of chips, and the requests that they serve.
#[derive(Debug, Clone, Copy)]
pub struct ServedSpace<'a> {
    /// The chips.
    pub space: &'a Space,
    /// The fabrics of [`Space::fabric_settings`], in that order, with the question's devices.
    pub fabrics: &'a [Fabric],
    /// The requests and their level.
    pub question: &'a ServingQuestion<'a>,
    /// The engine.
    pub engine: &'a ServingEngine,
    /// The objective that ranks chips.
    pub objective: ServedObjective,
}

/// A chip of a space within its limits, with bounds on what it serves.
#[derive(Debug, Clone)]
pub struct ServedChip {
    /// The number of its combination.
    pub number: u64,
    /// The chip, with its figures and fabric.
    pub built: Box<CombinationChip>,
    /// Upper bounds on what one device serves.
    pub bounds: DeviceBounds,
}

/// The best chip for prompts and decoding on the same devices.
#[derive(Debug, Clone)]
pub struct BestServedChip {
    /// Its index in the list of chips.
    pub chip: usize,
    /// Its deployments, the one with the highest value first.
    pub answer: ServingAnswer,
    /// The value of its best deployment.
    pub value: f64,
    /// Chips that were priced.
    pub priced: usize,
    /// The highest bound of a chip that was not priced, at most [`Self::value`]; 0 if all were.
    pub open_bound: f64,
}

impl<'a> ServedSpace<'a> {
    /// Returns the chips within the limits, in the order of their numbers.
    ///
    /// # Errors
    /// Too many combinations, or one that no chip can have.
    pub fn list_chips(&self) -> Result<Vec<ServedChip>, ServedSpaceError> {
        let combinations = self.space.combination_count();
        if combinations > MOST_COMBINATIONS {
            return Err(ServedSpaceError::TooLarge(combinations));
        }
        let build = |number: u64| match self.space.combination_at(number) {
            Ok(Combination::Chip(built)) => {
                let bounds = DeviceBounds::of_chip(self.question, &built.chip, self.engine);
                Ok(Some(ServedChip { number, built, bounds }))
            }
            Ok(Combination::Outside(..) | Combination::NoChip(_)) => Ok(None),
            Err(why) => Err(ServedSpaceError::Space(why)),
        };
        let chips: Vec<Option<ServedChip>> = (0..combinations).into_par_iter().map(build).collect::<Result<_, _>>()?;
        Ok(chips.into_iter().flatten().collect())
    }

    /// Returns a chip with its fabric and the engine; `None` if no chip within the limits is on that fabric.
    #[must_use]
    pub fn hardware<'c>(&self, chip: &'c ServedChip) -> Option<ServingHardware<'c>>
    where
        'a: 'c,
    {
        let fabric = chip.built.fabric.and_then(|fabric| self.fabrics.get(fabric))?;
        Some(ServingHardware { chip: &chip.built.chip, fabric, engine: self.engine })
    }

    /// Returns the deployments on a chip, highest value first, and the highest value; zero if none serves.
    #[must_use]
    pub fn price_chip(&self, chip: &ServedChip) -> (f64, ServingAnswer) {
        let Some(hardware) = self.hardware(chip) else { return (0.0, ServingAnswer::default()) };
        let mut answer = best::together(self.question, hardware);
        let value = |of: &best::Deployment| self.objective.value(of, |_| Some(chip.built.figures)).unwrap_or(0.0);
        answer.deployments.sort_by(|a, b| value(b).total_cmp(&value(a)));
        (answer.deployments.first().map_or(0.0, value), answer)
    }

    /// Returns upper bounds on the values of chips.
    #[must_use]
    pub fn bound_chips(&self, chips: &[ServedChip]) -> BoundedValues {
        let output = self.question.lengths.mean_output();
        let bound = |chip: &ServedChip| {
            self.objective.upper_bound(&chip.bounds, output, self.question.devices, &chip.built.figures)
        };
        BoundedValues::from_bounds(chips.iter().map(bound).collect())
    }

    /// Returns the chip with the highest value if prompts and decoding run on the same devices; `None` if none serves.
    #[must_use]
    pub fn best_chip(&self, chips: &[ServedChip]) -> Option<BestServedChip> {
        let mut values = self.bound_chips(chips);
        let chip = values.settle_largest(&|at, _| self.exact_value(chips, at))?;
        let (value, answer) = self.price_chip(chips.get(chip)?);
        let (priced, open_bound) = (values.priced(), values.highest_open_bound());
        Some(BestServedChip { chip, answer, value, priced, open_bound })
    }

    fn exact_value(&self, chips: &[ServedChip], at: usize) -> PricedValue {
        PricedValue::Exact(chips.get(at).map_or(0.0, |chip| self.price_chip(chip).0))
    }

    /// Returns the dimensions with several values, each with the chip's value.
    #[must_use]
    pub fn values_of_chip(&self, chip: &ServedChip) -> Vec<(String, String)> {
        let listed: Vec<ListedDimension> = self.space.listed_dimensions();
        let places = places_of_combination(&listed, chip.number);
        let values = listed.iter().zip(places).filter(|(dial, _)| dial.values.len() > 1);
        values.filter_map(|(dial, place)| Some((dial.key.clone(), dial.values.get(place)?.to_string()))).collect()
    }
}

#[cfg(test)]
mod tests;
