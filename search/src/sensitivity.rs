//! Sensitivities of a design to one step along each dimension, and to a tenth more of each resource. Each variant has
//! its own best plan.

use crate::design::{Aim, DesignEvaluation, best_plan};
use crate::planner::{PlanSpace, PreparedJob};
use crate::space::{CombinationChip, OutsideReason, combination_of_places, places_of_combination};
use crate::sweep::{Sweep, SweptOutcome};
use rayon::prelude::*;
use sim::hardware::{Accelerator, FieldValue};
use sim::network::Fabric;
use sim::units::{Bytes, BytesPerSecond};
use step::StepError;

impl CombinationChip {
    /// Adds the price of the system around a device to its figures, if the objective pays for it. `prepared` has a job
    /// for every fabric of the space.
    pub fn count_system(&mut self, aim: &Aim, prepared: &[PreparedJob<'_>]) {
        let job = self.fabric.and_then(|fabric| prepared.get(fabric));
        self.figures.system_usd = match job {
            Some(prepared) => aim.counted_system_usd(prepared.job.fabric, &self.chip.constants),
            None if aim.pays_system() => f64::INFINITY,
            None => 0.0,
        };
    }
}

/// A step along a dimension.
#[derive(Debug, Clone, PartialEq)]
pub struct DimensionStep {
    /// The dimension's key.
    pub key: String,
    /// Its value in the design.
    pub from: FieldValue,
    /// The adjacent value in the study's list.
    pub to: FieldValue,
    /// The outcome of the changed combination. The plan of a chip outside the limits is in [`DimensionStep::beyond`].
    pub fate: SweptOutcome,
    /// The fastest plan of a chip outside the limits, if a chip within them is on the same fabric.
    pub beyond: Option<DesignEvaluation>,
    /// All limits that the chip exceeds; that of [`SweptOutcome::Outside`] comes first. A chip over the power limit
    /// exceeds it even at its lowest clock, so its plan and its figures are at its design clock.
    pub exceeds: Vec<OutsideReason>,
}

impl DimensionStep {
    /// The chip; `None` if the combination is no chip.
    #[must_use]
    pub fn built_chip(&self) -> Option<&CombinationChip> {
        match &self.fate {
            SweptOutcome::NoChip(_) => None,
            SweptOutcome::Outside(_, built) | SweptOutcome::Evaluated(built, _) => Some(built),
        }
    }

    /// Replaces the chip and its evaluation by those at another clock. Changes nothing if the combination is no chip.
    pub fn set_evaluation(&mut self, other: CombinationChip, evaluation: DesignEvaluation) {
        match &mut self.fate {
            SweptOutcome::NoChip(_) => {}
            SweptOutcome::Outside(_, built) => {
                **built = other;
                self.beyond = Some(evaluation);
            }
            SweptOutcome::Evaluated(built, own) => {
                **built = other;
                **own = evaluation;
            }
        }
    }

