//! The figure of techniques side by side. Each has a bar with its memory by class, and the time of the step. A line
//! marks the memory of the device.

use super::axes::PlotAxis;
use super::canvas::{Canvas, GREY, GRID, INK, LABEL, PALETTE, PlotMark, SMALL, TITLE, cut_to_width};
use super::legend::{self, LegendEntry};
use super::{Figure, FigureError};
use crate::answer::techniques::{TechniqueComparison, TechniqueRow};
use crate::text::format_significant;
use plotters::style::Color;
use plotters::style::RGBAColor;
use plotters::style::text_anchor::{HPos, VPos};

/// The gate of techniques that do not change the result of training.
const EXACT: &str = "exact";
/// Height of a technique's row, in SVG units.
const LINE: i32 = 20;
const TOP: i32 = 104;
const WIDTH: i32 = 1180;
const LEFT: i32 = 230;
const RIGHT: i32 = 860;

/// The memory classes that have a colour, with their words in the legend. All other classes are grey.
const SHOWN: [(&str, &str); 6] = [
    ("weights", "weights"),
    ("gradients", "gradients"),
    ("master weights", "master weights"),
    ("optimizer states", "optimizer states"),
    ("activations", "saved activations"),
    ("transients", "transients"),
];

/// Draws the techniques that can be used.
///
/// # Errors
/// Errors of the drawing library.
pub fn draw_techniques(answer: &TechniqueComparison) -> Result<Figure, FigureError> {
    let rows: Vec<&TechniqueRow> = answer.rows.iter().filter(|row| row.result.is_some()).collect();
    let title = format!("{} on {}", answer.model, answer.chip);
    let bottom = TOP + LINE * rows.len() as i32;
    let size = (WIDTH as u32, (bottom + 70).max(360) as u32);
    let most =
        rows.iter().filter_map(|row| row.result.as_ref()).map(|r| r.need_gib).fold(answer.capacity_gib, f64::max)
            * 1.05;
    let axis = PlotAxis::linear("", (0.0, most), Some(0.0), (LEFT, RIGHT));
    let x = |gib: f64| axis.position_of(gib);
    Canvas::draw_figure(&title, size, |canvas| {
        canvas.draw_bold_text(&title, (20, 22), TITLE, INK, (HPos::Left, VPos::Top));
        let about = format!(
            "{} tokens a sequence, {} a micro-batch, stack {}",
            answer.sequence_tokens, answer.micro_batch_sequences, answer.stack
        );
        canvas.draw_text(&about, (20, 50), LABEL, GREY, (HPos::Left, VPos::Top));
        for (tick, words) in axis.ticks() {
            canvas.draw_line(vec![(x(tick), TOP - 6), (x(tick), bottom)], GRID.to_rgba(), 1);
            canvas.draw_text(&words, (x(tick), bottom + 8), SMALL, INK, (HPos::Center, VPos::Top));
        }
        canvas.draw_text(
            "peak memory of the fullest device, GiB",
            ((LEFT + RIGHT) / 2, bottom + 32),
            LABEL,
            INK,
            (HPos::Center, VPos::Top),
        );
        canvas.draw_text("step s", (RIGHT + 80, TOP - 12), SMALL, INK, (HPos::Right, VPos::Bottom));
        for (i, row) in rows.iter().enumerate() {
            draw_technique(canvas, row, TOP + LINE * i as i32, &x);
        }
        canvas.draw_line(vec![(x(answer.capacity_gib), TOP - 10), (x(answer.capacity_gib), bottom)], INK.to_rgba(), 2);
        let lossy = rows.iter().any(|row| row.gate != EXACT);
        legend::draw_legend(
            canvas,
            &legend_entries(lossy),
            (RIGHT + 100, TOP),
            WIDTH - RIGHT - 110,
            bottom.max(TOP + 240),
        );
    })
}

/// Returns the legend. `lossy` is true if some technique changes the result of training.
fn legend_entries(lossy: bool) -> Vec<LegendEntry> {
    let entry =
        |mark, color: RGBAColor, words: &str| LegendEntry { mark, radius: 5, color, words: words.into(), joined: true };
    let mut entries: Vec<LegendEntry> =
        SHOWN.iter().zip(PALETTE).map(|((_, words), color)| entry(PlotMark::Band, color.to_rgba(), words)).collect();
    entries.push(entry(PlotMark::Band, GREY.mix(0.5), "gathered, logits, framework, buffers, allocator"));
    entries.push(entry(PlotMark::Line, INK.to_rgba(), "memory for programs"));
    if lossy {
        // The grey square stands for names in grey.
        entries.push(entry(PlotMark::Square, GREY.to_rgba(), "name in grey: changes what is trained"));
    }
    entries
}

/// Draws one technique: its name (grey if it changes the result of training), its memory by class, and its step.
fn draw_technique(canvas: &mut Canvas<'_>, row: &TechniqueRow, y: i32, x: &impl Fn(f64) -> i32) {
    let Some(result) = &row.result else { return };
    let name = cut_to_width(&row.technique, SMALL, LEFT - 24);
    let ink = if row.gate == EXACT { INK } else { GREY };
    canvas.draw_text(&name, (LEFT - 8, y + LINE / 2), SMALL, ink, (HPos::Right, VPos::Center));
    let mut from = 0.0;
    let mut part = |canvas: &mut Canvas<'_>, gib: f64, color: RGBAColor| {
        canvas.draw_rectangle((x(from), y + 3), (x(from + gib), y + LINE - 3), color);
        from += gib;
    };
    for ((class, _), color) in SHOWN.iter().zip(PALETTE) {
        let gib = result.classes_gib.iter().find(|c| c.class == *class).map_or(0.0, |c| c.gib);
        part(canvas, gib, color.to_rgba());
    }
    let shown = |c: &&crate::answer::techniques::ClassGib| !SHOWN.iter().any(|(class, _)| *class == c.class);
    let rest: f64 = result.classes_gib.iter().filter(shown).map(|c| c.gib).sum();
    part(canvas, rest, GREY.mix(0.5));
    canvas.draw_text(
        &format_significant(result.step_s, 3),
        (RIGHT + 80, y + LINE / 2),
        SMALL,
        INK,
        (HPos::Right, VPos::Center),
    );
}
