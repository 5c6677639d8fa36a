//! Places labels beside points. Labels overlap neither each other nor the points that they name.

use super::canvas::{SMALL, SvgPoint, text_width};

/// A rectangle in SVG units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LabelBox {
    pub(super) left: i32,
    pub(super) top: i32,
    pub(super) right: i32,
    pub(super) bottom: i32,
}

impl LabelBox {
    fn around_point((x, y): SvgPoint, radius: i32) -> Self {
        Self { left: x - radius, top: y - radius, right: x + radius, bottom: y + radius }
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.left < other.right && other.left < self.right && self.top < other.bottom && other.top < self.bottom
    }

    fn is_inside(&self, other: &Self) -> bool {
        self.left >= other.left && self.right <= other.right && self.top >= other.top && self.bottom <= other.bottom
    }

    fn contains_point(&self, (x, y): SvgPoint) -> bool {
        (self.left..=self.right).contains(&x) && (self.top..=self.bottom).contains(&y)
    }
}

/// Free space around the text of a label, in SVG units.
const MARGIN: i32 = 4;

/// Obstacles in a plot, besides the labelled points.
#[derive(Debug, Default)]
pub(super) struct LabelObstacles<'a> {
    /// Points that labels may cover if no other place is free.
    pub crowd: &'a [SvgPoint],
    /// Points along lines. Labels avoid them.
    pub lines: &'a [SvgPoint],
}

/// Returns the leader from a point to its label. It ends at the nearest point of the label's edge.
pub(super) fn leader_line(at: SvgPoint, area: &LabelBox) -> [SvgPoint; 2] {
    [at, (at.0.clamp(area.left, area.right), at.1.clamp(area.top, area.bottom))]
}

/// The width by which a mark extends beyond every mark that is drawn over it, in SVG units.
const SHOWN: i32 = 9;
/// The largest radius of a mark, in SVG units. If many marks lie at one place, the lowest ones all have this radius.
const LARGEST: i32 = 33;

/// A mark with the name that stands beside it.
#[derive(Debug, Clone, Copy)]
pub(super) struct LabelledMark<'a> {
    /// The place of its data.
    pub at: SvgPoint,
    /// The radius of the mark, in SVG units.
    pub radius: i32,
    pub name: &'a str,
}

/// Returns the radii of marks `(point, radius)` that are drawn from the last to the first. No mark leaves its point. A
/// mark under others is enlarged until it reaches beyond them.
pub(super) fn nest_marks(marks: &[(SvgPoint, i32)]) -> Vec<i32> {
    let mut radii: Vec<i32> = Vec::with_capacity(marks.len());
    for &((x, y), radius) in marks {
        let over = marks.iter().zip(&radii).map(|((at, _), over)| {
            let apart = (at.0 - x).abs().max((at.1 - y).abs());
            over + SHOWN - apart
        });
        let reach = over.max().unwrap_or(0).max(radius);
        radii.push(reach.min(LARGEST));
    }
    radii
}

