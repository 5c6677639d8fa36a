//! How the proof of a search grew: the best and the bound over time, and what had been discarded by then.

use crate::report::{TextTable, format_count, format_percent, format_significant};
use search::design::DesignAnswer;
use search::objective::{Objective, ValueScale};
use search::runner::{BoundSource, CandidateOutcome, DecisionCounts, SearchMoment};
use search::space::Space;

/// A gap smaller by this fraction of itself is worth a line.
const CLOSER: f64 = 0.2;

/// A line of the table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProgressRow {
    /// Seconds since the search began.
    pub seconds: f64,
    /// The best value, as people read it; `None` where there was none.
    pub best: Option<f64>,
    /// No design is better; `None` where nothing was known.
    pub bound: Option<f64>,
    /// By how much the bound is better than the best, as a fraction of the best.
    pub gap: Option<f64>,
    /// What had been decided by what.
    pub counts: DecisionCounts,
}

/// The table, in the unit of an objective.
#[derive(Debug, Clone)]
pub struct ProgressTable {
    objective: Objective,
    scale: ValueScale,
    /// Whether its values are at the bad ends of steps' intervals.
    robust: bool,
    /// Designs of a chip, and those that are outside the space before it is searched.
    designs: (u64, u64),
    rows: Vec<ProgressRow>,
    last: Option<ProgressRow>,
}

impl ProgressTable {
    /// An empty one.
    #[must_use]
    pub fn new(objective: Objective, scale: ValueScale, space: &Space) -> Self {
        let each = space.hbm.len().max(1) as u64;
        Self { designs: (each, space.outside.total() as u64 * each), ..Self::for_chips(objective, scale) }
    }

    /// The same of a search by the bad ends of steps' intervals, or not.
    #[must_use]
    pub fn with_bad_ends(self, robust: bool) -> Self {
        Self { robust, ..self }
    }

    /// Of a space whose chips are a design each and all within it.
    fn for_chips(objective: Objective, scale: ValueScale) -> Self {
        Self { objective, scale, robust: false, designs: (1, 0), rows: Vec::new(), last: None }
    }

    /// A search's counts of chips as those of designs: each of a chip's memories shares the fate of the largest, but for what its evaluation
    /// comes to.
    fn to_design_counts(&self, counts: &DecisionCounts) -> DecisionCounts {
        let (each, outside) = self.designs;
        let [peaks, mapped, plans] = counts.alone;
        DecisionCounts {
            in_sets: counts.in_sets.map(|chips| chips * each),
            alone: [peaks * each, mapped * each, plans * each],
            excluded: counts.excluded * each + outside,
            infeasible: counts.infeasible * each,
            evaluated: counts.valued_candidates() + (counts.infeasible + plans) * each,
            looks: counts.looks,
        }
    }

    /// Counts in the last line what the answer has, designs of smaller memories among them: what its certificate says.
    pub fn finish_with(&mut self, answer: &DesignAnswer) {
        let mut counts = DecisionCounts { excluded: answer.outside.total() as u64 * self.designs.0, ..DecisionCounts::default() };
        let sets = answer.boxes.iter().map(|of| (&of.outcome, of.region.combination_count(), true));
        for (outcome, size, in_set) in answer.designs.iter().map(|design| (&design.outcome, 1, false)).chain(sets) {
            match outcome {
                CandidateOutcome::Evaluated { .. } => counts.evaluated += size,
                CandidateOutcome::Infeasible { .. } => {
                    counts.evaluated += size;
                    counts.infeasible += size;
                }
                CandidateOutcome::Pruned { shown, .. } if in_set => counts.in_sets[*shown as usize] += size,
                CandidateOutcome::Pruned { shown, .. } => counts.alone[*shown as usize] += size,
                CandidateOutcome::Open { .. } | CandidateOutcome::Excluded(_) => {}
            }
        }
        // Those that plans discard are among the evaluated ones.
        counts.evaluated += counts.alone[BoundSource::Plans as usize];
        if let Some(last) = self.last.as_mut().or(self.rows.last_mut()) {
            counts.looks = last.counts.looks;
            last.counts = counts;
        }
    }

