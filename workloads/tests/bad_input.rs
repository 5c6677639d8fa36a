//! Bad input gives one message that names the file, the key, the value, the limit and the cure. The texts are pinned.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use coplace_workloads as workloads;
use workloads::import::hugging_face::parse_config;
use workloads::layer_list::KeyWindow;
use workloads::model::Model;
use workloads::{Lowering, TrainingGraph};

const LLAMA: &str = r#"{
  "model_type": "llama",
  "hidden_size": 4096,
  "intermediate_size": 11008,
  "num_hidden_layers": 32,
  "num_attention_heads": 32,
  "num_key_value_heads": 32,
  "max_position_embeddings": 4096,
  "vocab_size": 32000
}"#;

const GPT2: &str =
    r#"{"model_type": "gpt2", "n_embd": 1600, "n_head": 25, "n_layer": 48, "n_positions": 1024, "vocab_size": 50257}"#;

fn error(text: &str) -> String {
    parse_config("config.json", "config.json", text).unwrap_err().to_string()
}

/// Returns the error after one replacement in the Llama configuration.
fn llama(from: &str, to: &str) -> String {
    assert!(LLAMA.contains(from), "nothing to replace: {from}");
    error(&LLAMA.replacen(from, to, 1))
}

fn gpt2(from: &str, to: &str) -> String {
    assert!(GPT2.contains(from), "nothing to replace: {from}");
    error(&GPT2.replacen(from, to, 1))
}

#[test]
fn the_unchanged_configurations_are_good() {
    assert!(parse_config("config.json", "config.json", LLAMA).is_ok());
    assert!(parse_config("config.json", "config.json", GPT2).is_ok());
}

#[test]
fn a_missing_key() {
    assert_eq!(
        llama("  \"hidden_size\": 4096,\n", ""),
        "config.json: key `hidden_size` is missing, and a model of type `llama` needs it: add `\"hidden_size\": \
         <number>` with the model's own value"
    );
    assert_eq!(
        llama("\"model_type\": \"llama\",\n", ""),
        "config.json: key `model_type` is missing, and every configuration needs it: add `\"model_type\": \"llama\"` \
         with the model's own value"
    );
}

#[test]
fn a_key_given_twice_inside_a_value() {
    let error =
        llama("\"vocab_size\": 32000", "\"vocab_size\": 32000, \"rope_scaling\": {\"factor\": 2, \"factor\": 8}");
    assert!(error.contains("key `factor` is given twice"), "{error}");
}

/// Keys of the rotation's angles change no cost and are ignored. The rotated part of a head does change it.
#[test]
fn keys_of_the_rotation() {
    let with = |more: &str| {
        let text = LLAMA.replace("\"vocab_size\"", &format!("{more}, \"vocab_size\""));
        parse_config("config.json", "config.json", &text).map_err(|error| error.to_string())
    };
    let plain = parse_config("config.json", "config.json", LLAMA).unwrap();
    for angles in [
        "\"rope_theta\": -10000.0",
        "\"rope_scaling\": 7",
        "\"rope_scaling\": {\"type\": \"linear\", \"factor\": -2}",
        "\"rope_parameters\": []",
        "\"rope_parameters\": {\"rope_theta\": -1, \"partial_rotary_factor\": null}",
        "\"rope_interleaved\": \"no\"",
        "\"partial_rotary_factor\": 1",
        "\"partial_rotary_factor\": null",
    ] {
        assert_eq!(with(angles).unwrap(), plain, "{angles}");
    }
    for half in [
        "\"partial_rotary_factor\": 0.5",
        "\"rope_parameters\": {\"partial_rotary_factor\": 0.5}",
        "\"rope_scaling\": {\"partial_rotary_factor\": 0.5}",
    ] {
        assert_eq!(with(half).unwrap().variations.rotated, Some(64), "{half}");
    }
    for nonsense in ["-1", "0", "1.5", "\"half\"", "true", "[1.0]"] {
        let message = with(&format!("\"rope_scaling\": {{\"partial_rotary_factor\": {nonsense}}}")).unwrap_err();
        let start = format!(
            "config.json: key `rope_scaling.partial_rotary_factor` is {nonsense}, but must be a fraction above 0.0 \
             and up to 1.0: "
        );
        assert!(message.starts_with(&start), "{message}");
    }
}

