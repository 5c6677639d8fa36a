//! Checks a run of `serve` after reading: its values are possible, and its files agree.

use super::case::ServedCase;
use super::point::{DEPLOYMENTS, ServedAxis, ServedPoint, fronts_of_points};
use super::record::ServingRecord;
use crate::answer::finite::{FiniteError, check_finite};
use crate::answer::serving::{PoolRecord, ServingChoice};
use crate::run::record::RECORD;
use crate::store::limits::{ImpossibleValue, check_values};
use serde_json::Value;
use serving::plan::ServedProduct;
use std::path::Path;
use workloads::model;

/// The largest relative rounding error of a product or a sum.
const ROUNDING: f64 = 1e-9;
/// The largest fraction by which the search for a clock may exceed a power limit.
const POWER_ROUNDING: f64 = 1e-6;
/// The number of the line that has the first row of the file of deployments.
const FIRST_LINE: usize = 2;

/// An impossible value, with the name of its file.
pub(super) type FaultOfFile = (&'static str, ImpossibleValue);

/// Checks the values of a record, its cases against its question, and its deployments against the file of all
/// deployments.
pub(super) fn verify_run(record: &ServingRecord, points: &[ServedPoint]) -> Result<(), FaultOfFile> {
    let of_record = |fault| (RECORD, fault);
    let value = serde_json::to_value(record).unwrap_or(Value::Null);
    check_values(&value).map_err(of_record)?;
    verify_asked(record).map_err(of_record)?;
    verify_cases(record).map_err(of_record)?;
    for (at, point) in points.iter().enumerate() {
        verify_point(point, record).map_err(|fault| {
            let key = format!("line {}, {}", at + FIRST_LINE, fault.key);
            (DEPLOYMENTS, ImpossibleValue { key, ..fault })
        })?;
    }
    verify_choices(record, points).map_err(of_record)?;
    if record.fronts != fronts_of_points(points, ServedAxis::default()) {
        let count = record.fronts.len();
        let limit = format!("must be the fronts of the deployments in {DEPLOYMENTS}");
        return Err(of_record(ImpossibleValue::new("fronts", format!("{count} fronts"), limit)));
    }
    Ok(())
}

/// Checks that the question has devices, and a model that is built in or carried in the record.
fn verify_asked(record: &ServingRecord) -> Result<(), ImpossibleValue> {
    let asked = &record.asked;
    if asked.devices == 0 {
        return Err(ImpossibleValue::new("asked.devices", 0, "must be at least 1"));
    }
    let is_carried = || asked.files.text(&model::config_file(Path::new(&asked.model), &asked.files)).is_some();
    if model::is_built_in(&asked.model) || is_carried() {
        return Ok(());
    }
    Err(ImpossibleValue::new("asked.model", &asked.model, "must be built in, or a file that asked.files carries"))
}

/// Checks that the cases are those of the question.
fn verify_cases(record: &ServingRecord) -> Result<(), ImpossibleValue> {
    let (asked, found) = (record.asked.count_cases(), record.cases.len());
    if asked != found {
        let limit = format!("the question in asked has {asked}");
        return Err(ImpossibleValue::new("cases", format!("{found} cases"), limit));
    }
    for (at, (case, asked)) in record.cases.iter().zip(record.asked.list_cases()).enumerate() {
        let wanted = ServedCase::unanswered(&asked);
        if !case.asks_the_same(&wanted) {
            let limit = format!("the question in asked has {}", wanted.words());
            return Err(ImpossibleValue::new(format!("cases[{at}]"), case.words(), limit));
        }
    }
    Ok(())
}

/// Checks that a row of the file of deployments is finite, possible, and of a case of the record.
fn verify_point(point: &ServedPoint, record: &ServingRecord) -> Result<(), ImpossibleValue> {
    check_finite(point).map_err(|error| match error {
        FiniteError::NotFinite { key, value } => ImpossibleValue::new(key, value, "must be a finite number"),
        FiniteError::Other(why) => ImpossibleValue::new("row", "unreadable", why),
    })?;
    check_values(&serde_json::to_value(point).unwrap_or(Value::Null))?;
    if usize::try_from(point.case).is_ok_and(|case| case < record.cases.len()) {
        return Ok(());
    }
    let limit = format!("must be below {}, the number of cases in {RECORD}", record.cases.len());
    Err(ImpossibleValue::new("case", point.case, limit))
}

/// Checks that every deployment of the record is in the file, and that its rates agree with its number of devices.
fn verify_choices(record: &ServingRecord, points: &[ServedPoint]) -> Result<(), ImpossibleValue> {
    for (place, case) in record.cases.iter().enumerate() {
        let choices: &[ServingChoice] = case.answer.as_ref().map_or(&[], |answer| &answer.choices);
        verify_order(choices).map_err(|fault| below(&format!("cases[{place}].answer"), fault))?;
        match (&case.why, choices) {
            (Some(why), [_, ..]) => {
                let limit = "must be null where there are choices";
                return Err(ImpossibleValue::new(format!("cases[{place}].why"), why, limit));
            }
            (None, []) => {
                let limit = "must have a deployment, or the case a reason in why";
                return Err(ImpossibleValue::new(format!("cases[{place}].answer.choices"), "empty", limit));
            }
            _ => {}
        }
        for (at, choice) in choices.iter().enumerate() {
            let key = |key: &str| format!("cases[{place}].answer.choices[{at}].{key}");
            verify_parts(choice).map_err(|fault| ImpossibleValue { key: key(&fault.key), ..fault })?;
            let product = choice.tokens_per_s_per_device * f64::from(choice.devices);
            if (choice.tokens_per_s - product).abs() > ROUNDING * product {
                let limit = format!("{} devices with tokens_per_s_per_device make {product}", choice.devices);
                return Err(ImpossibleValue::new(key("tokens_per_s"), choice.tokens_per_s, limit));
            }
            if !is_listed(&ServedPoint::of_choice(place, case, choice), points) {
                let limit = format!("{DEPLOYMENTS} has no such deployment of this case");
                return Err(ImpossibleValue::new(key("tokens_per_s"), words_of_choice(choice), limit));
            }
        }
    }
    Ok(())
}

/// Prefixes the key of a fault with the key of the enclosing object.
fn below(outer: &str, fault: ImpossibleValue) -> ImpossibleValue {
    ImpossibleValue { key: format!("{outer}.{}", fault.key), ..fault }
}

/// Checks that deployments are listed once each, best first.
fn verify_order(choices: &[ServingChoice]) -> Result<(), ImpossibleValue> {
    for (at, choice) in choices.iter().enumerate() {
        if choices[..at].contains(choice) {
            let key = format!("choices[{at}]");
            return Err(ImpossibleValue::new(key, words_of_choice(choice), "stands there already"));
        }
    }
    let value = |choice: &ServingChoice| choice.value.unwrap_or(0.0);
    match choices.windows(2).position(|pair| value(&pair[0]) < value(&pair[1])) {
        None => Ok(()),
        Some(at) => {
            let limit = format!("must be at most {}, the value of the one before: best first", value(&choices[at]));
            Err(ImpossibleValue::new(format!("choices[{}].value", at + 1), value(&choices[at + 1]), limit))
        }
    }
}

/// Checks the pools of a deployment and the parts of its iteration.
fn verify_parts(choice: &ServingChoice) -> Result<(), ImpossibleValue> {
    let total = choice.iteration.total_ms;
    for (part, ms) in choice.iteration.list_parts() {
        if ms > total * (1.0 + ROUNDING) {
            let limit = format!("must be at most total_ms ({total})");
            return Err(ImpossibleValue::new(format!("iteration, {part}"), ms, limit));
        }
    }
    let sum: f64 = choice.iteration.list_parts().iter().map(|(_, ms)| ms).sum();
    if (sum - total).abs() > ROUNDING * total {
        return Err(ImpossibleValue::new("iteration.total_ms", total, format!("the parts sum to {sum}")));
    }
    verify_pool(&choice.decode).map_err(|fault| below("decode", fault))?;
    let prefill = choice.prefill.as_ref().map_or(Ok(()), verify_pool);
    prefill.map_err(|fault| below("prefill", fault))
}

/// Checks that a pool's number formats exist, that its weights and working memory fit, and that its power is within the
/// limit.
fn verify_pool(pool: &PoolRecord) -> Result<(), ImpossibleValue> {
    for (key, format) in [("products", &pool.products), ("experts", &pool.experts)] {
        if ServedProduct::ALL.iter().all(|known| known.name() != format) {
            let known: Vec<&str> = ServedProduct::ALL.into_iter().map(ServedProduct::name).collect();
            return Err(ImpossibleValue::new(key, format, format!("must be one of {}", known.join(", "))));
        }
    }
    if pool.weights_gib + pool.working_gib > pool.usable_gib * (1.0 + ROUNDING) {
        let limit = format!("with working_gib ({}) must be within usable_gib ({})", pool.working_gib, pool.usable_gib);
        return Err(ImpossibleValue::new("weights_gib", pool.weights_gib, limit));
    }
    match pool.power_limit_w.filter(|limit| pool.device_w > limit * (1.0 + POWER_ROUNDING)) {
        None => Ok(()),
        Some(limit) => {
            let limit = format!("must be at most power_limit_w ({limit})");
            Err(ImpossibleValue::new("device_w", pool.device_w, limit))
        }
    }
}

/// True if the file of deployments has this deployment, on a front or not.
fn is_listed(choice: &ServedPoint, points: &[ServedPoint]) -> bool {
    points.iter().any(|point| ServedPoint { on_front: false, ..point.clone() } == *choice)
}

fn words_of_choice(choice: &ServingChoice) -> String {
    format!("{} with {} on {}", choice.tokens_per_s, choice.plan_words(), choice.chip_words())
}
