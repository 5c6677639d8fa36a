//! The figure of one quantity against another: all designs of a search, the Pareto front, and known chips.

use super::axes::{PlotAxis, PlotFrame};
use super::canvas::{
    Canvas, GREY, INK, LABEL, PALETTE, PAPER, PlotMark, SMALL, SvgPoint, TITLE, cut_to_width, text_width, wrap_to_width,
};
use super::labels::{self, LabelBox, LabelObstacles, LabelledMark};
use super::legend::{self, LegendEntry};
use super::{Figure, FigureError};
use crate::store::design::DesignStatus;
use crate::text::format_count;
use plotters::style::Color;
use plotters::style::RGBColor;
use plotters::style::text_anchor::{HPos, VPos};
use std::cell::Cell;
use std::collections::BTreeSet;

/// A design as a point. Values are in the units of the figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DesignPoint {
    /// The horizontal value.
    pub x: f64,
    /// The outcome of the design.
    pub outcome: DesignStatus,
    /// The vertical value: the result of an evaluated design, otherwise its bound. `None` if neither is known.
    pub y: Option<f64>,
}

/// The designs of one run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunSeries {
    /// The name in the legend. It may be empty if there is only one run.
    pub name: String,
    /// Its designs.
    pub points: Vec<DesignPoint>,
    /// The words for its front in the legend: `Pareto front`.
    pub front: String,
    /// The upper limit on x for the chips, if there is one. The front ends there.
    pub largest_x: Option<f64>,
    /// For a front with a third quantity: its name, and the points of all designs on that front.
    pub third: Option<(String, Vec<(f64, f64)>)>,
}

/// A named design in the figure: TPUv4, or the best design found.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedDesign {
    /// Its name in the figure.
    pub label: String,
    /// The name of the chip. The same chip has the same mark in all runs.
    pub chip: String,
    /// The position of its run in the plot's series; `None` if it belongs to all of them.
    pub run: Option<usize>,
    /// The horizontal value, in the unit of the figure.
    pub x: f64,
    /// The vertical value, in the unit of the figure.
    pub y: f64,
    /// True if it is the best design of its run.
    pub best: bool,
}

/// The quantity of an axis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AxisScale {
    /// The quantity with its unit.
    pub label: String,
    /// True if larger values are better.
    pub more_is_better: bool,
}

/// The contents of the plot.
#[derive(Debug, Clone, PartialEq)]
pub struct ParetoPlot {
    /// The title: the model and the quantities.
    pub title: String,
    /// A line below the title: the study and the proof.
    pub subtitle: String,
    /// The horizontal axis.
    pub x: AxisScale,
    /// The vertical axis.
    pub y: AxisScale,
    /// One or more runs.
    pub series: Vec<RunSeries>,
    /// The named designs, the most important first.
    pub references: Vec<NamedDesign>,
    /// The designs that are not drawn, and the reason.
    pub left_out: Option<String>,
    /// The noun for one of the points: `design`.
    pub noun: &'static str,
}

const SIZE: (u32, u32) = (1200, 720);
const PLOT: LabelBox = LabelBox { left: 100, top: 84, right: 890, bottom: 640 };

/// Returns the evaluated designs that no other one dominates, from left to right.
#[must_use]
pub fn front_points(points: &[DesignPoint], x: &AxisScale, y: &AxisScale) -> Vec<(f64, f64)> {
    let least = |scale: &AxisScale, value: f64| if scale.more_is_better { -value } else { value };
    let mut evaluated: Vec<(f64, f64)> = evaluated_points(points).collect();
    evaluated.sort_by(|a, b| least(x, a.0).total_cmp(&least(x, b.0)).then(least(y, a.1).total_cmp(&least(y, b.1))));
    let mut front: Vec<(f64, f64)> = Vec::new();
    for point in evaluated {
        if front.last().is_none_or(|last| least(y, point.1) < least(y, last.1)) {
            front.push(point);
        }
    }
    if x.more_is_better {
        front.reverse();
    }
    front
}

fn evaluated_points(points: &[DesignPoint]) -> impl Iterator<Item = (f64, f64)> {
    let known = points.iter().filter(|p| p.outcome == DesignStatus::Evaluated);
    known.filter_map(|p| p.y.map(|y| (p.x, y))).filter(|p| p.0.is_finite() && p.1.is_finite())
}

