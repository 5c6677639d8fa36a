//! Operators that run in a state, and the work started since all cores were last idle.

use super::demand::CoreDemand;

/// The slot of an operator without a core index.
pub(super) const NO_SLOT: u8 = u8::MAX;

/// An operator that runs in a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RunningOperator {
    pub finish: u64,
    pub op: u8,
    pub exclusive: bool,
    pub slot: u8,
    /// The cores and links that it holds.
    pub need: CoreDemand,
    /// The sum of the shortest latencies of all operators that ran in parallel with it so far.
    pub beside: u64,
}

/// The operators that run at a time, sorted by their end.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunsAt<'a> {
    pub time: u64,
    pub runs: &'a [RunningOperator],
}

/// The stretch since all cores and links were last idle.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SinceIdle {
    /// The time of that idle moment.
    pub idle: u64,
    /// The sum of the shortest latencies of the operators that started since.
    pub work: u64,
}
