//! All-to-all: every member sends a distinct share to every other, or items to the members chosen for them.
//!
//! NCCL builds it from sends and receives, which run in parallel (NCCL, `src/enqueue.cc`, point-to-point tasks). They
//! have two of its three protocols: bulk (Simple) and low latency (LL). Each peer has its own channels. So all bulk
//! transfers together pay one startup, and a low-latency message is as fast as its peer's channels. The member's share
//! for itself is copied in parallel. A tier with measured exchanges has its own scalars for them.

use super::{
    Algorithm, CollectiveDraft, CollectivePricer, GroupLevel, MAX_TIERS, TierDemand, group_members,
    time_of_chunked_transfer,
};
use crate::kernel::PartChoice;
use crate::network::Fabric;
use crate::network::dispatch;
use crate::network::fabric::ExchangeProtocol;

impl CollectivePricer<'_> {
    /// Returns the cost of an exchange. The shares for all tiers travel at once.
    pub(super) fn price_direct_exchange(
        &self,
        levels: &[GroupLevel],
        size: f64,
        choice: Option<PartChoice>,
    ) -> CollectiveDraft {
        let n = group_members(levels);
        let mut demands = [TierDemand::NONE; MAX_TIERS];
        for (demand, level) in demands.iter_mut().zip(levels) {
            let (share, messages) = dispatch::share_leaving_unit(level, n, choice);
            let rate = self.effective_rate(level, Fabric::exchange_rate);
            *demand = TierDemand { tier: level.tier, bytes: size * share, rate, steps: 1.0, messages: messages - 1.0 };
        }
        // A member copies its share for itself. Without measured exchanges this copy follows the transfers.
        let beside = levels.first().is_some_and(|level| self.fabric.tiers[level.tier].exchange.is_some());
        let copy = if beside { 0.0 } else { self.price_final_copy(levels, size) };
        self.price_pipelined(Algorithm::Direct, &demands[..levels.len()], copy)
    }

    /// Returns the startup and transfer seconds of a tier's messages, for bulk and for low latency.
    pub(super) fn time_of_exchange(&self, demand: &TierDemand, own: ExchangeProtocol) -> [(f64, f64); 2] {
        let injection = self.fabric.tiers[demand.tier].low_latency.map_or(own.step.0, |low| low.step.0);
        let (nominal, peers) = (demand.bytes * self.flows / demand.rate, demand.messages.max(0.0) + 1.0);
        let to_one = demand.bytes * self.flows / peers / own.peer_rate.0;
        [
            (own.step.0, time_of_chunked_transfer(nominal / own.fraction, own.chunk.0)),
            (injection * peers, to_one.max(nominal)),
        ]
    }
}
