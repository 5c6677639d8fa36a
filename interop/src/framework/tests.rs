#![allow(clippy::unwrap_used, clippy::panic)]
use super::*;

fn read(file: &str, text: &str, context: FrameworkContext<'_>) -> Result<FrameworkRun, String> {
    read_framework_file(file, text, context).map_err(|error| error.to_string())
}

fn option<'a>(run: &'a FrameworkRun, name: &str) -> Vec<&'a str> {
    run.options.iter().filter(|(option, _)| *option == name).map(|(_, value)| value.as_str()).collect()
}

fn config(run: &FrameworkRun) -> serde_json::Value {
    match &run.model {
        Some(FrameworkModel::Config(text)) => serde_json::from_str(text).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// A script with the arguments of Llama 3 8B, and more.
fn llama(more: &str) -> String {
    format!(
        "torchrun --nproc-per-node 8 --nnodes 4 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size \
         14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 --seq-length 8192 \
         --max-position-embeddings 8192 --swiglu --normalization RMSNorm --position-embedding-type rope \
         --untie-embeddings-and-output-weights --disable-bias-linear --vocab-size 128256 --bf16 --micro-batch-size 1 \
         --global-batch-size 64 {more}"
    )
}

#[test]
fn a_megatron_script_states_model_plan_and_devices() {
    let more = "--tensor-model-parallel-size 8 --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce \
                --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --log-interval 10 \
                --lr 1e-4";
    let run = read("train.sh", &llama(more), FrameworkContext::default()).unwrap();
    for (name, value) in [
        ("devices", "32"),
        ("tensor", "8"),
        ("pipeline", "1"),
        ("context", "1"),
        ("zero", "1"),
        ("recompute", "full"),
        ("sequence-parallel", "true"),
        ("precision", "bf16"),
        ("global-batch", "64"),
        ("sequence-length", "8192"),
    ] {
        assert_eq!(option(&run, name), [value], "{name}");
    }
    let options = option(&run, "stack-option");
    let wanted = ["kernels.fp32_gradients=true", "overlap.parameter_prefetch=0", "overlap.tensor=0"];
    assert_eq!(options[..3], wanted);
    assert_eq!(options[3..], ["kernels.vocabulary_multiple=128"]);
    let config = config(&run);
    assert_eq!((&config["vocab_size"], &config["num_key_value_heads"]), (&128_256.into(), &8.into()));
    assert_eq!(config["model_type"], "llama");
}

#[test]
fn stages_are_read_as_megatron_divides_them() {
    let splits = |more: &str| {
        let run = read("train.sh", &llama(more), FrameworkContext::default()).unwrap();
        [option(&run, "layer-split").join(","), option(&run, "virtual-stages").join(",")]
    };
    let of = |split: &str, chunks: &str| [split.to_owned(), chunks.to_owned()];
    let pipeline = "--pipeline-model-parallel-size 4";
    assert_eq!(splits(pipeline), of("even", "1"));
    assert_eq!(splits(&format!("{pipeline} --num-layers-per-virtual-pipeline-stage 4")), of("even", "2"));
    assert_eq!(splits(&format!("{pipeline} --num-virtual-stages-per-pipeline-rank 2")), of("even", "2"));
    let ends = "--decoder-first-pipeline-num-layers 9 --decoder-last-pipeline-num-layers 7";
    assert_eq!(splits(&format!("{pipeline} {ends}")), of("9:7", "1"));
    assert_eq!(splits(&format!("{pipeline} --decoder-last-pipeline-num-layers 5")), of("9:5", "1"));
    let layout = "--pipeline-model-parallel-layout \"Et*7|t*8|t*9|t*8,L\"";
    assert_eq!(splits(&format!("{pipeline} {layout}")), of("7:8@1", "1"));
    let refused = |more: &str| read("train.sh", &llama(more), FrameworkContext::default()).unwrap_err();
    let short = refused(&format!("{pipeline} --pipeline-model-parallel-layout \"Et*7|t*8|t*8|t*8,L\""));
    assert!(short.contains("has 31 layers t, num-layers is 32; they must be the same"), "{short}");
    let three = refused(&format!("{pipeline} --pipeline-model-parallel-layout \"Et*16|t*8|t*8,L\""));
    assert!(three.contains("has 3 stages; give a multiple of the pipeline's 4"), "{three}");
    let accounted = refused(&format!("{pipeline} --account-for-loss-in-pipeline-split"));
    assert!(accounted.contains("num-layers = 32: 32 over 4 stages do not divide"), "{accounted}");
}

#[test]
fn what_is_not_understood_is_refused_with_its_key() {
    let refused = |more: &str| read("train.sh", &llama(more), FrameworkContext::default()).unwrap_err();
    for (more, said) in [
        (
            "--hybrid-override-pattern M-M*",
            "train.sh: hybrid-override-pattern = M-M*: is not understood; leave it out, or give \
                                            --assume hybrid-override-pattern=ignored",
        ),
        (
            "--tensor-model-parallel-size $TP",
            "tensor-model-parallel-size = $TP: is a variable that the file does not set",
        ),
        ("--optimizer muon", "optimizer = muon: is not one that can be asked for"),
        ("--rampup-batch-size 16 16 1000", "rampup-batch-size = 16 16 1000: is not modelled"),
        ("--squared-relu", "squared-relu: is of a model that is not built from arguments"),
    ] {
        let why = refused(more);
        assert!(why.contains(said), "{why}");
    }
    let why = refused("--reset-attention-mask");
    assert!(why.contains("reset-attention-mask: keeps attention within documents, whose lengths no argument"), "{why}");
    let context = FrameworkContext { documents_are_given: true, ..FrameworkContext::default() };
    assert!(read("train.sh", &llama("--reset-attention-mask"), context).is_ok());
    let assumed = ["hybrid-override-pattern".to_owned()];
    let context = FrameworkContext { assumed: &assumed, ..FrameworkContext::default() };
    assert!(read("train.sh", &llama("--hybrid-override-pattern M-M*"), context).is_ok());
    let nothing = read("notes.txt", "buy milk", FrameworkContext::default()).unwrap_err();
    assert!(
        nothing.starts_with("notes.txt: the file: is no configuration that is known; give Megatron-LM's"),
        "{nothing}"
    );
}

#[test]
fn torchtitan_s_degrees_checkpointing_and_stack_are_read() {
    let text = r#"
        [model]
        name = "llama3"
        flavor = "8B"
        converters = ["float8"]
        [training]
        local_batch_size = 2
        seq_len = 8192
        steps = 1000
        [parallelism]
        data_parallel_replicate_degree = 2
        data_parallel_shard_degree = 4
        tensor_parallel_degree = 8
        enable_async_tensor_parallel = true
        [activation_checkpoint]
        mode = "selective"
        selective_ac_option = "op"
        [compile]
        enable = true
    "#;
    let run = read("train.toml", text, FrameworkContext::default()).unwrap();
    for (name, value) in [
        ("devices", "64"),
        ("global-batch", "16"),
        ("micro-batch", "2"),
        ("zero", "3"),
        ("shards", "4"),
        ("precision", "fp8"),
        ("stack", "torchtitan_async"),
        ("recompute", "selective_per_operator"),
    ] {
        assert_eq!(option(&run, name), [value], "{name}");
    }
    assert_eq!(run.model, Some(FrameworkModel::BuiltIn("llama3.1-8b")));
    let every_other = text.replace("\"op\"", "\"2\"");
    let refused = read("train.toml", &every_other, FrameworkContext::default()).unwrap_err();
    assert!(refused.contains("selective_ac_option = 2: every so many layers is not modelled"), "{refused}");
    let unknown = text.replace("[compile]", "[compile]\nmystery = 3");
    assert!(
        read("train.toml", &unknown, FrameworkContext::default())
            .unwrap_err()
            .contains("compile.mystery = 3: is not understood")
    );
}

#[test]
fn maxtext_fills_the_axis_that_is_left() {
    let text = "# base\nmodel_name: 'llama3.1-8b'\nper_device_batch_size: 4\nmax_target_length: 8192\n\
                ici_tensor_parallelism: 4\nici_fsdp_parallelism: -1\nremat_policy: 'full'\nsteps: 30\n";
    let missing = read("run.yml", text, FrameworkContext::default()).unwrap_err();
    assert!(missing.contains("takes the devices that are left; give --devices"), "{missing}");
    let context = FrameworkContext { devices: Some(64), ..FrameworkContext::default() };
    let run = read("run.yml", text, context).unwrap();
    for (name, value) in
        [("tensor", "4"), ("zero", "3"), ("global-batch", "256"), ("micro-batch", "16"), ("recompute", "full")]
    {
        assert_eq!(option(&run, name), [value], "{name}");
    }
    assert_eq!(run.model, Some(FrameworkModel::BuiltIn("llama3.1-8b")));
}

#[test]
fn deepspeed_s_batch_must_fit_the_devices() {
    let text = r#"{"train_batch_size": 512, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4,
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": true}},
        "bf16": {"enabled": true}, "gradient_clipping": 1.0}"#;
    let context =
        |devices| FrameworkContext { devices: Some(devices), model_is_named: true, ..FrameworkContext::default() };
    let run = read("ds.json", text, context(64)).unwrap();
    for (name, value) in [("zero", "3"), ("micro-batch", "2"), ("technique", "zero-offload"), ("global-batch", "512")] {
        assert_eq!(option(&run, name), [value], "{name}");
    }
    let wrong = read("ds.json", text, context(32)).unwrap_err();
    assert!(
        wrong.contains("train_batch_size = 512: must be the micro-batch x accumulation x 32 replicas, 256"),
        "{wrong}"
    );
    let unnamed = FrameworkContext { devices: Some(64), ..FrameworkContext::default() };
    assert!(
        read("ds.json", text, unnamed).unwrap_err().contains("is not in a file of DeepSpeed's; name it before --from")
    );
}

#[test]
fn a_branch_that_the_script_leaves_open_is_refused_where_it_counts() {
    let branch = |more: &str| {
        let script = format!("if [ $KIND = a ]; then\n  MORE=\"{more}\"\nfi\n{} $MORE", llama(""));
        read("train.sh", &script, FrameworkContext::default())
    };
    assert!(branch("--log-interval 10").is_ok());
    for more in ["--use-distributed-optimizer", "--tensor-model-parallel-size 2"] {
        let why = branch(more).unwrap_err();
        assert!(why.contains("depends on an if or a case that the script does not decide"), "{why}");
    }
}

#[test]
fn old_names_of_recomputed_layers_are_read() {
    for more in ["--checkpoint-activations", "--activations-checkpoint-method uniform"] {
        let run = read("train.sh", &llama(more), FrameworkContext::default()).unwrap();
        assert_eq!(option(&run, "recompute"), ["full"], "{more}");
    }
}

#[test]
fn torchtitan_s_newer_keys_are_read_or_refused() {
    let text = "[model]\nname = \"deepseek_v3\"\nflavor = \"16B\"\n[training]\nlocal_batch_size = 4\n\
                enable_cpu_offload = false\n[parallelism]\ndata_parallel_shard_degree = 8\n\
                pipeline_parallel_degree = 1\nexpert_parallel_degree = 8\nexpert_tensor_parallel_degree = 1\n\
                fsdp_reshard_after_forward = \"default\"\n[activation_checkpoint]\nmode = \"full\"\n\
                [compile]\nenable = true\ncomponents = [\"loss\"]\n[quantize.dense.float8]\nfilter_fqns = []\n";
    let of = |text: &str| read("train.toml", text, FrameworkContext::default());
    let run = of(text).unwrap();
    for (name, value) in [("expert", "8"), ("expert-tensor", "1"), ("zero", "3"), ("stack", "torchtitan_eager")] {
        assert_eq!(option(&run, name), [value], "{name}");
    }
    // By default a pipeline keeps gathered weights: `torchtitan/models/llama3/infra/parallelize.py`.
    let piped = of(&text.replace("pipeline_parallel_degree = 1", "pipeline_parallel_degree = 2")).unwrap();
    assert_eq!(option(&piped, "zero"), ["2"]);
    for (old, new, said) in [
        (
            "enable_cpu_offload = false",
            "enable_cpu_offload = true",
            "training.enable_cpu_offload = true: is not modelled; false is",
        ),
        ("local_batch_size = 4", "local_batch_size = 4\nmixed_precision_param = \"float32\"", "bfloat16 is"),
    ] {
        let why = of(&text.replace(old, new)).unwrap_err();
        assert!(why.contains(said), "{why}");
    }
}

#[test]
fn what_maxtext_s_file_leaves_out_is_as_in_its_base() {
    let text = "python3 -m MaxText.train.py configs/base.yml base_emb_dim=4096 per_device_batch_size=2 steps=5 \\\n \
                ici_fsdp_parallelism=16";
    let context = FrameworkContext { devices: Some(16), ..FrameworkContext::default() };
    let run = read("run.sh", text, context).unwrap();
    assert_eq!(option(&run, "sequence-length"), ["2048"]);
    let config = config(&run);
    for (key, value) in [("hidden_size", 4096), ("num_hidden_layers", 16), ("head_dim", 128), ("vocab_size", 32_000)] {
        assert_eq!(config[key], value, "{key}");
    }
    let gelu = read("run.sh", &format!("{text} mlp_activations=['gelu']"), context).unwrap_err();
    assert!(gelu.contains("mlp_activations"), "{gelu}");
}

#[test]
fn deepspeed_s_tensor_width_divides_the_replicas() {
    let text = r#"{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1, "bf16": {"enabled": true},
        "tensor_parallel": {"autotp_size": 4}, "zero_optimization": {"stage": 1}}"#;
    let context = FrameworkContext { devices: Some(16), model_is_named: true, ..FrameworkContext::default() };
    let run = read("ds.json", text, context).unwrap();
    assert_eq!((option(&run, "tensor"), option(&run, "global-batch")), (vec!["4"], vec!["8"]));
    for (old, new, said) in [
        ("true", "\"auto\"", "bf16.enabled = auto: follows the trainer's arguments"),
        ("\"stage\": 1", "\"stage\": 1, \"reduce_scatter\": false", "reduce_scatter = false: is not modelled"),
    ] {
        let why = read("ds.json", &text.replace(old, new), context).unwrap_err();
        assert!(why.contains(said), "{why}");
    }
}

