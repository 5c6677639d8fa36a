//! The event simulation of a pipeline.

use super::order::{ZB_H1_DELAYS, static_order_of};
use super::pass::{OrderStep, PipelinePass, StageTurn};
use super::reductions::{PassSpan, StageReduction, times_of_reductions};
use super::zb_v;
use super::{Pipeline, PipelineError, PipelineSchedule, VSchedule};
use crate::units::{Bytes, Seconds};
use serde::{Deserialize, Serialize};

/// The kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PipelineEventKind {
    /// Forward pass.
    Forward,
    /// Recomputation before a backward pass.
    Recompute,
    /// Backward pass: all of it, or the input gradient if the schedule splits the weight gradient off.
    Backward,
    /// The weight gradient, if the schedule splits it off.
    WeightGradient,
    /// Reduction of gradients, on the network.
    Reduction,
    /// Optimizer update.
    Optimizer,
}

/// One event on one device.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PipelineEvent {
    /// The device along the pipeline.
    pub device: u32,
    /// The virtual stage.
    pub stage: u32,
    /// The micro-batch; 0 for once-per-step events.
    pub micro_batch: u32,
    /// Its kind.
    pub kind: PipelineEventKind,
    /// The start of the event.
    pub start: Seconds,
    /// The end of the event.
    pub end: Seconds,
}

/// One device's report.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct DeviceReport {
    /// Time spent on forward and backward passes.
    pub busy: Seconds,
    /// Time without a pass until the end of the pipeline's last pass on any device.
    pub bubble: Seconds,
    /// The part of the bubble spent waiting for a message whose sender had already finished.
    pub exposed_send: Seconds,
    /// Time from the device's last pass to the end of its gradient reduction.
    pub exposed_reduction: Seconds,
    /// The end of the device's last pass.
    pub passes_end: Seconds,
    /// The end of the device's optimizer update.
    pub end: Seconds,
    /// Peak memory in bytes.
    pub peak_memory: Bytes,
    /// Memory in bytes from each instant on, in order of time; empty unless the timeline was traced.
    pub memory: Vec<(Seconds, Bytes)>,
}

/// A simulated step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// Time from the first forward pass to the last optimizer update.
    pub total: Seconds,
    /// The end of the last pass on any device.
    pub passes_end: Seconds,
    /// Reports by device.
    pub devices: Vec<DeviceReport>,
    /// All events, by device and then by time; empty unless traced.
    pub events: Vec<PipelineEvent>,
}

impl Timeline {
    /// Returns the idle fraction of the devices' time until the last pass ends: 0 for a perfectly filled pipeline.
    #[must_use]
    pub fn bubble_fraction(&self) -> f64 {
        let idle: Seconds = self.devices.iter().map(|d| d.bubble).sum();
        let all = self.passes_end * self.devices.len() as f64;
        if all.0 > 0.0 { idle / all } else { 0.0 }
    }
}

impl Pipeline {
    /// Simulates the step and records every event and every change of memory.
    ///
    /// # Errors
    /// A description that breaks a rule, or a schedule that deadlocks ([`PipelineError::Stuck`]).
    pub fn simulate_step(&self) -> Result<Timeline, PipelineError> {
        self.play_schedule(true)
    }

    /// Simulates the step as [`Pipeline::simulate_step`] does, without the records, for searches.
    ///
    /// # Errors
    /// A description that breaks a rule, or a schedule that deadlocks ([`PipelineError::Stuck`]).
    pub fn simulate_without_records(&self) -> Result<Timeline, PipelineError> {
        self.play_schedule(false)
    }

    fn play_schedule(&self, trace: bool) -> Result<Timeline, PipelineError> {
        self.check_description()?;
        let play_delayed = |delay: u32| {
            let orders: Vec<Vec<OrderStep>> =
                (0..self.device_count()).map(|k| static_order_of(self, k, delay)).collect();
            self.play_step(trace, |player| player.play_fixed_orders(&orders))
        };
        match self.schedule {
            PipelineSchedule::InV(schedule) => self.play_in_v(schedule, trace),
            PipelineSchedule::ZbH1 => {
                let [delayed, prompt] = ZB_H1_DELAYS.map(play_delayed);
                let (delayed, prompt) = (delayed?, prompt?);
                Ok(if prompt.total < delayed.total { prompt } else { delayed })
            }
            _ => play_delayed(0),
        }
    }

