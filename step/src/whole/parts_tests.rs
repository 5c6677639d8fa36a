//! Bounds of backward passes in two parts: a step with the bounds is never longer than the simulation with the parts at
//! their minimum.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use crate::ExecutionMode;
use crate::pass::profile::{PassProfile, PieceProfile};
use proptest::prelude::*;
use sim::hardware::Accelerator;
use workloads::footprint::{Optimizer, Precision};
use workloads::training::Attention;
use workloads::{ActivationPolicy, Batch, Layout, ZeroStage};

/// Relative excess of found schedules over the best ones, and of the best ones over bounds: forward pass, backward
/// pass, its input gradients, and backward pass with recomputation.
type Shares = [[f64; 2]; 4];

/// Returns a piece with bounded passes, whose best schedules are those of `exact`.
fn bounded(exact: &PieceProfile, shares: &Shares) -> PieceProfile {
    let (r, b) = (exact.recompute, exact.backward);
    let of = |time: Seconds, [longer, shorter]: [f64; 2]| (time * (1.0 - shorter), time * (1.0 + longer));
    let once = b.busy_time() - b.offload;
    let (forward, forward_found) = of(exact.forward.busy_time() - exact.forward.offload, shares[0]);
    let (backward, backward_found) = of(once, shares[1]);
    let (inputs, inputs_found) = of(once - b.weight, shares[2]);
    let (whole, whole_found) = of(once + r.busy_time(), shares[3]);
    let exposed = b.tensor + b.context + b.expert;
    let alone = |pass: PassProfile| PassProfile {
        tensor: Seconds::ZERO,
        context: Seconds::ZERO,
        expert: Seconds::ZERO,
        energy: sim::units::Joules::ZERO,
        ..pass
    };
    let mut piece = *exact;
    piece.forward = PassProfile { device: forward, unproven: forward_found - forward, ..alone(exact.forward) };
    piece.backward = PassProfile {
        device: backward,
        weight: (backward - inputs).max(Seconds::ZERO).min(backward),
        unproven: backward_found - backward,
        unproven_inputs: inputs_found - inputs,
        parts: [inputs, (backward - inputs_found).min(backward - exposed).max(Seconds::ZERO)],
        ..alone(b)
    };
    if r.busy_time() > Seconds::ZERO {
        let again = (whole - backward_found).max(Seconds::ZERO);
        let device = (whole - backward).max(Seconds::ZERO);
        piece.recompute =
            PassProfile { device, unproven: whole_found - whole, parts: [again, Seconds::ZERO], ..alone(r) };
    }
    piece.mark_bounded_but_for_inputs();
    piece
}

fn plans() -> impl Strategy<Value = TrainingPlan> {
    let zeros = [ZeroStage::None, ZeroStage::OptimizerStates, ZeroStage::Gradients, ZeroStage::Parameters];
    let policies = ["none", "selective", "full"];
    let degrees = (0_u32..2, 1_u32..4, 0_u32..4, any::<bool>());
    (degrees, 1_u64..14, prop::sample::select(zeros.to_vec()), prop::sample::select(policies.to_vec())).prop_map(
        |((t, p, d, v), m, zero, policy)| {
            let layout = Layout {
                tensor: 1 << t,
                pipeline: 1 << p,
                data: 1 << d,
                virtual_stages: if v { 2 } else { 1 },
                zero,
                ..Layout::default()
            };
            let m = if v { m.next_multiple_of(1 << p) } else { m };
            let batch = Batch { micro_batch: 1, global_batch: m << d, sequence_length: 512 };
            TrainingPlan {
                layout,
                batch,
                activations: policy.parse::<ActivationPolicy>().unwrap().into(),
                attention: Attention::Fused,
                precision: Precision::MIXED_BF16,
                optimizer: Optimizer::Adam,
                schedule: if v { PipelineSchedule::ZB_V } else { PipelineSchedule::ZbH1 },
                techniques: workloads::Techniques::default(),
            }
        },
    )
}

fn holds(plan: &TrainingPlan, stack: &SoftwareStack, fabric: &str, shares: &[Shares; 3]) -> Result<(), TestCaseError> {
    let model = Model { layers: 24, ..Model::load("gpt2-xl").unwrap() };
    let (fabric, accelerator) = (Fabric::built_in(fabric).unwrap(), Accelerator::built_in("tpu_v4").unwrap());
    let mut chip = ChipTimes::new(&accelerator, stack).unwrap();
    let evaluator = Evaluator::new(&model, &fabric, stack, DeviceMemory::of_chip(&accelerator));
    let Ok(exact) = PlanShape::new(&mut chip, &model, &fabric, plan) else { return Ok(()) };
    let Ok(degrees) = evaluator.prepare_degrees(&mut chip, &exact, plan, None) else { return Ok(()) };
    let sends = evaluator.pipeline_sends(&chip, &exact, plan);
    let mut shape = exact.clone();
    for (piece, shares) in
        [&mut shape.profile.embedding, &mut shape.profile.layer, &mut shape.profile.head].into_iter().zip(shares)
    {
        *piece = bounded(piece, shares);
    }
    let (schedule, m) = (plan.schedule, plan.micro_batches());
    let step = evaluator.simulate_step(&exact, &degrees, &sends, schedule, m).unwrap();
    let least = evaluator.simulate_lower_bound(&shape, &degrees, &sends, schedule, m).unwrap();
    let closed = evaluator.evaluate_plan(&shape, &degrees, &sends, schedule, m).time.seconds();
    prop_assert!(least.max(closed) <= step * (1.0 + 1e-9), "{least} and {closed} above {step}: {plan:?}");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn no_step_is_shorter_than_its_parts_at_their_least(
        plan in plans(),
        shares in prop::array::uniform3(prop::array::uniform4(prop::array::uniform2(prop_oneof![Just(0.0), 0.0..0.6_f64]))),
        (stack, fabric) in (0_usize..3, 0_usize..2),
    ) {
        let mut stack = SoftwareStack::load(["ideal", "megatron", "maxtext"][stack]).unwrap();
        stack.kernels.execution = ExecutionMode::Scheduled;
        holds(&plan, &stack, ["phaze_flat", "selene_hdr200x8"][fabric], &shares)?;
    }
}
