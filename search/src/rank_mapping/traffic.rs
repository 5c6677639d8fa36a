//! Records a plan's requests to the network, and computes the step time from the answers.
//!
//! The same code simulates the step as in [`step::step_time_of`]. There a fabric prices collectives; here a
//! [`NetworkTable`] does.

use serde::{Deserialize, Serialize};
use sim::kernel::{Collective, CollectiveKind, RankGroup};
use sim::network::{Fabric, MAX_TIERS, sibling_groups};
use sim::pipeline::{PassesTime, PipelineSchedule};
use sim::units::{Bytes, Seconds};
use std::cell::RefCell;
use step::{
    ChipTimes, Communication, PlanOnNetwork, StepError, StepNetwork, StepTime, StepWork, TrainingPlan, lower_plan,
    stage_rank_pairs, step_time_of,
};
use workloads::{Layout, Model, RankOrder};

/// The parallel axis that a collective belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrafficAxis {
    /// Tensor parallelism.
    Tensor,
    /// Context parallelism.
    Context,
    /// Data parallelism and ZeRO.
    Data,
    /// Sends between stages.
    Pipeline,
    /// Expert parallelism (a part of the data axis).
    Expert,
    /// The sum of a tied embedding's two gradients, between the first and the last stage.
    Tied,
}

/// The ranks that take part in a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CommunicationGroup {
    /// The groups of a pattern.
    Groups(RankGroup),
    /// The first stage and the last.
    Ends,
}

/// A collective that the step requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct CollectiveRequest {
    pub kind: CollectiveKind,
    pub bytes: Bytes,
    pub among: CommunicationGroup,
}

/// Groups of ranks that communicate alike, with the requests that they carry out.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RankGroups {
    pub groups: Vec<Vec<u32>>,
    /// True if all members send to each other. The slowest member then decides, instead of a ring's slowest link.
    pub exchange: bool,
    /// Indices into [`StepTraffic::asks`].
    pub asks: Vec<usize>,
}

/// The network's answers under a mapping, or lower bounds on them.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct NetworkTable<'a> {
    asks: &'a [CollectiveRequest],
    fast_domain: u32,
    launch: Seconds,
    /// The cost of each request.
    pub times: Vec<Communication>,
    /// The cost of a send between neighbouring stages, by the tier that it crosses.
    pub sends: [Communication; MAX_TIERS],
    /// The tier between neighbouring stages, by the lower stage.
    pub tiers: Vec<usize>,
}

impl NetworkTable<'_> {
    fn answer_request(&self, kind: CollectiveKind, bytes: Bytes, among: CommunicationGroup) -> Communication {
        let at = self.asks.iter().position(|ask| *ask == CollectiveRequest { kind, bytes, among });
        at.map_or_else(Communication::default, |at| self.times[at])
    }
}

impl StepNetwork for NetworkTable<'_> {
    fn fast_domain_size(&self) -> u32 {
        self.fast_domain
    }

    fn launch_time(&self) -> Seconds {
        self.launch
    }

    fn cost_of_collective(&self, collective: &Collective) -> Communication {
        self.answer_request(collective.kind, collective.bytes, CommunicationGroup::Groups(collective.group))
    }

    fn cost_of_send(&self, _: &Layout, tier: usize, _: Bytes) -> Communication {
        self.sends[tier]
    }

    fn time_of_tied_sum(&self, _: &Layout, bytes: Bytes) -> Communication {
        self.answer_request(CollectiveKind::AllReduce, bytes, CommunicationGroup::Ends)
    }

    /// As in [`step::PlacedNetwork`].
    fn tier_between(&self, _: &Layout, a: u32, b: u32) -> usize {
        if a.abs_diff(b) == 1 {
            return self.tiers[a.min(b) as usize];
        }
        self.tiers.iter().copied().max().unwrap_or(0)
    }
}

/// A network that records the step's requests and answers each with zero cost.
struct Recorder {
    fast_domain: u32,
    launch: Seconds,
    asks: RefCell<Vec<CollectiveRequest>>,
    send: RefCell<Option<Bytes>>,
}

impl Recorder {
    fn note_request(&self, kind: CollectiveKind, bytes: Bytes, among: CommunicationGroup) -> Communication {
        let (ask, mut asks) = (CollectiveRequest { kind, bytes, among }, self.asks.borrow_mut());
        if !asks.contains(&ask) {
            asks.push(ask);
        }
        Communication::default()
    }
}

impl StepNetwork for Recorder {
    fn fast_domain_size(&self) -> u32 {
        self.fast_domain
    }

    fn launch_time(&self) -> Seconds {
        self.launch
    }

    fn cost_of_collective(&self, collective: &Collective) -> Communication {
        self.note_request(collective.kind, collective.bytes, CommunicationGroup::Groups(collective.group))
    }

    fn cost_of_send(&self, _: &Layout, _: usize, bytes: Bytes) -> Communication {
        *self.send.borrow_mut() = Some(bytes);
        Communication::default()
    }

