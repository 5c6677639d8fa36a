//! Serving points: a load generator keeps requests in flight at a deployment. The tables
//! `reference/serving_models.csv`, `serving_engines.csv` and `serving_formats.csv` map the rows' names of models,
//! engines and formats.

use super::cluster::fabric_of_row;
use super::{PreparedInputs, read_table};
use crate::validate::row::{MeasuredRow, RowFailure};
use serde::Deserialize;
use serving::costs::{PromptPool, iteration_costs, prompts_together};
use serving::in_flight::{closed_loop, closed_loop_apart, first_burst};
use serving::lengths::RequestLengths;
use serving::plan::ServedProduct;
use serving::{EngineError, PassTimes, ServingEngine, ServingError, ServingFormats, ServingPlan, memory_of_plan};
use sim::files::carried::Files;
use sim::hardware::Accelerator;
use sim::kernel::DataType;
use sim::network::Fabric;
use sim::units::Seconds;
use std::sync::LazyLock;
use workloads::{Layout, Model};

/// Number of requests that a load generator sends for each one that it keeps in flight. The first ones arrive at once,
/// so their prompts queue; later ones spread out. The rows do not state the number. Ten was chosen after seeing the
/// times to the first token of Llama and gpt-oss, which it fits; four to five would fit Qwen3's. Range 4 to 20.
const REQUESTS_PER_SLOT: f64 = 10.0;
/// Largest number of devices of a replica along one axis, and of replicas.
const MOST_DEVICES: u32 = 1 << 16;
/// Largest number of requests in flight, and of requests in a batch.
const MOST_REQUESTS: u64 = 1 << 24;

static MODELS: LazyLock<Vec<ServedModel>> =
    LazyLock::new(|| read_table(include_str!("../../../reference/serving_models.csv")));
static ENGINES: LazyLock<Vec<EngineName>> =
    LazyLock::new(|| read_table(include_str!("../../../reference/serving_engines.csv")));
static FORMATS: LazyLock<Vec<FormatLabel>> =
    LazyLock::new(|| read_table(include_str!("../../../reference/serving_formats.csv")));

/// A model by its name in the rows.
#[derive(Debug, Clone, Deserialize)]
struct ServedModel {
    name: String,
    /// The built-in model.
    model: String,
    /// The format of its checkpoint's products outside experts, if there is only one checkpoint.
    products: Option<ServedProduct>,
    /// The format of its checkpoint's experts, if there is only one checkpoint.
    experts: Option<ServedProduct>,
}

/// An engine by its name in the rows.
#[derive(Debug, Clone, Deserialize)]
struct EngineName {
    name: String,
    engine: String,
}

/// The formats that a label stands for.
#[derive(Debug, Clone, Deserialize)]
struct FormatLabel {
    label: String,
    /// The products' format on a chip whose arrays have its operands.
    format: ServedProduct,
    /// The products' format on other chips.
    without: ServedProduct,
    /// The cache's format.
    cache: ServedProduct,
}

/// Predicts the time to the first token and the time per output token, in milliseconds.
pub(in crate::validate) fn predict_serving(
    prepared: &mut PreparedInputs,
    row: &MeasuredRow<'_>,
) -> Result<Vec<(&'static str, f64)>, RowFailure> {
    let chip = row.text("chip")?.to_owned();
    let chip = prepared.cost_model(&chip)?.accelerator().clone();
    let (model, known) = find_model(row)?;
    let formats = read_formats(prepared, row, known, &chip)?;
    let engine = engine_named(prepared, row.text("engine")?).map_err(|e| RowFailure::Unpredictable(e.to_string()))?;
    let served = ServedRow { engine, lengths: read_lengths(row)?, chip, model, formats };
    let Some(concurrency) = row.optional_dimension("concurrency", MOST_REQUESTS)? else {
        let why = "concurrency is empty: the load is not stated; give the requests in flight";
        return Err(RowFailure::Unpredictable(why.to_owned()));
    };
    let (first, between) = match row.text("mode")? {
        "together" => served.predict_together(prepared, row, concurrency)?,
        "apart" => served.predict_apart(prepared, row, concurrency)?,
        _ => return Err(row.row_fault("mode", "must be together or apart", "correct it")),
    };
    Ok(vec![("ttft_ms", first.0 * 1e3), ("tpot_ms", between.0 * 1e3)])
}

