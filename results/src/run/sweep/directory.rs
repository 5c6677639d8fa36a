//! The directory of a finished sweep: its exports, its record and the found files. Other commands read it like the
//! directory of a search.

use super::export::{CSV, PARQUET, SweepSummary};
use super::row::CombinationOutcome;
use super::store::{BESIDE, STORE, SweepStore, SweepStoreError};
use crate::run::record::{Certificate, Proof, RECORD, SearchRecord};
use crate::run::search_run::{self, CHIP, FABRIC, FoundFiles, RunError, SearchRun};
use crate::store::files::{self, WriteError};
use crate::store::sums::{self, SUMS};
use search::objective::{Objective, ObjectiveKind, ValueScale};
use search::space::places_of_combination;
use sim::status::SolveStatus;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// An error of reading the directory of a search or of a sweep.
#[derive(Debug, thiserror::Error)]
pub enum RunDirectoryError {
    /// An error of the record, or of the designs of a search.
    #[error(transparent)]
    Run(#[from] RunError),
    /// An error of the designs of a sweep.
    #[error(transparent)]
    Sweep(#[from] SweepStoreError),
}

/// Reads the directory of a search or of a sweep. From a sweep, it reads only the evaluated designs; the store has
/// the others.
///
/// # Errors
/// A file that is missing, damaged, of another version, or of another run than the digests.
pub fn read_directory(directory: &Path) -> Result<SearchRun, RunDirectoryError> {
    let record = search_run::read_record(directory)?;
    if !search_run::has_digest_of(directory, PARQUET)? {
        return Ok(SearchRun::read_designs(directory, record)?);
    }
    search_run::verify_file(directory, PARQUET)?;
    let store = SweepStore::read_in(directory)?;
    let facts = store.facts();
    let dials: Vec<_> = facts.dimensions.iter().map(super::SweptDimension::to_dial).collect();
    let varied = |number: u64| {
        let shown = dials.iter().zip(places_of_combination(&dials, number)).filter(|(dial, _)| dial.values.len() > 1);
        let words: Vec<String> = shown.map(|(dial, at)| format!("{} {}", dial.key, dial.values[at])).collect();
        (!words.is_empty()).then(|| words.join(", "))
    };
    let mut designs = Vec::new();
    store.for_each_row(|row| {
        if let Some(mut design) = row.design.filter(|_| row.fate == CombinationOutcome::Evaluated) {
            design.dimensions = design.dimensions.take().or_else(|| varied(row.number));
            designs.push(*design);
        }
        Ok::<(), SweepStoreError>(())
    })?;
    Ok(SearchRun { name: search_run::run_name(directory), record, designs })
}

/// Every file that the directory of a sweep may have.
pub const FILES: [&str; 9] = [SUMS, STORE, BESIDE[0], BESIDE[1], PARQUET, CSV, CHIP, FABRIC, RECORD];

/// Writes the files beside the exports: the digests, the found chip and fabric, and last the record. Returns all paths,
/// the record's first.
///
/// # Errors
/// Errors of the system; a value that is not finite.
pub fn finish_directory(directory: &Path, record: &SearchRecord, found: &FoundFiles) -> Result<Vec<PathBuf>, RunError> {
    let path = |name: &str| directory.join(name);
    let named = [(CHIP, &found.chip), (FABRIC, &found.fabric)];
    let mut files: Vec<(PathBuf, Vec<u8>)> =
        named.iter().filter_map(|(name, text)| Some((path(name), text.as_ref()?.clone().into_bytes()))).collect();
    files.push((path(RECORD), record.to_json()?.into_bytes()));
    let mut digests = String::new();
    for name in [PARQUET, CSV] {
        let digest = sums::digest_of_file(&path(name)).map_err(|why| WriteError { file: path(name), why })?;
        digests.push_str(&format!("{digest}  {name}\n"));
    }
    files.insert(0, (path(SUMS), (digests + &sums::digest_lines(&files)).into_bytes()));
    let stale: Vec<PathBuf> = named.iter().filter(|(_, text)| text.is_none()).map(|(name, _)| path(name)).collect();
    files::replace_files(&files, &stale)?;
    let exports = [path(CSV), path(PARQUET)];
    Ok(files.into_iter().rev().map(|(path, _)| path).chain(exports).collect())
}

/// Makes the certificate of a complete sweep. Every design was evaluated, so that no bound rejected any.
#[must_use]
pub fn sweep_certificate(summary: &SweepSummary, objective: Objective, cluster: SweepCluster) -> Certificate {
    let status = match (summary.value, summary.bound) {
        (Some(value), Some(bound)) => SolveStatus::from_bounds(bound, value),
        _ => SolveStatus::Infeasible { why: "no design of the space runs the model".into() },
    };
    let count = |fate: CombinationOutcome| summary.fates.get(fate.name()).copied().unwrap_or_default();
    let scale = ValueScale::Alone { devices: cluster.devices, tokens: cluster.sequences * cluster.sequence_tokens };
    let shown = |value: f64| objective.display_value(value, scale).0;
    let throughput = matches!(objective.kind(), ObjectiveKind::Rate | ObjectiveKind::Time);
    let rate = |value: f64| throughput.then(|| cluster.sequences / value);
    let proven = matches!(status, SolveStatus::Optimal);
    let bound = if proven { summary.value } else { summary.bound };
    Certificate {
        proof: match status {
            SolveStatus::Optimal => Proof::Proven,
            SolveStatus::Gap { .. } => Proof::Gap,
            SolveStatus::Infeasible { .. } => Proof::Infeasible,
        },
        designs: summary.designs,
        evaluated: count(CombinationOutcome::Evaluated),
        pruned: 0,
        pruned_in_boxes: 0,
        robust: false,
        infeasible: count(CombinationOutcome::Infeasible),
        over_area: count(CombinationOutcome::OverArea),
        over_power: count(CombinationOutcome::OverPower),
        over_cost: count(CombinationOutcome::OverCost),
        outside_hbm: count(CombinationOutcome::OutsideHbm),
        unbuildable: count(CombinationOutcome::Unbuildable),
        unbuildable_by_rule: BTreeMap::new(),
        no_chip: count(CombinationOutcome::NoChip),
        open: 0,
        objective: objective.to_string(),
        best: summary.value.map(shown),
        bound: bound.map(shown),
        unit: objective.display_value(1.0, scale).1.to_owned(),
        best_sequences_per_s: summary.value.and_then(rate),
        bound_sequences_per_s: bound.and_then(rate),
        gap: summary.value.zip(bound).map(|(value, bound)| if proven { 0.0 } else { value / bound - 1.0 }),
        why: match status {
            SolveStatus::Infeasible { why } => Some(why),
            _ => None,
        },
    }
}

/// The cluster and the batch that all designs of a sweep have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SweepCluster {
    /// The number of accelerators.
    pub devices: f64,
    /// Sequences per step.
    pub sequences: f64,
    /// Tokens per sequence.
    pub sequence_tokens: f64,
}