#[test]
fn huge_numbers_are_refused_with_their_key_and_never_multiplied_past_the_end() {
    let huge = "9223372036854775812";
    for key in [
        "tensor-model-parallel-size",
        "pipeline-model-parallel-size",
        "num-layers-per-virtual-pipeline-stage",
        "num-virtual-stages-per-pipeline-rank",
        "vocab-size",
        "hidden-size",
        "decoder-first-pipeline-num-layers",
    ] {
        let error = read("train.sh", &llama(&format!("--{key} {huge}")), FrameworkContext::default()).unwrap_err();
        assert!(error.contains(&format!("{key} = {huge}: must be at most 16777216")), "{error}");
    }
    let late = llama("--pipeline-model-parallel-size 2 --decoder-last-pipeline-num-layers 99");
    let error = read("train.sh", &late, FrameworkContext::default()).unwrap_err();
    assert!(error.contains("decoder-last-pipeline-num-layers = 99: must be at most the 32 of num-layers"), "{error}");
    let titan =
        "[model]\nname = \"llama3\"\nflavor = \"8B\"\n[activation_checkpoint]\nmode = \"full\"\n[parallelism]\n";
    let devices = FrameworkContext { devices: Some(8), ..FrameworkContext::default() };
    let wrong = read("t.toml", &format!("{titan}data_parallel_shard_degree = 3\n"), devices).unwrap_err();
    assert!(wrong.contains("makes a product of degrees of 3, which must be the 8 devices"), "{wrong}");
    let deep = read("t.toml", &format!("{titan}pipeline_parallel_degree = 30000\n"), FrameworkContext::default());
    assert!(deep.unwrap_err().contains("and 30000 stages: must not be more than the 32 layers"));
    let mesh = "model_name: llama3.1-8b\nici_tensor_parallelism: 9223372036854775807\ndcn_tensor_parallelism: 3\n";
    let wide = read("m.yml", mesh, devices).unwrap_err();
    assert!(wide.contains("ici_tensor_parallelism = 9223372036854775807: must be at most 16777216"), "{wide}");
}

