//! Lower convex hulls.

/// Positions of the points on the lower convex hull. `points` have rising first and falling second coordinates.
pub(super) fn lower_hull(points: &[(f64, f64)]) -> Vec<usize> {
    let slope = |a: usize, b: usize| (points[a].1 - points[b].1) / (points[b].0 - points[a].0);
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
