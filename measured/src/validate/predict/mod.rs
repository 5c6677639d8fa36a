//! Translates rows of measured data to predictions of `sim`, `step` and `serving`. Nothing here is fitted, and no
//! prediction depends on the measured value.

mod cluster;
pub(super) mod collectives;
pub(super) mod decode;
pub(super) mod die_area;
pub(super) mod energy;
pub(super) mod finetuning;
pub(super) mod kernels;
pub(super) mod memory;
mod modules;
mod recompute;
pub(super) mod run;
pub(super) mod serving;
mod software;
mod stages;
pub(super) mod streams;
pub(super) mod systolic;
pub(super) mod training;

use super::ValidateOptions;
use super::row::{MeasuredRow, RowFailure};
use crate::evidence::{AloneFacts, PredictionFacts};
use ::serving::ServingEngine;
use serde::Deserialize;
use sim::cost::CostModel;
use sim::files::carried::Files;
use sim::hardware::{Accelerator, AreaBreakdown, chip_area};
use sim::network::Fabric;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use step::{ChipTimes, SoftwareStack, StepTime};

/// Chips and fabrics of earlier rows, prepared once.
#[derive(Debug, Default)]
pub(super) struct PreparedInputs {
    fabrics: BTreeMap<(String, String), Result<Fabric, String>>,
    models: BTreeMap<String, Result<CostModel, String>>,
    areas: BTreeMap<String, Result<AreaBreakdown, String>>,
    chips: BTreeMap<(String, String), Result<ChipTimes, String>>,
    stacks: Option<PathBuf>,
    /// Stacks that take precedence over those of the directory and the built-in ones of the same name.
    driven: BTreeMap<String, SoftwareStack>,
    /// Stacks with options of rows: (name of the base stack, options), by the name of the changed stack.
    with_options: BTreeMap<String, (String, Vec<String>)>,
    /// The usual stack of each chip, or the reason why it has none.
    usual: BTreeMap<String, Result<SoftwareStack, String>>,
    /// The name of the stack that all rows are assumed to have run under; `None` if rows decide.
    stack: Option<String>,
    hardware: Option<PathBuf>,
    /// Serving engines that take precedence over the built-in ones of the same name.
    engines: BTreeMap<String, ServingEngine>,
    steps: Vec<(String, StepTime)>,
    /// Assumptions about the current row.
    assumed: Vec<String>,
    /// The facts of the current prediction, if it is of a training run.
    facts: Option<PredictionFacts>,
    /// The facts of the current prediction, if it is of a kernel or a collective.
    alone: Option<AloneFacts>,
}

impl PreparedInputs {
    pub(super) fn new(options: &ValidateOptions) -> Self {
        Self { stacks: options.stacks.clone(), hardware: options.chips.clone(), ..Self::default() }
    }

    /// Returns inputs with the same directories and the same forced stack, with nothing read yet.
    pub(super) fn with_nothing_read(&self) -> Self {
        Self {
            stacks: self.stacks.clone(),
            hardware: self.hardware.clone(),
            stack: self.stack.clone(),
            ..Self::default()
        }
    }

    /// Uses this stack for every row, whatever the row states.
    pub(super) fn force_stack(&mut self, stack: &SoftwareStack) {
        self.stack = Some(stack.name.clone());
        self.replace_stacks(std::slice::from_ref(stack));
    }

    /// Returns the name of the stack that all rows are assumed to have run under; `None` if rows decide.
    fn forced_stack(&self) -> Option<&str> {
        self.stack.as_deref()
    }

    /// Uses these stacks in place of all stacks of the same names from now on, and forgets the earlier replacements.
    pub(super) fn replace_stacks(&mut self, stacks: &[SoftwareStack]) {
        self.driven = stacks.iter().map(|stack| (stack.name.clone(), stack.clone())).collect();
        self.chips.clear();
        self.steps.clear();
    }

    /// Returns the serving engine to which rows refer by this name; `None` if there is none.
    pub(super) fn engine_named(&self, name: &str) -> Option<ServingEngine> {
        serving::engine_named(self, name).ok()
    }

