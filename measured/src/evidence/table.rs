//! The carried table of errors.

use super::{Mechanism, NamedKind, PredictionFacts};
use std::collections::BTreeMap;
use std::sync::OnceLock;
use step::FittedRuns;
use thiserror::Error;

/// The columns of a table of residuals.
pub const COLUMNS: [&str; 20] = [
    "quantity",
    "dataset",
    "id",
    "ranking",
    "measured",
    "chip",
    "chip_kind",
    "fabric",
    "fabric_kind",
    "stack",
    "stack_kind",
    "mechanisms",
    "chips",
    "in_sample",
    "by_model",
    "by_nodes",
    "by_chip",
    "by_stack",
    "model_fold",
    "nodes_fold",
];

/// The carried table.
const CARRIED: &str = include_str!("../../reference/residuals.csv");

/// The predicted quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PredictedQuantity {
    /// The time of a step.
    StepTime,
    /// The peak memory of the fullest device.
    Peak,
}

impl PredictedQuantity {
    /// Returns the quantity's column in tables of runs.
    #[must_use]
    pub fn column(self) -> &'static str {
        match self {
            Self::StepTime => "iteration_s",
            Self::Peak => "peak_gib",
        }
    }
}

/// An error of a table.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("residuals, line {line}: {why}; make the table with `coplace validate --held-out FILE... --residuals OUT.csv`")]
pub struct ResidualTableError {
    /// The line; the header is line 1.
    pub line: usize,
    /// The reason.
    pub why: String,
}

/// The errors of one measured run's prediction, each ln(measured / predicted).
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ResidualRow {
    pub(super) dataset: String,
    /// The group of rows that it competes with.
    pub(super) ranking: String,
    pub(super) measured: f64,
    pub(super) facts: PredictionFacts,
    pub(super) in_sample: f64,
    /// Errors with models, numbers of chips, chips and software held out, in this order.
    pub(super) held_out: [Option<f64>; 4],
    /// The fold of models and of numbers of chips, within the rows of its stack.
    pub(super) fold: [usize; 2],
}

/// The errors of measured runs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ResidualTable {
    rows: BTreeMap<PredictedQuantity, Vec<ResidualRow>>,
}

impl ResidualTable {
    /// Returns the carried table.
    #[must_use]
    pub fn read_carried() -> &'static Self {
        static TABLE: OnceLock<ResidualTable> = OnceLock::new();
        // A test ensures that the table can be read. If it could not, the table would be empty.
        TABLE.get_or_init(|| Self::parse_csv(CARRIED).unwrap_or_default())
    }

    /// Reads a table of residuals from CSV.
    ///
    /// # Errors
    /// The first faulty line: a header with other columns, another number of cells, an unknown quantity, or a cell that
    /// is no number.
    pub fn parse_csv(text: &str) -> Result<Self, ResidualTableError> {
        let mut lines = text.lines().enumerate();
        if lines.next().is_none_or(|(_, head)| head.split(',').ne(COLUMNS)) {
            return Err(ResidualTableError { line: 1, why: format!("the columns must be {}", COLUMNS.join(",")) });
        }
        let mut rows: BTreeMap<PredictedQuantity, Vec<ResidualRow>> = BTreeMap::new();
        for (at, line) in lines {
            let cells: Vec<&str> = line.split(',').collect();
            let (quantity, row) = parse_row(&cells).map_err(|why| ResidualTableError { line: at + 1, why })?;
            rows.entry(quantity).or_default().push(row);
        }
        Ok(Self { rows })
    }

    /// Returns facts without the chip's name if no run, of the table or own, has a chip of that name. The errors of all
    /// such chips of a kind are alike.
    #[must_use]
    pub fn hide_unmeasured_chip(&self, mut facts: PredictionFacts) -> PredictionFacts {
        let name = &facts.chip.name;
        let in_table = || self.rows.values().flatten().any(|row| row.facts.chip.name == *name);
        if !facts.own_runs.iter().any(|run| run.chip == *name) && !in_table() {
            facts.chip.name.clear();
        }
        facts
    }

    pub(super) fn rows_of(&self, quantity: PredictedQuantity) -> impl Iterator<Item = &ResidualRow> {
        self.rows.get(&quantity).into_iter().flatten()
    }
}

fn parse_row(cells: &[&str]) -> Result<(PredictedQuantity, ResidualRow), String> {
    let Ok(cells) = <&[&str; COLUMNS.len()]>::try_from(cells) else {
        return Err(format!("it has {} cells, the header {}", cells.len(), COLUMNS.len()));
    };
    let quantity = match cells[0] {
        "iteration_s" => PredictedQuantity::StepTime,
        "peak_gib" => PredictedQuantity::Peak,
        other => return Err(format!("quantity = {other}: must be iteration_s or peak_gib")),
    };
    let kind = |at: usize| NamedKind { name: cells[at].to_owned(), kind: cells[at + 1].to_owned() };
    let number =
        |at: usize| cells[at].parse::<f64>().map_err(|_| format!("{} = {}: must be a number", COLUMNS[at], cells[at]));
    let optional = |at: usize| if cells[at].is_empty() { Ok(None) } else { number(at).map(Some) };
    let facts = PredictionFacts {
        chip: kind(5),
        fabric: kind(7),
        stack: kind(9),
        mechanisms: cells[11].split('+').filter(|m| !m.is_empty()).map(Mechanism::from_name).collect(),
        chips: number(12)? as u32,
        own_runs: FittedRuns::default(),
    };
    let held_out = [optional(14)?, optional(15)?, optional(16)?, optional(17)?];
    let fold = [number(18)? as usize, number(19)? as usize];
    let (dataset, ranking) = (cells[1].to_owned(), cells[3].to_owned());
    Ok((
        quantity,
        ResidualRow { dataset, ranking, measured: number(4)?, facts, in_sample: number(13)?, held_out, fold },
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_carried_table_can_be_read() {
        let table = ResidualTable::parse_csv(CARRIED).unwrap();
        assert!(
            table.rows_of(PredictedQuantity::StepTime).count() > 1000
                && table.rows_of(PredictedQuantity::Peak).count() > 400
        );
    }

    #[test]
    fn a_fault_is_named_with_its_line() {
        let head = COLUMNS.join(",");
        let fault = |text: &str| ResidualTable::parse_csv(text).unwrap_err().to_string();
        assert!(fault("a,b\n").starts_with("residuals, line 1: the columns must be quantity,dataset,"));
        assert!(
            fault(&format!("{head}\niteration_s,x\n"))
                .contains("line 2: it has 2 cells, the header 20; make the table with")
        );
        let row = "iteration_s,d,i,r,1.5,c,k,f,k,s,k,tensor,8,0.1,x,,,,0,0";
        assert!(fault(&format!("{head}\n{row}\n")).contains("by_model = x: must be a number"));
    }
}