    fn time_of_tied_sum(&self, _: &Layout, bytes: Bytes) -> Communication {
        self.note_request(CollectiveKind::AllReduce, bytes, CommunicationGroup::Ends)
    }

    fn tier_between(&self, _: &Layout, _: u32, _: u32) -> usize {
        0
    }
}

/// A plan's step as far as it depends on the network: its work on the chip, and its recorded requests.
#[derive(Debug, Clone)]
pub struct StepTraffic<'a> {
    chip: ChipTimes,
    model: &'a Model,
    pub(super) plan: TrainingPlan,
    work: StepWork,
    fast_domain: u32,
    launch: Seconds,
    pub(super) asks: Vec<CollectiveRequest>,
    pub(super) lines: Vec<RankGroups>,
    /// Bytes of a send between two stages; `None` without a pipeline.
    pub(super) send: Option<Bytes>,
    /// By the lower of two neighbouring stages, the pairs of ranks that send.
    pub(super) boundaries: Vec<Vec<[u32; 2]>>,
}

/// An order of the axes, and the device of every rank in it.
pub(super) struct AxisOrder {
    /// The axes with several ranks, fastest-changing first.
    pub axes: Vec<TrafficAxis>,
    pub devices: Vec<u32>,
}

impl<'a> StepTraffic<'a> {
    /// Records the traffic of a plan. Ranks are counted as in its layout.
    ///
    /// # Errors
    /// A plan that breaks a rule of its layout, cannot be lowered, or has no step time.
    pub fn of_plan(
        chip: &mut ChipTimes,
        model: &'a Model,
        fabric: &Fabric,
        plan: &TrainingPlan,
    ) -> Result<Self, StepError> {
        let layout = plan.layout;
        layout.check_model_and_batch(model, &plan.batch)?;
        let graph = lower_plan(model, plan, chip.stack())?;
        let work = chip.work_of_lowered(model, &graph, plan)?;
        let (fast_domain, launch) = (fabric.fast_domain_devices(), fabric.launch);
        let recorder = Recorder { fast_domain, launch, asks: RefCell::default(), send: RefCell::default() };
        let profile = work.price_on_network(chip, &recorder)?;
        step_time_of(chip, model, &recorder, plan, &profile)?;
        let ranks = u32::try_from(layout.device_count()).unwrap_or(u32::MAX);
        let asks = recorder.asks.into_inner();
        let mut lines: Vec<RankGroups> = Vec::new();
        for (at, ask) in asks.iter().enumerate().filter(|(_, ask)| ask.bytes > Bytes::ZERO) {
            let groups: Vec<Vec<u32>> = match ask.among {
                CommunicationGroup::Groups(group) => sibling_groups(group, ranks).collect(),
                CommunicationGroup::Ends => {
                    stage_rank_pairs(&layout, 0, layout.pipeline - 1).map(|pair| pair.to_vec()).collect()
                }
            };
            let exchange = ask.kind.is_exchange();
            match lines.iter_mut().find(|line| line.exchange == exchange && line.groups == groups) {
                Some(line) => line.asks.push(at),
                None if groups.first().is_some_and(|group| group.len() > 1) => {
                    lines.push(RankGroups { groups, exchange, asks: vec![at] });
                }
                None => {}
            }
        }
        let send = recorder.send.into_inner().filter(|bytes| *bytes > Bytes::ZERO);
        let neighbours = (1..layout.pipeline).map(|next| stage_rank_pairs(&layout, next - 1, next).collect());
        let boundaries = neighbours.collect();
        Ok(Self {
            chip: chip.clone(),
            model,
            plan: plan.clone(),
            work,
            fast_domain,
            launch,
            asks,
            lines,
            send,
            boundaries,
        })
    }

    /// Number of ranks.
    #[must_use]
    pub fn rank_count(&self) -> u32 {
        u32::try_from(self.plan.layout.device_count()).unwrap_or(u32::MAX)
    }

