//! Kernels side by side share the ports of the memories that cores share.
//!
//! The operator schedule times every kernel as if no kernel of another kind of core ran beside it: cores of one kind have equal shares of a memory
//! each, but a tensor core and a vector core may ask together for more than the memory gives. Here its order is played: every kernel starts as soon
//! as those before it have ended (what it needs, and what has run on its cores or link), and where kernels ask a port for more than it gives, all
//! that use it are slowed alike until it suffices. At no instant does a memory move more than its bandwidth, and no kernel is faster than alone.
//! How much of a port a kernel asks for is its bytes over its time, as if it moved them evenly.

use sim::cost::KernelCost;
use sim::costed::{Costs, seconds};
use sim::hardware::{Accelerator, Scope};
use sim::schedule::{CoreAssignment, Problem, Schedule};
use sim::units::Seconds;

/// Rounding of ticks, relatively: shares of a port that add up to one pass for one.
const ROUNDING: f64 = 1e-6;

/// The ports of a memory that cores share, at the rates that kernels achieve.
struct Ports {
    /// Position in [`Accelerator::levels`].
    level: usize,
    /// Bytes per second.
    read: f64,
    write: f64,
    /// Whether reads and writes share one.
    single: bool,
}

impl Ports {
    fn of(chip: &Accelerator) -> impl Iterator<Item = Self> {
        let outermost = chip.level_count() - 1;
        chip.levels().enumerate().filter(|(_, memory)| memory.scope == Scope::Chip).map(move |(level, memory)| {
            let achieved = if level == outermost { chip.calibration.hbm_achieved_fraction } else { 1.0 };
            let [read, write] = [memory.read_bandwidth, memory.write_bandwidth].map(|bandwidth| bandwidth.0 * achieved);
            Self { level, read, write, single: memory.ports <= 1 }
        })
    }

    /// How long a kernel keeps each port busy, in seconds.
    fn busy(&self, kernel: &KernelCost) -> Vec<f64> {
        let (read, written) = (kernel.traffic.read[self.level] / self.read, kernel.traffic.written[self.level] / self.write);
        if self.single { vec![read + written] } else { vec![read, written] }
    }
}

/// What all bytes of some kernels take through the busiest port at least, wherever they run.
pub(super) fn port_time(chip: &Accelerator, kernels: &[Costs]) -> Seconds {
    let busiest = Ports::of(chip).map(|ports| {
        let join =
            |all: Vec<f64>, one: Vec<f64>, join: fn(f64, f64) -> f64| all.iter().zip(&one).map(|(a, b)| join(*a, *b)).collect();
        let least = |kernel: &Costs| join(ports.busy(&kernel.one_core), ports.busy(&kernel.all_cores), f64::min);
        let all = kernels.iter().map(least).reduce(|all, one: Vec<f64>| join(all, one, |a, b| a + b));
        all.into_iter().flatten().fold(0.0, f64::max)
    });
    Seconds(busiest.fold(0.0, f64::max))
}

/// What every kernel asks of every port while it runs alone, in parts of what the port gives.
struct Demand {
    /// By port, by kernel.
    ports: Vec<Vec<f64>>,
}

impl Demand {
    fn new(chip: &Accelerator, kernels: &[KernelCost], lengths: &[f64]) -> Self {
        let ports = Ports::of(chip).flat_map(|memory| {
            let part = |(kernel, &length): (&KernelCost, &f64)| -> Vec<f64> {
                // A kernel that takes no time moves nothing.
                memory.busy(kernel).iter().map(|busy| if length > 0.0 { busy / length } else { 0.0 }).collect()
            };
            let parts: Vec<Vec<f64>> = kernels.iter().zip(lengths).map(part).collect();
            let count = if memory.single { 1 } else { 2 };
            (0..count).map(move |port| parts.iter().map(|part| part[port]).collect())
        });
        Self { ports: ports.collect() }
    }

    /// Whether kernels that run from and to these times ask a port for more than it gives.
    fn exceeds(&self, spans: &[[f64; 2]]) -> bool {
        let mut starts: Vec<f64> = spans.iter().map(|span| span[0]).collect();
        starts.sort_unstable_by(f64::total_cmp);
        starts.dedup();
        self.ports.iter().any(|port| {
            starts.iter().any(|&now| {
                let running = spans.iter().zip(port).filter(|(span, _)| span[0] <= now && now < span[1]);
                running.map(|(_, part)| part).sum::<f64>() > 1.0 + ROUNDING
            })
        })
    }