    /// The unit of its values.
    #[must_use]
    pub fn unit(&self) -> &'static str {
        self.objective.display_value(1.0, self.scale).1
    }

    /// Takes a moment of a search: a line where the best is another or the gap is clearly smaller. Which moments are lines does not depend on the clock.
    pub fn add_moment(&mut self, seconds: f64, moment: &SearchMoment) {
        let (objective, scale) = (self.objective, self.scale);
        let shown = |value: f64| (value > 0.0 && value.is_finite()).then(|| objective.display_value(value, scale).0);
        let gap = moment.best.filter(|_| moment.bound > 0.0).map(|best| (best / moment.bound - 1.0).max(0.0));
        let row = ProgressRow {
            seconds,
            best: moment.best.and_then(shown),
            bound: shown(moment.bound),
            gap,
            counts: self.to_design_counts(&moment.counts),
        };
        let worth = match self.rows.last() {
            None => true,
            Some(before) => {
                before.best != row.best
                    || match (before.gap, gap) {
                        (Some(before), Some(now)) => now < before * (1.0 - CLOSER),
                        (before, now) => before.is_some() != now.is_some(),
                    }
            }
        };
        if worth {
            self.rows.push(row);
            self.last = None;
        } else {
            self.last = Some(row);
        }
    }

    /// Its lines, the last moment among them.
    pub fn rows(&self) -> impl Iterator<Item = &ProgressRow> {
        self.rows.iter().chain(&self.last)
    }

    /// As a file: comma-separated values, the first line the columns' names.
    #[must_use]
    pub fn to_csv(&self) -> String {
        let mut text = String::from(
            "seconds,best,bound,unit,gap,evaluated,discarded_boxes_peaks,discarded_boxes_mapped,discarded_designs_peaks,\
             discarded_designs_mapped,discarded_designs_plans,outside,looks,infeasible\n",
        );
        let number = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
        for row in self.rows() {
            let c = &row.counts;
            let [peaks, mapped, _] = c.in_sets;
            let [one, other, plans] = c.alone;
            let counts = [c.valued_candidates(), peaks, mapped, one, other, plans, c.excluded, c.looks, c.infeasible]
                .map(|n| n.to_string());
            let (best, bound, gap) = (number(row.best), number(row.bound), number(row.gap));
            text.push_str(&format!("{:.3},{best},{bound},\"{}\",{gap},{}\n", row.seconds, self.unit(), counts.join(",")));
        }
        text
    }

    /// For people.
    #[must_use]
    pub fn to_text(&self) -> String {
        let header = ["s", "best", "bound", "gap", "evaluated", "discarded in boxes", "one by one", "infeasible", "outside"];
        let mut table = TextTable::new(header);
        for column in 0..header.len() {
            table = table.align_column(column, crate::report::ColumnAlign::Right);
        }
        let shown = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format_significant(value, 6));
        for row in self.rows() {
            let c = &row.counts;
            table.add_row([
                format!("{:.1}", row.seconds),
                shown(row.best),
                shown(row.bound),
                row.gap.map_or_else(|| "-".to_owned(), format_percent),
                format_count(c.valued_candidates()),
                format_count(c.in_sets.iter().sum::<u64>()),
                format_count(c.alone.iter().sum::<u64>()),
                format_count(c.infeasible),
                format_count(c.excluded),
            ]);
        }
        let at = if self.robust { ", at the bad end of each step's interval" } else { "" };
        format!("In {}{at}:\n\n{}", self.unit(), table.render())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_where_something_happened_and_the_last_moment() {
        let mut table = ProgressTable::for_chips(Objective::Throughput, ValueScale::Alone { devices: 1.0, tokens: 100.0 });
        let mut take = |seconds, best, bound, evaluated| {
            table.add_moment(
                seconds,
                &SearchMoment { best, bound, counts: DecisionCounts { evaluated, ..DecisionCounts::default() } },
            );
        };
        take(0.5, None, 0.0, 0);
        take(1.0, Some(2.0), 1.0, 1);
        take(2.0, Some(2.0), 1.05, 9);
        take(3.0, Some(2.0), 1.6, 10);
        take(4.0, Some(2.0), 1.61, 12);
        let lines: Vec<(f64, Option<f64>, Option<f64>)> = table.rows().map(|row| (row.seconds, row.best, row.bound)).collect();
        assert_eq!(
            lines,
            [
                (0.5, None, None),
                (1.0, Some(50.0), Some(100.0)),
                (3.0, Some(50.0), Some(62.5)),
                (4.0, Some(50.0), Some(100.0 / 1.61))
            ]
        );
        let csv = table.to_csv();
        assert!(csv.contains("\n1.000,50,100,\"tokens/s\",1,1,0,0,0,0,0,0,0,0\n"), "{csv}");
        assert!(table.to_text().starts_with("In tokens/s:"), "{}", table.to_text());
    }
}
