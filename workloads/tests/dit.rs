//! DiT (Peebles and Xie, ICCV 2023), which denoises images: parameters against diffusers 0.42 and the published count,
//! operations against the published table and PyTorch's counter, and what several devices hold and send.
#![allow(clippy::unwrap_used, missing_docs)]

use coplace_workloads as workloads;
use sim::kernel::Kernel;
use sim::units::{Bytes, Flops};
use workloads::import::hugging_face::parse_config;
use workloads::layout::{Batch, Layout};
use workloads::serving::{ServingGraph, ServingPass};
use workloads::training::{Attention, ContextMethod};
use workloads::{Lowering, Model, RecomputeSet, SegmentKind, TrainingGraph};

/// Operations of a training step of two images, counted by PyTorch 2.15 over diffusers 0.42.
const TRAINED: u128 = 1_423_948_972_032;

fn parse(text: &str) -> Result<Model, String> {
    parse_config("config.json", "config.json", text).map_err(|error| error.to_string())
}

/// Returns the original class's model with sizes from table 1; all other values are its defaults, with 2 x 2 patches.
fn original(layers: u64, hidden: u64, heads: u64) -> Model {
    let sizes = format!("\"depth\": {layers}, \"hidden_size\": {hidden}, \"num_heads\": {heads}");
    parse(&format!("{{\"model_type\": \"dit\", {sizes}}}")).unwrap()
}

/// Returns diffusers' model with `keys`. Sizes that `keys` lacks are those of XL/2. Published models predict noise and
/// variance, so their `out_channels` is twice `in_channels`.
fn diffusers(keys: &str) -> Result<Model, String> {
    let sizes = [("num_layers", 28), ("num_attention_heads", 16), ("attention_head_dim", 72)];
    let others = sizes.iter().filter(|(key, _)| !keys.contains(key));
    let others: String = others.map(|(key, value)| format!(", \"{key}\": {value}")).collect();
    parse(&format!("{{\"_class_name\": \"DiTTransformer2DModel\"{others}{keys}}}"))
}

/// (layers, width, heads, Gflops in table 4, parameters that diffusers counts). The table's Gflops are billions of
/// multiply-additions of one image's forward pass.
const PUBLISHED: [(u64, u64, u64, &str, u64); 4] = [
    (12, 384, 6, "6.06", 39_805_088),
    (12, 768, 12, "23.01", 147_439_904),
    (24, 1024, 16, "80.71", 511_609_888),
    (28, 1152, 16, "118.64", 749_826_464),
];

fn unfused(model: &Model, micro_batch: u64) -> TrainingGraph {
    let lowering = Lowering { attention: Attention::Unfused, micro_batch, ..Lowering::new(model) };
    TrainingGraph::new(model, &lowering).unwrap()
}

fn forward_flops(graph: &TrainingGraph) -> u128 {
    graph.segments.iter().map(|segment| segment.forward_flops().0 * u128::from(segment.repeat)).sum()
}

#[test]
fn parameters_are_diffusers_and_the_published_ones() {
    for (layers, hidden, heads, _, counted) in PUBLISHED {
        let dim = hidden / heads;
        let sizes = format!(
            ", \"num_layers\": {layers}, \"num_attention_heads\": {heads}, \"attention_head_dim\": {dim}, \
             \"out_channels\": 8"
        );
        let model = diffusers(&sizes).unwrap();
        assert_eq!(model.parameters(), counted);
        // In diffusers, every layer after the first adds embedders: two products with biases, and a table of 1,001
        // classes.
        let each = 256 * hidden + hidden + hidden * hidden + hidden + 1001 * hidden;
        assert_eq!(original(layers, hidden, heads).parameters(), counted - (layers - 1) * each);
    }
    // Published: 675 million (table 4). The checkpoint has 675,129,632, with 256 fixed positions.
    assert_eq!(original(28, 1152, 16).parameters() + 256 * 1152, 675_129_632);
    // Models with other options; diffusers counted their parameters.
    assert_eq!(diffusers("").unwrap().parameters(), 749_808_016);
    let gated = ", \"num_attention_heads\": 4, \"attention_head_dim\": 32, \"num_layers\": 3, \
                 \"attention_bias\": false, \"num_embeds_ada_norm\": 10, \"activation_fn\": \"geglu\", \
                 \"patch_size\": 4, \"sample_size\": 16";
    let model = diffusers(gated).unwrap();
    assert_eq!((model.parameters(), model.max_sequence), (1_289_536, 16));
    let large = ", \"num_attention_heads\": 6, \"attention_head_dim\": 64, \"num_layers\": 12, \"out_channels\": 8, \
                 \"activation_fn\": \"swiglu\", \"sample_size\": 64";
    let model = diffusers(large).unwrap();
    assert_eq!((model.parameters(), model.max_sequence), (46_901_408, 1024));
    let older = "{\"_class_name\": \"Transformer2DModel\", \"num_attention_heads\": 4, \"attention_head_dim\": 88, \
                 \"num_layers\": 2, \"in_channels\": 4, \"num_embeds_ada_norm\": 10, \
                 \"norm_elementwise_affine\": false, \
                 \"patch_size\": 2, \"sample_size\": 32, \"norm_type\": \"ada_norm_zero\"}";
    assert_eq!(parse(older).unwrap().parameters(), 6_160_368);
}

