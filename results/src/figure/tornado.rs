//! The figure of the constants that move the lead of a found design. Each constant has a bar from the mean lead in the
//! lowest quarter of its range to the mean lead in the highest quarter.

use super::axes::PlotAxis;
use super::canvas::{Canvas, GREY, GRID, INK, LABEL, PALETTE, SMALL, TITLE, cut_to_width};
use super::{Figure, FigureError};
use crate::answer::decision::{DecisionRecord, TornadoRow};
use crate::text::{format_percent, format_significant};
use plotters::style::Color;
use plotters::style::text_anchor::{HPos, VPos};

/// The largest number of constants in the figure.
const SHOWN: usize = 12;
const WIDTH: i32 = 980;
const LEFT: i32 = 330;
const RIGHT: i32 = 800;
const TOP: i32 = 104;
const BAR: i32 = 26;

/// Draws the constants that move the lead most.
///
/// # Errors
/// Errors of the drawing library.
pub fn draw_tornado(decision: &DecisionRecord) -> Result<Figure, FigureError> {
    let mut rows: Vec<&TornadoRow> = decision.tornado.iter().collect();
    let swing = |row: &TornadoRow| (row.lead_high - row.lead_low).abs();
    rows.sort_by(|a, b| swing(b).total_cmp(&swing(a)).then(a.input.cmp(&b.input)));
    rows.truncate(SHOWN);
    let ends = rows.iter().flat_map(|row| [row.lead_low, row.lead_high]).map(|lead| 100.0 * lead);
    let (least, most) = ends.fold((-0.1_f64, 0.1_f64), |(least, most), lead| (least.min(lead), most.max(lead)));
    let axis = PlotAxis::linear("", (least, most), None, (LEFT, RIGHT));
    let x = |lead: f64| axis.position_of(100.0 * lead);
    let bottom = TOP + BAR * rows.len() as i32;
    let title = "What moves the lead of the found design";
    Canvas::draw_figure(title, (WIDTH as u32, (bottom + 66) as u32), |canvas| {
        canvas.draw_bold_text(title, (20, 22), TITLE, INK, (HPos::Left, VPos::Top));
        let about = format!(
            "best in {} of {} draws; expected regret {}",
            format_percent(decision.probability_best),
            decision.draws,
            format_percent(decision.regret_expected)
        );
        canvas.draw_text(&about, (20, 52), LABEL, GREY, (HPos::Left, VPos::Top));
        for (tick, words) in axis.ticks() {
            let at = axis.position_of(tick);
            canvas.draw_line(vec![(at, TOP - 6), (at, bottom)], GRID.to_rgba(), 1);
            canvas.draw_text(&words, (at, bottom + 8), SMALL, INK, (HPos::Center, VPos::Top));
        }
        let words = "mean lead over the best other design, %, in the lowest (light) and highest quarter of the range";
        canvas.draw_text(words, (WIDTH / 2, bottom + 34), LABEL, INK, (HPos::Center, VPos::Top));
        for (at, row) in rows.iter().enumerate() {
            let (top, middle) = (TOP + BAR * at as i32, TOP + BAR * at as i32 + BAR / 2);
            let name = cut_to_width(&row.input, SMALL, LEFT - 24);
            canvas.draw_text(&name, (LEFT - 10, middle), SMALL, INK, (HPos::Right, VPos::Center));
            let centre = 0.5 * (row.lead_low + row.lead_high);
            for (lead, strength) in [(row.lead_low, 0.4), (row.lead_high, 1.0)] {
                let (from, to) = (x(centre.min(lead)), x(centre.max(lead)));
                canvas.draw_rectangle((from, top + 4), (to, top + BAR - 4), PALETTE[0].mix(strength));
            }
            let range = format!("{} to {}", format_significant(row.low, 3), format_significant(row.high, 3));
            canvas.draw_text(&range, (RIGHT + 12, middle), SMALL, GREY, (HPos::Left, VPos::Center));
        }
        canvas.draw_line(vec![(x(0.0), TOP - 6), (x(0.0), bottom)], INK.to_rgba(), 1);
    })
}
