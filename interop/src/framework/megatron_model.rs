//! Reads the model from Megatron-LM's arguments, as the `config.json` of a family with the same layers.

use super::keys::{FrameworkFileError, FrameworkKeys};
use super::model::{ConfigJson, FrameworkModel};

/// The arguments that describe the model.
pub(super) const KEYS: [&str; 52] = [
    "num-layers",
    "hidden-size",
    "ffn-hidden-size",
    "num-attention-heads",
    "kv-channels",
    "group-query-attention",
    "num-query-groups",
    "max-position-embeddings",
    "vocab-size",
    "make-vocab-size-divisible-by",
    "swiglu",
    "normalization",
    "position-embedding-type",
    "rotary-base",
    "rotary-percent",
    "norm-epsilon",
    "untie-embeddings-and-output-weights",
    "disable-bias-linear",
    "add-qkv-bias",
    "qk-layernorm",
    "attention-dropout",
    "hidden-dropout",
    "num-experts",
    "moe-layer-freq",
    "moe-ffn-hidden-size",
    "moe-shared-expert-intermediate-size",
    "moe-router-topk",
    "moe-router-num-groups",
    "moe-router-group-topk",
    "multi-latent-attention",
    "q-lora-rank",
    "kv-lora-rank",
    "qk-head-dim",
    "qk-pos-emb-head-dim",
    "v-head-dim",
    "bert-no-binary-head",
    "openai-gelu",
    "squared-relu",
    "encoder-num-layers",
    "encoder-seq-length",
    "decoder-seq-length",
    "embed-layernorm",
    "extra-vocab-size",
    "pad-vocab-size-to",
    "quick-geglu",
    "glu-linear-offset",
    "activation-func-clamp-value",
    "softmax-type",
    "window-size",
    "window-attn-skip-freq",
    "use-rope-scaling",
    "rope-scaling-factor",
];

/// Vocabularies are padded to a multiple of this number times the tensor-parallel degree. Source: `arguments.py`,
/// `--make-vocab-size-divisible-by`.
pub(super) const USUAL_MULTIPLE: u64 = 128;

/// Returns the number of layers before the first one with experts, from `([0]*3+[1]*58)` or from 1, which means none.
pub(super) fn leading_layers(keys: &mut FrameworkKeys) -> Result<u64, FrameworkFileError> {
    let Some(text) = keys.text("moe-layer-freq")? else { return Ok(0) };
    let compact: String = text.chars().filter(|c| !c.is_whitespace() && !"()".contains(*c)).collect();
    let fault = "is not a number of layers without experts before layers with them ([0]*3+[1]*58); other orders are \
                 not modelled";
    let part = |text: &str, kind: &str| text.strip_prefix(kind)?.parse::<u64>().ok();
    let found = match compact.split_once('+') {
        None if compact == "1" || part(&compact, "[1]*").is_some() => Some(0),
        Some((dense, experts)) => part(experts, "[1]*").and_then(|_| part(dense, "[0]*")),
        None => None,
    };
    found.ok_or_else(|| keys.fault("moe-layer-freq", fault))
}

/// Returns the number of layers per block, the unit in which stages hold layers: the period of layers without a window,
/// or 1 if there is no window or no period.
pub(super) fn layers_of_block(keys: &mut FrameworkKeys) -> Result<u64, FrameworkFileError> {
    if keys.list("window-size").is_none() {
        return Ok(1);
    }
    match keys.text("window-attn-skip-freq")?.map(|text| text.parse::<u64>()) {
        None => Ok(1),
        Some(Ok(period)) if period > 0 => Ok(period),
        Some(_) => {
            let limit = "is no number; other orders of layers with windows are not modelled";
            Err(keys.fault("window-attn-skip-freq", limit))
        }
    }
}

/// Reads the window's length in keys from `127,0` or `(127,0)`: the keys to the left of a query, and its own. `None` if
/// there is no window.
fn read_window(keys: &mut FrameworkKeys) -> Result<Option<u64>, FrameworkFileError> {
    let Some(text) = keys.text("window-size")? else { return Ok(None) };
    let numbers: String = text.chars().filter(|c| !c.is_whitespace() && !"()".contains(*c)).collect();
    let left = numbers.split_once(',').filter(|(_, right)| *right == "0").and_then(|(left, _)| left.parse().ok());
    match left {
        Some(left) => Ok(Some(u64::saturating_add(left, 1))),
        None => {
            let limit = "is not two numbers, of which the second is 0 (127,0); other windows are not modelled";
            Err(keys.fault("window-size", limit))
        }
    }
}

