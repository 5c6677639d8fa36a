//! Reads Megatron-LM's arguments. Source: `megatron/training/arguments.py` of NVIDIA/Megatron-LM at commit 000c4ac24f61
//! (2025).

use super::keys::{FrameworkFileError, FrameworkKeys, UnreadKeys};
use super::megatron_model;
use super::megatron_stages::read_stages;
use super::run::{FrameworkContext, FrameworkRun, PlanOptions};

/// Arguments, each with the option that takes its value unchanged.
const SAME: [(&str, &str); 8] = [
    ("tensor-model-parallel-size", "tensor"),
    ("pipeline-model-parallel-size", "pipeline"),
    ("context-parallel-size", "context"),
    ("expert-model-parallel-size", "expert"),
    ("expert-tensor-parallel-size", "expert-tensor"),
    ("micro-batch-size", "micro-batch"),
    ("seq-length", "sequence-length"),
    ("mtp-num-layers", "mtp-layers"),
];

/// Arguments that are not modelled, with the substitute.
const UNMODELLED: &[(&str, &str)] = &[
    ("check-for-nan-in-loss-and-grad", "the pass that looks for NaN is left out"),
    ("cross-entropy-*", "the loss runs as the stack's (--stack-option kernels.fused_loss)"),
    ("moe-permute-fusion", "tokens are sorted in one pass"),
    ("moe-router-padding-for-fp8", "the padding of experts' tokens is left out"),
    ("no-bias-dropout-fusion", "neighbouring elementwise work is one kernel, as the stack has it"),
    ("no-bias-gelu-fusion", "neighbouring elementwise work is one kernel, as the stack has it"),
    ("no-bias-swiglu-fusion", "neighbouring elementwise work is one kernel, as the stack has it"),
    ("no-masked-softmax-fusion", "neighbouring elementwise work is one kernel, as the stack has it"),
    ("no-rope-fusion", "neighbouring elementwise work is one kernel, as the stack has it"),
    ("overlap-p2p-communication-warmup-flush", "sends of the warm-up are not hidden"),
    ("overlap-param-gather-with-optimizer-step", "weights are gathered behind the update"),
    ("te-rng-tracker", "random numbers cost nothing"),
    ("transformer-impl", "kernels are those of the stack"),
];

/// Scalings of products in fp8 (`arguments.py`, `--fp8-recipe`). A recipe of the user's own is not modelled.
const FP8_RECIPES: [&str; 4] = ["tensorwise", "delayed", "blockwise", "mxfp8"];

/// Arguments that do not become options, including those of torchrun.
const UNREAD: UnreadKeys = UnreadKeys {
    unmodelled: UNMODELLED,
    nothing: &[
        "adam-*",
        "apply-layernorm-1p",
        "async-save",
        "attention-softmax-in-fp32",
        "auto-detect-ckpt-format",
        "calculate-per-token-loss",
        "ckpt-*",
        "clip-grad",
        "data-*",
        "dataset",
        "dataloader-type",
        "dist-ckpt-*",
        "distributed-backend",
        "distributed-timeout-minutes",
        "enable-experimental",
        "end-weight-decay",
        "eod-mask-loss",
        "eval-*",
        "exit-*",
        "finetune",
        "init-method-*",
        "initial-loss-scale",
        "load",
        "log-*",
        "logging-level",
        "loss-scale",
        "lr",
        "lr-*",
        "manual-gc*",
        "max-padding-length",
        "master-addr",
        "master-port",
        "merge-file",
        "min-lr",
        "mock-data",
        "moe-aux-loss-coeff",
        "moe-router-bias-update-rate",
        "moe-router-dtype",
        "moe-router-enable-expert-bias",
        "moe-router-load-balancing-type",
        "moe-router-pre-softmax",
        "moe-router-score-function",
        "moe-router-topk-scaling-factor",
        "moe-z-loss-coeff",
        "mtp-loss-scaling-factor",
        "muon-*",
        "no-check-*",
        "no-ckpt-*",
        "no-create-attention-mask-in-dataloader",
        "no-load-*",
        "no-mmap-bin-files",
        "no-position-embedding",
        "no-save-*",
        "node-rank",
        "num-workers",
        "override-lr-scheduler",
        "override-opt_param-scheduler",
        "override-opt-param-scheduler",
        "patch-tokenizer-type",
        "profile*",
        "rdzv-*",
        "reset-position-ids",
        "rope-type",
        "rotary-scaling-factor",
        "rotary-seq-len-interpolation-factor",
        "save",
        "save-*",
        "seed",
        "split",
        "start-weight-decay",
        "straggler-*",
        "tensorboard-*",
        "test-data-path",
        "tiktoken-*",
        "timing-log-*",
        "tokenizer-*",
        "train-data-path",
        "train-iters",
        "train-mode",
        "train-samples",
        "use-checkpoint-args",
        "use-checkpoint-opt_param-scheduler",
        "use-checkpoint-opt-param-scheduler",
        "use-dist-ckpt",
        "use-mcore-models",
        "use-persistent-ckpt-worker",
        "use-rotary-position-embeddings",
        "valid-data-path",
        "vocab-file",
        "wandb-*",
        "weight-decay*",
        "beta-*",
        "mscale*",
        "moe-router-force-load-balancing",
        "log-throughput",
    ],
};