#[test]
fn keys_that_change_the_work_are_read_refused_or_noted() {
    let megatron = |more: &str| read("train.sh", &llama(more), FrameworkContext::default());
    let run = megatron("--no-rope-fusion --no-overlap-p2p-communication --no-gradient-accumulation-fusion").unwrap();
    assert_eq!(
        run.notes,
        ["no-rope-fusion: is not modelled: neighbouring elementwise work is one kernel, as the stack has it"]
    );
    for wanted in ["overlap.pipeline=0", "kernels.separate_accumulation=true"] {
        assert!(option(&run, "stack-option").contains(&wanted), "{wanted}");
    }
    let block = "--recompute-granularity full --recompute-method block --recompute-num-layers 4";
    let run = read("train.sh", &llama(block), FrameworkContext::default()).unwrap();
    assert_eq!(option(&run, "recompute"), ["block:4"]);
    let full = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 4";
    let refused = megatron(full).unwrap_err();
    assert!(refused.contains("recompute-num-layers = 4: is not modelled; 1 is"), "{refused}");
    let apart =
        megatron("--pipeline-model-parallel-size 3 --pipeline-model-parallel-layout \"Et*16|t*16,m|L\"").unwrap_err();
    assert!(apart.contains("has m in another stage than the last one, which is not modelled; move it"), "{apart}");
    let deepspeed = |more: &str| {
        let text = format!("{{\"bf16\": {{\"enabled\": true}}, \"zero_optimization\": {{\"stage\": 2, {more}}}}}");
        let context = FrameworkContext { model_is_named: true, ..FrameworkContext::default() };
        read("ds.json", &text, context)
    };
    let run = deepspeed("\"overlap_comm\": false, \"reduce_bucket_size\": 500000000").unwrap();
    assert_eq!(option(&run, "stack-option"), ["overlap.data_reduction=0", "overlap.parameter_prefetch=0"]);
    assert_eq!(
        run.notes,
        ["zero_optimization.reduce_bucket_size = 500000000: is not modelled: buffers are the stack's"]
    );
    let titan = |more: &str| {
        let text =
            format!("[model]\nname = \"llama3\"\nflavor = \"8B\"\n{more}\n[activation_checkpoint]\nmode = \"full\"\n");
        read("t.toml", &text, FrameworkContext::default())
    };
    let narrow = titan("converters = [\"quantize.linear.mx\"]").unwrap_err();
    assert!(narrow.contains("model.converters = quantize.linear.mx: is not modelled"), "{narrow}");
    let early = titan("[optimizer]\nearly_step_in_backward = true").unwrap_err();
    assert!(early.contains("optimizer.early_step_in_backward = true: is not modelled; false is"), "{early}");
    let devices = FrameworkContext { devices: Some(8), ..FrameworkContext::default() };
    let mesh = read("m.yml", "model_name: llama3.1-8b\nici_fsdp_parallelism: 4\n", devices).unwrap_err();
    assert!(mesh.contains("makes a product of degrees of 4, which must be the 8 devices"), "{mesh}");
    let empty = read("empty.toml", " \n", FrameworkContext::default()).unwrap_err();
    assert_eq!(empty, "empty.toml: the file: is empty; give a framework's configuration");
}