    /// All groups of ranks that communicate.
    pub(super) fn all_groups(&self) -> impl Iterator<Item = Vec<u32>> + '_ {
        let pairs = self.boundaries.iter().flatten().map(|pair| pair.to_vec());
        self.lines.iter().flat_map(|line| line.groups.iter().cloned()).chain(pairs)
    }

    /// The line between the first and the last stage. `None` if they do not communicate.
    pub(super) fn line_of_ends(&self) -> Option<usize> {
        self.lines.iter().position(|line| line.asks.iter().any(|ask| self.asks[*ask].among == CommunicationGroup::Ends))
    }

    /// A network on which collectives and sends take no time. The launch time stays that of the fabric.
    pub(super) fn silent_network(&self) -> NetworkTable<'_> {
        NetworkTable {
            asks: &self.asks,
            fast_domain: self.fast_domain,
            launch: self.launch,
            times: vec![Communication::default(); self.asks.len()],
            sends: [Communication::default(); MAX_TIERS],
            tiers: vec![0; self.boundaries.len()],
        }
    }

    /// A copy of the cost model, for functions such as [`Self::step_seconds_on`] that cache kernels in it.
    pub(super) fn own_cost_model(&self) -> ChipTimes {
        self.chip.clone()
    }

    /// The step, simulated as by [`step_time_of`].
    pub(super) fn step_on_network(
        &self,
        chip: &mut ChipTimes,
        table: &NetworkTable<'_>,
    ) -> Result<StepTime, StepError> {
        let profile = self.work.price_on_network(chip, table)?;
        step_time_of(chip, self.model, table, &self.plan, &profile)
    }

    /// Seconds of the step; infinite if it cannot be simulated. Under zero-bubble schedules, which take long to
    /// simulate, a lower bound.
    pub(super) fn step_seconds_on(&self, chip: &mut ChipTimes, table: &NetworkTable<'_>) -> f64 {
        match self.closed_form_step(chip, table) {
            Some(PassesTime::Exact(time)) => time.0,
            Some(PassesTime::AtLeast(time)) if self.plan.schedule.splits_backward() => time.0,
            _ => self.step_on_network(chip, table).map_or(f64::INFINITY, |step| step.total.0),
        }
    }

    /// Lower bound in seconds on the step for the same number of boundaries on each tier, whichever boundaries they
    /// are. The schedules' closed forms depend only on this number.
    pub(super) fn lower_bound_by_crossings(&self, chip: &mut ChipTimes, table: &NetworkTable<'_>) -> f64 {
        match self.closed_form_step(chip, table) {
            Some(PassesTime::Exact(time) | PassesTime::AtLeast(time)) => time.0,
            None => {
                let nearest = table.tiers.iter().copied().min().unwrap_or(0);
                let table = NetworkTable { tiers: vec![nearest; table.tiers.len()], ..table.clone() };
                self.step_on_network(chip, &table).map_or(0.0, |step| step.total.0)
            }
        }
    }

    /// The step in closed form; `None` if the schedule has no closed form or the step cannot be priced.
    fn closed_form_step(&self, chip: &mut ChipTimes, table: &NetworkTable<'_>) -> Option<PassesTime> {
        let profile = self.work.price_on_network(chip, table).ok()?;
        let step = PlanOnNetwork { fabric: table, plan: &self.plan, profile: &profile };
        let (assembly, exchanges) = step.assemble_plan(chip, self.model).ok()?;
        let arrangement = &assembly.arrangement;
        let pipeline = u64::from(arrangement.layout.pipeline);
        let uneven = !arrangement.micro_batches.is_multiple_of(pipeline);
        if uneven && matches!(arrangement.schedule, PipelineSchedule::Interleaved { .. }) {
            return None;
        }
        Some(assembly.step_in_closed_form(
            arrangement,
            chip.stack(),
            &exchanges,
            assembly.passes_in_closed_form(arrangement),
        ))
    }

    /// The axes in the order in which ranks are counted, fastest-changing first, with their degrees.
    fn rank_order(&self) -> [(TrafficAxis, u32); 4] {
        let Layout { tensor, context, data, pipeline, order, .. } = self.plan.layout;
        let [data, pipeline] = [(TrafficAxis::Data, data), (TrafficAxis::Pipeline, pipeline)];
        let [third, last] = match order {
            RankOrder::DataFirst => [data, pipeline],
            RankOrder::PipelineFirst => [pipeline, data],
        };
        [(TrafficAxis::Tensor, tensor), (TrafficAxis::Context, context), third, last]
    }

    /// All orders of the axes that have several ranks, each with the device of every rank.
    pub(super) fn axis_orders(&self) -> Vec<AxisOrder> {
        let axes = self.rank_order();
        let wide: Vec<usize> = (0..4).filter(|axis| axes[*axis].1 > 1).collect();
        let mut orders: Vec<Vec<usize>> = vec![Vec::new()];
        for _ in &wide {
            let longer = |order: &Vec<usize>| -> Vec<Vec<usize>> {
                let free = wide.iter().filter(|axis| !order.contains(axis));
                free.map(|axis| order.iter().chain([axis]).copied().collect()).collect()
            };
            orders = orders.iter().flat_map(longer).collect();
        }
        let device = |rank: u32, order: &[usize]| {
            let mut rest = rank;
            let place = axes.map(|(_, degree)| {
                let at = rest % degree;
                rest /= degree;
                at
            });
            order.iter().rev().fold(0, |device, &axis| device * axes[axis].1 + place[axis])
        };
        let named = |order: Vec<usize>| {
            let devices = (0..self.rank_count()).map(|rank| device(rank, &order)).collect();
            AxisOrder { axes: order.iter().map(|axis| axes[*axis].0).collect(), devices }
        };
        orders.into_iter().map(named).collect()
    }
}
