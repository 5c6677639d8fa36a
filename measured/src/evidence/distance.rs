//! Distances between the facts of two predictions.

use super::{NamedKind, PredictionFacts};

/// The distance at which a row weighs a factor e less than the nearest one. With 2, the intervals of three of nine data
/// sets cover less than 85 %; with 6, those of BigScience's runs cover all.
pub(super) const LIKENESS: f64 = 3.5;
/// Distances between the facts of two runs, in this order: another stack, an addition for another kind of stack,
/// another chip, an addition for another kind of chip, another kind of fabric, a mechanism that only one of them has, a
/// doubling of the chips. They are assumed: software moves errors most, a mechanism or a doubling least.
const STACK: f64 = 4.0;
const STACK_KIND: f64 = 4.0;
const CHIP: f64 = 1.0;
const CHIP_KIND: f64 = 2.0;
const FABRIC_KIND: f64 = 1.0;
const MECHANISM: f64 = 0.5;
const DOUBLING: f64 = 0.25;

fn name_distance(a: &NamedKind, b: &NamedKind, name: f64, kind: f64) -> f64 {
    match (a.name == b.name, a.kind == b.kind) {
        (true, _) => 0.0,
        (false, true) => name,
        (false, false) => name + kind,
    }
}

pub(super) fn distance_of_stacks(a: &PredictionFacts, b: &PredictionFacts) -> f64 {
    name_distance(&a.stack, &b.stack, STACK, STACK_KIND)
}

/// Returns the distance between the facts of two predictions.
pub(super) fn distance_of_facts(a: &PredictionFacts, b: &PredictionFacts) -> f64 {
    let doublings = (f64::from(a.chips) / f64::from(b.chips)).log2().abs();
    distance_of_stacks(a, b)
        + name_distance(&a.chip, &b.chip, CHIP, CHIP_KIND)
        + name_distance(&a.fabric, &b.fabric, 0.0, FABRIC_KIND)
        + MECHANISM * a.mechanisms.symmetric_difference(&b.mechanisms).count() as f64
        + DOUBLING * doublings
}
