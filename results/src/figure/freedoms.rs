//! The figure of the value of each freedom of a search. For each model, every freedom has a bar: the throughput
//! relative to the reference chip under the expert's plan.

use super::axes::PlotAxis;
use super::canvas::{Canvas, GREY, GRID, INK, LABEL, PALETTE, SMALL, TITLE};
use super::{Figure, FigureError};
use crate::answer::freedoms::{FREEDOMS, Freedoms};
use plotters::style::Color;
use plotters::style::text_anchor::{HPos, VPos};

const WIDTH: i32 = 1040;
const LEFT: i32 = 400;
const RIGHT: i32 = 940;
const TOP: i32 = 84;
/// The heights of a model's name and of a bar, in SVG units.
const NAME: i32 = 34;
const BAR: i32 = 26;

/// Draws the comparison of freedoms.
///
/// # Errors
/// Errors of the drawing library.
pub fn draw_freedoms(answer: &Freedoms) -> Result<Figure, FigureError> {
    let mut groups: Vec<(String, Vec<Option<f64>>)> = Vec::new();
    for model in &answer.models {
        let evaluated = format!("{}, study {}: {} chips evaluated", model.model, model.study, model.evaluations.joint);
        groups.push((evaluated, model.times_first.clone()));
    }
    if groups.len() > 1 {
        groups
            .push(("all models, geometric means".to_owned(), answer.over_all.iter().map(|w| w.times_first).collect()));
    }
    let height = NAME + BAR * FREEDOMS.len() as i32 + 14;
    let bottom = TOP + height * groups.len() as i32;
    let most = groups.iter().flat_map(|(_, times)| times).flatten().copied().fold(1.0, f64::max);
    let axis = PlotAxis::linear("", (0.0, most), Some(0.0), (LEFT, RIGHT));
    let x = |times: f64| axis.position_of(times);
    let title = "The value of each freedom";
    Canvas::draw_figure(title, (WIDTH as u32, (bottom + 64) as u32), |canvas| {
        canvas.draw_bold_text(title, (20, 22), TITLE, INK, (HPos::Left, VPos::Top));
        let about = "throughput relative to the reference chip under the expert's plan";
        canvas.draw_text(about, (20, 50), LABEL, GREY, (HPos::Left, VPos::Top));
        for (tick, words) in axis.ticks() {
            canvas.draw_line(vec![(x(tick), TOP), (x(tick), bottom)], GRID.to_rgba(), 1);
            canvas.draw_text(&words, (x(tick), bottom + 8), SMALL, INK, (HPos::Center, VPos::Top));
        }
        canvas.draw_text("times", ((LEFT + RIGHT) / 2, bottom + 30), LABEL, INK, (HPos::Center, VPos::Top));
        for (group, (name, times)) in groups.iter().enumerate() {
            let top = TOP + height * group as i32;
            canvas.draw_bold_text(name, (20, top + NAME / 2), LABEL, INK, (HPos::Left, VPos::Center));
            for (at, (freedom, times)) in FREEDOMS.iter().zip(times).enumerate() {
                let y = top + NAME + BAR * at as i32;
                let middle = y + BAR / 2;
                canvas.draw_text(freedom, (LEFT - 8, middle), SMALL, INK, (HPos::Right, VPos::Center));
                let Some(times) = times else {
                    canvas.draw_text("no plan fits", (LEFT + 6, middle), SMALL, GREY, (HPos::Left, VPos::Center));
                    continue;
                };
                canvas.draw_rectangle((x(0.0), y + 3), (x(*times), y + BAR - 3), PALETTE[at % PALETTE.len()].to_rgba());
                canvas.draw_text(
                    &format!("{times:.2}x"),
                    (x(*times) + 6, middle),
                    SMALL,
                    INK,
                    (HPos::Left, VPos::Center),
                );
            }
        }
        canvas.draw_line(vec![(x(1.0), TOP), (x(1.0), bottom)], INK.to_rgba(), 1);
    })
}
