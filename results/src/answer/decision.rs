//! Confidence in a search's choice under draws of uncertain constants, as data and as text.

use crate::text::{TextTable, fold_line, format_fields, format_percent, format_significant};
use serde::{Deserialize, Serialize};

/// A dimension counts as settled if, in at least this fraction of the draws, the best design has the found design's
/// value.
const SETTLED: f64 = 0.9;
/// The largest number of constants shown in the text.
const SHOWN: usize = 5;
/// If knowing a constant lowers the expected regret by at most this fraction, the text does not call it worth knowing.
const WORTHLESS: f64 = 1e-4;

/// Confidence in the choice of a design.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecisionRecord {
    /// The number of draws of the uncertain constants.
    pub draws: u64,
    /// The number of further draws in which no design is within the power limit. They say nothing about the choice.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: u64,
    /// The number of constants that affect at least one finalist.
    pub constants: u64,
    /// The number of designs that were considered under the draws.
    pub considered: u64,
    /// The estimated fraction of further draws whose best design was not considered.
    pub missed: f64,
    /// The fraction of draws in which the found design is the best.
    pub probability_best: f64,
    /// The found design's expected regret: its shortfall from the best design of a draw, as a fraction, averaged over
    /// the draws.
    pub regret_expected: f64,
    /// The regret that 95 % of the draws stay below.
    pub regret_95: f64,
    /// The design with the least expected regret.
    pub robust: FinalistRecord,
    /// For each dimension, the fraction of draws whose best design has the found design's value.
    pub settled: Vec<SettledRecord>,
    /// The constants, those most worth knowing first.
    pub tornado: Vec<TornadoRow>,
    /// The designs that were evaluated under all draws, the found one first.
    pub finalists: Vec<FinalistRecord>,
}

/// A design that may be the best one under some draws.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FinalistRecord {
    /// Its dimensions in words.
    pub dimensions: String,
    /// The dimensions in which it differs from the found design.
    pub differs_in: String,
    /// True for the found design.
    pub is_found: bool,
    /// The fraction of draws in which it is the best.
    pub probability_best: f64,
    /// Its shortfall from the best design of a draw, as a fraction, averaged over the draws.
    pub regret_expected: f64,
    /// The regret that 95 % of the draws stay below.
    pub regret_95: f64,
    /// The fraction of draws in which it exceeds a limit of area or cost, or cannot be built.
    pub over_limits: f64,
    /// The fraction of draws in which it exceeds the limit of power even at its lowest clock, or has no plan.
    #[serde(default)]
    pub lost: f64,
}

/// The fraction of draws whose best design has the found design's value of one dimension.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettledRecord {
    /// The dimension.
    pub dimension: String,
    /// The found design's value.
    pub value: String,
    /// The fraction of draws whose best design has this value.
    pub probability: f64,
    /// The most frequent other value.
    pub other: Option<String>,
    /// The fraction of draws whose best design has that other value.
    pub other_probability: Option<f64>,
}