/// The inputs that all replicas of a row share.
struct ServedRow {
    engine: ServingEngine,
    lengths: RequestLengths,
    chip: Accelerator,
    model: Model,
    formats: ServingFormats,
}

impl ServedRow {
    fn input(&self) -> u64 {
        self.lengths.longest().saturating_sub(self.lengths.mean_output() as u64).max(1)
    }

    /// Returns the two times of a replica that prefills and decodes: to the first token, and per output token.
    fn predict_together(
        &self,
        prepared: &mut PreparedInputs,
        row: &MeasuredRow<'_>,
        concurrency: u64,
    ) -> Result<(Seconds, Seconds), RowFailure> {
        let replica = Replica::read_row(prepared, row, self, "")?;
        let batch = row.optional_dimension("batch", MOST_REQUESTS)?;
        if batch.is_some_and(|batch| batch < concurrency) {
            prepared
                .note_assumption("batch is less than concurrency, taken as that of one of a replica's groups".into());
        }
        let mut times = replica.times(self)?;
        let memory = memory_of_plan(&self.model, &self.chip, &self.engine, &replica.plan).map_err(refuse)?;
        let costs = iteration_costs(&mut times, &memory, &self.lengths, concurrency).map_err(refuse)?;
        let together = prompts_together(&times, self.input());
        let state = closed_loop(&costs, concurrency, together);
        let first = if costs.mixed {
            prepared.note_assumption(format!(
                "the load generator sends {REQUESTS_PER_SLOT} requests for each in flight, the first ones at once"
            ));
            let burst = first_burst(&costs, concurrency, together);
            burst / REQUESTS_PER_SLOT + state.time_to_first_token * (1.0 - 1.0 / REQUESTS_PER_SLOT)
        } else {
            state.time_to_first_token
        };
        Ok((first, state.time_per_output_token))
    }

    /// Returns the two times of separate pools for prompts and decoding: to the first token, and per output token.
    fn predict_apart(
        &self,
        prepared: &mut PreparedInputs,
        row: &MeasuredRow<'_>,
        concurrency: u64,
    ) -> Result<(Seconds, Seconds), RowFailure> {
        let prefill = Replica::read_row(prepared, row, self, "prefill_")?;
        let decode = Replica::read_row(prepared, row, self, "decode_")?;
        let workers = |key: &str| -> Result<u32, RowFailure> {
            let stated = row.optional_dimension(key, MOST_DEVICES.into())?;
            Ok(stated.and_then(|workers| u32::try_from(workers).ok()).unwrap_or(1))
        };
        let (prefill_workers, decode_workers) = (workers("prefill_workers")?, workers("decode_workers")?);
        let input = self.input();
        let mut times = decode.times(self)?;
        let memory = memory_of_plan(&self.model, &self.chip, &self.engine, &decode.plan).map_err(refuse)?;
        let share = concurrency.div_ceil(decode_workers.into());
        let mut costs = iteration_costs(&mut times, &memory, &self.lengths, share).map_err(refuse)?;
        let largest = row.optional_dimension("decode_batch", MOST_REQUESTS)?;
        let groups = u64::from(decode.plan.attention_data);
        costs.most_sequences = largest.map_or(costs.most_sequences, |own| costs.most_sequences.min(own * groups));
        memory_of_plan(&self.model, &self.chip, &self.engine, &prefill.plan).map_err(refuse)?;
        let batch = row.optional_dimension("prefill_batch", MOST_REQUESTS)?.unwrap_or(1);
        let mut prompts = prefill.times(self)?;
        let pool = PromptPool::of_replicas(&mut prompts, prefill_workers, input, batch).map_err(refuse)?;
        let state = closed_loop_apart(&pool, &costs, decode_workers, concurrency);
        prepared.note_assumption("the cache's way from pool to pool takes no time".to_owned());
        Ok((state.time_to_first_token, state.time_per_output_token))
    }
}