/// Keys that decide nothing are ignored, whatever their value, and so is every option that is off.
#[test]
fn keys_that_decide_nothing() {
    let plain = parse_config("config.json", "config.json", LLAMA).unwrap();
    for more in [
        "\"transformers_version\": \"4.40.0\"",
        "\"quantization_config\": {\"bits\": 4}",
        "\"image_token_id\": 5",
        "\"eos_token_id\": [1, 2]",
        "\"initializer_range\": 0.02",
        "\"sliding_window\": null",
        "\"use_sliding_window\": false",
        "\"nothing_of_note\": null",
        "\"no_idea\": false",
        "\"a_list\": []",
        "\"some_dropout\": 0.0",
    ] {
        let text = LLAMA.replace("\"vocab_size\"", &format!("{more}, \"vocab_size\""));
        assert_eq!(parse_config("config.json", "config.json", &text).unwrap(), plain, "{more}");
    }
}

/// Features that are not modelled are named; those that would make the answer wrong are refused.
#[test]
fn keys_that_are_not_modelled() {
    let with = |more: &str| {
        let text = LLAMA.replace("\"vocab_size\"", &format!("{more}, \"vocab_size\""));
        parse_config("config.json", "config.json", &text).map_err(|error| error.to_string())
    };
    let assumed = |more: &str| with(more).unwrap().assumptions;
    assert_eq!(
        assumed("\"gate\": true, \"word\": \"a\", \"small_eps\": 1e-6"),
        ["the keys `gate` = true, `word` = \"a\", `small_eps` = 1e-6 are not known and are assumed to have no effect"]
    );
    assert_eq!(
        assumed("\"logit_scale\": 0.5"),
        ["`logit_scale` = 0.5: a factor on a tensor counts as part of the kernel before it"]
    );
    assert_eq!(
        with("\"cross_attention_layers\": [3, 8]").unwrap_err(),
        "config.json: key `cross_attention_layers` is [3,8], but must be absent or null: layers of cross attention \
         are not covered yet: give a model without"
    );
}

/// A size, a count, a list, an object or a kind that nothing reads may change the work.
#[test]
fn a_key_that_may_change_the_work_is_refused_or_ignored_as_asked() {
    let with = |more: &str| {
        let text = LLAMA.replace("\"vocab_size\"", &format!("{more}, \"vocab_size\""));
        parse_config("config.json", "config.json", &text).map_err(|error| error.to_string())
    };
    for (key, value) in [
        ("moe_latent_size", "1024"),
        ("ffn_config", "{\"ffn_type\":\"mptglu\"}"),
        ("extra_layers", "[3,8]"),
        ("mixer_type", "\"retention\""),
        ("ffn_multiplier", "1.3"),
        ("num_local_experts", "8"),
    ] {
        let given = format!("\"{key}\": {value}");
        assert_eq!(
            with(&given).unwrap_err(),
            format!(
                "config.json: unknown key `{key}` (value {value}) for a model of type `llama`: it may change the \
                 work: correct it, or take it as without effect by --assume {key}=ignored"
            )
        );
        let ignored = with(&format!("{given}, \"assume_ignored\": [\"{key}\"]")).unwrap();
        assert_eq!(ignored.assumptions, [format!("`{key}` = {value} is ignored, as was asked")]);
    }
    for wrong in ["[\"hidden_size\"]", "[\"absent\"]", "\"moe_latent_size\"", "[1]"] {
        let error = with(&format!("\"moe_latent_size\": 4, \"assume_ignored\": {wrong}")).unwrap_err();
        assert!(error.contains("a list of keys of this file that its family does not read"), "{error}");
    }
}

/// The number of experts has several names and no default.
#[test]
fn experts_are_counted_under_every_name() {
    let mixture = |experts: &str| {
        let text = LLAMA.replace("\"llama\"", "\"qwen3_moe\"").replace(
            "\"vocab_size\"",
            &format!("{experts} \"moe_intermediate_size\": 768, \"num_experts_per_tok\": 2, \"vocab_size\""),
        );
        parse_config("config.json", "config.json", &text).map_err(|error| error.to_string())
    };
    let plain = mixture("\"num_experts\": 16,").unwrap();
    assert_eq!(plain.experts.unwrap().count, 16);
    for name in ["num_local_experts", "n_routed_experts", "moe_num_experts"] {
        assert_eq!(mixture(&format!("\"{name}\": 16,")).unwrap(), plain, "{name}");
        assert_eq!(mixture(&format!("\"{name}\": 16, \"num_experts\": 16,")).unwrap(), plain, "{name}");
        let error = mixture(&format!("\"{name}\": 8, \"num_experts\": 16,")).unwrap_err();
        assert!(error.contains("equal to `num_experts` (16), another name of the same number"), "{error}");
    }
    assert!(mixture("").unwrap_err().contains("key `num_experts` is missing"));
}

