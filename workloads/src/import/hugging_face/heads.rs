//! The head of a model, from the class that `architectures` names. A new kind of class needs a row in [`HEADS`].
//! Classes outside the table are refused.

use super::labels::read_labels;
use super::reader::ConfigReader;
use super::{bert, is_of, modernbert, vit};
use crate::error::WorkloadError;
use crate::layer_list::EncoderDecoderSide;
use crate::model::Model;
use crate::variations::{HeadTokens, TaskHead};
use serde_json::Value;

/// The key that names the class.
pub(super) const KEY: &str = "architectures";

/// The head of a class in transformers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClassHead {
    /// The language-model head: logits for the vocabulary.
    Language,
    /// Classes of a whole sequence.
    Classes,
    /// Classes of every token.
    Tokens,
    /// The first and the last token of an answer to a question.
    Questions,
    /// One score for each of several sequences.
    Choices,
    /// Two classes of a pair of sentences.
    NextSentence,
    /// Classes of an image.
    Images,
    /// A projection into a space of texts and images.
    Projection,
    /// No head.
    Absent,
    /// A head that is not covered.
    Other,
}

/// Ends of class names (transformers 5.24) and their heads. The first row that fits counts.
const HEADS: &[(&str, ClassHead)] = &[
    ("ForCausalLM", ClassHead::Language),
    ("ForMaskedLM", ClassHead::Language),
    ("ForConditionalGeneration", ClassHead::Language),
    ("LMHeadModel", ClassHead::Language),
    ("MTModel", ClassHead::Language),
    // InternVL: the class of text and images.
    ("ChatModel", ClassHead::Language),
    ("ForSequenceClassification", ClassHead::Classes),
    ("ForTokenClassification", ClassHead::Tokens),
    ("ForQuestionAnswering", ClassHead::Questions),
    ("ForMultipleChoice", ClassHead::Choices),
    ("ForNextSentencePrediction", ClassHead::NextSentence),
    ("ForImageClassification", ClassHead::Images),
    ("ModelWithProjection", ClassHead::Projection),
    ("CLIPModel", ClassHead::Projection),
    ("DoubleHeadsModel", ClassHead::Other),
    ("RewardModel", ClassHead::Other),
    ("EncoderModel", ClassHead::Other),
    ("DecoderModel", ClassHead::Other),
    ("Model", ClassHead::Absent),
];

/// Ends of the names of transformers classes that have both an encoder and a decoder. Plain `...Model` classes lack the
/// logits for the vocabulary.
const BOTH_SIDES: [&str; 2] = ["ForConditionalGeneration", "Model"];

/// A head on an encoder or a decoder, by the class's head: the tokens that it reads, its outputs, and its bias.
struct HeadRow {
    head: ClassHead,
    tokens: HeadTokens,
    outputs: HeadOutputs,
    bias: bool,
}

/// The width of a head's result.
#[derive(Clone, Copy)]
enum HeadOutputs {
    /// The number of the file's labels.
    Labels,
    /// The same number in every file.
    Fixed(u64),
    /// No product: the head returns the model's own vectors.
    Vectors,
}

const fn row(head: ClassHead, tokens: HeadTokens, outputs: HeadOutputs, bias: bool) -> HeadRow {
    HeadRow { head, tokens, outputs, bias }
}

/// Heads of decoders (transformers 5.24, `modeling_layers.py`: `GenericForSequenceClassification` and its neighbours).
const OF_DECODERS: &[HeadRow] = &[
    row(ClassHead::Classes, HeadTokens::One, HeadOutputs::Labels, false),
    row(ClassHead::Tokens, HeadTokens::Every, HeadOutputs::Labels, true),
    row(ClassHead::Questions, HeadTokens::Every, HeadOutputs::Fixed(2), true),
    row(ClassHead::Absent, HeadTokens::One, HeadOutputs::Vectors, false),
];

