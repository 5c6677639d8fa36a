//! A row of measured training: its model, plan, hardware and software.

use super::{PreparedInputs, cluster, modules, software, stages};
use crate::validate::row::{MeasuredRow, RowFailure};
use sim::kernel::{DataType, ElementwiseFunction};
use sim::network::Fabric;
use sim::pipeline::PipelineSchedule;
use step::{Framework, SoftwareStack, TrainingPlan};
use workloads::footprint::{Optimizer, Precision};
use workloads::layer_list::FeedForward;
use workloads::limits::{MAX_EXPERTS, MAX_FFN, MAX_FURTHER_TOKENS, MAX_HEADS, MAX_LAYERS, MAX_VOCABULARY, MAX_WIDTH};
use workloads::model::{Dropout, Experts, Norm, NormPlacement, PositionEncoding, SharedExpert};
use workloads::parallel::{MAX_MICRO_BATCH, MAX_SEQUENCE};
use workloads::training::Attention;
use workloads::variations::{LatentAttention, Variations};
use workloads::{ActivationPolicy, Batch, LayerKind, LayerList, Layout, Model, WorkloadError, ZeroStage};

/// The run that a row describes.
#[derive(Debug, Clone)]
pub(in crate::validate) struct MeasuredRun {
    pub(in crate::validate) model: Model,
    pub(in crate::validate) plan: TrainingPlan,
    pub(in crate::validate) chip: String,
    pub(in crate::validate) fabric: Fabric,
    /// The software stack, by name.
    pub(in crate::validate) stack: String,
    /// Its framework.
    pub(in crate::validate) framework: Framework,
}

impl MeasuredRun {
    /// Reads a row.
    pub(in crate::validate) fn read_row(
        prepared: &mut PreparedInputs,
        row: &MeasuredRow<'_>,
    ) -> Result<Self, RowFailure> {
        let chip = row.text("chip")?.to_owned();
        let layout = read_layout(row)?;
        let chips = row.count("chips")?;
        if chips != layout.device_count() {
            let limit = format!("must be tp x pp x dp x cp = {}", layout.device_count());
            return Err(row.row_fault("chips", &limit, "correct the degrees or the number of chips"));
        }
        let stack = match prepared.forced_stack() {
            Some(forced) => forced.to_owned(),
            None => software::stack_of_row(prepared, row, &chip, layout.zero)?,
        };
        let framework = prepared.chip_under_stack(&chip, &stack)?.stack().framework.name;
        let model = with_prediction_modules(row, read_model(row, framework)?)?;
        let leading = model.list.leading.len() as u64;
        let told = stages::ends_of_row(prepared, row, &layout, (model.layer_count(), leading))?;
        let ruled = || row.cell(stages::STAGES).is_none() && framework == Framework::Nanotron;
        let ends = told.or_else(|| ruled().then(|| stages::ends_by_cost(&model, &layout)).flatten());
        let layout = layout_with_expert_tensor(row, &model, Layout { ends, ..layout })?;
        let micro_batch = read_micro_batch(prepared, row, framework, &layout)?;
        modules::note_unsupported(prepared, row);
        let plan = TrainingPlan {
            layout,
            batch: Batch { micro_batch, global_batch: row.count("global_batch")?, sequence_length: row.count("seq")? },
            activations: read_activations(row, framework)?.into(),
            attention: read_attention(row)?,
            precision: read_precision(row, prepared.chip_under_stack(&chip, &stack)?.stack())?,
            optimizer: read_optimizer(row)?,
            schedule: PipelineSchedule::OneForwardOneBackward,
            techniques: workloads::Techniques::default(),
        };
        if let Err(error) = plan.layout.check_model_and_batch(&model, &plan.batch) {
            return Err(row.row_fault(error.key, &format!("must be {}", error.limit), &error.cure));
        }
        let fabric = cluster::fabric_of_row(prepared, row, &chip, &plan.layout)?;
        Ok(Self { model, plan, chip, fabric, stack, framework })
    }
}

/// Returns a degree; 1 if the cell is empty.
fn read_degree(row: &MeasuredRow<'_>, key: &str) -> Result<u32, RowFailure> {
    let value = row.optional_count(key)?.unwrap_or(1);
    u32::try_from(value).map_err(|_| row.row_fault(key, "must be below 2^32", "correct it"))
}

