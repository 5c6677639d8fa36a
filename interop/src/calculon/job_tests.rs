#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use super::*;

const MODEL: &str = include_str!("../../tests/calculon/model.json");
const EXECUTION: &str = include_str!("../../tests/calculon/execution.json");

fn application() -> CalculonApplication {
    CalculonApplication::from_json_str(MODEL, "model.json").unwrap()
}

fn changed(text: &str, changes: &[(&str, serde_json::Value)]) -> String {
    let mut json: serde_json::Value = serde_json::from_str(text).unwrap();
    for (key, value) in changes {
        if value.is_null() {
            json.as_object_mut().unwrap().remove(*key)
        } else {
            json.as_object_mut().unwrap().insert((*key).to_owned(), value.clone())
        };
    }
    json.to_string()
}

fn execution(changes: &[(&str, serde_json::Value)]) -> CalculonExecution {
    CalculonExecution::from_json_str(&changed(EXECUTION, changes), "run.json").unwrap()
}

fn refused(changes: &[(&str, serde_json::Value)]) -> String {
    CalculonExecution::from_json_str(&changed(EXECUTION, changes), "run.json").unwrap_err().to_string()
}

#[test]
fn a_block_has_the_weights_that_calculon_counts() {
    let (app, model) = (application(), application().to_model(VOCABULARY, false));
    let (h, f, a) = (app.hidden, app.feedforward, app.attn_heads * app.attn_size);
    let block = 2 * h * f + 4 * h * a + (h + f) + (3 * a + h) + 4 * h;
    // Calculon's count leaves out the final norm (2 h), which the model here has.
    assert_eq!(model.parameters(), app.num_blocks * block + (VOCABULARY + app.seq_size) * h + 2 * h);
    let shared = app.to_model(VOCABULARY, true);
    let saved = 2 * (app.attn_heads - 1) * app.attn_size * (h + 1);
    assert_eq!(model.parameters() - shared.parameters(), app.num_blocks * saved);
}

#[test]
fn options_are_read_as_what_they_mean_here() {
    let run = execution(&[]);
    let layout = run.to_layout();
    assert_eq!((layout.tensor, layout.pipeline, layout.data, layout.virtual_stages), (4, 2, 2, 2));
    assert_eq!((layout.sequence_parallel, layout.zero), (true, ZeroStage::OptimizerStates));
    assert_eq!(run.to_batch(&application()), Batch { micro_batch: 2, global_batch: 64, sequence_length: 1024 });
    assert_eq!((run.networks, run.activation_policy()), ([0, 1, 1], ActivationPolicy::Selective));
    assert_eq!((run.number_formats().operand, run.number_formats().master), (DataType::Fp16, Some(DataType::Fp32)));
    let plain = execution(&[
        ("optimizer_sharding", false.into()),
        ("tensor_par_comm_type", "ar".into()),
        ("seq_par_ag_redo", false.into()),
    ]);
    assert_eq!((plain.to_layout().sequence_parallel, plain.to_layout().zero), (false, ZeroStage::None));
    assert!(plain.describe_differences().iter().any(|line| line.starts_with("tensor_par_comm_type ar")));
    let offloaded = execution(&[
        ("activation_recompute", "full".into()),
        ("activations_offload", true.into()),
        ("seq_par_ag_redo", false.into()),
    ]);
    assert_eq!(offloaded.activation_policy().to_string(), "custom:offload(decoder_layer_input)");
    assert!(run.check_against_application(&application()).is_ok());
}

