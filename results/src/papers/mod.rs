//! Published figures of papers about memory techniques, and the studies that reproduce them:
//! `results/reference/techniques.toml`.

mod claims;
mod inference;
mod study;

pub use claims::{
    ClaimFault, ClaimReport, PredictedClaim, PublishedClaim, claims_csv, is_claims_header, predict_claims,
};
pub(crate) use study::PaperStudy;
pub use study::StudyQuantity;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

static REFERENCE: &str = include_str!("../../reference/techniques.toml");

const GIB: f64 = (1u64 << 30) as f64;

/// An error of computing a figure of a paper.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {why}")]
pub struct PaperError {
    /// The name of the figure, or of the file.
    pub place: String,
    /// The fault.
    pub why: String,
}

/// A published figure of a paper.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperFigure {
    /// Its name.
    pub id: String,
    /// The paper's system.
    pub system: String,
    /// The description of the figure.
    pub what: String,
    /// The study that reproduces it.
    pub study: String,
    /// The quantity of the study.
    pub quantity: StudyQuantity,
    /// Another study. If given, the figure is a relation of the quantity in both studies.
    #[serde(default)]
    pub against: Option<String>,
    /// The relation of the study's value to that of `against`.
    #[serde(default)]
    pub relation: FigureRelation,
    /// The paper's value; the lower end if it is a range.
    pub published: f64,
    /// The upper end of a published range.
    #[serde(default)]
    pub published_to: Option<f64>,
    /// The unit.
    pub unit: String,
    /// Tolerance in percent of the published value.
    #[serde(default)]
    pub tolerance_percent: Option<f64>,
    /// Tolerance in units of the figure; for a percentage in percentage points.
    #[serde(default)]
    pub tolerance_points: Option<f64>,
    /// The reason for the tolerance, and the known causes of the error.
    pub why: String,
    /// The publication.
    pub source: String,
    /// True if a choice was made after seeing the figure.
    #[serde(default)]
    pub fitted: bool,
    /// True if the figure is known not to be reproduced.
    #[serde(default)]
    pub missed: bool,
}

/// The relation of the values of two studies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FigureRelation {
    /// Reduction of the first value against the second, in percent of the second.
    #[default]
    Cut,
    /// The first value over the second.
    Ratio,
    /// The second value over the first.
    Factor,
    /// Increase of the first value over the second, in percent of the second.
    Gain,
}

