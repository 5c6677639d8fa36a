//! The answer of `coplace techniques` as data: every technique on one model and chip. `docs/json.md` describes it.

use search::techniques::{TechniqueSetting, TechniqueTrial};
use serde::Serialize;
use sim::units::Bytes;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use step::{MemoryClass, StageMemory, StepError};
use workloads::memory::{Preset, TrainingEffect, TrainingQuantities};
use workloads::{Lowering, Technique, Techniques};

/// The version of the JSON format of this build.
pub const FORMAT: u32 = 1;

const GIB: f64 = (1u64 << 30) as f64;

/// The answer of `coplace techniques`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TechniqueComparison {
    /// Version of this schema: [`FORMAT`].
    pub format: u32,
    /// The model.
    pub model: String,
    /// The chip.
    pub chip: String,
    /// The software stack.
    pub stack: String,
    /// Devices.
    pub devices: u64,
    /// Tokens of a sequence.
    pub sequence_tokens: u64,
    /// Sequences of a micro-batch.
    pub micro_batch_sequences: u64,
    /// Sequences of a step.
    pub global_batch_sequences: u64,
    /// Device memory that programs may use, in GiB.
    pub capacity_gib: f64,
    /// Host memory per device, in GiB.
    pub host_capacity_gib: f64,
    /// Storage per device, in GiB.
    pub storage_capacity_gib: f64,
    /// One row per technique. The plan without techniques comes first. Then come the techniques that fit, in the
    /// requested order; those that do not fit, smallest need first; and those that cannot be used. In
    /// [`TechniqueOrder::Listed`], all rows after the first keep the order of the list.
    pub rows: Vec<TechniqueRow>,
    /// The command that decides tensor by tensor what this plan keeps, recomputes and offloads; empty if it is not
    /// known.
    pub recompute_best: String,
}

/// The order of the rows whose plans fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TechniqueOrder {
    /// Shortest step first; ties by the need of a device.
    #[default]
    Fastest,
    /// Smallest need of a device first; ties by the step.
    Memory,
    /// Longest sequence that fits first; ties by the step.
    Longest,
    /// The order of the list, also for rows that do not fit.
    Listed,
}

/// A technique, or a combination of several.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TechniqueRow {
    /// The name with the given or chosen parameters.
    pub technique: String,
    /// The values of all parameters of each technique, by its name. A technique whose values cannot be computed is left
    /// out.
    pub parameters: BTreeMap<String, BTreeMap<String, f64>>,
    /// Its effect on the result of training: `exact`, `unbiased` or `biased`.
    pub gate: String,
    /// Its formula.
    pub formula: String,
    /// The source.
    pub source: String,
    /// The reason why the technique cannot be used here; `null` if it can.
    pub refused: Option<String>,
    /// True if memory and step are those of the plan without techniques, and nothing goes to the host or to storage.
    pub changes_nothing: bool,
    /// True if neither the need of a device nor the step is smaller than in the plan without techniques, within the
    /// tolerances of this module.
    pub saves_nothing: bool,
    /// The figures of the plan under the technique; `null` if it cannot be used.
    pub result: Option<TechniqueEffect>,
}

/// The figures of a plan under a technique.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TechniqueEffect {
    /// The peak of the fullest stage by class, in GiB.
    pub classes_gib: Vec<ClassGib>,
    /// The need of the fullest device, in GiB.
    pub need_gib: f64,
    /// Data in host memory, in GiB per device.
    pub host_gib: f64,
    /// Data in storage, in GiB per device.
    pub storage_gib: f64,
    /// True if the plan fits.
    pub fits: bool,
    /// The shortfall in words; `null` if the plan fits.
    pub lacks: Option<String>,
    /// Time of one step in seconds, even if the plan does not fit.
    pub step_s: f64,
    /// Tokens per second over all devices.
    pub tokens_per_s: f64,
    /// Step time over that of the plan without techniques.
    pub slowdown: f64,
    /// The longest sequence that fits, in tokens; `null` if none fits.
    pub longest_sequence_tokens: Option<u64>,
    /// The largest micro-batch that fits, in sequences; `null` if none fits.
    pub largest_micro_batch_sequences: Option<u64>,
    /// Data written to storage per device and step, in GB.
    pub storage_written_gb: f64,
    /// Years until a device has written 1 PB to storage, by this step; `null` if nothing is written.
    pub storage_years_per_pb: Option<f64>,
    /// Notes on requested techniques that have no effect here.
    pub notes: Vec<String>,
}