/// llm-foundry's `ffn_config` describes MPT's MLP. A gated MLP has a width of its own: the model has 7.39 billion
/// parameters, and 6.05 billion with a plain MLP.
#[test]
fn the_mlp_of_mpt_is_the_one_of_its_object() {
    let mpt = |more: &str| {
        let text = format!(
            r#"{{"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "max_seq_len": 2048,
            "vocab_size": 50432, "attn_config": {{"attn_type": "grouped_query_attention", "kv_n_heads": 8,
            "alibi": false, "rope": true}}, "tie_word_embeddings": false, "learned_pos_emb": false{more}}}"#
        );
        parse_config("config.json", "config.json", &text).map_err(|error| error.to_string())
    };
    let plain = mpt("").unwrap();
    let gated =
        mpt(r#", "ffn_config": {"ffn_type": "mptglu", "ffn_act_fn": {"name": "silu"}, "ffn_hidden_size": 14336}"#);
    let gated = gated.unwrap();
    assert_eq!(gated.parameters() - plain.parameters(), 32 * (3 * 14336 - 2 * 16384) * 4096);
    let error = mpt(r#", "ffn_config": {"ffn_type": "mb_moe"}"#).unwrap_err();
    assert!(error.contains("key `ffn_config.ffn_type` is \"mb_moe\""), "{error}");
    assert!(mpt(r#", "ffn_config": {"moe_num_experts": 8}"#).unwrap_err().contains("`ffn_config.moe_num_experts`"));
}

/// DBRX's sizes are in two nested objects. A file in which one of them is empty or no object is refused.
#[test]
fn the_objects_of_dbrx_have_its_sizes() {
    let good = include_str!("transformers/dbrx.json");
    let mut file: serde_json::Value = serde_json::from_str(good).unwrap();
    assert!(parse_config("config.json", "config.json", good).is_ok());
    for key in ["attn_config", "ffn_config"] {
        for wrong in [serde_json::json!([]), serde_json::json!({}), serde_json::json!(7), serde_json::Value::Null] {
            let right = std::mem::replace(&mut file[key], wrong);
            let refused = error(&file.to_string());
            assert!(refused.contains(key) && refused.contains("an object with its sizes"), "{refused}");
            file[key] = right;
        }
    }
}

/// Qwen 2's files state a window of 0 if windows are off.
#[test]
fn a_window_of_zero_is_none() {
    for kind in ["qwen2", "qwen3", "mistral"] {
        let with = |more: &str| {
            let text = LLAMA.replace("\"llama\"", &format!("\"{kind}\"")).replace("\"vocab_size\"", more);
            parse_config("config.json", "config.json", &text).unwrap()
        };
        let none = with("\"sliding_window\": null, \"vocab_size\"");
        assert_eq!(with("\"sliding_window\": 0, \"vocab_size\""), none, "{kind}");
        assert_eq!(with("\"sliding_window\": 0, \"use_sliding_window\": false, \"vocab_size\""), none, "{kind}");
    }
}

/// Llama 4's layers with rotation see their own chunk; a wrong list or size is refused.
#[test]
fn layers_see_the_chunks_that_a_file_gives_them() {
    let llama4 = |keys: &str| {
        let text = LLAMA
            .replace("\"llama\"", "\"llama4_text\"")
            .replace("_layers\": 32", "_layers\": 4")
            .replace("_embeddings\": 4096", "_embeddings\": 131072")
            .replace(
                "\"vocab_size\"",
                &format!("\"num_local_experts\": 16, \"num_experts_per_tok\": 1, {keys} \"vocab_size\""),
            );
        parse_config("config.json", "config.json", &text).map_err(|e| e.to_string())
    };
    let chunked = |keys: &str| {
        let layers = llama4(keys).unwrap().layers_in_order();
        layers.iter().map(|kind| kind.window.map_or(0, KeyWindow::most_keys)).collect::<Vec<u64>>()
    };
    assert_eq!(chunked(""), [8192, 8192, 8192, 0]);
    assert_eq!(chunked("\"no_rope_layers\": [], \"attention_chunk_size\": 4096,"), [4096, 4096, 4096, 0]);
    assert_eq!(chunked("\"no_rope_layers\": [1, 0, 1, 0],"), [8192, 0, 8192, 0]);
    assert_eq!(chunked("\"no_rope_layer_interval\": 2,"), [8192, 0, 8192, 0]);
    assert_eq!(chunked("\"attention_chunk_size\": null,"), [0; 4]);
    assert_eq!(chunked("\"attention_chunk_size\": 131072,"), [0; 4], "no sequence is longer");
    let types = "\"chunked_attention\", \"full_attention\", \"full_attention\", \"full_attention\"";
    assert_eq!(chunked(&format!("\"layer_types\": [{types}],")), [8192, 0, 0, 0]);
    let fault = |keys: &str| llama4(keys).unwrap_err();
    for (keys, key) in [
        ("\"no_rope_layers\": 5,", "no_rope_layers"),
        ("\"no_rope_layers\": [1, 0],", "no_rope_layers"),
        ("\"no_rope_layers\": [\"a\", 1, 1, 1],", "no_rope_layers"),
    ] {
        let error = fault(keys);
        let limit = "a list of `num_hidden_layers` (4) marks, each 0 or 1";
        assert!(error.contains(key) && error.contains(limit) && error.contains("correct one of the two"), "{error}");
    }
    for size in ["\"8192\"", "-1", "8192.5", "[8192]", "true"] {
        let error = fault(&format!("\"attention_chunk_size\": {size},"));
        assert!(error.contains("attention_chunk_size") && error.contains("a whole number between 1 and"), "{error}");
    }
    // Families without chunks refuse a chunk size. They also check the form of `no_rope_layers` and
    // `no_rope_layer_interval`.
    assert!(llama("\"vocab_size\"", "\"attention_chunk_size\": 8192, \"vocab_size\"").contains("attention in chunks"));
    let listed =
        |value: &str| LLAMA.replacen("\"vocab_size\"", &format!("\"no_rope_layers\": {value}, \"vocab_size\""), 1);
    assert!(error(&listed("\"all\"")).contains("a list of `num_hidden_layers` (32) marks, each 0 or 1"));
    assert!(parse_config("m", "config.json", &listed(&format!("{:?}", [1; 32]))).is_ok());
    let every = llama("\"vocab_size\"", "\"no_rope_layer_interval\": \"four\", \"vocab_size\"");
    assert!(every.contains("no_rope_layer_interval") && every.contains("a whole number"), "{every}");
}

#[test]
fn layers_see_the_windows_that_a_file_gives_them() {
    let gemma = |keys: &str| {
        let text = LLAMA
            .replace("\"llama\"", "\"olmo3\"")
            .replace("_layers\": 32", "_layers\": 4")
            .replace("\"vocab_size\"", &format!("{keys}, \"vocab_size\""));
        parse_config("config.json", "config.json", &text).map_err(|e| e.to_string())
    };
    let windows = |keys: &str| {
        let model = gemma(keys).unwrap();
        let kinds = model.layer_kinds();
        let kinds =
            kinds.into_iter().map(|(kind, count)| (kind.window.map(KeyWindow::most_keys), count)).collect::<Vec<_>>();
        (kinds, model.layers_per_block(), model.layers)
    };
    assert_eq!(windows("\"sliding_window\": null"), (vec![(None, 4)], 1, 4));
    assert_eq!(windows("\"sliding_window\": 4096"), (vec![(None, 4)], 1, 4), "no sequence is longer");
    assert_eq!(windows("\"sliding_window\": 512"), (vec![(Some(512), 3), (None, 1)], 1, 3));
    let types = |kinds: &[&str]| {
        let list: Vec<String> = kinds.iter().map(|kind| format!("\"{kind}_attention\"")).collect();
        format!("\"sliding_window\": 512, \"layer_types\": [{}]", list.join(", "))
    };
    assert_eq!(windows(&types(&["full", "sliding", "full", "sliding"])), (vec![(None, 2), (Some(512), 2)], 2, 2));
    assert_eq!(windows(&types(&["sliding"; 4])), (vec![(Some(512), 4)], 1, 4));
    let fault = |keys: &str| gemma(keys).unwrap_err();
    assert!(
        fault(&types(&["full"; 3]))
            .ends_with("must be a list of `num_hidden_layers` (4) entries: it has 3: correct one of the two")
    );
    assert!(fault(&types(&["full", "linear", "full", "full"])).contains("other kinds of layers are not covered"));
}

#[test]
fn a_text_model_inside_another() {
    let inner = LLAMA.replace("\n", "");
    let text = format!(
        r#"{{"model_type": "llava", "vision_config": {{"hidden_size": 1024}}, "tie_word_embeddings": true, "text_config": {inner}}}"#
    );
    let model = parse_config("config.json", "config.json", &text).unwrap();
    let plain = parse_config("config.json", "config.json", LLAMA).unwrap();
    assert!(model.tied_head && !plain.tied_head, "the outer key holds where the inner has none");
    assert_eq!(
        model.assumptions,
        ["only the text model of the llava, `text_config`, is trained: its other parts are left out (`vision_config`)"]
    );
    assert_eq!(workloads::Model { tied_head: false, assumptions: Vec::new(), ..model }, plain);
    assert_eq!(
        error(r#"{"model_type": "llava", "text_config": {"model_type": "llama"}}"#),
        "config.json, `text_config`: key `hidden_size` is missing, and a model of type `llama` needs it: add \
         `\"hidden_size\": <number>` with the model's own value"
    );
}

#[test]
fn an_unknown_key() {
    assert_eq!(
        llama("num_hidden_layers", "num_hiden_layers"),
        "config.json: unknown key `num_hiden_layers` (value 32) for a model of type `llama`: did you mean \
         `num_hidden_layers`?"
    );
    assert_eq!(
        gpt2("n_embd", "hidden_size"),
        "config.json: unknown key `hidden_size` (value 1600) for a model of type `gpt2`: did you mean `n_embd`?"
    );
}

#[test]
fn a_negative_zero_absurd_fractional_or_quoted_dimension() {
    for (value, shown) in [
        ("-4096", "-4096"),
        ("0", "0"),
        ("4000000000", "4000000000"),
        ("1e30", "1e+30"),
        ("64.5", "64.5"),
        ("\"4096\"", "\"4096\""),
        ("true", "true"),
    ] {
        assert_eq!(
            llama("\"hidden_size\": 4096", &format!("\"hidden_size\": {value}")),
            format!(
                "config.json: key `hidden_size` is {shown}, but must be a whole number between 1 and 1048576: \
                 write the model's own value, without quotes"
            )
        );
    }
}

#[test]
fn not_a_number() {
    assert_eq!(
        llama("\"hidden_size\": 4096", "\"hidden_size\": NaN"),
        "config.json, line 3: not valid JSON (expected value), at `\"hidden_size\": NaN,`: write an ordinary number; \
         JSON has no NaN and no infinity"
    );
}

#[test]
fn a_truncated_file() {
    assert_eq!(
        error(&LLAMA[..100]),
        "config.json, line 5: not valid JSON (EOF while parsing a string): the file ends before the object does; is \
         it truncated? fetch it again"
    );
    assert_eq!(
        error(""),
        "config.json, line 1: not valid JSON (EOF while parsing a value): the file ends before the object does; is it \
         truncated? fetch it again"
    );
}

#[test]
fn something_else_than_an_object() {
    assert_eq!(
        error("[1, 2]"),
        "config.json, line 1: not valid JSON (invalid type: sequence, expected an object of keys and values), at `[1, \
         2]`: mend that line"
    );
}

#[test]
fn a_key_given_twice() {
    assert_eq!(
        llama("\"vocab_size\"", "\"hidden_size\": 4096, \"vocab_size\""),
        "config.json: key `hidden_size` is given more than once (the limit is once): keep the value that is meant and \
         delete the others"
    );
}

#[test]
fn an_unknown_family() {
    // The error lists the families that `coplace list models` shows.
    let families: Vec<&str> =
        workloads::import::hugging_face::family_coverage().into_iter().flat_map(|family| family.model_types).collect();
    assert!(families.len() > 70);
    for (given, cure) in [
        ("lama", "did you mean \"llama\"?"),
        ("minstral", "did you mean \"ministral\"?"),
        // Another version is no misspelling.
        ("qwen9", "give a model of one of these families"),
        ("colour", "give a model of one of these families"),
        (
            "deberta-v2",
            "it needs relative positions in the scores, which is not covered yet: give a model of one of these \
             families",
        ),
    ] {
        let error = llama("\"llama\"", &format!("\"{given}\""));
        let start = format!("config.json: key `model_type` is \"{given}\", but must be one of ");
        let listed = error.strip_prefix(&start).and_then(|rest| rest.strip_suffix(&format!(": {cure}")));
        let mut listed: Vec<&str> = listed.unwrap_or_else(|| panic!("{error}")).split(", ").collect();
        let mut known = families.clone();
        listed.sort_unstable();
        known.sort_unstable();
        assert_eq!(listed, known);
    }
    assert_eq!(
        llama("\"llama\"", "7"),
        "config.json: key `model_type` is 7, but must be a string: write for instance \
        \"llama\""
    );
}

#[test]
fn heads_that_do_not_divide() {
    assert_eq!(
        gpt2("\"n_head\": 25", "\"n_head\": 24"),
        "config.json: key `n_head` is 24, but must be a divisor of `n_embd` (1600): use 20, 25 or change `n_embd`"
    );
    assert_eq!(
        llama("\"num_key_value_heads\": 32", "\"num_key_value_heads\": 5"),
        "config.json: key `num_key_value_heads` is 5, but must be a divisor of `num_attention_heads` (32): use 4, 8 \
         or change `num_attention_heads`"
    );
    assert_eq!(
        llama("\"num_key_value_heads\": 32", "\"num_key_value_heads\": 64"),
        "config.json: key `num_key_value_heads` is 64, but must be a divisor of `num_attention_heads` (32): use 32 or \
         change `num_attention_heads`"
    );
    // If the file states the head dimension, the number of heads need not divide the width.
    let own = LLAMA
        .replacen("\"num_attention_heads\": 32", "\"head_dim\": 128, \"num_attention_heads\": 24", 1)
        .replacen("\"num_key_value_heads\": 32", "\"num_key_value_heads\": 8", 1);
    assert_eq!(parse_config("m", "config.json", &own).unwrap().query_width(), 3072);
}

#[test]
fn values_of_other_kinds() {
    assert_eq!(
        gpt2("\"n_head\"", "\"attn_pdrop\": 1.0, \"n_head\""),
        "config.json: key `attn_pdrop` is 1.0, but must be a probability at least 0 and below 1: write 0.0 for none, \
         or for instance 0.1"
    );
    assert_eq!(
        llama("\"vocab_size\"", "\"mlp_bias\": \"no\", \"vocab_size\""),
        "config.json: key `mlp_bias` is \"no\", but must be true or false: write true or false, without quotes"
    );
    assert!(llama("\"vocab_size\"", "\"hidden_act\": \"silo\", \"vocab_size\"").ends_with("did you mean \"silu\"?"));
    assert_eq!(
        gpt2("\"n_head\"", "\"n_ctx\": 512, \"n_head\""),
        "config.json: key `n_ctx` is 512, but must be `n_positions` (1024): both state the longest sequence: remove \
         n_ctx or make them equal"
    );
    assert_eq!(
        gpt2("\"n_head\"", "\"add_cross_attention\": true, \"n_head\""),
        "config.json: key `add_cross_attention` is true, but must be false: cross-attention is not supported: set it \
         to false or give a model without it"
    );
}

#[test]
fn an_unknown_model() {
    assert_eq!(
        Model::load("lama2_7b").unwrap_err().to_string(),
        "unknown model `lama2_7b`: neither a built-in model nor a file; did you mean `llama2-7b`? Built in: \
         bert-large, dbrx, deepseek-v2-lite, deepseek-v3.2, deepseek-v3, falcon-40b, falcon-7b, gemma-2-9b, \
         gemma-3-27b, glm-4.5-air, glm-4.5, glm-4.6, gpt-oss-120b, gpt-oss-20b, gpt2-xl, gpt3-175b, grok-1, \
         kimi-k2, llama-nemotron-super-49b, llama-nemotron-ultra-253b, llama2-13b, llama2-70b, llama2-7b, \
         llama3-70b, llama3-8b, llama3.1-405b, llama3.1-70b, llama3.1-8b, llama3.2-1b, llama3.2-3b, \
         llama4-maverick, llama4-scout, megatron-bert, megatron-gpt2-54, megatron-gpt2-72, megatron-gpt2-xl, \
         minimax-m2, minimax-text-01, mistral-7b, mixtral-8x22b, mixtral-8x7b, nemotron-3-nano-30b-a3b, \
         nemotron-3-super-120b-a12b, nemotron-h-8b, olmo-2-7b, opt-350m, phi-1.5, phi-4, qwen2.5-72b, \
         qwen2.5-7b, qwen3-235b-a22b, qwen3-30b-a3b, qwen3-32b, qwen3-8b, qwen3-coder-480b-a35b, \
         qwen3-next-80b-a3b, stablelm-alpha-3b, stablelm-alpha-7b; or give the path of a config.json"
    );
    assert!(Model::load("no/such/file.json").unwrap_err().to_string().starts_with("unknown model `no/such/file.json`"));
}

#[test]
fn a_file_that_cannot_be_read() {
    let folder = std::env::temp_dir();
    let text = Model::load_file(&folder.join("no-such-folder").join("config.json")).unwrap_err().to_string();
    assert!(text.ends_with(": give the path of a readable config.json"), "{text}");
}

fn lowering_error(model: &str, change: impl Fn(Lowering) -> Lowering) -> String {
    let model = Model::load(model).unwrap();
    TrainingGraph::new(&model, &change(Lowering::new(&model))).unwrap_err().to_string()
}

#[test]
fn a_split_that_the_model_does_not_allow() {
    assert_eq!(
        lowering_error("gpt2-xl", |l| Lowering { tensor_parallel: 8, ..l }),
        "gpt2-xl: the tensor-parallel degree is 8, but must be a divisor of the 25 heads: the nearest degree that \
         this model allows is 5 or 25"
    );
    assert_eq!(
        lowering_error("llama3-8b", |l| Lowering { tensor_parallel: 64, ..l }),
        "llama3-8b: the tensor-parallel degree is 64, but must be a divisor of the 32 heads: the nearest degree that \
         this model allows is 32"
    );
    assert_eq!(
        lowering_error("llama2-7b", |l| Lowering { tensor_parallel: 0, ..l }),
        "llama2-7b: the tensor-parallel degree is 0, but must be between 1 and 65536: give the devices of one group, \
         1 to 64 in practice"
    );
    assert_eq!(
        lowering_error("llama2-7b", |l| Lowering {
            tensor_parallel: 8,
            sequence_parallel: true,
            sequence_length: 4097,
            ..l
        }),
        "llama2-7b: the sequence length under sequence parallelism is 4097, but must be a multiple of the \
         tensor-parallel degree 8: use 4096 or 4104, or switch sequence parallelism off"
    );
}

#[test]
fn a_micro_batch_or_sequence_out_of_range() {
    assert_eq!(
        lowering_error("llama2-7b", |l| Lowering { micro_batch: 0, ..l }),
        "llama2-7b: the micro-batch is 0, but must be between 1 and 1048576: give the sequences of one micro-batch, 1 \
         to 64 in practice"
    );
    assert_eq!(
        lowering_error("gpt2-xl", |l| Lowering { sequence_length: 4096, ..l }),
        "gpt2-xl: the sequence length is 4096, but must be between 1 and 1024: its table of learned positions ends \
         there: train on shorter sequences"
    );
    let model = Model::load("llama2-7b").unwrap();
    assert!(TrainingGraph::new(&model, &Lowering { sequence_length: 32_768, ..Lowering::new(&model) }).is_ok());
}

#[test]
fn the_largest_model_that_the_limits_allow_does_not_overflow() {
    let text = r#"{"model_type": "llama", "hidden_size": 1048576, "intermediate_size": 16777216, "num_hidden_layers": 4096,
        "num_attention_heads": 65536, "head_dim": 1048576, "max_position_embeddings": 16777216, "vocab_size": 16777216}"#;
    let model = parse_config("huge", "huge", text).unwrap();
    let lowering = Lowering { micro_batch: 1 << 20, ..Lowering::new(&model) };
    let graph = TrainingGraph::new(&model, &lowering).unwrap();
    assert_eq!(graph.segments[1].saved_bytes(&workloads::RecomputeSet::none()).0, u64::MAX, "saturated: fits nowhere");
    assert!(graph.kernel_flops().0 > 1 << 110);
    assert!(model.parameters() > 1 << 60);
}

/// Lists and numbers of layers that contradict each other are refused. So are a layer index that is no number, a
/// missing number of experts, and too many shared experts.
#[test]
fn lists_of_layers_agree_with_each_other() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/transformers");
    let changed = |name: &str, old: &str, new: &str| {
        let text = std::fs::read_to_string(format!("{folder}/{name}.json")).unwrap();
        assert!(text.contains(old), "{name}: {old}");
        parse_config(name, "config.json", &text.replacen(old, new, 1)).map_err(|error| error.to_string())
    };
    let with = |name: &str, more: &str| changed(name, "{", &format!("{{{more},"));
    assert!(with("nemotron_h", "\"hybrid_override_pattern\":\"ME*E-M*E\"").is_ok());
    let error = with("nemotron_h", "\"hybrid_override_pattern\":\"ME*E-M**\"").unwrap_err();
    assert!(error.contains("`hybrid_override_pattern`") && error.contains("the layers of `layers_block_type`"));
    assert!(with("glm4_moe_lite", "\"first_k_dense_replace\":1").is_ok());
    let error = with("glm4_moe_lite", "\"first_k_dense_replace\":2").unwrap_err();
    assert!(error.contains("the number of leading \"dense\" layers in `mlp_layer_types` (1)"), "{error}");
    assert!(changed("ernie4_5_moe", "\"moe_layer_end_index\":7", "\"moe_layer_end_index\":-1").is_ok());
    let error = changed("ernie4_5_moe", "\"moe_layer_end_index\":7", "\"moe_layer_end_index\":\"7\"").unwrap_err();
    assert!(error.contains("`moe_layer_end_index`"), "{error}");
    let error = changed("glm4_moe", "\"n_routed_experts\":16,", "").unwrap_err();
    assert!(error.contains("key `n_routed_experts` is missing"), "{error}");
    let error = with("hunyuan_v1_moe", "\"num_shared_expert\":8192").unwrap_err();
    assert!(error.contains("`n_shared_experts` is 8192"), "{error}");
}

/// Returns a published file of `tests/configs` or of `tests/transformers` with one more key, or another value of one.
fn with_key(file: &str, key: &str, value: &str) -> Result<Model, String> {
    let path = format!("{}/tests/{file}.json", env!("CARGO_MANIFEST_DIR"));
    let mut object: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    object.insert(key.to_owned(), serde_json::from_str(value).unwrap());
    let text = serde_json::to_string(&object).unwrap();
    parse_config("config.json", "config.json", &text).map_err(|error| error.to_string())
}

/// Asserts that a published file with this value is refused by key, value and limit.
fn assert_refused(file: &str, key: &str, value: &str, limit: &str) {
    let error = with_key(file, key, value).expect_err(key);
    let said = format!("config.json: key `{key}` is {value}, but must be {limit}");
    assert!(error.starts_with(&said), "{file}: {error}\nnot: {said}");
}

/// `feed_forward_proj` states the MLP of T5's family. An unknown value is refused; it does not mean an ungated MLP.
#[test]
fn the_mlp_of_t5_is_named_or_refused() {
    let gated = "\"relu\", \"gated-gelu\" or \"gated-silu\"";
    for file in ["transformers/umt5", "transformers/mt5", "transformers/t5", "configs/flan_t5_base"] {
        for value in ["3", "true", "[\"gated-gelu\"]", "\"gated-tanh\""] {
            assert_refused(file, "feed_forward_proj", value, gated);
        }
        assert_refused(file, "feed_forward_proj", "null", "a name");
        assert_refused(file, "relative_attention_max_distance", "-2", "a whole number");
        assert_refused(file, "is_gated_act", "\"no\"", "true or false");
    }
    assert_refused("transformers/umt5", "is_gated_act", "false", "true");
    assert_refused("transformers/t5", "is_gated_act", "true", "false");
    assert_refused("transformers/umt5", "dense_act_fn", "\"relu\"", "the nonlinearity of \"gated-gelu\"");
    // Without `feed_forward_proj`, transformers builds an ungated MLP for T5 and a gated one for the other families.
    let omitted = LINE_OF_FEED.map(|(file, feed)| {
        let path = format!("{}/tests/transformers/{file}.json", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.contains(feed));
        parse_config("config.json", "config.json", &text.replace(feed, "")).unwrap().gated
    });
    assert_eq!(omitted, [false, true, true]);
}

const LINE_OF_FEED: [(&str, &str); 3] = [
    ("t5", "\"feed_forward_proj\":\"relu\","),
    ("mt5", "\"feed_forward_proj\":\"gated-gelu\","),
    ("umt5", "\"feed_forward_proj\":\"gated-gelu\","),
];

/// A file for only one side of an encoder-decoder, or for a form that transformers does not build, is refused.
#[test]
fn a_side_alone_or_another_form_is_refused() {
    for family in ["bart", "mbart", "pegasus", "marian", "m2m_100", "blenderbot", "mt5", "t5", "umt5", "whisper"] {
        let file = format!("transformers/{family}");
        assert_refused(&file, "is_encoder_decoder", "false", "true");
        assert_refused(&file, "is_encoder_decoder", "\"banana\"", "true or false");
        for value in [
            "[\"BartForCausalLM\"]",
            "[\"T5EncoderModel\"]",
            "[\"BartForSequenceClassification\"]",
            "\"BartModel\"",
            "[3]",
        ] {
            assert_refused(&file, "architectures", value, "a list of classes with an encoder and a decoder");
        }
        assert_refused(&file, "scale_embedding", "\"maybe\"", "true or false");
    }
    for (file, key, value) in [
        ("bart", "normalize_embedding", "false"),
        ("marian", "normalize_embedding", "true"),
        ("mbart", "add_final_layer_norm", "false"),
        ("mbart", "normalize_before", "false"),
        ("bart", "add_bias_logits", "true"),
    ] {
        let other = if value == "true" { "false" } else { "true" };
        assert_refused(&format!("transformers/{file}"), key, value, other);
        assert!(with_key(&format!("transformers/{file}"), key, other).is_ok(), "{file} {key}");
    }
}

#[test]
fn codegens_own_keys_are_checked() {
    for (key, value, limit) in [
        ("rotary_dim", "3", "an even number"),
        ("activation_function", "null", "a name"),
        ("scale_attn_weights", "\"x\"", "true or false"),
    ] {
        assert_refused("transformers/codegen", key, value, limit);
    }
}

/// A key of the text model may also be outside the text model's object, but only with the object's value.
#[test]
fn outer_keys_that_contradict_the_text_model_are_refused() {
    let text = |outer: &str| {
        let inner = LLAMA.replace('\n', "");
        parse_config("c", "c", &format!(r#"{{"model_type": "llava", {outer}, "text_config": {inner}}}"#))
            .map_err(|error| error.to_string())
    };
    for outer in ["\"num_hidden_layers\": 2", "\"attention_chunk_size\": \"x\"", "\"layer_types\": [\"banana\"]"] {
        let error = text(outer).unwrap_err();
        assert!(error.contains("the text model is read from `text_config`"), "{error}");
    }
    for outer in ["\"num_hidden_layers\": 32", "\"image_size\": 336", "\"vision_feature_layer\": -2"] {
        assert!(text(outer).is_ok(), "{outer}");
    }
}

/// A list of numbers in `layer_types` is refused; it does not count as an empty list.
#[test]
fn a_list_of_numbers_names_no_layers() {
    let list = format!("[{}]", ["1"; 8].join(","));
    assert_refused("transformers/gemma3_text", "layer_types", &list, "a list of \"");
}
