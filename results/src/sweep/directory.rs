//! The directory of a finished sweep: its exports, its record, what was found. Other verbs read it as they read a search's.

use super::export::{CSV, PARQUET, Summary};
use super::row::Fate;
use super::store::{BESIDE, STORE, SweepError, SweepStore};
use crate::files::{self, WriteError};
use crate::record::{Certificate, Proof, Record};
use crate::run::{self, CHIP, FABRIC, Found, INPUTS, RECORD, Run, RunError};
use crate::sums::{self, SUMS};
use search::objective::{Objective, Scale};
use search::space::places;
use sim::status::SolveStatus;
use std::path::{Path, PathBuf};

/// Why the directory of a search or of a sweep cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// What both have, or a search's designs.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A sweep's designs.
    #[error(transparent)]
    Sweep(#[from] SweepError),
}

/// Reads the directory of a search or of a sweep. Of a sweep the designs are those that were evaluated: the store has the others.
///
/// # Errors
/// A file that is missing, damaged, of another version, or of another run than the digests.
pub fn read(directory: &Path) -> Result<Run, DirectoryError> {
    let record = run::record(directory)?;
    if !run::has_digest(directory, PARQUET)? {
        return Ok(Run::with_designs(directory, record)?);
    }
    run::check(directory, PARQUET)?;
    let store = SweepStore::open(directory)?;
    let facts = store.facts();
    let dials: Vec<_> = facts.dimensions.iter().map(super::Swept::dial).collect();
    let varied = |number: u64| {
        let shown = dials.iter().zip(places(&dials, number)).filter(|(dial, _)| dial.values.len() > 1);
        let words: Vec<String> = shown.map(|(dial, at)| format!("{} {}", dial.key, dial.values[at])).collect();
        (!words.is_empty()).then(|| words.join(", "))
    };
    let mut designs = Vec::new();
    store.each(|row| {
        if let Some(mut design) = row.design.filter(|_| row.fate == Fate::Evaluated) {
            design.dimensions = design.dimensions.take().or_else(|| varied(row.number));
            designs.push(*design);
        }
        Ok::<(), SweepError>(())
    })?;
    Ok(Run { name: run::name(directory), record, designs })
}

/// Every file that the directory of a sweep may have.
pub const FILES: [&str; 10] = [SUMS, STORE, BESIDE[0], BESIDE[1], PARQUET, CSV, CHIP, FABRIC, INPUTS, RECORD];

/// Writes what stands beside the exports: the chip and the fabric that were found, the digests, and last the record.
///
/// # Errors
/// Whatever the system reports; a value that is not finite.
pub fn finish(directory: &Path, record: &Record, found: &Found) -> Result<Vec<PathBuf>, RunError> {
    let path = |name: &str| directory.join(name);
    let inputs = found.inputs_json()?;
    let named = [(CHIP, &found.chip), (FABRIC, &found.fabric), (INPUTS, &inputs)];
    let mut files: Vec<(PathBuf, Vec<u8>)> =
        named.iter().filter_map(|(name, text)| Some((path(name), text.as_ref()?.clone().into_bytes()))).collect();
    files.push((path(RECORD), record.to_json()?.into_bytes()));
    let mut digests = String::new();
    for name in [PARQUET, CSV] {
        let digest = sums::of_file(&path(name)).map_err(|why| WriteError { file: path(name), why })?;
        digests.push_str(&format!("{digest}  {name}\n"));
    }
    files.insert(0, (path(SUMS), (digests + &sums::of(&files)).into_bytes()));
    for (name, _) in named.iter().filter(|(name, text)| text.is_none() && path(name).exists()) {
        std::fs::remove_file(path(name)).map_err(|why| WriteError { file: path(name), why })?;
    }
    files::write_all(&files)?;
    let exports = [path(CSV), path(PARQUET)];
    Ok(files.into_iter().rev().map(|(path, _)| path).chain(exports).collect())
}

/// What a sweep of every design proves: no bound rejected any.
#[must_use]
pub fn certificate(summary: &Summary, objective: Objective, cluster: Cluster) -> Certificate {
    let status = match (summary.value, summary.bound) {
        (Some(value), Some(bound)) => SolveStatus::from_bounds(bound, value),
        _ => SolveStatus::Infeasible { why: "no design of the space runs the model".into() },
    };
    let count = |fate: Fate| summary.fates.get(fate.name()).copied().unwrap_or_default();
    let scale = Scale::Alone { devices: cluster.devices, tokens: cluster.sequences * cluster.sequence_tokens };
    let shown = |value: f64| objective.shown(value, scale).0;
    let throughput = matches!(objective, Objective::Throughput | Objective::StepTime);
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
        evaluated: count(Fate::Evaluated),
        pruned: 0,
        pruned_in_boxes: 0,
        robust: false,
        infeasible: count(Fate::Infeasible),
        over_area: count(Fate::OverArea),
        over_power: count(Fate::OverPower),
        over_cost: count(Fate::OverCost),
        outside_hbm: count(Fate::OutsideHbm),
        no_chip: count(Fate::NoChip),
        open: 0,
        objective: objective.to_string(),
        best: summary.value.map(shown),
        bound: bound.map(shown),
        unit: objective.shown(1.0, scale).1.to_owned(),
        best_sequences_per_s: summary.value.and_then(rate),
        bound_sequences_per_s: bound.and_then(rate),
        gap: summary.value.zip(bound).map(|(value, bound)| if proven { 0.0 } else { value / bound - 1.0 }),
        why: match status {
            SolveStatus::Infeasible { why } => Some(why),
            _ => None,
        },
    }
}

/// What a sweep's designs are a cluster of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cluster {
    /// Accelerators.
    pub devices: f64,
    /// Sequences per step.
    pub sequences: f64,
    /// Tokens per sequence.
    pub sequence_tokens: f64,
}
