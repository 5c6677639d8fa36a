//! Attention through a window of the sequence, in some or all layers.

use super::reader::ConfigReader;
use crate::error::WorkloadError;
use crate::layer_list::{KeyWindow, LayerKind};
use crate::model::Model;
use serde_json::Value;

/// Returns the model with a sliding window in the layers where `sees` is true. A window that no sequence fills changes
/// nothing.
pub(super) fn with_window(model: Model, window: u64, sees: impl Fn(u64) -> bool) -> Model {
    with_key_window(model, KeyWindow::Sliding(window), sees)
}

/// Returns the model with a window of any kind in the layers where `sees` is true. A window that no sequence fills
/// changes nothing.
pub(super) fn with_key_window(model: Model, window: KeyWindow, sees: impl Fn(u64) -> bool) -> Model {
    if window.most_keys() >= model.max_sequence || !(0..model.layer_count()).any(&sees) {
        return model;
    }
    model.with_changed_layers(|layer, kind| LayerKind { window: sees(layer).then_some(window), ..kind })
}

/// Returns the model with `window` in the layers that `layer_types` names. Without that key, all layers have it except
/// every `period`-th; if `period` is 0, all layers have it.
pub(super) fn add_windows_by_type(
    reader: &ConfigReader<'_>,
    model: Model,
    window: u64,
    period: u64,
) -> Result<Model, WorkloadError> {
    let Some(types) = read_layer_types(reader, model.layer_count())? else {
        return Ok(with_window(model, window, |layer| period == 0 || !(layer + 1).is_multiple_of(period)));
    };
    let windowed = |layer: u64| types.get(layer as usize).is_some_and(|kind| *kind != "full_attention");
    Ok(with_window(model, window, windowed))
}

/// Reads the file's list of attention kinds, one per layer; `None` without the key.
pub(super) fn read_layer_types<'r>(
    reader: &ConfigReader<'r>,
    layers: u64,
) -> Result<Option<Vec<&'r str>>, WorkloadError> {
    read_types_of_layers(reader, layers, &["full_attention", "sliding_attention", "chunked_attention"])
}

/// Reads `layer_types`, a list with one of the `known` kinds per layer; `None` without the key.
pub(super) fn read_types_of_layers<'r>(
    reader: &ConfigReader<'r>,
    layers: u64,
    known: &[&str],
) -> Result<Option<Vec<&'r str>>, WorkloadError> {
    read_types_under_key(reader, "layer_types", layers, known)
}

/// Reads a list under `key` with one of the `known` kinds per layer; `None` without the key.
pub(super) fn read_types_under_key<'r>(
    reader: &ConfigReader<'r>,
    key: &str,
    layers: u64,
    known: &[&str],
) -> Result<Option<Vec<&'r str>>, WorkloadError> {
    let Some(value) = reader.get(key) else { return Ok(None) };
    // Some checkpoints also list the modules that predict further tokens.
    let further = reader.get("num_nextn_predict_layers").and_then(Value::as_u64).unwrap_or_default();
    let list = value.as_array().and_then(|list| list.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
    let Some(list) = list.filter(|list| list.iter().all(|kind| known.contains(kind))) else {
        let cure = "other kinds of layers are not covered in this family: correct the list";
        return Err(reader.value_error(
            key,
            value.clone(),
            &format!(
                "a list of {}",
                known.iter().take(2).map(|kind| format!("\"{kind}\"")).collect::<Vec<_>>().join(" and ")
            ),
            cure,
        ));
    };
    if list.len() as u64 == layers + further {
        return Ok(Some(list.into_iter().take(layers as usize).collect()));
    }
    if list.len() as u64 != layers {
        let limit = format!("a list of `num_hidden_layers` ({layers}) entries");
        let cure = format!("it has {}: correct one of the two", list.len());
        return Err(reader.value_error(key, value.clone(), &limit, &cure));
    }
    Ok(Some(list))
}
