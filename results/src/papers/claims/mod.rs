//! Published claims about memory techniques (`system,model,hardware,setting,metric,value,unit`) beside computed values.
//!
//! Each claim becomes a study. Its cells state the whole setting: model, devices, degrees, batch, formats,
//! checkpointing. A claim with unknown words is refused and the words are reported, because its prediction might be for
//! a different run. The usual settings of each system are in `results/reference/techniques.toml`. No prediction is
//! looked up by row.

mod metric;
mod models;
#[cfg(test)]
mod tests;
mod value;
mod words;

use self::metric::{ClaimedMetric, read_metric, size_of_unit};
use self::value::{ClaimedValue, ClaimedValues, NumberRelation, parse_values, split_parts};
use self::words::{ReadSetting, read_words};
use crate::papers::{PaperError, PaperFile, PaperStudy, PaperSystem, StudyQuantity, read_reference};
use serde::Serialize;
use std::collections::BTreeMap;

/// The columns, in order. In some files, text in parentheses follows the name of a column.
const COLUMNS: [&str; 7] = ["system", "model", "hardware", "setting", "metric", "value", "unit"];

/// The largest number of models that one claim may name.
const MODELS: usize = 8;

/// A row of a file of claims.
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
    /// The setting of the claim: plan, batch, formats and methods.
    pub setting: String,
    /// The measured or counted metric.
    pub metric: String,
    /// The value as the paper writes it.
    pub value: String,
    /// The unit.
    pub unit: String,
}

/// A claim beside the computed value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PredictedClaim {
    /// The claim.
    #[serde(flatten)]
    pub claim: PublishedClaim,
    /// The settings of the computed runs, in the form in which they were understood. Empty if nothing was computed.
    pub read_as: Vec<String>,
    /// The computed value in the form of the claimed one: `12.6 / 0.24 / 0`. Empty if nothing can be computed.
    pub predicted: String,
    /// Mean absolute error of the numbers in the value, in percent. `None` if no pair of numbers can be scored.
    pub error_pct: Option<f64>,
    /// The reason why the prediction or the error is missing or incomplete.
    pub why: Option<String>,
}

/// A claim that cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClaimFault {
    /// Line in the file; the header is line 1.
    pub line: u64,
    /// The id of the row.
    pub id: String,
    /// The column.
    pub key: String,
    /// The content of the cell, or its unknown words.
    pub value: String,
    /// The violated rule.
    pub limit: String,
    /// Advice to the user.
    pub cure: String,
}

/// The result for a file of claims.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClaimReport {
    /// The file.
    pub file: String,
    /// The claims that were understood, in the order of the file.
    pub claims: Vec<PredictedClaim>,
    /// The other claims.
    pub faults: Vec<ClaimFault>,
}

impl ClaimReport {
    /// Returns the faults as messages.
    pub fn describe_faults(&self) -> impl Iterator<Item = String> + '_ {
        self.faults.iter().map(|fault| {
            let ClaimFault { line, key, value, limit, cure, .. } = fault;
            format!("{}:{line}: {key} = {value}: {limit}; {cure}", self.file)
        })
    }
}

/// Returns the claims of all reports as CSV. The columns `predicted,error_pct,why,read_as` are added.
///
/// # Errors
/// An error of the CSV writer; this is a fault of the program.
pub fn claims_csv(reports: &[ClaimReport]) -> Result<Vec<u8>, csv::Error> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let head = std::iter::once("id").chain(COLUMNS).chain(["predicted", "error_pct", "why", "read_as"]);
    writer.write_record(head)?;
    for PredictedClaim { claim, read_as, predicted, error_pct, why } in reports.iter().flat_map(|r| &r.claims) {
        let PublishedClaim { id, system, model, hardware, setting, metric, value, unit } = claim;
        let error = error_pct.map_or_else(String::new, |error| error.to_string());
        let read_as = read_as.join("; ");
        let why = why.clone().unwrap_or_default();
        let cells = [id, system, model, hardware, setting, metric, value, unit, predicted, &error, &why, &read_as];
        writer.write_record(cells)?;
    }
    writer.into_inner().map_err(|error| error.into_error().into())
}

