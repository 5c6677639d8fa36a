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

/// Moves marks `(point, radius)` apart, in the given order, so that none covers another. A mark stays at its point if
/// it can; else it goes to the nearest free place inside `plot`, over no later mark's point where possible.
pub(super) fn spread_marks(marks: &[(SvgPoint, i32)], plot: LabelBox) -> Vec<SvgPoint> {
    let around = |(at, radius): (SvgPoint, i32)| LabelBox::around_point(at, radius + 1);
    let mut placed: Vec<LabelBox> = Vec::with_capacity(marks.len());
    let mut spots = Vec::with_capacity(marks.len());
    for (i, &((x, y), radius)) in marks.iter().enumerate() {
        let rings = (1..24).flat_map(|ring| (0..16).map(move |turn| (f64::from(ring), f64::from(turn))));
        let aside = rings.map(|(ring, turn)| {
            let (far, angle) = (ring * f64::from(radius), std::f64::consts::TAU * turn / 16.0);
            (x + (far * angle.cos()).round() as i32, y - (far * angle.sin()).round() as i32)
        });
        let free = |spot: &SvgPoint| !placed.iter().any(|other| other.overlaps(&around((*spot, radius))));
        let later =
            |spot: &SvgPoint| !marks[i + 1..].iter().any(|other| around(*other).overlaps(&around((*spot, radius))));
        let places: Vec<SvgPoint> =
            aside.filter(|spot| around((*spot, radius)).is_inside(&plot) && free(spot)).collect();
        let at = (x, y);
        let spot = if free(&at) { at } else { *places.iter().find(|s| later(s)).or(places.first()).unwrap_or(&at) };
        placed.push(around((spot, radius)));
        spots.push(spot);
    }
    spots
}

/// Places each label `(point, text)` near its point, in the given order.
///
/// A label lies inside `plot`, and never covers another label or the mark of a labelled point. If possible, it
/// interrupts no line, its leader crosses no label and no leader, and no leader crosses it. Among the remaining places,
/// the cheapest one by [`cost_of_label`] is chosen: near the point, with few covered points of the crowd. A label
/// without a place is `None` (with hundreds of labels).
pub(super) fn place_labels(
    labels: &[(SvgPoint, &str)],
    around: &LabelObstacles<'_>,
    plot: LabelBox,
) -> Vec<Option<LabelBox>> {
    let marks: Vec<LabelBox> = labels.iter().map(|(at, _)| LabelBox::around_point(*at, 9)).collect();
    let mut taken: Vec<(LabelBox, [SvgPoint; 2])> = Vec::new();
    let mut placed = Vec::with_capacity(labels.len());
    for (at, words) in labels {
        let free = |area: &LabelBox| {
            area.is_inside(&plot)
                && !marks.iter().chain(taken.iter().map(|(area, _)| area)).any(|other| area.overlaps(other))
        };
        let candidates = candidate_boxes(*at, words).into_iter().enumerate().filter(|(_, area)| free(area));
        let best = candidates.min_by_key(|(rank, area)| {
            (count_conflicts(*at, area, around.lines, &taken), cost_of_label(*rank, area, around), *rank)
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
        let labels: Vec<(SvgPoint, &str)> = spots.iter().enumerate().map(|(i, at)| (*at, words[i % 3])).collect();
        let level = |from: i32, to: i32, y: i32| (from..=to).step_by(2).map(move |x| (x, y));
        let lines: Vec<SvgPoint> =
            level(420, 690, 150).chain(level(420, 690, 240)).chain(level(400, 900, 300)).collect();
        let placed: Vec<LabelBox> = place_labels(&labels, &LabelObstacles { crowd: &[], lines: &lines }, PLOT)
            .into_iter()
            .map(Option::unwrap)
            .collect();
        let leaders: Vec<[SvgPoint; 2]> =
            labels.iter().zip(&placed).map(|((at, _), area)| leader_line(*at, area)).collect();
        for (i, area) in placed.iter().enumerate() {
            assert!(!lines.iter().any(|place| area.contains_point(*place)), "{i}: {area:?}");
            for (j, line) in leaders.iter().enumerate().filter(|(j, _)| *j != i) {
                assert!(!line_crosses_area(*line, area) && !lines_cross(*line, leaders[i]), "{i} {j}");
            }
        }
    }

    #[test]
    fn marks_that_are_alone_stay_where_they_are() {
        let marks = [((100, 100), 8), ((300, 100), 5), ((302, 101), 5)];
        let spots = spread_marks(&marks, PLOT);
        assert_eq!(spots[..2], [(100, 100), (300, 100)]);
        assert!((spots[2].0 - 302).abs().max((spots[2].1 - 101).abs()) < 25, "{spots:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn no_mark_covers_another(points in prop::collection::vec((300..330_i32, 200..230_i32), 1..20)) {
            let marks: Vec<(SvgPoint, i32)> = points.iter().map(|at| (*at, 8)).collect();
            let spots = spread_marks(&marks, PLOT);
            for (i, a) in spots.iter().enumerate() {
                prop_assert!(spots[..i].iter().all(|b| (a.0 - b.0).abs().max((a.1 - b.1).abs()) >= 18), "{spots:?}");
            }
        }

        #[test]
        fn labels_never_overlap(points in prop::collection::vec((10..890_i32, 10..590_i32), 1..12)) {
            let labels: Vec<(SvgPoint, &str)> = points.iter().map(|p| (*p, "TPUv4, our plan")).collect();
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
