//! Hugging Face's `config.json`. Keys that decide the cost are read, keys known to decide nothing are passed over, any other
//! key is an error: a misspelt key would otherwise fall back to a default in silence.

mod bert;
mod gpt2;
mod llama;
mod mixtral;
mod opt;
mod reader;

use crate::error::WorkloadError;
use crate::model::Model;
use reader::Reader;

/// A family of models: how its `config.json` is read. A new family is a file here and a line in [`FAMILIES`].
struct Family {
    /// The values of `model_type` that it reads.
    model_types: &'static [&'static str],
    /// Keys that decide the cost.
    keys: &'static [&'static str],
    /// Keys of this family alone that decide nothing here.
    irrelevant: &'static [&'static str],
    /// Other families' words for its keys.
    synonyms: &'static [(&'static str, &'static str)],
    /// Makes the model of checked keys.
    read: fn(&Reader<'_>) -> Result<Model, WorkloadError>,
}

/// All families.
static FAMILIES: &[Family] = &[bert::FAMILY, gpt2::FAMILY, llama::FAMILY, mixtral::FAMILY, opt::FAMILY];

/// Keys of every family that decide the cost.
const COMMON_KEYS: &[&str] =
    &["model_type", "tie_word_embeddings", "is_encoder_decoder", "add_cross_attention", "make_vocab_size_divisible_by"];

/// Keys that Hugging Face writes for any family and that change neither a training step's work nor its memory: names and
/// versions, token ids, text generation, heads of other tasks, initial values, the checkpoint's number format.
const COMMON_IRRELEVANT: &[&str] = &[
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_name_or_path",
    "_num_labels",
    "architectures",
    "attn_implementation",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "chunk_size_feed_forward",
    "cross_attention_hidden_size",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "id2label",
    "initializer_range",
    "label2id",
    "language",
    "length_penalty",
    "max_length",
    "min_length",
    "name",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "output_scores",
    "pad_token_id",
    "prefix",
    "problem_type",
    "pruned_heads",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "typical_p",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
];

/// Reads the text of a `config.json`. `name` is what the model will be called, `file` what errors name.
///
/// # Errors
/// Where the text is not JSON, a key is missing, unknown or given twice, or a value is outside its limits.
pub fn parse(name: &str, file: &str, text: &str) -> Result<Model, WorkloadError> {
    let entries = reader::entries(file, text)?;
    let model_type = reader::model_type(file, &entries)?;
    let known = || FAMILIES.iter().flat_map(|f| f.model_types).copied();
    let Some(family) = FAMILIES.iter().find(|f| f.model_types.contains(&model_type.as_str())) else {
        return Err(reader::unknown_type(file, &model_type, known()));
    };
    let reader = Reader::new(name, file, model_type, family, &entries)?;
    reader.forbid(
        "is_encoder_decoder",
        "only encoder-only and decoder-only models are supported: give a decoder's or an encoder's configuration",
    )?;
    reader.forbid("add_cross_attention", "cross-attention is not supported: set it to false or give a model without it")?;
    (family.read)(&reader)
}
