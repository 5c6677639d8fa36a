//! Passes by the operator schedule: concurrent kernels on cores, with collectives beside them if the chip can do that.
//!
//! A pass takes as long as its schedule. The time in which only collectives run is exposed communication. The rest is
//! device time. Concurrent kernels share the ports of each memory ([`shared_ports`], [`PortSharing`]). If kernel times
//! are only lower bounds ([`Fidelity`]), a pass takes a lower bound over all schedules of its kernels ([`Outline`]).

use super::shared_ports;
use crate::StepError;
use crate::communication::network::StepNetwork;
use crate::pass::chip_times::{ChipTimes, Fidelity};
use crate::pass::profile::PassProfile;
use crate::pass::program::occupies_cores;
use sim::cost::KernelCost;
use sim::costed::{CostsBySpan, TICKS_PER_SECOND, schedule_cores, schedule_operator};
use sim::kernel::{Kernel, KernelGraph, KernelNode, ParallelAxis};
use sim::schedule::{Operator, Outline, PortSharing, PortUse, Problem, Schedule};
use sim::units::Seconds;

/// Relative tolerance: times this close to each other differ only by rounding.
pub(super) const ROUNDING: f64 = 1e-9;

/// The scheduled part of a graph.
pub(crate) struct ScheduledPass<'g> {
    /// Its kernels.
    pub(crate) kernels: Vec<&'g KernelNode>,
    /// Costs of each kernel.
    pub(crate) costs: Vec<CostsBySpan>,
    /// Place and time of each kernel, without mutual slowdown.
    pub(crate) schedule: Schedule,
    /// Start and end of each kernel, in seconds.
    pub(crate) spans: Vec<[f64; 2]>,
    /// Lower bound on the makespan over all orders.
    least: Seconds,
}

impl ScheduledPass<'_> {
    /// Returns each kernel's cost where it runs.
    fn chosen_costs(&self) -> Vec<KernelCost> {
        chosen_cost(&self.costs, &self.schedule)
    }

    /// Calls `tell` with every stretch of time in order, and with the kernels that count it: those on cores, or else
    /// the collective that ends last.
    fn each_stretch(&self, mut tell: impl FnMut(Seconds, &[usize])) {
        let span = |i: usize| self.spans[i];
        let is_collective = |i: &usize| matches!(self.kernels[*i].kernel, Kernel::Collective(_));
        let (network, work): (Vec<usize>, Vec<usize>) =
            (0..self.kernels.len()).filter(|&i| span(i)[1] > span(i)[0]).partition(is_collective);
        let mut moments: Vec<f64> = work.iter().chain(&network).flat_map(|&i| span(i)).collect();
        moments.sort_unstable_by(f64::total_cmp);
        moments.dedup();
        let mut counting = Vec::new();
        for between in moments.windows(2) {
            let runs = |i: &&usize| span(**i)[0] <= between[0] && span(**i)[1] >= between[1];
            counting.clear();
            counting.extend(work.iter().filter(runs));
            if counting.is_empty() {
                let last = network.iter().filter(runs).max_by(|a, b| span(**a)[1].total_cmp(&span(**b)[1]));
                counting.extend(last);
            }
            tell(Seconds(between[1] - between[0]), &counting);
        }
    }

    /// Returns the time in which only collectives run: (tensor, context, expert).
    fn exposed_by_axis(&self) -> [Seconds; 3] {
        let mut exposed = [Seconds::ZERO; 3];
        if !self.kernels.iter().any(|node| matches!(node.kernel, Kernel::Collective(_))) {
            return exposed;
        }
        self.each_stretch(|time, counting| {
            let collective = counting.iter().find(|i| matches!(self.kernels[**i].kernel, Kernel::Collective(_)));
            if let Some(&last) = collective {
                let axis = match self.kernels[last].role.axis {
                    Some(ParallelAxis::Tensor) | None => 0,
                    Some(ParallelAxis::Context) => 1,
                    Some(ParallelAxis::Expert) => 2,
                };
                exposed[axis] += time;
            }
        });
        exposed
    }

    /// Returns each kernel's part of the pass's time. Kernels side by side on cores have equal parts; a collective has
    /// the time in which no core works.
    pub(crate) fn exposed_by_kernel(&self) -> Vec<Seconds> {
        let mut exposed = vec![Seconds::ZERO; self.kernels.len()];
        self.each_stretch(|time, counting| {
            counting.iter().for_each(|&i| exposed[i] += time * (1.0 / counting.len() as f64));
        });
        exposed
    }

    /// Returns the end of the last kernel.
    fn makespan(&self) -> Seconds {
        Seconds(self.spans.iter().map(|span| span[1]).fold(0.0, f64::max))
    }
}

