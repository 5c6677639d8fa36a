//! Reader of Hugging Face's `config.json` files. It reads the keys that decide the cost, and ignores keys that are
//! known to decide nothing. Any other key is noted as an assumption, or refused if the answer would be wrong by more
//! than 2 %. A misspelt key of the family is an error; otherwise a default would silently replace it.

mod arctic;
mod bart;
mod bert;
mod bloom;
mod coverage;
mod dbrx;
mod deepseek;
mod deepseek_v4;
mod dit;
mod entries;
mod experts;
mod falcon;
mod gemma;
mod gpt2;
mod gpt_neox;
mod heads;
mod hybrids;
mod keys;
mod labels;
mod linear_attention;
mod llama;
mod llama_like;
mod mamba;
mod mixed_heads;
mod modernbert;
mod mpt;
mod near_copies;
mod opt;
mod reader;
mod rwkv;
mod shared_blocks;
mod short_convolutions;
mod sparse_attention;
mod t5;
mod vit;
mod windows;

use crate::error::WorkloadError;
use crate::model::Model;
pub use coverage::{FamilyCoverage, family_coverage};
use entries::ConfigEntries;
use keys::KeyEffect;
use reader::ConfigReader;
use serde_json::{Map, Value};

/// A family of models and the way to read its `config.json`. A new family is a file here and a line in [`FAMILIES`].
struct ModelFamily {
    /// The `model_type` values that the family covers.
    model_types: &'static [&'static str],
    /// Keys that decide the cost.
    keys: &'static [&'static [&'static str]],
    /// Default values of transformers for absent integer keys.
    defaults: &'static [(&'static str, u64)],
    /// Names that other families use for its keys: (other name, own key).
    synonyms: &'static [(&'static str, &'static str)],
    /// Builds the model from checked keys.
    read: fn(&ConfigReader<'_>) -> Result<Model, WorkloadError>,
}

impl ModelFamily {
    /// Returns whether the family reads a key.
    fn reads(&self, key: &str) -> bool {
        keys::COMMON.contains(&key) || self.keys.iter().any(|keys| keys.contains(&key))
    }
}

/// All families.
static FAMILIES: &[ModelFamily] = &[
    arctic::FAMILY,
    bart::FAMILY,
    bart::WHISPER,
    bert::FAMILY,
    bert::ROBERTA,
    bloom::FAMILY,
    dbrx::FAMILY,
    deepseek::FAMILY,
    deepseek::PLAIN_ATTENTION,
    deepseek_v4::FAMILY,
    dit::FAMILY,
    dit::OLDER,
    dit::ORIGINAL,
    experts::GPT_OSS,
    experts::GROK,
    experts::HUNYUAN,
    experts::LLAMA4,
    experts::MINIMAX_M2,
    experts::MIXTRAL,
    experts::OLMOE,
    experts::PHIMOE,
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
    hybrids::BAMBA,
    hybrids::FALCON_H1,
    hybrids::GRANITE_HYBRID,
    hybrids::JAMBA,
    hybrids::MAMBA,
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
    linear_attention::KIMI_LINEAR,
    linear_attention::MINIMAX,
    linear_attention::QWEN3_5,
    linear_attention::QWEN3_NEXT,
    mamba::MAMBA2,
    mamba::NEMOTRON_H,
    mixed_heads::EXAONE_MOE,
    mixed_heads::GEMMA4,
    mixed_heads::LAGUNA,
    mixed_heads::MIMO_V2_FLASH,
    mixed_heads::NEMOTRON_NAS,
    mixed_heads::STEP3P5,
    modernbert::FAMILY,
    mpt::FAMILY,
    near_copies::FAMILY,
    opt::FAMILY,
    rwkv::FAMILY,
    shared_blocks::ZAMBA,
    shared_blocks::ZAMBA2,
    short_convolutions::LFM2,
    short_convolutions::LFM2_MOE,
    short_convolutions::LFM3,
    sparse_attention::DEEPSEEK_V32,
    sparse_attention::GLM_MOE_DSA,
    sparse_attention::MINIMAX_M3,
    t5::FAMILY,
    vit::CLIP_TEXT,
    vit::CLIP_VISION,
    vit::FAMILY,
];

/// Possible keys of the object that holds the text model in a multimodal configuration.
const TEXT_PARTS: &[&str] = &["text_config", "llm_config", "language_config"];

/// Nested objects whose keys are read as if they were at the top level of the file, by `model_type`.
const INNER_OBJECTS: &[(&str, &[&str])] = &[("dbrx", &["attn_config", "ffn_config"])];

/// Keys that a nested text model inherits from the top level.
const INHERITED: &[&str] = &["model_type", "tie_word_embeddings", "make_vocab_size_divisible_by", keys::ASSUME_IGNORED];

