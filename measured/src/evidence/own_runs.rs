//! Errors of the runs that a user fitted a stack to. They update what the carried errors say
//! ([`CloserErrors::update_error`]). Runs count for predictions on their own chip and fabric only.

use super::distance::{LIKENESS, distance_of_facts};
use super::next_error::{CloserErrors, ErrorSpread, effective_count, tail_fraction};
use super::table::{PredictedQuantity, ResidualRow};
use super::{HoldOutScheme, Mechanism, NamedKind, PredictionFacts};
use step::FittedRun;

/// Distance added for each mechanism of the prediction that no own run has. Assumed: half of another stack's distance.
const UNSEEN: f64 = 2.0;

impl CloserErrors {
    /// Returns the errors that count for a prediction with these facts; `None` if no run does. A run counts less the
    /// more its plan and its number of chips differ. A prediction on more chips than any run needs errors with numbers
    /// of chips left out.
    pub(super) fn of_own_runs(quantity: PredictedQuantity, facts: &PredictionFacts) -> Option<Self> {
        if facts.own_runs.is_empty() {
            return None;
        }
        let mut rows = own_rows(quantity, facts);
        rows.retain(|row| row.facts.chip.name == facts.chip.name && row.facts.fabric.name == facts.fabric.name);
        let is_larger = rows.iter().all(|row| row.facts.chips < facts.chips);
        let scheme = if is_larger { HoldOutScheme::Nodes } else { HoldOutScheme::Model };
        rows.retain(|row| !is_larger || row.held_out[HoldOutScheme::Nodes as usize].is_some());
        let has = |mechanism: &&Mechanism| rows.iter().any(|row| row.facts.mechanisms.contains(*mechanism));
        let unseen = UNSEEN * facts.mechanisms.iter().filter(|mechanism| !has(mechanism)).count() as f64;
        let likeness = |row: &ResidualRow| (-(unseen + distance_of_facts(facts, &row.facts)) / LIKENESS).exp();
        let weights: Vec<(f64, &ResidualRow)> = rows.iter().map(|row| (likeness(row), row)).collect();
        let errors =
            weights.iter().map(|(weight, row)| (*weight, row.held_out[scheme as usize].unwrap_or(row.in_sample)));
        let ErrorSpread { mean, deviation } = ErrorSpread::from_weighted_errors(errors, tail_fraction(scheme))?;
        let (sum, squares) =
            weights.iter().fold((0.0, 0.0), |(sum, squares), (weight, _)| (sum + weight, squares + weight * weight));
        // Without correlation, this is the sum of the likenesses: unlike runs count little, however many there are.
        let count = effective_count(scheme, &weights) * squares / sum;
        Some(Self { mean, deviation, count })
    }
}

/// Returns the runs that the stack was fitted to, as rows. Runs of one model are held out together. So are runs on one
/// number of chips.
pub(super) fn own_rows(quantity: PredictedQuantity, facts: &PredictionFacts) -> Vec<ResidualRow> {
    let of_quantity = facts.own_runs.iter().filter(|run| run.quantity == quantity.column());
    of_quantity.map(|run| own_row(run, facts)).collect()
}

