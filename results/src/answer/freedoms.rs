//! The value of each freedom of a search: the chip alone, the plan alone, and both together. Two baselines stand beside
//! them: the TPU v4 as built, and Bayesian optimisation of the chip alone. The Bayesian optimisation has at least as
//! many evaluations as the joint search.

use crate::answer::comparison::{ComparisonEntry, processes_note};
use crate::text::{
    ColumnAlign, TextTable, fold_line, format_area, format_count, format_fields, format_heading, format_rate,
    format_significant,
};
use serde::Serialize;
use sim::units::SquareMillimeters;

/// The compared freedoms, in the order of every list in an answer. The first one is the reference.
pub const FREEDOMS: [&str; 7] = [
    "reference chip, expert's plan",
    "reference chip, our plan",
    "Bayesian optimisation of the chip, expert's plan",
    "best chip, expert's plan",
    "chip and plan together",
    "TPU v4 as measured, expert's plan",
    "TPU v4 as measured, our plan",
];

/// The numbers of chips that were evaluated exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct EvaluatedChips {
    /// By the joint search.
    pub joint: u64,
    /// By Bayesian optimisation of the chip; at least as many.
    pub bayesian: u64,
}

/// One model with the setting of its comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct FreedomCase {
    /// The model.
    pub model: String,
    /// The study.
    pub study: String,
    /// The expert's degrees, with their source.
    pub expert: String,
    /// The chips that are modelled as ideal, and those with calibrated scalars, in words.
    pub chips: String,
}

/// The results for one model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelFreedoms {
    /// The model.
    pub model: String,
    /// The study.
    pub study: String,
    /// The expert's degrees, with their source.
    pub expert: String,
    /// The chips that are modelled as ideal, and those with calibrated scalars, in words.
    pub chips: String,
    /// One entry per freedom, in the order of [`FREEDOMS`] and with the same labels.
    pub entries: Vec<ComparisonEntry>,
    /// Throughput of each entry relative to the first; `null` if either has none.
    pub times_first: Vec<Option<f64>>,
    /// Chips evaluated exactly.
    pub evaluations: EvaluatedChips,
    /// Upper bound of the relative improvement that a design missed by the joint search could bring.
    pub gap: f64,
}

/// The gain of one freedom over all models.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FreedomGain {
    /// The freedom.
    pub freedom: String,
    /// Geometric mean of the throughput relative to the first entry, over the models that have both; `null` if there is
    /// none.
    pub times_first: Option<f64>,
    /// The number of models in the mean.
    pub models: usize,
}

/// The comparison of freedoms.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Freedoms {
    /// By model.
    pub models: Vec<ModelFreedoms>,
    /// Over all models.
    pub over_all: Vec<FreedomGain>,
    /// The seed of Bayesian optimisation.
    pub seed: u64,
}

impl ModelFreedoms {
    /// Makes the results of a model from its entries.
    #[must_use]
    pub fn from_entries(
        FreedomCase { model, study, expert, chips }: FreedomCase,
        entries: [ComparisonEntry; FREEDOMS.len()],
        evaluations: EvaluatedChips,
        gap: f64,
    ) -> Self {
        let of = |entry: &ComparisonEntry| entry.throughput_sequences_per_s.filter(|rate| *rate > 0.0);
        let first = of(&entries[0]);
        let times_first = entries.iter().map(|entry| Some(of(entry)? / first?)).collect();
        Self { model, study, expert, chips, entries: entries.into(), times_first, evaluations, gap }
    }
}

impl Freedoms {
    /// Makes the comparison from the results of the models.
    #[must_use]
    pub fn from_models(models: Vec<ModelFreedoms>, seed: u64) -> Self {
        let worth = |(at, freedom): (usize, &&str)| {
            let logs: Vec<f64> = models.iter().filter_map(|model| model.times_first[at].map(f64::ln)).collect();
            let times_first = (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp());
            FreedomGain { freedom: (*freedom).to_owned(), times_first, models: logs.len() }
        };
        let over_all = FREEDOMS.iter().enumerate().map(worth);
        Self { over_all: over_all.collect(), models, seed }
    }

