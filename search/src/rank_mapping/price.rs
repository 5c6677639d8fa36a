//! Prices a step's collectives for given placements of their groups.

use super::traffic::{CollectiveRequest, StepTraffic};
use sim::kernel::CollectiveKind;
use sim::network::{Fabric, GroupSpread};
use sim::units::{Bytes, BytesPerSecond};
use std::collections::HashMap;
use step::{Communication, communication_of_cost};

/// Prices collectives by spread and link, and caches the prices.
#[derive(Debug, Clone)]
pub(super) struct CollectivePrices<'a> {
    fabric: &'a Fabric,
    asks: &'a [CollectiveRequest],
    send: Bytes,
    known: HashMap<(usize, GroupSpread, u64), Communication>,
}

/// The index, among the requests, that stands for sends between stages.
pub(super) const SEND: usize = usize::MAX;

impl<'a> CollectivePrices<'a> {
    pub fn new(traffic: &'a StepTraffic<'_>, fabric: &'a Fabric) -> Self {
        Self { fabric, asks: &traffic.asks, send: traffic.send.unwrap_or(Bytes::ZERO), known: HashMap::new() }
    }

    /// The cost of a request in a group with this spread, over links of `link` bytes per second between units.
    pub fn price_of(&mut self, ask: usize, spread: GroupSpread, link: f64) -> Communication {
        let (fabric, asks, send) = (self.fabric, self.asks, self.send);
        *self.known.entry((ask, spread, link.to_bits())).or_insert_with(|| {
            let (kind, bytes) =
                if ask == SEND { (CollectiveKind::SendRecv, send) } else { (asks[ask].kind, asks[ask].bytes) };
            communication_of_cost(&fabric.cost_of_spread_collective(kind, bytes, spread, BytesPerSecond(link)))
        })
    }
}
