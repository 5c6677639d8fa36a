//! The metric of a claim: a quantity of a run, and its relation to the run without the technique.

use crate::papers::{FigureRelation, StudyQuantity};

/// A quantity, and its relation to the same quantity of another run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ClaimedMetric {
    pub(super) quantity: StudyQuantity,
    /// `None` if the metric is the quantity itself.
    pub(super) relation: Option<FigureRelation>,
    /// True if the metric means the largest of several runs.
    pub(super) largest: bool,
}

use StudyQuantity as Quantity;

/// Phrases for quantities. The first phrase of this list that a metric contains decides.
const QUANTITIES: &[(&str, StudyQuantity)] = &[
    ("sequence length", Quantity::Longest),
    ("longest sequence", Quantity::Longest),
    ("seq ratio", Quantity::Longest),
    ("batch size", Quantity::LargestMicroBatch),
    ("batch", Quantity::LargestMicroBatch),
    ("mfu", Quantity::Mfu),
    ("tflop", Quantity::TeraflopsPerDevice),
    ("tokens/s", Quantity::TokensPerSecond),
    ("samples/s", Quantity::SequencesPerSecond),
    ("sequences/s", Quantity::SequencesPerSecond),
    ("images/s", Quantity::SequencesPerSecond),
    ("throughput", Quantity::TokensPerSecond),
    ("speed", Quantity::TokensPerSecond),
    ("iteration", Quantity::StepSeconds),
    ("step time", Quantity::StepSeconds),
    ("time", Quantity::StepSeconds),
    ("activation peak", Quantity::PeakActivations),
    ("skeletal", Quantity::ActivationsOfAllDevices),
    ("peak total", Quantity::Peak),
    ("total peak", Quantity::Peak),
    ("linear activations", Quantity::LinearInputs),
    ("weights+optimizer", Quantity::WeightsAndStates),
    ("weights and optimizer", Quantity::WeightsAndStates),
    ("temporaries", Quantity::UpdateTemporaries),
    ("state", Quantity::States),
    ("weight", Quantity::Weights),
    ("param", Quantity::Weights),
    ("grad", Quantity::Gradients),
    ("activation", Quantity::ActivationsAtLoss),
    ("total with", Quantity::Sum),
    ("total", Quantity::Sum),
    ("memory", Quantity::Peak),
    ("peak", Quantity::Peak),
    ("oom", Quantity::Peak),
];

/// True if larger values of a quantity are better.
fn more_is_better(quantity: StudyQuantity) -> bool {
    matches!(
        quantity,
        Quantity::Longest
            | Quantity::LargestMicroBatch
            | Quantity::Mfu
            | Quantity::TeraflopsPerDevice
            | Quantity::TokensPerSecond
            | Quantity::SequencesPerSecond
    )
}

/// Reads a metric together with its unit.
///
/// # Errors
/// A metric that names no quantity of a run.
pub(super) fn read_metric(metric: &str, unit: &str) -> Result<ClaimedMetric, String> {
    let (text, unit) = (metric.to_lowercase(), unit.trim().to_lowercase());
    let unit = unit.split([' ', '(']).next().unwrap_or_default();
    let of_unit = ["tokens/s", "samples/s", "sequences/s", "tflops"].into_iter().find(|known| unit.starts_with(known));
    let of_unit = of_unit.and_then(|known| QUANTITIES.iter().find(|(phrase, _)| known.starts_with(phrase)));
    let found = of_unit.or_else(|| QUANTITIES.iter().find(|(phrase, _)| text.contains(phrase)));
    let Some((_, quantity)) = found else {
        return Err(format!(
            "{metric}: no quantity of a run; use memory, weights, gradients, states, activations, total, throughput, \
             step time, MFU, sequence length or batch size, or a saving or ratio of one"
        ));
    };
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    let better = more_is_better(*quantity);
    let relation = match unit {
        "%" if says(&["reduction", "saving", "saved", "less", "cut"]) => Some(FigureRelation::Cut),
        "%" if says(&["speed", "gain", "increase", "more"]) => Some(FigureRelation::Gain),
        "%" if says(&["overhead"]) => Some(FigureRelation::Gain),
        "x" => Some(if better { FigureRelation::Ratio } else { FigureRelation::Factor }),
        _ => None,
    };
    Ok(ClaimedMetric { quantity: *quantity, relation, largest: says(&["max activation", "up to"]) })
}

/// Returns the size of a claim's unit, in bytes, seconds or tokens. Tables of LOMO, MsT, MEMO, CompAct and GaLore print
/// GB and mean GiB: only GiB give the printed digits of parameters in most rows. TB are then TiB, and MB MiB.
///
/// # Errors
/// An unknown unit.
pub(super) fn size_of_unit(unit: &str) -> Result<f64, String> {
    let gib = f64::from(1u32 << 30);
    Ok(match unit.trim().split([' ', '(']).next().unwrap_or_default().to_lowercase().as_str() {
        "gb" | "gib" => gib,
        "mb" | "mib" => gib / 1024.0,
        "tb" | "tib" => gib * 1024.0,
        "ms" => 1e-3,
        "" | "x" | "%" | "s" | "k" | "tokens" | "tokens/s" | "samples/s" | "sequences/s" | "images/s" | "tflops"
        | "-" | "tflop/s" | "sequences" => 1.0,
        _ => {
            return Err(format!(
                "unit {unit}: use GiB, GB, MiB, MB, TiB, TB, s, ms, K tokens, tokens/s, samples/s, TFLOPS, % or x"
            ));
        }
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn metrics_are_quantities_and_relations() {
        let read = |metric: &str, unit: &str| {
            let read = read_metric(metric, unit).unwrap();
            (read.quantity, read.relation)
        };
        assert_eq!(read("peak memory reduction", "%"), (Quantity::Peak, Some(FigureRelation::Cut)));
        assert_eq!(read("peak memory reduction", "x (up to)"), (Quantity::Peak, Some(FigureRelation::Factor)));
        assert_eq!(read("batch-size gain", "x"), (Quantity::LargestMicroBatch, Some(FigureRelation::Ratio)));
        assert_eq!(read("speed-up", "%"), (Quantity::TokensPerSecond, Some(FigureRelation::Gain)));
        assert_eq!(read("throughput", "samples/s"), (Quantity::SequencesPerSecond, None));
        assert_eq!(read("MFU", "%"), (Quantity::Mfu, None));
        assert_eq!(read("max seq ratio", "x"), (Quantity::Longest, Some(FigureRelation::Ratio)));
        assert!(read_metric("perplexity", "ppl").is_err() && size_of_unit("ppl").is_err());
    }
}
