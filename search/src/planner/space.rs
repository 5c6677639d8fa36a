//! The plans that fixed hardware leaves to choose from.

use super::Job;
use crate::step::TrainingPlan;
use sim::pipeline::Schedule;
use workloads::parallel::tensor_parallel_degrees;
use workloads::{ActivationPolicy, Batch, Layout, LayoutError, ZeroStage};

/// The longest sequence that is not split over devices unless asked for.
const LONG_SEQUENCE: u64 = 8192;

/// Which values each decision may take; `None` is every value that obeys the rules.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PlanSpace {
    /// Tensor-parallel widths.
    pub tensor: Option<Vec<u32>>,
    /// Pipeline stages.
    pub pipeline: Option<Vec<u32>>,
    /// Context-parallel widths; `None` is 1, and every power of two for sequences above 8,192 tokens.
    pub context: Option<Vec<u32>>,
    /// Expert-parallel widths, for models with experts.
    pub expert: Option<Vec<u32>>,
    /// Model chunks per stage.
    pub virtual_stages: Option<Vec<u32>>,
    /// What data-parallel ranks share; `None` is all four without a pipeline, and ZeRO-0 and ZeRO-1 with one (ZeRO-2 and -3 would
    /// communicate in every micro-batch; no framework combines them with a pipeline by default).
    pub zero: Option<Vec<ZeroStage>>,
    /// Sequences per micro-batch.
    pub micro_batch: Option<Vec<u64>>,
    /// What layers keep; `None` is nothing recomputed, the attention core, everything.
    pub activations: Option<Vec<ActivationPolicy>>,
    /// Pipeline schedules without model chunks; `None` is 1F1B.
    pub schedules: Option<Vec<Schedule>>,
}

/// The divisors of a number, rising.
fn divisors(n: u64) -> Vec<u64> {
    let mut small: Vec<u64> = (1..).take_while(|d| d * d <= n).filter(|d| n.is_multiple_of(*d)).collect();
    let large: Vec<u64> = small.iter().rev().map(|d| n / d).filter(|d| d * d > n).collect();
    small.extend(large);
    small
}

/// The values of a decision: those allowed that are among the possible ones.
fn among<T: Copy + PartialEq>(allowed: &Option<Vec<T>>, possible: Vec<T>) -> Vec<T> {
    match allowed {
        Some(list) => possible.into_iter().filter(|v| list.contains(v)).collect(),
        None => possible,
    }
}

fn small_divisors(n: u64) -> Vec<u32> {
    divisors(n).into_iter().filter_map(|d| u32::try_from(d).ok()).collect()
}

impl PlanSpace {
    /// The first rule that a value asked for breaks by itself, whatever the others are.
    #[must_use]
    pub fn fault(&self, job: &Job<'_>) -> Option<LayoutError> {
        let batch = Batch { micro_batch: 1, global_batch: job.global_batch, sequence_length: job.sequence_length };
        let listed = |list: &Option<Vec<u32>>| list.clone().unwrap_or_default();
        let tensor = listed(&self.tensor).into_iter().map(|tensor| Layout { tensor, ..Layout::default() });
        let pipeline = listed(&self.pipeline).into_iter().map(|pipeline| Layout { pipeline, ..Layout::default() });
        let mut faults = tensor.chain(pipeline).filter_map(|layout| layout.check(job.model, &batch).err());
        let sizes = self.micro_batch.clone().unwrap_or_default();
        let size = sizes.into_iter().find(|b| !job.global_batch.is_multiple_of(*b)).map(|b| LayoutError {
            key: "micro_batch",
            value: b.to_string(),
            limit: format!("a divisor of the {} sequences of a step", job.global_batch),
            cure: "use one that divides them".to_owned(),
        });
        let dense = job.model.experts.is_none();
        let expert = listed(&self.expert).into_iter().find(|e| dense && *e > 1).map(|e| LayoutError {
            key: "ep",
            value: e.to_string(),
            limit: "1 for a model without experts".to_owned(),
            cure: "leave it out".to_owned(),
        });
        faults.next().or(size).or(expert)
    }

