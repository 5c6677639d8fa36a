//! Fits a fabric to a user's own measured collectives, and computes errors of collectives that were held out.

use super::alone::AloneResidual;
use super::calibration::{FittedScalarRange, mean_percent};
use super::folds::RowFolds;
use super::{LEAST_ROWS, MeasuredRows};
use crate::validate::predict::PreparedInputs;
use crate::validate::predict::collectives::{facts_on_fabric, time_on_fabric};
use crate::validate::row::RowFailure;
use crate::validate::{Dataset, ValidateError, ValidateOptions};
use serde::Serialize;
use sim::hardware::FieldValue;
use sim::network::{Fabric, FabricDocument};
use sim::scalar_fit::{LEFT_OUT, ScalarFit, ScalarPrior, prior_spread, round_to_four_digits};
use std::path::Path;

/// The fields of a tier that measured collectives determine: (name, offset before the logarithm, smallest value,
/// largest value). The bandwidths of links are nominal and not fitted.
const FITTED: [(&str, f64, f64, f64); 17] = [
    ("launch_us", 0.1, 0.0, 1e6),
    ("achieved_fraction", 0.0, 0.01, 1.0),
    ("step_latency_us", 0.05, 0.0, 1e6),
    ("chunk_overhead_us", 0.05, 0.0, 1e6),
    ("final_copy_gb_per_s", 0.0, 0.1, 1e6),
    ("low_latency_step_us", 0.05, 0.0, 1e6),
    ("low_latency_fraction", 0.0, 0.001, 1.0),
    ("line_step_us", 0.05, 0.0, 1e6),
    ("line_fraction", 0.0, 0.001, 1.0),
    ("line_chunk_us", 0.05, 0.0, 1e6),
    ("exchange_step_us", 0.05, 0.0, 1e6),
    ("exchange_fraction", 0.0, 0.001, 1.0),
    ("exchange_chunk_us", 0.05, 0.0, 1e6),
    ("exchange_peer_gb_per_s", 0.0, 0.01, 1e6),
    ("in_network_latency_us", 0.05, 0.0, 1e6),
    ("in_network_fraction", 0.0, 0.001, 1.0),
    ("in_network_chunk_us", 0.05, 0.0, 1e6),
];

/// A fabric fitted to collectives.
#[derive(Debug, Clone, PartialEq)]
pub struct CalibratedFabric {
    /// The fabric with the fitted scalars.
    pub document: FabricDocument,
    /// The data of the fit, as the text of a source.
    pub source: String,
    /// The errors and the scalars of the fit.
    pub fit: FabricFit,
}

/// The fit of a fabric.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FabricFit {
    /// Number of rows of the fabric that can be predicted.
    pub rows: usize,
    /// Number of other rows of the file: of other fabrics, chips or libraries, or without a prediction.
    pub others: usize,
    /// The version or setting of the rows' communication library, if the fabric has its own figures for it. The
    /// document then describes the fabric under this library alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub software: Option<String>,
    /// Mean absolute error in percent with the original scalars of the fabric.
    pub before_pct: f64,
    /// Error with the fitted scalars, on the fitted rows.
    pub after_pct: f64,
    /// Error on rows that are held out in turn.
    pub left_out_pct: f64,
    /// Error on kinds of collectives that are held out in turn; `None` if there is only one.
    pub by_kind_pct: Option<f64>,
    /// The scalars.
    pub scalars: Vec<FittedScalarRange>,
}

/// A scalar of the document.
struct FabricField {
    key: String,
    floor: f64,
    limits: (f64, f64),
    before: f64,
}

impl FabricField {
    fn to_coordinate(&self, value: f64) -> f64 {
        (value + self.floor).max(1e-6).ln()
    }

    fn read_value(&self, coordinate: f64) -> f64 {
        round_to_four_digits((coordinate.exp() - self.floor).clamp(self.limits.0, self.limits.1))
    }
}

