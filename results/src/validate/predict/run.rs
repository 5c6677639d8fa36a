//! A row of measured training: the model, the plan, the hardware and the software that it describes.

use super::Prepared;
use crate::validate::row::{Row, RowFailure};
use search::step::{SoftwareStack, TrainingPlan};
use sim::kernel::{DataType, Function};
use sim::network::{Fabric, NetworkError, Topology};
use sim::pipeline::Schedule;
use sim::units::BytesPerSecond;
use workloads::footprint::{Optimizer, Precision};
use workloads::model::{Dropout, Experts, Norm, NormPlacement, Position};
use workloads::parallel::MAX_SEQUENCE;
use workloads::training::Attention;
use workloads::{ActivationPolicy, Batch, Layout, Model, WorkloadError, ZeroStage};

/// What a row describes.
#[derive(Debug, Clone)]
pub(in crate::validate) struct Run {
    pub(in crate::validate) model: Model,
    pub(in crate::validate) plan: TrainingPlan,
    pub(in crate::validate) chip: String,
    pub(in crate::validate) fabric: Fabric,
    /// The built-in software stack.
    pub(in crate::validate) stack: &'static str,
}

impl Run {
    /// Reads a row.
    pub(in crate::validate) fn read(prepared: &mut Prepared, row: &Row<'_>) -> Result<Self, RowFailure> {
        let chip = row.text("chip")?.to_owned();
        let layout = layout(row)?;
        let chips = row.count("chips")?;
        if chips != layout.devices() {
            let limit = format!("must be tp x pp x dp x cp = {}", layout.devices());
            return Err(row.fault("chips", &limit, "correct the degrees or the number of chips"));
        }
        let stack = stack(row, &chip, &layout);
        let model = model(row, stack)?;
        let plan = TrainingPlan {
            layout,
            batch: Batch {
                // Where a source does not print it, the least that any plan can run.
                micro_batch: row.optional_count("micro_batch")?.unwrap_or(1),
                global_batch: row.count("global_batch")?,
                sequence_length: row.count("seq")?,
            },
            activations: activations(row, stack)?,
            attention: attention(row)?,
            precision: precision(row, prepared.chip(&chip, stack)?.stack())?,
            optimizer: optimizer(row)?,
            schedule: Schedule::OneForwardOneBackward,
        };
        if let Err(error) = plan.layout.check(&model, &plan.batch) {
            return Err(row.fault(error.key, &format!("must be {}", error.limit), &error.cure));
        }
        let fabric = fabric(prepared, row, &chip, chips)?;
        Ok(Self { model, plan, chip, fabric, stack })
    }
}

/// A degree; an empty cell is 1.
fn degree(row: &Row<'_>, key: &str) -> Result<u32, RowFailure> {
    let value = row.optional_count(key)?.unwrap_or(1);
    u32::try_from(value).map_err(|_| row.fault(key, "must be below 2^32", "correct it"))
}

fn flag(row: &Row<'_>, key: &str) -> Result<bool, RowFailure> {
    match row.cell(key) {
        None | Some("0" | "0.0" | "false") => Ok(false),
        Some("1" | "1.0" | "true") => Ok(true),
        Some(_) => Err(row.fault(key, "must be 0 or 1", "an empty cell means 0")),
    }
}

fn layout(row: &Row<'_>) -> Result<Layout, RowFailure> {
    let zero = match row.number("zero_stage")? {
        None => Some(ZeroStage::None),
        Some(stage) if stage.fract() == 0.0 && stage >= 0.0 => ZeroStage::from_number(stage as u64),
        Some(_) => None,
    };
    Ok(Layout {
        tensor: degree(row, "tp")?,
        pipeline: degree(row, "pp")?,
        data: degree(row, "dp")?,
        context: degree(row, "cp")?,
        expert: degree(row, "ep")?,
        virtual_stages: degree(row, "virtual_stages")?,
        sequence_parallel: flag(row, "sequence_parallel")?,
        zero: zero.ok_or_else(|| row.fault("zero_stage", "must be 0, 1, 2 or 3", "an empty cell means 0"))?,
        ..Layout::default()
    })
}

