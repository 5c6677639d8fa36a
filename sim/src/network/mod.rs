//! The network: fabrics as data files, and the cost of a collective on a fabric.
//!
//! # Model
//! A [`Fabric`] is a list of tiers from the innermost (an NVLink node, an ICI slice) outward (InfiniBand, RoCE, a
//! data-centre network). A tier joins units of the tier below. Every *device* owns a port into every tier, with a
//! bandwidth per direction. As in NCCL, several protocols can move a message; the fastest one counts:
//!
//! - Bulk: `launch + steps * step + w + 2 * sqrt(chunk * w) + shard / final_copy`, with
//!   `w = link bytes / (bandwidth * achieved fraction)`. The square root is the cost of cutting a message into
//!   pipelined chunks at the best chunk size. With `chunk` seconds per chunk, `k` chunks cost `k * chunk + w / k`,
//!   which is least at `2 * sqrt(chunk * w)`. This is why bandwidth still ramps at a gigabyte. The last hop of a shard
//!   is an exposed local copy.
//! - Lines of 128 bytes (NCCL's LL128), where a tier has them: as bulk, with their own step, fraction and chunk.
//! - Low latency (NCCL's LL, flags travel with the data):
//!   `launch + steps * low_latency_step + link bytes / (bandwidth * low_latency_fraction)`.
//!
//! An all-to-all consists of parallel sends and receives. If a tier has scalars for it, bulk takes `launch +
//! exchange_step + w + 2 * sqrt(exchange_chunk * w)` and low latency `launch + peers * low_latency_step + max(bytes to
//! one / exchange_peer, link bytes / bandwidth)`. It has no protocol of lines.
//!
//! The scalars in these formulas are physical properties of a tier, and its file gives them. Nothing else depends on
//! the message size.
//!
//! # Algorithms
//! Each group and message takes the cheapest algorithm that the tiers allow:
//! - Ring: pipelined through all tiers; the slowest tier decides.
//! - Tree: a chain inside the innermost tier and binary trees between units, like NCCL's.
//! - Hierarchical: reduce-scatter inward, all-reduce on the outermost tier, all-gather back; the phases add.
//! - Dimension-wise on tori: all dimensions at once on disjoint parts of the message (Scaling Book, "Collectives");
//!   twisted tori are optional.
//! - In-network: the switch reduces and multicasts. A device sends `s (1 + 1/n)` instead of `2 s (n-1)/n`. Between
//!   units, trees may join the innermost switches (NCCL's NVLSTree).
//! - Direct: all-to-all. Items for several members go copy by copy or once per unit, see
//!   [`PartChoice`](crate::kernel::PartChoice).
//! - Point to point.
//!
//! # Contention
//! All groups of a parallel axis run at once, so a cost is that of a group *in parallel with its siblings*:
//! - On switches every device has its own port, and siblings do not share links. A node's NICs are counted per device:
//!   the node's nominal bandwidth divided by its number of devices.
//! - On a torus, members `h` apart along a dimension send through the nodes between them. `h` sibling groups share
//!   every link, which leaves each `1/h`.
//! - On unequal measured links, every sibling group uses the links of its members (the slowest of the ring through
//!   their units, in rank order) and the fastest algorithm there. The slowest group decides. Equal links form a switch.
//!
//! Concurrent axes share ports: [`Fabric::cost_of_collective_sharing`] takes the number of flows.
//!
//! # Measured error
//! The scalars were fitted to the 122 measured all-reduces in `sim/tests/data/collectives.csv`. Mean absolute error
//! over the same measurements:
//!
//! | fabric | from 16 MiB | from 4 KiB |
//! |---|---|---|
//! | A100 (2, 4, 8 ranks) | 1.8 % | 12.1 % |
//! | H200 (8 ranks, in-switch) | 1.4 % | 3.2 % |
//!
//! The same collective on two A100 nodes of the data differs by up to 19 % at 16 MiB and 14 % at 128 MiB. Collectives
//! between nodes and on TPU slices use nominal bandwidths, NCCL's own latencies and an assumed fraction; the files say
//! so.
//!
//! # Not modelled
//! Adaptive routing, congestion beyond the shares above, and the compute units that a collective takes.

mod collective;
mod dispatch;
mod document;
mod error;
mod fabric;
mod file;
mod level;
mod links;
mod matrix;
mod parts;
mod placed;
mod streams;
mod system_price;
mod tables;
#[cfg(test)]
mod tests;
mod torus;
mod verify;
mod verify_system;

pub use collective::{Algorithm, CollectiveCost};
pub use document::FabricDocument;
pub use error::{FabricFault, NetworkError};
pub use fabric::MAX_TIERS;
pub use fabric::{ExchangeProtocol, Fabric, InNetwork, LineProtocol, LowLatency, Tier, Topology};
pub use level::GroupSpread;
pub use links::{LinksError, MOST_UNITS};
pub use matrix::LinkMatrix;
pub use parts::{FabricSystem, TierParts};
pub use placed::{GroupPlacement, PlacementFinder, sibling_groups};
pub use streams::StreamTimes;
pub use system_price::{SystemPrice, UnpricedFabric};
pub use torus::TorusDim;
