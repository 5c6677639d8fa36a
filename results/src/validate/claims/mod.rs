//! Published claims about memory techniques (`system,model,hardware,setting,metric,value,unit,source,confidence`)
//! beside computed values. Rules about the paper, the model, the setting and the metric turn a claim into runs
//! ([`rules`]). Nothing is looked up row by row, so that claims about other models and sizes of the same papers work
//! too.

mod models;
mod rules;
mod text;

use self::text::NumberRelation;
use super::{RowError, ValidateError};
use crate::files::{self, WriteError};
use crate::papers::{PaperStudy, StudyQuantity, read_studies};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// The columns, in order. In some files the source's name continues in parentheses.
const COLUMNS: [&str; 9] = ["system", "model", "hardware", "setting", "metric", "value", "unit", "source", "confidence"];

/// A row as read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct PublishedClaim {
    /// The `id`, if the file has such a column; otherwise `line-N`.
    pub id: String,
    /// The paper's system.
    pub system: String,
    /// The model of the claim.
    pub model: String,
    /// The hardware of the claim.
    pub hardware: String,
    /// Its plan.
    pub setting: String,
    /// The measured or counted metric.
    pub metric: String,
    /// The value as the paper writes it.
    pub value: String,
    /// The unit.
    pub unit: String,
    /// The state of the display.
    pub source: String,
    /// The confidence in the reading.
    pub confidence: String,
}

/// A claim beside the computed value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PredictedClaim {
    /// The claim.
    #[serde(flatten)]
    pub claim: PublishedClaim,
    /// The computed value in the form of the claimed one: `12.6 / 0.24 / 0`. Empty if nothing can be computed.
    pub predicted: String,
    /// Mean absolute error of the value's numbers, in percent; `None` if either side has no number.
    pub error_pct: Option<f64>,
    /// The reason why there is no prediction, no complete prediction, or no error.
    pub why: Option<String>,
}

/// The result for a file of claims.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClaimReport {
    /// The file.
    pub file: PathBuf,
    /// All claims, in the order of the file.
    pub claims: Vec<PredictedClaim>,
    /// Faulty rows, which are no claims.
    pub row_errors: Vec<RowError>,
}

/// A run, and the quantity that is read from it.
#[derive(Debug, Clone)]
pub(super) struct RunFigure {
    study: PaperStudy,
    quantity: StudyQuantity,
}

/// The formula of a number of a claim from the figures of runs.
#[derive(Debug, Clone)]
enum FigureFormula {
    /// A constant of the model.
    Value(f64),
    /// A figure divided by its unit.
    Over(f64),
    /// The first figure divided by the second.
    Ratio,
    /// Reduction of the first figure against the second, in percent of the second.
    Saved,
    /// The largest figure.
    Most,
    /// The smallest and the largest figure.
    Spread,
}

/// The question of one number of a claim.
#[derive(Debug, Clone)]
pub(super) struct ClaimQuestion {
    figures: Vec<RunFigure>,
    made: FigureFormula,
    /// True if the claim is about how many times more fits, and the number is a saving in percent.
    gain: bool,
}

impl ClaimQuestion {
    fn new(figures: Vec<RunFigure>, made: FigureFormula) -> Self {
        Self { figures, made, gain: false }
    }

    fn known_value(value: f64) -> Self {
        Self::new(Vec::new(), FigureFormula::Value(value))
    }

    fn figure_in_units(figure: RunFigure, unit: f64) -> Self {
        Self::new(vec![figure], FigureFormula::Over(unit))
    }

    fn ratio_of(above: RunFigure, below: RunFigure) -> Self {
        Self::new(vec![above, below], FigureFormula::Ratio)
    }

    fn saved_percent(less: RunFigure, whole: RunFigure) -> Self {
        Self::new(vec![less, whole], FigureFormula::Saved)
    }

    fn largest_of(figures: Vec<RunFigure>) -> Self {
        Self::new(figures, FigureFormula::Most)
    }

    fn spread_of(figures: Vec<RunFigure>) -> Self {
        Self::new(figures, FigureFormula::Spread)
    }

    fn as_gain(self) -> Self {
        Self { gain: true, ..self }
    }