/// A memory class and its size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClassGib {
    /// The class.
    pub class: String,
    /// GiB.
    pub gib: f64,
}

/// A reduction of the need by less than this fraction is no saving.
const NO_SAVING: f64 = 1e-3;

/// Seconds of a year of 365 days.
const YEAR: f64 = 365.0 * 86_400.0;

/// Returns the years until `written_gb` per step add up to 1 PB. Multiply by the storage's endurance (total writable
/// bytes) in PB to get its lifetime.
pub(crate) fn years_per_pb(written_gb: f64, step_s: f64) -> f64 {
    1e6 * step_s / written_gb / YEAR
}

impl TechniqueComparison {
    /// Evaluates lists of techniques, one row per list, after the plan without techniques.
    ///
    /// # Errors
    /// A plan that the model refuses even without techniques.
    pub fn compare_techniques(
        setting: &TechniqueSetting<'_>,
        lists: &[Techniques],
        order: TechniqueOrder,
    ) -> Result<Self, StepError> {
        let none = setting.try_techniques(Techniques::none())?;
        let mut rows = vec![technique_row(setting, Techniques::none(), Ok(none.clone()), &none)];
        rows.extend(lists.iter().map(|list| technique_row(setting, list, setting.try_best_fractions(list), &none)));
        if order != TechniqueOrder::Listed {
            rows[1..].sort_by(|a, b| order.compare_rows(a, b));
        }
        let plan = setting.plan;
        Ok(Self {
            format: FORMAT,
            model: setting.model.name.clone(),
            chip: setting.chip.name.clone(),
            stack: setting.stack.name.clone(),
            devices: plan.layout.device_count(),
            sequence_tokens: plan.batch.sequence_length,
            micro_batch_sequences: plan.batch.micro_batch,
            global_batch_sequences: plan.batch.global_batch,
            capacity_gib: none.memory.capacity.gib(),
            host_capacity_gib: none.memory.host_capacity.gib(),
            storage_capacity_gib: none.memory.storage_capacity.gib(),
            rows,
            recompute_best: String::new(),
        })
    }
}

impl TechniqueOrder {
    /// Compares two rows. Rows that fit come first, then the others by their need, then the techniques that cannot be
    /// used. Ties are equal, so that a stable sort keeps the order of the list.
    fn compare_rows(self, a: &TechniqueRow, b: &TechniqueRow) -> Ordering {
        let key = |row: &TechniqueRow| match &row.result {
            None => (2, 0.0, 0.0),
            // Host memory and storage count in the need, because they may be what does not suffice.
            Some(result) if !result.fits => (1, result.need_gib + result.host_gib + result.storage_gib, 0.0),
            Some(result) => match self {
                Self::Memory => (0, result.need_gib, result.step_s),
                Self::Longest => (0, -(result.longest_sequence_tokens.unwrap_or(0) as f64), result.step_s),
                Self::Fastest | Self::Listed => (0, result.step_s, result.need_gib),
            },
        };
        let ((place, value, tie), (other_place, other_value, other_tie)) = (key(a), key(b));
        place.cmp(&other_place).then(value.total_cmp(&other_value)).then(tie.total_cmp(&other_tie))
    }
}

/// Steps that differ by less than this fraction of the plain step tie.
const TIE: f64 = 1e-3;
/// The largest number of combinations that a comparison offers.
const OFFERED: usize = 6;
/// A combination must need less than this fraction of the need of its best member.
const LESS: f64 = 0.99;

