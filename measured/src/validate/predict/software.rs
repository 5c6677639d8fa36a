//! The software of a row of measured training. The row's own columns name it (`framework`, `stack`, `stack_options`).
//! For data sets without these columns, `reference/software.csv` names it by data set and, where given, by id, chip and
//! ZeRO stage. Otherwise it is the usual stack of the chip. Free text in a row decides nothing.

use super::{PreparedInputs, read_table};
use crate::validate::row::{MeasuredRow, RowFailure};
use serde::Deserialize;
use std::sync::LazyLock;
use step::Framework;
use workloads::ZeroStage;
use workloads::training::ContextMethod;

/// The software of data sets that lack the columns. The first line that matches a row holds.
static SOFTWARE: LazyLock<Vec<DataSetSoftware>> =
    LazyLock::new(|| read_table(include_str!("../../../reference/software.csv")));

/// A line of the table. An empty condition holds for every row of the data set.
#[derive(Debug, Clone, Deserialize)]
struct DataSetSoftware {
    dataset: String,
    /// The id of the row to which the line applies.
    id: Option<String>,
    /// The chip to which the line applies.
    chip: Option<String>,
    /// The ZeRO stage to which the line applies.
    zero_stage: Option<u64>,
    /// The framework of the rows. A row that names another one does not match.
    framework: Framework,
    /// The stack of the rows; empty if the chip decides among the framework's stacks.
    stack: Option<String>,
    /// Options of the stack, separated by blanks.
    stack_options: Option<String>,
    /// The exchange of context-parallel ranks.
    context_method: Option<ContextMethod>,
    /// 0 if bf16 weights have no fp32 copy.
    master_copy: Option<u8>,
}

impl DataSetSoftware {
    fn holds_for(&self, row: &MeasuredRow<'_>) -> bool {
        let same = |key: &str, wanted: &Option<String>| wanted.is_none() || row.cell(key) == wanted.as_deref();
        let stage = || row.number("zero_stage").ok().flatten();
        let framework = row.cell("framework").and_then(Framework::from_name);
        row.cell("dataset") == Some(&self.dataset)
            && same("id", &self.id)
            && same("chip", &self.chip)
            && self.zero_stage.is_none_or(|wanted| stage() == Some(wanted as f64))
            && framework.is_none_or(|own| own == self.framework)
    }
}