/// The sizes that every family has.
struct CommonSizes {
    layers: u64,
    hidden: u64,
    heads: u64,
    groups: u64,
    ffn: u64,
    vocabulary: u64,
    positions: u64,
}

/// The model as its arguments describe it.
struct DescribedModel {
    common: CommonSizes,
    /// True if the gated unit is limited (`quick-geglu`), as in GPT-OSS.
    limited: bool,
    swiglu: bool,
    sinks: bool,
    window: Option<u64>,
    /// The unit in which stages hold layers.
    period: u64,
    rms: bool,
    rotary: bool,
    no_bias: bool,
    key_norm: bool,
    /// Probabilities of attention and of the residual sums.
    dropout: [f64; 2],
    rotary_base: f64,
    epsilon: f64,
    untied: bool,
    qkv_bias: bool,
    head_dim: Option<u64>,
    experts: Option<u64>,
}

/// Reads the model.
pub(super) fn read(keys: &mut FrameworkKeys) -> Result<FrameworkModel, FrameworkFileError> {
    let model = read_description(keys)?;
    if let (true, Some(experts), false) = (model.sinks, model.experts, model.no_bias) {
        let config = model.gpt_oss_config();
        return add_experts(keys, config, experts, &model.common, "gpt_oss").map(ConfigJson::into_model);
    }
    model.check_parts_of_gpt_oss(keys)?;
    if !model.swiglu && !model.rms && !model.rotary && model.experts.is_none() && !model.no_bias {
        return Ok(model.gpt2_config().into_model());
    }
    if !(model.swiglu && model.rms && model.rotary && model.no_bias) {
        let these = "swiglu, normalization RMSNorm, position-embedding-type rope and disable-bias-linear together, or \
                     none of them (a GPT), are built from arguments; name the model before --from";
        return Err(keys.fault("num-layers", these));
    }
    let latent = keys.switch("multi-latent-attention")?;
    let model_type = match (latent, model.experts, model.key_norm) {
        (true, Some(_), _) => "deepseek_v3",
        (true, None, _) => {
            return Err(keys
                .fault("multi-latent-attention", "without experts is no known family; name the model before --from"));
        }
        (false, Some(_), true) => "qwen3_moe",
        (false, Some(_), false) => "mixtral",
        (false, None, true) => "qwen3",
        (false, None, false) if model.qkv_bias => "qwen2",
        (false, None, false) => "llama",
    };
    if model.window.is_some() && model_type != "mixtral" {
        return Err(keys.fault("window-size", "is not read for these layers; name the model before --from"));
    }
    let config = model.common_config(model_type).with_known("sliding_window", model.window);
    let config = if latent || model.qkv_bias { config } else { config.with_known("head_dim", model.head_dim) };
    let Some(experts) = model.experts else { return Ok(config.into_model()) };
    add_experts(keys, config, experts, &model.common, model_type).map(ConfigJson::into_model)
}

/// Reads the arguments that every family has.
///
/// # Errors
/// Arguments of models that are not built from arguments, and values that are not modelled.
fn read_description(keys: &mut FrameworkKeys) -> Result<DescribedModel, FrameworkFileError> {
    for key in ["encoder-num-layers", "encoder-seq-length", "decoder-seq-length", "openai-gelu", "squared-relu"] {
        if keys.list(key).is_some() {
            return Err(keys.fault(key, "is of a model that is not built from arguments; name the model before --from"));
        }
    }
    let limited = keys.switch("quick-geglu")?;
    let swiglu = keys.switch("swiglu")? || limited;
    let (window, period) = (read_window(keys)?, layers_of_block(keys)?);
    let sinks = read_sinks(keys)?;
    keys.read_all(&["glu-linear-offset", "activation-func-clamp-value", "use-rope-scaling", "rope-scaling-factor"]);
    let common = read_common_sizes(keys, swiglu)?;
    let rms = keys.text("normalization")?.is_some_and(|norm| norm == "RMSNorm");
    let position = keys.text("position-embedding-type")?;
    let rotary = position.as_deref() == Some("rope") || keys.switch("use-rotary-position-embeddings")?;
    let model = DescribedModel {
        common,
        limited,
        swiglu,
        sinks,
        window,
        period,
        rms,
        rotary,
        no_bias: keys.switch("disable-bias-linear")?,
        key_norm: keys.switch("qk-layernorm")?,
        dropout: [keys.number("attention-dropout")?, keys.number("hidden-dropout")?].map(|rate| rate.unwrap_or(0.1)),
        rotary_base: keys.number::<f64>("rotary-base")?.unwrap_or(10_000.0),
        epsilon: keys.number::<f64>("norm-epsilon")?.unwrap_or(1e-5),
        untied: keys.switch("untie-embeddings-and-output-weights")?,
        qkv_bias: keys.switch("add-qkv-bias")?,
        head_dim: keys.count("kv-channels")?,
        experts: None,
    };
    keys.read_all(&["bert-no-binary-head"]);
    if let (true, Some(part)) = (rotary, keys.number::<f64>("rotary-percent")?)
        && part != 1.0
    {
        return Err(keys.fault("rotary-percent", "only 1 is built from arguments; name the model before --from"));
    }
    Ok(DescribedModel { experts: keys.count("num-experts")?, ..model })
}

