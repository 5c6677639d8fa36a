//! The chain with its repeats: positions, prefix sums, and which ranges are equal.

use super::profile::{ChainProfile, Segment};

/// A run of pieces of one segment inside a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share {
    pub segment: usize,
    pub count: usize,
}

pub(super) struct Chain<'a> {
    pub profile: &'a ChainProfile,
    /// Position of each segment's first piece, and at the end the chain's length.
    starts: Vec<usize>,
    /// Segment of each piece.
    segment_of: Vec<u32>,
    /// Forward plus backward seconds of the first n pieces.
    pub work: Vec<f64>,
    /// The least exposed time of any cut.
    pub least_boundary: f64,
    /// The longest piece.
    pub longest: f64,
}

impl<'a> Chain<'a> {
    pub fn new(profile: &'a ChainProfile) -> Self {
        let mut starts = vec![0];
        let (mut segment_of, mut work) = (Vec::new(), vec![0.0]);
        let (mut longest, mut done) = (0.0_f64, 0.0);
        for (index, segment) in profile.segments.iter().enumerate() {
            let seconds = unit_seconds(segment);
            longest = longest.max(seconds);
            work.extend((1..=segment.repeat).map(|n| done + n as f64 * seconds));
            done += segment.repeat as f64 * seconds;
            segment_of.extend((0..segment.repeat).map(|_| index as u32));
            starts.push(segment_of.len());
        }
        let mut chain = Self { profile, starts, segment_of, work, least_boundary: 0.0, longest };
        let cuts = (1..chain.len()).map(|position| chain.boundary(position));
        chain.least_boundary = cuts.reduce(f64::min).unwrap_or(0.0);
        chain
    }

    /// Pieces in the chain.
    pub fn len(&self) -> usize {
        self.segment_of.len()
    }

    /// Seconds of the whole chain for one micro-batch, nothing recomputed or sent.
    pub fn total(&self) -> f64 {
        self.work[self.len()]
    }

    /// Exposed seconds on each side of a cut before piece `position`; nothing at the chain's ends.
    pub fn boundary(&self, position: usize) -> f64 {
        if position == 0 || position >= self.len() {
            return 0.0;
        }
        self.profile.segments[self.segment_of[position - 1] as usize].boundary.0
    }

    pub fn segment(&self, index: usize) -> &Segment {
        &self.profile.segments[index]
    }

    /// What the pieces `first..end` are.
    pub fn shares(&self, first: usize, end: usize) -> impl Iterator<Item = Share> + Clone + '_ {
        let from = self.segment_of[first] as usize;
        let to = self.segment_of[end - 1] as usize;
        (from..=to)
            .map(move |segment| Share { segment, count: self.starts[segment + 1].min(end) - self.starts[segment].max(first) })
    }

    /// The first range with the same pieces: ranges inside one segment are moved to its start.
    pub fn canonical(&self, first: usize, end: usize) -> (usize, usize) {
        let segment = self.segment_of[first];
        if segment == self.segment_of[end - 1] {
            let start = self.starts[segment as usize];
            return (start, start + end - first);
        }
        (first, end)
    }

    /// Seconds of `first..end` for one micro-batch without recomputation and transfers, the same for equal ranges.
    pub fn seconds(&self, first: usize, end: usize) -> f64 {
        self.shares(first, end).map(|share| share.count as f64 * unit_seconds(self.segment(share.segment))).sum()
    }

    /// The longest range from `first` whose work is at most `limit` (up to rounding): its end.
    pub fn reach(&self, first: usize, limit: f64) -> usize {
        let most = self.work[first] + limit * (1.0 + 1e-12);
        first + self.work[first + 1..].partition_point(|&work| work <= most)
    }
}

fn unit_seconds(segment: &Segment) -> f64 {
    segment.forward.0 + segment.backward.0
}