/// A replica of a row: its plan and the fabric that joins its devices.
struct Replica {
    plan: ServingPlan,
    fabric: Fabric,
}

impl Replica {
    /// Reads the columns with this prefix.
    fn read_row(
        prepared: &mut PreparedInputs,
        row: &MeasuredRow<'_>,
        served: &ServedRow,
        prefix: &str,
    ) -> Result<Self, RowFailure> {
        let degree = |name: &str| read_degree(row, &format!("{prefix}{name}"));
        let key = format!("{prefix}tp");
        if row.optional_count(&key)? == Some(0) {
            return Err(row.row_fault(&key, "must be at least 1", "give the devices that split every layer"));
        }
        let (tensor, attention_data) = (degree("tp")?, degree("attention_dp")?);
        let pipeline = if prefix.is_empty() { degree("pp")? } else { 1 };
        let stated = degree("moe_ep")?;
        let group = tensor.saturating_mul(attention_data);
        let expert = match &served.model.experts {
            None => 1,
            Some(_) if attention_data > 1 => {
                if stated != group {
                    prepared.note_assumption(
                        "experts are split beside data-parallel attention, taken as whole experts".to_owned(),
                    );
                }
                group
            }
            Some(_) => stated,
        };
        let context = degree("dcp")?;
        let plan = ServingPlan { tensor, pipeline, attention_data, expert, context, formats: served.formats };
        plan.check_degrees(&served.model).map_err(refuse)?;
        let layout = Layout { tensor, pipeline, data: attention_data, ..Layout::default() };
        let fabric = match node_fabric(&served.chip, plan.devices()) {
            Some(node) => prepared.fabric_of_chip(node, &served.chip.name)?.clone(),
            None => fabric_of_row(prepared, row, &served.chip.name, &layout)?,
        };
        Ok(Self { plan, fabric })
    }

    fn times<'a>(&'a self, served: &'a ServedRow) -> Result<PassTimes<'a>, RowFailure> {
        PassTimes::new(&served.model, &served.chip, &self.fabric, &served.engine, self.plan).map_err(refuse)
    }
}

/// Returns the name of a built-in fabric of one tier (a node or a domain) that is sold with the chip and has enough
/// devices; `None` if there is none.
fn node_fabric(chip: &Accelerator, devices: u32) -> Option<&'static str> {
    Fabric::names().into_iter().find(|name| {
        let Ok(fabric) = Fabric::built_in(name) else { return false };
        let own = !fabric.joins.is_empty() && fabric.may_join_chip(chip.known_name());
        own && fabric.tiers.len() == 1 && fabric.measured_links().is_none() && fabric.device_count() >= devices
    })
}

fn refuse(error: ServingError) -> RowFailure {
    RowFailure::Unpredictable(error.to_string())
}

/// Returns a degree, at least 1. 0 and an empty cell mean 1.
fn read_degree(row: &MeasuredRow<'_>, key: &str) -> Result<u32, RowFailure> {
    if row.number(key)? == Some(0.0) {
        return Ok(1);
    }
    let degree = row.optional_dimension(key, MOST_DEVICES.into())?.unwrap_or(1);
    Ok(u32::try_from(degree).unwrap_or(MOST_DEVICES))
}

fn read_lengths(row: &MeasuredRow<'_>) -> Result<RequestLengths, RowFailure> {
    let length = |key: &str| row.dimension(key, RequestLengths::MOST_TOKENS);
    let (input, output) = (length("input_tokens")?, length("output_tokens")?);
    RequestLengths::uniform(input, output)
        .map_err(|e| row.row_fault(if e.key == "input" { "input_tokens" } else { "output_tokens" }, e.limit, e.cure))
}