    fn play_in_v(&self, schedule: VSchedule, trace: bool) -> Result<Timeline, PipelineError> {
        let orders = zb_v::v_orders(schedule, self.device_count() as usize, self.micro_batches as usize);
        let fastest = self.fastest_v_order(&orders).map_or(&[][..], Vec::as_slice);
        self.play_step(trace, |player| player.play_v_order(fastest))
    }

    fn play_step(&self, trace: bool, play: impl Fn(&mut PipelinePlayer<'_>)) -> Result<Timeline, PipelineError> {
        let mut player = PipelinePlayer::new(self, trace);
        play(&mut player);
        match player.find_unfinished() {
            Some((stage, micro_batch)) => Err(PipelineError::Stuck { stage, micro_batch }),
            None => Ok(player.finish_step()),
        }
    }
}

/// A device while the simulation runs.
#[derive(Default)]
struct DeviceState {
    free: f64,
    held: u64,
    report: DeviceReport,
    events: Vec<PipelineEvent>,
}

struct PipelinePlayer<'a> {
    pipeline: &'a Pipeline,
    trace: bool,
    micro_batches: usize,
    /// Device of each stage.
    device_of: Vec<usize>,
    /// Send time between stages `i` and `i + 1`; zero on one device.
    sends: Vec<f64>,
    /// End of each pass by stage and micro-batch; NaN until the pass has run.
    forward_end: Vec<f64>,
    backward_end: Vec<f64>,
    /// Start and end of each stage's last gradient-producing pass.
    gradients: Vec<PassSpan>,
    devices: Vec<DeviceState>,
}

/// Seconds at which a pass's input exists, and at which its device has it.
#[derive(Clone, Copy)]
struct InputArrival {
    produced: f64,
    arrived: f64,
}

impl<'a> PipelinePlayer<'a> {
    fn new(pipeline: &'a Pipeline, trace: bool) -> Self {
        let (stages, micro_batches) = (pipeline.stages.len(), pipeline.micro_batches as usize);
        let mut devices: Vec<DeviceState> = (0..pipeline.device_count()).map(|_| DeviceState::default()).collect();
        let device_of: Vec<usize> = (0..stages).map(|i| pipeline.device_of(i)).collect();
        for (stage, &device) in pipeline.stages.iter().zip(&device_of) {
            let device = &mut devices[device];
            device.held = device.held.saturating_add(stage.resident.0);
            device.report.peak_memory = Bytes(device.held);
        }
        if trace {
            for device in &mut devices {
                device.report.memory.push((Seconds::ZERO, Bytes(device.held)));
            }
        }
        Self {
            pipeline,
            trace,
            micro_batches,
            sends: (0..stages.saturating_sub(1))
                .map(|i| if device_of[i] == device_of[i + 1] { 0.0 } else { pipeline.sends[i].0 })
                .collect(),
            device_of,
            forward_end: vec![f64::NAN; stages * micro_batches],
            backward_end: vec![f64::NAN; stages * micro_batches],
            gradients: vec![PassSpan::default(); stages],
            devices,
        }
    }

    fn index_of_pass(&self, stage: usize, micro_batch: u32) -> usize {
        stage * self.micro_batches + micro_batch as usize
    }

    /// Returns the time at which a step's input was produced, and the time at which it arrives; `None` if its producer
    /// has not run.
    fn arrival_of_input(&self, step: OrderStep) -> Option<InputArrival> {
        let s = step.stage as usize;
        let mine = self.forward_end[self.index_of_pass(s, step.micro_batch)];
        let (produced, arrived) = match step.pass {
            PipelinePass::Forward if s == 0 => (0.0, 0.0),
            PipelinePass::Forward => {
                let end = self.forward_end[self.index_of_pass(s - 1, step.micro_batch)];
                (end, end + self.sends[s - 1])
            }
            PipelinePass::Weight => {
                let end = self.backward_end[self.index_of_pass(s, step.micro_batch)];
                (end, end)
            }
            _ if s + 1 == self.pipeline.stages.len() => (mine, mine),
            _ => {
                let end = self.backward_end[self.index_of_pass(s + 1, step.micro_batch)];
                // Both inputs must exist. NaN makes the sum NaN if the stage's own forward pass has not run.
                (end.max(mine) + 0.0 * mine, (end + self.sends[s]).max(mine) + 0.0 * (end + mine))
            }
        };
        (!arrived.is_nan()).then_some(InputArrival { produced, arrived })
    }

