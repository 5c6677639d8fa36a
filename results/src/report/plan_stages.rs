//! The stages of a plan as text: their memory, what their layers keep, and their activity over a step.

use crate::answer::plan::{KeptTensorsRow, StageRow};
use crate::answer::techniques::years_per_pb;
use crate::answer::timeline::TimelineRow;
use crate::text::{ColumnAlign, TextTable, format_heading, format_significant};
use std::collections::BTreeMap;

/// Returns the table of the stages' memory, in GiB. Neighbouring stages with equal memory share a row. Columns for the
/// host and for storage follow if they hold data.
pub fn memory_text(stages: &[StageRow], capacity: Option<f64>, host: Option<f64>) -> String {
    let offloaded = stages.iter().any(|s| s.host_gib > 0.0);
    let stored = stages.iter().any(|s| s.storage_gib > 0.0);
    let of = |capacity: Option<f64>| capacity.map_or_else(String::new, |c| format!("{c:.1}"));
    let mut classes: Vec<&str> = Vec::new();
    for class in step::MemoryClass::ALL.map(|c| c.to_string()) {
        if let Some((name, _)) =
            stages.iter().flat_map(|s| s.classes_gib.iter()).find(|(name, gib)| **name == class && **gib >= 0.005)
        {
            classes.push(name);
        }
    }
    let mut head = vec!["stage".to_owned()];
    head.extend(classes.iter().map(ToString::to_string));
    head.extend(["needs".to_owned(), "usable".to_owned()]);
    if offloaded {
        head.extend(["on host".to_owned(), "usable on host".to_owned()]);
    }
    if stored {
        head.push("on NVMe".to_owned());
    }
    let mut table = TextTable::new(head).keep_columns(&["activations", "needs", "usable"]).turn_if_wide();
    let mut at = 0;
    while at < stages.len() {
        let key = |s: &StageRow| (s.classes_gib.clone(), s.host_gib, s.storage_gib);
        let same = stages[at..].iter().take_while(|s| key(s) == key(&stages[at])).count();
        let (first, last) = (&stages[at], &stages[at + same - 1]);
        let name = if same == 1 { first.stage.to_string() } else { format!("{}-{}", first.stage, last.stage) };
        let mut row = vec![name];
        row.extend(classes.iter().map(|c| format!("{:.2}", first.classes_gib.get(*c).copied().unwrap_or_default())));
        row.push(format!("{:.2}", first.need_gib));
        row.push(of(capacity));
        if offloaded {
            row.extend([format!("{:.2}", first.host_gib), of(host)]);
        }
        if stored {
            row.push(format!("{:.2}", first.storage_gib));
        }
        table.add_row(row);
        at += same;
    }
    table.render()
}

/// Returns the data written to storage, and the storage's lifetime. Empty if nothing is written.
pub(super) fn storage_wear_text(stages: &[StageRow], step_s: f64) -> String {
    let written = stages.iter().map(|stage| stage.storage_written_gb).fold(0.0, f64::max);
    if written == 0.0 {
        return String::new();
    }
    let years = years_per_pb(written, step_s);
    let [written, years] = [written, years].map(|figure| format_significant(figure, 4));
    format!("{written} GB written to storage per device and step: for {years} years per PB of endurance (TBW)\n")
}

/// Returns a table of the tensors that the layers of each stage keep, recompute or offload. Neighbouring stages with
/// equal policies share a row. Empty if all layers keep all their tensors on the device.
pub(super) fn kept_tensors_text(stages: &[StageRow]) -> String {
    let stays =
        |keeps: &KeptTensorsRow| keeps.again.is_empty() && keeps.host_mib.is_empty() && keeps.storage_mib.is_empty();
    if stages.iter().flat_map(|stage| &stage.keeps).all(stays) {
        return String::new();
    }
    let stored = stages.iter().flat_map(|stage| &stage.keeps).any(|keeps| !keeps.storage_mib.is_empty());
    let mut head = vec!["stage", "layers", "run again", "in host memory"];
    head.extend(stored.then_some("on NVMe"));
    head.extend(["MiB kept", "MiB on host"]);
    head.extend(stored.then_some("MiB on NVMe"));
    let mut table = TextTable::new(head);
    for column in 2..if stored { 5 } else { 4 } {
        table = table.align_column(column, ColumnAlign::Left);
    }
    let mut at = 0;
    while at < stages.len() {
        let same = stages[at..].iter().take_while(|stage| stage.keeps == stages[at].keeps).count();
        let (first, last) = (stages[at].stage, stages[at + same - 1].stage);
        let name = if same == 1 { first.to_string() } else { format!("{first}-{last}") };
        for (i, keeps) in stages[at].keeps.iter().enumerate() {
            let mib = |tensors: &BTreeMap<String, f64>| format_significant(tensors.values().sum(), 4);
            let list = |names: Vec<&str>| if names.is_empty() { "-".to_owned() } else { names.join(" ") };
            let mut row = vec![
                if i == 0 { name.clone() } else { String::new() },
                keeps.layers.to_string(),
                list(keeps.again.iter().map(String::as_str).collect()),
                list(keeps.host_mib.keys().map(String::as_str).collect()),
            ];
            row.extend(stored.then(|| list(keeps.storage_mib.keys().map(String::as_str).collect())));
            row.extend([mib(&keeps.device_mib), mib(&keeps.host_mib)]);
            row.extend(stored.then(|| mib(&keeps.storage_mib)));
            table.add_row(row);
        }
        at += same;
    }
    format!(
        "{}{}MiB: per layer and micro-batch. All other tensors stay on the device.\n",
        format_heading("What its layers keep"),
        table.render()
    )
}

/// The largest number of stages that are listed one by one.
const STAGES_SHOWN: usize = 16;

/// Returns the table of the stages' activity over a step. If there are many stages, only the first and the last ones
/// are listed.
pub(super) fn timeline_text(rows: &[TimelineRow]) -> String {
    let head = [
        "stage",
        "passes",
        "bubble",
        "of it, sends",
        "exchange not hidden",
        "passes end",
        "step ends",
        "GiB at rest",
        "GiB at most",
    ];
    let mut table = TextTable::new(head).keep_columns(&["passes", "bubble", "step ends", "GiB at most"]);
    let hidden = if rows.len() > STAGES_SHOWN { STAGES_SHOWN / 2..rows.len() - STAGES_SHOWN / 2 } else { 0..0 };
    for (i, row) in rows.iter().enumerate().filter(|(i, _)| !hidden.contains(i) || *i == hidden.start) {
        if hidden.contains(&i) {
            table.add_row(
                std::iter::once(format!("{}-{}", hidden.start, hidden.end - 1))
                    .chain((1..head.len()).map(|_| "...".to_owned())),
            );
            continue;
        }
        let times =
            [row.busy_s, row.bubble_s, row.exposed_send_s, row.exposed_reduction_s, row.passes_end_s, row.end_s];
        let memory = [row.resident_gib, row.peak_gib].map(|gib| format!("{gib:.2}"));
        table.add_row(
            std::iter::once(row.stage.to_string()).chain(times.map(|time| format_significant(time, 4))).chain(memory),
        );
    }
    let mut text = table.render();
    text.push_str(
        "bubble: time without a pass until the pipeline's last one ends, without the overhead per step. Memory is \
        without that of the update.\n",
    );
    text
}