/// True if the first line of a text is the header of a CSV file of claims.
#[must_use]
pub fn is_claims_header(text: &str) -> bool {
    let mut reader = csv::ReaderBuilder::new().flexible(true).trim(csv::Trim::All).from_reader(text.as_bytes());
    reader.headers().is_ok_and(|header| COLUMNS.iter().all(|column| place_of_column(header, column).is_some()))
}

fn place_of_column(header: &csv::StringRecord, column: &str) -> Option<usize> {
    header.iter().position(|name| name == column || name.starts_with(&format!("{column}(")))
}

/// Predicts all claims of a file. `name` is the name of the file in the report.
///
/// # Errors
/// A text that is no CSV; a fault of the reference file.
pub fn predict_claims(name: &str, text: &str) -> Result<ClaimReport, PaperError> {
    let malformed = |why: String| PaperError { place: name.to_owned(), why };
    let mut reader = csv::ReaderBuilder::new().flexible(true).trim(csv::Trim::All).from_reader(text.as_bytes());
    let header = reader.headers().map_err(|e| malformed(e.to_string()))?.clone();
    let reference = read_reference()?;
    let mut report = ClaimReport { file: name.to_owned(), claims: Vec::new(), faults: Vec::new() };
    for record in reader.records() {
        let record = record.map_err(|e| malformed(e.to_string()))?;
        let cell = |column: &str| {
            place_of_column(&header, column).and_then(|at| record.get(at)).unwrap_or_default().to_owned()
        };
        let line = record.position().map_or(0, csv::Position::line);
        let own = cell("id");
        let [system, model, hardware, setting, metric, value, unit] = COLUMNS.map(cell);
        let id = if own.is_empty() { format!("line-{line}") } else { own };
        let claim = PublishedClaim { id, system, model, hardware, setting, metric, value, unit };
        match predict_claim(claim, &reference) {
            Ok(claim) => report.claims.push(claim),
            Err(fault) => report.faults.push(ClaimFault { line, ..*fault }),
        }
    }
    Ok(report)
}

/// Makes a fault in a cell of a claim.
fn claim_fault(claim: &PublishedClaim, key: &str, value: &str, limit: &str, cure: &str) -> Box<ClaimFault> {
    let [key, value, limit, cure] = [key, value, limit, cure].map(str::to_owned);
    Box::new(ClaimFault { line: 0, id: claim.id.clone(), key, value, limit, cure })
}

/// Finds the system of a claim. A name without an entry may be that of a technique. `None` if it is neither.
fn system_of_claim(claim: &PublishedClaim, reference: &PaperFile) -> Option<PaperSystem> {
    let name = claim.system.to_lowercase();
    let name = name.split(" (").next().unwrap_or_default().trim();
    if let Some(system) = reference.systems.get(name) {
        return Some(system.clone());
    }
    let preset = name.replace([' ', '_'], "-");
    let known = workloads::memory::Preset::built_in_names().contains(&preset);
    known.then(|| PaperSystem {
        base: "claim".to_owned(),
        techniques: vec![preset],
        recomputes: false,
        family: None,
        words: Vec::new(),
        refused: None,
        replaces_optimizer: false,
        sizes: BTreeMap::new(),
    })
}