#[test]
fn broken_rules_name_key_value_limit_and_cure() {
    let cases: [(&[(&str, serde_json::Value)], &str); 16] = [
        (
            &[("num_procs", 12.into())],
            "num_procs = 12: must be tensor_par x pipeline_par x data_par = 4 x 2 x 2 = 16; write 16, or change a \
             degree",
        ),
        (
            &[("batch_size", 66.into())],
            "batch_size = 66: must be a multiple of data_par x microbatch_size = 2 x 2 = 4; write 64 or 68",
        ),
        (&[("tensor_par", (-4).into())], "tensor_par = -4: must be a whole number between 1 and 1048576; correct it"),
        (&[("tensor_par", "4".into())], "tensor_par = \"4\": must be a whole number between 1 and 1048576; correct it"),
        (&[("training", serde_json::Value::Null)], "training = nothing: this key is needed; add it"),
        (&[("training", "yes".into())], "training = \"yes\": must be true or false; write it without quotes"),
        (&[("training", false.into())], "training = false: must be true; inference is not modelled: write true"),
        (
            &[("weight_offload", true.into())],
            "weight_offload = true: must be false; weights in the second memory are not modelled: write false",
        ),
        (
            &[("activations_offload", true.into())],
            "activations_offload = true: needs activation_recompute \"full\": only block inputs can go to the second \
             memory here; write false, or recompute in full",
        ),
        (
            &[("datatype", "int4".into())],
            "datatype = \"int4\": must be one of float16, bfloat16, float8, float32; correct it",
        ),
        (
            &[("activation_recompute", "half".into())],
            "activation_recompute = \"half\": must be one of none, attn_only, full; correct it",
        ),
        (
            &[("data_par", 1.into()), ("num_procs", 8.into()), ("data_par_overlap", false.into())],
            "optimizer_sharding = true: needs data_par of at least 2; write false, or raise data_par",
        ),
        (
            &[("pipeline_par", 1.into()), ("num_procs", 8.into())],
            "pipeline_interleaving = 2: must be 1 without a pipeline; write 1, or pipeline_par of at least 2",
        ),
        (
            &[("tensor_par_comm_type", "ar".into())],
            "seq_par_ag_redo = true: needs tensor_par_comm_type \"rs_ag\" and activation_recompute other than \
             \"full\"; write false",
        ),
        (
            &[("tensor_par", 1.into()), ("num_procs", 4.into())],
            "tensor_par_overlap = true: needs tensor_par of at least 2; write \"none\", or raise tensor_par",
        ),
        (&[("tensor_par_network", 0.into())], "tensor_par_network = 0: is not a key; there are num_procs, "),
    ];
    for (changes, expected) in cases {
        let error = refused(changes);
        assert!(error.starts_with(&format!("run.json: {expected}")), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn what_does_not_divide_is_refused_by_file_and_width() {
    let check = |model: &[(&str, serde_json::Value)], run: &[(&str, serde_json::Value)]| {
        let app = CalculonApplication::from_json_str(&changed(MODEL, model), "model.json").unwrap();
        execution(run).check_against_application(&app).unwrap_err().to_string()
    };
    assert_eq!(
        check(&[("hidden", 2046.into())], &[]),
        "run.json: tensor_par = 4: must divide the hidden 2046 of model.json; write 2, or change the application"
    );
    assert_eq!(
        check(&[("attn_heads", 6.into())], &[]),
        "run.json: tensor_par = 4: must divide the attn_heads 6 of model.json; write 2, or change the application"
    );
    let blocks = check(&[("num_blocks", 9.into())], &[]);
    assert!(
        blocks.starts_with(
            "run.json: pipeline_interleaving = 2: pipeline_par x pipeline_interleaving = 4 must divide the 9 num_blocks"
        ),
        "{blocks}"
    );
    assert!(blocks.ends_with("; use pipeline_interleaving = 1"), "{blocks}");
    let error = |changes: &[(&str, serde_json::Value)]| {
        CalculonApplication::from_json_str(&changed(MODEL, changes), "model.json").unwrap_err().to_string()
    };
    assert_eq!(
        error(&[("hidden", (-1).into())]),
        "model.json: hidden = -1: must be a whole number between 1 and 1048576; correct it"
    );
    assert!(
        error(&[("vocabulary", 7.into())]).starts_with("model.json: vocabulary = 7: is not a key; there are hidden, ")
    );
    assert_eq!(
        error(&[("num_blocks", serde_json::Value::Null)]),
        "model.json: num_blocks = nothing: this key is needed; add it"
    );
}
