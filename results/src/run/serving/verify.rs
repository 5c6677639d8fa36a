//! Checks a run of `serve` that was read: its values can be, and its files say the same.

use super::case::ServedCase;
use super::point::{DEPLOYMENTS, ServedAxis, ServedPoint, fronts_of_points};
use super::record::ServingRecord;
use crate::answer::finite::{FiniteError, check_finite};
use crate::answer::serving::ServingChoice;
use crate::run::record::RECORD;
use crate::store::limits::{ImpossibleValue, check_values};
use serde_json::Value;

/// The largest error of rounding of a product, as a fraction.
const ROUNDING: f64 = 1e-9;
/// Line of the file of deployments that has its first row.
const FIRST_LINE: usize = 2;

/// A value that cannot be, with the name of its file.
pub(super) type FaultOfFile = (&'static str, ImpossibleValue);

/// Checks a record's values, its cases against its question, and its deployments against the file of all deployments.
pub(super) fn verify_run(record: &ServingRecord, points: &[ServedPoint]) -> Result<(), FaultOfFile> {
    let of_record = |fault| (RECORD, fault);
    let value = serde_json::to_value(record).unwrap_or(Value::Null);
    check_values(&value).map_err(of_record)?;
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

/// The cases must be those of the question.
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

/// A row of the file of deployments: finite, possible, and of a case of the record.
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

/// Every deployment of the record must be one of the file, and its rates must agree with its devices.
fn verify_choices(record: &ServingRecord, points: &[ServedPoint]) -> Result<(), ImpossibleValue> {
    for (place, case) in record.cases.iter().enumerate() {
        let choices = case.answer.iter().flat_map(|answer| &answer.choices);
        for (at, choice) in choices.enumerate() {
            let key = |key: &str| format!("cases[{place}].answer.choices[{at}].{key}");
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

/// True if the file of deployments has this one, on a front or not.
fn is_listed(choice: &ServedPoint, points: &[ServedPoint]) -> bool {
    points.iter().any(|point| ServedPoint { on_front: false, ..point.clone() } == *choice)
}

fn words_of_choice(choice: &ServingChoice) -> String {
    format!("{} with {} on {}", choice.tokens_per_s, choice.plan_words(), choice.chip_words())
}
