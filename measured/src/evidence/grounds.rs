//! The grounds of a prediction, graded by the measured rows.

use super::facts::{NamedKind, PredictionFacts};
use super::mechanism::Mechanism;
use super::table::ResidualRow;
use super::{EvidenceGround, Grade, LEAST};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The measured rows that may support a prediction, and the prediction's facts.
pub(super) struct GroundRows<'a> {
    pub(super) rows: Vec<&'a ResidualRow>,
    pub(super) facts: &'a PredictionFacts,
}

impl GroundRows<'_> {
    /// Returns all grounds of the prediction with their grades.
    pub(super) fn list_grounds(&self) -> Vec<EvidenceGround> {
        let mut grounds = vec![
            self.ground_of_kinds("chip", |f| [&f.chip]),
            self.ground_of_kinds("fabric", |f| [&f.fabric]),
            self.ground_of_kinds("cluster", |f| [&f.chip, &f.fabric]),
            self.ground_of_kinds("stack", |f| [&f.stack]),
            self.ground_of_kinds("execution", |f| [&f.stack, &f.chip]),
        ];
        grounds.extend(self.facts.mechanisms.iter().map(|mechanism| self.ground_of_mechanism(mechanism)));
        grounds.push(self.ground_of_scale());
        grounds
    }

    fn grade_ground(&self, same: impl Fn(&ResidualRow) -> bool, related: impl Fn(&ResidualRow) -> bool) -> Grade {
        let count = self.rows.iter().filter(|row| same(row)).count();
        match (count, self.rows.iter().any(|row| related(row))) {
            (LEAST.., _) => Grade::Measured,
            (1.., _) | (_, true) => Grade::Related,
            (0, false) => Grade::NeverMeasured,
        }
    }

    /// Returns a ground that is one named thing, or several together. Each of several may have been measured without
    /// the others.
    fn ground_of_kinds<const N: usize>(
        &self,
        what: &'static str,
        of: fn(&PredictionFacts) -> [&NamedKind; N],
    ) -> EvidenceGround {
        let facts = self.facts;
        let name = |facts: &PredictionFacts| of(facts).map(|kind| kind.name.as_str()).join(" on ");
        let same = |row: &ResidualRow| name(&row.facts) == name(facts);
        let related = |row: &ResidualRow| of(&row.facts).map(|kind| &kind.kind) == of(facts).map(|kind| &kind.kind);
        let of_row = |row: &ResidualRow| name(&row.facts);
        let near = if self.rows.iter().any(|row| same(row)) {
            count_names(&self.rows, same, of_row)
        } else {
            count_names(&self.rows, related, of_row)
        };
        EvidenceGround { what, name: name(facts), grade: self.grade_ground(same, related), near }
    }

    fn ground_of_mechanism(&self, mechanism: &Mechanism) -> EvidenceGround {
        let has = |row: &ResidualRow| row.facts.mechanisms.contains(mechanism);
        let same = |row: &ResidualRow| has(row) && row.facts.stack.name == self.facts.stack.name;
        EvidenceGround {
            what: "mechanism",
            name: mechanism.to_string(),
            grade: self.grade_ground(same, has),
            near: count_names(&self.rows, has, |row| row.facts.stack.name.clone()),
        }
    }

    fn ground_of_scale(&self) -> EvidenceGround {
        let within = |row: &ResidualRow| row.facts.chips >= self.facts.chips;
        let same = |row: &ResidualRow| within(row) && row.facts.stack.name == self.facts.stack.name;
        let largest = self.rows.iter().map(|row| row.facts.chips).max();
        let near = count_names(
            &self.rows,
            |row| within(row) || Some(row.facts.chips) == largest,
            |row| row.facts.chips.to_string(),
        );
        EvidenceGround {
            what: "scale",
            name: self.facts.chips.to_string(),
            grade: self.grade_ground(same, within),
            near,
        }
    }
}

/// Returns (name, number of rows) among the rows that `like` selects, most rows first.
fn count_names(
    rows: &[&ResidualRow],
    like: impl Fn(&ResidualRow) -> bool,
    name: impl Fn(&ResidualRow) -> String,
) -> Vec<(String, usize)> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for row in rows.iter().filter(|row| like(row)) {
        *counts.entry(name(row)).or_default() += 1;
    }
    let mut counts: Vec<(String, usize)> = counts.into_iter().collect();
    counts.sort_by_key(|(_, runs)| Reverse(*runs));
    counts
}
