//! Communication that shares ports, and the part of it that a window of work can hide.
//!
//! A port carries the traffic of all groups on all axes. While a window of work runs, its own collectives use the ports
//! for part of the time. Only the remaining time can hide other communication.
//!
//! While a port is never idle, the order of two transfers does not matter: both end at the same time (work
//! conservation). But a port idles while a collective waits for a step's latency. In the best case, these latencies
//! fall in times when the window's own collectives use the port, and no port idles. In the worst case, they fall in
//! free times, and the window saves nothing. No measurement tells which case holds. So the model takes the midpoint,
//! whose error is at most half the distance. The tests simulate it step by step.
//!
//! Concurrent kernels and collectives slow each other, and copies to the host slow collectives between nodes
//! ([`crate::MutualSlowdown`]). So a window saves less time than it hides.

use crate::communication::slowing::MutualSlowdown;
use serde::{Deserialize, Serialize};
use sim::network::{CollectiveCost, MAX_TIERS};
use sim::units::Seconds;
use std::ops::{Add, Mul, Sub};

/// Busy time of a device's ports into each tier of a fabric, innermost tier first.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct PortTimes([Seconds; MAX_TIERS]);

impl PortTimes {
    /// Returns the busy times of the ports in a collective ([`CollectiveCost::port_times`]), the minimum for its bytes.
    /// A group that uses some dimensions of a torus leaves the links of the other dimensions to other groups.
    #[must_use]
    pub fn of_collective(cost: &CollectiveCost) -> Self {
        Self(cost.port_times)
    }

    /// Returns the times as bits, to compare them exactly.
    pub(crate) fn to_bits(self) -> [u64; MAX_TIERS] {
        self.0.map(|time| time.0.to_bits())
    }

    pub(crate) fn map_each(mut self, other: Self, of: impl Fn(Seconds, Seconds) -> Seconds) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(mine, theirs)| *mine = of(*mine, theirs));
        self
    }
}

impl Add for PortTimes {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
        self
    }
}

impl Sub for PortTimes {
    type Output = Self;

    fn sub(mut self, other: Self) -> Self {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine = (*mine - theirs).max(Seconds::ZERO);
        }
        self
    }
}

impl Mul<f64> for PortTimes {
    type Output = Self;

    fn mul(mut self, times: f64) -> Self {
        for mine in &mut self.0 {
            *mine = *mine * times;
        }
        self
    }
}

/// A transfer: its time when it runs alone, and its use of the ports.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Communication {
    /// Time from start to end.
    pub time: Seconds,
    /// Busy times of the ports.
    pub ports: PortTimes,
    /// Mutual slowdown with concurrent work.
    pub slowing: MutualSlowdown,
}

impl Add for Communication {
    type Output = Self;

    /// Returns both transfers in sequence, each with the larger of both slowdowns.
    fn add(self, other: Self) -> Self {
        Self {
            time: self.time + other.time,
            ports: self.ports + other.ports,
            slowing: self.slowing.max_of_each(other.slowing),
        }
    }
}

impl Mul<f64> for Communication {
    type Output = Self;

    fn mul(self, times: f64) -> Self {
        Self { time: self.time * times, ports: self.ports * times, ..self }
    }
}

/// Work that can hide communication, with its time and its own use of the ports.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct OverlapWindow {
    /// Time of computing, communicating and waiting for launches.
    pub time: Seconds,
    /// Busy times of the ports.
    pub ports: PortTimes,
    /// Concurrent copies, from the host and to the host.
    pub copies: [Seconds; 2],
}

impl Add for OverlapWindow {
    type Output = Self;

    /// Returns both windows in sequence.
    fn add(self, other: Self) -> Self {
        let copies = [self.copies[0] + other.copies[0], self.copies[1] + other.copies[1]];
        Self { time: self.time + other.time, ports: self.ports + other.ports, copies }
    }
}

impl Mul<f64> for OverlapWindow {
    type Output = Self;

    fn mul(self, times: f64) -> Self {
        Self { time: self.time * times, ports: self.ports * times, copies: self.copies.map(|copy| copy * times) }
    }
}

