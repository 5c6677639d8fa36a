//! Mutual slowdown of concurrent work on a device: kernels, a collective, copies to and from the host.
//! [`sim::network::StreamTimes`] simulates any number of streams. This module has the closed form for work beside one
//! communication.
//!
//! When both run, kernels have `1 / (1 + a)` of their pace alone, and the collective has `1 / (1 + b)`. For work `W`
//! and a communication `C`, the later end is `max(W + C a (1 + b) / (1 + a), C + W b (1 + a) / (1 + b))`. It grows with
//! `W`, `C`, `a` and `b`, so slowdown makes no step faster and a faster link makes none slower. It equals `W + C` minus
//! [`MutualSlowdown::value_of_hidden_second`] times the hidden time, `min(C, W (1 + a) / (1 + b))`.

use serde::{Deserialize, Serialize};
use sim::hardware::StreamContention;
use sim::units::Seconds;

/// Relative slowdown of a communication and of concurrent work: 0.2 means that an operation takes a fifth longer.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct MutualSlowdown {
    /// Slowdown of kernels by the communication.
    pub kernels: f64,
    /// Slowdown of the communication by kernels.
    pub by_kernels: f64,
    /// Slowdown of the communication by copies from or to the host.
    pub by_copies: f64,
    /// Slowdown of copies to the host by the communication.
    pub copies_out: f64,
}

impl MutualSlowdown {
    /// Returns the slowdown of a collective on a chip: between nodes, or inside the fast domain.
    #[must_use]
    pub fn of_collective(streams: &StreamContention, between_nodes: bool) -> Self {
        if between_nodes {
            let copies_out = streams.copy_out_by_network;
            return Self {
                kernels: streams.kernel_by_network,
                by_kernels: 0.0,
                by_copies: streams.network_by_copy,
                copies_out,
            };
        }
        Self { kernels: streams.kernel_by_collective, by_kernels: streams.collective_by_kernel, ..Self::default() }
    }

    /// Returns, for each kind of slowdown, the larger one of two communications.
    pub(crate) fn max_of_each(self, other: Self) -> Self {
        Self {
            kernels: self.kernels.max(other.kernels),
            by_kernels: self.by_kernels.max(other.by_kernels),
            by_copies: self.by_copies.max(other.by_copies),
            copies_out: self.copies_out.max(other.copies_out),
        }
    }

    /// Returns the seconds of communication that fit beside a second of work.
    pub(crate) fn room_per_second(&self) -> f64 {
        (1.0 + self.kernels) / (1.0 + self.by_kernels)
    }

    /// Returns the time saved per hidden second. It is zero if `kernels * by_kernels` is at least 1, for instance if
    /// both run at half their pace or less. They then run in sequence.
    pub(crate) fn value_of_hidden_second(&self) -> f64 {
        (1.0 - self.kernels * (1.0 + self.by_kernels) / (1.0 + self.kernels)).max(0.0)
    }

    /// Returns the time that concurrent copies from and to the host add to a communication. `alone` is the
    /// communication's time without them.
    pub(crate) fn delay_by_copies(&self, alone: Seconds, [copy_in, copy_out]: [Seconds; 2]) -> Seconds {
        let copying = copy_in + copy_out * (1.0 + self.copies_out);
        (copying * (self.by_copies / (1.0 + self.by_copies))).min(alone * self.by_copies)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::communication::contention::{Communication, OverlapWindow};
    use proptest::prelude::*;
    use sim::network::StreamTimes;

    fn contention(scalars: [f64; 4]) -> StreamContention {
        let [kernel_by_collective, collective_by_kernel, kernel_by_network, network_by_copy] = scalars;
        StreamContention {
            kernel_by_collective,
            collective_by_kernel,
            kernel_by_network,
            network_by_copy,
            ..StreamContention::default()
        }
    }

    /// Returns the time of work with a concurrent communication.
    fn together(work: f64, communication: f64, slowing: MutualSlowdown, copies: [f64; 2]) -> f64 {
        let window = OverlapWindow { time: Seconds(work), copies: copies.map(Seconds), ..OverlapWindow::default() };
        let communication = Communication { time: Seconds(communication), slowing, ..Communication::default() };
        (window.time + communication.time - window.time_saved(&communication)).0
    }

    proptest! {
        #[test]
        fn it_is_what_the_streams_take(
            work in 0.1_f64..10.0,
            send in 0.1_f64..10.0,
            copy in 0.0_f64..10.0,
            scalars in [0.0_f64..1.0, 0.0_f64..1.0, 0.0_f64..1.0, 0.0_f64..4.0],
        ) {
            let contention = contention(scalars);
            for between_nodes in [false, true] {
                let slowing = MutualSlowdown::of_collective(&contention, between_nodes);
                let streams = StreamTimes { kernels: Seconds(work), collective: Seconds(send), between_nodes, ..StreamTimes::default() };
                let (rule, played) = (together(work, send, slowing, [0.0; 2]), streams.time_together(&contention).0);
                prop_assert!((rule - played).abs() < 1e-9, "{between_nodes}: {rule} {played}");
            }
            // If no kernel is slowed, a copy that ends before the work only delays the network.
            let contention = StreamContention { kernel_by_network: 0.0, ..contention };
            let copy = copy.min(work);
            let streams = StreamTimes {
                kernels: Seconds(work), collective: Seconds(send), between_nodes: true, copy_in: Seconds(copy), ..StreamTimes::default()
            };
            let rule = together(work, send, MutualSlowdown::of_collective(&contention, true), [copy, 0.0]);
            let played = streams.time_together(&contention).0;
            prop_assert!((rule - played).abs() < 1e-9, "{rule} {played}");
        }

        #[test]
        fn slowing_makes_nothing_faster_and_more_of_anything_neither(
            work in 0.0_f64..10.0,
            send in 0.0_f64..10.0,
            copies in [0.0_f64..5.0, 0.0_f64..5.0],
            scalars in [0.0_f64..9.0, 0.0_f64..9.0, 0.0_f64..9.0, 0.0_f64..9.0],
            more in [0.0_f64..3.0, 0.0_f64..3.0, 0.0_f64..3.0, 0.0_f64..3.0],
        ) {
            let of = |s: [f64; 4]| MutualSlowdown { kernels: s[0], by_kernels: s[1], by_copies: s[2], copies_out: s[3] };
            let now = together(work, send, of(scalars), copies);
            prop_assert!(now >= together(work, send, MutualSlowdown::default(), copies) - 1e-9);
            prop_assert!(now >= work.max(send) - 1e-9);
            for at in 0..4 {
                let mut slower = scalars;
                slower[at] += more[at];
                prop_assert!(together(work, send, of(slower), copies) >= now - 1e-9, "scalar {at}");
            }
            prop_assert!(together(work + more[0], send, of(scalars), copies) >= now - 1e-9, "more work");
            prop_assert!(together(work, send + more[1], of(scalars), copies) >= now - 1e-9, "a slower link");
            prop_assert!(together(work, send, of(scalars), [copies[0] + more[2], copies[1] + more[3]]) >= now - 1e-9, "more copies");
        }
    }

    #[test]
    fn without_overlap_nothing_is_slowed() {
        let slowing = MutualSlowdown { kernels: 0.7, by_kernels: 0.2, by_copies: 2.0, copies_out: 0.4 };
        assert_eq!(together(4.0, 0.0, slowing, [1.0; 2]), 4.0);
        assert_eq!(together(0.0, 4.0, slowing, [0.0; 2]), 4.0);
    }
}

#[cfg(test)]
#[path = "slowing_tests.rs"]
mod step_tests;