    /// The numbers of the answer: one, or two for a spread.
    fn compute_numbers(&self, studies: &BTreeMap<String, PaperStudy>) -> Result<Vec<f64>, String> {
        let value = |figure: &RunFigure| figure.study.resolve_bases(studies).prepare_study()?.value_of(figure.quantity);
        let values = self.figures.iter().map(value).collect::<Result<Vec<f64>, String>>()?;
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let numbers = match (&self.made, values.as_slice()) {
            (FigureFormula::Value(value), _) => vec![*value],
            (FigureFormula::Over(unit), [value]) => vec![value / unit],
            (FigureFormula::Ratio, [above, below]) => vec![above / below],
            (FigureFormula::Saved, [less, whole]) => vec![(1.0 - less / whole) * 100.0],
            (FigureFormula::Spread, [_, _, ..]) => vec![least, most],
            (FigureFormula::Most | FigureFormula::Spread, [_, ..]) => vec![most],
            _ => return Err("no run".to_owned()),
        };
        let of_cut = |cut: f64| if self.gain { 1.0 / (1.0 - cut / 100.0) } else { cut };
        let numbers: Vec<f64> = numbers.into_iter().map(of_cut).collect();
        if numbers.iter().all(|n| n.is_finite()) { Ok(numbers) } else { Err("nothing fits, or nothing is kept".to_owned()) }
    }
}

/// True if the header is that of a file of claims.
#[must_use]
pub fn is_claims(text: &[u8]) -> bool {
    let mut reader = csv::ReaderBuilder::new().flexible(true).trim(csv::Trim::All).from_reader(text);
    reader.headers().is_ok_and(|header| COLUMNS.iter().all(|column| describe_place(header, column).is_some()))
}

fn describe_place(header: &csv::StringRecord, column: &str) -> Option<usize> {
    header.iter().position(|name| name == column || name.starts_with(&format!("{column}(")))
}

/// Predicts all claims of a file. `path` names it in the report.
///
/// # Errors
/// A text that is no CSV with the columns of claims.
pub fn predict_claims(path: &Path, text: &[u8]) -> Result<ClaimReport, ValidateError> {
    let malformed = |why: String| ValidateError::Malformed { file: path.into(), why };
    let mut reader = csv::ReaderBuilder::new().flexible(true).trim(csv::Trim::All).from_reader(text);
    let header = reader.headers().map_err(|e| malformed(e.to_string()))?.clone();
    let studies = read_studies().map_err(|e| malformed(e.to_string()))?;
    let (mut claims, mut row_errors) = (Vec::new(), Vec::new());
    for record in reader.records() {
        let record = record.map_err(|e| malformed(e.to_string()))?;
        let cell = |column: &str| describe_place(&header, column).and_then(|at| record.get(at)).unwrap_or_default().to_owned();
        let line = record.position().map_or(0, csv::Position::line);
        let own = cell("id");
        let [system, model, hardware, setting, metric, value, unit, source, confidence] = COLUMNS.map(cell);
        let id = if own.is_empty() { format!("line-{line}") } else { own };
        let claim = PublishedClaim { id, system, model, hardware, setting, metric, value, unit, source, confidence };
        match claim_fault(&claim) {
            Some((key, value, limit, cure)) => {
                let [value, limit, cure] = [value, limit, cure].map(str::to_owned);
                row_errors.push(RowError {
                    file: path.into(),
                    line,
                    id: Some(claim.id.clone()),
                    key: key.to_owned(),
                    value,
                    limit,
                    cure,
                });
            }
            None => claims.push(predict_claim(claim, &studies)),
        }
    }
    Ok(ClaimReport { file: path.into(), claims, row_errors })
}

/// The fault of a claim: the column, its value, the limit and the cure. A value may be in the paper's words, or
/// unknown.
fn claim_fault(claim: &PublishedClaim) -> Option<(&'static str, &str, &'static str, &'static str)> {
    let named = [("system", &claim.system), ("metric", &claim.metric)];
    if let Some((key, _)) = named.into_iter().find(|(_, cell)| cell.is_empty()) {
        return Some((key, "(empty)", "must not be empty", "fill it in"));
    }
    let number = claim.value.parse::<f64>().ok()?;
    let cure = "write the paper's number or its words; an empty cell means unknown";
    match () {
        () if !number.is_finite() => Some(("value", &claim.value, "must be a finite number", cure)),
        () if number < 0.0 => Some(("value", &claim.value, "must not be negative", cure)),
        () => None,
    }
}