    /// Replaces the serving engine of the same name from now on.
    pub(super) fn replace_engine(&mut self, engine: &ServingEngine) {
        self.engines.insert(engine.name.clone(), engine.clone());
    }

    /// Returns the steps predicted so far: the row's id and the parts of its time.
    pub(super) fn into_steps(self) -> Vec<(String, StepTime)> {
        self.steps
    }

    /// Notes an assumption about the row: a missing or unusable value, and its replacement.
    fn note_assumption(&mut self, what: String) {
        self.assumed.push(what);
    }

    /// Notes the facts on which a run's prediction rests.
    fn note_facts(&mut self, run: &run::MeasuredRun) -> Result<(), RowFailure> {
        self.cost_model(&run.chip)?;
        self.chip_under_stack(&run.chip, &run.stack)?;
        let times = self.chips.get(&(run.chip.clone(), run.stack.clone())).and_then(|times| times.as_ref().ok());
        let model = self.models.get(&run.chip).and_then(|model| model.as_ref().ok());
        self.facts = times.zip(model).map(|(times, model)| {
            PredictionFacts::of_plan(model.accelerator(), &run.fabric, times.stack(), &run.model, &run.plan)
        });
        Ok(())
    }

    /// Takes the facts of the last prediction of a kernel or a collective.
    pub(super) fn take_alone_facts(&mut self) -> Option<AloneFacts> {
        self.alone.take()
    }

    /// Takes the facts of the last prediction of a training run.
    pub(super) fn take_run_facts(&mut self) -> Option<PredictionFacts> {
        self.facts.take()
    }

    /// Takes the assumptions about the last row.
    pub(super) fn take_assumptions(&mut self) -> Vec<String> {
        std::mem::take(&mut self.assumed)
    }

    /// Returns the fabric with its figures for the chip.
    fn fabric_of_chip(&mut self, name: &str, chip: &str) -> Result<&Fabric, RowFailure> {
        let hardware = self.hardware.as_deref();
        let prepared = self.fabrics.entry((name.into(), chip.into())).or_insert_with(|| {
            let accelerator = find_accelerator(hardware, chip)?;
            Fabric::load_for_accelerator(name, &accelerator, &Files::default()).map_err(|e| e.to_string())
        });
        prepared.as_ref().map_err(|why| RowFailure::Unpredictable(why.clone()))
    }

    /// Returns the fabric under the version or setting of the communication library in a measurement.
    fn fabric_under_library(&mut self, name: &str, chip: &str, software: &str) -> Result<Fabric, RowFailure> {
        let prepared = self.fabrics.entry((name.into(), format!("{chip}\u{0}{software}"))).or_insert_with(|| {
            let fabric = Fabric::built_in_under_software(name, chip, software);
            fabric.map_err(|e| e.to_string())
        });
        prepared.clone().map_err(RowFailure::Unpredictable)
    }

    /// Returns the cost model of the chip.
    fn cost_model(&mut self, chip: &str) -> Result<&CostModel, RowFailure> {
        let prepared = self.models.entry(chip.into()).or_insert_with(|| {
            let accelerator = find_accelerator(self.hardware.as_deref(), chip)?;
            CostModel::new(accelerator).map_err(|e| e.to_string())
        });
        prepared.as_ref().map_err(|why| RowFailure::Unpredictable(why.clone()))
    }

    /// Returns the modelled area of the chip.
    fn modelled_area(&mut self, chip: &str) -> Result<&AreaBreakdown, RowFailure> {
        let prepared = self.areas.entry(chip.into()).or_insert_with(|| {
            let accelerator = find_accelerator(self.hardware.as_deref(), chip)?;
            chip_area(&accelerator).map_err(|e| e.to_string())
        });
        prepared.as_ref().map_err(|why| RowFailure::Unpredictable(why.clone()))
    }

    /// Loads the stack of this name: a replacement, one from the directory of stacks, or a built-in one.
    fn load_stack(&self, name: &str) -> Result<SoftwareStack, String> {
        load_stack(self.stacks.as_deref(), &self.driven, name)
    }

