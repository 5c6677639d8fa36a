//! Checks a schedule against its problem, independently of how it was found, and reports every fault.

use super::problem::{Exclusivity, OperatorKind, Pairing, Problem};
use super::{CoreAssignment, Schedule};
use crate::status::SolveStatus;
use thiserror::Error;

/// A fault of a schedule.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ScheduleFault {
    /// A list does not have one entry per operator.
    #[error("the schedule has {have} {list} for {need} operators")]
    WrongLength {
        /// The list.
        list: &'static str,
        /// Its length.
        have: usize,
        /// Operators of the problem.
        need: usize,
    },
    /// An operator starts before a predecessor ends.
    #[error("operator {to} starts at {start}, before its predecessor {from} ends at {end}")]
    Precedence {
        /// The predecessor.
        from: u32,
        /// The operator that starts too early.
        to: u32,
        /// The end of the predecessor.
        end: u64,
        /// The start of the operator.
        start: u64,
    },
    /// An operator without an exclusive latency runs across all cores.
    #[error("operator {operator} runs across all cores but has no exclusive latency")]
    NotExclusive {
        /// The operator.
        operator: u32,
    },
    /// An operator lacks a core of a kind that it uses, has one of a kind that it does not use, or has one that does
    /// not exist.
    #[error("operator {operator} has the wrong {resource}: {assigned:?} where the chip has {available}")]
    WrongCore {
        /// The operator.
        operator: u32,
        /// The kind of core or link.
        resource: &'static str,
        /// The core that the schedule assigns.
        assigned: Option<u32>,
        /// Cores of that kind on the chip.
        available: u32,
    },
    /// Two operators share a core or a link at the same time.
    #[error("operators {first} and {second} are both on {resource} {index} at {time}")]
    Overlap {
        /// The one that starts first.
        first: u32,
        /// The other.
        second: u32,
        /// The kind of core or link.
        resource: &'static str,
        /// The index of the core.
        index: u32,
        /// The start of the second.
        time: u64,
    },
    /// An operator runs in parallel with one that has all cores to itself.
    #[error("operator {other} runs in parallel with operator {exclusive}, which holds all cores from {start} to {end}")]
    Exclusivity {
        /// The operator that holds all cores.
        exclusive: u32,
        /// The operator that runs in parallel.
        other: u32,
        /// The start of the exclusive operator.
        start: u64,
        /// The end of the exclusive operator.
        end: u64,
    },
    /// A fused operator's cores have different indices although the chip pairs them by index.
    #[error(
        "operator {operator} is on tensor core {tensor_core} and vector core {vector_core}, but the chip pairs cores of the same index"
    )]
    Pairing {
        /// The operator.
        operator: u32,
        /// Its tensor core.
        tensor_core: u32,
        /// Its vector core.
        vector_core: u32,
    },
    /// The makespan is not the end of the last operator.
    #[error("the makespan is given as {stated}, but the last operator ends at {actual}")]
    Makespan {
        /// The stated makespan.
        stated: u64,
        /// The end of the last operator.
        actual: u64,
    },
    /// The lower bound is above the makespan, or the status does not follow from the two.
    #[error("status {status} does not follow from the lower bound {lower_bound} and the makespan {makespan}")]
    Status {
        /// The stated status.
        status: String,
        /// The stated lower bound.
        lower_bound: u64,
        /// The stated makespan.
        makespan: u64,
    },
}

/// Returns every fault of `schedule` as an answer to `problem`; an empty list for a valid schedule.
#[must_use]
pub fn verify_schedule(problem: &Problem, schedule: &Schedule) -> Vec<ScheduleFault> {
    let n = problem.operators().len();
    let mut faults = Vec::new();
    for (list, have) in [
        ("starts", schedule.starts.len()),
        ("exclusive flags", schedule.exclusive.len()),
        ("core assignments", schedule.cores.len()),
    ] {
        if have != n {
            faults.push(ScheduleFault::WrongLength { list, have, need: n });
        }
    }
    if !faults.is_empty() {
        return faults;
    }
    let spans = spans_in_modes(problem, schedule, &mut faults);
    check_precedence(problem, &spans, &mut faults);
    check_cores(problem, schedule, &mut faults);
    check_sharing(schedule, &spans, &mut faults);
    check_exclusivity(problem, schedule, &spans, &mut faults);
    check_totals(schedule, &spans, &mut faults);
    faults
}

/// Ticks at which an operator starts and ends.
#[derive(Debug, Clone, Copy)]
struct OperatorSpan {
    start: u64,
    end: u64,
}

/// Returns the span of every operator in its scheduled mode.
fn spans_in_modes(problem: &Problem, schedule: &Schedule, faults: &mut Vec<ScheduleFault>) -> Vec<OperatorSpan> {
    let mut spans = Vec::with_capacity(schedule.starts.len());
    for (i, operator) in problem.operators().iter().enumerate() {
        let mut latency = operator.latency;
        if schedule.exclusive[i] {
            match operator.exclusive_latency {
                Some(exclusive) => latency = exclusive,
                None => faults.push(ScheduleFault::NotExclusive { operator: i as u32 }),
            }
        }
        spans.push(OperatorSpan { start: schedule.starts[i], end: schedule.starts[i].saturating_add(latency) });
    }
    spans
}