fn predict_claim(claim: PublishedClaim, studies: &BTreeMap<String, PaperStudy>) -> PredictedClaim {
    let nothing =
        |claim: PublishedClaim, why: String| PredictedClaim { claim, predicted: String::new(), error_pct: None, why: Some(why) };
    let answers: Vec<Result<Vec<f64>, String>> = match rules::questions_of_claim(&claim) {
        Ok(questions) => questions.into_iter().map(|question| question?.compute_numbers(studies)).collect(),
        Err(why) => return nothing(claim, why),
    };
    let refused = answers.iter().filter_map(|answer| answer.as_ref().err()).next().cloned();
    if answers.iter().all(Result::is_err) {
        return nothing(claim, refused.unwrap_or_else(|| "no quantity".to_owned()));
    }
    let claimed = text::parse_numbers(&claim.value);
    let between = match answers.as_slice() {
        [Ok(spread)] if spread.len() > 1 => NumberRelation::Range,
        _ => claimed.as_ref().map_or(NumberRelation::List, |(_, between)| *between),
    };
    let numbers: Vec<Option<f64>> = answers
        .iter()
        .flat_map(|answer| answer.as_ref().map_or_else(|_| vec![None], |numbers| numbers.iter().copied().map(Some).collect()))
        .collect();
    let written = |number: &Option<f64>| number.map_or_else(|| "?".to_owned(), to_six_digits);
    let text = numbers.iter().map(written).collect::<Vec<_>>().join(between.separator());
    let error_pct = claimed.as_ref().and_then(|(claimed, _)| mean_error(claimed, &numbers));
    let words = (claimed.is_none() && !claim.value.is_empty()).then(|| format!("{}: no number to score by", claim.value));
    PredictedClaim { claim, predicted: text, error_pct, why: refused.or(words) }
}

/// A number in six digits, without padding zeros.
fn to_six_digits(number: f64) -> String {
    format!("{number:.5e}").parse::<f64>().map_or_else(|_| number.to_string(), |rounded| rounded.to_string())
}

/// The mean error of the numbers on both sides, in percent. A single number is compared with the nearer end of a range.
fn mean_error(claimed: &[f64], predicted: &[Option<f64>]) -> Option<f64> {
    let off = |claimed: f64, predicted: f64| match (claimed == 0.0, predicted == 0.0) {
        (true, true) => Some(0.0),
        (true, false) => None,
        _ => Some(((predicted - claimed) / claimed * 100.0).abs()),
    };
    if let ([claimed], [Some(low), Some(high)]) = (claimed, predicted) {
        return off(*claimed, claimed.clamp(*low, *high));
    }
    if claimed.len() != predicted.len() {
        return None;
    }
    let errors: Vec<f64> = claimed.iter().zip(predicted).filter_map(|(c, p)| off(*c, (*p)?)).collect();
    (!errors.is_empty()).then(|| errors.iter().sum::<f64>() / errors.len() as f64)
}

/// Writes the claims atomically: each with its id, the prediction, the error and the reason of a missing prediction.
///
/// # Errors
/// Errors of the system.
pub fn write_claims(path: &Path, reports: &[ClaimReport]) -> Result<(), WriteError> {
    let text = claims_csv(reports).map_err(|why| WriteError { file: path.into(), why })?;
    files::write_file(path, &text)
}

fn claims_csv(reports: &[ClaimReport]) -> io::Result<Vec<u8>> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let last = ["predicted", "error_pct", "why"];
    writer.write_record(std::iter::once("id").chain(COLUMNS).chain(last))?;
    for PredictedClaim { claim: c, predicted, error_pct, why } in reports.iter().flat_map(|report| &report.claims) {
        let error = error_pct.map(|error| format!("{error:.2}")).unwrap_or_default();
        let cells = [&c.id, &c.system, &c.model, &c.hardware, &c.setting, &c.metric, &c.value, &c.unit, &c.source, &c.confidence];
        let own = cells.into_iter().map(String::as_str);
        writer.write_record(own.chain([predicted.as_str(), &error, why.as_deref().unwrap_or_default()]))?;
    }
    writer.into_inner().map_err(|e| io::Error::other(e.to_string()))
}

#[cfg(test)]
mod tests;