fn read_flag(row: &MeasuredRow<'_>, key: &str) -> Result<bool, RowFailure> {
    match row.cell(key) {
        None | Some("0" | "0.0" | "false") => Ok(false),
        Some("1" | "1.0" | "true") => Ok(true),
        Some(_) => Err(row.row_fault(key, "must be 0 or 1", "an empty cell means 0")),
    }
}

/// Returns the micro-batch. If the row does not state it, TorchTitan's pipelines take as many micro-batches as they
/// have stages (`pipeline_parallel_microbatches`), and other plans take the smallest possible micro-batch, 1.
fn read_micro_batch(
    prepared: &mut PreparedInputs,
    row: &MeasuredRow<'_>,
    framework: Framework,
    layout: &Layout,
) -> Result<u64, RowFailure> {
    if let Some(told) = row.optional_dimension("micro_batch", MAX_MICRO_BATCH)? {
        return Ok(told);
    }
    let pipelined = layout.pipeline > 1 && framework == Framework::TorchTitan;
    let parts = u64::from(layout.pipeline) * u64::from(layout.data);
    let micro_batch = if pipelined { (row.count("global_batch")? / parts).clamp(1, MAX_MICRO_BATCH) } else { 1 };
    prepared.note_assumption(format!("micro_batch is empty, taken as {micro_batch}"));
    Ok(micro_batch)
}

/// Returns the layout with the tensor-parallel width of experts, if the row states one.
fn layout_with_expert_tensor(row: &MeasuredRow<'_>, model: &Model, layout: Layout) -> Result<Layout, RowFailure> {
    let stated = row.optional_count("etp")?.filter(|_| model.experts.is_some());
    let width = stated.map(|_| read_degree(row, "etp")).transpose()?;
    let follows = layout.expert_tensor_degree().unwrap_or(layout.tensor);
    Ok(width.filter(|width| *width != follows).map_or(layout, |width| layout.with_expert_tensor_degree(width)))
}

fn read_layout(row: &MeasuredRow<'_>) -> Result<Layout, RowFailure> {
    let zero = match row.number("zero_stage")? {
        None => Some(ZeroStage::None),
        Some(stage) if stage.fract() == 0.0 && stage >= 0.0 => ZeroStage::from_number(stage as u64),
        Some(_) => None,
    };
    Ok(Layout {
        tensor: read_degree(row, "tp")?,
        pipeline: read_degree(row, "pp")?,
        data: read_degree(row, "dp")?,
        context: read_degree(row, "cp")?,
        expert: read_degree(row, "ep")?,
        virtual_stages: read_degree(row, "virtual_stages")?,
        sequence_parallel: read_flag(row, "sequence_parallel")?,
        context_method: software::read_context_method(row)?,
        zero: zero.ok_or_else(|| row.row_fault("zero_stage", "must be 0, 1, 2 or 3", "an empty cell means 0"))?,
        ..Layout::default()
    })
}

/// Returns the model of the columns. A gated MLP implies RMSNorm, rotary positions and no biases (Llama). A plain MLP
/// implies LayerNorm and learned positions (GPT), with biases and dropout of 0.1 as Megatron-LM trains them, and with
/// neither in other frameworks (MPT).
fn read_model(row: &MeasuredRow<'_>, framework: Framework) -> Result<Model, RowFailure> {
    let gated = read_flag(row, "gated_mlp")?;
    let megatron = framework.takes_megatron_arguments() && !gated;
    let heads = row.dimension("heads", MAX_HEADS)?;
    let sequence = read_max_sequence(row)?;
    let latent = read_latent_attention(row)?;
    let kv_heads = if latent.is_some() { heads } else { read_kv_heads(row, heads)? };
    let hidden = row.dimension("hidden", MAX_WIDTH)?;
    let rate = if megatron { 0.1 } else { 0.0 };
    let experts = read_experts(row)?;
    let dense = row.dimension("ffn_hidden", MAX_FFN)?;
    let expert = row.optional_dimension("moe_ffn_hidden", MAX_FFN)?.unwrap_or(dense);
    let all = row.dimension("layers", MAX_LAYERS)?;
    let leading = read_leading_layers(row, all, experts.is_some())?;
    let variations = Variations { latent, ..Variations::default() };
    let before = LayerKind { feed: FeedForward::Mlp(dense), ..LayerKind::default() };
    let list = LayerList { leading: vec![before; leading as usize], ..LayerList::default() };
    Ok(Model {
        name: row.cell("model").unwrap_or("model").to_owned(),
        family: if gated { "llama" } else { "gpt2" }.to_owned(),
        layers: all - leading,
        hidden,
        heads,
        kv_heads,
        // For latent attention, the column has the part of the head without rotation.
        head_dim: row.dimension("head_dim", MAX_WIDTH)? + latent.map_or(0, |latent| latent.rope_dim),
        ffn: if experts.is_some() { expert } else { dense },
        experts,
        vocabulary: row.dimension("vocab", MAX_VOCABULARY)?,
        vocabulary_multiple: 1,
        max_sequence: sequence,
        embedding_width: hidden,
        position: if gated { PositionEncoding::Rotary } else { PositionEncoding::Learned { rows: sequence } },
        token_types: 0,
        norm: if gated { Norm::RmsNorm } else { Norm::LayerNorm },
        norm_affine: true,
        norm_placement: NormPlacement::Pre,
        embedding_norm: false,
        final_norm: true,
        activation: if gated { ElementwiseFunction::Silu } else { ElementwiseFunction::Gelu },
        gated,
        qkv_bias: megatron,
        attention_output_bias: megatron,
        mlp_bias: megatron,
        causal: true,
        dropout: Dropout { embedding: rate, attention: rate, residual: rate, activation: 0.0 },
        tied_head: read_flag(row, "tied_embeddings")?,
        head_transform: false,
        head_bias: false,
        variations,
        list,
        documents: Vec::new(),
        assumptions: Vec::new(),
    })
}

