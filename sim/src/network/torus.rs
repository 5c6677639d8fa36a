//! Groups on rings and tori.

use serde::{Deserialize, Serialize};

/// One dimension of a torus or mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TorusDim {
    /// Units along it.
    pub size: u32,
    /// True if the last unit links back to the first.
    pub wrap: bool,
}

/// The part of a group along one dimension.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct GroupExtent {
    /// Members along the dimension.
    pub members: u32,
    /// Units from one member to the next; this many sibling groups share every link.
    pub spacing: u32,
    /// True if the members close a ring over the wrap-around link.
    pub closed: bool,
}

impl GroupExtent {
    /// Returns the number of links that one member drives along this dimension, divided among the sibling groups: two
    /// on a closed ring of three or more, one on a line. A line's inner nodes have two links, but its ends have one and
    /// decide.
    pub fn links_per_member(&self) -> f64 {
        let links = if self.closed && self.members > 2 { 2.0 } else { 1.0 };
        links / f64::from(self.spacing)
    }

    /// Returns the number of steps of one pass (all-gather or reduce-scatter): both ways round a closed ring, end to
    /// end on a line.
    pub fn steps_of_pass(&self) -> u32 {
        let hops = if self.closed { self.members / 2 } else { self.members.saturating_sub(1) };
        hops.saturating_mul(self.spacing)
    }

    /// The load of the busiest link (the bisection) in an all-to-all in which every member holds one unit of data. It
    /// is in time units per unit of link rate: `g/8` on a closed ring (two links across), `g/4` on a line.
    pub fn exchange_load(&self) -> f64 {
        f64::from(self.members) / (4.0 * self.links_per_member())
    }
}

/// The extents of a group on up to three dimensions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupExtents {
    list: [GroupExtent; 3],
    len: usize,
}

impl GroupExtents {
    /// The extents, first dimension first.
    pub fn iter(&self) -> impl Iterator<Item = &GroupExtent> {
        self.list.iter().take(self.len)
    }

    fn push(&mut self, extent: GroupExtent) {
        if let Some(slot) = self.list.get_mut(self.len) {
            *slot = extent;
            self.len += 1;
        }
    }
}

/// Returns the extents of a group of `members` units, `spacing` apart in row-major numbering (first dimension fastest).
/// Dimensions that the group does not touch are left out; members beyond the torus extend the last dimension.
pub(crate) fn extents_of_group(dims: &[TorusDim], members: u32, spacing: u32) -> GroupExtents {
    let (mut left, mut spacing) = (members, spacing.max(1));
    let unused = GroupExtent { members: 1, spacing: 1, closed: false };
    let mut found = GroupExtents { list: [unused; 3], len: 0 };
    for (i, dim) in dims.iter().enumerate() {
        let last = i + 1 == dims.len();
        if spacing >= dim.size && !last {
            spacing = (spacing / dim.size).max(1);
            continue;
        }
        let room = if last { left } else { (dim.size / spacing).max(1) };
        let here = left.min(room);
        if here > 1 {
            let closed = dim.wrap && here.saturating_mul(spacing) == dim.size;
            found.push(GroupExtent { members: here, spacing, closed });
        }
        left = left.div_ceil(here.max(1));
        spacing = 1;
        if left <= 1 {
            break;
        }
    }
    found
}

/// Returns the most compact torus of `units` units within `limits`: the least sum of sides, then the shorter first
/// sides. A side wraps if it is a multiple of `wrap_multiple`. `None` if no shape fits.
pub(crate) fn compact_slice(limits: &[u32], wrap_multiple: u32, units: u32) -> Option<Vec<TorusDim>> {
    let mut best: Option<(u64, Vec<u32>)> = None;
    visit_shapes(limits, units, &mut Vec::new(), &mut |shape| {
        let sum = shape.iter().map(|&d| u64::from(d)).sum();
        if best.as_ref().is_none_or(|(s, _)| sum < *s) {
            best = Some((sum, shape.to_vec()));
        }
    });
    let dims = best?.1;
    Some(dims.into_iter().map(|size| TorusDim { size, wrap: size > 1 && size % wrap_multiple.max(1) == 0 }).collect())
}

/// Calls `found` with every factorisation of `units` into sides within `limits`, smaller first sides first.
fn visit_shapes(limits: &[u32], units: u32, prefix: &mut Vec<u32>, found: &mut impl FnMut(&[u32])) {
    let Some((&limit, rest)) = limits.split_first() else {
        if units == 1 {
            found(prefix);
        }
        return;
    };
    for side in (1..=limit.min(units)).filter(|side| units.is_multiple_of(*side)) {
        prefix.push(side);
        visit_shapes(rest, units / side, prefix, found);
        prefix.pop();
    }
}

/// True if a torus of these largest sides has slices that [`twisted_hops`] accepts. It needs three sides, and room for
/// the smallest `n x n x 2n` with closed sides, with the long side on any dimension.
pub(crate) fn can_twist(limits: &[u32], wrap_multiple: u32) -> bool {
    // A side of 1 has no link to shift.
    let n = wrap_multiple.max(2);
    limits.len() == 3 && limits.iter().all(|side| *side >= n) && limits.iter().any(|side| *side >= n.saturating_mul(2))
}

/// Returns the mean distance between the nodes of a twisted torus, each node itself included; `None` if the shape has
/// no twisted form.
///
/// With `n x n x 2n` both short sides' wrap-around links shift by `n` along the long one. With `n x 2n x 2n` the short
/// side's links shift by `n` along both (Camara et al., "Twisted Torus Topologies for Enhanced Interconnection
/// Networks", TPDS 2010). Under balanced routing the mean distance is the load of every link. Jouppi et al. (ISCA 2023)
/// measured an all-to-all gain over the plain torus of 1.63 on 4 x 4 x 8 and 1.31 on 4 x 8 x 8, where balanced routing
/// promises 1.75 and 1.39.
pub(crate) fn twisted_hops(dims: &[TorusDim]) -> Option<f64> {
    let sides: [u32; 3] = dims.iter().map(|d| d.size).collect::<Vec<_>>().try_into().ok()?;
    let n = *sides.iter().min()?;
    let long = |side: u32| side == 2 * n;
    let proper = dims.iter().all(|d| d.wrap) && sides.iter().all(|&s| s == n || long(s));
    if !proper || sides.iter().all(|&s| s == n) {
        return None;
    }
    let size = sides.iter().product::<u32>() as usize;
    let index = |x: [u32; 3]| (x[0] + sides[0] * (x[1] + sides[1] * x[2])) as usize;
    let mut distance = vec![u32::MAX; size];
    distance[0] = 0;
    let mut queue = std::collections::VecDeque::from([[0_u32; 3]]);
    let mut sum = 0.0;
    while let Some(x) = queue.pop_front() {
        let here = distance[index(x)];
        sum += f64::from(here);
        for d in 0..3 {
            for up in [true, false] {
                let mut y = x;
                let wraps = if up { x[d] + 1 == sides[d] } else { x[d] == 0 };
                y[d] = (x[d] + if up { 1 } else { sides[d] - 1 }) % sides[d];
                if wraps && !long(sides[d]) {
                    for e in (0..3).filter(|&e| long(sides[e])) {
                        // A shift by half a side is the same in both directions.
                        y[e] = (y[e] + n) % sides[e];
                    }
                }
                if distance[index(y)] == u32::MAX {
                    distance[index(y)] = here + 1;
                    queue.push_back(y);
                }
            }
        }
    }
    Some(sum / size as f64)
}
