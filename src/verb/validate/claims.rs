//! Predicts published claims of papers about memory techniques.

use super::ValidateArguments;
use crate::answer;
use crate::call::Call;
use crate::failure::{self, Failure, OrInput, OrOther, OrUnwritable};
use crate::progress;
use results::papers::{self, ClaimReport};
use results::report;
use results::store::files;
use serde::Serialize;
use std::path::Path;

/// Version of the JSON of claims.
const FORMAT: u32 = 1;

/// The answer for files of claims.
#[derive(Serialize)]
struct ClaimsAnswer {
    format: u32,
    claims: Vec<ClaimReport>,
}

/// Returns the text of a file if it holds claims.
fn text_of_claims(path: &Path) -> Option<String> {
    let text = sim::files::text::read_text(path).ok()?;
    papers::is_claims_header(&text).then_some(text)
}

/// Predicts the claims in the files and returns true; returns false if no file holds claims. Fails if only some files
/// do.
pub(super) fn validate_claims(arguments: &ValidateArguments, call: &Call) -> Result<bool, Failure> {
    let texts: Vec<Option<String>> = arguments.files.iter().map(|path| text_of_claims(path)).collect();
    if texts.iter().all(Option::is_none) {
        return Ok(false);
    }
    if let Some((path, _)) = arguments.files.iter().zip(&texts).find(|(_, text)| text.is_none()) {
        let why = "holds no claims; give measured data and published claims in separate calls";
        return Err(failure::input_failure(format!("{}: {why}", path.display())));
    }
    let mut claims = Vec::new();
    for (path, text) in arguments.files.iter().zip(texts.iter().flatten()) {
        let predicted = progress::run_with_progress(call, "predicting what was published", || {
            papers::predict_claims(&path.display().to_string(), text)
        });
        claims.push(predicted.or_input()?);
    }
    let answer = ClaimsAnswer { format: FORMAT, claims };
    if let Some(path) = &arguments.predictions {
        files::write_file(path, &papers::claims_csv(&answer.claims).or_other()?).or_unwritable()?;
    }
    answer::write_answer(call, arguments.format, &answer, |answer| {
        answer.claims.iter().map(report::claims_report).collect::<Vec<_>>().join("\n")
    })?;
    let faults: Vec<String> = answer.claims.iter().flat_map(ClaimReport::describe_faults).collect();
    let more = faults.len().saturating_sub(super::NAMED);
    let mut named: Vec<String> = faults.into_iter().take(super::NAMED).collect();
    if more > 0 {
        named.push(format!("{more} more claims are refused; --format json lists them all"));
    }
    if named.is_empty() { Ok(true) } else { Err(failure::input_failure(named.join("\nerror: "))) }
}