/// Predicts a claim.
///
/// # Errors
/// A missing cell, an unknown system or model, unknown words, or a negative value.
fn predict_claim(claim: PublishedClaim, reference: &PaperFile) -> Result<PredictedClaim, Box<ClaimFault>> {
    let named = [("system", &claim.system), ("model", &claim.model), ("metric", &claim.metric)];
    if let Some((key, _)) = named.into_iter().find(|(_, cell)| cell.is_empty() || cell.as_str() == "-") {
        return Err(claim_fault(&claim, key, "(empty)", "must not be empty", "fill it in"));
    }
    let claimed = parse_values(&claim.value);
    let negative = |value: &ClaimedValue| matches!(value, ClaimedValue::Number(number) if *number < 0.0);
    if claimed.as_ref().is_some_and(|claimed| claimed.values.iter().any(negative)) {
        let cure = "write the paper's number or its words; an empty cell means unknown";
        return Err(claim_fault(&claim, "value", &claim.value, "must not be negative", cure));
    }
    let nothing = |claim: PublishedClaim, why: String| PredictedClaim {
        claim,
        read_as: Vec::new(),
        predicted: String::new(),
        error_pct: None,
        why: Some(why),
    };
    let Some(system) = system_of_claim(&claim, reference) else {
        let known: Vec<&str> = reference.systems.keys().map(String::as_str).collect();
        let cure = format!("use {}, or the name of a technique (coplace list techniques)", known.join(", "));
        return Err(claim_fault(&claim, "system", &claim.system, "is no known system or technique", &cure));
    };
    if let Some(why) = &system.refused {
        return Ok(nothing(claim, why.clone()));
    }
    let metrics = metrics_of_claim(&claim);
    let metrics = match metrics {
        Ok(metrics) => metrics,
        Err(why) => return Ok(nothing(claim, why)),
    };
    let unit = match size_of_unit(&claim.unit) {
        Ok(unit) => unit,
        Err(why) => return Ok(nothing(claim, why)),
    };
    let settings = settings_of_claim(&claim, &system)?;
    let models = match models::models_of_claim(system.family.as_deref(), &claim.model, &settings[0].shapes) {
        Ok(models) => models.into_iter().take(MODELS).collect::<Vec<_>>(),
        Err(why) => return Ok(nothing(claim, why)),
    };
    let mut studies = Vec::new();
    for setting in settings {
        match setting.into_study(&system) {
            Ok(study) => studies.push(PaperStudy { base: Some(base_of_claim(&system, &claim.model)), ..study }),
            Err(why) => {
                return Err(claim_fault(&claim, "setting", &claim.setting, &why, "correct it"));
            }
        }
    }
    let asked = ClaimRuns { reference, system: &system, models: &models, studies: &studies, metrics: &metrics, unit };
    Ok(asked.predict_values(claim, claimed))
}

/// Returns the study whose settings complete a claim: the one for the model's size if the system has one, else its
/// base.
fn base_of_claim(system: &PaperSystem, model: &str) -> String {
    let size = models::size_of(model).unwrap_or_else(|| model.to_lowercase());
    system.sizes.get(&size).unwrap_or(&system.base).clone()
}

/// Reads the metrics of a claim. Several metrics are separated by slashes: `params/grads/states`.
fn metrics_of_claim(claim: &PublishedClaim) -> Result<Vec<ClaimedMetric>, String> {
    let whole = read_metric(&claim.metric, &claim.unit);
    let parts: Vec<&str> = claim.metric.split('/').map(str::trim).filter(|part| !part.is_empty()).collect();
    let several = claim.value.contains('/') && parts.len() == claim.value.split('/').count();
    if parts.len() < 2 || !several {
        return whole.map(|metric| vec![metric]);
    }
    // `total with AC / without`: the second part names only the setting.
    let mut metrics: Vec<ClaimedMetric> = Vec::new();
    for part in parts {
        match (read_metric(part, &claim.unit), metrics.last().copied()) {
            (Err(_), Some(before)) if part.starts_with("without") => metrics.push(before),
            (read, _) => metrics.push(read?),
        }
    }
    Ok(metrics)
}

/// Reads the settings of a claim, in the order of its text. Values of the first setting also hold for the others, which
/// only name other methods.
fn settings_of_claim(claim: &PublishedClaim, system: &PaperSystem) -> Result<Vec<ReadSetting>, Box<ClaimFault>> {
    let unread = |key: &str, words: Vec<String>| {
        let limit = "these words are not read, and may change the run";
        let cure = "write them in words that are (measured/README.md, \"Published claims\"), or leave them out";
        claim_fault(claim, key, &words.join(" "), limit, cure)
    };
    let plain = |text: &str| if text == "-" { String::new() } else { text.to_owned() };
    let hardware = read_words(&plain(&claim.hardware), system, ReadSetting::default())
        .map_err(|words| unread("hardware", words))?;
    let metric_words = checkpointing_of_metric(&claim.metric);
    let parts = split_parts(&claim.setting);
    let parts = if parts.is_empty() { vec![""] } else { parts };
    let mut settings: Vec<ReadSetting> = Vec::new();
    for part in parts.iter().flat_map(|part| metric_words.iter().map(move |words| format!("{} {words}", plain(part)))) {
        let mut before = settings.first().cloned().unwrap_or_else(|| hardware.clone());
        if !settings.is_empty() {
            (before.techniques, before.study.recompute) = (None, None);
        }
        settings.push(read_words(&part, system, before).map_err(|words| unread("setting", words))?);
    }
    Ok(settings)
}

