//! Heads by the class that `architectures` names: their parameters and operations, and classes that are refused.

#![allow(clippy::unwrap_used, missing_docs)]

use coplace_workloads as workloads;
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use workloads::import::hugging_face::parse_config;
use workloads::training::Attention;
use workloads::variations::HeadTokens;
use workloads::{Lowering, Model, TrainingGraph};

/// Configurations with a head of each kind on each kind of model.
const HEADS: [&str; 20] = [
    "bert_choices",
    "bert_classes",
    "bert_next_sentence",
    "bert_questions",
    "bert_tokens",
    "bert_vectors",
    "clip_text_vectors",
    "clip_vision_vectors",
    "gpt2_classes",
    "llama_questions",
    "llama_tokens",
    "llama_vectors",
    "megatron_bert_tokens",
    "modernbert_choices",
    "modernbert_classes",
    "modernbert_tokens",
    "modernbert_vectors",
    "opt_narrow_classes",
    "roberta_classes",
    "vit_vectors",
];

fn read_object(file: &str) -> Map<String, Value> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/{file}.json"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn parse(object: &Map<String, Value>) -> Result<Model, String> {
    let text = serde_json::to_string(object).unwrap();
    parse_config("config.json", "config.json", &text).map_err(|error| error.to_string())
}

fn with_values(file: &str, pairs: &[(&str, Value)]) -> Result<Model, String> {
    let mut object = read_object(file);
    object.extend(pairs.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
    parse(&object)
}

fn load(name: &str) -> Model {
    parse(&read_object(&format!("transformers/{name}"))).unwrap()
}

/// The parameters of the whole and of the split graph sum to those of the closed form. Unfused kernels do the
/// operations of the closed form.
#[test]
fn heads_have_the_parameters_and_operations_of_the_closed_form() {
    for name in HEADS {
        let model = load(name);
        let sequence_length = model.max_sequence.min(256);
        let whole = Lowering { sequence_length, micro_batch: 2, ..Lowering::new(&model) };
        let graph = TrainingGraph::new(&model, &Lowering { attention: Attention::Unfused, ..whole }).unwrap();
        assert_eq!(graph.parameters().per_device_count(), model.parameters(), "{name}");
        assert_eq!(graph.kernel_flops(), model.training_flops(2, sequence_length, model.vocabulary), "{name}");
        for sequence_parallel in [false, true] {
            let split =
                Lowering { tensor_parallel: 2, sequence_parallel, sequence_length: sequence_length / 2 * 2, ..whole };
            let Ok(graph) = TrainingGraph::new(&model, &split) else {
                assert!(model.variations.patches.is_some() || sequence_parallel, "{name}");
                continue;
            };
            let parts = graph.parameters();
            assert_eq!(2 * (parts.sharded + parts.expert) + parts.replicated, model.parameters(), "{name}");
        }
    }
}

/// A head on one token runs its products once per sequence. A head on all tokens runs them for each token.
#[test]
fn heads_on_all_tokens_cost_as_many_times_as_there_are_tokens() {
    let operations = |name: &str| load(name).training_flops(1, 512, 32_768).0;
    let without = operations("bert_vectors") - 6 * 1024 * 1024;
    assert_eq!(operations("bert_classes") - without, 6 * (1024 * 1024 + 5 * 1024));
    assert_eq!(operations("bert_tokens") - without, 6 * 512 * 9 * 1024);
    assert_eq!(operations("bert_questions") - without, 6 * 512 * 2 * 1024);
}

/// A head has as many outputs as the file has labels, and two if the file has no labels.
#[test]
fn labels_are_counted_or_refused() {
    let outputs = |pairs: &[(&str, Value)]| {
        with_values("transformers/bert_tokens", pairs).map(|model| model.variations.task_head.unwrap())
    };
    let head = outputs(&[]).unwrap();
    assert_eq!((head.outputs, head.tokens), (9, HeadTokens::Every));
    assert_eq!(outputs(&[("id2label", Value::Null)]).unwrap().outputs, 2);
    assert_eq!(outputs(&[("id2label", Value::Null), ("num_labels", json!(7))]).unwrap().outputs, 7);
    for (pairs, said) in [
        (vec![("num_labels", json!(7))], "the number of names in `id2label` (9)"),
        (vec![("id2label", json!(["a", "b"]))], "an object with a name for each class"),
        (vec![("id2label", Value::Null), ("num_labels", json!("two"))], "a whole number between 1"),
    ] {
        let error = outputs(&pairs).unwrap_err();
        assert!(error.contains(said), "{error}");
    }
}

/// A class that is not covered is refused by name, and the suggested cure works.
#[test]
fn classes_that_are_not_covered_are_refused() {
    for (file, class) in [
        ("transformers/bert", "BertForPreTraining"),
        ("transformers/bert", "BertForSomethingNew"),
        ("transformers/modernbert", "ModernBertForNextSentencePrediction"),
        ("transformers/llama", "LlamaForMultipleChoice"),
        ("transformers/llama", "LlamaForCausalLMEagle3"),
        ("transformers/qwen2", "Qwen2ForRewardModel"),
        ("transformers/gpt2", "GPT2DoubleHeadsModel"),
        ("transformers/mixtral", "MixtralForImageClassification"),
        ("configs/vit_base_patch16_224", "ViTForMaskedImageModeling"),
        ("transformers/clip_text_vectors", "CLIPForImageClassification"),
        ("transformers/t5", "T5ForTokenClassification"),
        ("transformers/bart", "BartForSequenceClassification"),
        ("transformers/bart", "BartForQuestionAnswering"),
        ("transformers/whisper", "WhisperForAudioClassification"),
    ] {
        let error = with_values(file, &[("architectures", json!([class]))]).unwrap_err();
        for said in ["`architectures`", class, "--assume architectures=ignored"] {
            assert!(error.contains(said), "{error}");
        }
        let ignored = ("assume_ignored", json!(["architectures"]));
        let model = with_values(file, &[("architectures", json!([class])), ignored.clone()]).unwrap();
        assert!(model.assumptions.iter().any(|said| said.contains("is ignored, as was asked")), "{file}");
        let own = with_values(file, &[("architectures", Value::Null)]).unwrap();
        assert_eq!(model.parameters(), own.parameters(), "{file}");
    }
    for (value, said) in [
        (json!("LlamaModel"), "a list of names of classes"),
        (json!([3]), "a list of names of classes"),
        (json!(["LlamaForCausalLM", "LlamaForSequenceClassification"]), "classes with one kind of head"),
    ] {
        let error = with_values("transformers/llama", &[("architectures", value)]).unwrap_err();
        assert!(error.contains(said), "{error}");
    }
}

/// A model whose class has no head notes in its assumptions what is trained instead.
#[test]
fn a_model_without_a_head_says_what_it_trains() {
    for name in ["bert_vectors", "llama_vectors", "qwen3_vectors", "vit_vectors"] {
        let model = load(name);
        assert!(model.assumptions.iter().any(|said| said.contains("the class has no head")), "{name}");
    }
    let bart = with_values("transformers/bart", &[("architectures", json!(["BartModel"]))]).unwrap();
    assert!(bart.assumptions.iter().any(|said| said.contains("with its family's logits")));
}

/// Transformers writes `encoder_stride` for every ViT, but only the class for masked images reads it, so it changes
/// nothing. A `pooler_output_size` that differs from the hidden size is refused.
#[test]
fn a_stride_of_masked_images_changes_nothing() {
    let vit = read_object("transformers/vit_classes");
    assert_eq!(vit["encoder_stride"], 16);
    let error = with_values("transformers/vit_vectors", &[("pooler_output_size", json!(512))]).unwrap_err();
    assert!(error.contains("`pooler_output_size`") && error.contains("`hidden_size` (1024)"), "{error}");
}

/// The class of the whole model counts, for its text part too.
#[test]
fn the_text_part_has_the_head_of_the_whole_model() {
    let mut text = read_object("transformers/llama");
    let whole = |class: &str, text: &Map<String, Value>| {
        let object = json!({"model_type": "llava", "architectures": [class], "text_config": text});
        parse(object.as_object().unwrap())
    };
    let head = |model: Model| model.variations.task_head;
    assert_eq!(head(whole("LlavaForConditionalGeneration", &text).unwrap()), None);
    assert!(head(whole("LlavaModel", &text).unwrap()).unwrap().without_product);
    assert!(whole("LlavaForRetrieval", &text).unwrap_err().contains("LlavaForRetrieval"));
    text.remove("architectures");
    assert!(head(whole("LlavaForSequenceClassification", &text).unwrap()).is_some());
}

/// Keys and parts outside the text model's object are named in an assumption. A key for a feature that no family covers
/// is refused, as it is inside the object.
#[test]
fn parts_beside_the_text_model_are_named_or_refused() {
    let text = read_object("transformers/llama");
    let whole = |key: &str, value: Value| {
        let mut object = json!({"model_type": "llava", "text_config": text, "vision_config": {"hidden_size": 1024}});
        object.as_object_mut().unwrap().insert(key.to_owned(), value);
        parse(object.as_object().unwrap())
    };
    let said = |key: &str, value: Value| whole(key, value).unwrap().assumptions[0].clone();
    assert_eq!(
        said("mm_tokens_per_image", json!(256)),
        "only the text model of the llava, `text_config`, is trained: its other parts are left out \
         (`mm_tokens_per_image` = 256, `vision_config`)"
    );
    let activation = said("projector_hidden_act", json!("gelu"));
    assert!(activation.ends_with("(`projector_hidden_act` = \"gelu\", `vision_config`)"), "{activation}");
    assert!(said("image_token_index", json!(3)).ends_with("(`vision_config`)"));
    let error = whole("lora_rank", json!(8)).unwrap_err();
    assert!(error.contains("`lora_rank`") && error.contains("adapters"), "{error}");
}