    /// Every plan of the space that uses all of the job's devices and obeys the layout's rules.
    #[must_use]
    pub fn plans(&self, job: &Job<'_>) -> Vec<TrainingPlan> {
        let mut plans = Vec::new();
        let devices = u64::from(job.devices);
        let widths = tensor_parallel_degrees(job.model, job.devices);
        let widths = widths.into_iter().filter(|t| devices.is_multiple_of(u64::from(*t))).collect();
        for tensor in among(&self.tensor, widths) {
            let rest = devices / u64::from(tensor);
            for context in self.contexts(job, rest) {
                let rest = rest / u64::from(context);
                for pipeline in among(&self.pipeline, small_divisors(rest)) {
                    let data = (rest / u64::from(pipeline)) as u32;
                    let layout = Layout { tensor, context, pipeline, data, ..Layout::default() };
                    self.of_degrees(job, layout, &mut plans);
                }
            }
        }
        plans
    }

    fn contexts(&self, job: &Job<'_>, rest: u64) -> Vec<u32> {
        match &self.context {
            Some(list) => among(&Some(list.clone()), small_divisors(rest)),
            None if job.sequence_length > LONG_SEQUENCE => {
                small_divisors(rest).into_iter().filter(|c| c.is_power_of_two()).collect()
            }
            None => vec![1],
        }
    }

    /// The plans of given degrees.
    fn of_degrees(&self, job: &Job<'_>, layout: Layout, plans: &mut Vec<TrainingPlan>) {
        if !job.global_batch.is_multiple_of(layout.data.into()) || u64::from(layout.pipeline) > job.model.layers + 2 {
            return;
        }
        let per_rank = job.global_batch / u64::from(layout.data);
        let experts: Vec<u32> = match &job.model.experts {
            Some(_) => among(&self.expert, small_divisors(layout.data.into())),
            None => vec![1],
        };
        let chunks: Vec<u32> = if layout.pipeline > 1 { (1..=job.model.layers.min(64) as u32).collect() } else { vec![1] };
        for expert in experts {
            for virtual_stages in among(&self.virtual_stages, chunks.clone()) {
                for zero in self.zeros(&layout) {
                    for sequence_parallel in if layout.tensor > 1 { vec![true, false] } else { vec![false] } {
                        let layout = Layout { expert, virtual_stages, zero, sequence_parallel, ..layout };
                        if layout.chunk_layers(job.model.layers).is_ok() {
                            self.of_layout(job, layout, per_rank, plans);
                        }
                    }
                }
            }
        }
    }

    fn zeros(&self, layout: &Layout) -> Vec<ZeroStage> {
        use ZeroStage::{Gradients, None as Copies, OptimizerStates, Parameters};
        if layout.data == 1 && layout.context == 1 {
            return vec![Copies];
        }
        match &self.zero {
            Some(list) => list.clone(),
            None if layout.pipeline > 1 => vec![Copies, OptimizerStates],
            None => vec![Copies, OptimizerStates, Gradients, Parameters],
        }
    }

    fn of_layout(&self, job: &Job<'_>, layout: Layout, per_rank: u64, plans: &mut Vec<TrainingPlan>) {
        let policies = self.activations.clone().unwrap_or_else(default_policies);
        let schedules = match &self.schedules {
            Some(list) if layout.pipeline > 1 && layout.virtual_stages == 1 => list.clone(),
            _ => vec![Schedule::OneForwardOneBackward],
        };
        for micro_batch in among(&self.micro_batch, divisors(per_rank)) {
            let batch = Batch { micro_batch, global_batch: job.global_batch, sequence_length: job.sequence_length };
            let interleaves = (per_rank / micro_batch).is_multiple_of(layout.pipeline.into());
            if (layout.virtual_stages > 1 && !interleaves) || layout.check(job.model, &batch).is_err() {
                continue;
            }
            for activations in &policies {
                for &schedule in &schedules {
                    plans.push(job.plan(layout, batch, activations.clone(), schedule));
                }
            }
        }
    }
}

/// What every framework offers.
pub(super) fn default_policies() -> Vec<ActivationPolicy> {
    vec![ActivationPolicy::None, ActivationPolicy::Selective, ActivationPolicy::Full]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisors_are_all_and_rise() {
        assert_eq!(divisors(1), [1]);
        assert_eq!(divisors(36), [1, 2, 3, 4, 6, 9, 12, 18, 36]);
        assert_eq!(divisors(97), [1, 97]);
    }
}
