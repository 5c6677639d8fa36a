//! The legend: a column beside the plot that explains the marks.

use super::canvas::{Canvas, INK, PlotMark, SMALL, SvgPoint, wrap_to_width};
use plotters::style::RGBAColor;
use plotters::style::text_anchor::{HPos, VPos};

/// One entry of a legend.
#[derive(Debug, Clone)]
pub(super) struct LegendEntry {
    /// The mark.
    pub(super) mark: PlotMark,
    /// The radius of the mark, in SVG units.
    pub(super) radius: i32,
    /// The colour of the mark.
    pub(super) color: RGBAColor,
    /// The meaning of the mark.
    pub(super) words: String,
    /// True if the next entry belongs to the same group. The gap below is then smaller.
    pub(super) joined: bool,
}

/// Height of a line of text, in SVG units.
const LINE: i32 = 17;

/// Returns the height of the entries in SVG units, with text wrapped for a legend of `width`.
pub(super) fn legend_height(entries: &[LegendEntry], width: i32) -> i32 {
    let of = |entry: &LegendEntry| {
        LINE * wrap_to_width(&entry.words, SMALL, width - 30).len().max(1) as i32 + gap_below(entry)
    };
    entries.iter().map(of).sum()
}

/// Returns the gap below an entry, in SVG units.
fn gap_below(entry: &LegendEntry) -> i32 {
    if entry.joined { 2 } else { 8 }
}

/// Draws the entries downwards from `at`, with text wrapped for a legend of `width`. If entries do not fit above
/// `bottom`, the last line gives their number.
pub(super) fn draw_legend(canvas: &mut Canvas<'_>, entries: &[LegendEntry], at: SvgPoint, width: i32, bottom: i32) {
    let (left, mut y) = at;
    for (i, entry) in entries.iter().enumerate() {
        let lines = wrap_to_width(&entry.words, SMALL, width - 30);
        let height = LINE * lines.len().max(1) as i32;
        if y + height > bottom && i + 1 < entries.len() {
            let more = format!("and {} more", entries.len() - i);
            canvas.draw_text(&more, (left + 30, y), SMALL, INK, (HPos::Left, VPos::Center));
            return;
        }
        canvas.draw_mark(entry.mark, (left + 12, y), entry.radius, entry.color);
        for line in lines {
            canvas.draw_text(&line, (left + 30, y), SMALL, INK, (HPos::Left, VPos::Center));
            y += LINE;
        }
        y += gap_below(entry);
    }
}