    /// Returns the comparison as text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let times = |value: &Option<f64>| value.map_or_else(|| "-".to_owned(), |times| format!("{times:.3}x"));
        let mut text = String::new();
        for model in &self.models {
            text.push_str(&format_heading(&format!("{} on study {}", model.model, model.study)));
            text.push_str(&format_fields(&[
                ("expert's plan", model.expert.clone()),
                ("chips", model.chips.clone()),
                (
                    "evaluations",
                    format!(
                        "{} chips by the joint search, {} by Bayesian optimisation",
                        format_count(model.evaluations.joint),
                        format_count(model.evaluations.bayesian)
                    ),
                ),
                (
                    "joint search",
                    format!("no design is better by more than {} %", format_significant(model.gap * 100.0, 2)),
                ),
            ]));
            let mut table =
                TextTable::new(["freedom", "worth", "seq/s", "area", "chip; plan"]).align_column(4, ColumnAlign::Left);
            for (entry, worth) in model.entries.iter().zip(&model.times_first) {
                let plan = entry.plan.as_deref().unwrap_or("no plan fits");
                table.add_row([
                    entry.label.clone(),
                    times(worth),
                    entry.throughput_sequences_per_s.map_or_else(|| "-".to_owned(), format_rate),
                    entry.area_mm2.map_or_else(|| "-".to_owned(), |mm2| format_area(SquareMillimeters(mm2))),
                    format!("{}; {plan}", entry.chip),
                ]);
            }
            text.push('\n');
            text.push_str(&table.render());
            text.push_str(&processes_note(&model.entries));
            for entry in model.entries.iter() {
                if let Some(note) = &entry.note {
                    text.push_str(&fold_line(&format!("{}: {note}", entry.label)));
                }
            }
        }
        if self.models.len() > 1 {
            text.push_str(&format_heading("Over all models, geometric means"));
            let mut table = TextTable::new(["freedom", "worth", "models"]);
            self.over_all.iter().for_each(|worth| {
                table.add_row([worth.freedom.clone(), times(&worth.times_first), worth.models.to_string()])
            });
            text.push_str(&table.render());
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rates: [Option<f64>; 7]) -> ModelFreedoms {
        let mut at = 0;
        let entries = rates.map(|rate| {
            at += 1;
            ComparisonEntry { throughput_sequences_per_s: rate, ..ComparisonEntry::without_design(FREEDOMS[at - 1]) }
        });
        ModelFreedoms::from_entries(
            FreedomCase {
                model: "m".into(),
                study: "s".into(),
                expert: "p 1, t 1, d 1".into(),
                chips: "all are ideal".into(),
            },
            entries,
            EvaluatedChips { joint: 12, bayesian: 32 },
            0.0,
        )
    }

    #[test]
    fn worth_is_over_the_first_and_its_mean_is_geometric() {
        let all = Freedoms::from_models(
            vec![of([2.0, 4.0, 3.0, 3.0, 8.0, 3.0, 5.0].map(Some)), of([1.0, 1.0, 1.0, 2.0, 9.0, 2.0, 3.0].map(Some))],
            0,
        );
        assert_eq!(all.models[0].times_first, [1.0, 2.0, 1.5, 1.5, 4.0, 1.5, 2.5].map(Some));
        let worth: Vec<f64> = all.over_all.iter().filter_map(|worth| worth.times_first).collect();
        assert!((worth[4] - 6.0).abs() < 1e-12 && (worth[1] - 2_f64.sqrt()).abs() < 1e-12, "{worth:?}");
        assert!(all.to_text().contains("6.000x"), "{}", all.to_text());
        let none =
            Freedoms::from_models(vec![of([Some(2.0), None, Some(3.0), Some(3.0), Some(8.0), None, Some(4.0)])], 0);
        assert_eq!((none.models[0].times_first[1], none.over_all[1].times_first), (None, None));
        let lost = of([None, Some(1.0), None, None, None, None, Some(1.0)]);
        assert!(lost.times_first.iter().all(Option::is_none));
    }
}