/// Returns the words about checkpointing in a metric: `ac` and `without` for `total with AC / without`.
fn checkpointing_of_metric(metric: &str) -> Vec<&'static str> {
    let metric = metric.to_lowercase();
    let part = |part: &str| match () {
        () if part.contains("without") => "without",
        () if part.contains("with ac") || part.contains("with checkpointing") => "ac",
        () => "",
    };
    match part(&metric).is_empty() {
        true => vec![""],
        false => metric.split('/').map(part).collect(),
    }
}

/// The runs that a claim needs.
struct ClaimRuns<'a> {
    reference: &'a PaperFile,
    system: &'a PaperSystem,
    models: &'a [workloads::Model],
    studies: &'a [PaperStudy],
    metrics: &'a [ClaimedMetric],
    /// The size of the claim's unit, in bytes, seconds or tokens.
    unit: f64,
}

impl ClaimRuns<'_> {
    /// Returns the study for a model, with all settings filled in.
    fn study(&self, model: &workloads::Model, setting: &PaperStudy) -> PaperStudy {
        PaperStudy { own_model: Some(model.clone()), ..setting.clone() }.resolve_bases(&self.reference.studies)
    }

    fn value_in(&self, study: &PaperStudy, quantity: StudyQuantity) -> Result<f64, String> {
        let recomputes = study.recompute.as_deref().is_some_and(|policy| policy != "none");
        let (study, quantity) = match quantity {
            // This quantity is about the tensors of the plan without techniques.
            StudyQuantity::ActivationsOfAllDevices => {
                (&PaperStudy { techniques: Some(Vec::new()), ..study.clone() }, quantity)
            }
            // With recomputation, the papers count everything except weights and states.
            StudyQuantity::ActivationsAtLoss
                if self.system.recomputes && (recomputes || study.techniques.iter().flatten().next().is_some()) =>
            {
                (study, StudyQuantity::BesideWeightsAndStates)
            }
            _ => (study, quantity),
        };
        let value = study.prepare_study()?.value_of(quantity)?;
        if value.is_finite() { Ok(value) } else { Err("nothing fits, or nothing is kept".to_owned()) }
    }

    /// Returns the value of a metric in a setting: one number, or the smallest and the largest over several models.
    fn numbers(&self, metric: ClaimedMetric, at: usize) -> Result<Vec<f64>, String> {
        let own = &self.studies[at.min(self.studies.len() - 1)];
        let against = match (metric.relation, self.studies) {
            (None, _) => None,
            // With two settings, the first is compared with the second.
            (Some(relation), [first, second]) => Some((relation, first.clone(), second.clone())),
            (Some(relation), _) => {
                let plain = PaperStudy { techniques: Some(Vec::new()), ..own.clone() };
                Some((relation, own.clone(), plain))
            }
        };
        let one = |model: &workloads::Model| match &against {
            None => Ok(self.value_in(&self.study(model, own), metric.quantity)? / self.unit),
            Some((relation, one, other)) => {
                let of = |study| self.value_in(&self.study(model, study), metric.quantity);
                Ok(relation.relate_values(of(one)?, of(other)?))
            }
        };
        let numbers = self.models.iter().map(one).collect::<Result<Vec<f64>, String>>()?;
        let most = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let least = numbers.iter().copied().fold(f64::INFINITY, f64::min);
        Ok(match (numbers.len(), metric.largest) {
            (1, _) | (_, true) => vec![most],
            _ => vec![least, most],
        })
    }

    /// Describes the sizes that the claim leaves open, and the assumption about them. `None` if none matters.
    fn open_sizes(&self) -> Option<String> {
        let study = self.study(&self.models[0], &self.studies[0]);
        let open = [("batch", study.micro_batch.is_none()), ("sequence's length", study.sequence.is_none())];
        let names: Vec<&str> = open.into_iter().filter(|(_, open)| *open).map(|(name, _)| name).collect();
        let statics = self.metrics.iter().all(|metric| metric.quantity.is_of_parameters());
        (!names.is_empty() && !statics).then(|| {
            format!("the {} is not given: one sequence, of the model's longest, is assumed", names.join(" and the "))
        })
    }

    /// True if the run of a setting fits.
    fn fits(&self, at: usize) -> Result<bool, String> {
        let study = self.study(&self.models[0], &self.studies[at.min(self.studies.len() - 1)]);
        Ok(self.value_in(&study, StudyQuantity::Fits)? > 0.5)
    }

    fn predict_values(&self, claim: PublishedClaim, claimed: Option<ClaimedValues>) -> PredictedClaim {
        let related = self.metrics.iter().any(|metric| metric.relation.is_some());
        let count = if related { self.metrics.len() } else { self.metrics.len().max(self.studies.len()) };
        let (mut texts, mut scored, mut refused) = (Vec::new(), Vec::new(), None);
        let values = claimed.as_ref().map_or(&[][..], |claimed| &claimed.values[..]);
        let mut relation = claimed.as_ref().map_or(NumberRelation::List, |claimed| claimed.relation);
        for at in 0..count {
            let metric = self.metrics[at.min(self.metrics.len() - 1)];
            let out_of_memory = values.get(at) == Some(&ClaimedValue::OutOfMemory);
            let memory = metric.relation.is_none() && metric.quantity == StudyQuantity::Peak;
            match (memory.then(|| self.fits(at)), self.numbers(metric, at)) {
                (Some(Ok(false)), _) => texts.push("OOM".to_owned()),
                (_, Ok(numbers)) => {
                    if numbers.len() > 1 {
                        relation = NumberRelation::Range;
                    }
                    let from = if numbers.len() > 1 { 0 } else { at };
                    for (place, number) in numbers.into_iter().enumerate() {
                        texts.push(format_claim(number));
                        if let Some(ClaimedValue::Number(claimed)) = values.get(from + place) {
                            scored.push(ScoredNumber { claimed: *claimed, predicted: number });
                        }
                    }
                    if out_of_memory {
                        refused.get_or_insert("fits here, and the paper ran out of memory".to_owned());
                    }
                }
                (_, Err(why)) => {
                    texts.push("?".to_owned());
                    refused.get_or_insert(why);
                }
            }
        }
        if texts.iter().all(|text| text == "?") {
            texts.clear();
        }
        let error_pct = mean_error(&scored);
        let words =
            (claimed.is_none() && !claim.value.is_empty()).then(|| format!("{}: no number to score by", claim.value));
        let words = words.or_else(|| self.open_sizes());
        let read_as = self.studies.iter().map(|setting| self.study(&self.models[0], setting).describe_setting());
        let mut read_as: Vec<String> = read_as.collect();
        if related && self.studies.len() == 1 && !self.system.techniques.is_empty() {
            read_as.push("against the same without techniques".to_owned());
        }
        PredictedClaim {
            claim,
            read_as,
            predicted: texts.join(relation.separator()),
            error_pct,
            why: refused.or(words),
        }
    }
}

/// A number of a paper, and its prediction.
struct ScoredNumber {
    claimed: f64,
    predicted: f64,
}

/// Returns the mean absolute error in percent of the claimed numbers. A claimed zero with another prediction is left
/// out. `None` if no number is left.
fn mean_error(scored: &[ScoredNumber]) -> Option<f64> {
    let error = |ScoredNumber { claimed, predicted }: &ScoredNumber| match (*claimed == 0.0, *predicted == 0.0) {
        (true, true) => Some(0.0),
        (true, false) => None,
        _ => Some((predicted - claimed).abs() / claimed.abs() * 100.0),
    };
    let errors: Vec<f64> = scored.iter().filter_map(error).collect();
    (!errors.is_empty()).then(|| errors.iter().sum::<f64>() / errors.len() as f64)
}

/// Formats a number with four significant digits.
fn format_claim(number: f64) -> String {
    crate::text::format_significant(number, 4)
}