/// Families that users asked for but that are not covered: (`model_type`, the missing feature).
const NOT_COVERED: &[(&str, &str)] = &[
    ("AuraFlowTransformer2DModel", TWO_STREAMS),
    ("Flux2Transformer2DModel", TWO_STREAMS),
    ("FluxTransformer2DModel", TWO_STREAMS),
    ("HunyuanDiT2DModel", OF_TEXT),
    ("HunyuanVideoTransformer3DModel", TWO_STREAMS),
    ("PixArtTransformer2DModel", OF_TEXT),
    ("QwenImageTransformer2DModel", TWO_STREAMS),
    ("SD3Transformer2DModel", TWO_STREAMS),
    ("SanaTransformer2DModel", OF_TEXT),
    ("UNet2DConditionModel", "convolutions over images, and stages of different widths (DiT is near)"),
    ("UNet2DModel", "convolutions over images, and stages of different widths (DiT is near)"),
    ("WanTransformer3DModel", OF_TEXT),
    ("albert", "layers that share their weights"),
    ("apertus", "an activation with trained parameters, without a gate (Qwen 3 is near)"),
    ("baichuan", "positions by ALiBi in the 13B model, and a normalised head in version 2 (the 7B model is a `llama`)"),
    ("bailing_moe", "shared experts and leading dense layers beside plain attention (`glm4_moe` is near)"),
    ("chatglm", "keys by other names (`glm` has the same layers)"),
    ("convnext", DEPTHWISE),
    ("convnextv2", DEPTHWISE),
    ("deberta-v2", "relative positions in the scores"),
    ("dinov2", "layers that scale their results by trained vectors (ViT is near)"),
    ("gpt_neo", "products of queries, keys and values without biases beside others with them (GPT-2 is near)"),
    ("gemma3n", "layers that share keys and values, and per-layer embeddings"),
    ("jetmoe", "heads of attention that a router chooses (Mixtral is near)"),
    ("mllama", "layers of cross attention"),
    ("olmo_hybrid", "norms in other places of linear layers than of others"),
    ("siglip", IMAGES),
    ("swin", IMAGE_WINDOWS),
    ("swinv2", IMAGE_WINDOWS),
];
const TWO_STREAMS: &str = "joint attention of text and image, each with weights of its own (MM-DiT; DiT is near)";
const OF_TEXT: &str = "attention of an image to a text (DiT, which a class conditions, is near)";
const DEPTHWISE: &str = "depthwise convolutions over images, and stages of different widths (ViT and CLIP are covered)";
const IMAGE_WINDOWS: &str = "windows over images, and stages of different widths (ViT and CLIP are covered)";
const IMAGES: &str = "a head of attention pooling and its own loss (ViT and CLIP are covered)";

/// Parses the text of a `config.json`. `name` is the model's name, and `file` names the file in errors.
///
/// # Errors
/// Text that is not JSON, a missing, unknown or repeated key, or a value out of range.
pub fn parse_config(name: &str, file: &str, text: &str) -> Result<Model, WorkloadError> {
    parse_config_ignoring(name, file, text, &[])
}

/// Parses a `config.json` as [`parse_config`] does. `ignored` lists further keys to ignore, besides those that the file
/// itself lists.
///
/// # Errors
/// The errors of [`parse_config`]; an ignored key that is absent, or that the family reads.
pub(super) fn parse_config_ignoring(
    name: &str,
    file: &str,
    text: &str,
    ignored: &[String],
) -> Result<Model, WorkloadError> {
    let mut entries = entries::parse_entries(file, text)?;
    entries.add_ignored(ignored);
    let part = TEXT_PARTS.iter().find_map(|part| Some((*part, entries.get(part)?.as_object()?)));
    let Some((part, object)) = part else { return read_model(name, file, &entries) };
    check_outer_keys(file, &entries, part, object)?;
    let mut text = entries.flatten_object(object, INHERITED);
    // The class of the whole model counts. The class of a part is a leftover of the file that the part came from.
    text.replace_value(heads::KEY, entries.get(heads::KEY));
    let mut model = read_model(name, &format!("{file}, `{part}`"), &text)?;
    let whole =
        reader::read_model_type(file, &entries).map_or_else(|_| String::new(), |kind| format!(" of the {kind}"));
    let others = name_other_parts(file, &entries, part, object)?;
    model
        .assumptions
        .insert(0, format!("only the text model{whole}, `{part}`, is trained: its other parts are left out{others}"));
    Ok(model)
}