/// Returns combinations of exact techniques from `lists` that need less memory than each of their members. Those that
/// fit come first, fastest first; then those with the smallest need. If no pair fits, a third technique is added to
/// each of the best pairs. At most six combinations are returned.
///
/// # Errors
/// A plan that the model refuses even without techniques.
pub fn offer_combinations(setting: &TechniqueSetting<'_>, lists: &[Techniques]) -> Result<Vec<Techniques>, StepError> {
    let none = setting.try_techniques(Techniques::none())?;
    let need = |trial: &TechniqueTrial| {
        trial.memory.stages.iter().map(StageMemory::bytes_needed).max().unwrap_or_default().as_f64()
    };
    let exact = |list: &&Techniques| list.lossy_techniques().next().is_none();
    let tried = lists.iter().filter(exact).filter_map(|list| {
        let trial = setting.try_best_fractions(list).ok()?;
        let saves = need(&trial) < LESS * need(&none);
        saves.then(|| (list.clone(), trial))
    });
    let singles: Vec<(Techniques, TechniqueTrial)> = tried.collect();
    let joined = |a: &Techniques, b: &Techniques| a.iter().chain(b.iter()).cloned().collect::<Techniques>();
    let beside = |(first, one): &(Techniques, TechniqueTrial), (second, two): &(Techniques, TechniqueTrial)| {
        let list = joined(first, second);
        let trial = setting.try_best_fractions(&list).ok()?;
        (need(&trial) < LESS * need(one).min(need(two))).then_some((list, trial))
    };
    let pairs = singles.iter().enumerate().flat_map(|(at, one)| singles[at + 1..].iter().map(move |two| (one, two)));
    let mut found: Vec<(Techniques, TechniqueTrial)> = pairs.filter_map(|(one, two)| beside(one, two)).collect();
    let by_use = |a: &(Techniques, TechniqueTrial), b: &(Techniques, TechniqueTrial)| {
        let slowdown = |trial: &TechniqueTrial| (trial.time.total.0 / none.time.total.0 / TIE).round();
        let key = |trial: &TechniqueTrial| match &trial.lacks {
            None => (0, slowdown(trial)),
            Some(_) => (1, 0.0),
        };
        let ((place, value), (other_place, other_value)) = (key(&a.1), key(&b.1));
        let by_need = need(&a.1).total_cmp(&need(&b.1));
        place.cmp(&other_place).then(value.total_cmp(&other_value)).then(by_need)
    };
    found.sort_by(by_use);
    if found.iter().all(|(_, trial)| trial.lacks.is_some()) {
        let small: Vec<_> = found.iter().take(OFFERED).cloned().collect();
        let contains = |list: &Techniques, other: &Techniques| list.iter().any(|t| other.iter().any(|o| o == t));
        let others = |pair: &(Techniques, TechniqueTrial)| {
            let third = singles.iter().filter(|single| !contains(&pair.0, &single.0));
            third.filter_map(|single| beside(pair, single)).collect::<Vec<_>>()
        };
        found.extend(small.iter().flat_map(others).collect::<Vec<_>>());
        found.sort_by(by_use);
    }
    Ok(found.into_iter().map(|(list, _)| list).take(OFFERED).collect())
}

/// The technique that makes it possible to quantise frozen weights.
const ADAPTERS: &str = "lora";

/// Returns every built-in technique with its default parameters. A technique that quantises frozen weights is combined
/// with LoRA.
///
/// # Errors
/// A built-in file that cannot be read or parsed.
pub fn all_techniques() -> Result<Vec<Techniques>, workloads::TechniqueError> {
    let alone_or_beside_adapters = |name: &String| {
        let technique: Technique = name.parse()?;
        let frozen = technique.preset().needs_frozen_weights();
        let adapters = frozen.then(|| ADAPTERS.parse()).transpose()?;
        Ok(adapters.into_iter().chain([technique]).collect())
    };
    Preset::built_in_names().iter().map(alone_or_beside_adapters).collect()
}