/// The collectives of one fabric, and its fitted fields.
struct FabricUnit<'a> {
    rows: &'a MeasuredRows,
    members: Vec<(usize, f64)>,
    document: FabricDocument,
    /// The communication library whose figures the document has, if the fabric distinguishes several.
    software: Option<String>,
    fields: Vec<FabricField>,
}

/// Returns a fabric (a built-in one or a file) with scalars fitted to the rows of a file of collectives that name it.
/// `path` names the file in errors, and `text` has its contents. The fit starts from the fabric's own values. Only rows
/// with the chip and the communication library of the first such row count.
///
/// # Errors
/// A file without collectives; a fabric that does not exist; fewer than five rows that can be predicted.
pub fn calibrate_fabric(
    path: &Path,
    text: &[u8],
    fabric: &str,
    options: &ValidateOptions,
) -> Result<CalibratedFabric, ValidateError> {
    let rows = MeasuredRows::rows_of_contents(path, text, |dataset| dataset == Dataset::Collectives)?;
    let wrong = |why: &dyn std::fmt::Display| ValidateError::Stack { why: why.to_string() };
    let unknown = |e| wrong(&format!("{}: these are collectives, which a fabric is fitted to: {e}", path.display()));
    let base = Fabric::load(fabric).map_err(unknown)?;
    let named = |at: &usize| rows.row_at(*at).cell("fabric").is_some_and(|name| name == fabric || name == base.name);
    let mut prepared = PreparedInputs::new(options);
    let unit = FabricUnit::from_rows(&rows, fabric, &named, &mut prepared)?;
    if unit.members.len() < LEAST_ROWS {
        return Err(ValidateError::TooFewCollectives {
            file: path.into(),
            fabric: base.name,
            least: LEAST_ROWS,
            rows: unit.members.len(),
        });
    }
    let (point, fit) = unit.fit_fields(&mut prepared);
    let document = unit.document_at(&point);
    let determined: Vec<&str> =
        fit.scalars.iter().filter(|scalar| scalar.determined).map(|scalar| scalar.key.as_str()).collect();
    let source = format!(
        "{}: {} collectives of {} (coplace calibrate), {:.1} % off on held-out rows",
        determined.join(", "),
        fit.rows,
        path.display(),
        fit.left_out_pct
    );
    Ok(CalibratedFabric { document, source, fit })
}

/// Returns the residuals of all collectives of a file that can be predicted, by fabric, chip and communication library.
/// Fits start from the fabric's own values and keep them where rows do not determine them, because fabrics with other
/// tiers have no comparable values.
///
/// # Errors
/// A file that cannot be read or has no collectives.
pub fn collective_residuals(path: &Path, options: &ValidateOptions) -> Result<Vec<AloneResidual>, ValidateError> {
    let rows = MeasuredRows::read_rows_if(path, |dataset| dataset == Dataset::Collectives)?;
    let mut prepared = PreparedInputs::new(options);
    let (mut all, mut taken) = (Vec::new(), vec![false; rows.records.len()]);
    for at in 0..rows.records.len() {
        if taken[at] {
            continue;
        }
        taken[at] = true;
        let Some(fabric) = rows.row_at(at).cell("fabric").map(str::to_owned) else { continue };
        let left = |other: &usize| {
            (*other == at || !taken[*other]) && rows.row_at(*other).cell("fabric") == Some(fabric.as_str())
        };
        let Ok(unit) = FabricUnit::from_rows(&rows, &fabric, &left, &mut prepared) else { continue };
        all.extend(unit.collective_residuals(&mut prepared));
        unit.members.iter().for_each(|(member, _)| taken[*member] = true);
    }
    Ok(all)
}

/// Returns the fitted fields of a fabric's document.
fn fitted_fields(document: &FabricDocument) -> Vec<FabricField> {
    let one = |(key, setting): (String, FieldValue)| {
        let (_, floor, least, most) = *FITTED.iter().find(|(name, ..)| key.rsplit('.').next() == Some(name))?;
        let FieldValue::Number(before) = setting else { return None };
        Some(FabricField { key, floor, limits: (least, most), before })
    };
    document.list_fields().into_iter().filter_map(one).collect()
}

