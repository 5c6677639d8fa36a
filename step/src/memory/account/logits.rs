//! Logits and the tensors that the loss makes from them, whole or by chunks of tokens.

use super::{MemoryAccount, StageHolding};
use sim::units::Bytes;
use workloads::Segment;
use workloads::training::{LossForm, Lowering};

/// Sizes of the logits of a micro-batch on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct LogitBytes {
    /// Number of all logits.
    count: u64,
    /// Number of slices of the logits. One slice exists at a time.
    slices: u64,
    /// True if the loss writes the gradient over each chunk's logits and uses it up at once.
    pub chunked: bool,
    /// Bytes of a logit.
    operand: u64,
    /// Bytes of the gradient of the head's input.
    input_gradient: Bytes,
    /// Bytes of the gradient of the head's weights, in the type in which the product makes it.
    weight_gradient: Bytes,
}

impl LogitBytes {
    /// Returns the sizes of a head; zeros for a head without logits.
    pub fn new(head: &Segment, lowering: &Lowering) -> Self {
        let operand = lowering.precision.operand.bytes();
        let Some(logits) = head.graph.find_tensor("head.logits.out") else {
            return Self { slices: 1, ..Self::default() };
        };
        let product = head.graph.tensors[logits.index()].producer.map(|op| &head.graph.operators[op.index()]);
        let input = product.and_then(|op| op.inputs.first()).map(|id| head.graph.tensors[id.index()].gradient_bytes);
        let weights = product.map_or(0, |op| op.parameters.per_device_count());
        let slices = head.graph.settled.slices.get(&logits).copied();
        Self {
            count: head.graph.tensors[logits.index()].bytes.0 / operand,
            slices: slices.unwrap_or(1).max(1),
            // A head on one token per sequence has few logits and is never cut.
            chunked: lowering.loss == LossForm::Chunked && slices.is_some(),
            operand,
            input_gradient: input.unwrap_or_default(),
            weight_gradient: Bytes(operand) * weights,
        }
    }

    /// Returns the bytes that a micro-batch keeps between its loss and its backward pass under GPipe: fp32
    /// probabilities, or, with a loss by chunks, the gradient of the head's input.
    pub fn waiting(&self) -> Bytes {
        if self.chunked { self.input_gradient } else { Bytes(4 * self.count) }
    }
}

