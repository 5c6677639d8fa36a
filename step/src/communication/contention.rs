//! Communication that shares ports: what a window of work can hide of it.
//!
//! A port carries what all groups send through it, whatever their axes. While a window of work runs, the collectives inside the work have its
//! ports for part of the time; only the rest carries what is to be hidden behind the window.
//!
//! Which of two transfers waits makes no difference while a port is never idle: it ends both at the same time (work conservation). But it idles
//! while a collective waits for the latency of a step. If those fell where the window's own collectives have the port, no port would idle: the best
//! case, which nothing makes happen. If they fell where it is free, none of the window's own time would be of use: the worst. Nothing measured
//! tells which; half way between the two errs by half their distance at most. The tests play it step by step.
//!
//! Kernels and a collective that run side by side slow each other, and copies to the host slow a collective between nodes ([`crate::MutualSlowdown`]): what
//! runs beside the window saves less than it hides.

use crate::communication::slowing::MutualSlowdown;
use serde::{Deserialize, Serialize};
use sim::network::{CollectiveCost, MAX_TIERS};
use sim::units::Seconds;
use std::ops::{Add, Mul, Sub};

/// How long the ports of a device into each tier of a fabric are busy, innermost tier first.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct PortTimes([Seconds; MAX_TIERS]);

impl PortTimes {
    /// The ports' times of a collective ([`CollectiveCost::port_times`]), the least that its bytes take: a group that uses some dimensions of a torus
    /// leaves the others' links to other groups.
    #[must_use]
    pub fn of_collective(cost: &CollectiveCost) -> Self {
        Self(cost.port_times)
    }

    /// As bits: what tells two apart.
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

/// Something sent: from start to end if nothing else is, and what it asks of the ports.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Communication {
    /// From start to end.
    pub time: Seconds,
    /// The ports' busy times.
    pub ports: PortTimes,
    /// How it and what runs beside it slow each other.
    pub slowing: MutualSlowdown,
}

impl Add for Communication {
    type Output = Self;

    /// One after the other, both slowed as the one that is slowed more.
    fn add(self, other: Self) -> Self {
        Self { time: self.time + other.time, ports: self.ports + other.ports, slowing: self.slowing.max_of_each(other.slowing) }
    }
}

impl Mul<f64> for Communication {
    type Output = Self;

    fn mul(self, times: f64) -> Self {
        Self { time: self.time * times, ports: self.ports * times, ..self }
    }
}

/// Work that communication can be hidden behind: how long it takes, and how long its own collectives have the ports.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct OverlapWindow {
    /// Computing, communicating, and waiting for launches.
    pub time: Seconds,
    /// The ports' busy times.
    pub ports: PortTimes,
    /// Copies beside it, from the host and to the host.
    pub copies: [Seconds; 2],
}

impl Add for OverlapWindow {
    type Output = Self;

    /// One after the other.
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
    /// What running a communication beside the window saves of its time: what the window hides, less what both take longer for it. With nothing slowed
    /// that is what the window hides: half way between the best case, in which latencies pass while the window's own collectives
    /// have the ports, and the worst, in which nothing does. In neither does a second of the window hide more than a second, so that slower
    /// collectives inside the window never make both together faster.
    ///
    /// A window whose kernels are slowed lasts longer, and hides more for it; it saves no more than a second a second then, either, and no more the more
    /// anything is slowed.
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
        let window = |inner, outer| OverlapWindow { time: Seconds(10.0), ports: ports(inner, outer), ..OverlapWindow::default() };
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

    /// What is left of a communication of `steps`, each a latency and then bytes, when a window ends in which its own collectives take the port in
    /// `parts` that come evenly, first.
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
                // Behind the end for certain, whatever is rounded.
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
        // The window's own have the port for its first 7 seconds: the first step's bytes wait for its end, and 3 seconds are left of 10.
        let window = OverlapWindow { time: Seconds(10.0), ports: ports(0.0, 7.0), ..OverlapWindow::default() };
        let communication = Communication { time: Seconds(8.0), ports: ports(0.0, 4.0), ..Communication::default() };
        let left = played(window, communication, 1, 4);
        assert!((left - 4.0).abs() < 1e-9, "1 second would be left had all latencies passed meanwhile: {left}");
    }
}