/// Returns the carried line of a row; `None` if no line matches.
fn carried_software(row: &MeasuredRow<'_>) -> Option<&'static DataSetSoftware> {
    SOFTWARE.iter().find(|line| line.holds_for(row))
}

/// Returns the name of the row's stack, which `prepared` can then load.
pub(super) fn stack_of_row(
    prepared: &mut PreparedInputs,
    row: &MeasuredRow<'_>,
    chip: &str,
    zero: ZeroStage,
) -> Result<String, RowFailure> {
    let framework = read_framework(row)?;
    let carried = carried_software(row);
    let stack = match (row.cell("stack"), carried.and_then(|line| line.stack.as_deref()), framework) {
        (Some(own), ..) => check_own_stack(prepared, row, own, framework)?,
        (None, Some(carried), _) => carried.to_owned(),
        (None, None, Some(framework)) => stack_of_framework(prepared, row, chip, framework)?,
        (None, None, None) => match carried {
            Some(line) => stack_of_framework(prepared, row, chip, line.framework)?,
            None => usual_stack(prepared, row, chip, zero)?,
        },
    };
    let options = row.cell("stack_options").or(carried.and_then(|line| line.stack_options.as_deref()));
    let options: Vec<&str> = options.into_iter().flat_map(str::split_whitespace).collect();
    let cure = "write options like overlap.tensor=1, with blanks between them";
    prepared.add_stack_with_options(&stack, &options).map_err(|why| row.row_fault("stack_options", &why, cure))
}

fn read_framework(row: &MeasuredRow<'_>) -> Result<Option<Framework>, RowFailure> {
    let Some(name) = row.cell("framework") else { return Ok(None) };
    match Framework::from_name(name) {
        Some(framework) => Ok(Some(framework)),
        None => {
            let limit = format!("must be one of {}", Framework::names().join(", "));
            Err(row.row_fault("framework", &limit, "correct it, or leave it empty and give `stack`"))
        }
    }
}

/// Returns the name of a row's own stack. The stack must exist, and must be of the row's framework.
fn check_own_stack(
    prepared: &mut PreparedInputs,
    row: &MeasuredRow<'_>,
    own: &str,
    framework: Option<Framework>,
) -> Result<String, RowFailure> {
    let cure = "name a stack (coplace list stacks)";
    let stack = prepared.load_stack(own).map_err(|why| row.row_fault("stack", &why, cure))?;
    let of = stack.framework.name;
    match framework.filter(|framework| *framework != of) {
        Some(framework) => {
            let limit = format!("is a stack of {}, the row's framework is {}", of.name(), framework.name());
            Err(row.row_fault("stack", &limit, "correct one of the two columns"))
        }
        None => Ok(own.to_owned()),
    }
}

/// Returns the stack of a framework: the chip's usual stack if it is of this framework, otherwise the framework's
/// default stack.
fn stack_of_framework(
    prepared: &mut PreparedInputs,
    row: &MeasuredRow<'_>,
    chip: &str,
    framework: Framework,
) -> Result<String, RowFailure> {
    let usual = prepared.usual_stack_of_chip(row, chip).ok();
    if let Some(usual) = usual.filter(|usual| usual.framework.name == framework) {
        return Ok(usual.name);
    }
    let cure = "name the stack in the column `stack`";
    let name = framework.default_stack_name().map(str::to_owned);
    name.ok_or_else(|| row.row_fault("framework", "has no stack of its own", cure))
}

/// Returns the usual stack of the chip. If that is one of Megatron-LM's and the run shards parameters (ZeRO-3), it is
/// FSDP's stack instead, because Megatron-LM's stacks do not model that. Either choice is noted.
fn usual_stack(
    prepared: &mut PreparedInputs,
    row: &MeasuredRow<'_>,
    chip: &str,
    zero: ZeroStage,
) -> Result<String, RowFailure> {
    let usual = prepared.usual_stack_of_chip(row, chip)?;
    let fsdp = Framework::PytorchFsdp.default_stack_name();
    match fsdp.filter(|_| zero == ZeroStage::Parameters && usual.framework.name.takes_megatron_arguments()) {
        Some(fsdp) => {
            prepared.note_assumption(format!("framework and stack are empty, taken as {fsdp} because zero_stage is 3"));
            Ok(fsdp.to_owned())
        }
        None => {
            let taken = format!("taken as {}, the usual stack of {chip}", usual.name);
            prepared.note_assumption(format!("framework and stack are empty, {taken}"));
            Ok(usual.name)
        }
    }
}

/// Returns the method of context parallelism: that of the row or of its data set, or else a ring.
pub(super) fn read_context_method(row: &MeasuredRow<'_>) -> Result<ContextMethod, RowFailure> {
    let Some(name) = row.cell("context_method") else {
        return Ok(carried_software(row).and_then(|line| line.context_method).unwrap_or(ContextMethod::Ring));
    };
    match name {
        "ring" => Ok(ContextMethod::Ring),
        "ulysses" => Ok(ContextMethod::Ulysses),
        _ => Err(row.row_fault("context_method", "must be ring or ulysses", "an empty cell means ring")),
    }
}

/// Returns whether bf16 weights have an fp32 copy, as the row or its data set says; true if neither says it.
pub(super) fn read_master_copy(row: &MeasuredRow<'_>) -> Result<bool, RowFailure> {
    match row.cell("master_copy") {
        Some("1" | "1.0" | "true") => Ok(true),
        Some("0" | "0.0" | "false") => Ok(false),
        Some(_) => Err(row.row_fault("master_copy", "must be 0 or 1", "an empty cell means 1")),
        None => Ok(carried_software(row).and_then(|line| line.master_copy) != Some(0)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::collections::BTreeSet;
    use step::SoftwareStack;

    #[test]
    fn the_carried_table_can_be_read_and_names_stacks_and_chips_that_exist() {
        crate::validate::predict::assert_whole(&SOFTWARE, include_str!("../../../reference/software.csv"));
        for line in SOFTWARE.iter() {
            line.stack.iter().for_each(|stack| drop(SoftwareStack::load(stack).unwrap()));
            let chips = sim::hardware::template_names();
            assert!(line.chip.iter().all(|chip| chips.contains(&chip.as_str())), "{line:?}");
        }
    }

    /// A line after one that holds for every row of its data set would never be used.
    #[test]
    fn lines_for_all_rows_of_a_data_set_come_last() {
        let mut closed = BTreeSet::new();
        for line in SOFTWARE.iter() {
            assert!(!closed.contains(&line.dataset), "{line:?}");
            if line.id.is_none() && line.chip.is_none() && line.zero_stage.is_none() {
                closed.insert(line.dataset.clone());
            }
        }
    }
}
