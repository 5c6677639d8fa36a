//! Lower convex hulls.

/// Bytes that are kept, and the seconds that this costs.
#[derive(Debug, Clone, Copy)]
pub(super) struct StashCost {
    pub bytes: f64,
    pub seconds: f64,
}

impl StashCost {
    /// The seconds that a byte more saves on the way to `more`.
    pub fn saving_towards(self, more: Self) -> f64 {
        (self.seconds - more.seconds) / (more.bytes - self.bytes)
    }
}

/// Positions of the points on the lower convex hull. `points` have rising bytes and falling seconds.
pub(super) fn lower_hull(points: &[StashCost]) -> Vec<usize> {
    let slope = |a: usize, b: usize| points[a].saving_towards(points[b]);
    let mut hull: Vec<usize> = Vec::new();
    for next in 0..points.len() {
        while let [.., a, b] = hull[..] {
            if slope(a, b) > slope(a, next) {
                break;
            }
            hull.pop();
        }
        hull.push(next);
    }
    hull
}