/// Llama 2 7B as NeMo's launcher trains it, with more of the keys of `model`.
fn nemo(more: &str) -> String {
    format!(
        "run:\n  name: train_llama2_7b\ntrainer:\n  num_nodes: 2\n  devices: 8\n  accelerator: gpu\n  precision: \
         bf16\n  max_steps: 100\nexp_manager:\n  explicit_log_dir: ${{run.results_dir}}/logs\nmodel:\n  mcore_gpt: \
         true\n  micro_batch_size: 1\n  global_batch_size: 128\n  tensor_model_parallel_size: 2\n  \
         pipeline_model_parallel_size: 2\n  virtual_pipeline_model_parallel_size: null\n  encoder_seq_length: 4096\n  \
         max_position_embeddings: ${{.encoder_seq_length}}\n  num_layers: 32\n  hidden_size: 4096\n  ffn_hidden_size: \
         11008\n  num_attention_heads: 32\n  hidden_dropout: 0.0\n  attention_dropout: 0.0\n  kv_channels: null\n  \
         normalization: rmsnorm\n  bias: false\n  activation: 'fast-swiglu'\n  headscale: false\n  \
         transformer_block_type: pre_ln\n  position_embedding_type: rope\n  rotary_percentage: 1.0\n  \
         share_embeddings_and_output_weights: false\n  sequence_parallel: true\n  activations_checkpoint_granularity: \
         full\n  activations_checkpoint_method: uniform\n  activations_checkpoint_num_layers: 1\n  \
         make_vocab_size_divisible_by: 128\n  optim:\n    name: distributed_fused_adam\n    lr: 3e-4\n{more}"
    )
}