/// Reads whether every head has a learned logit beside its scores.
fn read_sinks(keys: &mut FrameworkKeys) -> Result<bool, FrameworkFileError> {
    match keys.text("softmax-type")?.as_deref() {
        None | Some("vanilla") => Ok(false),
        Some("learnable") => Ok(true),
        Some(_) => Err(keys.fault("softmax-type", "is not modelled; vanilla and learnable are")),
    }
}

fn read_common_sizes(keys: &mut FrameworkKeys, swiglu: bool) -> Result<CommonSizes, FrameworkFileError> {
    let hidden = keys.required_count("hidden-size")?;
    let heads = keys.required_count("num-attention-heads")?;
    let grouped = keys.switch("group-query-attention")?;
    // As in `arguments.py`: for SwiGLU two thirds of four times the width, rounded down to a multiple of 64.
    let usual_ffn = if swiglu { (4 * hidden * 2 / 3) / 64 * 64 } else { 4 * hidden };
    Ok(CommonSizes {
        layers: keys.required_count("num-layers")?,
        hidden,
        heads,
        groups: keys.count("num-query-groups")?.filter(|_| grouped).unwrap_or(heads),
        ffn: keys.count("ffn-hidden-size")?.unwrap_or(usual_ffn),
        vocabulary: read_vocabulary(keys)?,
        positions: keys.required_count("max-position-embeddings")?,
    })
}

impl DescribedModel {
    /// Refuses arguments of GPT-OSS if the arguments that complete its model are missing.
    fn check_parts_of_gpt_oss(&self, keys: &FrameworkKeys) -> Result<(), FrameworkFileError> {
        if self.limited || self.sinks {
            let these = "quick-geglu, softmax-type learnable, num-experts and biases (no disable-bias-linear) are \
                         built from arguments together (GPT-OSS); name the model before --from";
            return Err(keys.fault(if self.limited { "quick-geglu" } else { "softmax-type" }, these));
        }
        if self.window.is_some() && (self.experts.is_none() || self.period > 1) {
            let these = "is built from arguments for GPT-OSS, and for experts where every layer has it; name the model \
                         before --from";
            return Err(keys.fault("window-size", these));
        }
        Ok(())
    }

    fn gpt_oss_config(&self) -> ConfigJson {
        let CommonSizes { layers, hidden, heads, .. } = self.common;
        self.common_config("gpt_oss")
            .with("head_dim", self.head_dim.unwrap_or(hidden / heads.max(1)))
            .with("attention_bias", true)
            .with("sliding_window", self.window.unwrap_or(0))
            .with("layer_types", types_of_layers(layers, self.window.map(|_| self.period)))
    }

    fn gpt2_config(&self) -> ConfigJson {
        ConfigJson::of_type("gpt2")
            .with("n_layer", self.common.layers)
            .with("n_embd", self.common.hidden)
            .with("n_head", self.common.heads)
            .with("n_inner", self.common.ffn)
            .with("n_positions", self.common.positions)
            .with("vocab_size", self.common.vocabulary)
            .with("activation_function", "gelu_new")
            .with("attn_pdrop", self.dropout[0])
            .with("resid_pdrop", self.dropout[1])
            .with("embd_pdrop", self.dropout[1])
            .with("layer_norm_epsilon", self.epsilon)
            .with("tie_word_embeddings", !self.untied)
    }