impl OverlapWindow {
    /// Returns the time saved by running a communication beside the window: the hidden time, minus the time by which
    /// both slow each other. The hidden time is the midpoint between two cases. In the best case, latencies pass while
    /// the window's collectives use the ports; in the worst case, they do not. In neither case does a second of the
    /// window hide more than a second. So slower collectives inside the window never shorten the sum.
    ///
    /// A window with slowed kernels lasts longer, and so hides more. Still, it saves at most a second per second, and
    /// more slowdown never saves more.
    #[must_use]
    pub fn time_saved(&self, communication: &Communication) -> Seconds {
        let slowing = &communication.slowing;
        let (longer, stretch) = (slowing.delay_by_copies(communication.time, self.copies), slowing.room_per_second());
        let whole = communication.time + longer;
        let most = whole - self.time * stretch;
        let asked = self.ports.0.iter().zip(communication.ports.0).filter(|(_, asked)| *asked > Seconds::ZERO);
        let late = asked.map(|(own, asked)| {
            let left = (self.time - *own).max(Seconds::ZERO) * stretch;
            (asked + longer - left, whole - left)
        });
        let (best, worst) = late.fold((most, most), |(best, worst), (b, w)| (best.max(b), worst.max(w)));
        let exposed = (best.max(Seconds::ZERO) + worst.max(Seconds::ZERO)) * 0.5;
        (whole - exposed).max(Seconds::ZERO) * slowing.value_of_hidden_second() - longer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ports(inner: f64, outer: f64) -> PortTimes {
        PortTimes([Seconds(inner), Seconds(outer), Seconds::ZERO, Seconds::ZERO])
    }

    #[test]
    fn a_free_port_hides_up_to_the_window_and_a_busy_one_what_is_left() {
        let reduction = Communication { time: Seconds(4.0), ports: ports(0.0, 4.0), ..Communication::default() };
        let window = |inner, outer| OverlapWindow {
            time: Seconds(10.0),
            ports: ports(inner, outer),
            ..OverlapWindow::default()
        };
        assert_eq!(window(9.0, 0.0).time_saved(&reduction), Seconds(4.0), "another tier is busy");
        assert_eq!(window(0.0, 6.0).time_saved(&reduction), Seconds(4.0), "the port just suffices");
        assert_eq!(window(0.0, 7.0).time_saved(&reduction), Seconds(3.0), "the port has 3 of 10 seconds left");
        assert_eq!(window(0.0, 12.0).time_saved(&reduction), Seconds::ZERO);
        let long = Communication { time: Seconds(40.0), ports: ports(0.0, 4.0), ..Communication::default() };
        assert_eq!(window(0.0, 0.0).time_saved(&long), Seconds(10.0), "never more than the window");
        let slow = Communication { time: Seconds(8.0), ports: ports(0.0, 4.0), ..Communication::default() };
        assert_eq!(
            window(0.0, 7.0).time_saved(&slow),
            Seconds(5.0),
            "of 4 seconds of bytes the port has 3 left, which leaves 1; after 4 seconds of latencies, 5"
        );
    }

    /// Simulates a communication of `steps` steps, each a latency and then bytes. The window's own collectives use the
    /// port at the start of each of `parts` equal parts. Returns the time left after the window.
    fn played(window: OverlapWindow, communication: Communication, parts: u32, steps: u32) -> f64 {
        let (part, own) = (window.time.0 / f64::from(parts), window.ports.0[1].0 / f64::from(parts));
        let bytes = communication.ports.0[1].0 / f64::from(steps);
        let latency = communication.time.0 / f64::from(steps) - bytes;
        let mut now = 0.0_f64;
        for _ in 0..steps {
            now += latency;
            let mut left = bytes;
            while left > 0.0 {
                let at = (now / part).floor();
                let (free, end) = (at * part + own, (at + 1.0) * part);
                if now >= window.time.0 {
                    now += left;
                    break;
                }
                now = now.max(free);
                let moved = left.min(end - now);
                left -= moved;
                // Certainly after the end, despite rounding.
                now = if left > 0.0 { end * (1.0 + 1e-15) } else { now + moved };
            }
        }
        (now - window.time.0).max(0.0)
    }

    proptest! {
        #[test]
        fn no_order_of_steps_leaves_less_than_the_best_case_or_more_than_the_worst(
            own in 0.0_f64..9.5,
            bytes in 0.1_f64..12.0,
            latency in 0.0_f64..12.0,
            steps in 2_u32..200,
        ) {
            let window = OverlapWindow { time: Seconds(10.0), ports: ports(0.0, own), ..OverlapWindow::default() };
            let communication = Communication { time: Seconds(bytes + latency), ports: ports(0.0, bytes), ..Communication::default() };
            let rule = bytes + latency - window.time_saved(&communication).0;
            let best = (bytes + latency - 10.0).max(bytes - (10.0 - own)).max(0.0);
            let worst = (bytes + latency - (10.0 - own)).max(0.0);
            prop_assert!((rule - f64::midpoint(best, worst)).abs() < 1e-9, "{best} {rule} {worst}");
            for parts in [1, 3, 50, 20_000] {
                let left = played(window, communication, parts, steps);
                prop_assert!((best - 1e-6..=worst + 1e-6).contains(&left), "{parts} parts: {best} {left} {worst}");
            }
        }
    }

    #[test]
    fn latencies_do_not_all_pass_while_a_port_is_taken() {
        // The window's own collectives have the port for its first 7 seconds. The first step's bytes wait that long,
        // and 3 of 10 seconds are left.
        let window = OverlapWindow { time: Seconds(10.0), ports: ports(0.0, 7.0), ..OverlapWindow::default() };
        let communication = Communication { time: Seconds(8.0), ports: ports(0.0, 4.0), ..Communication::default() };
        let left = played(window, communication, 1, 4);
        assert!((left - 4.0).abs() < 1e-9, "1 second would be left had all latencies passed meanwhile: {left}");
    }
}