#[test]
fn a_nemo_file_is_read_as_megatrons_arguments() {
    let named = FrameworkContext { model_is_named: true, ..FrameworkContext::default() };
    let run = read("llama2_7b.yaml", &nemo(""), named).unwrap();
    assert_eq!(run.framework, "NeMo");
    for (name, value) in [
        ("devices", "16"),
        ("tensor", "2"),
        ("pipeline", "2"),
        ("zero", "1"),
        ("recompute", "full"),
        ("sequence-parallel", "true"),
        ("precision", "bf16"),
        ("global-batch", "128"),
        ("sequence-length", "4096"),
        ("virtual-stages", "1"),
    ] {
        assert_eq!(option(&run, name), [value], "{name}");
    }
    // The distributed optimizer overlaps its communication unless the file turns that off. The file leaves the size of
    // the vocabulary to the tokenizer, so the call must name the model.
    assert!(!option(&run, "stack-option").contains(&"overlap.data_reduction=0"));
    let told = read("llama2_7b.yaml", &nemo("    overlap_grad_sync: false\n"), named).unwrap();
    assert!(option(&told, "stack-option").contains(&"overlap.data_reduction=0"));
    let error = read("llama2_7b.yaml", &nemo(""), FrameworkContext::default()).unwrap_err();
    assert!(error.contains("vocab-size: is missing") && error.contains("name the model"), "{error}");
    for (more, key) in [
        ("  headscale_2: 4\n", "model.headscale_2 = 4: is not understood"),
        ("  ffn_dropout: 0.1\n", "model.ffn_dropout = 0.1: is not modelled"),
        ("  hidden_width: ${.nothing}\n", "names another key"),
        ("  fp32_residual_connection: true\n", "model.fp32_residual_connection = true: is not modelled"),
        ("    grad_sync_dtype: bf16\n", "model.optim.grad_sync_dtype = bf16: is not understood"),
    ] {
        let error = read("llama2_7b.yaml", &nemo(more), named).unwrap_err();
        assert!(error.contains(key), "{error}");
    }
    // The name `muon_adam` contains `adam`, but is no optimizer of Adam's kind.
    let other = nemo("").replace("distributed_fused_adam", "muon_adam");
    assert!(read("llama2_7b.yaml", &other, named).unwrap_err().contains("model.optim.name = muon_adam: is not"));
    // The name `muon_adam` contains `adam`, but is no optimizer of Adam's kind.
    let other = nemo("").replace("distributed_fused_adam", "muon_adam");
    let error = read("llama2_7b.yaml", &other, named).unwrap_err();
    assert!(error.contains("model.optim.name = muon_adam: is not modelled"), "{error}");
}

