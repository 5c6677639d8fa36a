//! A comparison in a few lines: the designs that were found or given, and the lead over built chips.

use super::comparison::{BaselineStanding, ChipEfficiency, Comparison, ComparisonEntry, processes_note};
use crate::text::{TextTable, fold_line, format_area, format_fields, format_percent, format_rate, format_significant};
use sim::units::SquareMillimeters;

/// The note on the mark `?` of a lead that is too close to call.
const CLOSE: &str = "?: too close to call, by the model's error between designs.\n";

/// The note on the mark `?` of energies. No energies were measured, so the model's error of step times decides.
const CLOSE_BY_STEPS: &str = "?: too close to call, by the model's error of the steps; no energies were measured.\n";

/// The longest head of a column; a longer text stands above the table.
const LONGEST_HEAD: usize = 32;

impl Comparison {
    /// Returns a lead as text: `1.25x`, with a `?` if it is too close to call.
    fn lead_cell(&self, entry: &ComparisonEntry) -> String {
        let Some(lead) = self.lead_over(entry) else { return "- ".to_owned() };
        format!("{lead:.2}x{}", if self.is_open(entry) { "?" } else { " " })
    }

    /// True if an entry's lead gets the mark `?`, because it is too close to call. The first entry gets none.
    fn is_open(&self, entry: &ComparisonEntry) -> bool {
        let first = self.entries.first().is_some_and(|first| std::ptr::eq(first, entry));
        !first && self.lead_over(entry).is_some() && self.is_too_close(entry).unwrap_or(false)
    }

    /// Returns the comparison in a few lines: the entries at the positions `main` by the objective, their chips and
    /// plans, and the first one's lead over built chips. `models` has the same comparison for each of several models,
    /// with its name. `bad_ends` adds the bad end of each step.
    #[must_use]
    pub fn to_summary(&self, main: &[usize], models: &[(String, &Self)], bad_ends: bool) -> String {
        let next = main.get(1).copied();
        let mut text: String = self.differences.iter().map(|difference| fold_line(difference)).collect();
        text.push_str(&self.main_table(main, models, bad_ends));
        let mut marked = std::iter::once(self).chain(models.iter().map(|(_, of)| *of));
        let open = marked.any(|of| main.iter().filter_map(|at| of.entries.get(*at)).any(|one| of.is_open(one)));
        let main: Vec<ComparisonEntry> = main.iter().filter_map(|at| self.entries.get(*at).cloned()).collect();
        let notes = main.iter().filter_map(|e| Some((&e.label, e.note.as_ref()?)));
        notes.for_each(|(label, note)| text.push_str(&fold_line(&format!("{label}: {note}"))));
        text.push_str(&processes_note(&main));
        let what = |e: &ComparisonEntry| match &e.plan {
            Some(plan) => format!("{}; {plan}", e.chip),
            None => e.chip.clone(),
        };
        let pairs: Vec<(&str, String)> = main.iter().map(|e| (e.label.as_str(), what(e))).collect();
        text.push_str(&format_fields(&pairs));
        // Only the first run's built chips are compared. Those of further runs have the networks and stacks of their
        // runs.
        let of_first = self.entries.get(..next.unwrap_or(self.entries.len())).unwrap_or_default();
        let against = self.against_entries(of_first, None);
        if open && !against.ends_with(self.close_text()) {
            text.push_str(self.close_text());
        }
        text + &against
    }