/// An uncertain constant, and the worth of knowing it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TornadoRow {
    /// The constant (`coplace list constants`).
    pub input: String,
    /// Its unit and meaning.
    pub unit: String,
    /// Its lowest value.
    pub low: f64,
    /// Its nominal value.
    pub nominal: f64,
    /// Its highest value.
    pub high: f64,
    /// The fall of the expected regret if the constant were known, as a fraction.
    pub worth: f64,
    /// The found design's mean lead over the best other finalist, in the lowest quarter of the constant's range, as a
    /// fraction.
    pub lead_low: f64,
    /// The found design's mean lead over the best other finalist, in the highest quarter of the constant's range, as a
    /// fraction.
    pub lead_high: f64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl DecisionRecord {
    /// Returns the answer in words, with a table of the constants.
    #[must_use]
    pub fn to_text(&self) -> String {
        let percent = format_percent;
        let mut pairs = vec![
            (
                "best in",
                format!("{} of {} draws of {} constants", percent(self.probability_best), self.draws, self.constants),
            ),
            (
                "regret",
                format!(
                    "{} expected, at most {} in 95 of 100 draws: how much better the best design of a draw is",
                    percent(self.regret_expected),
                    percent(self.regret_95)
                ),
            ),
        ];
        let lost = self.found_lost();
        if lost > 0.0 {
            let why = "it exceeds the limit of power at its lowest clock, or no plan fits; it loses all there";
            pairs.push(("cannot run", format!("in {} of the draws: {why}", percent(lost))));
        }
        let over = self.finalists.first().map_or(0.0, |found| found.over_limits);
        if over > 0.0 {
            pairs
                .push(("over a limit", format!("in {} of the draws (area, cost or what can be built)", percent(over))));
        }
        pairs.push(("robust choice", self.robust_text()));
        let (settled, open): (Vec<_>, Vec<_>) = self.settled.iter().partition(|of| of.probability >= SETTLED);
        let words = |of: &[&SettledRecord]| of.iter().map(|of| of.to_words()).collect::<Vec<_>>().join(", ");
        if !settled.is_empty() {
            pairs.push(("settled", words(&settled)));
        }
        if !open.is_empty() {
            pairs.push(("open", words(&open)));
        }
        let mut text = format_fields(&pairs);
        text.push_str(&self.tornado_text());
        text.push_str(&fold_line(&self.coverage_text()));
        text
    }

    /// Returns the answer in one sentence.
    #[must_use]
    pub fn summary_text(&self) -> String {
        let open: Vec<&SettledRecord> = self.settled.iter().filter(|of| of.probability < SETTLED).collect();
        let open = match &open[..] {
            [] => "every dimension is settled".to_owned(),
            open => {
                let words: Vec<String> = open.iter().map(|of| of.to_words()).collect();
                format!("open: {}", words.join(", "))
            }
        };
        // A design that cannot run in a draw has a regret of 1. If this is so in more than 5 % of the draws,
        // `regret_95` is 1, and the text omits it.
        let at_most = match self.regret_95 {
            1.0.. => String::new(),
            most => format!(", at most {} in 95 of 100 draws", format_percent(most)),
        };
        let left_out = match self.left_out {
            0 => String::new(),
            count => format!(" (in {count} more no design runs)"),
        };
        let lost = match self.found_lost() {
            0.0 => String::new(),
            lost => format!("; in {} of them it cannot run and loses all", format_percent(lost)),
        };
        let over = match self.finalists.first().map_or(0.0, |found| found.over_limits) {
            0.0 => String::new(),
            over => format!("; in {} it exceeds a limit of area, cost or building", format_percent(over)),
        };
        format!(
            "best in {} of {} draws of what is not known{left_out}; choosing it costs {} on \
            average{at_most}{lost}{over}; {open}; robust choice: {}",
            format_percent(self.probability_best),
            self.draws,
            format_percent(self.regret_expected),
            if self.robust.is_found { "the same" } else { &self.robust.differs_in }
        )
    }

    /// Returns the fraction of draws in which the found design cannot run ([`FinalistRecord::lost`]).
    fn found_lost(&self) -> f64 {
        self.finalists.first().map_or(0.0, |found| found.lost)
    }

    /// Returns the robust choice in words.
    fn robust_text(&self) -> String {
        if self.robust.is_found {
            return "the same design".to_owned();
        }
        format!(
            "{}: regret {} expected, at most {} in 95 of 100 draws",
            self.robust.differs_in,
            format_percent(self.robust.regret_expected),
            format_percent(self.robust.regret_95)
        )
    }

    fn coverage_text(&self) -> String {
        let missed = match self.missed {
            0.0 => "every design of the space was considered".to_owned(),
            missed => format!(
                "{} designs were considered; a further draw has another best design in about {} of the cases",
                self.considered,
                format_percent(missed)
            ),
        };
        let left_out = match self.left_out {
            0 => String::new(),
            count => format!("{count} further draws are left out: no design is within the limit of power in them. "),
        };
        format!(
            "{left_out}All designs see the same draws, even in each half of every constant's range (coplace list \
            constants); {missed}. Fabric, stack and plans are taken as known."
        )
    }

    fn tornado_text(&self) -> String {
        let mut text = String::new();
        if self.tornado.iter().all(|row| row.worth <= WORTHLESS) {
            text.push_str(&fold_line(
                "No single constant is worth knowing: with any of them known the same design would be chosen. These \
                move its lead most:",
            ));
        }
        let mut table = TextTable::new(["constant", "from", "to", "lead there", "here", "regret falls by"])
            .keep_columns(&["from", "to", "lead there", "here", "regret falls by"]);
        for row in self.tornado.iter().take(SHOWN) {
            table.add_row([
                row.input.clone(),
                format_significant(row.low, 3),
                format_significant(row.high, 3),
                format!("{:+.1} %", 100.0 * row.lead_low),
                format!("{:+.1} %", 100.0 * row.lead_high),
                format!("{:.2} %", 100.0 * row.worth),
            ]);
        }
        format!("{text}\n{}", table.render())
    }
}