/// Draws one quantity against another. If the legend needs more space, the figure becomes higher.
///
/// # Errors
/// Errors of the drawing library.
pub fn draw_pareto(plot: &ParetoPlot) -> Result<Figure, FigureError> {
    let needs = Cell::new(0);
    let draw = |height: u32| {
        Canvas::draw_figure(&plot.title, (SIZE.0, height), |canvas| {
            needs.set(paint_pareto(canvas, plot, height as i32))
        })
    };
    let figure = draw(SIZE.1)?;
    match u32::try_from(needs.get()) {
        Ok(height) if height > SIZE.1 => draw(height),
        _ => Ok(figure),
    }
}

/// Draws everything. Returns the height that the legend needs, in SVG units.
fn paint_pareto(canvas: &mut Canvas<'_>, plot: &ParetoPlot, height: i32) -> i32 {
    let frame = plot_frame(plot);
    canvas.draw_bold_text(&plot.title, (PLOT.left, 22), TITLE, INK, (HPos::Left, VPos::Top));
    let (size, subtitle) = lines_of_subtitle(&plot.subtitle);
    let first = if subtitle.len() > 1 { 46 } else { 50 };
    for (line, y) in subtitle.iter().zip((first..).step_by(16)) {
        canvas.draw_text(line, (PLOT.left, y), size, GREY, (HPos::Left, VPos::Top));
    }
    frame.draw_frame(canvas);
    let mut entries = Vec::new();
    // Later marks cover earlier ones: evaluated designs cover rejected ones, and fronts cover both.
    for outcomes in [
        &[DesignStatus::Pruned, DesignStatus::Open, DesignStatus::Infeasible, DesignStatus::OverArea][..],
        &[DesignStatus::Evaluated],
    ] {
        for outcome in outcomes {
            entries.extend(draw_designs(canvas, &frame, plot, *outcome));
        }
    }
    let mut lines = Vec::new();
    for i in 0..plot.series.len() {
        let (line, entry) = draw_front(canvas, &frame, plot, i);
        lines.extend(line);
        entries.extend(entry);
    }
    entries.reverse();
    if plot.series.iter().all(|s| evaluated_points(&s.points).next().is_none()) {
        let middle = ((PLOT.left + PLOT.right) / 2, (PLOT.top + PLOT.bottom) / 2);
        canvas.draw_text(
            "no design was evaluated: none runs the model",
            middle,
            LABEL,
            GREY,
            (HPos::Center, VPos::Center),
        );
    }
    entries.extend(draw_references(canvas, &frame, plot, &lines));
    let nothing = |words: &String| LegendEntry {
        mark: PlotMark::Dot,
        radius: 0,
        color: PAPER.to_rgba(),
        words: words.clone(),
        joined: false,
    };
    entries.extend(plot.left_out.iter().map(nothing));
    let (at, width) = ((PLOT.right + 26, PLOT.top + 10), SIZE.0 as i32 - PLOT.right - 36);
    legend::draw_legend(canvas, &entries, at, width, height - 10);
    at.1 + legend::legend_height(&entries, width) + 10
}

/// Returns the subtitle in one line, or in two lines of small text. Longer ones are cut.
fn lines_of_subtitle(words: &str) -> (i32, Vec<String>) {
    let width = SIZE.0 as i32 - PLOT.left - 10;
    if text_width(words, LABEL) <= width {
        return (LABEL, vec![words.to_owned()]);
    }
    let lines = wrap_to_width(words, SMALL, width);
    let rest = lines.get(1..).map_or_else(String::new, |rest| rest.join(" "));
    (SMALL, lines.into_iter().take(1).chain([cut_to_width(&rest, SMALL, width)]).collect())
}

fn plot_frame(plot: &ParetoPlot) -> PlotFrame {
    let points = || plot.series.iter().flat_map(|s| &s.points);
    let finite = |values: Vec<f64>| -> Option<(f64, f64)> {
        let values: Vec<f64> = values.into_iter().filter(|v| v.is_finite()).collect();
        let low = values.iter().copied().reduce(f64::min)?;
        Some((low, values.iter().copied().fold(low, f64::max)))
    };
    let across = points().map(|p| p.x).chain(plot.references.iter().map(|r| r.x)).collect();
    let upwards = points().filter_map(|p| p.y).chain(plot.references.iter().map(|r| r.y));
    let x = finite(across).unwrap_or((0.0, 1.0));
    let y = finite(upwards.collect()).filter(|y| y.1 > 0.0).unwrap_or((0.0, 1.0));
    // An axis of throughput starts at zero. For times and energies, a start at zero would show little.
    let floor = plot.y.more_is_better.then_some(0.0);
    PlotFrame {
        x: PlotAxis::linear(&plot.x.label, x, None, (PLOT.left, PLOT.right)),
        y: PlotAxis::linear(&plot.y.label, y, floor, (PLOT.bottom, PLOT.top)),
    }
}