/// Reads a run from Megatron-LM's arguments.
pub(super) fn read(mut keys: FrameworkKeys, context: FrameworkContext<'_>) -> Result<FrameworkRun, FrameworkFileError> {
    let mut options = PlanOptions::default();
    for (key, option) in SAME {
        if let Some(value) = keys.count(key)? {
            options.push(option, value);
        }
    }
    if keys.list("micro-batch-size").is_none() {
        return Err(keys.fault("micro-batch-size", "is missing, and has no value of its own; add it"));
    }
    let [tensor, pipeline, contexts] = read_degrees(&mut keys, &mut options)?;
    let devices = read_devices(&mut keys, context)?;
    if let Some(devices) = devices {
        options.push("devices", devices);
    }
    read_global_batch(&mut keys, &mut options, devices, [tensor, pipeline, contexts])?;
    read_stages(&mut keys, &mut options, pipeline)?;
    read_context_method(&mut keys, &mut options, contexts)?;
    let sequence = keys.switch("sequence-parallel")?;
    options.push("sequence-parallel", sequence && tensor > 1);
    options.push("order", if keys.switch("use-tp-pp-dp-mapping")? { "t-p-d" } else { "t-d-p" });
    read_sharding(&mut keys, &mut options, devices, tensor.saturating_mul(pipeline))?;
    read_numerics(&mut keys, &mut options)?;
    read_states(&mut keys, &mut options)?;
    read_recompute(&mut keys, &mut options)?;
    read_overlap(&mut keys, &mut options)?;
    if let Some(factor) = keys.number::<f64>("moe-expert-capacity-factor")? {
        options.push("capacity-factor", factor);
    }
    keys.read_all(&["moe-pad-expert-input-to-capacity"]);
    if keys.list("num-experts").is_some() && !keys.switch("moe-grouped-gemm")? {
        keys.note("num-experts", "experts run as one grouped product, which --moe-grouped-gemm asks for");
    }
    let multiple = keys.count("make-vocab-size-divisible-by")?.unwrap_or(megatron_model::USUAL_MULTIPLE);
    options.push("stack-option", format!("kernels.vocabulary_multiple={multiple}"));
    let masks = "reset-attention-mask";
    if !context.assumed.iter().any(|key| key == masks) && keys.switch(masks)? && !context.documents_are_given {
        return Err(keys.fault(
            masks,
            "keeps attention within documents, whose lengths no argument has; give --documents, or \
             --assume reset-attention-mask=ignored for kernels that take a causal mask alone",
        ));
    }
    let model = match context.model_is_named {
        true => {
            keys.read_all(&megatron_model::KEYS);
            None
        }
        false => Some(megatron_model::read(&mut keys)?),
    };
    keys.finish(&UNREAD, context.assumed, "Megatron-LM", options, model)
}

/// Reads the degrees of tensor, pipeline and context parallelism. A missing degree means 1 in Megatron-LM, but leaves
/// the choice open in coplace.
fn read_degrees(keys: &mut FrameworkKeys, options: &mut PlanOptions) -> Result<[u64; 3], FrameworkFileError> {
    let mut degree = |key: &str| Ok::<u64, FrameworkFileError>(keys.count(key)?.unwrap_or(1));
    let tensor = degree("tensor-model-parallel-size")?;
    let pipeline = degree("pipeline-model-parallel-size")?;
    let contexts = degree("context-parallel-size")?;
    for (option, value) in [("tensor", tensor), ("pipeline", pipeline), ("context", contexts), ("expert", 1)] {
        if !options.0.iter().any(|(known, _)| *known == option) {
            options.push(option, value);
        }
    }
    Ok([tensor, pipeline, contexts])
}