/// Returns the prior spread of a field: the standard deviation of the built-in fabrics' values.
fn spread_of(field: &FabricField) -> f64 {
    let name = field.key.rsplit('.').next();
    let documents = Fabric::names().into_iter().filter_map(|fabric| {
        let chip = "tpu_v4";
        FabricDocument::load_for(fabric, chip).ok()
    });
    let of = |document: FabricDocument| {
        fitted_fields(&document).into_iter().filter(|f| f.key.rsplit('.').next() == name).collect::<Vec<_>>()
    };
    prior_spread(documents.flat_map(of).map(|f| f.to_coordinate(f.before)))
}

impl<'a> FabricUnit<'a> {
    /// Returns the unit of those rows among `named` that have the chip and the communication library of the first one.
    fn from_rows(
        rows: &'a MeasuredRows,
        fabric: &str,
        named: &dyn Fn(&usize) -> bool,
        prepared: &mut PreparedInputs,
    ) -> Result<Self, ValidateError> {
        let wrong = |why: &dyn std::fmt::Display| ValidateError::Stack { why: why.to_string() };
        let first = (0..rows.records.len()).find(named);
        let of_first =
            |column: &str| first.and_then(|at| rows.row_at(at).cell(column).map(str::to_owned)).unwrap_or_default();
        let (chip, algorithm) = (of_first("chip"), of_first("algo"));
        let document = FabricDocument::load_for(fabric, &chip).map_err(|e| wrong(&e))?;
        let software =
            |algorithm: Option<&str>| document.software_with_figures(algorithm.unwrap_or_default()).map(str::to_owned);
        let of_one_software = |at: &usize| software(rows.row_at(*at).cell("algo")) == software(Some(&algorithm));
        let same: Vec<usize> = (0..rows.records.len()).filter(named).filter(of_one_software).collect();
        let own = software(Some(&algorithm));
        let document = document.with_software(&algorithm);
        let whole = document.build_fabric().map_err(|e| wrong(&e))?;
        let mut unit = Self { rows, members: Vec::new(), fields: fitted_fields(&document), document, software: own };
        for at in same {
            if let Ok(measured) = unit.measured_time(at, &chip, &whole, prepared) {
                unit.members.push((at, measured));
            }
        }
        Ok(unit)
    }

    /// Returns the measured time of a row with the chip `chip`, in microseconds.
    fn measured_time(
        &self,
        at: usize,
        chip: &str,
        fabric: &Fabric,
        prepared: &mut PreparedInputs,
    ) -> Result<f64, RowFailure> {
        let row = self.rows.row_at(at);
        let none = || RowFailure::Unpredictable("nothing is measured".into());
        row.check_width()?;
        if row.cell("chip") != Some(chip) {
            return Err(none());
        }
        let target =
            self.rows.dataset.target_columns().iter().find(|target| target.column == "measured_us").ok_or_else(none)?;
        let measured = row.measured_value(target)?.ok_or_else(none)?;
        time_on_fabric(prepared, &row, fabric.clone())?;
        Ok(measured)
    }

    /// Returns the document with the scalars of a point.
    fn document_at(&self, point: &[f64]) -> FabricDocument {
        let mut document = self.document.clone();
        for (field, coordinate) in self.fields.iter().zip(point) {
            // Setting an existing field succeeds.
            let _ = document.set_field(&field.key, &FieldValue::Number(field.read_value(*coordinate)));
        }
        document
    }

    /// Returns ln(predicted / measured) of some members at a point.
    fn errors_at(&self, members: &[usize], point: &[f64], prepared: &mut PreparedInputs) -> Vec<f64> {
        let Ok(fabric) = self.document_at(point).build_fabric() else { return vec![super::LOST; members.len()] };
        let one = |m: &usize| {
            let (at, measured) = self.members[*m];
            let error = time_on_fabric(prepared, &self.rows.row_at(at), fabric.clone())
                .map_or(f64::NAN, |us| (us / measured).ln());
            if error.is_finite() { error } else { super::LOST }
        };
        members.iter().map(one).collect()
    }