fn read_max_sequence(row: &MeasuredRow<'_>) -> Result<u64, RowFailure> {
    let sequence = row.count("seq")?;
    if sequence > MAX_SEQUENCE {
        return Err(row.row_fault(
            "seq",
            &format!("must be at most {MAX_SEQUENCE}"),
            "give the tokens of one sequence",
        ));
    }
    Ok(sequence)
}

fn read_kv_heads(row: &MeasuredRow<'_>, heads: u64) -> Result<u64, RowFailure> {
    let kv_heads = row.optional_dimension("kv_heads", MAX_HEADS)?.unwrap_or(heads);
    if !heads.is_multiple_of(kv_heads) {
        return Err(row.row_fault(
            "kv_heads",
            &format!("must be a divisor of heads = {heads}"),
            "an empty cell means as many",
        ));
    }
    Ok(kv_heads)
}

/// Returns the number of dense layers before those with experts, which is below `all`; 0 for a model without experts.
fn read_leading_layers(row: &MeasuredRow<'_>, all: u64, has_experts: bool) -> Result<u64, RowFailure> {
    let leading = row.number("dense_leading_layers")?.filter(|_| has_experts).unwrap_or(0.0);
    if leading.fract() == 0.0 && leading >= 0.0 && (leading as u64) < all {
        return Ok(leading as u64);
    }
    Err(row.row_fault("dense_leading_layers", &format!("must be below the {all} layers"), "an empty cell means none"))
}

/// Returns the row's latent attention; `None` if it has another kind.
fn read_latent_attention(row: &MeasuredRow<'_>) -> Result<Option<LatentAttention>, RowFailure> {
    if row.cell("attention_kind") != Some("mla") {
        return Ok(None);
    }
    Ok(Some(LatentAttention {
        query_rank: row.optional_dimension("q_lora_rank", MAX_WIDTH)?,
        kv_rank: row.dimension("kv_lora_rank", MAX_WIDTH)?,
        rope_dim: row.dimension("qk_rope_head_dim", MAX_WIDTH)?,
        value_dim: row.dimension("v_head_dim", MAX_WIDTH)?,
    }))
}

/// Returns the model with the row's modules that predict further tokens.
fn with_prediction_modules(row: &MeasuredRow<'_>, model: Model) -> Result<Model, RowFailure> {
    match row.number("mtp_layers")? {
        None | Some(0.0) => Ok(model),
        Some(layers) if layers.fract() == 0.0 && (1.0..=MAX_FURTHER_TOKENS as f64).contains(&layers) => model
            .with_further_token_modules(layers as u64)
            .map_err(|error| RowFailure::Unpredictable(error.to_string())),
        Some(_) => Err(row.row_fault(
            "mtp_layers",
            &format!("must be a whole number up to {MAX_FURTHER_TOKENS}"),
            "an empty cell means none",
        )),
    }
}