fn read_context_method(
    keys: &mut FrameworkKeys,
    options: &mut PlanOptions,
    contexts: u64,
) -> Result<(), FrameworkFileError> {
    if contexts <= 1 {
        keys.read_all(&["cp-comm-type"]);
        return Ok(());
    }
    let method = match keys.text("cp-comm-type")?.as_deref() {
        None | Some("p2p" | "allgather") => "ring",
        Some("a2a") => "ulysses",
        Some(_) => return Err(keys.fault("cp-comm-type", "is not modelled; p2p, allgather and a2a are")),
    };
    options.push("context-method", method);
    Ok(())
}

/// Returns the devices: the given ones, else the world size, else torchrun's hosts times its processes per host; `None`
/// if they are unknown.
fn read_devices(keys: &mut FrameworkKeys, context: FrameworkContext<'_>) -> Result<Option<u64>, FrameworkFileError> {
    if context.devices.is_some() {
        keys.read_all(&["nnodes", "nproc-per-node", "world-size"]);
        return Ok(context.devices);
    }
    if let Some(devices) = keys.count("world-size")? {
        return Ok(Some(devices));
    }
    // A variable of the scheduler has no known value; the call must then give --devices.
    let known = |keys: &mut FrameworkKeys, key: &str| {
        let set = keys.list(key).is_some_and(|values| values.first().is_some_and(|value| !value.contains('$')));
        if set { keys.count(key) } else { Ok(None) }
    };
    let hosts = known(keys, "nnodes")?;
    Ok(known(keys, "nproc-per-node")?.and_then(|of_a_host| Some(of_a_host.saturating_mul(hosts?))))
}

/// Reads the sequences of a step. Without the argument, Megatron-LM takes one micro-batch per data-parallel rank.
fn read_global_batch(
    keys: &mut FrameworkKeys,
    options: &mut PlanOptions,
    devices: Option<u64>,
    degrees: [u64; 3],
) -> Result<(), FrameworkFileError> {
    let micro = keys.count("micro-batch-size")?;
    match (keys.count("global-batch-size")?, devices, micro) {
        (Some(batch), ..) => options.push("global-batch", batch),
        (None, Some(devices), Some(micro)) => {
            options
                .push("global-batch", micro.saturating_mul(devices) / degrees.into_iter().fold(1, u64::saturating_mul));
        }
        _ => {}
    }
    if keys.list("rampup-batch-size").is_some() {
        return Err(keys.fault("rampup-batch-size", "is not modelled; leave it out for the steps behind it"));
    }
    Ok(())
}

/// Reads which states data-parallel ranks shard.
fn read_sharding(
    keys: &mut FrameworkKeys,
    options: &mut PlanOptions,
    devices: Option<u64>,
    model_parallel: u64,
) -> Result<(), FrameworkFileError> {
    let torch = keys.switch("use-torch-fsdp2")?;
    let megatron = keys.switch("use-megatron-fsdp")? | keys.switch("use-custom-fsdp")?;
    if torch && megatron {
        return Err(keys.fault("use-torch-fsdp2", "excludes use-megatron-fsdp; leave one out"));
    }
    let distributed = keys.switch("use-distributed-optimizer")?;
    let strategy = keys.text("data-parallel-sharding-strategy")?;
    let zero = match (torch, megatron, strategy.as_deref()) {
        (true, ..) => 3,
        (_, true, Some("optim")) => 1,
        (_, true, Some("optim_grads")) => 2,
        (_, true, Some("optim_grads_params")) => 3,
        (_, true, Some("no_shard") | None) => 0,
        (_, true, Some(_)) => {
            let known = "is none of no_shard, optim, optim_grads, optim_grads_params; correct it";
            return Err(keys.fault("data-parallel-sharding-strategy", known));
        }
        _ => u64::from(distributed),
    };
    options.push("zero", zero);
    keys.read_all(&["outer-dp-sharding-strategy"]);
    // Both kinds of FSDP turn this fusion off without the switch. Then the stack's file states how gradients
    // accumulate.
    if keys.switch("no-gradient-accumulation-fusion")? && !torch && !megatron {
        options.push("stack-option", "kernels.separate_accumulation=true");
    }
    if let Some(copies) = keys.count("num-distributed-optimizer-instances")?.filter(|copies| *copies > 1) {
        let Some(devices) = devices else {
            return Err(
                keys.fault("num-distributed-optimizer-instances", "needs the number of devices; give --devices")
            );
        };
        options.push("shards", devices / model_parallel.max(1) / copies);
    }
    Ok(())
}

