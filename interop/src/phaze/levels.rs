//! The tables of the exact search at one tensor width: the best bottleneck behind every position, by number of stages
//! and plane.

use super::rows::StageLoadRows;

/// The least bottleneck of each suffix, by its first position. A level belongs to a number of stages, of which at least
/// a given number (the *plane*) are narrow. The value is infinite if no split fits or none is useful.
#[derive(Clone, Copy)]
pub(super) struct BottleneckLevel<'a> {
    pub value: &'a [f64],
    /// The first position of a finite value.
    pub from: usize,
}

pub(super) const fn lower(a: f64, b: f64) -> f64 {
    if a < b { a } else { b }
}

const fn higher(a: f64, b: f64) -> f64 {
    if a > b { a } else { b }
}

impl BottleneckLevel<'_> {
    /// Returns the least `max(load, value)` over the ends `from..=to` of the stage that begins at `first`; infinite if
    /// there is none.
    pub fn least_bottleneck(&self, rows: &StageLoadRows, first: usize, from: usize, to: usize) -> f64 {
        let from = from.max(self.from);
        if from > to {
            return f64::INFINITY;
        }
        let (values, loads) = (&self.value[from..=to], rows.loads_between(first, from, to));
        // Four minima in parallel, because the compiler may not reorder a single one for vector instructions.
        let mut least = [f64::INFINITY; 4];
        let (values4, loads4) = (values.chunks_exact(4), loads.chunks_exact(4));
        let mut total = f64::INFINITY;
        for (&value, &load) in values4.remainder().iter().zip(loads4.remainder()) {
            total = lower(total, higher(value, load));
        }
        for (values, loads) in values4.zip(loads4) {
            for lane in 0..4 {
                least[lane] = lower(least[lane], higher(values[lane], loads[lane]));
            }
        }
        lower(lower(least[0], least[1]), lower(least[2], lower(least[3], total)))
    }
}

/// A level that is being filled.
pub(super) struct LevelDraft {
    value: Vec<f64>,
    from: usize,
}

impl LevelDraft {
    /// Sets a value, unless it is above `cut` or infinite.
    pub fn set_value(&mut self, first: usize, bottleneck: f64, cut: f64) {
        if bottleneck <= cut && bottleneck < f64::INFINITY {
            self.value[first] = bottleneck;
            self.from = self.from.min(first);
        }
    }
}

/// The levels of every plane filled so far, and the last improvement found in them.
pub(super) struct LevelTable {
    /// Values of a level: one per position, and one for the end.
    length: usize,
    /// Values of all levels, one behind the other.
    values: Vec<f64>,
    /// `spans[plane][stages]`: where the level's values begin, and its first finite position.
    spans: Vec<Vec<(usize, usize)>>,
    pub found: Option<Completion>,
}

impl LevelTable {
    pub fn new(count: usize) -> Self {
        Self { length: count + 1, values: Vec::new(), spans: Vec::new(), found: None }
    }

    /// Begins the next plane. Its level 0 is never read, because a stage always comes before the end.
    pub fn begin_plane(&mut self) {
        self.spans.push(vec![(0, usize::MAX)]);
    }

    pub fn draft(&self) -> LevelDraft {
        LevelDraft { value: vec![f64::INFINITY; self.length], from: self.length }
    }

    /// Moves the draft into the table as the next level of the plane, and empties it.
    pub fn push_draft(&mut self, plane: usize, draft: &mut LevelDraft) {
        self.spans[plane].push((self.values.len(), draft.from));
        self.values.extend_from_slice(&draft.value);
        draft.value[draft.from.min(self.length)..].fill(f64::INFINITY);
        draft.from = self.length;
    }

    /// Returns a level; `None` if it is missing or has no finite value.
    pub fn level(&self, plane: usize, stages: usize) -> Option<BottleneckLevel<'_>> {
        let &(start, from) = self.spans.get(plane)?.get(stages)?;
        (from < self.length).then(|| BottleneckLevel { value: &self.values[start..start + self.length], from })
    }

    /// Returns the levels behind a stage of a plane: behind a narrow stage, which is the level of the plane below
    /// (`None` in plane 0), and behind any other stage.
    pub fn levels_behind(
        &self,
        plane: usize,
        stages: usize,
    ) -> (Option<BottleneckLevel<'_>>, Option<BottleneckLevel<'_>>) {
        (plane.checked_sub(1).and_then(|below| self.level(below, stages)), self.level(plane, stages))
    }

    /// True if no plan with at least `stages` stages is possible in the plane.
    pub fn is_exhausted(&self, plane: usize, stages: usize) -> bool {
        let some = |&(_, from): &(usize, usize)| from < self.length;
        let below = plane.checked_sub(1).is_some_and(|below| self.spans[below].iter().skip(stages).any(some));
        self.level(plane, stages).is_none() && !below
    }
}

/// A first stage `0..end` and the plan it completes.
pub(super) struct Completion {
    pub stages: usize,
    pub plane: usize,
    pub degree: usize,
    pub end: usize,
}
