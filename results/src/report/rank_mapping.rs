//! A mapping of ranks to devices with unequal links, as text.

use crate::answer::rank_mapping::{RankMappingRecord, axis_name};
use crate::text::{TextTable, format_fields, format_percent, format_seconds};
use sim::units::Seconds;

/// Returns the times, the communication by axis, and the ranks of each unit.
pub(super) fn mapping_text(m: &RankMappingRecord) -> String {
    let time = |t: f64| format_seconds(Seconds(t));
    let order = m.order.iter().map(|axis| axis_name(*axis)).collect::<Vec<_>>().join(", ");
    let mut text = format_fields(&[
        ("step in rank order", time(m.before_s)),
        ("best order of the axes", format!("{} ({order}; fastest first)", time(m.ordered_s))),
        ("step as mapped", format!("{} ({} less)", time(m.after_s), format_percent(1.0 - m.after_s / m.before_s))),
        (
            if m.whole_units { "no mapping of whole units is below" } else { "no mapping is below" },
            format!("{} (gap {:.2} %)", time(m.lower_bound_s), m.gap * 100.0),
        ),
        ("if collectives took no time", time(m.without_links_s)),
    ]);
    let mut table = TextTable::new(["communication not hidden", "rank order", "mapped"]);
    for axis in &m.axes {
        table.add_row([axis_name(axis.axis).to_owned(), time(axis.before_s), time(axis.after_s)]);
    }
    text.push_str(&table.render());
    let mut table = TextTable::new(["unit", "ranks"]).align_column(1, crate::text::ColumnAlign::Left);
    for (unit, ranks) in ranks_by_unit(m).into_iter().enumerate() {
        table.add_row([unit.to_string(), rank_ranges(&ranks)]);
    }
    text.push_str(&table.render());
    text
}

/// Returns the ranks of each unit, in ascending order.
fn ranks_by_unit(m: &RankMappingRecord) -> Vec<Vec<u32>> {
    let unit = m.unit_devices.max(1) as usize;
    let mut units = vec![Vec::new(); m.devices.len().div_ceil(unit)];
    for (rank, device) in (0..).zip(&m.devices) {
        if let Some(ranks) = units.get_mut(*device as usize / unit) {
            ranks.push(rank);
        }
    }
    units
}

/// Formats ranks as ranges: `0-7, 12, 14-15`.
fn rank_ranges(ranks: &[u32]) -> String {
    let runs = ranks.chunk_by(|a, b| a + 1 == *b);
    let run = |r: &[u32]| if r.len() == 1 { r[0].to_string() } else { format!("{}-{}", r[0], r[r.len() - 1]) };
    runs.map(run).collect::<Vec<_>>().join(", ")
}