    fn prior_beliefs(&self) -> Vec<ScalarPrior> {
        let belief = |field: &FabricField| ScalarPrior {
            centre: field.to_coordinate(field.before),
            spread: spread_of(field),
            least: field.to_coordinate(field.limits.0),
            most: field.to_coordinate(field.limits.1),
        };
        self.fields.iter().map(belief).collect()
    }

    fn collective_residuals(&self, prepared: &mut PreparedInputs) -> Vec<AloneResidual> {
        let beliefs = self.prior_beliefs();
        let fit = ScalarFit { beliefs: &beliefs, starts: &[] };
        let all: Vec<usize> = (0..self.members.len()).collect();
        let centres: Vec<f64> = beliefs.iter().map(|belief| belief.centre).collect();
        let in_sample = self.errors_at(&all, &centres, prepared);
        let (parts, kinds) = (all.iter().map(|m| m % LEFT_OUT).collect::<Vec<_>>(), self.kinds_of_members());
        let mut apart = |folds: &[usize]| {
            let enough = folds.iter().any(|fold| *fold != 0) && all.len() > LEAST_ROWS;
            enough.then(|| self.errors_left_out(&fit, folds, prepared))
        };
        let (by_rows, by_kinds) = (apart(&parts), apart(&kinds));
        let one = |m: &usize| {
            let (at, measured) = self.members[*m];
            let row = self.rows.row_at(at);
            let cell = |key: &str| row.cell(key).unwrap_or("?").to_owned();
            let error = |errors: &Option<Vec<f64>>| errors.as_ref().map(|errors| -errors[*m]);
            AloneResidual {
                dataset: cell("dataset"),
                id: row.id(),
                group: Dataset::Collectives.group_of(&row),
                facts: facts_on_fabric(&row),
                from: None,
                part: parts[*m],
                predicted_us: measured * in_sample[*m].exp(),
                in_sample: -in_sample[*m],
                rows: error(&by_rows),
                kinds: error(&by_kinds),
                chip: None,
            }
        };
        all.iter().map(one).collect()
    }

    fn fit_fields(&self, prepared: &mut PreparedInputs) -> (Vec<f64>, FabricFit) {
        let beliefs = self.prior_beliefs();
        let fit = ScalarFit { beliefs: &beliefs, starts: &[] };
        let all: Vec<usize> = (0..self.members.len()).collect();
        let (point, ranges) = fit.fit_with_ranges(&mut |point| self.errors_at(&all, point, prepared));
        let centres: Vec<f64> = beliefs.iter().map(|belief| belief.centre).collect();
        let (before, after) = (self.errors_at(&all, &centres, prepared), self.errors_at(&all, &point, prepared));
        let parts = all.len().min(LEFT_OUT);
        let rows: Vec<usize> = all.iter().map(|m| m % parts).collect();
        let kinds = self.kinds_of_members();
        let several = kinds.iter().any(|kind| *kind != 0);
        let scalars =
            self.fields.iter().zip(&ranges).zip(&point).map(|((field, range), coordinate)| FittedScalarRange {
                key: field.key.clone(),
                before: field.before,
                after: if range.determined { field.read_value(*coordinate) } else { field.before },
                range: (field.read_value(range.low), field.read_value(range.high)),
                determined: range.determined,
            });
        let found = FabricFit {
            rows: all.len(),
            others: self.rows.records.len() - all.len(),
            software: self.software.clone(),
            before_pct: mean_percent(&before),
            after_pct: mean_percent(&after),
            left_out_pct: mean_percent(&self.errors_left_out(&fit, &rows, prepared)),
            by_kind_pct: several.then(|| mean_percent(&self.errors_left_out(&fit, &kinds, prepared))),
            scalars: scalars.collect(),
        };
        (point, found)
    }