fn tint_color(color: RGBColor, towards_white: f64) -> RGBColor {
    let mix = |c: u8| (f64::from(c) + (255.0 - f64::from(c)) * towards_white).round() as u8;
    RGBColor(mix(color.0), mix(color.1), mix(color.2))
}

/// Returns the mark of a series' designs, and their colour. The first 84 series have distinct pairs.
fn look_of_series(index: usize) -> (PlotMark, RGBColor) {
    let marks = std::iter::once(PlotMark::Dot).chain(PlotMark::DISTINCT);
    (marks.cycle().nth(index / PALETTE.len()).unwrap_or(PlotMark::Dot), PALETTE[index % PALETTE.len()])
}

/// Returns the style of an outcome: mark, radius, colour and words.
fn style_of_outcome(outcome: DesignStatus, series: usize) -> (PlotMark, i32, RGBColor, &'static str) {
    let (mark, color) = look_of_series(series);
    match outcome {
        DesignStatus::Evaluated => (mark, 3, tint_color(color, 0.45), "evaluated"),
        DesignStatus::Pruned => (PlotMark::Dot, 1, RGBColor(195, 195, 195), "rejected by bound (drawn at the bound)"),
        DesignStatus::Open => (PlotMark::Ring, 2, RGBColor(150, 150, 150), "undecided (drawn at the bound)"),
        DesignStatus::Infeasible => (PlotMark::Tick, 5, RGBColor(178, 34, 34), "infeasible (marks on the lower axis)"),
        DesignStatus::OverArea => {
            (PlotMark::Tick, 5, RGBColor(150, 110, 60), "outside the area limits (marks on the lower axis)")
        }
    }
}

/// Draws the designs of all runs that have one outcome, and returns their legend entries. Evaluated designs have the
/// colour of their run, with one entry per run. Other designs look the same in all runs and share one entry.
fn draw_designs(
    canvas: &mut Canvas<'_>,
    frame: &PlotFrame,
    plot: &ParetoPlot,
    outcome: DesignStatus,
) -> Vec<LegendEntry> {
    let mut entries: Vec<LegendEntry> = Vec::new();
    let mut together = 0;
    for (i, series) in plot.series.iter().enumerate() {
        let total = draw_run_designs(canvas, frame, plot, i, outcome);
        together += total;
        let (mark, radius, color, words) = style_of_outcome(outcome, i);
        let own = outcome == DesignStatus::Evaluated && plot.series.len() > 1;
        let (prefix, total) = if own { (format!("{}: ", series.name), total) } else { (String::new(), together) };
        if !own {
            entries.clear();
        }
        let words = format!("{prefix}{} {words}", format_count(total as u64));
        entries.extend((total > 0).then(|| LegendEntry {
            mark,
            radius: radius.max(3),
            color: color.to_rgba(),
            words,
            joined: false,
        }));
    }
    entries
}

/// Draws the designs of one run that have one outcome. Points at the same place are drawn once. Returns the number of
/// designs with a position. Designs without a bound have no position, for example the rejected designs of several
/// models.
fn draw_run_designs(
    canvas: &mut Canvas<'_>,
    frame: &PlotFrame,
    plot: &ParetoPlot,
    index: usize,
    outcome: DesignStatus,
) -> usize {
    let (series, (mark, radius, color, _)) = (&plot.series[index], style_of_outcome(outcome, index));
    let mut spots: BTreeSet<SvgPoint> = BTreeSet::new();
    let mut total = 0_usize;
    for point in series.points.iter().filter(|p| p.outcome == outcome && p.x.is_finite()) {
        if mark == PlotMark::Tick {
            total += 1;
            spots.insert((frame.x.position_of(point.x), PLOT.bottom - radius - 1));
        } else if let Some(y) = point.y.filter(|y| y.is_finite()) {
            total += 1;
            let (x, y) = frame.position_of(point.x, y);
            // There may be tens of thousands of rejected designs. A grid of two units keeps the file small.
            spots.insert(if outcome == DesignStatus::Evaluated { (x, y) } else { (x / 2 * 2, y / 2 * 2) });
        }
    }
    for spot in &spots {
        canvas.draw_mark(mark, *spot, radius, color.to_rgba());
    }
    total
}