    /// Returns the note on the mark `?`.
    fn close_text(&self) -> &'static str {
        if self.objective.minimises_energy() { CLOSE_BY_STEPS } else { CLOSE }
    }

    /// Returns the table of the main entries.
    fn main_table(&self, main: &[usize], models: &[(String, &Self)], bad_ends: bool) -> String {
        let dash = || "-".to_owned();
        let number = |value: Option<f64>| value.map_or_else(dash, |value| format_significant(value, 4));
        let whole = |value: Option<f64>| value.map_or_else(dash, |value| format!("{value:.0}"));
        let unit = self.unit();
        let alone = !self.is_over_models();
        let mut heads = vec!["design", unit, "first is"];
        heads.extend(models.iter().map(|(name, _)| name.as_str()));
        heads.extend(alone.then_some("90 %"));
        heads.extend(alone.then_some("step s"));
        heads.extend(bad_ends.then_some("bad end s"));
        heads.extend(alone.then_some("MFU"));
        heads.extend(["area", "peak W", "cost USD"]);
        let mut kept = vec![unit, "first is", "90 %", "step s", "bad end s"];
        kept.extend(models.iter().map(|(name, _)| name.as_str()));
        let mut table = TextTable::new(heads).keep_columns(&kept).turn_if_wide();
        for (at, entry) in main.iter().filter_map(|at| Some((*at, self.entries.get(*at)?))) {
            let rate = entry.objective_value.or(entry.throughput_tokens_per_s).or(entry.times_reference);
            let mut row = vec![entry.label.clone(), rate.map_or_else(dash, format_rate), self.lead_cell(entry)];
            row.extend(models.iter().map(|(_, of)| match of.entries.get(at) {
                Some(own) if own.label == entry.label => {
                    let value = own.objective_value.or(own.throughput_tokens_per_s);
                    format!("{} ({})", value.map_or_else(dash, format_rate), of.lead_cell(own).trim_end())
                }
                _ => dash(),
            }));
            let lead = |[low, high]: [f64; 2]| format!("{low:.2} to {high:.2}");
            row.extend(alone.then(|| entry.lead_interval.map_or_else(dash, lead)));
            row.extend(alone.then(|| number(entry.step_time_s)));
            row.extend(bad_ends.then(|| number(entry.step_interval_s.map(|[_, bad]| bad))));
            row.extend(alone.then(|| entry.mfu.map_or_else(dash, format_percent)));
            row.push(entry.area_mm2.map_or_else(dash, |area| format_area(SquareMillimeters(area))));
            row.extend([whole(entry.peak_power_w), whole(entry.cost_usd)]);
            table.add_row(row);
        }
        let mut text = table.render();
        if let Some((_, first)) = models.first() {
            text.push_str(&fold_line(&format!("Of each model: {}, and the first one's lead.", first.unit())));
        }
        if self.entries.iter().any(|entry| entry.lead_interval.is_some()) {
            let less = !self.objective.more_is_better();
            let better = if less { "; less is better" } else { "" };
            text.push_str(&fold_line(&format!(
                "first is: how many times as good the first one is, with its 90 % interval{better}."
            )));
        }
        text
    }

    /// Returns a table of how much better the found design is than built chips, one chip per row. Empty without built
    /// chips. `model` is the name of the model, for one of several.
    #[must_use]
    pub fn against_text(&self, model: Option<&str>) -> String {
        self.against_entries(&self.entries, model)
    }

    /// As [`Self::against_text`], for the built chips among `entries`, a part of this comparison's entries.
    fn against_entries(&self, entries: &[ComparisonEntry], model: Option<&str>) -> String {
        let mut chips: Vec<&str> = Vec::new();
        for entry in entries {
            let chip = entry.baseline.as_ref().map(|of| of.chip.as_str());
            chips.extend(chip.filter(|chip| !chips.contains(chip)));
        }
        if chips.is_empty() {
            return String::new();
        }
        let on = model.map_or_else(String::new, |model| format!(", {model}"));
        let what = format!("the found one is as good, by {}{on}", self.unit());
        let (above, head) =
            if what.chars().count() > LONGEST_HEAD { (fold_line(&what), "than") } else { (String::new(), &what[..]) };
        let mut table = TextTable::new([head, "on its links", "both ideal", "as sold", "mm²", "peak W"])
            .keep_columns(&["on its links", "both ideal", "as sold"]);
        for chip in chips {
            let [links, ideal, sold] =
                [BaselineStanding::SameFabric, BaselineStanding::Ideal, BaselineStanding::AsSold].map(|standing| {
                    let is_same = |entry: &&ComparisonEntry| {
                        entry.baseline.as_ref().is_some_and(|of| of.chip == chip && of.standing == standing)
                    };
                    entries.iter().find(is_same)
                });
            let any = sold.or(links).or(ideal);
            let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.0}"));
            let lead = |entry: Option<&ComparisonEntry>| entry.map_or_else(|| "- ".to_owned(), |of| self.lead_cell(of));
            table.add_row([
                chip.to_owned(),
                lead(links),
                lead(ideal),
                lead(sold),
                number(any.and_then(|entry| entry.area_mm2)),
                number(any.and_then(|entry| entry.peak_power_w)),
            ]);
        }
        let marked = entries.iter().any(|entry| entry.baseline.is_some() && self.is_open(entry));
        let beside = self.family_form_text().unwrap_or_default();
        format!("\n{above}{}{beside}{}", table.render(), if marked { self.close_text() } else { "" })
    }

    /// Returns a note on the value that fitted chips are compared with, if the found chip is ideal. It is the found
    /// chip's value with its family's efficiency. `None` without such a value.
    fn family_form_text(&self) -> Option<String> {
        let is_ideal = self.entries.first()?.efficiency == Some(ChipEfficiency::Ideal);
        let form = self.entries.iter().find_map(|entry| entry.compared_with).filter(|_| is_ideal)?;
        let value = self.entries.get(form)?.objective_value?;
        Some(fold_line(&format!(
            "Chips with fitted efficiency stand beside the found one with its family's: {} {}.",
            format_rate(value),
            self.unit()
        )))
    }
}