    /// Adds a stack with these options, and returns the name under which it can be loaded.
    fn add_stack_with_options(&mut self, base: &str, options: &[&str]) -> Result<String, String> {
        if options.is_empty() {
            return Ok(base.to_owned());
        }
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        let name = set_options(self.load_stack(base)?, &options)?.name;
        self.with_options.insert(name.clone(), (base.to_owned(), options));
        Ok(name)
    }

    /// Returns the name of the stack without a row's own options. Its scalars are the fitted ones.
    pub(super) fn base_of_stack<'a>(&'a self, name: &'a str) -> &'a str {
        self.with_options.get(name).map_or(name, |(base, _)| base)
    }

    /// Returns the stack that the chip's file names as usual.
    fn usual_stack_of_chip(&mut self, row: &MeasuredRow<'_>, chip: &str) -> Result<SoftwareStack, RowFailure> {
        if !self.usual.contains_key(chip) {
            let accelerator = self.cost_model(chip)?.accelerator();
            let usual = SoftwareStack::load_usual_of_chip(accelerator, &format!("{chip}.toml"));
            self.usual.insert(chip.to_owned(), usual.map_err(|e| e.to_string()));
        }
        let usual = self.usual.get(chip).cloned().unwrap_or_else(|| Err(format!("chip {chip} has no usual_stack")));
        usual.map_err(|why| row.row_fault("stack", &why, "give the row a column `framework` or `stack`"))
    }

    /// Returns the kernel times of the chip under a software stack.
    fn chip_under_stack(&mut self, chip: &str, stack: &str) -> Result<&mut ChipTimes, RowFailure> {
        let prepared = self.chips.entry((chip.into(), stack.into())).or_insert_with(|| {
            let known = self.with_options.get(stack);
            let (base, options) = known.map_or((stack, &[][..]), |(base, options)| (base, options));
            let base = load_stack(self.stacks.as_deref(), &self.driven, base)?;
            let stack = set_options(base, options)?;
            let accelerator = find_accelerator(self.hardware.as_deref(), chip)?;
            ChipTimes::new(&accelerator, &stack).map_err(|e| e.to_string())
        });
        prepared.as_mut().map_err(|why| RowFailure::Unpredictable(why.clone()))
    }
}

/// Reads a carried table. A malformed line leaves the table empty; `assert_whole` finds it in tests.
fn read_table<T: for<'a> Deserialize<'a>>(text: &str) -> Vec<T> {
    csv::Reader::from_reader(text.as_bytes()).deserialize().collect::<Result<_, _>>().unwrap_or_default()
}

/// Asserts that every line of a carried table can be read.
#[cfg(test)]
fn assert_whole<T: for<'a> Deserialize<'a>>(table: &[T], text: &str) {
    let lines: Result<Vec<T>, _> = csv::Reader::from_reader(text.as_bytes()).deserialize().collect();
    let fault = lines.as_ref().err().map(ToString::to_string);
    assert_eq!((fault, lines.map_or(0, |lines| lines.len())), (None, table.len()));
    assert!(!table.is_empty(), "{text}");
}

/// Stacks by name.
type NamedStacks = BTreeMap<String, SoftwareStack>;

fn load_stack(directory: Option<&Path>, driven: &NamedStacks, name: &str) -> Result<SoftwareStack, String> {
    if let Some(driven) = driven.get(name) {
        return Ok(driven.clone());
    }
    let file = directory.map(|directory| directory.join(format!("{name}.toml")).display().to_string());
    SoftwareStack::load(file.as_deref().unwrap_or(name)).map_err(|e| e.to_string())
}

fn set_options(stack: SoftwareStack, options: &[String]) -> Result<SoftwareStack, String> {
    options.iter().try_fold(stack, |stack, option| stack.with_option(option).map_err(|e| e.to_string()))
}

/// Returns the chip of this name: from a file in the directory, if it has one; otherwise the built-in chip.
pub(super) fn find_accelerator(directory: Option<&Path>, chip: &str) -> Result<Accelerator, String> {
    let file = directory.map(|directory| directory.join(format!("{chip}.toml"))).filter(|file| file.is_file());
    let Some(file) = file else { return Accelerator::built_in(chip).map_err(|e| e.to_string()) };
    let text = sim::files::text::read_text(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    Accelerator::from_toml_str(&text, &file.display().to_string()).map_err(|e| e.to_string())
}