fn chosen_cost(costs: &[CostsBySpan], schedule: &Schedule) -> Vec<KernelCost> {
    costs.iter().zip(&schedule.exclusive).map(|(c, &all)| if all { c.all_cores } else { c.one_core }).collect()
}

impl ChipTimes {
    /// Returns the pass of a graph by the operator schedule, without the kernels that `left_out` selects. The
    /// successors of such a kernel wait for its predecessors instead.
    ///
    /// # Errors
    /// A chip so slow that its times leave the schedule's range.
    pub(crate) fn scheduled_pass(
        &mut self,
        graph: &KernelGraph,
        network: &impl StepNetwork,
        left_out: impl Fn(&KernelNode) -> bool,
    ) -> Result<PassProfile, StepError> {
        if self.fidelity() < Fidelity::Scheduled {
            let part = GraphPart::without_left_out(graph, left_out);
            let kernels = part.kernel_nodes(graph);
            let outline = Outline::new(kernels.len(), &part.edges, |i| occupies_cores(&kernels[i].kernel));
            let chains = self.fidelity() == Fidelity::Mapped;
            let ticks = outline.lower_bound(&self.schedule_cores(), chains, |i| {
                self.cached_least_in_schedule(&kernels[i].kernel, network)
            });
            return Ok(PassProfile { device: Seconds(ticks / TICKS_PER_SECOND), ..launched_pass(&kernels, network) });
        }
        let scheduled = self.schedule_graph(graph, network, left_out)?;
        let mut pass = launched_pass(&scheduled.kernels, network);
        let kernels = scheduled.chosen_costs();
        pass.energy = kernels.iter().map(|cost| cost.energy).sum();
        let makespan = scheduled.makespan();
        pass.unproven = makespan - scheduled.least;
        if self.fidelity() == Fidelity::Scheduled && pass.unproven > Seconds::ZERO {
            let unproven = pass.unproven;
            return Ok(PassProfile { device: scheduled.least, unproven, ..launched_pass(&scheduled.kernels, network) });
        }
        let exposed = scheduled.exposed_by_axis();
        pass.device = makespan - exposed.iter().copied().sum::<Seconds>();
        [pass.tensor, pass.context, pass.expert] = exposed;
        Ok(pass)
    }

    /// Returns the schedule of a graph, without the kernels that `left_out` selects.
    ///
    /// # Errors
    /// A chip so slow that its times leave the schedule's range.
    pub(crate) fn schedule_graph<'g>(
        &mut self,
        graph: &'g KernelGraph,
        network: &impl StepNetwork,
        left_out: impl Fn(&KernelNode) -> bool,
    ) -> Result<ScheduledPass<'g>, StepError> {
        let part = GraphPart::without_left_out(graph, left_out);
        let kernels = part.kernel_nodes(graph);
        let costs: Vec<CostsBySpan> = kernels.iter().map(|node| self.schedule_costs(&node.kernel, network)).collect();
        let chip = self.chip();
        let operators: Vec<Operator> =
            kernels.iter().zip(&costs).map(|(node, costs)| schedule_operator(chip, &node.kernel, costs)).collect();
        let problem = Problem::new(schedule_cores(chip), operators, part.edges)
            .map_err(|why| StepError::Hardware(format!("{}: {why}", self.chip().name)))?;
        let schedule = self.schedule_memo().solve_problem(&problem);
        let uses: Vec<PortUse> = costs.iter().map(|costs| shared_ports::port_use(chip, costs)).collect();
        let sharing = PortSharing::new(&problem, &uses);
        let spans = sharing.spans_of_schedule(&schedule);
        let least = least_ticks(&sharing, &schedule, &uses, spans.iter().map(|span| span[1]).fold(0.0, f64::max));
        let spans = spans.into_iter().map(|span| span.map(|at| at / TICKS_PER_SECOND)).collect();
        Ok(ScheduledPass { kernels, costs, schedule, spans, least: Seconds(least / TICKS_PER_SECOND) })
    }
}