impl SettledRecord {
    fn to_words(&self) -> String {
        let other = self.other.as_ref().zip(self.other_probability).filter(|_| self.probability < SETTLED);
        let other = other.map_or_else(String::new, |(other, part)| format!("; {other} in {}", format_percent(part)));
        format!("{} {} ({}{other})", self.dimension, self.value, format_percent(self.probability))
    }
}

/// A record for tests.
#[cfg(test)]
pub(crate) fn example() -> DecisionRecord {
    fn finalist(dimensions: &str, is_found: bool) -> FinalistRecord {
        FinalistRecord {
            dimensions: dimensions.to_owned(),
            differs_in: dimensions.to_owned(),
            is_found,
            probability_best: 0.4,
            regret_expected: 0.01,
            regret_95: 0.05,
            over_limits: 0.25,
            lost: 0.0625,
        }
    }
    let settled = |probability: f64| SettledRecord {
        dimension: "links".into(),
        value: "12".into(),
        probability,
        other: Some("18".into()),
        other_probability: Some(1.0 - probability),
    };
    DecisionRecord {
        draws: 256,
        left_out: 0,
        constants: 9,
        considered: 30,
        missed: 0.125,
        probability_best: 0.4,
        regret_expected: 0.01,
        regret_95: 0.05,
        robust: finalist("cmem_mib 32", false),
        settled: vec![settled(0.95), SettledRecord { dimension: "cmem_mib".into(), ..settled(0.6) }],
        tornado: vec![TornadoRow {
            input: "hbm.phy".into(),
            unit: "mm^2".into(),
            low: 8.0,
            nominal: 10.0,
            high: 13.0,
            worth: 0.002,
            lead_low: -0.01,
            lead_high: 0.02,
        }],
        finalists: vec![finalist("cmem_mib 64", true)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_decision_reads() {
        let record = example();
        let text = record.to_text().split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains("in about 12.5 % of the cases"), "{text}");
        let text = record.to_text();
        assert!(text.contains("best in        40.0 % of 256 draws of 9 constants\n"), "{text}");
        assert!(text.contains("settled        links 12 (95.0 %)\n"), "{text}");
        assert!(text.contains("open           cmem_mib 12 (60.0 %; 18 in 40.0 %)\n"), "{text}");
        assert!(text.contains("robust choice  cmem_mib 32: regret 1.0 % expected"), "{text}");
        assert!(text.contains("over a limit   in 25.0 % of the draws"), "{text}");
        assert!(text.contains("hbm.phy   8.00  13.0      -1.0 %  +2.0 %           0.20 %\n"), "{text}");
    }
}
