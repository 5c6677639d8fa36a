//! Memory peaks of fine-tuning. `reference/finetuning_methods.csv` tells what a method trains beside a frozen model.
//! `reference/finetuning_software.csv` tells which software the row's source uses.

use super::{PreparedInputs, read_table};
use crate::validate::row::{MeasuredRow, RowFailure};
use serde::Deserialize;
use sim::pipeline::PipelineSchedule;
use sim::units::Bytes;
use std::sync::LazyLock;
use step::{DeviceMemory, MemoryReading, TrainingPlan, step_memory};
use workloads::footprint::{Optimizer, Precision};
use workloads::parallel::{MAX_MICRO_BATCH, MAX_SEQUENCE};
use workloads::training::Attention;
use workloads::{ActivationPolicy, Batch, Layout, Model, Technique, TechniqueError, Techniques, ZeroStage};

static METHODS: LazyLock<Vec<FinetuningMethod>> =
    LazyLock::new(|| read_table(include_str!("../../../reference/finetuning_methods.csv")));
static SOFTWARE: LazyLock<Vec<FinetuningSoftware>> =
    LazyLock::new(|| read_table(include_str!("../../../reference/finetuning_software.csv")));
static MODELS: LazyLock<Vec<NamedModel>> =
    LazyLock::new(|| read_table(include_str!("../../../reference/finetuning_models.csv")));

/// A method by its name in the rows.
#[derive(Debug, Clone, Deserialize)]
struct FinetuningMethod {
    method: String,
    /// A word in the ids of the rows to which the line applies; empty for all other rows.
    variant: Option<String>,
    /// The technique; empty for training of all weights.
    technique: Option<String>,
    /// 1 if the row's rank sets the technique's rank.
    ranked: u8,
    /// The target modules, separated by `/`; `row` for those of the row's note.
    targets: Option<String>,
    /// Tokens in front of every sequence: a number; `trained` for the number of trained parameters divided by the
    /// model's width; or `keys_and_values` for trained keys and values alone.
    virtual_tokens: Option<String>,
}

/// The software of a source.
#[derive(Debug, Clone, Deserialize)]
struct FinetuningSoftware {
    source: String,
    stack: String,
    /// 1 if several devices shard the weights and gather the whole model when it is loaded.
    gathers_to_load: u8,
}

/// A model by its name in the rows.
#[derive(Debug, Clone, Deserialize)]
struct NamedModel {
    name: String,
    model: String,
}

/// Predicts the peak in the row's unit, and the outcome (1 if the run fits, otherwise 0).
pub(in crate::validate) fn predict_peak(
    prepared: &mut PreparedInputs,
    row: &MeasuredRow<'_>,
) -> Result<Vec<(&'static str, f64)>, RowFailure> {
    let unknown = |what: String| RowFailure::Unpredictable(what);
    let source = row.text("source")?;
    let software = SOFTWARE.iter().find(|line| source.starts_with(&line.source));
    let software = software.ok_or_else(|| unknown("the software of its source is not known".to_owned()))?;
    let stack = row.cell("stack").unwrap_or(&software.stack).to_owned();
    let chip = row.text("chip")?.to_owned();
    let name = row.text("model")?;
    let known = MODELS.iter().find(|line| line.name == name).map_or(name, |line| line.model.as_str());
    let model = Model::load(known).map_err(|e| unknown(e.to_string()))?;
    let method = find_method(row)?;
    let devices = row.dimension("gpus", 1 << 20)?;
    let micro_batch = row.dimension("micro_batch", MAX_MICRO_BATCH)?;
    let techniques = techniques_of_row(row, method, &model, micro_batch)?;
    let sequence = row.dimension("seq", MAX_SEQUENCE)? + virtual_tokens(row, method, &model)?;
    // Several devices each train on a batch of their own, and shard the weights (FSDP with checkpoints of its layers).
    let sharded = devices > 1;
    let data = u32::try_from(devices).unwrap_or(1);
    let recompute = match row.cell("recompute") {
        Some("none") | None if sharded => ActivationPolicy::Full,
        Some("none") | None => ActivationPolicy::None,
        Some(text) => text.parse().map_err(|e: workloads::WorkloadError| unknown(e.to_string()))?,
    };
    let zero = if sharded { ZeroStage::Parameters } else { ZeroStage::None };
    let plan = TrainingPlan {
        layout: Layout { data, zero, ..Layout::default() },
        batch: Batch { micro_batch, global_batch: micro_batch * devices, sequence_length: sequence },
        activations: recompute.into(),
        attention: Attention::Fused,
        precision: Precision::PURE_BF16,
        optimizer: Optimizer::Adam,
        schedule: PipelineSchedule::OneForwardOneBackward,
        techniques,
    };
    // With tokens in front, a sequence may be longer than the model's own limit.
    let model = Model { max_sequence: model.max_sequence.max(sequence), ..model };
    let loaded = prepared.chip_under_stack(&chip, &stack)?.stack().clone();
    let room = DeviceMemory::of_chip(prepared.cost_model(&chip)?.accelerator());
    let memory = step_memory(&model, &plan, &loaded, room, None).map_err(|e| unknown(e.to_string()))?;
    let instrument = row.text("instrument")?;
    let reading = match instrument.split_whitespace().find_map(|word| match word {
        "reserved" => Some(MemoryReading::Reserved),
        "allocated" => Some(MemoryReading::Allocated),
        _ => None,
    }) {
        Some(reading) => reading,
        None => return Err(row.row_fault("instrument", "must say reserved or allocated", "name the instrument")),
    };
    let mut peak = memory.peak_reading(reading);
    let mut fits = memory.check_fits().is_ok();
    if sharded && software.gathers_to_load == 1 {
        // While loading, the whole model is beside this device's share of it, in the operand type.
        let whole = Bytes(2 * model.parameters());
        let loading = whole + Bytes(whole.0.div_ceil(devices));
        prepared.note_assumption("on several devices, the whole model is gathered beside its shards to load it".into());
        fits &= loading <= room.hbm;
        peak = peak.max(loading);
    }
    let peak = match row.text("unit")? {
        "GiB" => peak.gib(),
        "GB" => peak.as_f64() / 1e9,
        _ => return Err(row.row_fault("unit", "must be GiB or GB", "write the unit of `peak`")),
    };
    Ok(vec![("peak", peak), ("fits", f64::from(u8::from(fits)))])
}