/// Reads number formats, attention and the optimizer.
fn read_numerics(keys: &mut FrameworkKeys, options: &mut PlanOptions) -> Result<(), FrameworkFileError> {
    let (bf16, fp16) = (keys.switch("bf16")?, keys.switch("fp16")?);
    if bf16 && fp16 {
        return Err(keys.fault("fp16", "excludes --bf16; leave one out"));
    }
    let recipe = keys.one_of("fp8-recipe", &FP8_RECIPES)?;
    let fp8 = keys.one_of("fp8-format", &["e4m3", "hybrid"])?.is_some() || keys.switch("fp8")?;
    let fp4 = keys.one_of("fp4-format", &["e2m1"])?.is_some();
    if fp8 && fp4 {
        return Err(keys.fault("fp4-format", "excludes fp8-format; leave one out"));
    }
    keys.one_of("fp4-recipe", &["nvfp4"])?;
    keys.read_all(&["fp8-amax-history-len", "fp8-amax-compute-algo", "fp8-margin"]);
    if keys.switch("fp8-param-gather")? {
        return Err(keys.fault("fp8-param-gather", "is not modelled: weights are gathered in bf16; leave it out"));
    }
    let precision = match (fp4, fp8, bf16, fp16) {
        (true, ..) => "nvfp4",
        (_, true, ..) if recipe.as_deref() == Some("mxfp8") => "mxfp8",
        (_, true, ..) => "fp8",
        (.., true) => "fp16",
        (_, _, true, _) => "bf16",
        _ => return Err(keys.fault("bf16", "is missing: training in fp32 is not modelled; give --bf16 or --fp16")),
    };
    options.push("precision", precision);
    let narrow = keys.switch("grad-reduce-in-bf16")?;
    keys.read_all(&["accumulate-allreduce-grads-in-fp32"]);
    if bf16 {
        options.push("stack-option", format!("kernels.fp32_gradients={}", !narrow));
    }
    let flash = keys.switch("use-flash-attn")?;
    match keys.one_of("attention-backend", &["flash", "fused", "unfused", "local", "auto"])?.as_deref() {
        Some("unfused" | "local") => options.push("attention", "unfused"),
        Some(_) => options.push("attention", "fused"),
        None if flash => options.push("attention", "fused"),
        None => {}
    }
    let momentum = keys.number::<f64>("sgd-momentum")?.unwrap_or(0.9);
    match keys.text("optimizer")?.as_deref() {
        None | Some("adam") => options.push("optimizer", "adam"),
        Some("sgd") if momentum == 0.0 => options.push("optimizer", "sgd"),
        Some("sgd") => options.push("optimizer", "momentum"),
        Some(_) => return Err(keys.fault("optimizer", "is not one that can be asked for; adam and sgd are")),
    }
    Ok(())
}