/// Heads of BERT's family. Heads on one token follow the pooler (`BertPooler`; `RobertaClassificationHead` has an
/// equivalent). The class without a head has the pooler too.
const OF_BERT: &[HeadRow] = &[
    row(ClassHead::Classes, HeadTokens::Pooled, HeadOutputs::Labels, true),
    row(ClassHead::Tokens, HeadTokens::Every, HeadOutputs::Labels, true),
    row(ClassHead::Questions, HeadTokens::Every, HeadOutputs::Labels, true),
    row(ClassHead::Choices, HeadTokens::Pooled, HeadOutputs::Fixed(1), true),
    row(ClassHead::NextSentence, HeadTokens::Pooled, HeadOutputs::Fixed(2), true),
    row(ClassHead::Absent, HeadTokens::Pooled, HeadOutputs::Vectors, false),
];

/// Heads of ModernBERT. All heads follow the transform (`ModernBertPredictionHead`), which the class without a head
/// lacks.
const OF_MODERNBERT: &[HeadRow] = &[
    row(ClassHead::Classes, HeadTokens::One, HeadOutputs::Labels, true),
    row(ClassHead::Tokens, HeadTokens::Every, HeadOutputs::Labels, true),
    row(ClassHead::Questions, HeadTokens::Every, HeadOutputs::Labels, true),
    row(ClassHead::Choices, HeadTokens::One, HeadOutputs::Fixed(1), true),
    row(ClassHead::Absent, HeadTokens::One, HeadOutputs::Vectors, false),
];

/// Heads of ViT. The class without a head has a pooler.
const OF_IMAGES: &[HeadRow] = &[
    row(ClassHead::Images, HeadTokens::One, HeadOutputs::Labels, true),
    row(ClassHead::Absent, HeadTokens::Pooled, HeadOutputs::Vectors, false),
];

/// Heads of CLIP's towers. The family's reader adds the projection; the class without it has only vectors.
const OF_CLIP: &[HeadRow] = &[row(ClassHead::Absent, HeadTokens::One, HeadOutputs::Vectors, false)];

/// Returns the model with the head of the file's class. Without a class, the family's own head stays. A class whose
/// head is not covered is an error.
pub(super) fn add_class_head(reader: &ConfigReader<'_>, model: Model) -> Result<Model, WorkloadError> {
    let Some((class, head)) = read_class(reader)? else { return Ok(model) };
    let kind = reader.model_type.as_str();
    let (rows, own) = if is_of(&[bert::FAMILY, bert::ROBERTA], kind) {
        (OF_BERT, ClassHead::Language)
    } else if is_of(&[modernbert::FAMILY], kind) {
        (OF_MODERNBERT, ClassHead::Language)
    } else if is_of(&[vit::FAMILY], kind) {
        (OF_IMAGES, ClassHead::Images)
    } else if is_of(&[vit::CLIP_VISION, vit::CLIP_TEXT], kind) {
        (OF_CLIP, ClassHead::Projection)
    } else if model.causal && model.variations.side == EncoderDecoderSide::Only {
        (OF_DECODERS, ClassHead::Language)
    } else {
        // The reader has already checked that the class has both sides.
        return Ok(note_both_sides(reader, class, head, model));
    };
    if head == own {
        return Ok(model);
    }
    match rows.iter().find(|row| row.head == head) {
        Some(row) => with_head(reader, class, row, model),
        None => Err(refuse_class(reader, class, rows.iter().map(|row| row.head).chain([own]))),
    }
}

/// Returns an error if `architectures` names a class that lacks the encoder or the decoder.
pub(super) fn require_both_sides(reader: &ConfigReader<'_>) -> Result<(), WorkloadError> {
    let Some(value) = reader.get(KEY).filter(|_| !reader.is_ignored(KEY)) else { return Ok(()) };
    let has_both = |class: &str| !class.ends_with("EncoderModel") && BOTH_SIDES.iter().any(|end| class.ends_with(end));
    let names = value.as_array().and_then(|list| list.iter().map(Value::as_str).collect::<Option<Vec<&str>>>());
    if names.is_some_and(|names| names.into_iter().all(has_both)) {
        return Ok(());
    }
    let limit = format!("a list of classes with an encoder and a decoder ({})", BOTH_SIDES.join(", "));
    let cure = "one side alone and heads of other tasks are not covered in this family: give the whole model's \
                configuration, or take the family's own head by --assume architectures=ignored";
    Err(reader.value_error(KEY, value.clone(), &limit, cure))
}