/// Table 4 counts one operation per multiply-addition of a product, and one per element of a norm.
#[test]
fn multiply_additions_of_an_image_are_the_published_ones() {
    for (layers, hidden, heads, published, _) in PUBLISHED {
        let products = forward_flops(&unfused(&original(layers, hidden, heads), 1)) / 2;
        let norms = u128::from((2 * layers + 1) * 256 * hidden);
        assert_eq!(format!("{:.2}", (products + norms) as f64 / 1e9), published);
    }
}

/// The expected operations are those of PyTorch's counter (`torch.utils.flop_counter`) over diffusers' model; a
/// training step has two images.
#[test]
fn operations_are_those_that_pytorch_counts() {
    let model = diffusers(", \"out_channels\": 8").unwrap();
    assert_eq!(forward_flops(&unfused(&model, 1)), 237_333_676_032);
    assert_eq!(unfused(&model, 2).kernel_flops(), Flops(TRAINED));
    assert_eq!(model.training_flops(2, 256, model.vocabulary), Flops(TRAINED));
    assert_eq!(model.necessary_training_flops(2, 256, model.vocabulary), Flops(TRAINED));
}

#[test]
fn devices_share_tokens_and_heads_and_each_has_all_conditions() {
    let model = original(28, 1152, 16);
    let base = Lowering { elementwise_fusion: true, ..Lowering::new(&model) };
    let one = TrainingGraph::new(&model, &base).unwrap();
    let per_image = |graph: &TrainingGraph| -> u64 {
        let operators = graph.segments.iter().flat_map(|s| s.operators().iter().map(|op| (op, s.repeat)));
        let vectors = operators.filter(|(op, _)| op.name.contains(".condition.") || op.name.contains(".modulation."));
        vectors.map(|(op, repeat)| op.parameters.replicated * repeat).sum()
    };
    let (d, held) = (1152, per_image(&one));
    assert_eq!(held, 256 * d + d * d + 2 * d + 1001 * d + (28 * 6 + 2) * (d * d + d));
    let split = Lowering { tensor_parallel: 4, sequence_parallel: true, ..base };
    let four = TrainingGraph::new(&model, &split).unwrap();
    assert_eq!(per_image(&four), held);
    // Heads and MLPs are split; patches, the prediction and biases of results are not.
    let split = 28 * (12 * d * d + 3 * d + 4 * d);
    assert_eq!(one.parameters().per_device_count() - four.parameters().per_device_count(), split / 4 * 3);
    let bytes = |graph: &TrainingGraph| graph.segment(SegmentKind::Layer).unwrap().boundary_bytes;
    // A stage sends the conditioning vector of each image with its tokens.
    assert_eq!((bytes(&one), bytes(&four)), (Bytes(2 * d * (256 + 1)), Bytes(2 * d * (64 + 1))));
    for context_method in [ContextMethod::Ring, ContextMethod::Ulysses] {
        let lowering = Lowering { context_parallel: 2, context_method, ..base };
        assert!(TrainingGraph::new(&model, &lowering).is_ok());
    }
}