/// Returns the keys outside the text model's object that may change the whole model's work, as text in brackets. A key
/// for a feature that no family covers is an error, as it is inside the text model's object.
fn name_other_parts(
    file: &str,
    entries: &ConfigEntries,
    part: &str,
    object: &Map<String, Value>,
) -> Result<String, WorkloadError> {
    let ignored = |key: &str| {
        let list = entries.get(keys::ASSUME_IGNORED).and_then(Value::as_array);
        list.is_some_and(|list| list.iter().any(|known| known == key))
    };
    let mut named = Vec::new();
    let others = entries.pairs().filter(|(key, value)| *key != part && object.get(*key) != Some(*value));
    for (key, value) in others.filter(|(key, _)| !INHERITED.contains(key) && !ignored(key)) {
        match keys::effect_of_key(key, value) {
            KeyEffect::None => {}
            KeyEffect::Missing(what) => {
                let cure = format!("{what} are not covered yet: give a model without");
                return Err(reader::bad_value_error(file, key, value, "absent or null", &cure));
            }
            _ if value.is_object() => named.push(format!("`{key}`")),
            _ => named.push(format!("`{key}` = {}", reader::shorten_value(value))),
        }
    }
    Ok(if named.is_empty() { String::new() } else { format!(" ({})", named.join(", ")) })
}

/// Returns an error if a text model's key is outside the text model's object with a value that differs from the one
/// inside.
fn check_outer_keys(
    file: &str,
    entries: &ConfigEntries,
    part: &str,
    object: &Map<String, Value>,
) -> Result<(), WorkloadError> {
    let of_images = [vit::FAMILY, vit::CLIP_TEXT, vit::CLIP_VISION, dit::FAMILY, dit::OLDER, dit::ORIGINAL];
    let families = || FAMILIES.iter().filter(|family| family.model_types.iter().all(|kind| !is_of(&of_images, kind)));
    let is_shared = |key: &str| INHERITED.contains(&key) || keys::IRRELEVANT.contains(&key);
    let of_text = |key: &str| !is_shared(key) && families().any(|f| f.keys.iter().any(|k| k.contains(&key)));
    for (key, value) in entries.pairs().filter(|(key, value)| of_text(key) && !value.is_null()) {
        let inner = object.get(key).filter(|inner| !inner.is_null());
        if inner != Some(value) {
            let has = inner.map_or_else(|| "absent".to_owned(), ToString::to_string);
            let limit = format!("`{part}.{key}` ({has}): the text model is read from `{part}`");
            let cure = format!("correct one of the two, or keep the key in `{part}` alone");
            return Err(reader::bad_value_error(file, key, value, &limit, &cure));
        }
    }
    Ok(())
}

/// Returns whether one of the families reads this `model_type`.
fn is_of(families: &[ModelFamily], model_type: &str) -> bool {
    families.iter().any(|family| family.model_types.contains(&model_type))
}

fn read_model(name: &str, file: &str, entries: &ConfigEntries) -> Result<Model, WorkloadError> {
    let model_type = reader::read_model_type(file, entries)?;
    let known = || FAMILIES.iter().flat_map(|f| f.model_types).copied();
    let Some(family) = FAMILIES.iter().find(|f| f.model_types.contains(&model_type.as_str())) else {
        let missing = NOT_COVERED.iter().find(|(known, _)| *known == model_type).map(|(_, missing)| *missing);
        let key = reader::class_key(entries);
        return Err(reader::unknown_type_error(file, key, &model_type, missing, known()));
    };
    let mut entries = entries.clone();
    for (_, objects) in INNER_OBJECTS.iter().filter(|(kind, _)| *kind == model_type) {
        for object in *objects {
            let value = entries.get(object).cloned().unwrap_or_default();
            if value.as_object().is_none_or(serde_json::Map::is_empty) {
                let cure = "give the file as its model was published";
                return Err(reader::bad_value_error(file, object, &value, "an object with its sizes", cure));
            }
            entries.unfold_object(object);
        }
    }
    entries
        .rename_synonyms(|key| family.reads(key))
        .map_err(|names| reader::unlike_names_error(file, &entries, names))?;
    let reader = ConfigReader::new(name, file, model_type, family, &entries)?;
    if is_of(&[t5::FAMILY, bart::FAMILY, bart::WHISPER], &reader.model_type) {
        let cure = "one side alone is not covered in this family: give the whole model's configuration";
        reader.require_flag("is_encoder_decoder", true, cure)?;
        heads::require_both_sides(&reader)?;
    } else {
        let cure = "T5's and BART's relatives are the only covered encoder-decoders: give a decoder's or an encoder's \
                    configuration";
        reader.forbid_flag("is_encoder_decoder", cure)?;
    }
    reader.forbid_flag(
        "add_cross_attention",
        "cross-attention is not supported: set it to false or give a model without it",
    )?;
    let mut model = heads::add_class_head(&reader, (family.read)(&reader)?)?;
    model.assumptions = reader.assumptions();
    model.assumptions.extend(model.block_assumption());
    Ok(model)
}
