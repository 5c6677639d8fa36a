//! coplace-sim simulates kernels on an accelerator, their schedule on its cores, collectives on a fabric, and the
//! pipeline of a training step. It makes no decisions and knows no models.

pub mod cores;
pub mod cost;
pub mod costed;
pub mod files;
mod grouped_errors;
pub mod hardware;
pub mod kernel;
pub mod limits;
pub mod names;
pub mod network;
pub mod pipeline;
pub mod scalar_fit;
pub mod schedule;
pub mod status;
pub mod units;

/// True if a network is sold with other built-in chips but not with this one. Chips of other hardware may join any
/// network.
#[must_use]
pub fn is_foreign_network(fabric: &network::Fabric, chip: &hardware::Accelerator) -> bool {
    chip.origin.built_in.as_deref().is_some_and(|built_in| !fabric.may_join_chip(built_in))
}
