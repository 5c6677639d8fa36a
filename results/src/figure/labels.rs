//! Labels beside points that cover neither each other nor the points they name.

use super::canvas::{Place, SMALL, text_width};

/// A rectangle: left, top, right, bottom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Area {
    pub(super) left: i32,
    pub(super) top: i32,
    pub(super) right: i32,
    pub(super) bottom: i32,
}

impl Area {
    fn around((x, y): Place, radius: i32) -> Self {
        Self { left: x - radius, top: y - radius, right: x + radius, bottom: y + radius }
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.left < other.right && other.left < self.right && self.top < other.bottom && other.top < self.bottom
    }

    fn inside(&self, other: &Self) -> bool {
        self.left >= other.left && self.right <= other.right && self.top >= other.top && self.bottom <= other.bottom
    }

    fn holds(&self, (x, y): Place) -> bool {
        (self.left..=self.right).contains(&x) && (self.top..=self.bottom).contains(&y)
    }
}

/// Space that a label keeps free around its words.
const MARGIN: i32 = 4;

/// Places each label near its point, in the order given: `(point, words)`. A label lies inside `plot`, never over
/// another label nor over a labelled point's mark, and over as few of the `crowd`'s points as can be. One that finds no
/// such place (hundreds of labels) is `None`.
pub(super) fn place(labels: &[(Place, &str)], crowd: &[Place], plot: Area) -> Vec<Option<Area>> {
    let marks: Vec<Area> = labels.iter().map(|(at, _)| Area::around(*at, 9)).collect();
    let mut taken: Vec<Area> = Vec::new();
    let mut placed = Vec::with_capacity(labels.len());
    for (at, words) in labels {
        let free = |area: &Area| area.inside(&plot) && !marks.iter().chain(&taken).any(|other| area.overlaps(other));
        let covered = |area: &Area| crowd.iter().filter(|p| area.holds(**p)).count();
        let candidates = candidates(*at, words).into_iter().enumerate().filter(|(_, area)| free(area));
        // Lying one place farther off costs as much as covering three of the crowd, and covering many costs no more than
        // covering twenty: in a dense plot a label that is far away is worse than one that hides some of many points.
        let cost = |rank: usize, area: &Area| covered(area).min(20) + 3 * rank;
        let best = candidates.min_by_key(|(rank, area)| (cost(*rank, area), *rank)).map(|(_, area)| area);
        taken.extend(best);
        placed.push(best);
    }
    placed
}

/// Rectangles for the words around the point, nearest first: eight directions at growing distances.
fn candidates((x, y): Place, words: &str) -> Vec<Area> {
    let (width, height) = (text_width(words, SMALL) + 2 * MARGIN, SMALL + 2 * MARGIN);
    let mut areas = Vec::new();
    for distance in [12, 24, 40, 60, 90, 130, 180, 240, 320] {
        let near = distance * 7 / 10;
        let middles = [
            (x + distance + width / 2, y),
            (x - distance - width / 2, y),
            (x, y - distance - height / 2),
            (x, y + distance + height / 2),
            (x - near - width / 2, y - near - height / 2),
            (x + near + width / 2, y - near - height / 2),
            (x + near + width / 2, y + near + height / 2),
            (x - near - width / 2, y + near + height / 2),
        ];
        areas.extend(middles.map(|(mx, my)| Area {
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

    const PLOT: Area = Area { left: 0, top: 0, right: 900, bottom: 600 };

    #[test]
    fn points_on_one_spot_get_labels_apart() {
        let labels = [((880, 20), "TPUv4, expert's plan"), ((880, 20), "TPUv4, our plan"), ((880, 24), "best found")];
        let placed = place(&labels, &[], PLOT);
        assert!(placed.iter().all(Option::is_some), "{placed:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn labels_never_overlap(points in prop::collection::vec((10..890_i32, 10..590_i32), 1..12)) {
            let labels: Vec<(Place, &str)> = points.iter().map(|p| (*p, "TPUv4, our plan")).collect();
            let placed: Vec<Area> = place(&labels, &points, PLOT).into_iter().flatten().collect();
            prop_assert_eq!(placed.len(), points.len());
            for (i, a) in placed.iter().enumerate() {
                prop_assert!(a.inside(&PLOT));
                prop_assert!(placed[..i].iter().all(|b| !a.overlaps(b)));
                prop_assert!(points.iter().all(|p| !a.holds(*p)));
            }
        }
    }
}