fn check_precedence(problem: &Problem, spans: &[OperatorSpan], faults: &mut Vec<ScheduleFault>) {
    for &(from, to) in problem.edges() {
        let (end, start) = (spans[from as usize].end, spans[to as usize].start);
        if start < end {
            faults.push(ScheduleFault::Precedence { from, to, end, start });
        }
    }
}

fn check_cores(problem: &Problem, schedule: &Schedule, faults: &mut Vec<ScheduleFault>) {
    let cores = problem.cores();
    for (i, operator) in problem.operators().iter().enumerate() {
        let CoreAssignment { tensor_core, vector_core, link } = schedule.cores[i];
        let (kind, single) = (operator.kind, !schedule.exclusive[i]);
        let needs = [
            ("tensor core", tensor_core, cores.tensor_cores, kind.uses_tensor() && single),
            ("vector core", vector_core, cores.vector_cores, kind.uses_vector() && single),
            ("link", link, cores.network_links, kind == OperatorKind::Network && single),
        ];
        for (resource, assigned, available, needed) in needs {
            if assigned.is_some() != needed || assigned.is_some_and(|c| c >= available) {
                faults.push(ScheduleFault::WrongCore { operator: i as u32, resource, assigned, available });
            }
        }
        if let (Some(tensor_core), Some(vector_core)) = (tensor_core, vector_core)
            && cores.pairing == Pairing::SameIndex
            && tensor_core != vector_core
        {
            faults.push(ScheduleFault::Pairing { operator: i as u32, tensor_core, vector_core });
        }
    }
}

/// Checks that no two operators share a core or link at the same time. Operators of zero length occupy nothing.
fn check_sharing(schedule: &Schedule, spans: &[OperatorSpan], faults: &mut Vec<ScheduleFault>) {
    for (resource, pick) in [
        ("tensor core", (|c: &CoreAssignment| c.tensor_core) as fn(&CoreAssignment) -> Option<u32>),
        ("vector core", |c| c.vector_core),
        ("link", |c| c.link),
    ] {
        let mut uses: Vec<(u32, u64, u64, u32)> = schedule
            .cores
            .iter()
            .zip(spans)
            .zip(0u32..)
            .filter_map(|((c, &OperatorSpan { start, end }), i)| {
                pick(c).filter(|_| end > start).map(|core| (core, start, end, i))
            })
            .collect();
        uses.sort_unstable();
        let mut last: Option<(u32, u64, u32)> = None;
        for (index, start, end, second) in uses {
            match last {
                Some((core, busy_until, first)) if core == index && start < busy_until => {
                    faults.push(ScheduleFault::Overlap { first, second, resource, index, time: start });
                    if end > busy_until {
                        last = Some((index, end, second));
                    }
                }
                _ => last = Some((index, end, second)),
            }
        }
    }
}

/// Checks that no operator runs on cores that another one holds exclusively at the time. An exclusive operator of zero
/// length still needs an instant at which those cores are idle.
fn check_exclusivity(problem: &Problem, schedule: &Schedule, spans: &[OperatorSpan], faults: &mut Vec<ScheduleFault>) {
    let operators = problem.operators();
    for (x, holder) in operators.iter().enumerate().filter(|&(x, _)| schedule.exclusive[x]) {
        let OperatorSpan { start, end } = spans[x];
        for (o, other) in operators.iter().enumerate() {
            let OperatorSpan { start: other_start, end: other_end } = spans[o];
            if o == x || other_end == other_start && !schedule.exclusive[o] || schedule.exclusive[o] && o < x {
                continue;
            }
            let overlap = if start == end || other_start == other_end {
                other_start < start && end < other_end || start < other_start && other_end < end
            } else {
                other_start < end && start < other_end
            };
            let tensor = holder.kind.uses_tensor() && other.kind.uses_tensor();
            let vector = holder.kind.uses_vector() && other.kind.uses_vector();
            let excluded = match problem.cores().exclusivity {
                Exclusivity::AllCores => other.kind.uses_tensor() || other.kind.uses_vector(),
                Exclusivity::OwnKind => tensor || vector,
            };
            if overlap && excluded {
                faults.push(ScheduleFault::Exclusivity { exclusive: x as u32, other: o as u32, start, end });
            }
        }
    }
}

fn check_totals(schedule: &Schedule, spans: &[OperatorSpan], faults: &mut Vec<ScheduleFault>) {
    let actual = spans.iter().map(|s| s.end).max().unwrap_or(0);
    if actual != schedule.makespan {
        faults.push(ScheduleFault::Makespan { stated: schedule.makespan, actual });
    }
    let honest = match &schedule.status {
        SolveStatus::Optimal => schedule.lower_bound == schedule.makespan,
        SolveStatus::Gap { .. } => schedule.lower_bound < schedule.makespan,
        SolveStatus::Infeasible { .. } => false,
    };
    if !honest {
        let status = schedule.status.to_string();
        faults.push(ScheduleFault::Status { status, lower_bound: schedule.lower_bound, makespan: schedule.makespan });
    }
}