    /// Returns the virtual stage and micro-batch of a backward pass that never ran, if any.
    fn find_unfinished(&self) -> Option<(usize, usize)> {
        let place = self.backward_end.iter().position(|end| end.is_nan())?;
        Some((place / self.micro_batches, place % self.micro_batches))
    }

    /// Plays fixed orders round after round: every device runs as far as its inputs allow.
    fn play_fixed_orders(&mut self, orders: &[Vec<OrderStep>]) {
        let mut next = vec![0_usize; orders.len()];
        loop {
            let mut moved = false;
            // Forward results travel up and gradients down. Alternating the direction lets both cross in one round.
            for k in (0..orders.len()).chain((0..orders.len()).rev()) {
                while let Some(&step) = orders[k].get(next[k]) {
                    let Some(input) = self.arrival_of_input(step) else { break };
                    self.run_pass(k, step, input);
                    next[k] += 1;
                    moved = true;
                }
            }
            if !moved {
                return;
            }
        }
    }

    /// Plays an order in a V. Every pass comes after the passes that it needs.
    fn play_v_order(&mut self, order: &[StageTurn]) {
        let mut next = vec![[0_u32; 3]; self.pipeline.stages.len()];
        let mut steps = order.iter().map(|&StageTurn { stage, pass, with_next }| {
            let next = &mut next[stage as usize];
            let step = OrderStep { pass, stage, micro_batch: next[pass.kind_index()] };
            next[pass.kind_index()] += 1;
            // The weight gradient is part of the whole backward pass.
            next[2] += u32::from(pass == PipelinePass::WholeBackward);
            (step, with_next)
        });
        while let Some((step, with_next)) = steps.next() {
            let other = if with_next { steps.next() } else { None };
            let Some(mut input) = self.arrival_of_input(step) else { return };
            if let Some((other, _)) = other {
                let Some(beside) = self.arrival_of_input(other) else { return };
                input = InputArrival {
                    produced: input.produced.max(beside.produced),
                    arrived: input.arrived.max(beside.arrived),
                };
            }
            let device = self.device_of[step.stage as usize];
            self.run_pass(device, step, input);
            if let Some((other, _)) = other {
                self.run_pass(device, other, input);
                let forward = self.index_of_pass(step.stage as usize, step.micro_batch);
                self.forward_end[forward] = self.devices[device].free;
            }
        }
    }

    fn run_pass(&mut self, k: usize, step: OrderStep, InputArrival { produced, arrived }: InputArrival) {
        let s = step.stage as usize;
        let stage = &self.pipeline.stages[s];
        let split = self.pipeline.schedule.splits_backward();
        let place = self.index_of_pass(s, step.micro_batch);
        let free = self.devices[k].free;
        let start = free.max(arrived);
        self.devices[k].report.exposed_send += Seconds(start - free.max(produced));
        let whole = !split || step.pass == PipelinePass::WholeBackward;
        let kept = if whole { Bytes::ZERO } else { stage.stash_for_weights.min(stage.stash) };
        let end = match step.pass {
            PipelinePass::Forward => {
                let end = start + stage.forward.0;
                self.hold_activations(k, start, stage.stash);
                self.record_event(k, step, PipelineEventKind::Forward, start, end);
                self.forward_end[place] = end;
                end
            }
            PipelinePass::Backward | PipelinePass::WholeBackward => {
                let ready = start + stage.recompute.0;
                let weight = if whole { stage.backward_weight.0 } else { 0.0 };
                let end = ready + stage.backward_input.0 + weight;
                self.hold_activations(k, start, stage.working);
                if stage.recompute.0 > 0.0 {
                    self.record_event(k, step, PipelineEventKind::Recompute, start, ready);
                }
                self.record_event(k, step, PipelineEventKind::Backward, ready, end);
                self.release_activations(k, end, stage.working + stage.stash.saturating_sub(kept));
                self.backward_end[place] = end;
                if whole {
                    self.gradients[s] = PassSpan { start: ready, end };
                }
                end
            }
            PipelinePass::Weight => {
                let end = start + stage.backward_weight.0;
                self.record_event(k, step, PipelineEventKind::WeightGradient, start, end);
                self.release_activations(k, end, kept);
                self.gradients[s] = PassSpan { start, end };
                end
            }
        };
        let device = &mut self.devices[k];
        device.report.busy += Seconds(end - start);
        device.report.passes_end = Seconds(end);
        device.free = end;
    }