/// Draws the front as a staircase that ends at the limit on x, or else at the largest x of the designs. Designs that
/// are on the front only because of a third quantity get rings. Returns points along the front, which labels avoid, and
/// the legend entries.
fn draw_front(
    canvas: &mut Canvas<'_>,
    frame: &PlotFrame,
    plot: &ParetoPlot,
    index: usize,
) -> (Vec<SvgPoint>, Vec<LegendEntry>) {
    let (series, (mark, color)) = (&plot.series[index], look_of_series(index));
    let color = color.to_rgba();
    let front = front_points(&series.points, &plot.x, &plot.y);
    let stairs = staircase_corners(frame, plot, series, &front);
    let along = stairs.windows(2).flat_map(|pair| points_between(pair[0], pair[1])).collect();
    if stairs.len() > 1 {
        canvas.draw_line(stairs, color, 2);
    }
    for (x, y) in &front {
        canvas.draw_mark(mark, frame.position_of(*x, *y), 4, color);
    }
    let name = if series.name.is_empty() { String::new() } else { format!("{}: ", series.name) };
    let words = |designs: usize, on: &str| {
        let more = if designs == 1 { "" } else { "s" };
        format!("{name}{on}, {} {}{more}", format_count(designs as u64), plot.noun)
    };
    let mut entries = Vec::new();
    if let Some((third, all)) = &series.third {
        let places: Vec<SvgPoint> =
            all.iter().filter(|place| !front.contains(place)).map(|(x, y)| frame.position_of(*x, *y)).collect();
        places.iter().for_each(|place| canvas.draw_mark(PlotMark::Ring, *place, 4, color));
        let words = words(places.len(), &format!("{} with {third}", series.front));
        entries.extend((!places.is_empty()).then_some(LegendEntry {
            mark: PlotMark::Ring,
            radius: 4,
            color,
            words,
            joined: false,
        }));
    }
    let words = words(front.len(), &series.front);
    entries.extend((!front.is_empty()).then_some(LegendEntry {
        mark: PlotMark::Line,
        radius: 5,
        color,
        words,
        joined: false,
    }));
    (along, entries)
}

/// Returns the corners of a front's staircase, from left to right.
fn staircase_corners(frame: &PlotFrame, plot: &ParetoPlot, series: &RunSeries, front: &[(f64, f64)]) -> Vec<SvgPoint> {
    let mut stairs: Vec<SvgPoint> = Vec::new();
    for (x, y) in front {
        let (x, y) = frame.position_of(*x, *y);
        stairs
            .extend(stairs.last().map(|last: &SvgPoint| if plot.x.more_is_better { (last.0, y) } else { (x, last.1) }));
        stairs.push((x, y));
    }
    let xs = || series.points.iter().map(|point| point.x).filter(|x| x.is_finite());
    if plot.x.more_is_better {
        // The first design is also the best one at every smaller x, so that the line begins at the smallest x.
        let least = xs().reduce(f64::min);
        let begin = least.zip(stairs.first()).map(|(least, first)| (frame.x.position_of(least).min(first.0), first.1));
        stairs.splice(0..0, begin);
    } else if let Some(end) = series.largest_x.or_else(|| xs().reduce(f64::max)) {
        stairs.extend(stairs.last().map(|last| (frame.x.position_of(end).max(last.0), last.1)));
    }
    stairs
}

/// Returns points at every second unit along a vertical or horizontal line. A label across the line covers about ten of
/// them.
fn points_between(from: SvgPoint, to: SvgPoint) -> Vec<SvgPoint> {
    let steps = ((to.0 - from.0).abs() + (to.1 - from.1).abs()) / 2;
    (0..=steps)
        .map(|i| (from.0 + (to.0 - from.0) * i / steps.max(1), from.1 + (to.1 - from.1) * i / steps.max(1)))
        .collect()
}

