//! Operators that run in parallel share memory ports.
//!
//! A schedule times every operator as if it had the port bandwidth that it asks for. The replay here slows operators
//! that compete for a port. Every operator starts as soon as its predecessors have ended: the operators whose results
//! it needs, and those before it on its cores or link. If operators ask a port for more than it provides, all users of
//! the port slow down by the same factor until its bandwidth suffices. No port ever exceeds its bandwidth, and no
//! operator is faster than alone.
//!
//! An operator's demand on a port is the port's busy time divided by the operator's latency, as if it used the port
//! evenly. [`PortSharing::lower_bound`] bounds every schedule from below under this model.

mod bound;
mod simplex;

use super::{CoreAssignment, Operator, Problem, Schedule};

/// Relative tolerance for the rounding of ticks. Demands on a port that exceed its bandwidth by less count as within
/// it.
const ROUNDING: f64 = 1e-6;

/// Ticks for which an operator keeps each port busy, in each mode. All operators of a problem list the same ports.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PortUse {
    /// On one core.
    pub one: Vec<f64>,
    /// Across all cores.
    pub all: Vec<f64>,
}

/// A problem whose operators share ports.
#[derive(Debug, Clone)]
pub struct PortSharing<'p> {
    problem: &'p Problem,
    /// By operator, on one core and across all cores: its demand on each port, as a fraction of the port's bandwidth.
    asks: Vec<[Vec<f64>; 2]>,
}

/// Returns an operator's speed relative to running alone. `asks` is its demand on each port, `together` the sum of all
/// demands.
fn speed_under_contention(asks: &[f64], together: &[f64]) -> f64 {
    let used = asks.iter().zip(together).filter(|(asks, _)| **asks > 0.0);
    let slowed = used.map(|(_, together)| *together).fold(0.0, f64::max);
    if slowed > 1.0 + ROUNDING { 1.0 / slowed } else { 1.0 }
}

/// Returns the sum of the operators' demands on each port.
fn sum_port_demand<'a>(ports: usize, asks: impl Iterator<Item = &'a [f64]>) -> Vec<f64> {
    let mut sum = vec![0.0; ports];
    for asks in asks {
        sum.iter_mut().zip(asks).for_each(|(sum, asks)| *sum += asks);
    }
    sum
}

impl<'p> PortSharing<'p> {
    /// Creates a problem with the port use of each of its operators.
    #[must_use]
    pub fn new(problem: &'p Problem, uses: &[PortUse]) -> Self {
        let part = |busy: &[f64], length: u64| -> Vec<f64> {
            // An operator that takes no time has no demand.
            busy.iter().map(|busy| if length > 0 { busy / length as f64 } else { 0.0 }).collect()
        };
        let asks = problem.operators().iter().zip(uses);
        let asks = asks.map(|(operator, uses)| {
            [part(&uses.one, operator.latency), part(&uses.all, operator.exclusive_latency.unwrap_or(operator.latency))]
        });
        Self { problem, asks: asks.collect() }
    }

    fn port_count(&self) -> usize {
        self.asks.first().map_or(0, |[one, _]| one.len())
    }

    fn port_demand(&self, operator: usize, exclusive: bool) -> &[f64] {
        &self.asks[operator][usize::from(exclusive)]
    }

    /// Returns the start and end of each operator of a schedule under port sharing, in ticks.
    #[must_use]
    pub fn spans_of_schedule(&self, schedule: &Schedule) -> Vec<[f64; 2]> {
        let ends = schedule.end_times(self.problem);
        let alone: Vec<[f64; 2]> =
            schedule.starts.iter().zip(&ends).map(|(&start, &end)| [start as f64, end as f64]).collect();
        if !self.exceeds_ports(&alone, &schedule.exclusive) {
            return alone;
        }
        self.play_operators(&find_predecessors(self.problem, schedule, &ends), &schedule.exclusive)
    }

    /// True if operators with these spans ask a port for more than it provides at any time.
    fn exceeds_ports(&self, spans: &[[f64; 2]], exclusive: &[bool]) -> bool {
        let mut starts: Vec<f64> = spans.iter().map(|span| span[0]).collect();
        starts.sort_unstable_by(f64::total_cmp);
        starts.dedup();
        starts.iter().any(|&now| {
            let running = (0..spans.len()).filter(|&i| spans[i][0] <= now && now < spans[i][1]);
            let together = sum_port_demand(self.port_count(), running.map(|i| self.port_demand(i, exclusive[i])));
            together.iter().any(|&together| together > 1.0 + ROUNDING)
        })
    }

