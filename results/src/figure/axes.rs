//! Axes: positions of values, round ticks, and the frame around a plot.

use super::canvas::{Canvas, GRID, INK, LABEL, SMALL, SvgPoint};
use crate::text::format_significant;
use plotters::style::Color;
use plotters::style::text_anchor::{HPos, VPos};

/// The kind of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AxisSpacing {
    /// Equal differences have equal distances.
    Linear,
    /// Equal ratios have equal distances. Values must be positive.
    Log,
}

/// One axis.
#[derive(Debug, Clone)]
pub(super) struct PlotAxis {
    label: String,
    spacing: AxisSpacing,
    range: (f64, f64),
    pixels: (i32, i32),
}

/// Superscript digits for exponents.
const SUPERSCRIPTS: [char; 10] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];

fn power_of_ten(exponent: i32) -> String {
    match exponent {
        0 => "1".into(),
        1 => "10".into(),
        2 => "100".into(),
        _ => {
            let digits = exponent.unsigned_abs().to_string();
            let raised = digits.chars().filter_map(|c| c.to_digit(10)).map(|d| SUPERSCRIPTS[d as usize]);
            let sign = if exponent < 0 { "⁻" } else { "" };
            format!("10{sign}{}", raised.collect::<String>())
        }
    }
}

impl PlotAxis {
    /// Makes a linear axis over `range`, widened by 5 % on both sides. An empty range is widened too, so that a single
    /// value lies in the middle. A `floor` fixes the lower end instead (throughputs start at 0), and the upper end is
    /// widened by 8 %.
    pub(super) fn linear(label: &str, range: (f64, f64), floor: Option<f64>, pixels: (i32, i32)) -> Self {
        let (low, high) = range;
        let width = high - low;
        // Without this, areas that differ by less than a part in a thousand would fill the whole plot.
        let pad = if width > high.abs() * 1e-3 { width * 0.05 } else { (high.abs() * 0.1).max(1e-9) };
        let range = match floor {
            Some(floor) => (floor, (high + (high - floor) * 0.08).max(floor + 1e-9)),
            // The margin must not reach below zero if all values are positive.
            None => (if low > 0.0 { (low - pad).max(0.0) } else { low - pad }, high + pad),
        };
        Self { label: label.into(), spacing: AxisSpacing::Linear, range, pixels }
    }

    /// Makes a logarithmic axis over `range`, widened by 4 % (at least a tenth of a decade) on both sides. Both ends
    /// must be positive.
    pub(super) fn log(label: &str, range: (f64, f64), pixels: (i32, i32)) -> Self {
        let (low, high) = (range.0.log10(), range.1.log10());
        let pad = ((high - low) * 0.04).max(0.1);
        let range = (10_f64.powf(low - pad), 10_f64.powf(high + pad));
        Self { label: label.into(), spacing: AxisSpacing::Log, range, pixels }
    }

    /// Returns the lower and the upper end of the axis.
    pub(super) fn range(&self) -> (f64, f64) {
        self.range
    }

    /// Returns the position of a value in SVG units, clamped to the axis.
    pub(super) fn position_of(&self, value: f64) -> i32 {
        let (low, high) = self.range;
        let share = match self.spacing {
            AxisSpacing::Linear => (value - low) / (high - low),
            AxisSpacing::Log => (value / low).ln() / (high / low).ln(),
        };
        let (from, to) = self.pixels;
        from + (share.clamp(0.0, 1.0) * f64::from(to - from)).round() as i32
    }

    /// Returns the ticks: round values within the axis, with their labels.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        match self.spacing {
            AxisSpacing::Linear => self.linear_ticks(),
            AxisSpacing::Log => self.log_ticks(),
        }
    }

    /// Returns ticks in steps of 1, 2 or 5 times a power of ten, at most one per 55 SVG units.
    fn linear_ticks(&self) -> Vec<(f64, String)> {
        let (low, high) = self.range;
        let wanted = f64::from((self.pixels.1 - self.pixels.0).abs()) / 55.0;
        let raw = (high - low) / wanted.max(1.0);
        let magnitude = 10_f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * magnitude).find(|s| *s >= raw).unwrap_or(raw);
        let decimals = usize::try_from(-step.log10().floor() as i32).unwrap_or(0);
        let first = (low / step).ceil() as i64;
        let last = (high / step + 1e-9).floor() as i64;
        let word = |v: f64| if v.abs() >= 1e7 { format_significant(v, 3) } else { format!("{v:.decimals$}") };
        (first..=last).map(|i| i as f64 * step).map(|v| (v, word(if v == 0.0 { 0.0 } else { v }))).collect()
    }

    /// Returns ticks at powers of ten, thinned to about one per 60 SVG units. An axis of less than two decades also has
    /// ticks at 2 and 5 times each power.
    fn log_ticks(&self) -> Vec<(f64, String)> {
        let (low, high) = (self.range.0.log10(), self.range.1.log10());
        let length = f64::from((self.pixels.1 - self.pixels.0).abs());
        let every = ((high - low) / (length / 60.0).max(1.0)).ceil().max(1.0) as i32;
        let fine: &[f64] = if high - low < 2.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let mut ticks = Vec::new();
        for exponent in (low.floor() as i32)..=(high.ceil() as i32) {
            if exponent.rem_euclid(every) != 0 {
                continue;
            }
            for m in fine {
                let value = m * 10_f64.powi(exponent);
                if (self.range.0..=self.range.1).contains(&value) {
                    let plain = fine.len() > 1 && (-3..5).contains(&exponent);
                    let word = if plain { trim_zeros(value) } else { power_of_ten(exponent) };
                    ticks.push((value, if *m == 1.0 || plain { word } else { format!("{m}·{word}") }));
                }
            }
        }
        ticks
    }
}