    fn record_event(&mut self, k: usize, step: OrderStep, kind: PipelineEventKind, start: f64, end: f64) {
        if self.trace {
            let (start, end) = (Seconds(start), Seconds(end));
            let event =
                PipelineEvent { device: k as u32, stage: step.stage, micro_batch: step.micro_batch, kind, start, end };
            self.devices[k].events.push(event);
        }
    }

    fn hold_activations(&mut self, k: usize, time: f64, bytes: Bytes) {
        let device = &mut self.devices[k];
        device.held = device.held.saturating_add(bytes.0);
        device.report.peak_memory = device.report.peak_memory.max(Bytes(device.held));
        self.sample_memory(k, time, bytes);
    }

    fn release_activations(&mut self, k: usize, time: f64, bytes: Bytes) {
        let device = &mut self.devices[k];
        device.held = device.held.saturating_sub(bytes.0);
        self.sample_memory(k, time, bytes);
    }

    fn sample_memory(&mut self, k: usize, time: f64, change: Bytes) {
        if self.trace && change > Bytes::ZERO {
            let device = &mut self.devices[k];
            device.report.memory.push((Seconds(time), Bytes(device.held)));
        }
    }

    /// Adds reductions and optimizer updates, and builds the timeline.
    fn finish_step(mut self) -> Timeline {
        let passes_end = self.devices.iter().map(|d| d.report.passes_end).fold(Seconds::ZERO, Seconds::max);
        let reduced: Vec<f64> = (0..self.devices.len()).map(|k| self.reduce_gradients(k)).collect();
        let all_reduced = reduced.iter().copied().fold(0.0, f64::max);
        let mut total = Seconds::ZERO;
        for (k, &own) in reduced.iter().enumerate() {
            let mut now = if self.pipeline.optimizer_waits_for_all { all_reduced } else { own };
            for s in self.stages_of(k) {
                let end = now + self.pipeline.stages[s].optimizer.0;
                if end > now {
                    let step = OrderStep { pass: PipelinePass::Weight, stage: s as u32, micro_batch: 0 };
                    self.record_event(k, step, PipelineEventKind::Optimizer, now, end);
                }
                now = end;
            }
            let report = &mut self.devices[k].report;
            // Rounding may make the sum of the passes' times exceed their end.
            report.bubble = (passes_end - report.busy).max(Seconds::ZERO);
            report.exposed_reduction = Seconds(own) - report.passes_end;
            report.end = Seconds(now);
            total = total.max(report.end);
        }
        let mut timeline = Timeline { total, passes_end, devices: Vec::new(), events: Vec::new() };
        for device in self.devices {
            timeline.devices.push(device.report);
            timeline.events.extend(device.events);
        }
        timeline
    }

    fn stages_of(&self, k: usize) -> Vec<usize> {
        (0..self.pipeline.stages.len()).filter(|&s| self.device_of[s] == k).collect()
    }

    /// Reduces a device's gradients. Returns the time at which all are reduced, or the end of its last pass if that is
    /// later.
    fn reduce_gradients(&mut self, k: usize) -> f64 {
        let passes_end = self.devices[k].report.passes_end.0;
        let mut all = passes_end;
        for reduction in times_of_reductions(self.pipeline, &self.stages_of(k), passes_end, &self.gradients) {
            let StageReduction { stage, span: PassSpan { start, end } } = reduction;
            let step = OrderStep { pass: PipelinePass::Weight, stage: stage as u32, micro_batch: 0 };
            self.record_event(k, step, PipelineEventKind::Reduction, start, end);
            all = all.max(end);
        }
        all
    }
}
