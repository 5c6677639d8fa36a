//! The number of classes that a head distinguishes.

use super::reader::ConfigReader;
use crate::error::WorkloadError;
use crate::limits::MAX_VOCABULARY;

/// Reads the number of classes from the list of their names or from a count. Without both it is 2, transformers'
/// default.
///
/// # Errors
/// `id2label` that is not an object with a name for each class; a count that differs from the number of names.
pub(super) fn read_labels(reader: &ConfigReader<'_>) -> Result<u64, WorkloadError> {
    let count = reader.read_optional_dimension("num_labels", MAX_VOCABULARY)?;
    let Some(value) = reader.get("id2label") else { return Ok(count.unwrap_or(2)) };
    let Some(listed) = value.as_object().map(|labels| labels.len() as u64).filter(|listed| *listed > 0) else {
        let cure = "write for instance {\"0\": \"no\", \"1\": \"yes\"}, or num_labels alone";
        return Err(reader.value_error("id2label", value.clone(), "an object with a name for each class", cure));
    };
    if let Some(count) = count.filter(|count| *count != listed) {
        let limit = format!("the number of names in `id2label` ({listed})");
        return Err(reader.value_error("num_labels", count, &limit, "correct one of the two"));
    }
    Ok(listed)
}