/// Returns the mark, radius and colour of each named design. The best design of a run is a large diamond; every other
/// chip has its own mark. A design that belongs to one of several runs has that run's colour.
fn looks_of_references(named: &[&NamedDesign]) -> Vec<(PlotMark, i32, RGBColor)> {
    let mut chips: Vec<(&str, usize)> = Vec::new();
    let mut looks = Vec::with_capacity(named.len());
    for design in named {
        let color = design.run.map_or(INK, |run| PALETTE[run % PALETTE.len()]);
        if design.best {
            looks.push((PlotMark::Diamond, 8, color));
            continue;
        }
        // Runs whose colours repeat have other marks.
        let kind = (design.chip.as_str(), design.run.unwrap_or(0) / PALETTE.len());
        let known = chips.iter().position(|chip| *chip == kind);
        let at = known.unwrap_or(chips.len());
        chips.extend(known.is_none().then_some(kind));
        looks.push((PlotMark::DISTINCT[at % PlotMark::DISTINCT.len()], 6, color));
    }
    looks
}

/// Draws marks and names of the reference designs, the most important on top. Every mark stands at its data; one that
/// lies under others is larger than they are. Names avoid `lines`. The plot has no room for the names of several runs:
/// their designs then get numbers, and the returned legend entries have the names.
fn draw_references(
    canvas: &mut Canvas<'_>,
    frame: &PlotFrame,
    plot: &ParetoPlot,
    lines: &[SvgPoint],
) -> Vec<LegendEntry> {
    let known = |r: &&NamedDesign| r.x.is_finite() && r.y.is_finite();
    let named: Vec<&NamedDesign> = plot.references.iter().filter(known).collect();
    let looks = looks_of_references(&named);
    let numbered = plot.series.len() > 1;
    let name = |(i, r): (usize, &&NamedDesign)| if numbered { (i + 1).to_string() } else { r.label.clone() };
    let names: Vec<String> = named.iter().enumerate().map(name).collect();
    // Marks and labels stay above the marks on the lower axis.
    let room = LabelBox { bottom: PLOT.bottom - 14, left: PLOT.left + 2, right: PLOT.right - 2, top: PLOT.top };
    let places: Vec<(SvgPoint, i32)> =
        named.iter().zip(&looks).map(|(r, look)| (frame.position_of(r.x, r.y), look.1)).collect();
    let radii = labels::nest_marks(&places);
    let marks: Vec<LabelledMark<'_>> = (places.iter().zip(&radii).zip(&names))
        .map(|(((at, _), radius), name)| LabelledMark { at: *at, radius: *radius, name })
        .collect();
    let all = plot.series.iter().flat_map(|s| evaluated_points(&s.points));
    let crowd: BTreeSet<SvgPoint> = all.map(|(x, y)| frame.position_of(x, y)).collect();
    let crowd: Vec<SvgPoint> = crowd.into_iter().collect();
    let placed = labels::place_labels(&marks, &LabelObstacles { crowd: &crowd, lines }, room);
    for (mark, area) in marks.iter().zip(&placed) {
        if let Some(area) = area {
            let (x, y) = ((area.left + area.right) / 2, (area.top + area.bottom) / 2);
            let [from, to] = labels::leader_line(mark.at, area);
            canvas.draw_line(vec![from, to, (x, y)], INK.to_rgba(), 1);
        }
    }
    for (LabelledMark { at, radius, .. }, (mark, _, color)) in marks.iter().zip(&looks).rev() {
        canvas.draw_mark(*mark, *at, radius + 2, PAPER.to_rgba());
        canvas.draw_mark(*mark, *at, *radius, INK.to_rgba());
        if *color != INK {
            canvas.draw_mark(*mark, *at, radius - 2, color.to_rgba());
        }
    }
    for (mark, area) in marks.iter().zip(&placed) {
        if let Some(area) = area {
            canvas.draw_rectangle((area.left, area.top), (area.right, area.bottom), PAPER.mix(0.88));
            let middle = ((area.left + area.right) / 2, (area.top + area.bottom) / 2);
            canvas.draw_text(mark.name, middle, SMALL, INK, (HPos::Center, VPos::Center));
        }
    }
    let entry = |(i, (r, (mark, radius, color))): (usize, (&&NamedDesign, &(PlotMark, i32, RGBColor)))| {
        let words = format!("{}  {}", i + 1, r.label);
        LegendEntry { mark: *mark, radius: *radius, color: color.to_rgba(), words, joined: true }
    };
    if numbered { named.iter().zip(&looks).enumerate().map(entry).collect() } else { Vec::new() }
}

#[cfg(test)]
#[path = "pareto_tests.rs"]
mod tests;
