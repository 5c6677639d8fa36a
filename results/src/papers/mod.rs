//! Published figures of papers about memory techniques, and the studies that reproduce them:
//! `results/reference/techniques.toml`.

mod study;

pub(crate) use study::PaperStudy;
pub use study::StudyQuantity;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

static REFERENCE: &str = include_str!("../../reference/techniques.toml");

const GIB: f64 = (1u64 << 30) as f64;

/// An error of computing a figure.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {why}")]
pub struct PaperError {
    /// The figure or the study.
    pub place: String,
    /// The fault.
    pub why: String,
}

/// A figure of a paper.
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
    /// The paper's value.
    pub published: f64,
    /// The unit.
    pub unit: String,
    /// Tolerance in percent of the published value.
    #[serde(default)]
    pub tolerance_percent: Option<f64>,
    /// Tolerance in units; for a percentage in percentage points.
    #[serde(default)]
    pub tolerance_points: Option<f64>,
    /// The reason of the tolerance, and known causes of the error.
    pub why: String,
    /// The publication.
    pub source: String,
    /// True if something was chosen after seeing the figure.
    #[serde(default)]
    pub fitted: bool,
    /// True if the figure is not reproduced.
    #[serde(default)]
    pub missed: bool,
}
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PaperFile {
    studies: BTreeMap<String, PaperStudy>,
    figures: Vec<PaperFigure>,
}

/// A published figure beside the computed one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReproducedFigure {
    /// Its name.
    pub id: String,
    /// The paper's system.
    pub system: String,
    /// The description of the figure.
    pub what: String,
    /// The paper's value.
    pub published: f64,
    /// The computed value.
    pub predicted: f64,
    /// The unit of both values.
    pub unit: String,
    /// Error in percent of the published value.
    pub error_pct: f64,
    /// Error in units, if the tolerance is in units; for a percentage in percentage points. `None` if the tolerance is
    /// relative.
    pub error_points: Option<f64>,
    /// The tolerance: percent of the published value, or units (`points` for a percentage).
    pub tolerance: String,
    /// True if the error is within the tolerance.
    pub within: bool,
    /// True if something was chosen after seeing the figure.
    pub fitted: bool,
    /// True if the figure is known not to be reproduced.
    pub missed: bool,
    /// The reason of the tolerance.
    pub why: String,
    /// The publication.
    pub source: String,
}

/// Computes all figures of the reference.
///
/// # Errors
/// A study that cannot be run; this is a fault of the reference.
pub fn reproduce_figures() -> Result<Vec<ReproducedFigure>, PaperError> {
    let file = read_reference()?;
    file.figures.iter().map(|figure| reproduce_figure(figure, &file.studies)).collect()
}

fn read_reference() -> Result<PaperFile, PaperError> {
    let place = "results/reference/techniques.toml".to_owned();
    toml::from_str(REFERENCE).map_err(|e| PaperError { place, why: e.to_string() })
}

fn reproduce_figure(
    figure: &PaperFigure,
    studies: &BTreeMap<String, PaperStudy>,
) -> Result<ReproducedFigure, PaperError> {
    let place = |why: String| PaperError { place: figure.id.clone(), why };
    let study = studies.get(&figure.study).ok_or_else(|| place(format!("no study {}", figure.study)))?;
    let value =
        study.resolve_bases(studies).prepare_study().and_then(|run| run.value_of(figure.quantity)).map_err(place)?;
    let predicted = match figure.unit.as_str() {
        "GiB" => value / GIB,
        "MiB" => value / GIB * 1024.0,
        "GB" => value / 1e9,
        _ => value,
    };
    let off = predicted - figure.published;
    let (within, tolerance) = match (figure.tolerance_points, figure.tolerance_percent) {
        (Some(points), _) => (off.abs() <= points, format!("{points} {}", unit_of_points(&figure.unit))),
        (None, percent) => {
            let percent = percent.unwrap_or(0.0);
            (off.abs() <= percent / 100.0 * figure.published.abs(), format!("{percent} %"))
        }
    };
    Ok(ReproducedFigure {
        id: figure.id.clone(),
        system: figure.system.clone(),
        what: figure.what.clone(),
        published: figure.published,
        predicted,
        unit: figure.unit.clone(),
        error_pct: if off == 0.0 { 0.0 } else { off / figure.published.abs().max(1e-12) * 100.0 },
        error_points: figure.tolerance_points.map(|_| off),
        tolerance,
        within,
        fitted: figure.fitted,
        missed: figure.missed,
        why: figure.why.clone(),
        source: figure.source.clone(),
    })
}
/// The name of a unit's own steps. For a percentage they are points, not percent.
#[must_use]
pub fn unit_of_points(unit: &str) -> &str {
    if unit == "%" { "points" } else { unit }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn published_figures_are_reproduced() {
        let all = reproduce_figures().unwrap();
        assert!(all.len() >= 45);
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