fn technique_row(
    setting: &TechniqueSetting<'_>,
    list: &Techniques,
    tried: Result<TechniqueTrial, StepError>,
    none: &TechniqueTrial,
) -> TechniqueRow {
    let joined = |of: fn(&Preset) -> &str| list.iter().map(|t| of(t.preset())).collect::<Vec<_>>().join("; ");
    let gate = list.iter().map(|t| t.preset().gate).max_by_key(|gate| *gate as u8).unwrap_or(TrainingEffect::Exact);
    let name = |techniques: &Techniques| if techniques.is_empty() { "none".to_owned() } else { techniques.to_string() };
    let chosen = tried.as_ref().map_or_else(|_| name(list), |trial| name(&trial.techniques));
    let refused = tried.as_ref().err().map(ToString::to_string);
    let lowering = Lowering { sequence_length: setting.plan.batch.sequence_length, ..Lowering::new(setting.model) };
    let facts = TrainingQuantities::new(setting.model, &lowering);
    let in_force =
        |technique: &Technique| Some((technique.preset().name.clone(), technique.parameter_values(&facts).ok()?));
    let parameters = tried.as_ref().map_or(list, |trial| &trial.techniques).iter().filter_map(in_force).collect();
    // Differences below a mebibyte of memory or a ten-thousandth of a step count as none.
    let (same_need, same_step) = (1.0 / 1024.0, 1e-4);
    let need_of_none = none.memory.stages.iter().map(StageMemory::bytes_needed).max().unwrap_or_default().gib();
    let result = tried.ok().map(|trial| technique_effect(setting, list, &trial, none));
    let compared = |holds: fn(f64, f64) -> bool| {
        let more = |r: &TechniqueEffect| (r.need_gib - need_of_none) / same_need;
        result.as_ref().is_some_and(|r| holds(more(r), (r.slowdown - 1.0) / same_step))
    };
    let on_device = result.as_ref().is_some_and(|r| r.host_gib == 0.0 && r.storage_gib == 0.0);
    let none_itself = list.is_empty();
    TechniqueRow {
        changes_nothing: !none_itself && on_device && compared(|need, step| need.abs() < 1.0 && step.abs() < 1.0),
        saves_nothing: !none_itself
            && result.as_ref().is_some_and(|r| r.need_gib > need_of_none * (1.0 - NO_SAVING))
            && compared(|_, step| step > -1.0),
        technique: chosen,
        parameters,
        gate: gate.to_string(),
        formula: joined(|p| &p.formula),
        source: joined(|p| &p.source),
        refused,
        result,
    }
}

fn technique_effect(
    setting: &TechniqueSetting<'_>,
    list: &Techniques,
    trial: &TechniqueTrial,
    none: &TechniqueTrial,
) -> TechniqueEffect {
    let fullest = trial.memory.stages.iter().max_by_key(|s| s.bytes_needed());
    let most = |of: fn(&StageMemory) -> Bytes| trial.memory.stages.iter().map(of).max().unwrap_or_default();
    let batch = &setting.plan.batch;
    // States are written once per step; activations and gradients are written in every micro-batch. Read-only data were
    // written before training.
    let micro_batches = setting.plan.micro_batches();
    let written = trial
        .memory
        .stages
        .iter()
        .map(|s| s.written[0] + s.written[1] * micro_batches)
        .max()
        .unwrap_or_default()
        .as_f64();
    TechniqueEffect {
        classes_gib: MemoryClass::ALL
            .iter()
            .map(|class| ClassGib {
                class: class.to_string(),
                gib: fullest.map_or(0.0, |s| s.class_bytes(*class).as_f64() / GIB),
            })
            .collect(),
        need_gib: most(StageMemory::bytes_needed).gib(),
        host_gib: most(|s| s.host).gib(),
        storage_gib: most(|s| s.storage).gib(),
        fits: trial.lacks.is_none(),
        lacks: trial.lacks.as_ref().map(ToString::to_string),
        step_s: trial.time.total.0,
        tokens_per_s: (batch.global_batch * batch.sequence_length) as f64 / trial.time.total.0,
        slowdown: trial.time.total / none.time.total,
        longest_sequence_tokens: setting.longest_sequence(list),
        largest_micro_batch_sequences: setting.largest_micro_batch(list),
        storage_written_gb: written / 1e9,
        storage_years_per_pb: (written > 0.0).then(|| years_per_pb(written / 1e9, trial.time.total.0)),
        notes: trial.notes.clone(),
    }
}