impl MemoryAccount<'_> {
    /// Returns the bytes of logits while the loss runs.
    ///
    /// With a loss by chunks, these are one chunk's logits (their gradient takes their place), the gradient of the
    /// whole input, and the gradient of the weights. The latter is left out if it is counted as a gradient already.
    /// From the second micro-batch of a step on, it stands beside the gradient that it is added to (Liger-Kernel,
    /// `ops/fused_linear_cross_entropy.py`: `grad_input`, `grad_weight`).
    pub(super) fn logits_at_work(&self, held: &StageHolding) -> Bytes {
        let logits = &self.profile.logits;
        if !logits.chunked {
            return Bytes((logits.count as f64 * self.stack.memory.bytes_per_logit) as u64 / logits.slices);
        }
        let chunk = Bytes((logits.count * logits.operand).div_ceil(logits.slices));
        let several = self.arrangement.micro_batches > 1;
        let counted = if several { Bytes::ZERO } else { self.head_gradient_bytes(held) };
        // A frozen head has no gradient.
        let made = logits.weight_gradient.min(held.resident.gradients);
        chunk + logits.input_gradient + made.saturating_sub(counted)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::memory::account::MemoryProfile;
    use crate::pass::lowering::lower_plan;
    use crate::pipeline::arrangement::Arrangement;
    use crate::technique_tests::technique_plan;
    use crate::{SoftwareStack, TrainingPlan};
    use workloads::footprint::{Optimizer, Precision};
    use workloads::{Layout, Model};

    const TOKENS: u64 = 4096;
    const HEAD: u64 = 128_256 * 4096;

    /// Returns the bytes at work in the loss, and those of the update's temporaries, of two layers of llama3-8b.
    fn bytes(stack: &str, loss: LossForm, tensor: u32, change: impl Fn(TrainingPlan) -> TrainingPlan) -> [u64; 2] {
        let model = Model { layers: 2, ..Model::load("llama3-8b").unwrap() };
        bytes_of_model(&model, stack, loss, tensor, change)
    }

    fn bytes_of_model(
        model: &Model,
        stack: &str,
        loss: LossForm,
        tensor: u32,
        change: impl Fn(TrainingPlan) -> TrainingPlan,
    ) -> [u64; 2] {
        let stack = SoftwareStack::load(stack).unwrap().with_loss(loss).unwrap();
        let plan = technique_plan(Layout { tensor, ..Layout::default() }, 1, "");
        let plan = change(TrainingPlan { precision: Precision::PURE_BF16, ..plan });
        let training = lower_plan(model, &plan, &stack).unwrap();
        let profile = MemoryProfile::new(&training, &plan.activations, &stack);
        let split = plan.layout.chunk_split(model.layers).unwrap();
        let arrangement = Arrangement::new(plan.layout, split, plan.schedule, plan.micro_batches());
        let account = MemoryAccount::new(&profile, &arrangement, &stack, None);
        let held = account.stage_holding(0);
        [account.logits_at_work(&held).0, account.update_temporaries(&held).0]
    }

    #[test]
    fn a_head_that_denoises_images_has_no_logits() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../workloads/tests/configs/dit_xl_2.json");
        let model = Model::load_file(std::path::Path::new(file)).unwrap();
        assert_eq!(bytes_of_model(&model, "huggingface", LossForm::Whole, 1, |plan| plan)[0], 0);
    }

    #[test]
    fn a_chunk_of_logits_and_two_gradients_stand_for_all_logits() {
        let same = |plan| plan;
        let loss = |stack, loss, tensor| bytes(stack, loss, tensor, same)[0];
        assert_eq!(loss("huggingface", LossForm::Whole, 1), 10 * TOKENS * 128_256);
        // 4,096 tokens over 32 parts: chunks of 128. The head's gradient is counted as a gradient.
        assert_eq!(loss("huggingface", LossForm::Chunked, 1), 2 * 128 * 128_256 + 2 * TOKENS * 4096);
        // Each of eight devices has 16,032 columns: four parts, chunks of 1,024.
        assert_eq!(loss("huggingface", LossForm::Chunked, 8), 2 * 1024 * 16_032 + 2 * TOKENS * 4096);
        // From the second micro-batch on, a new gradient of the head stands beside the sum.
        let several = |plan: TrainingPlan| {
            let batch = workloads::Batch { global_batch: 2, ..plan.batch };
            TrainingPlan { batch, ..plan }
        };
        let [more, _] = bytes("huggingface", LossForm::Chunked, 1, several);
        assert_eq!(more, 2 * 128 * 128_256 + 2 * TOKENS * 4096 + 2 * HEAD);
        // A frozen head has no gradient.
        let frozen = |plan: TrainingPlan| {
            let techniques = [("lora,rank=8").parse().unwrap()].into_iter().collect();
            TrainingPlan { techniques, ..several(plan) }
        };
        let [fewer, _] = bytes("huggingface", LossForm::Chunked, 1, frozen);
        assert!(fewer < 2 * 128 * 128_256 + 2 * TOKENS * 4096 + (100 << 20), "{fewer}");
    }

    #[test]
    fn only_adam_copies_a_state_in_its_update() {
        let parameters = Model { layers: 2, ..Model::load("llama3-8b").unwrap() }.parameters();
        let of = |optimizer, precision| {
            bytes("huggingface", LossForm::Whole, 1, |plan| TrainingPlan { optimizer, precision, ..plan })[1]
        };
        assert_eq!(of(Optimizer::Sgd, Precision::PURE_BF16), 0);
        assert_eq!(of(Optimizer::Momentum, Precision::MIXED_BF16), 0);
        assert_eq!(of(Optimizer::Adam, Precision::PURE_BF16), 2 * parameters);
        assert_eq!(of(Optimizer::Adam, Precision::MIXED_BF16), 4 * parameters);
    }
}