/// Places each name near its mark, in the given order.
///
/// A label lies inside `plot`, and never covers another label or the mark of a labelled point. If possible, it
/// interrupts no line, its leader crosses no label, no leader and no mark, and no leader crosses it.
///
/// The cheapest of the remaining places by [`cost_of_label`] is chosen: near the point, with few covered points of the
/// crowd. A label without a place is `None` (with hundreds of labels).
pub(super) fn place_labels(
    labels: &[LabelledMark<'_>],
    around: &LabelObstacles<'_>,
    plot: LabelBox,
) -> Vec<Option<LabelBox>> {
    let marks: Vec<LabelBox> = labels.iter().map(|mark| LabelBox::around_point(mark.at, mark.radius + 3)).collect();
    let mut taken: Vec<(LabelBox, [SvgPoint; 2])> = Vec::new();
    let mut placed = Vec::with_capacity(labels.len());
    for LabelledMark { at, name, .. } in labels {
        let free = |area: &LabelBox| {
            area.is_inside(&plot)
                && !marks.iter().chain(taken.iter().map(|(area, _)| area)).any(|other| area.overlaps(other))
        };
        let candidates = candidate_boxes(*at, name).into_iter().enumerate().filter(|(_, area)| free(area));
        let best = candidates.min_by_key(|(rank, area)| {
            let own = leader_line(*at, area);
            let marked = marks.iter().filter(|mark| !mark.contains_point(*at) && line_crosses_area(own, mark)).count();
            (marked + count_conflicts(*at, area, around.lines, &taken), cost_of_label(*rank, area, around), *rank)
        });
        let best = best.map(|(_, area)| area);
        taken.extend(best.map(|area| (area, leader_line(*at, &area))));
        placed.push(best);
    }
    placed
}

/// Counts conflicts: 1 if a line runs under the label, and 1 for each leader across it, each label across its leader,
/// and each pair of crossing leaders.
fn count_conflicts(at: SvgPoint, area: &LabelBox, lines: &[SvgPoint], taken: &[(LabelBox, [SvgPoint; 2])]) -> usize {
    let own = leader_line(at, area);
    let interrupts = usize::from(lines.iter().any(|place| area.contains_point(*place)));
    let others = taken.iter().map(|(other, line)| {
        usize::from(line_crosses_area(own, other))
            + usize::from(line_crosses_area(*line, area))
            + usize::from(lines_cross(own, *line))
    });
    interrupts + others.sum::<usize>()
}

/// Returns the cost of a place. The next place in the order of candidates costs as much as three covered points. At
/// most twenty covered points count. In a dense plot, a distant label is worse than a label that hides a few of many
/// points.
fn cost_of_label(rank: usize, area: &LabelBox, around: &LabelObstacles<'_>) -> usize {
    around.crowd.iter().filter(|place| area.contains_point(**place)).count().min(20) + 3 * rank
}

/// True if a segment crosses an area.
fn line_crosses_area([from, to]: [SvgPoint; 2], area: &LabelBox) -> bool {
    let steps = ((to.0 - from.0).abs() + (to.1 - from.1).abs()).max(1);
    (0..=steps)
        .any(|i| area.contains_point((from.0 + (to.0 - from.0) * i / steps, from.1 + (to.1 - from.1) * i / steps)))
}

/// True if two segments cross.
fn lines_cross([a, b]: [SvgPoint; 2], [c, d]: [SvgPoint; 2]) -> bool {
    let side = |from: SvgPoint, to: SvgPoint, at: SvgPoint| {
        (i64::from(to.0 - from.0) * i64::from(at.1 - from.1) - i64::from(to.1 - from.1) * i64::from(at.0 - from.0))
            .signum()
    };
    side(a, b, c) * side(a, b, d) < 0 && side(c, d, a) * side(c, d, b) < 0
}

/// Returns candidate rectangles for the text around the point, nearest first: sixteen directions at each of growing
/// distances.
fn candidate_boxes((x, y): SvgPoint, words: &str) -> Vec<LabelBox> {
    let (width, height) = (text_width(words, SMALL) + 2 * MARGIN, SMALL + 2 * MARGIN);
    let mut areas = Vec::new();
    for distance in [12, 24, 40, 60, 90, 130, 180, 240, 320, 420] {
        let (near, flat, steep) = (distance * 7 / 10, distance * 9 / 10, distance * 4 / 10);
        let aside = [
            (1, near, near),
            (1, flat, steep),
            (1, steep, flat),
            (-1, near, near),
            (-1, flat, steep),
            (-1, steep, flat),
        ];
        let level = [(x + distance + width / 2, y), (x - distance - width / 2, y)];
        let upright = [(x, y - distance - height / 2), (x, y + distance + height / 2)];
        let slanted = aside.into_iter().flat_map(|(side, dx, dy)| {
            [-1, 1].map(|above| (x + side * (dx + width / 2), y + above * (dy + height / 2)))
        });
        areas.extend(level.into_iter().chain(upright).chain(slanted).map(|(mx, my)| LabelBox {
            left: mx - width / 2,
            top: my - height / 2,
            right: mx + width / 2,
            bottom: my + height / 2,
        }));
    }
    areas
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    const PLOT: LabelBox = LabelBox { left: 0, top: 0, right: 900, bottom: 600 };

    #[test]
    fn points_on_one_spot_get_labels_apart() {
        let labels = [((880, 20), "TPUv4, expert's plan"), ((880, 20), "TPUv4, our plan"), ((880, 24), "best found")];
        let labels = labels.map(|(at, name)| LabelledMark { at, radius: 6, name });
        let placed = place_labels(&labels, &LabelObstacles::default(), PLOT);
        assert!(placed.iter().all(Option::is_some), "{placed:?}");
    }

    /// Twelve designs of three runs, as in a figure of several runs: lines stay whole, leaders cross nothing.
    #[test]
    fn labels_keep_clear_of_lines_and_of_leaders() {
        let words = [
            "llama2-7b-phaze: best found",
            "llama2-7b-phaze: smallest within 1 %",
            "llama2-7b-phaze: phaze_tpuv4, our best plan",
        ];
        let spots =
            [(690, 210), (700, 205), (760, 400), (690, 60), (695, 56), (760, 408), (400, 300), (690, 300), (760, 420)];
        let mark = |(i, at): (usize, &SvgPoint)| LabelledMark { at: *at, radius: 6, name: words[i % 3] };
        let labels: Vec<LabelledMark<'_>> = spots.iter().enumerate().map(mark).collect();
        let level = |from: i32, to: i32, y: i32| (from..=to).step_by(2).map(move |x| (x, y));
        let lines: Vec<SvgPoint> =
            level(420, 690, 150).chain(level(420, 690, 240)).chain(level(400, 900, 300)).collect();
        let placed: Vec<LabelBox> = place_labels(&labels, &LabelObstacles { crowd: &[], lines: &lines }, PLOT)
            .into_iter()
            .map(Option::unwrap)
            .collect();
        let leaders: Vec<[SvgPoint; 2]> =
            labels.iter().zip(&placed).map(|(mark, area)| leader_line(mark.at, area)).collect();
        for (i, area) in placed.iter().enumerate() {
            assert!(!lines.iter().any(|place| area.contains_point(*place)), "{i}: {area:?}");
            for (j, line) in leaders.iter().enumerate().filter(|(j, _)| *j != i) {
                assert!(!line_crosses_area(*line, area) && !lines_cross(*line, leaders[i]), "{i} {j}");
            }
        }
    }

    /// A label behind another mark would seem to name that mark.
    #[test]
    fn no_leader_runs_through_another_mark() {
        let mark = |(at, name)| LabelledMark { at, radius: 8, name };
        let labels = [((195, 301), "smallest within 1 %"), ((250, 300), "best found")].map(mark);
        // Lines everywhere but at the height of both marks, and no room on the left.
        let rows = (100..289).chain(313..500).step_by(4);
        let lines: Vec<SvgPoint> = rows.flat_map(|y| (150..600).step_by(4).map(move |x| (x, y))).collect();
        let plot = LabelBox { left: 150, ..PLOT };
        let placed = place_labels(&labels, &LabelObstacles { crowd: &[], lines: &lines }, plot);
        for (i, (mark, area)) in labels.iter().zip(&placed).enumerate() {
            let leader = leader_line(mark.at, &area.unwrap());
            for (j, other) in labels.iter().enumerate().filter(|(j, _)| *j != i) {
                assert!(
                    !line_crosses_area(leader, &LabelBox::around_point(other.at, other.radius)),
                    "{i} {j} {placed:?}"
                );
            }
        }
    }

    #[test]
    fn marks_under_others_are_larger_and_marks_alone_keep_their_size() {
        let marks = [((100, 100), 8), ((300, 100), 6), ((302, 101), 6), ((300, 100), 6), ((100, 113), 6)];
        assert_eq!(nest_marks(&marks), [8, 6, 13, 20, 6]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn no_mark_hides_another(points in prop::collection::vec((300..330_i32, 200..230_i32), 1..20)) {
            let marks: Vec<(SvgPoint, i32)> = points.iter().map(|at| (*at, 8)).collect();
            let radii = nest_marks(&marks);
            for (i, (at, own)) in points.iter().zip(&radii).enumerate() {
                prop_assert!((8..=LARGEST).contains(own));
                let hidden = points[..i].iter().zip(&radii).any(|(over, radius)| {
                    let apart = (at.0 - over.0).abs().max((at.1 - over.1).abs());
                    own + apart < radius + SHOWN
                });
                prop_assert!(!hidden || *own == LARGEST, "{radii:?}");
            }
        }

        #[test]
        fn labels_never_overlap(points in prop::collection::vec((10..890_i32, 10..590_i32), 1..12)) {
            let mark = |at: &SvgPoint| LabelledMark { at: *at, radius: 6, name: "TPUv4, our plan" };
            let labels: Vec<LabelledMark<'_>> = points.iter().map(mark).collect();
            let around = LabelObstacles { crowd: &points, lines: &[] };
            let placed: Vec<LabelBox> = place_labels(&labels, &around, PLOT).into_iter().flatten().collect();
            prop_assert_eq!(placed.len(), points.len());
            for (i, a) in placed.iter().enumerate() {
                prop_assert!(a.is_inside(&PLOT));
                prop_assert!(placed[..i].iter().all(|b| !a.overlaps(b)));
                prop_assert!(points.iter().all(|p| !a.contains_point(*p)));
            }
        }
    }
}
