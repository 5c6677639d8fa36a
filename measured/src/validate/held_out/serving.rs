//! Errors of serving points whose model was held out of the fit of its engine.

use super::MeasuredRows;
use crate::validate::predict::PreparedInputs;
use crate::validate::{Dataset, ValidateError, ValidateOptions};
use ::serving::ServingEngine;
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The errors of an engine's serving points of one model.
#[derive(Debug, Clone, PartialEq)]
pub struct HeldOutModel {
    /// The engine, as the rows name it.
    pub engine: String,
    /// The model.
    pub model: String,
    /// Number of points.
    pub rows: usize,
    /// Mean absolute errors of the time to the first token in percent: with the built-in scalars, and with scalars
    /// fitted to the engine's other models.
    pub first_pct: [f64; 2],
    /// The same errors of the time per output token.
    pub between_pct: [f64; 2],
}

/// A scalar of an engine that is fitted, and its largest value.
struct EngineScalar {
    value: fn(&mut ServingEngine) -> &mut f64,
    most: f64,
}

/// The scalars that are fitted, as for the built-in engines.
const SCALARS: [EngineScalar; 3] = [
    EngineScalar { value: |engine| &mut engine.launch.iteration_us, most: 1e6 },
    EngineScalar { value: |engine| &mut engine.launch.sequence_us, most: 1e4 },
    EngineScalar { value: |engine| &mut engine.kernels.product_fraction, most: 1.0 },
];

/// Caps on |ln(predicted / measured)| in a fit: of the time per output token, and of the time to the first token.
/// Queues of unknown length cause outliers there.
const MOST_ERROR: [f64; 2] = [0.3, 0.6];
/// Weight of the time to the first token beside the time per output token.
const FIRST_WEIGHT: f64 = 0.2;
/// Largest number of points in a fit. If there are more, a sample is spread evenly.
const MOST_POINTS: usize = 96;
/// Largest number of rounds over the scalars.
const ROUNDS: u32 = 12;
/// A fit ends when all steps are smaller than this factor.
const LEAST_STEP: f64 = 1.015;

/// Returns the errors for every model of a file of serving points, with its engine's scalars fitted to the engine's
/// other models. Engines with a single model are left out.
///
/// # Errors
/// A file that cannot be read or has no serving points.
pub fn held_out_models(path: &Path, options: &ValidateOptions) -> Result<Vec<HeldOutModel>, ValidateError> {
    let rows = MeasuredRows::read_rows_if(path, |dataset| dataset == Dataset::Serving)?;
    let mut points = ServingPoints { rows: &rows, prepared: PreparedInputs::new(options) };
    let mut by_engine: BTreeMap<String, BTreeMap<String, Vec<usize>>> = BTreeMap::new();
    for at in 0..rows.records.len() {
        let row = rows.row_at(at);
        if let (Some(engine), Some(model)) = (row.cell("engine"), row.cell("model"))
            && points.errors_of(at).is_some()
        {
            by_engine.entry(engine.to_owned()).or_default().entry(model.to_owned()).or_default().push(at);
        }
    }
    let parts: Vec<[&String; 2]> = by_engine
        .iter()
        .filter(|(_, models)| models.len() > 1)
        .flat_map(|(engine, models)| models.keys().map(move |model| [engine, model]))
        .collect();
    let hold_out = |[engine, model]: [&String; 2]| {
        let mut points = ServingPoints { rows: &rows, prepared: PreparedInputs::new(options) };
        let built_in = points.prepared.engine_named(engine)?;
        let (models, held) = (&by_engine[engine], &by_engine[engine][model]);
        let inside: BTreeSet<&usize> = held.iter().collect();
        let rest: Vec<usize> = models.values().flatten().filter(|at| !inside.contains(at)).copied().collect();
        let own = points.percent_under(&built_in, held);
        let rest: Vec<usize> = rest.iter().step_by(rest.len().div_ceil(MOST_POINTS)).copied().collect();
        let fitted = points.fit_engine(&built_in, &rest);
        let fitted = points.percent_under(&fitted, held);
        Some(HeldOutModel {
            engine: engine.clone(),
            model: model.clone(),
            rows: held.len(),
            first_pct: [own[1], fitted[1]],
            between_pct: [own[0], fitted[0]],
        })
    };
    Ok(parts.into_par_iter().with_max_len(1).filter_map(hold_out).collect())
}

struct ServingPoints<'a> {
    rows: &'a MeasuredRows,
    prepared: PreparedInputs,
}

impl ServingPoints<'_> {
    /// Returns predicted / measured of a row: of the time per output token, and of the time to the first token. `None`
    /// if the row cannot be predicted or lacks a measured time.
    fn errors_of(&mut self, at: usize) -> Option<[f64; 2]> {
        let row = self.rows.row_at(at);
        let values = Dataset::Serving.predictor()(&mut self.prepared, &row).ok()?;
        self.prepared.take_assumptions();
        let error = |column: &str| {
            let measured = row.number(column).ok().flatten().filter(|measured| *measured > 0.0)?;
            let (_, predicted) = values.iter().find(|(own, _)| *own == column)?;
            Some(predicted / measured)
        };
        Some([error("tpot_ms")?, error("ttft_ms")?])
    }

    fn ratios_under(&mut self, engine: &ServingEngine, rows: &[usize]) -> Vec<[f64; 2]> {
        self.prepared.replace_engine(engine);
        rows.iter().filter_map(|at| self.errors_of(*at)).collect()
    }

    /// Returns the mean absolute errors in percent: of the time per output token, and of the time to the first token.
    fn percent_under(&mut self, engine: &ServingEngine, rows: &[usize]) -> [f64; 2] {
        let ratios = self.ratios_under(engine, rows);
        let mean =
            |part: usize| ratios.iter().map(|ratio| (ratio[part] - 1.0).abs()).sum::<f64>() / ratios.len() as f64;
        [mean(0) * 100.0, mean(1) * 100.0]
    }

    fn loss_under(&mut self, engine: &ServingEngine, rows: &[usize]) -> f64 {
        let ratios = self.ratios_under(engine, rows);
        let of = |ratio: &[f64; 2]| {
            let [between, first] = [0, 1].map(|part: usize| ratio[part].ln().abs().min(MOST_ERROR[part]));
            between + FIRST_WEIGHT * first
        };
        ratios.iter().map(of).sum::<f64>() / ratios.len() as f64
    }

    /// Returns the engine with fitted scalars. They are varied one after the other, by steps that shrink.
    fn fit_engine(&mut self, start: &ServingEngine, rows: &[usize]) -> ServingEngine {
        let mut best = start.clone();
        let mut loss = self.loss_under(&best, rows);
        let mut steps = SCALARS.map(|_| 1.5f64);
        for _ in 0..ROUNDS {
            for (scalar, step) in SCALARS.iter().zip(&mut steps) {
                let better = [*step, 1.0 / *step].into_iter().find_map(|factor| {
                    let mut tried = best.clone();
                    let value = (scalar.value)(&mut tried);
                    *value = (*value * factor).min(scalar.most);
                    let tried_loss = self.loss_under(&tried, rows);
                    (tried_loss < loss - 1e-6).then_some((tried, tried_loss))
                });
                match better {
                    Some((engine, lower)) => (best, loss) = (engine, lower),
                    None => *step = step.powf(0.6),
                }
            }
            if steps.iter().all(|step| *step < LEAST_STEP) {
                break;
            }
        }
        best
    }
}