    /// How fast a kernel runs beside those in `running`, in parts of its speed alone.
    fn speed(&self, kernel: usize, running: &[usize]) -> f64 {
        let used = self.ports.iter().filter(|port| port[kernel] > 0.0);
        let slowed = used.map(|port| running.iter().map(|&other| port[other]).sum::<f64>());
        1.0 / slowed.fold(1.0, f64::max)
    }
}

/// From when to when each kernel of a schedule runs, in seconds, with the ports of shared memories shared. `kernels` are what the kernels cost
/// where the schedule runs them, in the order of the problem's operators.
pub(super) fn spans(chip: &Accelerator, problem: &Problem, schedule: &Schedule, kernels: &[KernelCost]) -> Vec<[f64; 2]> {
    let ends = schedule.ends(problem);
    let alone: Vec<[f64; 2]> =
        schedule.starts.iter().zip(&ends).map(|(&start, &end)| [seconds(start).0, seconds(end).0]).collect();
    let lengths: Vec<f64> = alone.iter().map(|[start, end]| end - start).collect();
    let demand = Demand::new(chip, kernels, &lengths);
    if demand.exceeds(&alone) { play(&demand, &before(problem, schedule, &ends), &lengths) } else { alone }
}

/// What each kernel waits for: what it needs, and what the schedule runs before it on the same cores or link.
fn before(problem: &Problem, schedule: &Schedule, ends: &[u64]) -> Vec<Vec<usize>> {
    let mut before: Vec<Vec<usize>> = vec![Vec::new(); ends.len()];
    for &(earlier, later) in problem.edges() {
        before[later as usize].push(earlier as usize);
    }
    let on_cores =
        |i: usize| schedule.exclusive[i] || schedule.cores[i].tensor_core.is_some() || schedule.cores[i].vector_core.is_some();
    let shares = |i: usize, j: usize| {
        let across = schedule.exclusive[i] && on_cores(j) || schedule.exclusive[j] && on_cores(i);
        across || same_place(schedule.cores[i], schedule.cores[j])
    };
    for (later, before) in before.iter_mut().enumerate() {
        before.extend((0..ends.len()).filter(|&i| i != later && comes_before(schedule, ends, i, later) && shares(i, later)));
    }
    before
}

/// Whether a kernel has ended when another starts; of two that take no time at the same instant, the first in the problem's order.
fn comes_before(schedule: &Schedule, ends: &[u64], i: usize, later: usize) -> bool {
    let key = |i: usize| (schedule.starts[i], ends[i], i);
    ends[i] <= schedule.starts[later] && key(i) < key(later)
}

fn same_place(a: CoreAssignment, b: CoreAssignment) -> bool {
    let same = |a: Option<u32>, b: Option<u32>| a.is_some() && a == b;
    same(a.tensor_core, b.tensor_core) || same(a.vector_core, b.vector_core) || same(a.link, b.link)
}

/// The kernels played in their order, each as fast as its ports allow.
fn play(demand: &Demand, before: &[Vec<usize>], lengths: &[f64]) -> Vec<[f64; 2]> {
    let mut spans = vec![[f64::NAN; 2]; lengths.len()];
    let mut left = lengths.to_vec();
    let mut running: Vec<usize> = Vec::new();
    let mut now = 0.0;
    loop {
        let ended = |spans: &[[f64; 2]], i: &usize| spans[*i][1] <= now;
        let ready: Vec<usize> = (0..lengths.len())
            .filter(|&i| spans[i][0].is_nan() && before[i].iter().all(|earlier| ended(&spans, earlier)))
            .collect();
        for &i in &ready {
            spans[i][0] = now;
            if lengths[i] > 0.0 { running.push(i) } else { spans[i][1] = now }
        }
        if ready.iter().any(|&i| lengths[i] <= 0.0) {
            continue;
        }
        let speeds: Vec<f64> = running.iter().map(|&i| demand.speed(i, &running)).collect();
        let Some(step) = running.iter().zip(&speeds).map(|(&i, speed)| left[i] / speed).reduce(f64::min) else { return spans };
        now += step;
        running = running
            .iter()
            .zip(&speeds)
            .filter_map(|(&i, speed)| {
                left[i] -= step * speed;
                let ends = left[i] <= lengths[i] * 1e-12;
                if ends {
                    spans[i][1] = now;
                }
                (!ends).then_some(i)
            })
            .collect();
    }
}
