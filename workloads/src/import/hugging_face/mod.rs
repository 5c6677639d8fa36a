//! Hugging Face's `config.json`, as found in the wild. Keys that decide the cost are read, keys known to decide nothing are passed over; what a file
//! says besides is noted as an assumption, or refused where the answer would be wrong by more than 2 %. A slip of the pen in a key that the
//! family reads is an error: it would otherwise fall back to a default in silence.

mod bert;
mod bloom;
mod coverage;
mod deepseek;
mod experts;
mod falcon;
mod gemma;
mod gpt2;
mod gpt_neox;
mod keys;
mod llama;
mod llama_like;
mod mamba;
mod modernbert;
mod mpt;
mod opt;
mod reader;
mod t5;
mod vit;
mod windows;

use crate::error::WorkloadError;
use crate::model::Model;
pub use coverage::{FamilyCoverage, family_coverage};
use reader::{ConfigEntries, ConfigReader};

/// A family of models: how its `config.json` is read. A new family is a file here and a line in [`FAMILIES`].
struct ModelFamily {
    /// The values of `model_type` that it reads.
    model_types: &'static [&'static str],
    /// Keys that decide the cost.
    keys: &'static [&'static [&'static str]],
    /// Whole numbers that transformers takes where a key is absent.
    defaults: &'static [(&'static str, u64)],
    /// Other families' words for its keys.
    synonyms: &'static [(&'static str, &'static str)],
    /// Makes the model of checked keys.
    read: fn(&ConfigReader<'_>) -> Result<Model, WorkloadError>,
}

/// All families.
static FAMILIES: &[ModelFamily] = &[
    bert::FAMILY,
    bert::ROBERTA,
    bloom::FAMILY,
    deepseek::FAMILY,
    deepseek::PLAIN_ATTENTION,
    experts::GPT_OSS,
    experts::LLAMA4,
    experts::MIXTRAL,
    experts::OLMOE,
    experts::QWEN2_MOE,
    experts::QWEN3_MOE,
    falcon::FAMILY,
    gemma::GEMMA,
    gemma::GEMMA2,
    gemma::GEMMA3,
    gpt2::BIGCODE,
    gpt2::FAMILY,
    gpt_neox::FAMILY,
    gpt_neox::GPTJ,
    gpt_neox::PHI,
    llama::FAMILY,
    llama_like::COHERE,
    llama_like::GRANITE,
    llama_like::MISTRAL,
    llama_like::OLMO,
    llama_like::OLMO2,
    llama_like::PHI3,
    llama_like::QWEN2,
    llama_like::QWEN3,
    llama_like::STABLELM,
    llama_like::STARCODER2,
    mamba::MAMBA2,
    mamba::NEMOTRON_H,
    modernbert::FAMILY,
    mpt::FAMILY,
    opt::FAMILY,
    t5::FAMILY,
    vit::CLIP_TEXT,
    vit::CLIP_VISION,
    vit::FAMILY,
];

/// The object of a multimodal configuration that holds its text model, by the names there are.
const TEXT_PARTS: &[&str] = &["text_config", "llm_config", "language_config"];

/// Keys that a text model inside another takes from outside where it has none of its own.
const INHERITED: &[&str] = &["model_type", "tie_word_embeddings", "make_vocab_size_divisible_by"];

/// Families that people ask for and that are not covered: the value of `model_type`, and what it would take.
const NOT_COVERED: &[(&str, &str)] = &[
    ("albert", "layers that share their weights"),
    ("bamba", BESIDE),
    ("bart", ENCODER_DECODER),
    ("codegen", "its own order of heads in the product of queries, keys and values"),
    ("deberta-v2", "relative positions in the scores"),
    ("falcon_h1", "attention and a scan beside each other"),
    ("falcon_mamba", FIRST_SCAN),
    ("gemma3n", "layers that share keys and values, and per-layer embeddings"),
    ("jamba", FIRST_SCAN),
    ("mamba", FIRST_SCAN),
    ("minimax", "layers of linear attention"),
    ("mllama", "layers of cross attention"),
    ("qwen3_next", "layers of linear attention"),
    ("rwkv", "linear recurrences"),
    ("siglip", IMAGES),
    ("umt5", "a table of relative positions in every layer"),
    ("whisper", ENCODER_DECODER),
    ("zamba2", "attention whose weights several layers share"),
];
const ENCODER_DECODER: &str = "an encoder and a decoder with learned positions and biases (T5 and mT5 are covered)";
const FIRST_SCAN: &str = "the scan of Mamba 1, whose decays are a number per channel (Mamba 2 and Nemotron-H are covered)";
const BESIDE: &str = "scans and attention with rotation in layers that have MLPs too";
const IMAGES: &str = "a head of attention pooling and its own loss (ViT and CLIP are covered)";

/// Reads the text of a `config.json`. `name` is what the model will be called, `file` what errors name.
///
/// # Errors
/// Where the text is not JSON, a key is missing, unknown or given twice, or a value is outside its limits.
pub fn parse_config(name: &str, file: &str, text: &str) -> Result<Model, WorkloadError> {
    let entries = reader::parse_entries(file, text)?;
    let part = TEXT_PARTS.iter().find_map(|part| Some((*part, entries.get(part)?.as_object()?)));
    let Some((part, object)) = part else { return read_model(name, file, &entries) };
    let mut model = read_model(name, &format!("{file}, `{part}`"), &entries.flatten_object(object, INHERITED))?;
    let whole = reader::read_model_type(file, &entries).map_or_else(|_| String::new(), |kind| format!(" of the {kind}"));
    model.assumptions.insert(0, format!("only the text model{whole}, `{part}`, is trained: its other parts are left out"));
    Ok(model)
}

fn read_model(name: &str, file: &str, entries: &ConfigEntries) -> Result<Model, WorkloadError> {
    let model_type = reader::read_model_type(file, entries)?;
    let known = || FAMILIES.iter().flat_map(|f| f.model_types).copied();
    let Some(family) = FAMILIES.iter().find(|f| f.model_types.contains(&model_type.as_str())) else {
        let missing = NOT_COVERED.iter().find(|(known, _)| *known == model_type).map(|(_, missing)| *missing);
        return Err(reader::unknown_type_error(file, &model_type, missing, known()));
    };
    let reader = ConfigReader::new(name, file, model_type, family, entries)?;
    if !t5::FAMILY.model_types.contains(&reader.model_type.as_str()) {
        let cure = "of encoder-decoders only T5 and mT5 are covered: give a decoder's or an encoder's configuration";
        reader.forbid_flag("is_encoder_decoder", cure)?;
    }
    reader.forbid_flag("add_cross_attention", "cross-attention is not supported: set it to false or give a model without it")?;
    let mut model = (family.read)(&reader)?;
    model.assumptions = reader.assumptions();
    model.assumptions.extend(model.block_assumption());
    Ok(model)
}