/// Returns the experts; `None` if the row has none. They have a capacity limit only if the row states one. Shared
/// experts together count as one of their total width.
fn read_experts(row: &MeasuredRow<'_>) -> Result<Option<Experts>, RowFailure> {
    let Some(count) = row.optional_dimension("experts", MAX_EXPERTS)?.filter(|count| *count > 1) else {
        return Ok(None);
    };
    let top_k = row.optional_dimension("top_k", MAX_EXPERTS)?.unwrap_or(1);
    if top_k > count {
        return Err(row.row_fault("top_k", &format!("must be at most the {count} experts"), "correct it"));
    }
    let width = row.optional_dimension("moe_ffn_hidden", MAX_FFN)?.unwrap_or(row.dimension("ffn_hidden", MAX_FFN)?);
    let shared = row.number("shared_experts")?.filter(|shared| *shared > 0.0);
    if shared.is_some_and(|shared| shared.fract() != 0.0 || shared > MAX_EXPERTS as f64) {
        return Err(row.row_fault(
            "shared_experts",
            &format!("must be a whole number up to {MAX_EXPERTS}"),
            "an empty cell means none",
        ));
    }
    let shared = shared.map(|shared| SharedExpert { ffn: width.saturating_mul(shared as u64), weighed: false });
    let capacity_factor = match row.cell("capacity_factor") {
        None | Some("dropless") => None,
        Some(_) => row.number("capacity_factor")?.filter(|factor| *factor > 0.0),
    };
    Ok(Some(Experts { count, top_k, shared, capacity_factor, ..Experts::default() }))
}

fn read_attention(row: &MeasuredRow<'_>) -> Result<Attention, RowFailure> {
    match row.cell("attention") {
        None | Some("flash" | "fused") => Ok(Attention::Fused),
        Some("unfused") => Ok(Attention::Unfused),
        Some(_) => Err(row.row_fault("attention", "must be flash or unfused", "an empty cell means flash")),
    }
}

/// Returns the number formats: mixed precision as in the stack. bf16 weights have no master copy if the row or its data
/// set says so.
fn read_precision(row: &MeasuredRow<'_>, stack: &SoftwareStack) -> Result<Precision, RowFailure> {
    let has_copy = software::read_master_copy(row)?;
    let mixed = stack.precision_of_run(if has_copy { Precision::MIXED_BF16 } else { Precision::PURE_BF16 });
    match row.cell("precision") {
        None | Some("bf16") => Ok(mixed),
        Some("fp8") => Ok(mixed.with_product_type(DataType::Fp8)),
        Some("int8") => Ok(mixed.with_product_type(DataType::Int8)),
        Some("mxfp8") => Ok(mixed.with_product_type(DataType::Mxfp8)),
        Some("nvfp4") => Ok(mixed.with_product_type(DataType::Nvfp4)),
        Some("mxfp4") => Ok(mixed.with_product_type(DataType::Mxfp4)),
        Some("fp16") => Ok(Precision { operand: DataType::Fp16, gradient: DataType::Fp16, ..Precision::MIXED_BF16 }),
        Some("fp32") => Ok(Precision::FP32),
        Some(_) => Err(row.row_fault(
            "precision",
            "must be fp32, bf16, fp16, fp8, int8, mxfp8, nvfp4 or mxfp4",
            "an empty cell means bf16",
        )),
    }
}

fn read_optimizer(row: &MeasuredRow<'_>) -> Result<Optimizer, RowFailure> {
    match row.cell("optimizer") {
        None | Some("adam" | "adamw") => Ok(Optimizer::Adam),
        Some("sgd") => Ok(Optimizer::Sgd),
        // Lion keeps one momentum.
        Some("momentum" | "lion") => Ok(Optimizer::Momentum),
        Some("adafactor") => Ok(Optimizer::Adafactor),
        Some("adam8bit" | "adamw8bit" | "adam_8bit" | "adamw_8bit" | "8bit_adam" | "8bit_adamw") => {
            Ok(Optimizer::Adam8bit)
        }
        Some("muon") => Ok(Optimizer::Muon),
        Some(other) => {
            let known = "adam, adamw, sgd, momentum, lion, adafactor, adam8bit, muon";
            Err(RowFailure::Unpredictable(format!("unknown optimizer `{other}`; known are {known}")))
        }
    }
}

/// Returns the policy, by its name in the framework. TorchTitan's `selective` chooses among operators. Megatron-LM's
/// recomputes the attention core.
fn read_activations(row: &MeasuredRow<'_>, framework: Framework) -> Result<ActivationPolicy, RowFailure> {
    let text = match row.cell("recompute").unwrap_or("none") {
        "selective" if framework == Framework::TorchTitan => "selective_per_operator",
        text => text,
    };
    text.parse().map_err(|e: WorkloadError| RowFailure::Unpredictable(e.to_string()))
}
