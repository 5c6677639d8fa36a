//! How a device runs the kernels of a pass: one after the other, or by the operator schedule ([`scheduled`]). Both give the same
//! [`PassProfile`](crate::PassProfile).

pub(crate) mod detail;
pub(crate) mod scheduled;
mod shared_ports;

/// How exactly kernels are timed. What is not exact bounds from below: a step of such passes is one that no mapping and no schedule beats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fidelity {
    /// Contractions at their peak and compulsory traffic, vector work and collectives exactly: microseconds per kernel are too many.
    Peak,
    /// Besides, the folds that arrays cannot fill and what the cores' buffers make operands cross the shared one.
    Buffered,
    /// Every kernel mapped, and as fast as it can run; nothing scheduled.
    Mapped,
    /// Mapped and, where the stack says so, scheduled: what a step takes.
    Exact,
}
