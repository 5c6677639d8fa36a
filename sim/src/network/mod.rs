//! The network: fabrics as data files, and what a collective costs on one.
//!
//! # Model
//! A [`Fabric`] is a list of tiers from the innermost (an NVLink node, an ICI slice) outward (InfiniBand, RoCE, a data-centre
//! network). A tier joins units of the tier below; every *device* owns a port into every tier, with a bandwidth per
//! direction. Two protocols move a message, as in NCCL; the faster one is taken:
//!
//! - bulk: `launch + steps * step + w + 2 * sqrt(chunk * w) + shard / final_copy`, with `w = link bytes / (bandwidth *
//!   achieved fraction)`. The square root is what cutting a message into pipelined chunks costs when the chunk size is
//!   chosen best: with `chunk` seconds per chunk, `k` chunks cost `k * chunk + w / k`, least at `2 * sqrt(chunk * w)`. It
//!   is why bandwidth still ramps at a gigabyte. The last hop of a shard is a local copy that no link step hides.
//! - lines of 128 bytes (NCCL's LL128), where a tier has them: as bulk, with a step, fraction and chunk of their own;
//! - low latency (NCCL's LL, flags travel with the data): `launch + steps * low_latency_step + link bytes / (bandwidth *
//!   low_latency_fraction)`.
//!
//! An all-to-all is sends and receives side by side. Where a tier says how these run, in bulk they take `launch + exchange_step + w + 2 * sqrt(exchange_chunk * w)` and
//! under low latency `launch + peers * low_latency_step + bytes to one / exchange_peer`; there are no lines.
//!
//! All are physical scalars of the tier, in its file; nothing depends on a message size otherwise.
//!
//! # Algorithms
//! Ring (pipelined through all tiers: the slowest tier decides), tree (chain inside the innermost tier, binary between
//! units, as NCCL's), hierarchical (reduce-scatter inward, all-reduce on top, all-gather back; phases add), dimension-wise
//! on tori (all dimensions at once on disjoint parts of the message; Scaling Book, "Collectives"; twisted tori on request), in-network (the switch
//! reduces and multicasts: a device sends `s (1 + 1/n)` instead of `2 s (n-1)/n`), direct (all-to-all; items that go to several
//! members copy by copy or once per unit, see [`Choice`](crate::kernel::PartChoice)), point to point. The
//! cheapest that the tiers allow is taken, per group and message.
//!
//! # Contention
//! All groups of a parallel axis run at once, so a cost is that of a group *beside its siblings*. On switches every
//! device has its own port and siblings do not meet (a node's NICs are counted per device: nominal bandwidth of
//! the node over its devices). On a torus, members `h` apart along a dimension send through the nodes between them: `h`
//! sibling groups share every link, which leaves each `1/h`. On measured links that differ every sibling group is priced on the links that its members
//! use (the slowest of the ring through their units, in rank order), by the algorithm that takes least there, and the slowest group decides; links
//! that are all alike are a switch.
//! Different axes that run at the same time share ports: [`Fabric::cost_of_collective_sharing`] takes the number of flows.
//!
//! # Measured error
//! Mean absolute error over the 122 measured all-reduces in `sim/tests/data/collectives.csv`, which the scalars were fitted on:
//! A100 (2, 4, 8 ranks) 1.8 % from 16 MiB and 12.1 % from 4 KiB, H200 (8 ranks, in-switch) 1.4 % and 3.2 %. The same
//! collective on two A100 nodes of the data differs by up to 19 % at 16 MiB and 14 % at 128 MiB. Collectives between nodes and
//! on TPU slices rest on nominal bandwidths, NCCL's own latencies and an assumed fraction: the files say so.
//!
//! # Not modelled
//! Adaptive routing and congestion beyond the shares above, the compute units that a collective takes.

mod collective;
mod dispatch;
mod document;
mod error;
mod fabric;
mod file;
mod level;
mod links;
mod matrix;
mod placed;
mod streams;
#[cfg(test)]
mod tests;
mod torus;
mod verify;

pub use collective::{Algorithm, CollectiveCost, MAX_TIERS};
pub use document::FabricDocument;
pub use error::{FabricFault, NetworkError};
pub use fabric::{ExchangeProtocol, Fabric, InNetwork, LineProtocol, LowLatency, Tier, Topology};
pub use level::GroupSpread;
pub use links::{LinksError, MOST_UNITS};
pub use matrix::LinkMatrix;
pub use placed::{GroupPlacement, PlacementFinder, sibling_groups};
pub use streams::StreamTimes;
pub use torus::TorusDim;
