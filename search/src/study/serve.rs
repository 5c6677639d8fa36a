//! Checks the deployment of a study.

use super::{Study, StudyError};
use serving::plan::ServedProduct;

/// Checks the deployment's values; a study without one passes.
pub(super) fn check(study: &Study, file: &str) -> Result<(), StudyError> {
    let Some(serve) = &study.serve else { return Ok(()) };
    let fail = |key, value: String, limit, cure| Err(StudyError::Value { file: file.into(), key, value, limit, cure });
    for (key, limit) in [("serve.ttft_ms", serve.ttft_ms), ("serve.tpot_ms", serve.tpot_ms)] {
        if let Some(value) = limit.filter(|value| !(value.is_finite() && *value > 0.0)) {
            return fail(key, value.to_string(), "must be positive and finite", "give a limit, or leave it out");
        }
    }
    if let Some(value) = serve.devices.filter(|devices| !(1..=1 << 16).contains(devices)) {
        return fail(
            "serve.devices",
            value.to_string(),
            "must be from 1 to 65536",
            "give the devices that may be used",
        );
    }
    for (key, tokens, least) in [("serve.input", serve.input, 1), ("serve.output", serve.output, 2)] {
        if let Some(value) = tokens.filter(|tokens| !(least..=1 << 24).contains(tokens)) {
            let limit = "must be from 1 to 16777216, of an answer from 2";
            return fail(key, value.to_string(), limit, "give the tokens of a request");
        }
    }
    if let Some(value) = serve.train_weight.filter(|weight| !(0.0..1.0).contains(weight)) {
        return fail(
            "serve.train_weight",
            value.to_string(),
            "must be from 0 to below 1",
            "give 0.5 for equal weights",
        );
    }
    match serve.products.as_ref().filter(|name| ServedProduct::from_name(name).is_none()) {
        Some(name) => fail(
            "serve.products",
            name.clone(),
            "is no format of products",
            "give one of bf16, fp8, int8, mxfp8, nvfp4, mxfp4, fp8-weights, mxfp4-weights, nvfp4-weights, int4-weights",
        ),
        None => Ok(()),
    }
}
