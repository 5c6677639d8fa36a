//! Compares memory techniques: their effect on one plan of one model on one chip, and the longest sequence and largest
//! micro-batch that fit.

use sim::hardware::Accelerator;
use sim::network::Fabric;
use sim::units::Bytes;
use step::{
    ChipTimes, DeviceMemory, MemoryReading, OverCapacity, SoftwareStack, StepError, StepMemory, StepTime, TrainingPlan,
    lower_plan, sharing_domain, step_memory, step_time,
};
use workloads::memory::TrainingQuantities;
use workloads::{Model, SegmentKind, Techniques};

/// Limits on the sequence length, in tokens, and on the micro-batch.
const LONGEST: u64 = 1 << 24;
const LARGEST: u64 = 1 << 16;
/// Resolution of sequence lengths, in tokens.
const TOKENS: u64 = 256;
/// Step times within this ratio tie.
const EQUAL: f64 = 1.001;

/// A model, hardware and a plan, to which techniques are applied.
#[derive(Debug, Clone, Copy)]
pub struct TechniqueSetting<'a> {
    /// The model.
    pub model: &'a Model,
    /// The chip of every device.
    pub chip: &'a Accelerator,
    /// The network between them.
    pub fabric: &'a Fabric,
    /// The software.
    pub stack: &'a SoftwareStack,
    /// The plan.
    pub plan: &'a TrainingPlan,
}

/// A plan under some techniques.
#[derive(Debug, Clone)]
pub struct TechniqueTrial {
    /// The techniques, with their chosen parameters.
    pub techniques: Techniques,
    /// Memory by stage.
    pub memory: StepMemory,
    /// The step's time, whether the plan fits or not.
    pub time: StepTime,
    /// The shortfall; `None` if the plan fits.
    pub lacks: Option<OverCapacity>,
    /// Activation bytes of one layer, for one micro-batch on one device: those kept on the device, and those offloaded.
    pub layer: [Bytes; 2],
    /// Notes about requested techniques that change nothing.
    pub notes: Vec<String>,
}

