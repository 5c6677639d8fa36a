//! The confidence in a prediction. Each of its grounds is measured, related to a measurement, or never measured. The 90
//! % interval contains the measured value with this probability.
//!
//! Grades and intervals come from one carried table (`measured/reference/residuals.csv`, made by `coplace validate
//! --held-out`). It has the model's errors on measured steps and peaks whose models, numbers of chips, chips or
//! software were held out.
//!
//! The interval comes from the errors of the rows most similar to the prediction, held out in the same way. If its
//! software or related software was measured, models are held out. If the prediction has more chips than any measured
//! run, numbers of chips are held out. If its chip was not measured under the software, chips are held out. Otherwise
//! the errors are those of software that was not fitted at all. Each stack is then one guess, weighted by the distance
//! of its nearest row. So the interval is wide where the model has been wrong, and wider where few rows are similar.

mod alone;
mod coverage;
mod distance;
mod facts;
mod grounds;
mod interval;
mod mechanism;
mod next_error;
mod own_runs;
mod ratio;
mod scheme;
mod table;

pub use alone::{AloneCoverage, AloneFacts, AloneHeldOut, AloneResiduals, AloneRow, RunsAlone};
pub use coverage::{IntervalCoverage, RatioCoverage, coverage_by_data_set, coverage_of_ratios};
pub use facts::{NamedKind, PredictionFacts};
pub use interval::PredictionInterval;
pub use mechanism::{Mechanism, mechanisms_of_plan, mechanisms_of_policy};
pub use next_error::CONFIDENCE;
pub use ratio::PairKind;
pub use scheme::HoldOutScheme;
pub use table::{COLUMNS, PredictedQuantity, ResidualTable, ResidualTableError};

use serde::{Deserialize, Serialize};
use std::fmt;

/// The relation of a ground of a prediction to the nearest measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grade {
    /// Runs on the same ground were measured.
    Measured,
    /// Runs on a related ground were measured.
    Related,
    /// No run on this ground or a related one was measured.
    NeverMeasured,
}

impl fmt::Display for Grade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Measured => "measured",
            Self::Related => "related",
            Self::NeverMeasured => "never measured",
        })
    }
}

/// Fewest runs for the grade measured. Fewer runs give the grade related.
const LEAST: usize = 3;

/// One ground of a prediction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvidenceGround {
    /// The kind: `chip`, `fabric`, `cluster` (the chip on the fabric), `stack`, `execution` (the stack on the chip),
    /// `mechanism`, `scale`.
    pub what: &'static str,
    /// The name; for `scale`, the number of chips.
    pub name: String,
    /// The relation to the nearest measurement.
    pub grade: Grade,
    /// The nearest measurements with their numbers of runs, most runs first: those of the ground itself, or else those
    /// of its kind. For a mechanism, these are the stacks under which it was measured. For `scale`, they are the
    /// numbers of chips at least as large, or else the largest number.
    pub near: Vec<(String, usize)>,
}

/// The grade and the interval of a prediction.
#[derive(Debug, Clone, PartialEq)]
pub struct Evidence {
    /// All grounds.
    pub grounds: Vec<EvidenceGround>,
    /// The interval of the measured over the predicted value.
    pub interval: PredictionInterval,
}

impl Evidence {
    /// Returns the worst grade of the grounds.
    #[must_use]
    pub fn worst_grade(&self) -> Grade {
        self.grounds.iter().map(|ground| ground.grade).max().unwrap_or(Grade::NeverMeasured)
    }
}

impl ResidualTable {
    /// Returns the evidence of a prediction with these `facts`.
    #[must_use]
    pub fn evidence_of(&self, quantity: PredictedQuantity, facts: &PredictionFacts) -> Evidence {
        Evidence { grounds: self.grounds_of(quantity, facts), interval: self.interval_from(quantity, facts, |_| true) }
    }

    /// Returns the interval of the measured over the predicted value.
    #[must_use]
    pub fn interval_of(&self, quantity: PredictedQuantity, facts: &PredictionFacts) -> PredictionInterval {
        self.interval_from(quantity, facts, |_| true)
    }

