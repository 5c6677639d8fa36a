//! The figure of a device's memory over one step, with one line per drawn pipeline stage.

use super::axes::{PlotAxis, PlotFrame};
use super::canvas::{Canvas, GREY, INK, LABEL, PALETTE, PlotMark, SMALL, TITLE, cut_to_width};
use super::legend::{self, LegendEntry};
use super::{Figure, FigureError};
use plotters::style::Color;
use plotters::style::text_anchor::{HPos, VPos};
use sim::pipeline::{DeviceReport, Timeline};

const SIZE: (u32, u32) = (1000, 520);
const LEFT: i32 = 96;
const RIGHT: i32 = 800;
const TOP: i32 = 84;
const BOTTOM: i32 = 440;
/// The number of moments drawn per stage, about one per SVG unit of width. Each interval keeps its maximum.
const MOMENTS: usize = 700;

/// Draws the memory of the devices over a step, in GiB, and the `capacity_gib` that plans may use. `about` describes
/// the plan. If there are more stages than colours, only the first, the last and some in between are drawn.
///
/// # Errors
/// Errors of the drawing library.
pub fn draw_memory(about: &str, timeline: &Timeline, capacity_gib: f64) -> Result<Figure, FigureError> {
    let stages = choose_stages(timeline.devices.len());
    let peak = timeline.devices.iter().map(|device| device.peak_memory.gib()).fold(0.0, f64::max);
    // A line at the capacity would press the curves of a nearly empty device onto the axis.
    let near = capacity_gib < 3.0 * peak;
    let most = if near { peak.max(capacity_gib) } else { peak };
    let frame = PlotFrame {
        x: PlotAxis::linear("seconds of the step", (0.0, timeline.total.0), Some(0.0), (LEFT, RIGHT)),
        y: PlotAxis::linear("GiB per device", (0.0, most), Some(0.0), (BOTTOM, TOP)),
    };
    let title = "Memory over a step";
    Canvas::draw_figure(title, SIZE, |canvas| {
        canvas.draw_bold_text(title, (20, 22), TITLE, INK, (HPos::Left, VPos::Top));
        canvas.draw_text(
            &cut_to_width(about, LABEL, SIZE.0 as i32 - 40),
            (20, 50),
            LABEL,
            GREY,
            (HPos::Left, VPos::Top),
        );
        frame.draw_frame(canvas);
        let mut entries = Vec::new();
        let mut entry = |words: String, color| {
            entries.push(LegendEntry { mark: PlotMark::Line, radius: 8, color, words, joined: true })
        };
        for (&stage, color) in stages.iter().zip(PALETTE) {
            let Some(device) = timeline.devices.get(stage) else { continue };
            canvas.draw_line(memory_steps(&frame, device, timeline.total.0), color.to_rgba(), 2);
            entry(format!("stage {stage}"), color.to_rgba());
        }
        if near {
            let ends = [frame.position_of(0.0, capacity_gib), (RIGHT, frame.y.position_of(capacity_gib))];
            canvas.draw_line(ends.to_vec(), INK.to_rgba(), 1);
            entry(format!("{capacity_gib:.1} GiB for the program"), INK.to_rgba());
        }
        let (shown, all) = (stages.len(), timeline.devices.len());
        let mut top = TOP + 8;
        if shown < all {
            canvas.draw_text(
                &format!("{shown} of {all} stages drawn"),
                (RIGHT + 16, top),
                SMALL,
                GREY,
                (HPos::Left, VPos::Center),
            );
            top += 22;
        }
        legend::draw_legend(canvas, &entries, (RIGHT + 16, top), SIZE.0 as i32 - RIGHT - 24, BOTTOM);
    })
}

/// Chooses the stages to draw, at most one per colour: the first, the last, and others at equal distances.
fn choose_stages(stages: usize) -> Vec<usize> {
    let count = stages.min(PALETTE.len());
    let mut drawn: Vec<usize> = (0..count).map(|i| i * (stages.max(1) - 1) / (count.max(2) - 1)).collect();
    drawn.dedup();
    drawn
}

/// Returns the corners of a stage's memory as a step function.
fn memory_steps(frame: &PlotFrame, device: &DeviceReport, total: f64) -> Vec<(i32, i32)> {
    let span = device.memory.len().div_ceil(MOMENTS).max(1);
    let mut places: Vec<(i32, i32)> = Vec::new();
    let mut held = 0.0;
    for moments in device.memory.chunks(span) {
        let (Some(first), Some(most)) = (moments.first(), moments.iter().map(|moment| moment.1).max()) else {
            continue;
        };
        places.push(frame.position_of(first.0.0, held));
        held = most.gib();
        places.push(frame.position_of(first.0.0, held));
    }
    places.push(frame.position_of(total, held));
    places
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use sim::units::{Bytes, Seconds};

    #[test]
    fn the_ends_are_drawn_and_no_stage_twice() {
        assert_eq!((choose_stages(0), choose_stages(1), choose_stages(3)), (vec![], vec![0], vec![0, 1, 2]));
        assert_eq!(choose_stages(16), [0, 3, 6, 9, 12, 15]);
    }

    #[test]
    fn every_stage_has_a_line_and_the_capacity_where_it_is_near() {
        let device = |gib: f64| DeviceReport {
            peak_memory: Bytes::from_gib(gib),
            memory: vec![(Seconds(0.0), Bytes::from_gib(1.0)), (Seconds(1.0), Bytes::from_gib(gib))],
            ..DeviceReport::default()
        };
        let timeline = Timeline {
            total: Seconds(2.0),
            passes_end: Seconds(2.0),
            devices: vec![device(40.0), device(20.0)],
            events: vec![],
        };
        let near = draw_memory("a plan", &timeline, 79.2).unwrap();
        assert!(["stage 0", "stage 1", "79.2 GiB"].iter().all(|words| near.svg().contains(words)));
        assert!(!draw_memory("a plan", &timeline, 300.0).unwrap().svg().contains("300.0 GiB"));
        // The figure says which stages are left out.
        let eight = Timeline { devices: (0..8).map(|stage| device(40.0 - f64::from(stage))).collect(), ..timeline };
        assert!(!near.svg().contains("stages drawn"));
        assert!(draw_memory("a plan", &eight, 79.2).unwrap().svg().contains("6 of 8 stages drawn"));
    }
}