/// Llama 3 8B as Megatron Bridge's recipes write it, with more lines.
fn recipe(more: &str) -> String {
    format!(
        r#""""Trains.

torchrun --nproc-per-node 8 --nnodes 2 recipe.py
"""
import torch
from megatron.bridge import AutoBridge


def config() -> ConfigContainer:
    cfg = ConfigContainer(
        model=AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").to_megatron_provider(load_weights=False),
        train=TrainingConfig(train_iters=10, global_batch_size=128, micro_batch_size=1),
        optimizer=OptimizerConfig(optimizer="adam", lr=3e-4, use_distributed_optimizer=True),
        ddp=DistributedDataParallelConfig(use_distributed_optimizer=True, overlap_grad_reduce=True),
        dataset=GPTDatasetConfig(seq_length=4096),
        mixed_precision="bf16_mixed",
    )
    cfg.model.tensor_model_parallel_size = 2
    cfg.model.sequence_parallel = True
    cfg.model.pipeline_model_parallel_size = 2
    cfg.model.virtual_pipeline_model_parallel_size = 4
    cfg.model.seq_length = 4096
    cfg.model.recompute_granularity = None
    cfg.model.attention_backend = AttnBackend.flash
{more}
    return cfg
"#
    )
}

#[test]
fn a_recipe_is_read_as_megatrons_arguments() {
    let plain = FrameworkContext::default();
    let run = read("recipe.py", &recipe(""), plain).unwrap();
    assert_eq!(run.framework, "Megatron Bridge");
    assert_eq!(run.model, Some(FrameworkModel::BuiltIn("llama3-8b")));
    for (name, value) in [
        ("devices", "16"),
        ("tensor", "2"),
        ("pipeline", "2"),
        ("virtual-stages", "4"),
        ("layer-split", "even"),
        ("zero", "1"),
        ("recompute", "none"),
        ("sequence-parallel", "true"),
        ("precision", "bf16"),
        ("attention", "fused"),
        ("micro-batch", "1"),
        ("global-batch", "128"),
        ("sequence-length", "4096"),
    ] {
        assert_eq!(option(&run, name), [value], "{name}");
    }
    assert!(run.keys.contains(&("model.tensor_model_parallel_size".to_owned(), "2".to_owned())), "{:?}", run.keys);
    assert!(option(&run, "stack-option").contains(&"overlap.parameter_prefetch=0"));
    let modules = "    cfg.model.recompute_granularity = \"selective\"\n    cfg.model.recompute_modules = [\"mlp\"]";
    assert_eq!(option(&read("recipe.py", &recipe(modules), plain).unwrap(), "technique"), ["recompute-mlp"]);
    for (line, error) in [
        (
            "cfg.model.tensor_model_parallel_size = 0",
            "line 25: model.tensor_model_parallel_size = 0: must be at least 1",
        ),
        ("cfg.model.mystery_width = 3", "line 25: model.mystery_width = 3: is not understood"),
        ("cfg.model.num_layers = 16", "line 25: model.num_layers: changes the model that the file names"),
        ("cfg.train.micro_batch_size = len(x)", "line 25: calls len, whose values are not in the file"),
        (
            "cfg.dataset.seq_length = 2048",
            "line 22: model.seq_length = 4096: differs from dataset.seq_length in line 25; give both one value",
        ),
        ("cfg.model.sequence_parallel = 3", "line 25: model.sequence_parallel = 3: is no value that is modelled"),
        (
            "cfg.mixed_precision = \"bf16_with_mxfp8_mixed\"",
            "line 25: mixed_precision = \"bf16_with_mxfp8_mixed\": is not modelled; bf16_mixed, ",
        ),
        ("cfg.model.layernorm_epsilon = 1e-6", "changes the model"),
        (
            "cfg.peft = LoRAConfig(dim=16)",
            "line 25: peft is not understood; ConfigContainer has checkpoint, comm_overlap, dataset",
        ),
        (
            "cfg.mixed_precision = CommOverlapConfig(tp_comm_overlap=True)",
            "line 25: mixed_precision is given a CommOverlapConfig; give it a MixedPrecisionConfig",
        ),
        (
            "cfg.optimizer.context_parallel_size = 2",
            "line 25: optimizer.context_parallel_size = 2: is not understood; did you mean \
             model.context_parallel_size?",
        ),
        ("cfg.train.micro_batch_size = None", "train.micro_batch_size: is missing, and has no value"),
        (
            "cfg.model.recompute_method = \"block\"",
            "line 25: model.recompute_method = block: is of model.recompute_granularity full; leave it out",
        ),
        (
            "cfg.mixed_precision = MixedPrecisionConfig(bf16=True, fp8=\"e5m2\")",
            "line 25: mixed_precision.fp8 = e5m2: is none of e4m3, hybrid; correct it",
        ),
        (
            "cfg.mixed_precision = MixedPrecisionConfig(bf16=True, fp16=True)",
            "line 25: mixed_precision.fp16 = true: excludes mixed_precision.bf16; leave one out",
        ),
        (
            "cfg.dist = DistributedInitConfig(use_torch_fsdp2=True, use_megatron_fsdp=True)",
            "line 25: dist.use_torch_fsdp2 = true: excludes dist.use_megatron_fsdp; leave one out",
        ),
    ] {
        let refused = read("recipe.py", &recipe(&format!("    {line}")), plain).unwrap_err();
        assert!(refused.contains(error), "{refused}");
    }
    // `comm_overlap` decides the overlaps that it states. The others are on.
    for (fields, on) in [("", true), (", overlap_grad_reduce=False", false)] {
        let line = format!("    cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=False{fields})");
        let read = read("recipe.py", &recipe(&line), plain).unwrap();
        assert_eq!(!option(&read, "stack-option").contains(&"overlap.data_reduction=0"), on, "{fields}");
        assert!(!option(&read, "stack-option").contains(&"overlap.parameter_prefetch=0"), "{fields}");
    }
    let other = recipe("").replace("meta-llama/Meta-Llama-3-8B", "some/other");
    let refused = read("recipe.py", &other, plain).unwrap_err();
    assert!(refused.contains("some/other is no built-in one; name the model before --from"), "{refused}");
    let named = FrameworkContext { model_is_named: true, ..plain };
    assert_eq!(read("recipe.py", &other, named).unwrap().model, None);
    let assumed = ["model.mystery_width".to_owned()];
    let taken = FrameworkContext { assumed: &assumed, ..plain };
    read("recipe.py", &recipe("    cfg.model.mystery_width = 3"), taken).unwrap();
}

/// Returns a nanotron file in which the first text of `replaced` is replaced by the second.
fn nanotron(replaced: (&str, &str)) -> String {
    let text = "general: {project: debug, run: tiny, seed: 42}\ncheckpoints: {checkpoint_interval: 10}\n\
         data_stages:\n- name: training\n  start_training_step: 1\nmodel:\n  ddp_bucket_cap_mb: 25\n  \
         dtype: bfloat16\n  \
         init_method: {std: 0.025}\n  make_vocab_size_divisible_by: 1\n  model_config:\n    is_llama_config: true\n    \
         hidden_act: silu\n    hidden_size: 2048\n    intermediate_size: 8192\n    max_position_embeddings: 2048\n    \
         num_attention_heads: 32\n    num_hidden_layers: 16\n    num_key_value_heads: 8\n    \
         rms_norm_eps: 1.0e-05\n    \
         rope_interleaved: false\n    rope_scaling: null\n    rope_theta: 10000.0\n    tie_word_embeddings: true\n    \
         vocab_size: 128256\noptimizer:\n  accumulate_grad_in_fp32: true\n  clip_grad: 1.0\n  optimizer_factory: \
         {name: adamW, adam_eps: 1.0e-08}\n  zero_stage: 1\nparallelism:\n  dp: 2\n  pp: 2\n  tp: 2\n  \
         pp_engine: 1f1b\n  \
         tp_mode: REDUCE_SCATTER\n  tp_linear_async_communication: true\n  expert_parallel_size: 1\ntokens:\n  \
         batch_accumulation_per_replica: 8\n  micro_batch_size: 2\n  sequence_length: 2048\n  train_steps: 15\n";
    assert!(text.contains(replaced.0), "{replaced:?}");
    text.replace(replaced.0, replaced.1)
}

#[test]
fn nanotron_splits_layers_by_their_cost() {
    let plain = FrameworkContext::default();
    let run = read("run.yaml", &nanotron(("dp: 2", "dp: 2")), plain).unwrap();
    for (name, value) in [
        ("devices", "8"),
        ("tensor", "2"),
        ("pipeline", "2"),
        ("micro-batch", "2"),
        ("global-batch", "32"),
        ("sequence-length", "2048"),
        ("layer-split", "10:6"),
        ("zero", "1"),
        ("recompute", "none"),
        ("sequence-parallel", "true"),
        ("precision", "bf16"),
    ] {
        assert_eq!(option(&run, name), [value], "{name}");
    }
    let Some(FrameworkModel::Config(config)) = &run.model else { panic!("{:?}", run.model) };
    assert!(config.contains("\"model_type\":\"llama\"") && !config.contains("rope_interleaved"), "{config}");
    assert!(run.notes[0].starts_with("model.ddp_bucket_cap_mb = 25: is not modelled"), "{:?}", run.notes);
    for (from, to, error) in [
        ("expert_parallel_size: 1", "expert_parallel_size: 2", "expert_parallel_size = 2: is not modelled; 1 is"),
        ("zero_stage: 1", "zero_stage: 3", "optimizer.zero_stage = 3: is none of 0, 1"),
        ("pp_engine: 1f1b", "pp_engine: zb", "parallelism.pp_engine = zb: is none of 1f1b, afab"),
        ("is_llama_config: true", "is_starcoder2_config: true", "holds neither is_llama_config nor is_qwen2_config"),
        ("  dtype: bfloat16", "  dtype: float32", "model.dtype = float32: is none of bfloat16, float16"),
        ("train_steps: 15", "mystery: 3", "tokens.mystery = 3: is not understood"),
        ("  micro_batch_size: 2", "  micro_batch_size: 0", "tokens.micro_batch_size = 0: must be at least 1"),
        ("rope_interleaved: false", "_use_doc_masking: true", "_use_doc_masking = true: is not modelled; false is"),
    ] {
        let refused = read("run.yaml", &nanotron((from, to)), plain).unwrap_err();
        assert!(refused.contains(error), "{to}: {refused}");
    }
    let wrong = FrameworkContext { devices: Some(16), ..plain };
    let refused = read("run.yaml", &nanotron(("dp: 2", "dp: 2")), wrong).unwrap_err();
    assert!(refused.contains("are 8 devices; give --devices 8"), "{refused}");
    let named = FrameworkContext { model_is_named: true, ..plain };
    assert_eq!(read("run.yaml", &nanotron(("dp: 2", "dp: 2")), named).unwrap().model, None);
}