/// Returns the model of a row, and the line of the table that has its name, if there is one.
fn find_model(row: &MeasuredRow<'_>) -> Result<(Model, Option<&'static ServedModel>), RowFailure> {
    let name = row.text("model")?;
    let known = MODELS.iter().find(|line| line.name == name);
    let model = Model::load(known.map_or(name, |line| line.model.as_str()));
    let model = model.map_err(|e| RowFailure::Unpredictable(e.to_string()))?;
    Ok((model, known))
}

/// Returns the engine to which rows refer by this name: a replacement, or a built-in one.
pub(super) fn engine_named(prepared: &PreparedInputs, name: &str) -> Result<ServingEngine, EngineError> {
    let name = ENGINES.iter().find(|line| line.name == name).map_or(name, |line| line.engine.as_str());
    match prepared.engines.get(name) {
        Some(replaced) => Ok(replaced.clone()),
        None => ServingEngine::load_from(name, &Files::default()),
    }
}

/// Returns the number formats of a row. If the model has only one checkpoint, the formats are the checkpoint's, and the
/// cache is in bf16. Otherwise the row's labels give the formats; without labels they are bf16.
fn read_formats(
    prepared: &mut PreparedInputs,
    row: &MeasuredRow<'_>,
    known: Option<&ServedModel>,
    chip: &Accelerator,
) -> Result<ServingFormats, RowFailure> {
    let labelled = |key: &str| -> Result<Option<&FormatLabel>, RowFailure> {
        let Some(label) = row.cell(key) else { return Ok(None) };
        let found = FORMATS.iter().find(|line| line.label == label);
        let labels: Vec<&str> = FORMATS.iter().map(|line| line.label.as_str()).collect();
        let why = format!("{key} = {label}: not modelled; labels are {}", labels.join(", "));
        found.map(Some).ok_or(RowFailure::Unpredictable(why))
    };
    let on_chip = |line: &FormatLabel| match chip.peak_flops(line.format.operand()) {
        Some(_) => line.format,
        None => line.without,
    };
    let checkpoint = (known.and_then(|line| line.products), known.and_then(|line| line.experts));
    if let (Some(products), Some(experts)) = checkpoint {
        prepared.note_assumption("the model's only checkpoint says the formats of its weights".to_owned());
        return Ok(ServingFormats { products, experts, cache: DataType::Bf16 });
    }
    let gemm = labelled("gemm_precision")?;
    if gemm.is_none() {
        prepared.note_assumption("gemm_precision is empty, taken as bf16".to_owned());
    }
    let products = gemm.map_or(ServedProduct::Bf16, on_chip);
    let experts = labelled("moe_precision")?.map_or(products, on_chip);
    let cache = gemm.map_or(DataType::Bf16, |line| line.cache.operand());
    if cache != DataType::Bf16 {
        prepared.note_assumption(format!("the cache is in {}, as checkpoints of these formats", cache.name()));
    }
    Ok(ServingFormats { products, experts, cache })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::validate::predict::assert_whole;

    #[test]
    fn the_carried_tables_name_what_exists() {
        assert_whole(&MODELS, include_str!("../../../reference/serving_models.csv"));
        assert_whole(&ENGINES, include_str!("../../../reference/serving_engines.csv"));
        assert_whole(&FORMATS, include_str!("../../../reference/serving_formats.csv"));
        MODELS.iter().for_each(|line| drop(Model::load(&line.model).unwrap()));
        for line in ENGINES.iter() {
            ServingEngine::load_from(&line.engine, &Files::default()).unwrap();
        }
    }

    #[test]
    fn replicas_have_the_node_of_their_chip() {
        let node = |chip: &str, devices: u32| node_fabric(&Accelerator::built_in(chip).unwrap(), devices);
        assert_eq!(node("h100_80gb_sxm", 8), Some("nvlink4_node"));
        assert_eq!(node("h200", 1), Some("nvlink4_node"));
        assert_eq!(node("b200", 8), Some("nvlink5_node"));
        assert_eq!(node("gb200", 16), Some("nvlink5_domain"));
        assert_eq!(node("h200", 16), None);
    }
}
