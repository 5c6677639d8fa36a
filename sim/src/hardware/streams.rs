//! The slowdown of concurrent kernels, collectives and host copies by one another: few scalars per chip and its host.

use super::library::FittedScalar;
use serde::{Deserialize, Serialize};

/// The relative increase of a stream's time while another stream runs: 0.2 is a fifth longer. Slowdowns by several
/// streams add. Without measurements all are 0.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct StreamContention {
    /// Kernels during a collective inside the fast domain, which takes cores, cache and memory bandwidth.
    pub kernel_by_collective: f64,
    /// Kernels during a collective that crosses the network between nodes.
    pub kernel_by_network: f64,
    /// A collective inside the fast domain during kernels.
    pub collective_by_kernel: f64,
    /// A collective between nodes during a host copy; both share the host's bus.
    pub network_by_copy: f64,
    /// Copies to the host during a collective between nodes.
    pub copy_out_by_network: f64,
    /// Copies to the device during copies to the host.
    pub copy_in_by_copy_out: f64,
    /// Copies to the host during copies to the device.
    pub copy_out_by_copy_in: f64,
}

/// Largest slowdown of one stream by another: ten times its own time.
const MOST: f64 = 10.0;

impl StreamContention {
    /// All scalars. A file that has the table gives all of them.
    pub const PARAMETERS: [FittedScalar<Self>; 7] = [
        slowdown_scalar("kernel_by_collective", |s| s.kernel_by_collective, |s, v| s.kernel_by_collective = v),
        slowdown_scalar("kernel_by_network", |s| s.kernel_by_network, |s, v| s.kernel_by_network = v),
        slowdown_scalar("collective_by_kernel", |s| s.collective_by_kernel, |s, v| s.collective_by_kernel = v),
        slowdown_scalar("network_by_copy", |s| s.network_by_copy, |s, v| s.network_by_copy = v),
        slowdown_scalar("copy_out_by_network", |s| s.copy_out_by_network, |s, v| s.copy_out_by_network = v),
        slowdown_scalar("copy_in_by_copy_out", |s| s.copy_in_by_copy_out, |s, v| s.copy_in_by_copy_out = v),
        slowdown_scalar("copy_out_by_copy_in", |s| s.copy_out_by_copy_in, |s, v| s.copy_out_by_copy_in = v),
    ];
}

const fn slowdown_scalar(
    key: &'static str,
    get: fn(&StreamContention) -> f64,
    set: fn(&mut StreamContention, f64),
) -> FittedScalar<StreamContention> {
    FittedScalar { key, min: 0.0, max: MOST, get, set }
}
