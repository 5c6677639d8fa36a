//! Routes: which shared levels a kernel's data crosses between the device's memory and the cores.
//!
//! Data crosses the device's memory and every cache. A scratchpad has a path around it, and software chooses for each
//! kernel whether data crosses it. Data that is used once gains nothing there. So only operands that are used again
//! cross a scratchpad, and only on routes that include it. A kernel takes its fastest route, so another level or path
//! never makes it slower.

use super::level_rates::LevelRates;

/// The shared levels that a kernel's operands cross.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Route {
    /// Bit i stands for level i of `SpanResources::shared`.
    levels: u8,
    /// Seconds of latency beyond those of the shortest route.
    pub(super) extra_latency: f64,
}

impl Route {
    /// Returns all routes through these levels. The first is the shortest: it crosses only the levels that have no path
    /// around them.
    pub(super) fn list_routes(shared: &[LevelRates]) -> Vec<Self> {
        let mut routes = vec![Self { levels: 0, extra_latency: 0.0 }];
        for (i, level) in shared.iter().take(8).enumerate() {
            let through = |route: &Self| Self { levels: route.levels | 1 << i, ..*route };
            let crossing: Vec<Self> = routes.iter().map(through).collect();
            if level.bypass { routes.extend(crossing) } else { routes = crossing }
        }
        let least = routes.first().map_or(0.0, |shortest| shortest.latency_seconds(shared));
        routes.iter().map(|route| Self { extra_latency: route.latency_seconds(shared) - least, ..*route }).collect()
    }

    /// True if the route crosses this level.
    #[inline]
    pub(super) fn crosses_level(self, level: usize) -> bool {
        self.levels >> level & 1 == 1
    }

    /// Returns the next level inwards that the route crosses; `None` if there is none.
    #[inline]
    pub(super) fn next_level(self, level: usize) -> Option<usize> {
        let inner = u32::from(self.levels) >> (level + 1);
        (inner != 0).then(|| level + 1 + inner.trailing_zeros() as usize)
    }

    /// Returns the levels that the route crosses, outermost first, with their positions.
    pub(super) fn levels_crossed(self, shared: &[LevelRates]) -> impl DoubleEndedIterator<Item = (usize, &LevelRates)> {
        shared.iter().enumerate().filter(move |(level, _)| self.crosses_level(*level))
    }

    /// Returns the longest latency of a level on the route.
    pub(super) fn latency_seconds(self, shared: &[LevelRates]) -> f64 {
        self.levels_crossed(shared).map(|(_, level)| level.latency).fold(0.0, f64::max)
    }
}