fn own_row(run: &FittedRun, facts: &PredictionFacts) -> ResidualRow {
    // A run's file has names only. Another chip or fabric counts as unrelated.
    let named = |name: &str, own: &NamedKind| {
        let kind = if name == own.name { own.kind.clone() } else { String::new() };
        NamedKind { name: name.to_owned(), kind }
    };
    ResidualRow {
        dataset: String::new(),
        ranking: String::new(),
        measured: f64::NAN,
        facts: PredictionFacts {
            chip: named(&run.chip, &facts.chip),
            fabric: named(&run.fabric, &facts.fabric),
            stack: facts.stack.clone(),
            mechanisms: run.mechanisms.iter().map(|name| Mechanism::from_name(name)).collect(),
            chips: run.chips,
            own_runs: step::FittedRuns::default(),
        },
        in_sample: run.error_without_run,
        held_out: [run.error_without_model, run.error_without_scale, None, None],
        fold: [usize::try_from(run.parameters).unwrap_or(usize::MAX), run.chips as usize],
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::next_error::NextError;
    use super::super::{Grade, PredictionInterval, ResidualTable};
    use super::*;
    use std::collections::BTreeMap;
    use std::f64::consts::TAU;

    const STEP: PredictedQuantity = PredictedQuantity::StepTime;

    /// Random numbers of a linear congruential generator.
    struct Draws(u64);

    impl Draws {
        fn uniform(&mut self) -> f64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((self.0 >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
        }

        fn normal(&mut self) -> f64 {
            (-2.0 * self.uniform().ln()).sqrt() * (TAU * self.uniform()).cos()
        }

        /// Moves `count` random elements to the front.
        fn shuffle_front<T>(&mut self, of: &mut [T], count: usize) {
            for at in 0..count {
                let other = at + (self.uniform() * (of.len() - at) as f64) as usize;
                of.swap(at, other);
            }
        }
    }

    /// Returns the facts of a measured job under a stack that a user fitted to runs of the same plan with these errors,
    /// each of a model of its own.
    fn with_runs(errors: &[f64]) -> PredictionFacts {
        let table = ResidualTable::read_carried();
        let row = table.rows_of(STEP).find(|row| row.facts.stack.name == "megatron" && row.facts.chips == 64).unwrap();
        let facts = PredictionFacts {
            stack: NamedKind { name: "ours".into(), kind: row.facts.stack.kind.clone() },
            ..row.facts.clone()
        };
        let runs = errors.iter().enumerate().map(|(at, error)| FittedRun {
            id: at.to_string(),
            quantity: STEP.column().into(),
            parameters: at as u64,
            chip: facts.chip.name.clone(),
            fabric: facts.fabric.name.clone(),
            chips: facts.chips,
            mechanisms: facts.mechanisms.iter().map(ToString::to_string).collect(),
            error_without_run: *error,
            error_without_model: Some(*error),
            error_without_scale: None,
        });
        PredictionFacts { own_runs: runs.collect::<Vec<_>>().into(), ..facts.clone() }
    }

    fn interval(facts: &PredictionFacts) -> PredictionInterval {
        ResidualTable::read_carried().interval_of(STEP, facts)
    }

    fn width(facts: &PredictionFacts) -> f64 {
        let PredictionInterval { low, high } = interval(facts);
        (high / low).ln()
    }

    /// Synthetic truth: the errors of each user's runs and of the next job have the same spread. Spreads of users
    /// differ as those of data sets do.
    #[test]
    fn intervals_after_own_runs_hold_new_jobs_and_are_narrower() {
        let before = width(&with_runs(&[]));
        let mut draws = Draws(3);
        for runs in [1, 2, 6, 12, 30] {
            const TRIALS: usize = 400;
            let (mut held, mut widths) = (0, 0.0);
            for _ in 0..TRIALS {
                let noise = 0.07 * (0.5 * draws.normal()).exp();
                let errors: Vec<f64> = (0..runs).map(|_| noise * draws.normal()).collect();
                let facts = with_runs(&errors);
                let PredictionInterval { low, high } = interval(&facts);
                held += usize::from((low..=high).contains(&(noise * draws.normal()).exp()));
                widths += width(&facts) / before / TRIALS as f64;
            }
            let held = held as f64 / TRIALS as f64;
            // With a run or two, the interval stays wide.
            let (most, widest) = if runs < 3 { (0.99, 0.6..1.0) } else { (0.95, 0.4..0.85) };
            assert!((0.85..most).contains(&held) && widest.contains(&widths), "{runs} runs: {held}, {widths} as wide");
        }
    }

    /// Runs of a carried data set stand for a user's own, and the other data sets' stacks for the carried ones.
    #[test]
    fn own_runs_of_carried_data_sets_hold_the_others() {
        let table = ResidualTable::read_carried();
        let mut sets: BTreeMap<&str, Vec<&ResidualRow>> = BTreeMap::new();
        for row in table.rows_of(STEP).filter(|row| row.held_out[0].is_some()) {
            sets.entry(&row.dataset).or_default().push(row);
        }
        sets.retain(|_, rows| rows.len() >= 14);
        assert!(sets.len() >= 8, "{sets:?}");
        let mut draws = Draws(5);
        for runs in [1_usize, 2, 6, 12] {
            let mut covered = Vec::new();
            for rows in sets.values_mut() {
                const TRIALS: usize = 100;
                let stack = rows[0].facts.stack.name.clone();
                let carried = || {
                    table.next_error_under(HoldOutScheme::Model, STEP, &rows[0].facts, |r| r.facts.stack.name != stack)
                };
                let NextError { mean, deviation, freedom } = carried().unwrap();
                let mut held = 0;
                for _ in 0..TRIALS {
                    draws.shuffle_front(rows, runs + 1);
                    let errors: Vec<f64> =
                        rows[..=runs].iter().map(|row| row.error_under(HoldOutScheme::Model)).collect();
                    // A fit to four or more runs removes their mean error, shrunk by a prior worth one run.
                    let fitted = |sum: f64, runs: usize| if runs < 4 { 0.0 } else { sum / (runs + 1) as f64 };
                    let sum: f64 = errors[..runs].iter().sum();
                    let own = errors[..runs].iter().map(|error| (1.0, error - fitted(sum - error, runs - 1)));
                    let spread = ErrorSpread::from_weighted_errors(own, 0.0).unwrap();
                    let own = CloserErrors { mean: spread.mean, deviation: spread.deviation, count: runs as f64 };
                    let next = CloserErrors::update_error(Some(&own), Some(NextError { mean, deviation, freedom }));
                    let PredictionInterval { low, high } = PredictionInterval::from_next_error(&next);
                    held += usize::from((low..=high).contains(&(errors[runs] - fitted(sum, runs)).exp()));
                }
                covered.push(held as f64 / TRIALS as f64);
            }
            let mean = covered.iter().sum::<f64>() / covered.len() as f64;
            assert!((0.85..0.95).contains(&mean), "{runs} runs: {covered:?}");
        }
    }

    #[test]
    fn runs_of_another_kind_leave_the_interval_as_it_was() {
        let (near, none) = (with_runs(&[0.01; 12]), with_runs(&[]));
        assert!(width(&near) < 0.6 * width(&none));
        let unlike = |change: &dyn Fn(&mut PredictionFacts)| {
            let [mut own, mut without] = [near.clone(), none.clone()];
            change(&mut own);
            change(&mut without);
            assert_eq!(interval(&own), interval(&without), "{own:?}");
        };
        unlike(&|facts| facts.chip.name = "another".into());
        unlike(&|facts| facts.fabric.name = "another".into());
        unlike(&|facts| facts.chips *= 2);
        let peak = |facts| ResidualTable::read_carried().interval_of(PredictedQuantity::Peak, facts);
        assert_eq!(peak(&near), peak(&none));
        // A mechanism that no run has widens the interval, but runs that resemble the prediction in part still narrow
        // it.
        let further = |mechanism: &str| {
            let mut facts = near.clone();
            facts.mechanisms.insert(Mechanism::Technique(mechanism.into()));
            width(&facts)
        };
        assert!(further("galore") > 1.1 * width(&near) && further("galore") < width(&none));
        let narrowed = |chips| {
            let on = |facts: &PredictionFacts| width(&PredictionFacts { chips, ..facts.clone() });
            on(&near) / on(&none)
        };
        assert!(narrowed(8) > 1.05 * narrowed(64) && narrowed(8) < 1.0, "{} {}", narrowed(8), narrowed(64));
    }

    #[test]
    fn more_chips_than_any_run_need_errors_with_numbers_of_chips_left_out() {
        let mut facts = with_runs(&[0.01; 12]);
        let mut runs = facts.own_runs.to_vec();
        for (at, run) in runs.iter_mut().enumerate() {
            run.chips = [8, 64][at % 2];
            run.error_without_scale = Some(0.05);
        }
        facts.own_runs = runs.into();
        let larger = PredictionFacts { chips: 128, ..facts.clone() };
        let none = PredictionFacts { own_runs: step::FittedRuns::default(), ..larger.clone() };
        assert!(width(&larger) < width(&none) && width(&larger) > width(&facts));
    }

    #[test]
    fn runs_of_one_model_count_as_few() {
        let apart = with_runs(&[0.01; 12]);
        let mut alike = apart.clone();
        alike.own_runs =
            apart.own_runs.iter().map(|run| FittedRun { parameters: 7, ..run.clone() }).collect::<Vec<_>>().into();
        let count = |facts| CloserErrors::of_own_runs(STEP, facts).unwrap().count;
        assert!((count(&apart) - 12.0).abs() < 1e-9 && count(&alike) < 4.0, "{}", count(&alike));
        assert!(width(&alike) > 1.2 * width(&apart));
    }

    #[test]
    fn large_own_errors_widen_the_interval() {
        let errors: Vec<f64> = (0..12).map(|at| if at % 2 == 0 { 0.5 } else { -0.5 }).collect();
        assert!(width(&with_runs(&errors)) > 1.5 * width(&with_runs(&[])));
    }

    #[test]
    fn own_runs_are_grounds() {
        let table = ResidualTable::read_carried();
        let grade = |facts: &PredictionFacts, what: &str| {
            let grounds = table.grounds_of(STEP, facts);
            let ground = grounds.iter().find(|ground| ground.what == what).unwrap();
            (ground.grade, ground.near.first().map(|(name, runs)| (name.clone(), *runs)))
        };
        assert_eq!(grade(&with_runs(&[]), "stack").0, Grade::Related);
        assert_eq!(grade(&with_runs(&[0.01; 12]), "stack"), (Grade::Measured, Some(("ours".into(), 12))));
        assert_eq!(grade(&with_runs(&[0.01; 2]), "execution").0, Grade::Related);
        assert_eq!(grade(&with_runs(&[0.01; 3]), "execution").0, Grade::Measured);
    }

    /// Own runs narrow the interval of the ratio of two plans under the stack, and the lead of one design over another.
    #[test]
    fn ratios_and_leads_narrow_with_the_steps() {
        let table = ResidualTable::read_carried();
        let lead = |facts: &PredictionFacts| {
            (table.ratio_interval(STEP, [facts, facts]).high, table.lead_over_design(STEP, facts))
        };
        let (own, none) = (lead(&with_runs(&[0.005; 30])), lead(&with_runs(&[])));
        assert!(own.0 < none.0 && own.1 < none.1 && own.0 > 1.0 && own.1 > 1.0, "{own:?} {none:?}");
    }
}
