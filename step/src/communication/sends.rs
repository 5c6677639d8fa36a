//! Sends of activations between the devices of a pipeline: the tier that each crosses, and its cost there.
//!
//! Ranks count tensor, context, data, pipeline (or pipeline before data), so neighbouring stages are a fixed number of
//! ranks apart. If a stage is smaller than a unit of the fabric (a node), some neighbours share a unit and others do
//! not. All ranks of a stage, in all pipelines, send at the same time, so a send takes the time of the farthest pair.

use crate::communication::contention::{Communication, OverlapWindow};
use crate::communication::network::StepNetwork;
use sim::network::MAX_TIERS;
use sim::units::Seconds;
use workloads::Layout;

/// A pipeline's sends, by the tier that they cross.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PipelineSends {
    /// Number of pairs of neighbouring devices that cross each tier, and the cost of a send across it.
    over: [(u32, Communication); MAX_TIERS],
}

impl PipelineSends {
    /// Returns the sends of a layout; `price` gives the cost of a send across a tier.
    pub fn new(network: &impl StepNetwork, layout: &Layout, price: impl Fn(usize) -> Communication) -> Self {
        let mut sends = Self::default();
        for next in 1..layout.pipeline {
            sends.over[network.tier_between(layout, next - 1, next)].0 += 1;
        }
        for (tier, (_, send)) in sends.over.iter_mut().enumerate().filter(|(_, (pairs, _))| *pairs > 0) {
            *send = price(tier);
        }
        sends
    }

    /// Returns whether any send leaves a node (a unit of the innermost tier).
    pub fn leave_node(&self) -> bool {
        self.over.iter().skip(1).any(|(pairs, _)| *pairs > 0)
    }

    /// Returns the exposed time of the sends beside a window of work. The stack hides the fraction `hidden` of the time
    /// that the window can save.
    pub fn exposed_behind(&self, window: OverlapWindow, hidden: f64) -> ExposedSends {
        ExposedSends { over: self.over.map(|(pairs, send)| (pairs, send.time - window.time_saved(&send) * hidden)) }
    }
}

/// Exposed time of a pipeline's sends, by the tier that they cross.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ExposedSends {
    over: [(u32, Seconds); MAX_TIERS],
}

impl ExposedSends {
    fn present_tiers(&self) -> impl Iterator<Item = (u32, Seconds)> + '_ {
        self.over.iter().copied().filter(|(pairs, _)| *pairs > 0)
    }

    /// Returns the shortest exposed send between neighbouring devices; zero without a pipeline. The last and the first
    /// device need no entry of their own: they cross the outermost tier exactly if some neighbours do.
    pub fn least_send(&self) -> Seconds {
        self.present_tiers().map(|(_, send)| send).reduce(Seconds::min).unwrap_or_default()
    }

    /// Returns the sum, over all pairs of neighbouring devices, of a send's excess over [`Self::least_send`].
    pub fn excess_over_least(&self) -> Seconds {
        let least = self.least_send();
        self.present_tiers().map(|(pairs, send)| (send - least) * f64::from(pairs)).sum()
    }

    /// Returns the exposed time of a send between the devices `a` and `b` of the pipeline, in either direction.
    pub fn time_between(&self, network: &impl StepNetwork, layout: &Layout, a: u32, b: u32) -> Seconds {
        self.over[network.tier_between(layout, a, b)].1
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::communication::network::outermost_tier_between;
    use sim::network::Fabric;
    use workloads::RankOrder;

    /// Returns the tiers between neighbours in nodes of 8, and on the way back to the first.
    fn tiers(layout: Layout) -> Vec<usize> {
        let fabric = Fabric::built_in("selene_hdr200x8").unwrap();
        (1..layout.pipeline)
            .map(|next| (next - 1, next))
            .chain([(layout.pipeline - 1, 0)])
            .map(|(a, b)| outermost_tier_between(&fabric, &layout, a, b))
            .collect()
    }

    #[test]
    fn stages_smaller_than_a_node_send_inside_it_where_it_holds_both() {
        let layout = Layout { tensor: 2, pipeline: 8, ..Layout::default() };
        assert_eq!(tiers(layout), [0, 0, 0, 1, 0, 0, 0, 1], "four stages a node");
        let layout = Layout { data: 2, ..layout };
        assert_eq!(tiers(layout), [0, 1, 0, 1, 0, 1, 0, 1], "data-parallel ranks between");
        let layout = Layout { order: RankOrder::PipelineFirst, ..layout };
        assert_eq!(tiers(layout), [0, 0, 0, 1, 0, 0, 0, 1]);
        let whole = Layout { tensor: 8, pipeline: 3, data: 4, ..Layout::default() };
        assert_eq!(tiers(whole), [1, 1, 1]);
        let within = Layout { tensor: 2, pipeline: 4, data: 4, order: RankOrder::PipelineFirst, ..Layout::default() };
        assert_eq!(tiers(within), [0, 0, 0, 0], "a pipeline a node");
    }

    #[test]
    fn the_worst_pipeline_counts() {
        // Stages of 2 in pipelines of 6 ranks. The first pipeline crosses nowhere, the second between its first and
        // second stage, the third between its second and third.
        let layout = Layout { tensor: 2, pipeline: 3, data: 4, order: RankOrder::PipelineFirst, ..Layout::default() };
        assert_eq!(tiers(layout), [1, 1, 1]);
        assert_eq!(tiers(Layout { data: 1, ..layout }), [0, 0, 0]);
        assert_eq!(tiers(Layout { data: 2, ..layout }), [1, 0, 1]);
    }

    #[test]
    fn sends_are_priced_by_the_tier_they_cross() {
        let fabric = Fabric::built_in("selene_hdr200x8").unwrap();
        let price = |tier: usize| Communication { time: Seconds([2.0, 8.0][tier]), ..Communication::default() };
        let layout = Layout { tensor: 2, pipeline: 8, ..Layout::default() };
        let exposed = PipelineSends::new(&fabric, &layout, price).exposed_behind(OverlapWindow::default(), 0.0);
        assert_eq!(exposed.least_send(), Seconds(2.0));
        assert_eq!(exposed.excess_over_least(), Seconds(8.0 - 2.0), "one pair of seven crosses");
        assert_eq!(exposed.time_between(&fabric, &layout, 3, 4), Seconds(8.0));
        assert_eq!(exposed.time_between(&fabric, &layout, 7, 0), Seconds(8.0));
        let alone = PipelineSends::new(&fabric, &Layout { pipeline: 1, ..layout }, price);
        assert_eq!(alone, PipelineSends::default());
        let whole = Layout { tensor: 8, ..layout };
        let exposed = PipelineSends::new(&fabric, &whole, price).exposed_behind(OverlapWindow::default(), 0.0);
        assert_eq!((exposed.least_send(), exposed.excess_over_least()), (Seconds(8.0), Seconds::ZERO));
    }
}
