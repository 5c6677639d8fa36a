//! The progress of a search's proof: the best value and the bound over time, with the counts of decided designs.

use crate::text::{TextTable, format_count, format_percent, format_significant};
use search::design::DesignAnswer;
use search::objective::{Objective, ValueScale};
use search::runner::{BoundSource, CandidateOutcome, DecisionCounts, Exclusion, SearchMoment};
use search::space::Space;

/// A new row starts when the gap shrinks by this fraction.
const CLOSER: f64 = 0.2;

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProgressRow {
    /// Seconds since the search began.
    pub seconds: f64,
    /// The best value in the displayed unit; `None` if there was none.
    pub best: Option<f64>,
    /// The bound in the displayed unit: no design is better. `None` if there was none.
    pub bound: Option<f64>,
    /// Relative gap between bound and best value, as a fraction. `None` without one of them.
    pub gap: Option<f64>,
    /// The counts of decided designs.
    pub counts: DecisionCounts,
}

/// The table of a search's progress, in the unit of its objective.
#[derive(Debug, Clone)]
pub struct ProgressTable {
    objective: Objective,
    scale: ValueScale,
    /// True if values are at the bad ends of the steps' intervals.
    robust: bool,
    /// The number of designs per chip, and the number of designs outside the space from the start.
    designs: (u64, u64),
    rows: Vec<ProgressRow>,
    last: Option<ProgressRow>,
}

impl ProgressTable {
    /// Makes an empty table.
    #[must_use]
    pub fn new(objective: Objective, scale: ValueScale, space: &Space) -> Self {
        let each = space.hbm.len().max(1) as u64;
        Self { designs: (each, space.outside.total() as u64 * each), ..Self::for_chips(objective, scale) }
    }

    /// Sets whether the search ranks designs by the bad ends of the steps' intervals.
    #[must_use]
    pub fn with_bad_ends(self, robust: bool) -> Self {
        Self { robust, ..self }
    }

    /// Makes an empty table for a space with one design per chip, all of them within the space.
    fn for_chips(objective: Objective, scale: ValueScale) -> Self {
        Self { objective, scale, robust: false, designs: (1, 0), rows: Vec::new(), last: None }
    }

    /// Converts counts of chips to counts of designs. A chip has one design per memory size. All of them share the
    /// outcome of the largest one, except that evaluations count one by one.
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

    /// Sets the counts of the last row to those of the answer, which include the designs with smaller memories. The
    /// certificate has the same counts.
    pub fn finish_with(&mut self, answer: &DesignAnswer) {
        let mut counts =
            DecisionCounts { excluded: answer.outside.total() as u64 * self.designs.0, ..DecisionCounts::default() };
        let sets = answer.boxes.iter().map(|of| (&of.outcome, of.region.combination_count(), true));
        for (outcome, size, in_set) in answer.designs.iter().map(|design| (&design.outcome, 1, false)).chain(sets) {
            match outcome {
                CandidateOutcome::Evaluated { .. } => counts.evaluated += size,
                CandidateOutcome::Infeasible { .. } | CandidateOutcome::Excluded(Exclusion::NoPlan) => {
                    counts.evaluated += size;
                    counts.infeasible += size;
                }
                CandidateOutcome::Pruned { shown, .. } if in_set => counts.in_sets[*shown as usize] += size,
                CandidateOutcome::Pruned { shown, .. } => counts.alone[*shown as usize] += size,
                CandidateOutcome::Open { .. } | CandidateOutcome::Excluded(_) => {}
            }
        }
        // Designs pruned by plans count as evaluated.
        counts.evaluated += counts.alone[BoundSource::Plans as usize];
        if let Some(last) = self.last.as_mut().or(self.rows.last_mut()) {
            counts.looks = last.counts.looks;
            last.counts = counts;
        }
    }

    /// Returns the unit of the values.
    #[must_use]
    pub fn unit(&self) -> &'static str {
        self.objective.display_value(1.0, self.scale).1
    }

    /// Adds a moment of a search. It gets a new row if the best design changes or the gap shrinks clearly; otherwise it
    /// becomes the last row until the next moment. The choice of rows does not depend on the clock.
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

    /// Returns the rows, including the last moment.
    pub fn rows(&self) -> impl Iterator<Item = &ProgressRow> {
        self.rows.iter().chain(&self.last)
    }

    /// Returns the table as comma-separated values. The first line has the names of the columns.
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
            text.push_str(&format!(
                "{:.3},{best},{bound},\"{}\",{gap},{}\n",
                row.seconds,
                self.unit(),
                counts.join(",")
            ));
        }
        text
    }

    /// Returns the table as text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let header =
            ["s", "best", "bound", "gap", "evaluated", "discarded in boxes", "one by one", "infeasible", "outside"];
        let mut table = TextTable::new(header);
        for column in 0..header.len() {
            table = table.align_column(column, crate::text::ColumnAlign::Right);
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
        let mut table =
            ProgressTable::for_chips(Objective::Throughput, ValueScale::Alone { devices: 1.0, tokens: 100.0 });
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
        let lines: Vec<(f64, Option<f64>, Option<f64>)> =
            table.rows().map(|row| (row.seconds, row.best, row.bound)).collect();
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