    /// Returns all grounds of a prediction with their grades.
    #[must_use]
    pub fn grounds_of(&self, quantity: PredictedQuantity, facts: &PredictionFacts) -> Vec<EvidenceGround> {
        let own = own_runs::own_rows(quantity, facts);
        let rows = grounds::GroundRows { rows: self.rows_of(quantity).chain(&own).collect(), facts };
        rows.list_grounds()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use workloads::ZeroStage;

    /// Returns the facts of a carried row of a stack whose grounds were all measured.
    fn facts(quantity: PredictedQuantity, stack: &str) -> PredictionFacts {
        let rows = ResidualTable::read_carried();
        let of_stack = |row: &&table::ResidualRow| row.facts.stack.name == stack;
        let measured =
            |row: &&table::ResidualRow| rows.evidence_of(quantity, &row.facts).worst_grade() == Grade::Measured;
        rows.rows_of(quantity).filter(of_stack).find(measured).unwrap().facts.clone()
    }

    #[test]
    fn what_was_measured_is_told_from_what_was_not() {
        let (table, known) = (ResidualTable::read_carried(), facts(PredictedQuantity::StepTime, "pytorch_fsdp"));
        assert_eq!(table.evidence_of(PredictedQuantity::StepTime, &known).worst_grade(), Grade::Measured);
        let grade = |change: &dyn Fn(&mut PredictionFacts)| {
            let mut other = known.clone();
            change(&mut other);
            table.evidence_of(PredictedQuantity::StepTime, &other).worst_grade()
        };
        assert_eq!(grade(&|f| f.chip.name = "of tomorrow".into()), Grade::Related);
        assert_eq!(
            grade(&|f| f.chip = NamedKind { name: "of tomorrow".into(), kind: "optical".into() }),
            Grade::NeverMeasured
        );
        let telepathy = Mechanism::Technique("telepathy".to_owned());
        assert_eq!(grade(&|f| f.mechanisms = [telepathy.clone()].into()), Grade::NeverMeasured);
        assert_eq!(grade(&|f| f.chips = 1 << 20), Grade::NeverMeasured);
        // The chip and the stack were both measured, but never this stack on this chip.
        let apart = PredictionFacts { stack: facts(PredictedQuantity::StepTime, "maxtext").stack, ..known.clone() };
        let grounds = table.grounds_of(PredictedQuantity::StepTime, &apart);
        let grade_of = |what: &str| grounds.iter().find(|ground| ground.what == what).unwrap().grade;
        assert_eq!((grade_of("chip"), grade_of("stack")), (Grade::Measured, Grade::Measured));
        assert!(grade_of("execution") > Grade::Measured, "{grounds:?}");
    }

    #[test]
    fn what_was_measured_nearest_is_named() {
        let table = ResidualTable::read_carried();
        let known = facts(PredictedQuantity::StepTime, "maxtext");
        let tomorrow = PredictionFacts {
            chip: NamedKind { name: "of tomorrow".into(), ..known.chip.clone() },
            chips: 1 << 20,
            ..known.clone()
        };
        let grounds = table.grounds_of(PredictedQuantity::StepTime, &tomorrow);
        let near = |what: &str| &grounds.iter().find(|ground| ground.what == what).unwrap().near;
        let counted = |like: &dyn Fn(&PredictionFacts) -> bool| {
            table.rows_of(PredictedQuantity::StepTime).filter(|row| like(&row.facts)).count()
        };
        let of_its_kind: usize = near("chip").iter().map(|(_, runs)| runs).sum();
        assert_eq!(of_its_kind, counted(&|f| f.chip.kind == known.chip.kind));
        assert!(
            near("chip").windows(2).all(|pair| pair[0].1 >= pair[1].1) && near("chip").len() > 1,
            "{:?}",
            near("chip")
        );
        assert_eq!(*near("stack"), [("maxtext".to_owned(), counted(&|f| f.stack.name == "maxtext"))]);
        let largest = table.rows_of(PredictedQuantity::StepTime).map(|row| row.facts.chips).max().unwrap();
        assert_eq!(*near("scale"), [(largest.to_string(), counted(&|f| f.chips == largest))]);
    }

    #[test]
    fn an_interval_holds_the_prediction_and_is_wider_for_software_that_nobody_measured() {
        let (table, known) = (ResidualTable::read_carried(), facts(PredictedQuantity::StepTime, "pytorch_fsdp"));
        let width = |facts: &PredictionFacts| {
            let PredictionInterval { low, high } = table.interval_of(PredictedQuantity::StepTime, facts);
            assert!(low > 0.0 && low <= 1.0 && high >= 1.0 && high.is_finite(), "{low} {high}");
            high / low
        };
        let unknown = PredictionFacts {
            stack: NamedKind { name: "ours".into(), kind: "of another kind".into() },
            ..known.clone()
        };
        assert!(width(&unknown) > width(&known), "{} {}", width(&unknown), width(&known));
    }

    /// A case with an unknown chip of a measured kind, or with more chips than any measured run, is no surer than the
    /// related measured case.
    #[test]
    fn what_is_known_less_is_no_surer() {
        let table = ResidualTable::read_carried();
        for quantity in [PredictedQuantity::StepTime, PredictedQuantity::Peak] {
            let mut seen = 0;
            for row in table.rows_of(quantity).step_by(5) {
                let facts = &row.facts;
                if table.rows_of(quantity).filter(|other| other.facts.stack.name == facts.stack.name).count() < LEAST {
                    continue;
                }
                let known = table.interval_under(HoldOutScheme::Model, quantity, facts, |_| true);
                let unknown = PredictionFacts {
                    chip: NamedKind { name: "of tomorrow".into(), ..facts.chip.clone() },
                    ..facts.clone()
                };
                let larger = |chips| PredictionFacts { chips, ..facts.clone() };
                let largest = table
                    .rows_of(quantity)
                    .filter(|other| other.facts.stack.kind == facts.stack.kind)
                    .map(|other| other.facts.chips);
                let most =
                    table.interval_under(HoldOutScheme::Model, quantity, &larger(largest.max().unwrap()), |_| true);
                for (known, less) in [(known, unknown), (most, larger(1 << 20))] {
                    let found = table.interval_of(quantity, &less);
                    assert!(found.low <= known.low && found.high >= known.high, "{less:?}: {found:?} within {known:?}");
                }
                seen += 1;
            }
            assert!(seen > 60, "{quantity:?}: {seen}");
        }
    }

    /// For software that nobody measured, plans of a measured job that differ only in their ZeRO stage have intervals
    /// of similar width. Their width must not depend on the number of stacks among the nearest rows.
    #[test]
    fn intervals_of_plans_side_by_side_are_alike() {
        let stages = [ZeroStage::OptimizerStates, ZeroStage::Gradients, ZeroStage::Parameters].map(Mechanism::Zero);
        for quantity in [PredictedQuantity::StepTime, PredictedQuantity::Peak] {
            for row in ResidualTable::read_carried().rows_of(quantity).step_by(3) {
                let mut facts = PredictionFacts {
                    stack: NamedKind { name: "ours".into(), kind: "of another kind".into() },
                    ..row.facts.clone()
                };
                facts.mechanisms.retain(|mechanism| !stages.contains(mechanism));
                let width = |stage: Option<&Mechanism>| {
                    let mut facts = facts.clone();
                    facts.mechanisms.extend(stage.cloned());
                    let PredictionInterval { low, high } = ResidualTable::read_carried().interval_of(quantity, &facts);
                    high / low
                };
                let widths: Vec<f64> = std::iter::once(None).chain(stages.iter().map(Some)).map(width).collect();
                let (least, most) = widths.iter().fold((f64::INFINITY, 0.0_f64), |(l, m), w| (l.min(*w), m.max(*w)));
                assert!(most < 1.7 * least, "{facts:?}: {widths:?}");
            }
        }
    }

    #[test]
    fn nine_of_ten_held_out_rows_lie_within() {
        // Models are held out, in the data sets of forty rows and more. `validate --intervals` prints the coverage of
        // each.
        let found = coverage_by_data_set(ResidualTable::read_carried());
        let large: Vec<&IntervalCoverage> =
            found.iter().filter(|c| c.scheme == HoldOutScheme::Model && c.rows >= 40).collect();
        assert!(large.len() >= 7, "{large:?}");
        assert!(large.iter().all(|c| c.covered >= 0.85), "{large:?}");
        // Useful intervals are narrow, and some rows lie outside them. BigScience's forty-six runs of a few models are
        // too few to tell a coverage of 96 % from 100 %.
        assert!(large.iter().all(|c| c.width < 1.4), "{large:?}");
        assert!(large.iter().filter(|c| c.rows >= 100).all(|c| c.covered < 0.96), "{large:?}");
    }

    /// Pairs of chips with models held out may have a coverage of only 80 %: two runs of one job make 12 of their 28
    /// misses. `validate --intervals` prints the coverage of every kind of pairs.
    #[test]
    fn nine_of_ten_held_out_ratios_lie_within_and_called_ones_are_right() {
        let found = coverage_of_ratios(ResidualTable::read_carried());
        let many: Vec<&RatioCoverage> = found.iter().filter(|c| c.pairs > 20).collect();
        assert!(many.len() == 7, "{found:?}");
        for c in many {
            let least = if c.kind == PairKind::Chips && c.scheme == HoldOutScheme::Model { 0.8 } else { 0.85 };
            assert!(c.covered >= least && (c.jobs <= 20 || c.covered < 0.95), "{c:?}");
            assert!(c.width < c.width_apart && c.right.unwrap() > 0.95, "{c:?}");
        }
        let plans = found.iter().find(|c| c.kind == PairKind::Plans && c.scheme == HoldOutScheme::Model).unwrap();
        assert!(plans.width < 0.85 * plans.width_apart && plans.called > 0.3, "{plans:?}");
    }

    #[test]
    fn the_interval_of_an_inverse_ratio_is_the_inverse() {
        let table = ResidualTable::read_carried();
        let rows: Vec<&table::ResidualRow> = table.rows_of(PredictedQuantity::StepTime).step_by(97).collect();
        for pair in rows.windows(2) {
            let interval = |a: &table::ResidualRow, b: &table::ResidualRow| {
                table.ratio_interval(PredictedQuantity::StepTime, [&a.facts, &b.facts])
            };
            let (one, other) = (interval(pair[0], pair[1]), interval(pair[1], pair[0]));
            assert!((one.low * other.high - 1.0).abs() < 1e-9 && (one.high * other.low - 1.0).abs() < 1e-9);
            assert!(one.low <= 1.0 && one.high >= 1.0, "{one:?}");
        }
    }
}
