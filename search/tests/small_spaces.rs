//! Searches of small random spaces against brute force over their chips and plans.
//!
//! `PROPTEST_CASES=200 cargo test --release -p coplace-search --test small_spaces` tries more of them.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use coplace_search::design::{Aim, DesignSearch, DesignWatch, Workload};
use coplace_search::pareto::{Front, FrontPoint};
use coplace_search::planner::{Job, NO_MARGIN, PlanSpace, PreparedJob, Splits, search_plans};
use coplace_search::runner::{CandidateOutcome, Exclusion};
use coplace_search::space::{ChipLimits, PhazeGrid, Space};
use proptest::prelude::*;
use sim::hardware::Accelerator;
use sim::network::Fabric;
use sim::units::Bytes;
use step::SoftwareStack;
use workloads::footprint::{Optimizer, Precision};
use workloads::training::Attention;
use workloads::{Model, ZeroStage};

/// A small space, a cluster and a space of plans.
#[derive(Debug, Clone)]
struct Case {
    space: PhazeGrid,
    model: &'static str,
    fabric: &'static str,
    devices: u32,
    batch: u64,
    zero: Option<Vec<ZeroStage>>,
    /// The chance with which peaks must fit.
    fit: f64,
}

fn case() -> impl Strategy<Value = Case> {
    let values = |most: u32| proptest::collection::vec(1..=most, 1..=2);
    let powers = |from: u32, to: u32| proptest::collection::vec((from..=to).prop_map(|bits| 1_u32 << bits), 1..=2);
    // Memory from plenty down to a size that fits no plan, or only a sharded one.
    let memory = (
        proptest::collection::vec(1_u64..=32, 1..=2),
        proptest::collection::vec((2_u32..=40).prop_map(|gib| f64::from(gib) / 4.0), 1..=3),
    );
    let grid = (values(9), values(5), powers(3, 7), powers(3, 7), memory, prop::sample::select(vec![0.0, 0.02]))
        .prop_map(
            |(
                tensor_cores,
                vector_cores,
                array_widths,
                array_depths,
                (global_buffer_mib, hbm_gib),
                min_area_fraction,
            )| PhazeGrid {
                tensor_cores,
                vector_cores,
                array_widths,
                array_depths,
                global_buffer_mib,
                hbm_gib,
                min_area_fraction,
            },
        );
    let names = (
        prop::sample::select(vec!["opt-350m", "bert-large"]),
        prop::sample::select(vec!["phaze_flat", "tpu_v4_ici", "selene_hdr200x8", "ideal_switch"]),
    );
    let zero = prop::sample::select(vec![
        Some(vec![ZeroStage::None]),
        Some(vec![ZeroStage::None, ZeroStage::Parameters]),
        None,
    ]);
    // Includes odd numbers of devices, and more than one node of eight.
    let devices = prop::sample::select(vec![1_u32, 2, 3, 4, 5, 6, 7, 8, 16]);
    let fit = prop::sample::select(vec![NO_MARGIN, 0.9, 0.999]);
    (grid, names, devices, 1_u64..=4, zero, fit).prop_map(|(space, (model, fabric), devices, batch, zero, fit)| Case {
        space,
        model,
        fabric,
        devices,
        batch: u64::from(devices) * batch,
        zero,
        fit,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(
        std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(12)
    ) })]
    #[test]
    fn a_search_answers_as_brute_force_and_no_design_passes_the_bound_that_rejected_it(case in case()) {
        let model = Model::load(case.model).unwrap();
        let stack = SoftwareStack::load("ideal").unwrap();
        let fabric = Fabric::built_in(case.fabric).unwrap().for_devices(case.devices).unwrap();
        let reference = Accelerator::built_in("phaze_tpuv4").unwrap();
        let space = Space::from_phaze(&case.space, &ChipLimits::default(), &reference).unwrap();
        let plans = PlanSpace { zero: case.zero.clone(), splits: Some(Splits::Best), ..PlanSpace::default() };
        let job = Job {
            model: &model,
            chip: &reference,
            fabric: &fabric,
            stack: &stack,
            devices: case.devices,
            global_batch: case.batch,
            sequence_length: 256,
            attention: Attention::Fused,
            precision: Precision::MIXED_BF16,
            optimizer: Optimizer::Adam,
            headroom: Bytes::ZERO,
            fit: case.fit,
            techniques: workloads::Techniques::none(),
        };
        let prepared = PreparedJob::new(job, &plans).unwrap();
        let aim = Aim { evaluations: usize::MAX, ..Aim::default() };
        let prepared = [prepared];
        let search = DesignSearch { workloads: &[Workload::of_one_model(&prepared)], space: &space, aim, robust: None };
        let answer = DesignWatch::silent(|watch| search.run_design_search(watch)).unwrap();
        prop_assert_eq!(answer.designs.len(), space.design_count());
        let mut front = Front::default();
        let mut seconds = Vec::new();
        for (id, found) in answer.designs.iter().enumerate() {
            let chip = space.chip_of_design(found.id).unwrap();
            let area = space.figures_of_design(found.id, &chip).area.0;
            let job = Job { chip: &chip, ..job };
            let first = search_plans(&job, &plans, 1).unwrap().best.into_iter().next();
            let peaks = first.iter().flat_map(|plan| &plan.memory.stages).map(|stage| stage.bytes_needed());
            let free = first.as_ref().map_or(Bytes::ZERO, |first| job.memory_left_free_by(&first.plan));
            let fits = peaks.max().unwrap_or(Bytes::ZERO) + free <= chip.memory_capacity();
            prop_assert!(fits && (free > Bytes::ZERO) == (case.fit > NO_MARGIN && first.is_some()), "{}", space.describe_design(found.id));
            let best = first.map(|plan| plan.time.total.0);
            if let Some(best) = best {
                front.insert(FrontPoint { costs: [area, 0.0], value: best, id });
            }
            match (&found.outcome, best) {
                (CandidateOutcome::Evaluated { value, .. }, Some(best)) => prop_assert_eq!(*value, best, "{}", space.describe_design(found.id)),
                (CandidateOutcome::Infeasible { .. } | CandidateOutcome::Excluded(Exclusion::NoPlan), None) => {}
                (CandidateOutcome::Pruned { bound, .. }, best) => {
                    prop_assert!(best.is_none_or(|best| *bound <= best), "{}: bound {} above {:?}", space.describe_design(found.id), bound, best);
                }
                (outcome, best) => prop_assert!(false, "{}: {:?} beside {:?}", space.describe_design(found.id), outcome, best),
            }
            seconds.push((area, best));
        }
        let pairs = |ids: &mut dyn Iterator<Item = usize>| ids.map(|id| seconds[id]).collect::<Vec<_>>();
        let truth = pairs(&mut front.points().iter().map(|point| point.id));
        prop_assert_eq!(pairs(&mut answer.front.iter().copied()), truth.clone());
        prop_assert_eq!(answer.best.map(|best| seconds[best].1), truth.last().map(|last| last.1));
    }
}
