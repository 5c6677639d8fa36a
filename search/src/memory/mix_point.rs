//! A policy as an item of a stage's mix, and the mix that was found.

/// The bytes and time of a policy, for one layer and one micro-batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MixPoint {
    /// Bytes kept on the device.
    pub kept: u64,
    /// Bytes kept in the host's memory.
    pub host: u64,
    /// Bytes kept in storage.
    pub storage: u64,
    /// Workspace bytes while one layer runs.
    pub working: u64,
    /// Seconds of both passes.
    pub time: f64,
}

/// The best mix of a stage.
#[derive(Debug, Clone, PartialEq)]
pub struct StageMix {
    /// Policies that at least one layer follows, by index into the problem's policies, with their number of layers; the
    /// smallest stash first.
    pub counts: Vec<(usize, u64)>,
    /// Seconds of both passes of all layers, for one micro-batch.
    pub time: f64,
    /// Lower bound on the seconds of any mix.
    pub bound: f64,
}