impl TechniqueSetting<'_> {
    fn with_techniques(&self, techniques: &Techniques, change: impl FnOnce(&mut TrainingPlan)) -> TrainingPlan {
        let mut plan = TrainingPlan { techniques: techniques.clone(), ..self.plan.clone() };
        change(&mut plan);
        plan
    }

    fn memory_of_plan(&self, plan: &TrainingPlan) -> Result<StepMemory, StepError> {
        let domain = sharing_domain(self.stack, self.fabric.fast_domain_devices(), &plan.layout);
        step_memory(self.model, plan, self.stack, DeviceMemory::of_chip(self.chip), domain)
    }

    /// Evaluates the plan under these techniques, exactly as given.
    ///
    /// # Errors
    /// Techniques that cannot be used here, no host or storage to offload to, or a plan that the model does not allow.
    pub fn try_techniques(&self, techniques: &Techniques) -> Result<TechniqueTrial, StepError> {
        let plan = self.with_techniques(techniques, |_| {});
        let graph = lower_plan(self.model, &plan, self.stack)?;
        let layer = graph.segment(SegmentKind::Layer).map(|segment| {
            let treatment =
                plan.activations.first_layer_policy().treatment_with_extent(&segment.graph, self.stack.replay_extent());
            [treatment.kept_bytes(&segment.graph), treatment.offloaded_bytes(&segment.graph)]
        });
        let memory = self.memory_of_plan(&plan)?;
        let time = step_time(&mut ChipTimes::new(self.chip, self.stack)?, self.model, self.fabric, &plan)?;
        let lacks_storage =
            self.chip.storage.is_none() && memory.stages.iter().any(|stage| stage.storage > Bytes::ZERO);
        let lacks_host = self.chip.host.is_none() && memory.stages.iter().any(|stage| stage.host > Bytes::ZERO);
        if lacks_storage || lacks_host || !time.total.0.is_finite() {
            let names: Vec<String> = techniques.iter().map(ToString::to_string).collect();
            let host = lacks_host || self.chip.storage.is_some();
            let lacks = if host { "[host] link" } else { "[storage], or --nvme GB_PER_S:GB" };
            return Err(StepError::Hardware(format!(
                "{}: {} has nothing to offload to; give the chip's file a {lacks}",
                names.join("+"),
                self.chip.name
            )));
        }
        let notes = graph.applied.map(|applied| applied.notes).unwrap_or_default();
        let lacks = memory.check_fits().err();
        Ok(TechniqueTrial {
            techniques: techniques.clone(),
            lacks,
            memory,
            time,
            layer: layer.unwrap_or_default(),
            notes,
        })
    }

    /// As [`Self::try_techniques`], but chooses an offload fraction that the user left open.
    ///
    /// Tries every eighth from 1 down to 0. The shortest step that fits wins; if none fits, the smallest shortfall
    /// wins. Steps within a thousandth tie, and on a tie the largest fraction wins.
    ///
    /// # Errors
    /// As [`Self::try_techniques`].
    pub fn try_best_fractions(&self, techniques: &Techniques) -> Result<TechniqueTrial, StepError> {
        let mut tried = techniques.offload_choices().into_iter().map(|choice| self.try_techniques(&choice));
        let mut best = tried.next().unwrap_or_else(|| self.try_techniques(techniques));
        // If there is nothing to offload to, smaller fractions are no answer.
        if let Err(StepError::Hardware(_)) = best {
            return best;
        }
        // A smaller fraction may succeed if a larger one is refused.
        for other in tried.flatten() {
            let lacking = |trial: &TechniqueTrial| {
                trial.lacks.as_ref().map_or(0, |lack| lack.need.0 - lack.have.0.min(lack.need.0))
            };
            let key = |trial: &TechniqueTrial| (lacking(trial), trial.time.total.0);
            let (lack, time) = key(&other);
            // A larger fraction saves memory, so it wins unless its step is longer by more than a thousandth.
            let better = best
                .as_ref()
                .map(key)
                .map_or(true, |(least, shortest)| lack < least || lack == least && time * EQUAL < shortest);
            if better {
                best = Ok(other);
            }
        }
        best
    }

    /// The longest sequence in tokens that fits with these techniques. Lengths are multiples of 256 tokens, or of the
    /// context-parallel times the tensor-parallel degree if that is larger. `None` if not even one such multiple fits.
    /// Learned positions of the model limit it.
    #[must_use]
    pub fn longest_sequence(&self, techniques: &Techniques) -> Option<u64> {
        let parts = u64::from(self.plan.layout.context.max(1)) * u64::from(self.plan.layout.tensor.max(1));
        let step = TOKENS.max(parts);
        self.largest_count(techniques, LONGEST / step, |plan, count| plan.batch.sequence_length = count * step)
            .map(|count| count * step)
    }

    /// The largest micro-batch, in sequences, that fits with these techniques and the same number of micro-batches per
    /// step. `None` if not even one sequence fits.
    #[must_use]
    pub fn largest_micro_batch(&self, techniques: &Techniques) -> Option<u64> {
        let each = self.plan.batch.global_batch / self.plan.batch.micro_batch.max(1);
        self.largest_count(techniques, LARGEST, |plan, count| {
            plan.batch.micro_batch = count;
            plan.batch.global_batch = each * count;
        })
    }

    /// The largest count up to `limit` with which the plan fits; `None` if 1 does not fit. A larger count never needs
    /// less memory.
    fn largest_count(&self, techniques: &Techniques, limit: u64, set: impl Fn(&mut TrainingPlan, u64)) -> Option<u64> {
        // A larger count may need another offload fraction.
        let choices = techniques.offload_choices();
        let fits = |count: u64| {
            choices.iter().any(|choice| {
                let plan = self.with_techniques(choice, |plan| set(plan, count));
                self.memory_of_plan(&plan).is_ok_and(|memory| memory.check_fits().is_ok())
            })
        };
        if !fits(1) {
            return None;
        }
        let (mut low, mut high) = (1, 2);
        while high <= limit && fits(high) {
            (low, high) = (high, high * 2);
        }
        let mut high = high.min(limit + 1);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if fits(middle) { low = middle } else { high = middle }
        }
        Some(low)
    }

    /// Allocated bytes of the fullest stage at its peak.
    #[must_use]
    pub fn peak_live_bytes(&self, trial: &TechniqueTrial) -> Bytes {
        trial.memory.peak_reading(MemoryReading::Allocated)
    }

    /// Quantities of the model that the parameters of techniques may refer to.
    ///
    /// # Errors
    /// Never fails at present.
    pub fn model_facts(&self) -> Result<TrainingQuantities, StepError> {
        Ok(TrainingQuantities::new(self.model, &step::lowering_of_plan(self.model, self.plan, self.stack)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use sim::pipeline::PipelineSchedule;
    use workloads::footprint::{Optimizer, Precision};
    use workloads::training::Attention;
    use workloads::{ActivationPolicy, Batch, Layout, Technique};

    fn plan(sequence_length: u64) -> TrainingPlan {
        TrainingPlan {
            layout: Layout::default(),
            batch: Batch { micro_batch: 1, global_batch: 1, sequence_length },
            activations: ActivationPolicy::None.into(),
            attention: Attention::Fused,
            precision: Precision::PURE_BF16,
            optimizer: Optimizer::Adam,
            schedule: PipelineSchedule::OneForwardOneBackward,
            techniques: Techniques::default(),
        }
    }

    fn list(names: &str) -> Techniques {
        names.split_whitespace().map(|name| name.parse::<Technique>().unwrap()).collect()
    }

    #[test]
    fn what_fits_is_the_longest_that_does() {
        let (model, chip) = (Model::load("llama2-7b").unwrap(), Accelerator::built_in("a100_80gb_sxm").unwrap());
        let (fabric, stack) = (Fabric::built_in("phaze_flat").unwrap(), SoftwareStack::load("megatron").unwrap());
        let fabric = fabric.for_devices(1).unwrap();
        let own = plan(4096);
        let setting = TechniqueSetting { model: &model, chip: &chip, fabric: &fabric, stack: &stack, plan: &own };
        let longest = |names: &str| setting.longest_sequence(&list(names)).unwrap();
        let (none, full, mst) = (longest(""), longest("megatron-full"), longest("mst"));
        assert!(none < full && full < mst, "{none} {full} {mst}");
        for (tokens, fits) in [(mst, true), (mst + TOKENS, false)] {
            let plan = plan(tokens);
            let trial = TechniqueSetting { plan: &plan, ..setting }.try_techniques(&list("mst")).unwrap();
            assert_eq!(trial.lacks.is_none(), fits, "{tokens}");
        }
        let batches = |names: &str| setting.largest_micro_batch(&list(names)).unwrap();
        assert!(batches("") < batches("megatron-full"));
    }

    #[test]
    fn what_goes_away_is_chosen_by_the_step() {
        let model = Model::load("llama2-7b").unwrap();
        let mut chip = Accelerator::built_in("a100_80gb_sxm").unwrap();
        let (fabric, stack) = (Fabric::built_in("phaze_flat").unwrap(), SoftwareStack::load("megatron").unwrap());
        let fabric = fabric.for_devices(1).unwrap();
        let own = plan(8192);
        let fraction = |chip: &Accelerator| {
            let setting = TechniqueSetting { model: &model, chip, fabric: &fabric, stack: &stack, plan: &own };
            let trial = setting.try_best_fractions(&list("memo")).unwrap();
            let all: Vec<TechniqueTrial> = (0..=8)
                .map(|i| setting.try_techniques(&list(&format!("memo,fraction={}", f64::from(i) / 8.0))).unwrap())
                .collect();
            let least = all.iter().filter(|t| t.lacks.is_none()).map(|t| t.time.total.0).fold(f64::INFINITY, f64::min);
            assert!(trial.time.total.0 <= least * EQUAL.powi(8), "{}", trial.techniques);
            trial.techniques.to_string()
        };
        // With a slow link, copies take longer than the reruns that they save, so nothing is offloaded. With a fast
        // link, everything is offloaded.
        if let Some(host) = &mut chip.host {
            host.bandwidth.0 = 1e9;
        }
        assert_eq!(fraction(&chip), "memo,fraction=0");
        if let Some(host) = &mut chip.host {
            host.bandwidth.0 = 1e12;
        }
        assert_eq!(fraction(&chip), "memo,fraction=1");
    }
}
