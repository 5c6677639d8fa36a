//! The step of `coplace-step` under the stack `ideal` is the step that the search over chips has decided with.
#![allow(clippy::unwrap_used, clippy::panic)]

use coplace_search::bench::Bench;
use coplace_search::evaluate::{Degrees, best_plan, fixed_plan};
use coplace_search::explain::simulate;
use coplace_search::placement::plan::{Effort, LayerSplit};
use coplace_search::space::HardwareSpace;
use coplace_search::study::Study;
use sim::hardware::Accelerator;
use sim::hardware::phaze::design;
use sim::network::Fabric;
use sim::pipeline::Schedule;
use step::{ChipTimes, SoftwareStack, TrainingPlan, step_energy_of, step_time};
use workloads::footprint::{Optimizer, Precision};
use workloads::training::Attention;
use workloads::{ActivationPolicy, Batch, Layout, Model};

/// The step and its energy that both ways give a plan of a chip, layers split evenly, everything kept.
fn both(bench: &Bench, chip: &Accelerator, degrees: Degrees, micro_batch: u32) -> Option<[(f64, f64); 2]> {
    let planned = fixed_plan(bench, chip.clone(), degrees, Some(micro_batch), LayerSplit::Even).outcome.ok()?;
    let kept = planned.plan.stages.iter().all(|stage| stage.recompute.0 == 0.0);
    if !kept {
        return None;
    }
    let old = simulate(&planned).unwrap().0;
    let plan = TrainingPlan {
        layout: Layout {
            tensor: degrees.tensor,
            pipeline: degrees.pipeline as u32,
            data: degrees.data as u32,
            ..Layout::default()
        },
        batch: Batch {
            micro_batch: micro_batch.into(),
            global_batch: bench.global_batch.into(),
            sequence_length: bench.sequence_length,
        },
        activations: ActivationPolicy::None,
        attention: Attention::Fused,
        precision: Precision::MIXED_BF16,
        optimizer: Optimizer::Adam,
        schedule: Schedule::OneForwardOneBackward,
    };
    let mut times = ChipTimes::new(chip, &SoftwareStack::load("ideal").unwrap()).unwrap();
    let step = step_time(&mut times, &bench.model, &bench.fabric, &plan).unwrap().total;
    let profile = times.profile(&bench.model, &bench.fabric, &plan).unwrap();
    // Static power is drawn for as long as the step takes, which the search's plans have from their closed form.
    let took = planned.plan.step;
    let energy = step_energy_of(&mut times, &bench.model, &bench.fabric, &plan, &profile, took).unwrap();
    Some([(old, step.0), (planned.energy.0, energy.total().0)])
}

#[test]
fn the_step_under_ideal_is_the_simulated_step_of_the_search() {
    let study = Study::load("phaze").unwrap();
    let reference = Accelerator::template(&study.space.reference_chip).unwrap();
    let space = HardwareSpace::enumerate(&study.space, &reference).unwrap();
    let spread = space.points.iter().step_by(space.points.len() / 30).take(30);
    let mut chips: Vec<Accelerator> = spread
        .map(|point| design(&sim::hardware::phaze::PhazeConfig { hbm: *space.hbm.last().unwrap(), ..point.config }))
        .collect();
    for name in ["tpu_v4", "tpu_v5p", "a100_80gb_sxm", "h100_80gb_sxm", "phaze_tpuv4"] {
        chips.push(Accelerator::template(name).unwrap());
    }
    let fabric = Fabric::template(&study.cluster.fabric).unwrap();
    for name in ["llama2-7b", "bert-large"] {
        let bench = Bench::new(Model::load(name).unwrap(), &study, &fabric, None).unwrap();
        let mut compared = 0;
        for chip in &chips {
            let best = best_plan(&bench, chip.clone(), Effort::Proof).outcome.unwrap();
            let shape = &bench.shapes[best.shape];
            let layers = bench.model.layers as usize;
            // An even split under the step's rules: as many layers on every stage.
            let p = (1..=best.plan.pipeline_stages).rev().find(|p| layers.is_multiple_of(*p) && 1024 % p == 0).unwrap();
            let data = 1024 / (p as u64 * u64::from(shape.tensor_parallel));
            let degrees = Degrees { pipeline: p, data, tensor: shape.tensor_parallel };
            let Some([(old, new), energies]) = both(&bench, chip, degrees, shape.micro_batch) else { continue };
            let off = new / old - 1.0;
            assert!(off.abs() < 0.005, "{name} on {}: {old} s, {new} s", chip.name);
            let off = energies.1 / energies.0 - 1.0;
            assert!(off.abs() < 0.01, "{name} on {}: {energies:?} J", chip.name);
            compared += 1;
        }
        assert!(compared >= 30, "{name}: {compared} chips compared");
    }
}