/// Adds a note, if the file's class lacks logits, that the encoder-decoder is trained with its family's logits.
fn note_both_sides(reader: &ConfigReader<'_>, class: &str, head: ClassHead, model: Model) -> Model {
    if head == ClassHead::Absent {
        let what = "the class has no head; the model is trained with its family's logits, by the embedding's matrix";
        reader.note_assumption(format!("`{KEY}` = [\"{class}\"]: {what}"));
    }
    model
}

fn with_head(reader: &ConfigReader<'_>, class: &str, row: &HeadRow, mut model: Model) -> Result<Model, WorkloadError> {
    let without_product = matches!(row.outputs, HeadOutputs::Vectors);
    let outputs = match row.outputs {
        HeadOutputs::Labels => read_labels(reader)?,
        HeadOutputs::Fixed(outputs) => outputs,
        HeadOutputs::Vectors => model.embedding_width,
    };
    // BERT's transform belongs only to its logits; ModernBERT's belongs to every head with a product.
    model.head_transform &=
        row.tokens != HeadTokens::Pooled && !without_product && model.variations.transform_without_bias;
    (model.tied_head, model.head_bias) = (false, false);
    model.variations.task_head = Some(TaskHead { outputs, bias: row.bias, tokens: row.tokens, without_product });
    if model.variations.patches.is_some() {
        model.vocabulary = outputs;
    }
    if without_product {
        let what = "the class has no head; the loss covers the numbers of one vector per sequence, and the scores of \
                    a batch's pairs are left out";
        reader.note_assumption(format!("`{KEY}` = [\"{class}\"]: {what}"));
    }
    if row.head == ClassHead::Choices {
        let what = "every choice counts as a sequence, with a loss of its own";
        reader.note_assumption(format!("`{KEY}` = [\"{class}\"]: {what}"));
    }
    Ok(model)
}

/// Reads the class that the file names, and its head. Returns `None` if the key is absent or ignored. If the file names
/// several classes, they must have the same head.
fn read_class<'a>(reader: &ConfigReader<'a>) -> Result<Option<(&'a str, ClassHead)>, WorkloadError> {
    let Some(value) = reader.get(KEY).filter(|_| !reader.is_ignored(KEY)) else { return Ok(None) };
    let names = value.as_array().and_then(|list| list.iter().map(Value::as_str).collect::<Option<Vec<&str>>>());
    let Some(names) = names else {
        let cure = "write for instance [\"LlamaForCausalLM\"], or leave it out";
        return Err(reader.value_error(KEY, value.clone(), "a list of names of classes", cure));
    };
    let mut found: Option<(&str, ClassHead)> = None;
    for name in names {
        let head = HEADS.iter().find(|(end, _)| name.ends_with(end)).map_or(ClassHead::Other, |(_, head)| *head);
        if head == ClassHead::Other {
            return Err(refuse_class(reader, name, HEADS.iter().map(|(_, head)| *head)));
        }
        if found.is_some_and(|(_, other)| other != head) {
            let limit = "classes with one kind of head";
            return Err(reader.value_error(KEY, value.clone(), limit, "leave the class that is trained"));
        }
        found = Some((name, head));
    }
    Ok(found)
}

/// Returns the error for a class whose head is not among `heads`.
fn refuse_class(reader: &ConfigReader<'_>, class: &str, heads: impl Iterator<Item = ClassHead>) -> WorkloadError {
    let heads: Vec<ClassHead> = heads.filter(|head| *head != ClassHead::Other).collect();
    let ends = HEADS.iter().filter(|(_, head)| heads.contains(head)).map(|(end, _)| format!("...{end}"));
    let limit = format!("a class whose head is covered for this family: {}", ends.collect::<Vec<String>>().join(", "));
    let cure = "name the class that is trained, or take the family's own head by --assume architectures=ignored";
    reader.value_error(KEY, class, &limit, cure)
}
