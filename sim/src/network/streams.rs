//! Concurrent streams on one device: kernels, a collective, copies from and to the host.
//!
//! A stream runs at 1 / (1 + the slowdowns by the other running streams) of its own speed. When one stream ends, the
//! rest speed up ([`StreamContention`]). Without known slowdowns the longest stream decides.

use crate::hardware::StreamContention;
use crate::units::Seconds;

/// The time of each stream if it runs alone; zero if there is no such stream.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StreamTimes {
    /// Kernels.
    pub kernels: Seconds,
    /// A collective.
    pub collective: Seconds,
    /// True if the collective crosses the network between nodes.
    pub between_nodes: bool,
    /// A copy from the host to the device.
    pub copy_in: Seconds,
    /// A copy from the device to the host.
    pub copy_out: Seconds,
}

/// Streams: kernels, collective, copy in, copy out.
const COUNT: usize = 4;

impl StreamTimes {
    /// Returns the time from the common start to the end of the last stream.
    #[must_use]
    pub fn time_together(&self, contention: &StreamContention) -> Seconds {
        let slowed = self.slowdown_matrix(contention);
        let mut left = [self.kernels, self.collective, self.copy_in, self.copy_out].map(|time| time.0);
        let mut elapsed = 0.0;
        // Every round ends a stream.
        for _ in 0..COUNT {
            let running = left.map(|time| time > 0.0);
            let mut pace = [1.0; COUNT];
            let mut next = f64::INFINITY;
            for ((pace, slowed), time) in pace.iter_mut().zip(&slowed).zip(left).filter(|(_, time)| *time > 0.0) {
                *pace += slowed.iter().zip(running).filter(|(_, runs)| *runs).map(|(by, _)| by).sum::<f64>();
                next = next.min(time * *pace);
            }
            if next.is_infinite() {
                break;
            }
            elapsed += next;
            for (time, pace) in left.iter_mut().zip(pace) {
                let done = next / pace;
                // A stream that ends in this round leaves only a rounding error.
                *time = if *time - done <= *time * 1e-12 { 0.0 } else { *time - done };
            }
        }
        Seconds(elapsed)
    }

    /// Returns the slowdowns. Rows are the slowed streams, columns the streams that slow them.
    fn slowdown_matrix(&self, c: &StreamContention) -> [[f64; COUNT]; COUNT] {
        let (kernel_by, collective_by_kernel, by_copy, copy_out_by) = if self.between_nodes {
            (c.kernel_by_network, 0.0, c.network_by_copy, c.copy_out_by_network)
        } else {
            (c.kernel_by_collective, c.collective_by_kernel, 0.0, 0.0)
        };
        [
            [0.0, kernel_by, 0.0, 0.0],
            [collective_by_kernel, 0.0, by_copy, by_copy],
            [0.0, 0.0, 0.0, c.copy_in_by_copy_out],
            [0.0, copy_out_by, c.copy_out_by_copy_in, 0.0],
        ]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn streams() -> StreamTimes {
        StreamTimes { kernels: Seconds(4.0), collective: Seconds(1.0), copy_in: Seconds(2.0), ..StreamTimes::default() }
    }

    #[test]
    fn without_slowdowns_the_longest_decides() {
        assert_eq!(streams().time_together(&StreamContention::default()), Seconds(4.0));
        assert_eq!(StreamTimes::default().time_together(&StreamContention::default()), Seconds::ZERO);
    }

    #[test]
    fn a_slowdown_lasts_as_long_as_the_other_stream() {
        // The collective takes 1 s, slowed to 1.5. Meanwhile the kernels finish 0.75 of their 4 s; then they run alone.
        let contention =
            StreamContention { kernel_by_collective: 1.0, collective_by_kernel: 0.5, ..StreamContention::default() };
        let together = streams().time_together(&contention).0;
        assert!((together - (1.5 + 3.25)).abs() < 1e-9, "{together}");
    }

    #[test]
    fn the_network_and_copies_share_the_host() {
        let contention = StreamContention { network_by_copy: 2.0, ..StreamContention::default() };
        let between = StreamTimes {
            collective: Seconds(1.0),
            copy_in: Seconds(1.0),
            between_nodes: true,
            ..StreamTimes::default()
        };
        assert!((between.time_together(&contention).0 - (1.0 + 2.0 / 3.0)).abs() < 1e-9);
        let inside = StreamTimes { between_nodes: false, ..between };
        assert_eq!(inside.time_together(&contention), Seconds(1.0));
    }
}