/// The software that ran the row: a TPU runs MaxText; GPU frameworks by the data set's name, otherwise sharded parameters mean
/// FSDP and anything else the Megatron-LM of the chip's time.
fn stack(row: &Row<'_>, chip: &str, layout: &Layout) -> &'static str {
    let origin = row.cell("dataset").unwrap_or_default();
    if chip.starts_with("tpu") {
        return "maxtext";
    }
    if origin.contains("torchtitan") {
        // The file of the table, then what was switched on. Every run of the later table is compiled.
        let source = row.cell("source").unwrap_or_default().to_lowercase();
        let (table, options) = source.split_once(';').unwrap_or(("", &source));
        let asynchronous = ["asynctp", "async tp", "async-tp", "asynchronous tp"].iter().any(|name| options.contains(name));
        let rowwise = ["rowwise", "row-wise"].iter().any(|name| options.contains(name));
        return match (asynchronous, rowwise, options.contains("compile") || table.contains("asynctp")) {
            (true, true, _) => "torchtitan_async_rowwise",
            (true, false, _) => "torchtitan_async",
            (_, true, _) => "torchtitan_rowwise",
            (_, _, true) => "torchtitan",
            (..) => "torchtitan_eager",
        };
    }
    if origin.contains("llmfoundry") || layout.zero == ZeroStage::Parameters {
        return "pytorch_fsdp";
    }
    SoftwareStack::usual(chip)
}

/// The model of the columns. Gated MLPs come with RMSNorm, rotary positions and no biases (Llama); plain ones with LayerNorm and
/// learned positions (GPT), with biases and dropout of 0.1 as Megatron-LM trains them, without either as MPT does.
fn model(row: &Row<'_>, stack: &str) -> Result<Model, RowFailure> {
    let gated = flag(row, "gated_mlp")?;
    let megatron = stack.starts_with("megatron") && !gated;
    let heads = row.count("heads")?;
    let sequence = row.count("seq")?;
    if sequence > MAX_SEQUENCE {
        return Err(row.fault("seq", &format!("must be at most {MAX_SEQUENCE}"), "give the tokens of one sequence"));
    }
    let kv_heads = row.optional_count("kv_heads")?.unwrap_or(heads);
    if !heads.is_multiple_of(kv_heads) {
        return Err(row.fault("kv_heads", &format!("must be a divisor of heads = {heads}"), "an empty cell means as many"));
    }
    let hidden = row.count("hidden")?;
    let rate = if megatron { 0.1 } else { 0.0 };
    Ok(Model {
        name: row.cell("model").unwrap_or("model").to_owned(),
        family: if gated { "llama" } else { "gpt2" }.to_owned(),
        layers: row.count("layers")?,
        hidden,
        heads,
        kv_heads,
        head_dim: row.count("head_dim")?,
        ffn: row.count("ffn_hidden")?,
        experts: experts(row)?,
        vocabulary: row.count("vocab")?,
        vocabulary_multiple: 1,
        max_sequence: sequence,
        embedding_width: hidden,
        position: if gated { Position::Rotary } else { Position::Learned { rows: sequence } },
        token_types: 0,
        norm: if gated { Norm::RmsNorm } else { Norm::LayerNorm },
        norm_affine: true,
        norm_placement: NormPlacement::Pre,
        embedding_norm: false,
        final_norm: true,
        activation: if gated { Function::Silu } else { Function::Gelu },
        gated,
        qkv_bias: megatron,
        attention_output_bias: megatron,
        mlp_bias: megatron,
        causal: true,
        dropout: Dropout { embedding: rate, attention: rate, residual: rate, activation: 0.0 },
        tied_head: flag(row, "tied_embeddings")?,
        head_transform: false,
        head_bias: false,
    })
}

/// Experts without a capacity limit, where the row has any.
fn experts(row: &Row<'_>) -> Result<Option<Experts>, RowFailure> {
    let Some(count) = row.optional_count("experts")?.filter(|count| *count > 1) else { return Ok(None) };
    let top_k = row.optional_count("top_k")?.unwrap_or(1);
    if top_k > count {
        return Err(row.fault("top_k", &format!("must be at most the {count} experts"), "correct it"));
    }
    Ok(Some(Experts { count, top_k, capacity_factor: None }))
}

fn attention(row: &Row<'_>) -> Result<Attention, RowFailure> {
    match row.cell("attention") {
        None | Some("flash" | "fused") => Ok(Attention::Fused),
        Some("unfused") => Ok(Attention::Unfused),
        Some(_) => Err(row.fault("attention", "must be flash or unfused", "an empty cell means flash")),
    }
}

/// Number formats: mixed precision as the stack keeps it. MaxText's bf16 weights, where a recipe says so, are without a master copy.
fn precision(row: &Row<'_>, stack: &SoftwareStack) -> Result<Precision, RowFailure> {
    let pure = row.cell("source").is_some_and(|source| source.contains("bf16 weights"));
    let mixed = stack.precision(if pure { Precision::PURE_BF16 } else { Precision::MIXED_BF16 });
    match row.cell("precision") {
        None | Some("bf16") => Ok(mixed),
        Some("fp8") => Ok(mixed.with_products(DataType::Fp8)),
        Some("int8") => Ok(mixed.with_products(DataType::Int8)),
        Some("fp16") => Ok(Precision { operand: DataType::Fp16, gradient: DataType::Fp16, ..Precision::MIXED_BF16 }),
        Some("fp32") => Ok(Precision::FP32),
        Some(_) => Err(row.fault("precision", "must be fp32, bf16, fp16, fp8 or int8", "an empty cell means bf16")),
    }
}

fn optimizer(row: &Row<'_>) -> Result<Optimizer, RowFailure> {
    match row.cell("optimizer") {
        None | Some("adam" | "adamw") => Ok(Optimizer::Adam),
        Some("sgd") => Ok(Optimizer::Sgd),
        // Lion keeps one momentum.
        Some("momentum" | "lion") => Ok(Optimizer::Momentum),
        Some("adafactor") => Ok(Optimizer::Adafactor),
        Some("adam8bit" | "adamw8bit" | "adam_8bit" | "adamw_8bit" | "8bit_adam" | "8bit_adamw") => Ok(Optimizer::Adam8bit),
        Some("muon") => Ok(Optimizer::Muon),
        Some(other) => {
            let known = "adam, adamw, sgd, momentum, lion, adafactor, adam8bit, muon";
            Err(RowFailure::Unpredictable(format!("unknown optimizer `{other}`; known are {known}")))
        }
    }
}

/// The policy, by its name in the framework. TorchTitan's `selective` chooses among operators, Megatron-LM's is the attention core.
fn activations(row: &Row<'_>, stack: &str) -> Result<ActivationPolicy, RowFailure> {
    let text = match row.cell("recompute").unwrap_or("none") {
        "selective" if stack.starts_with("torchtitan") => "selective_per_operator",
        text => text,
    };
    text.parse().map_err(|e: WorkloadError| RowFailure::Unpredictable(e.to_string()))
}

/// The column of the bandwidth between nodes.
const BETWEEN: &str = "inter_node_gbytes_per_s_per_chip";
/// The most of it that is believed: ten times the NVLink port of a 2025 GPU.
const MOST_GB_PER_S: f64 = 1e5;

/// The fabric that the row names, cut to its fast domain. One that no file describes is built from the chip's own node and the
/// bandwidth between nodes that the row states.
fn fabric(prepared: &mut Prepared, row: &Row<'_>, chip: &str, chips: u64) -> Result<Fabric, RowFailure> {
    let unpredictable = |e: NetworkError| RowFailure::Unpredictable(e.to_string());
    let chips = u32::try_from(chips).map_err(|_| row.fault("chips", "must be below 2^32", "correct it"))?;
    let domain = row.optional_count("chips_per_node")?.and_then(|n| u32::try_from(n).ok());
    let named = row.cell("fabric").unwrap_or_default().to_owned();
    let known = Fabric::names().contains(&named.as_str());
    let name = if known { named } else { node_fabric(chip).to_owned() };
    let mut fabric = named_fabric(prepared, &name, chip)?;
    let torus = fabric.tiers.first().is_some_and(|tier| matches!(tier.topology, Topology::Torus { .. }));
    if torus && fabric.tiers.len() == 1 {
        return fabric.for_devices(chips).map_err(unpredictable);
    }
    if let Some(domain) = domain.filter(|d| *d != fabric.fast_domain() && fabric.tiers.len() > 1) {
        fabric = fabric.with_fast_domain(domain).map_err(unpredictable)?;
    }
    let between = row.number(BETWEEN)?;
    if between.is_some_and(|between| !(0.0..=MOST_GB_PER_S).contains(&between)) {
        return Err(row.fault(
            BETWEEN,
            "must be from 0 to 1e5",
            "give GB/s of one chip, one direction; an empty cell means unknown",
        ));
    }
    // What the row states of its cluster goes before what the fabric's file has.
    let joined = fabric.tiers.get(1).is_some_and(|tier| !matches!(tier.topology, Topology::Matrix(_)));
    if let Some(between) = between.filter(|b| *b > 0.0 && joined) {
        fabric = fabric.with_bandwidth(1, BytesPerSecond(between * 1e9));
    }
    Ok(fabric)
}

/// The fabric with the figures that it has for the chip. Where slices of this chip are described but not the network between them,
/// the network between slices is that of the chip that the fabric does describe.
fn named_fabric(prepared: &mut Prepared, name: &str, chip: &str) -> Result<Fabric, RowFailure> {
    let fabric = prepared.fabric(name, chip).cloned();
    let (Err(_), Some(slice)) = (&fabric, name.strip_suffix("_dcn")) else { return fabric };
    let slice = prepared.fabric(slice, chip)?.clone();
    let mut joined = Fabric::template(name).map_err(|e| RowFailure::Unpredictable(e.to_string()))?;
    if let (Some(tier), Some(inner)) = (joined.tiers.first_mut(), slice.tiers.into_iter().next()) {
        *tier = inner;
    }
    Ok(joined)
}

/// The cluster fabric of a chip whose own is not described.
fn node_fabric(chip: &str) -> &'static str {
    match chip {
        c if c.starts_with("v100") => "nvlink2_node",
        c if c.starts_with("a100") => "selene_hdr200x8",
        c if c.starts_with("h200") => "h200_400g",
        c if c.starts_with("b200") => "efa_8x400g",
        c if c.starts_with("gb200") => "nvlink5_domain",
        c if c.starts_with("gaudi") => "gaudi2_roce",
        "tpu_v5e" | "tpu_v6e" => "ici_2d_torus",
        c if c.starts_with("tpu") => "ici_3d_torus",
        _ => "eos_ndr400x8",
    }
}