/// Reads the activation policy of the layers.
fn read_recompute(keys: &mut FrameworkKeys, options: &mut PlanOptions) -> Result<(), FrameworkFileError> {
    let selective = keys.switch("recompute-activations")?;
    // Before Megatron-LM 3.0, these names asked for the recomputation of whole layers.
    let old_method = keys.text("activations-checkpoint-method")?;
    let whole = keys.switch("checkpoint-activations")? || old_method.is_some();
    let granularity = keys.one_of("recompute-granularity", &["selective", "full"])?;
    let granularity = granularity.or_else(|| whole.then(|| "full".to_owned()));
    let method = keys.one_of("recompute-method", &["uniform", "block"])?.or(old_method);
    if granularity.as_deref() != Some("full") && keys.list("recompute-method").is_some() {
        // Megatron-LM's `transformer_config.py` refuses this combination too.
        return Err(keys.fault("recompute-method", "is of recompute-granularity full; leave it out"));
    }
    let modules = keys.list("recompute-modules").unwrap_or_default();
    // Megatron-LM requires recompute-num-layers here, with a value from 1.
    let blocks = if method.as_deref() == Some("block") { keys.count("recompute-num-layers")? } else { None };
    keys.read_all(&["recompute-num-layers"]);
    match (granularity.as_deref(), method.as_deref()) {
        (None, _) if !selective => options.push("recompute", "none"),
        (None | Some("selective"), _) => match modules.as_slice() {
            [] => options.push("recompute", "selective"),
            [only] if only == "core_attn" => options.push("recompute", "selective"),
            modules => {
                options.push("recompute", "none");
                for module in modules {
                    options.push("technique", format!("recompute-{}", module.replace('_', "-")));
                }
            }
        },
        (Some("full"), Some("block")) => {
            let of_block = megatron_model::layers_of_block(keys)?;
            let layers = blocks.unwrap_or(1);
            if !layers.is_multiple_of(of_block) {
                let limit = format!("must be whole blocks of {of_block} layers, of which one has no window");
                return Err(keys.fault("recompute-num-layers", limit));
            }
            options.push("recompute", format!("block:{}", layers / of_block));
        }
        (Some(_), _) => {
            keys.expect("recompute-num-layers", "1")?;
            options.push("recompute", "full");
        }
    }
    if keys.switch("fine-grained-activation-offloading")? {
        for module in keys.list("offload-modules").unwrap_or_default() {
            options.push("technique", format!("offload-{}", module.replace('_', "-")));
        }
    }
    if keys.switch("optimizer-cpu-offload")? {
        let fraction = keys.number::<f64>("optimizer-offload-fraction")?.unwrap_or(1.0);
        let overlap = u8::from(keys.switch("overlap-cpu-optimizer-d2h-h2d")?);
        options.push("technique", format!("optimizer-offload,fraction={fraction},overlap={overlap}"));
    }
    Ok(())
}

/// Reads the formats of gradients and states. Only the precision-aware optimizer narrows them.
fn read_states(keys: &mut FrameworkKeys, options: &mut PlanOptions) -> Result<(), FrameworkFileError> {
    let aware = keys.switch("use-precision-aware-optimizer")?;
    let [first, second] = [keys.text("exp-avg-dtype")?, keys.text("exp-avg-sq-dtype")?];
    if first != second {
        return Err(
            keys.fault("exp-avg-sq-dtype", "differs from exp-avg-dtype, which is not modelled; give both one format")
        );
    }
    let gradients = keys.text("main-grads-dtype")?;
    if keys.text("main-params-dtype")?.is_some_and(|format| format != "fp32") {
        return Err(keys.fault("main-params-dtype", "is not modelled; fp32 is"));
    }
    if let Some(format) = first.filter(|_| aware) {
        options.push("states", format);
    }
    if let Some(format) = gradients.filter(|_| aware) {
        options.push("gradients", format);
    }
    Ok(())
}

/// Reads the overlaps. An overlap that is not asked for is off.
fn read_overlap(keys: &mut FrameworkKeys, options: &mut PlanOptions) -> Result<(), FrameworkFileError> {
    for (key, option) in
        [("overlap-grad-reduce", "overlap.data_reduction=0"), ("overlap-param-gather", "overlap.parameter_prefetch=0")]
    {
        // FSDP2 always overlaps.
        if !keys.switch(key)? && !keys.switch("use-torch-fsdp2")? {
            options.push("stack-option", option);
        }
    }
    // Without sequence parallelism, the all-reduces overlap with weight gradients without this switch.
    if !keys.switch("tp-comm-overlap")? && keys.switch("sequence-parallel")? {
        options.push("stack-option", "overlap.tensor=0");
    }
    if keys.switch("overlap-moe-expert-parallel-comm")? {
        options.push("stack-option", "overlap.experts=1");
    }
    for (key, option) in [
        ("no-overlap-p2p-communication", "overlap.pipeline=0"),
        ("moe-shared-expert-overlap", "overlap.shared_expert=1"),
    ] {
        if keys.switch(key)? {
            options.push("stack-option", option);
        }
    }
    keys.read_all(&["align-grad-reduce", "align-param-gather"]);
    match keys.text("moe-token-dispatcher-type")?.as_deref() {
        None | Some("alltoall") => {}
        Some("allgather") => options.push("stack-option", "kernels.expert_all_gather=true"),
        Some("flex") => options.push("stack-option", "kernels.expert_deduplicated=true"),
        Some(_) => return Err(keys.fault("moe-token-dispatcher-type", "is none of alltoall, allgather, flex")),
    }
    keys.read_all(&["moe-enable-deepep", "moe-flex-dispatcher-backend"]);
    Ok(())
}