    /// Adds the price of the system around a device to the chip's figures, if the objective pays for it.
    pub fn count_system(&mut self, aim: &Aim, prepared: &[PreparedJob<'_>]) {
        let (SweptOutcome::Outside(_, built) | SweptOutcome::Evaluated(built, _)) = &mut self.fate else { return };
        built.count_system(aim, prepared);
    }

    /// The evaluation of the chip, within the limits or not; `None` if it has none.
    #[must_use]
    pub fn evaluation_of_step(&self) -> Option<&DesignEvaluation> {
        match &self.fate {
            SweptOutcome::Evaluated(_, evaluation) => Some(evaluation),
            _ => self.beyond.as_ref(),
        }
    }
}

/// The designs one step from a combination along each dimension with several values, down and up.
///
/// # Errors
/// Only errors that the space's enumeration has already reported.
pub fn single_steps(sweep: &Sweep<'_>, combination: u64) -> Result<Vec<DimensionStep>, String> {
    let dials = sweep.space.listed_dimensions();
    let here = places_of_combination(&dials, combination);
    let mut neighbours = Vec::new();
    for (at, dial) in dials.iter().enumerate() {
        let down = here[at].checked_sub(1);
        let up = Some(here[at] + 1).filter(|place| *place < dial.values.len());
        neighbours.extend([down, up].into_iter().flatten().map(|place| (at, place)));
    }
    let one = |&(at, place): &(usize, usize)| {
        let mut there = here.clone();
        there[at] = place;
        let fate = sweep.evaluate_combination(combination_of_places(&dials, &there))?;
        let beyond = match &fate {
            SweptOutcome::Outside(_, built) if built.fabric.is_some() => Some(sweep.evaluate_chip(built)),
            _ => None,
        };
        let mut exceeds = Vec::new();
        if let SweptOutcome::Outside(why, built) = &fate {
            exceeds.push(*why);
            exceeds.extend(sweep.space.limits().all_exceeded(&built.figures).filter(|other| other != why));
        }
        let dial = &dials[at];
        let (from, to) = (dial.values[here[at]].clone(), dial.values[place].clone());
        Ok(DimensionStep { key: dial.key.clone(), from, to, fate, beyond, exceeds })
    };
    neighbours.par_iter().with_max_len(1).map(one).collect()
}

/// A resource of a design.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resource {
    /// Bandwidth of HBM, both directions.
    HbmBandwidth,
    /// Capacity of HBM.
    HbmCapacity,
    /// Bandwidth of the memory on the die with this name.
    BufferBandwidth(String),
    /// Capacity of the memory on the die with this name.
    BufferCapacity(String),
    /// Bandwidth of a device's port into the fabric's tier with this name.
    LinkBandwidth(String),
    /// The clock of the cores and of the memories on the die, whose bandwidth follows it.
    Clock,
}

/// Factor on a resource to measure its marginal value: a tenth more.
pub const MORE: f64 = 1.1;

/// The effect of a tenth more of one resource, with everything else unchanged.
#[derive(Debug, Clone, PartialEq)]
pub struct Marginal {
    /// The resource.
    pub resource: Resource,
    /// The design's amount of it: bytes, bytes per second or Hz.
    pub has: f64,
    /// The evaluation with [`MORE`] times as much.
    pub evaluation: DesignEvaluation,
}

/// The effect of a tenth more of each resource on a design. `plans` is the plan space of the job on the design's
/// fabric.
///
/// # Errors
/// A chip that the cost model cannot use.
pub fn marginal_resources(
    prepared: &PreparedJob<'_>,
    plans: &PlanSpace,
    chip: &Accelerator,
) -> Result<Vec<Marginal>, StepError> {
    let mut chips = vec![
        (Resource::HbmBandwidth, chip.hbm.read_bandwidth.0, with_change(chip, |chip| speed_up_memory(&mut chip.hbm))),
        (
            Resource::HbmCapacity,
            chip.hbm.capacity.as_f64(),
            with_change(chip, |chip| chip.hbm.capacity = enlarge_capacity(chip.hbm.capacity)),
        ),
    ];
    for (at, level) in chip.on_chip.iter().enumerate() {
        let (bandwidth, capacity) =
            (Resource::BufferBandwidth(level.name.clone()), Resource::BufferCapacity(level.name.clone()));
        chips.push((
            bandwidth,
            level.read_bandwidth.0,
            with_change(chip, |chip| speed_up_memory(&mut chip.on_chip[at])),
        ));
        let larger = |chip: &mut Accelerator| chip.on_chip[at].capacity = enlarge_capacity(chip.on_chip[at].capacity);
        chips.push((capacity, level.capacity.as_f64(), with_change(chip, larger)));
    }
    let quicker = |chip: &mut Accelerator| {
        chip.clock.0 *= MORE;
        chip.on_chip.iter_mut().for_each(speed_up_memory);
    };
    chips.push((Resource::Clock, chip.clock.0, with_change(chip, quicker)));
    let mut found: Vec<Marginal> = chips
        .into_par_iter()
        .with_max_len(1)
        .map(|(resource, has, chip)| Marginal { resource, has, evaluation: best_plan(prepared, &chip) })
        .collect();
    let job = prepared.job(chip);
    for (at, tier) in job.fabric.tiers.iter().enumerate() {
        let mut fabric: Fabric = job.fabric.clone();
        let rate = |rate: &mut BytesPerSecond| rate.0 *= MORE;
        rate(&mut fabric.tiers[at].bandwidth);
        fabric.tiers[at].group_bandwidth.iter_mut().for_each(rate);
        let prepared = PreparedJob::new(crate::planner::Job { fabric: &fabric, ..job }, plans)?;
        let (resource, has) = (Resource::LinkBandwidth(tier.name.clone()), tier.bandwidth.0);
        found.push(Marginal { resource, has, evaluation: best_plan(&prepared, chip) });
    }
    Ok(found)
}

fn with_change(chip: &Accelerator, change: impl FnOnce(&mut Accelerator)) -> Accelerator {
    let mut chip = chip.clone();
    change(&mut chip);
    chip
}

fn speed_up_memory(level: &mut sim::hardware::MemoryLevel) {
    level.read_bandwidth.0 *= MORE;
    level.write_bandwidth.0 *= MORE;
}

fn enlarge_capacity(capacity: Bytes) -> Bytes {
    Bytes((capacity.as_f64() * MORE) as u64)
}
