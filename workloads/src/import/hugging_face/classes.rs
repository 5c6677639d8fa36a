//! Decoders with a head for classes instead of tokens, by the class that `architectures` names.

use super::reader::ConfigReader;
use crate::error::WorkloadError;
use crate::layer_list::EncoderDecoderSide;
use crate::limits::MAX_VOCABULARY;
use crate::model::Model;
use crate::variations::PooledHead;
use serde_json::Value;

/// End of the names of classes with one product of the last token, without bias, for classes of a text (transformers
/// 5.24, `GenericForSequenceClassification`).
const CLASSES: &str = "ForSequenceClassification";

/// Ends of the names of classes with other heads.
const OTHER_HEADS: [&str; 3] = ["ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice"];

/// Returns a decoder with the head that the file's class has. Other kinds of models read their heads themselves.
pub(super) fn add_classes(reader: &ConfigReader<'_>, model: Model) -> Result<Model, WorkloadError> {
    let v = &model.variations;
    let decodes = model.causal && v.side == EncoderDecoderSide::Only && v.pooled_head.is_none() && v.patches.is_none();
    let Some(class) = reader.get("architectures").and_then(|list| list.get(0)).and_then(Value::as_str) else {
        return Ok(model);
    };
    if !decodes {
        return Ok(model);
    }
    if OTHER_HEADS.iter().any(|end| class.ends_with(end)) {
        let cure = format!("name a class `...ForCausalLM` or `...{CLASSES}`");
        let limit = "a class with a head for tokens, or for classes of a whole text";
        return Err(reader.value_error("architectures", class, limit, &cure));
    }
    if !class.ends_with(CLASSES) {
        return Ok(model);
    }
    let outputs = read_labels(reader)?;
    let mut model = Model { tied_head: false, ..model };
    model.variations.pooled_head = Some(PooledHead { outputs, bias: false });
    Ok(model)
}

/// Reads the number of classes: a list of their names, or a count; transformers' default is 2.
pub(super) fn read_labels(reader: &ConfigReader<'_>) -> Result<u64, WorkloadError> {
    let listed = reader.get("id2label").and_then(|labels| labels.as_object()).map(|labels| labels.len() as u64);
    Ok(listed.or(reader.read_optional_dimension("num_labels", MAX_VOCABULARY)?).unwrap_or(2))
}