    /// Replays the operators. Each runs after its predecessors in `before`, as fast as its ports allow.
    fn play_operators(&self, before: &[Vec<usize>], exclusive: &[bool]) -> Vec<[f64; 2]> {
        let length = |i: usize| length_in_mode(&self.problem.operators()[i], exclusive[i]) as f64;
        let mut waits: Vec<usize> = before.iter().map(Vec::len).collect();
        let mut after: Vec<Vec<usize>> = vec![Vec::new(); before.len()];
        for (later, before) in before.iter().enumerate() {
            before.iter().for_each(|&earlier| after[earlier].push(later));
        }
        let mut spans = vec![[0.0; 2]; before.len()];
        let mut ready: Vec<usize> = (0..before.len()).filter(|&i| waits[i] == 0).collect();
        // Running operators and their remaining ticks.
        let mut running: Vec<(usize, f64)> = Vec::new();
        let mut now = 0.0;
        loop {
            while let Some(i) = ready.pop() {
                spans[i] = [now; 2];
                if length(i) > 0.0 {
                    running.push((i, length(i)));
                } else {
                    release_successors(&after[i], &mut waits, &mut ready);
                }
            }
            let together =
                sum_port_demand(self.port_count(), running.iter().map(|&(i, _)| self.port_demand(i, exclusive[i])));
            let speeds: Vec<f64> = running
                .iter()
                .map(|&(i, _)| speed_under_contention(self.port_demand(i, exclusive[i]), &together))
                .collect();
            let Some(step) = running.iter().zip(&speeds).map(|((_, left), speed)| left / speed).reduce(f64::min) else {
                return spans;
            };
            now += step;
            let mut speeds = speeds.into_iter();
            running.retain_mut(|(i, left)| {
                *left -= step * speeds.next().unwrap_or(1.0);
                let ends = *left <= length(*i) * 1e-12;
                if ends {
                    spans[*i][1] = now;
                    release_successors(&after[*i], &mut waits, &mut ready);
                }
                !ends
            });
        }
    }
}

fn length_in_mode(operator: &Operator, exclusive: bool) -> u64 {
    if exclusive { operator.exclusive_latency.unwrap_or(operator.latency) } else { operator.latency }
}

/// Releases the successors of an operator that has ended.
fn release_successors(after: &[usize], waits: &mut [usize], ready: &mut Vec<usize>) {
    for &later in after {
        waits[later] -= 1;
        if waits[later] == 0 {
            ready.push(later);
        }
    }
}

/// Returns, for each operator, the operators that it waits for: its predecessors, and those that the schedule runs
/// earlier on the same cores or link.
fn find_predecessors(problem: &Problem, schedule: &Schedule, ends: &[u64]) -> Vec<Vec<usize>> {
    let mut before: Vec<Vec<usize>> = vec![Vec::new(); ends.len()];
    for &(earlier, later) in problem.edges() {
        before[later as usize].push(earlier as usize);
    }
    let on_cores = |i: usize| {
        schedule.exclusive[i] || schedule.cores[i].tensor_core.is_some() || schedule.cores[i].vector_core.is_some()
    };
    let shares = |i: usize, j: usize| {
        let across = schedule.exclusive[i] && on_cores(j) || schedule.exclusive[j] && on_cores(i);
        across || share_a_core(schedule.cores[i], schedule.cores[j])
    };
    for (later, before) in before.iter_mut().enumerate() {
        before.extend(
            (0..ends.len()).filter(|&i| i != later && comes_before(schedule, ends, i, later) && shares(i, later)),
        );
    }
    before
}

/// True if operator `i` has ended when `later` starts. If both take no time at the same instant, the first in the
/// problem's order comes first.
fn comes_before(schedule: &Schedule, ends: &[u64], i: usize, later: usize) -> bool {
    let key = |i: usize| (schedule.starts[i], ends[i], i);
    ends[i] <= schedule.starts[later] && key(i) < key(later)
}

fn share_a_core(a: CoreAssignment, b: CoreAssignment) -> bool {
    let same = |a: Option<u32>, b: Option<u32>| a.is_some() && a == b;
    same(a.tensor_core, b.tensor_core) || same(a.vector_core, b.vector_core) || same(a.link, b.link)
}

#[cfg(test)]
mod tests;