impl FigureRelation {
    /// Returns the relation of two values.
    pub(crate) fn relate_values(self, value: f64, against: f64) -> f64 {
        match self {
            Self::Cut => (1.0 - value / against) * 100.0,
            Self::Ratio => value / against,
            Self::Factor => against / value,
            Self::Gain => (value / against - 1.0) * 100.0,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PaperFile {
    pub(crate) studies: BTreeMap<String, PaperStudy>,
    /// The systems of the papers, by their names in lower case.
    pub(crate) systems: BTreeMap<String, PaperSystem>,
    figures: Vec<PaperFigure>,
}

/// A paper's system, with the settings that claims about it omit.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PaperSystem {
    /// The study whose settings hold unless a claim says otherwise.
    pub(crate) base: String,
    /// Its memory techniques.
    pub(crate) techniques: Vec<String>,
    /// True if the techniques themselves recompute layers.
    #[serde(default)]
    pub(crate) recomputes: bool,
    /// The family of models that its papers name only by size.
    #[serde(default)]
    pub(crate) family: Option<String>,
    /// Words in its papers that change nothing.
    #[serde(default)]
    pub(crate) words: Vec<String>,
    /// True if a named optimizer replaces the system's techniques.
    #[serde(default)]
    pub(crate) replaces_optimizer: bool,
    /// Studies that replace `base` for some models. The key is the model's size (else its name) in lower case.
    #[serde(default)]
    pub(crate) sizes: BTreeMap<String, String>,
    /// The reason why a training plan cannot use the system.
    #[serde(default)]
    pub(crate) refused: Option<String>,
}

/// A published figure beside the computed value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReproducedFigure {
    /// The name of the figure.
    pub id: String,
    /// The paper's system.
    pub system: String,
    /// The description of the figure.
    pub what: String,
    /// The study's setting: model, devices, degrees, batch, formats, techniques.
    pub setting: String,
    /// The paper's value; the lower end if it is a range.
    pub published: f64,
    /// The upper end of a published range.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published_to: Option<f64>,
    /// The computed value.
    pub predicted: f64,
    /// The unit of both values.
    pub unit: String,
    /// Error in percent of the published value; 0 inside a published range.
    pub error_pct: f64,
    /// Error in units of the figure, if the tolerance is in units; for a percentage in percentage points. `None` if the
    /// tolerance is relative.
    pub error_points: Option<f64>,
    /// The tolerance: percent of the published value, or units (`points` for a percentage).
    pub tolerance: String,
    /// True if the error is within the tolerance.
    pub within: bool,
    /// True if a choice was made after seeing the figure.
    pub fitted: bool,
    /// True if the figure is known not to be reproduced.
    pub missed: bool,
    /// The reason for the tolerance, and the known causes of the error.
    pub why: String,
    /// The publication.
    pub source: String,
}

/// Computes all figures of the reference file.
///
/// # Errors
/// A reference file or a study that cannot be read or run; this is a fault of the reference.
pub fn reproduce_figures() -> Result<Vec<ReproducedFigure>, PaperError> {
    let file = read_reference()?;
    file.figures.iter().map(|figure| reproduce_figure(figure, &file.studies)).collect()
}

pub(crate) fn read_reference() -> Result<PaperFile, PaperError> {
    let place = "results/reference/techniques.toml".to_owned();
    toml::from_str(REFERENCE).map_err(|e| PaperError { place, why: e.to_string() })
}

fn reproduce_figure(
    figure: &PaperFigure,
    studies: &BTreeMap<String, PaperStudy>,
) -> Result<ReproducedFigure, PaperError> {
    let place = |why: String| PaperError { place: figure.id.clone(), why };
    let study_named = |name: &str| {
        let study = studies.get(name).ok_or_else(|| place(format!("no study {name}")))?;
        Ok(study.resolve_bases(studies))
    };
    let value_in =
        |study: &PaperStudy| study.prepare_study().and_then(|run| run.value_of(figure.quantity)).map_err(place);
    let study = study_named(&figure.study)?;
    let mut value = value_in(&study)?;
    if let Some(against) = &figure.against {
        value = figure.relation.relate_values(value, value_in(&study_named(against)?)?);
    }
    let predicted = match figure.unit.as_str() {
        "GiB" => value / GIB,
        "MiB" => value / GIB * 1024.0,
        "GB" => value / 1e9,
        "TiB" => value / GIB / 1024.0,
        _ => value,
    };
    // Inside a published range there is no error.
    let nearest = predicted.clamp(figure.published, figure.published_to.unwrap_or(figure.published));
    let off = predicted - nearest;
    let (within, tolerance) = match (figure.tolerance_points, figure.tolerance_percent) {
        (Some(points), _) => (off.abs() <= points, format!("{points} {}", unit_of_points(&figure.unit))),
        (None, percent) => {
            let percent = percent.unwrap_or(0.0);
            (off.abs() <= percent / 100.0 * nearest.abs(), format!("{percent} %"))
        }
    };
    Ok(ReproducedFigure {
        id: figure.id.clone(),
        system: figure.system.clone(),
        what: figure.what.clone(),
        setting: study.describe_setting(),
        published: figure.published,
        published_to: figure.published_to,
        predicted,
        unit: figure.unit.clone(),
        error_pct: if off == 0.0 { 0.0 } else { off / nearest.abs().max(1e-12) * 100.0 },
        error_points: figure.tolerance_points.map(|_| off),
        tolerance,
        within,
        fitted: figure.fitted,
        missed: figure.missed,
        why: figure.why.clone(),
        source: figure.source.clone(),
    })
}
/// Returns the unit of a difference between two values. For a percentage these are points, not percent.
#[must_use]
pub fn unit_of_points(unit: &str) -> &str {
    if unit == "%" { "points" } else { unit }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Every system has two figures or more, except those of inference. Every figure has a setting and a reason for its
    /// tolerance.
    #[test]
    fn every_system_has_published_figures() {
        let (all, file) = (reproduce_figures().unwrap(), read_reference().unwrap());
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for figure in &all {
            *counts.entry(&figure.system).or_default() += 1;
            assert!(figure.setting.contains(" on ") && !figure.why.is_empty(), "{}", figure.id);
        }
        let seeds = [
            "MsT",
            "MEMO",
            "SSDTrain",
            "PHAZE",
            "Pipette",
            "LOMO",
            "GaLore",
            "TRAlgorithm",
            "Approx-BP/MS-BP",
            "Mesa",
            "WTA-CRS",
            "RAD",
            "LoRA-FA",
            "CompAct",
            "VeLoRA",
            "RMM",
            "MEMO (class-incremental)",
            "Megatron-LM",
        ];
        for seed in seeds {
            assert!(counts.get(seed).copied().unwrap_or(0) >= 2, "{seed}: {counts:?}");
        }
        for (inference, system) in [("homer", "HOMER"), ("memory^3", "Memory^3")] {
            assert!(file.systems[inference].refused.is_some() && counts[system] >= 1, "{counts:?}");
        }
    }

    #[test]
    fn published_figures_are_reproduced() {
        let all = reproduce_figures().unwrap();
        assert!(all.len() >= 85);
        let wrong: Vec<String> = all
            .iter()
            .filter(|r| r.within == r.missed)
            .map(|r| {
                format!(
                    "{}: {} predicted, {} published ({:+.1} %), allowed {}",
                    r.id, r.predicted, r.published, r.error_pct, r.tolerance
                )
            })
            .collect();
        assert!(wrong.is_empty(), "out of tolerance, or marked as missed and within:\n{}", wrong.join("\n"));
    }
}
