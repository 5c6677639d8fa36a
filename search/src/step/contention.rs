//! Communication that shares ports: what a window of work can hide of it.
//!
//! A port carries what all groups send through it, whatever their axes. While a window of work runs, the collectives inside the work have its
//! ports for part of the time; only the rest carries what is to be hidden behind the window. Which of two transfers waits makes no
//! difference: a port that is never idle ends both at the same time (work conservation), so the part that does not fit is exposed.

use serde::{Deserialize, Serialize};
use sim::network::{CollectiveCost, Fabric, MAX_TIERS};
use sim::units::{Bytes, Seconds};
use std::ops::{Add, Mul};

/// How long the ports of a device into each tier of a fabric are busy, innermost tier first.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct PortTimes([Seconds; MAX_TIERS]);

impl PortTimes {
    /// The ports' times at the full achieved rate that each has while all send, the least that the bytes of a collective take: a group that uses
    /// some dimensions of a torus leaves the others' links to other groups.
    #[must_use]
    pub fn of(fabric: &Fabric, cost: &CollectiveCost) -> Self {
        let mut times = Self::default();
        for ((time, tier), bytes) in times.0.iter_mut().zip(&fabric.tiers).zip(cost.link_bytes) {
            if bytes > Bytes::ZERO {
                *time = Seconds(bytes.as_f64() / (tier.shared_rate() * tier.achieved_fraction));
            }
        }
        times
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
}

impl Add for Communication {
    type Output = Self;

    /// One after the other.
    fn add(self, other: Self) -> Self {
        Self { time: self.time + other.time, ports: self.ports + other.ports }
    }
}

impl Mul<f64> for Communication {
    type Output = Self;

    fn mul(self, times: f64) -> Self {
        Self { time: self.time * times, ports: self.ports * times }
    }
}

/// Work that communication can be hidden behind: how long it takes, and how long its own collectives have the ports.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Window {
    /// Computing, communicating, and waiting for launches.
    pub time: Seconds,
    /// The ports' busy times.
    pub ports: PortTimes,
}

impl Window {
    /// The most of a communication's time that the window hides: no more than the window, and less what its ports still have to carry when the
    /// window ends, both its bytes and the window's own being sent. Latencies keep no port busy and pass meanwhile. A second of the window never
    /// hides more than a second, so that slower collectives inside the window never make both together faster.
    #[must_use]
    pub fn hides(&self, communication: &Communication) -> Seconds {
        let whole = communication.time;
        let late = self.ports.0.iter().zip(communication.ports.0).map(|(own, asked)| {
            let left = (self.time - *own).max(Seconds::ZERO);
            asked - left
        });
        let exposed = late.fold(whole - self.time, Seconds::max).max(Seconds::ZERO);
        (whole - exposed).max(Seconds::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(inner: f64, outer: f64) -> PortTimes {
        PortTimes([Seconds(inner), Seconds(outer), Seconds::ZERO, Seconds::ZERO])
    }

    #[test]
    fn a_free_port_hides_up_to_the_window_and_a_busy_one_what_is_left() {
        let reduction = Communication { time: Seconds(4.0), ports: ports(0.0, 4.0) };
        let window = |inner, outer| Window { time: Seconds(10.0), ports: ports(inner, outer) };
        assert_eq!(window(9.0, 0.0).hides(&reduction), Seconds(4.0), "another tier is busy");
        assert_eq!(window(0.0, 6.0).hides(&reduction), Seconds(4.0), "the port just suffices");
        assert_eq!(window(0.0, 7.0).hides(&reduction), Seconds(3.0), "the port has 3 of 10 seconds left");
        assert_eq!(window(0.0, 12.0).hides(&reduction), Seconds::ZERO);
        let long = Communication { time: Seconds(40.0), ports: ports(0.0, 4.0) };
        assert_eq!(window(0.0, 0.0).hides(&long), Seconds(10.0), "never more than the window");
        let slow = Communication { time: Seconds(8.0), ports: ports(0.0, 4.0) };
        assert_eq!(
            window(0.0, 7.0).hides(&slow),
            Seconds(7.0),
            "of 4 seconds of bytes the port has 3 left; latencies pass meanwhile"
        );
    }
}
