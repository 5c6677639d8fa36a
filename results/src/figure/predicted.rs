//! The figure of predicted against measured values on logarithmic axes. Points on the diagonal are exact predictions.

use super::axes::{PlotAxis, PlotFrame};
use super::canvas::{Canvas, GREY, INK, LABEL, PALETTE, PlotMark, SvgPoint, TITLE};
use super::labels::LabelBox;
use super::legend::{self, LegendEntry};
use super::{Figure, FigureError};
use crate::text::format_count;
use plotters::style::text_anchor::{HPos, VPos};
use plotters::style::{Color, RGBAColor};
use std::collections::BTreeSet;

/// Rows of one group: a data set, or a kernel on a chip.
#[derive(Debug, Clone, PartialEq)]
pub struct PredictedGroup {
    /// The name in the legend.
    pub name: String,
    /// Pairs of the measured and the predicted value, in the unit of the plot.
    pub points: Vec<(f64, f64)>,
}

/// The contents of the plot.
#[derive(Debug, Clone, PartialEq)]
pub struct PredictedPlot {
    /// The title.
    pub title: String,
    /// A line below the title.
    pub subtitle: String,
    /// The measured quantity: `time`, `area`.
    pub quantity: String,
    /// The unit of the quantity: `µs`, `mm²`.
    pub unit: String,
    /// The groups.
    pub groups: Vec<PredictedGroup>,
}

const SIZE: (u32, u32) = (1000, 760);
const PLOT: LabelBox = LabelBox { left: 100, top: 84, right: 700, bottom: 684 };

/// Returns the mark and the colour of a group by its position. The first 90 groups have distinct pairs.
fn look_of_group(index: usize) -> (PlotMark, RGBAColor) {
    let marks = [PlotMark::Dot, PlotMark::Diamond].into_iter().chain(PlotMark::DISTINCT);
    let mark = marks.cycle().nth(index / PALETTE.len()).unwrap_or(PlotMark::Dot);
    (mark, PALETTE[index % PALETTE.len()].mix(0.6))
}

/// Returns the points that a logarithmic axis can show: both values are finite and positive.
fn drawable_points(group: &PredictedGroup) -> impl Iterator<Item = (f64, f64)> {
    let fine = |v: f64| v.is_finite() && v > 0.0;
    group.points.iter().copied().filter(move |(m, p)| fine(*m) && fine(*p))
}

/// Draws predicted against measured values. The subtitle counts the points that a logarithmic axis cannot show.
///
/// # Errors
/// Errors of the drawing library.
pub fn draw_predicted(plot: &PredictedPlot) -> Result<Figure, FigureError> {
    Canvas::draw_figure(&plot.title, SIZE, |canvas| {
        let values: Vec<f64> = plot.groups.iter().flat_map(drawable_points).flat_map(|(m, p)| [m, p]).collect();
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(0.0, f64::max);
        let range = if values.is_empty() { (0.1, 10.0) } else { (low, high) };
        let (quantity, unit) = (&plot.quantity, &plot.unit);
        let frame = PlotFrame {
            x: PlotAxis::log(&format!("measured {quantity} ({unit})"), range, (PLOT.left, PLOT.right)),
            y: PlotAxis::log(&format!("predicted {quantity} ({unit})"), range, (PLOT.bottom, PLOT.top)),
        };
        canvas.draw_bold_text(&plot.title, (PLOT.left, 22), TITLE, INK, (HPos::Left, VPos::Top));
        canvas.draw_text(&subtitle_text(plot), (PLOT.left, 50), LABEL, GREY, (HPos::Left, VPos::Top));
        frame.draw_frame(canvas);
        let mut entries = draw_diagonal(canvas, &frame);
        for (i, group) in plot.groups.iter().enumerate() {
            entries.push(draw_group(canvas, &frame, group, i));
        }
        legend::draw_legend(
            canvas,
            &entries,
            (PLOT.right + 26, PLOT.top + 10),
            SIZE.0 as i32 - PLOT.right - 36,
            PLOT.bottom,
        );
    })
}