/// A fused layer keeps these elements of two bytes per token of width d: the norms' inputs (2 d), queries, keys and
/// values (3 d), attention's result and its projection for the gate (2 d), the norms' results (2 d), the MLP's first
/// product, its activation (8 d) and its result for the gate (d). Per image: the vector's SiLU (d), two scales and two
/// gates (4 d). The vector itself is kept with the embedding.
#[test]
fn a_layer_keeps_what_its_backward_pass_reads() {
    let model = original(28, 1152, 16);
    let lowering = Lowering { elementwise_fusion: true, micro_batch: 3, ..Lowering::new(&model) };
    let graph = TrainingGraph::new(&model, &lowering).unwrap();
    let segment = graph.segment(SegmentKind::Layer).unwrap();
    let (d, tokens) = (1152, 3 * 256);
    let per_image = 2 * 3 * (d + 4 * d);
    // Log-sum-exps of 16 heads are fp32.
    assert_eq!(segment.saved_bytes(&RecomputeSet::none()), Bytes(tokens * (2 * 18 * d + 4 * 16) + per_image));
    let loss = graph.segment(SegmentKind::Head).unwrap().graph.find_operator("head.loss").unwrap().clone();
    let Kernel::Reduction(sum) = loss.forward[0].kernel else { return assert!(loss.forward.is_empty()) };
    // The loss reads prediction and target, each of 2 x 2 x 8 elements per token, and writes an fp32 number per image.
    assert_eq!((sum.read, sum.written), (Bytes(2 * 2 * tokens * 32), Bytes(4 * 3)));
}

#[test]
fn what_is_not_modelled_is_refused() {
    let batch = Batch { micro_batch: 1, global_batch: 4, sequence_length: 256 };
    let stages = Layout { pipeline: 2, ..Layout::default() };
    let model = diffusers("").unwrap();
    assert_eq!(
        stages.check_model_and_batch(&model, &batch).unwrap_err().to_string(),
        "pp = 2: must be 1: the head reads the first layer's embedders, and gradients of copies on several stages are \
         not modelled; use pp = 1"
    );
    assert!(stages.check_model_and_batch(&original(28, 1152, 16), &batch).is_ok());
    let pass = ServingPass { cached: 0, expert_ranks: 1, expert_product: None, verifies: false };
    let served = ServingGraph::new(&model, &Lowering::new(&model), pass).unwrap_err().to_string();
    assert!(served.contains("it denoises images"), "{served}");
    let older = |keys: &str| {
        parse(&format!(
            "{{\"_class_name\": \"Transformer2DModel\", \"patch_size\": 2, \"sample_size\": 32, \"in_channels\": 4, \
             \"num_embeds_ada_norm\": 10, \"num_attention_heads\": 16, \"attention_head_dim\": 88, \
             \"num_layers\": 1{keys}}}"
        ))
    };
    let zero = ", \"norm_type\": \"ada_norm_zero\"";
    let faults = [
        (diffusers(", \"dropout\": 0.1"), "`dropout` is 0.1, but must be 0.0"),
        (diffusers(", \"upcast_attention\": true"), "attention in fp32"),
        (diffusers(", \"norm_elementwise_affine\": true"), "norms with parameters"),
        (diffusers(", \"norm_type\": \"layer_norm\""), "must be \"ada_norm_zero\""),
        (diffusers(", \"activation_fn\": \"mish\""), "one of geglu, geglu-approximate, gelu"),
        (diffusers(", \"patch_size\": 3"), "a divisor of `sample_size` (32)"),
        (diffusers(", \"num_embeds_ada_norm\": null"), "key `num_embeds_ada_norm` is missing"),
        (diffusers(", \"num_registers\": 4"), "`num_registers`"),
        (diffusers(", \"hidden_layers\": 4"), "`hidden_layers`"),
        (older(""), "`norm_type` is null, but must be \"ada_norm_zero\""),
        (older(", \"norm_type\": \"ada_norm_single\""), "give DiT's configuration"),
        (older(zero), "`norm_elementwise_affine` is null, but must be false"),
        (older(&format!("{zero}, \"norm_elementwise_affine\": false, \"cross_attention_dim\": 768")), "to a text"),
        (
            older(&format!("{zero}, \"norm_elementwise_affine\": false, \"attention_type\": \"gated\"")),
            "`attention_type`",
        ),
        (
            parse("{\"model_type\": \"dit\", \"depth\": 2, \"hidden_size\": 384, \"mlp_ratio\": \"four\"}"),
            "`mlp_ratio` is \"four\"",
        ),
        (parse("{\"model_type\": \"dit\", \"num_layers\": 28}"), "did you mean `depth`?"),
        (parse("{\"_class_name\": \"SD3Transformer2DModel\"}"), "key `_class_name` is \"SD3Transformer2DModel\""),
        (parse("{\"_class_name\": \"FluxTransformer2DModel\"}"), "(MM-DiT; DiT is near), which is not covered yet"),
    ];
    for (result, expected) in faults {
        let error = result.unwrap_err();
        assert!(error.contains(expected), "{error}\nlacks: {expected}");
    }
}