    /// Returns the configuration of a family of Llama's kind, from the sizes.
    fn common_config(&self, model_type: &str) -> ConfigJson {
        ConfigJson::of_type(model_type)
            .with("num_hidden_layers", self.common.layers)
            .with("hidden_size", self.common.hidden)
            .with("num_attention_heads", self.common.heads)
            .with("num_key_value_heads", self.common.groups)
            .with("intermediate_size", self.common.ffn)
            .with("vocab_size", self.common.vocabulary)
            .with("max_position_embeddings", self.common.positions)
            .with("tie_word_embeddings", !self.untied)
            .with("hidden_act", "silu")
            .with("rms_norm_eps", self.epsilon)
            .with("rope_theta", self.rotary_base)
    }
}

/// Returns the kind of each layer. Every `period`-th layer has no window; with a period of 1 all layers have one, and
/// without a period none has.
fn types_of_layers(layers: u64, period: Option<u64>) -> Vec<&'static str> {
    let has_window = |layer: u64| period.is_some_and(|period| period == 1 || !layer.is_multiple_of(period));
    (1..=layers).map(|layer| if has_window(layer) { "sliding_attention" } else { "full_attention" }).collect()
}

/// Reads the size of the vocabulary before padding.
fn read_vocabulary(keys: &mut FrameworkKeys) -> Result<u64, FrameworkFileError> {
    let words = keys.count("vocab-size")?.ok_or_else(|| {
        keys.fault("vocab-size", "is missing, as its tokenizer has it; add it, or name the model before --from")
    })?;
    // Megatron-LM's `_NullTokenizer` adds a token for the end of a document.
    let own_end = u64::from(keys.text("tokenizer-type")?.as_deref() == Some("NullTokenizer"));
    Ok(words + own_end)
}

fn add_experts(
    keys: &mut FrameworkKeys,
    config: ConfigJson,
    experts: u64,
    common: &CommonSizes,
    model_type: &str,
) -> Result<ConfigJson, FrameworkFileError> {
    let leading = leading_layers(keys)?;
    let (own, shared) = (keys.count("moe-ffn-hidden-size")?, keys.count("moe-shared-expert-intermediate-size")?);
    let width = own.unwrap_or(common.ffn);
    let chosen = keys.count("moe-router-topk")?.unwrap_or(2);
    let groups = [keys.count("moe-router-num-groups")?, keys.count("moe-router-group-topk")?];
    let plain = model_type != "deepseek_v3";
    if plain && (leading > 0 || shared.is_some() || groups.iter().any(Option::is_some)) {
        let these = "with leading layers, shared experts or groups are built from arguments beside latent attention \
                     only; name the model before --from";
        return Err(keys.fault("num-experts", these));
    }
    let config = config.with("num_experts_per_tok", chosen);
    Ok(match model_type {
        "mixtral" | "gpt_oss" => config.with("num_local_experts", experts).with("intermediate_size", width),
        "qwen3_moe" => config
            .with("num_experts", experts)
            .with("moe_intermediate_size", width)
            .with("decoder_sparse_step", 1)
            .with("mlp_only_layers", Vec::<u64>::new()),
        _ => {
            let shared_experts = shared.map_or(0, |shared| shared / width.max(1));
            if shared.is_some_and(|shared| !shared.is_multiple_of(width)) {
                let limit = format!("must be a multiple of an expert's {width}");
                return Err(keys.fault("moe-shared-expert-intermediate-size", limit));
            }
            let head = |keys: &mut FrameworkKeys, key: &str| keys.required_count(key);
            config
                .with("n_routed_experts", experts)
                .with("n_shared_experts", shared_experts)
                .with("moe_intermediate_size", width)
                .with("first_k_dense_replace", leading)
                .with("moe_layer_freq", 1)
                .with_known("n_group", groups[0])
                .with_known("topk_group", groups[1])
                .with("q_lora_rank", keys.count("q-lora-rank")?)
                .with("kv_lora_rank", head(keys, "kv-lora-rank")?)
                .with("qk_nope_head_dim", head(keys, "qk-head-dim")?)
                .with("qk_rope_head_dim", head(keys, "qk-pos-emb-head-dim")?)
                .with("v_head_dim", head(keys, "v-head-dim")?)
        }
    })
}