/// Returns a lower bound in ticks on the makespan over all orders. `makespan` is that of the found order. The bound
/// comes from the schedule and the busiest port. If those leave a gap, concurrent kernels give another bound. A bound
/// within rounding of the makespan becomes the makespan.
fn least_ticks(sharing: &PortSharing<'_>, schedule: &Schedule, uses: &[PortUse], makespan: f64) -> f64 {
    let meets = |bound: f64| bound >= makespan * (1.0 - ROUNDING);
    let quick = (schedule.lower_bound as f64).max(shared_ports::busiest_port_ticks(uses));
    let bound = if meets(quick) { quick } else { sharing.lower_bound().map_or(quick, |least| least.max(quick)) };
    if meets(bound) { makespan } else { bound }
}

/// Returns a pass with these kernels but without their time.
fn launched_pass(kernels: &[&KernelNode], network: &impl StepNetwork) -> PassProfile {
    let mut pass = PassProfile { launches: u32::try_from(kernels.len()).unwrap_or(u32::MAX), ..PassProfile::default() };
    for node in kernels {
        if let Kernel::Collective(collective) = &node.kernel {
            pass.ports = pass.ports + network.cost_of_collective(collective).ports;
            pass.collective_ranks = pass.collective_ranks.saturating_add(collective.group.ranks);
        }
    }
    pass
}

/// A part of a graph, with its nodes in a valid execution order.
struct GraphPart {
    nodes: Vec<u32>,
    /// Pairs of positions in `nodes`, sorted by the later one.
    edges: Vec<(u32, u32)>,
}

impl GraphPart {
    fn without_left_out(graph: &KernelGraph, left_out: impl Fn(&KernelNode) -> bool) -> Self {
        let mut place: Vec<Option<u32>> = vec![None; graph.node_count()];
        let mut nodes = Vec::new();
        for (node, weight) in graph.node_weights().enumerate() {
            if !left_out(weight) {
                place[node] = u32::try_from(nodes.len()).ok();
                nodes.push(node as u32);
            }
        }
        // For each node, the kept nodes that it waits for. Lowering adds a node after all nodes that it waits for.
        let mut waits: Vec<Vec<u32>> = vec![Vec::new(); graph.node_count()];
        let mut before: Vec<Vec<u32>> = vec![Vec::new(); graph.node_count()];
        for edge in graph.raw_edges() {
            before[edge.target().index()].push(edge.source().index() as u32);
        }
        for node in 0..graph.node_count() {
            let mut all: Vec<u32> = Vec::new();
            for &earlier in &before[node] {
                match place[earlier as usize] {
                    Some(place) => all.push(place),
                    None => all.extend(&waits[earlier as usize]),
                }
            }
            all.sort_unstable();
            all.dedup();
            waits[node] = all;
        }
        let edges = nodes
            .iter()
            .enumerate()
            .flat_map(|(at, &node)| waits[node as usize].iter().map(move |&w| (w, at as u32)))
            .collect();
        Self { nodes, edges }
    }

    /// Returns its kernels.
    fn kernel_nodes<'g>(&self, graph: &'g KernelGraph) -> Vec<&'g KernelNode> {
        let all: Vec<&KernelNode> = graph.node_weights().collect();
        self.nodes.iter().map(|&node| all[node as usize]).collect()
    }
}