/// Formats a number with at most four decimals, without trailing zeros.
fn trim_zeros(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The two axes of a plot.
#[derive(Debug, Clone)]
pub(super) struct PlotFrame {
    /// The horizontal axis, from left to right.
    pub(super) x: PlotAxis,
    /// The vertical axis, from bottom to top.
    pub(super) y: PlotAxis,
}

impl PlotFrame {
    /// Returns the position of a point in SVG units.
    pub(super) fn position_of(&self, x: f64, y: f64) -> SvgPoint {
        (self.x.position_of(x), self.y.position_of(y))
    }

    /// Draws the grid, the ticks, the axis labels and the frame.
    pub(super) fn draw_frame(&self, canvas: &mut Canvas<'_>) {
        let ((left, right), (bottom, top)) = (self.x.pixels, self.y.pixels);
        for (value, word) in self.x.ticks() {
            let x = self.x.position_of(value);
            canvas.draw_line(vec![(x, bottom), (x, top)], GRID.to_rgba(), 1);
            canvas.draw_line(vec![(x, bottom), (x, bottom + 5)], INK.to_rgba(), 1);
            canvas.draw_text(&word, (x, bottom + 9), SMALL, INK, (HPos::Center, VPos::Top));
        }
        for (value, word) in self.y.ticks() {
            let y = self.y.position_of(value);
            canvas.draw_line(vec![(left, y), (right, y)], GRID.to_rgba(), 1);
            canvas.draw_line(vec![(left - 5, y), (left, y)], INK.to_rgba(), 1);
            canvas.draw_text(&word, (left - 9, y), SMALL, INK, (HPos::Right, VPos::Center));
        }
        canvas.draw_line(vec![(left, top), (left, bottom), (right, bottom)], INK.to_rgba(), 1);
        canvas.draw_text(&self.x.label, ((left + right) / 2, bottom + 36), LABEL, INK, (HPos::Center, VPos::Top));
        canvas.draw_upright_text(&self.y.label, (left - 68, (top + bottom) / 2), LABEL, INK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        let axis = PlotAxis::linear("area", (83.6, 278.8), None, (0, 800));
        let words: Vec<String> = axis.ticks().into_iter().map(|t| t.1).collect();
        assert_eq!(words, ["80", "100", "120", "140", "160", "180", "200", "220", "240", "260", "280"]);
        let axis = PlotAxis::linear("t", (0.0, 0.034), Some(0.0), (600, 0));
        let words: Vec<String> = axis.ticks().into_iter().map(|t| t.1).collect();
        assert_eq!(words, ["0.000", "0.005", "0.010", "0.015", "0.020", "0.025", "0.030", "0.035"]);
    }

    #[test]
    fn a_single_value_lies_inside() {
        for value in [0.0, 278.8, 1e12] {
            let axis = PlotAxis::linear("x", (value, value), None, (0, 800));
            assert_eq!(axis.position_of(value), 400);
            assert!(!axis.ticks().is_empty());
        }
    }

    #[test]
    fn decades() {
        let axis = PlotAxis::log("t", (1.0, 1e6), (0, 600));
        let words: Vec<String> = axis.ticks().into_iter().map(|t| t.1).collect();
        assert_eq!(words, ["1", "10", "100", "10³", "10⁴", "10⁵", "10⁶"]);
        let axis = PlotAxis::log("t", (20.0, 60.0), (0, 600));
        let words: Vec<String> = axis.ticks().into_iter().map(|t| t.1).collect();
        assert_eq!(words, ["20", "50"]);
        assert_eq!(power_of_ten(-12), "10⁻¹²");
    }
}