fn subtitle_text(plot: &PredictedPlot) -> String {
    let hidden: usize = plot.groups.iter().map(|g| g.points.len() - drawable_points(g).count()).sum();
    let words = match hidden {
        0 => return plot.subtitle.clone(),
        1 => "1 point at zero or below is not shown".to_owned(),
        n => format!("{n} points at zero or below are not shown"),
    };
    if plot.subtitle.is_empty() { words } else { format!("{}; {words}", plot.subtitle) }
}

/// Draws the diagonal of exact predictions and a band of ten percent around it.
fn draw_diagonal(canvas: &mut Canvas<'_>, frame: &PlotFrame) -> Vec<LegendEntry> {
    let (low, high) = frame.x.range();
    // The band is cut at the frame: its upper edge ends at the top of the frame, its lower edge starts at the bottom.
    let band = vec![
        frame.position_of(low, low),
        frame.position_of(low, low * 1.1),
        frame.position_of(high / 1.1, high),
        frame.position_of(high, high),
        frame.position_of(high, high * 0.9),
        frame.position_of(low / 0.9, low),
    ];
    let shade = GREY.mix(0.22);
    canvas.draw_polygon(band, shade);
    canvas.draw_line(vec![frame.position_of(low, low), frame.position_of(high, high)], INK.to_rgba(), 1);
    let entry =
        |mark, radius, color, words: &str| LegendEntry { mark, radius, color, words: words.into(), joined: false };
    vec![
        entry(PlotMark::Line, 5, INK.to_rgba(), "predicted = measured"),
        entry(PlotMark::Band, 5, shade, "within ±10 %"),
    ]
}

/// Draws a group, and returns its legend entry with the number of points and their mean absolute error.
fn draw_group(canvas: &mut Canvas<'_>, frame: &PlotFrame, group: &PredictedGroup, index: usize) -> LegendEntry {
    let (mark, color) = look_of_group(index);
    let spots: BTreeSet<SvgPoint> = drawable_points(group).map(|(m, p)| frame.position_of(m, p)).collect();
    for spot in spots {
        canvas.draw_mark(mark, spot, 3, color);
    }
    let known: Vec<f64> = drawable_points(group).map(|(m, p)| ((p - m) / m).abs()).collect();
    let mut words = format!("{}: {}", group.name, format_count(group.points.len() as u64));
    if !known.is_empty() {
        let mean = known.iter().sum::<f64>() / known.len() as f64;
        words.push_str(&format!(", MAPE {:.1} %", mean * 100.0));
    }
    LegendEntry { mark, radius: 4, color, words, joined: false }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn plot(groups: Vec<PredictedGroup>) -> PredictedPlot {
        let (title, subtitle) = ("kernels".to_owned(), String::new());
        PredictedPlot { title, subtitle, quantity: "time".into(), unit: "µs".into(), groups }
    }

    #[test]
    fn any_points_draw_the_same_twice() {
        let many = (1..500).map(|i| (f64::from(i), f64::from(i) * (1.0 + f64::from(i % 7 - 3) / 20.0))).collect();
        for points in [vec![], vec![(1.0, 1.0)], vec![(0.0, 1.0), (2.0, f64::NAN), (3.0, 3.3)], many] {
            let group = PredictedGroup { name: "a".into(), points };
            let figure = draw_predicted(&plot(vec![group.clone(), group])).unwrap();
            assert_eq!(figure, draw_predicted(&plot(vec![])).map(|_| figure.clone()).unwrap());
            assert!(figure.png().unwrap().starts_with(b"\x89PNG"));
        }
    }

    #[test]
    fn points_that_cannot_be_shown_are_counted() {
        let figure =
            draw_predicted(&plot(vec![PredictedGroup { name: "a".into(), points: vec![(1.0, 0.0), (1.0, 1.1)] }]))
                .unwrap();
        assert!(figure.svg().contains("1 point at zero or below is not shown"));
        assert!(figure.svg().contains("a: 2, MAPE 10.0 %"));
    }
}