/// Value of `virtual_tokens` for trained keys and values in front of every sequence, which lengthen no query.
const KEYS_AND_VALUES: &str = "keys_and_values";

/// Returns the method of a row. A line whose variant the row's id names goes first.
fn find_method(row: &MeasuredRow<'_>) -> Result<&'static FinetuningMethod, RowFailure> {
    let (method, id) = (row.text("technique")?, row.id());
    let named = |line: &&FinetuningMethod| line.method.eq_ignore_ascii_case(method);
    let varied = |line: &&FinetuningMethod| line.variant.as_ref().is_some_and(|word| id.contains(word.as_str()));
    let found = METHODS.iter().filter(named).find(varied);
    let found = found.or_else(|| METHODS.iter().filter(named).find(|line| line.variant.is_none()));
    found.ok_or_else(|| RowFailure::Unpredictable(format!("the method {method} is not modelled")))
}

/// Returns the text between a word of the row's note and the next `end`; `None` if the note lacks the word.
fn noted<'r>(row: &MeasuredRow<'r>, word: &str, end: char) -> Option<&'r str> {
    let (_, rest) = row.cell("note")?.split_once(word)?;
    Some(rest.split(end).next().unwrap_or(rest))
}

/// Returns the number of trained parameters in the row's note.
fn trained_numbers(row: &MeasuredRow<'_>) -> Result<u64, RowFailure> {
    let trained = noted(row, "trainable ", ';').and_then(|count| count.trim().replace(',', "").parse().ok());
    trained.ok_or_else(|| row.row_fault("note", "must give the trained numbers", "write `trainable 614400`"))
}

fn techniques_of_row(
    row: &MeasuredRow<'_>,
    method: &FinetuningMethod,
    model: &Model,
    micro_batch: u64,
) -> Result<Techniques, RowFailure> {
    let fault = |e: TechniqueError| RowFailure::Unpredictable(e.to_string());
    let mut techniques = Vec::new();
    if let Some(name) = &method.technique {
        let mut technique: Technique = name.parse().map_err(fault)?;
        if let Some(rank) = row.number("rank")?.filter(|_| method.ranked == 1) {
            technique = technique.with_parameter("rank", rank);
        }
        let of_note = || {
            let list = noted(row, "targets [", ']')?;
            Some(list.split(',').map(|name| name.trim().trim_matches('\'')).collect::<Vec<_>>().join("/"))
        };
        let targets = match method.targets.as_deref() {
            Some("row") => of_note(),
            other => other.map(str::to_owned),
        };
        if let Some(targets) = targets {
            technique = technique.with_targets(&targets, '/').map_err(fault)?;
        }
        if method.virtual_tokens.as_deref() == Some(KEYS_AND_VALUES) {
            let each = model.layer_count() * model.kv_heads * (model.head_dim + model.value_dim());
            let tokens = trained_numbers(row)? / each.max(1);
            technique = technique.with_parameter("tokens", tokens as f64);
            technique = technique.with_parameter("sequences", micro_batch as f64);
        }
        techniques.push(technique);
    }
    let base = match row.cell("quantization") {
        None | Some("None" | "none") => None,
        Some("bnb.nf4") => Some("nf4-base,scale_bytes=4"),
        Some("bnb.nf4-dq") => Some("nf4-base"),
        Some("bnb.int8" | "bnb.int8-training") => Some("int8-base"),
        Some(other) => return Err(RowFailure::Unpredictable(format!("the base's format {other} is not modelled"))),
    };
    if let Some(base) = base {
        techniques.push(base.parse().map_err(fault)?);
    }
    Ok(techniques.into())
}

/// Returns the number of tokens that the method puts in front of every sequence.
fn virtual_tokens(row: &MeasuredRow<'_>, method: &FinetuningMethod, model: &Model) -> Result<u64, RowFailure> {
    match method.virtual_tokens.as_deref() {
        None | Some(KEYS_AND_VALUES) => Ok(0),
        Some("trained") => Ok(trained_numbers(row)? / model.hidden.max(1)),
        Some(number) => number
            .parse()
            .map_err(|_| RowFailure::Unpredictable(format!("virtual_tokens = {number}: is no whole number"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::predict::assert_whole;

    #[test]
    fn every_line_of_the_carried_tables_can_be_read() {
        assert_whole(&METHODS, include_str!("../../../reference/finetuning_methods.csv"));
        assert_whole(&SOFTWARE, include_str!("../../../reference/finetuning_software.csv"));
        assert_whole(&MODELS, include_str!("../../../reference/finetuning_models.csv"));
    }
}