    /// Returns the kind of collective of every member, as an index.
    fn kinds_of_members(&self) -> Vec<usize> {
        let kind = |(at, _): &(usize, f64)| self.rows.row_at(*at).cell("collective").unwrap_or_default().to_owned();
        RowFolds::by_name(self.members.iter().map(kind).collect()).of
    }

    /// Returns ln(predicted / measured) of every member with its fold held out of the fit.
    fn errors_left_out(&self, fit: &ScalarFit<'_>, of: &[usize], prepared: &mut PreparedInputs) -> Vec<f64> {
        let points = fit.fit_without_folds(of, &mut |rest, point| self.errors_at(rest, point, prepared));
        (0..of.len()).flat_map(|m| self.errors_at(&[m], &points[of[m]], prepared)).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use sim::kernel::{Collective, CollectiveKind, RankGroup};
    use sim::units::Bytes;

    /// Returns a file with the times of collectives on the fabric `truth`, whose scalars differ from the built-in ones.
    fn measured(truth: &Fabric) -> String {
        let kinds = [("all_reduce", CollectiveKind::AllReduce), ("all_gather", CollectiveKind::AllGather)];
        let mut text =
            "id,dataset,chip,fabric,collective,ranks,nodes,bytes,measured_us,bus_gbytes_per_s,algo,source\n".to_owned();
        for (name, kind) in kinds {
            // The launch cost is the same for groups of two and of eight, but the cost of steps is not. Together they
            // determine both.
            for (ranks, bytes) in
                [2, 4, 8].into_iter().flat_map(|ranks| (12..31).step_by(2).map(move |e| (ranks, 1_u64 << e)))
            {
                let us = truth
                    .cost_of_collective(&Collective {
                        kind,
                        bytes: Bytes(bytes),
                        group: RankGroup { ranks, stride: 1 },
                    })
                    .latency
                    .micros();
                text.push_str(&format!(
                    "{name}_{ranks}_{bytes},ours,a100_80gb_sxm,nvlink3_node,{name},{ranks},1,{bytes},{us},,,ours\n"
                ));
            }
        }
        text
    }

    fn fitted(rows: &str) -> Result<CalibratedFabric, ValidateError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ours.csv");
        std::fs::write(&path, rows).unwrap();
        calibrate_fabric(&path, &std::fs::read(&path).unwrap(), "nvlink3_node", &ValidateOptions::default())
    }

    #[test]
    fn the_scalars_of_a_node_are_found_in_its_collectives() {
        let mut document = FabricDocument::load_for("nvlink3_node", "a100_80gb_sxm").unwrap().with_software("");
        let set = [("launch_us", 20.0), ("tier.nvlink.achieved_fraction", 0.6)];
        for (key, value) in set {
            assert!(document.field_value(key).is_some(), "{key}");
            document.set_field(key, &FieldValue::Number(value)).unwrap();
        }
        let found = fitted(&measured(&document.build_fabric().unwrap())).unwrap();
        assert!(
            found.fit.before_pct > 10.0 && found.fit.after_pct < 2.0 && found.fit.left_out_pct < 4.0,
            "{:?}",
            found.fit
        );
        for (key, value) in set {
            let scalar = found.fit.scalars.iter().find(|scalar| scalar.key == key).unwrap();
            assert!(scalar.determined && (scalar.after / value - 1.0).abs() < 0.1, "{scalar:?}");
            assert!(scalar.range.0 <= value * 1.1 && scalar.range.1 >= value * 0.9, "{scalar:?}");
        }
        // The written document has the fitted values.
        let again = Fabric::from_toml_str("ours.toml", &found.document.to_text().unwrap()).unwrap();
        assert_eq!(again, found.document.build_fabric().unwrap());
    }

    #[test]
    fn too_few_rows_are_refused() {
        let rows = measured(&Fabric::load("nvlink3_node").unwrap());
        let few: String = rows.lines().take(4).map(|line| format!("{line}\n")).collect();
        let why = fitted(&few).unwrap_err().to_string();
        assert!(why.contains("fewer than 5 collectives of one chip on nvlink3_node") && why.contains("(3)"), "{why}");
    }
}
