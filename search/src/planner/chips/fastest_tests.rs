#![allow(clippy::unwrap_used, clippy::panic)]
use super::*;
use crate::planner::chips::group_search::search_in_memory;
use crate::planner::search_plans::search_once;
use crate::planner::{Job, NO_MARGIN, PlanSpace, PlanWatch, Splits};
use proptest::prelude::*;
use sim::hardware::phaze::{PhazeConfig, design_accelerator};
use sim::network::Fabric;
use sim::units::Bytes;
use step::{MixKind, SoftwareStack};
use workloads::footprint::{Optimizer, Precision};
use workloads::training::Attention;
use workloads::{ActivationPolicy, Model, ZeroStage};

/// A chip of PHAZE's kind, a cluster, and a space of plans.
#[derive(Debug, Clone)]
struct Case {
    chip: PhazeConfig,
    model: &'static str,
    fabric: &'static str,
    stack: &'static str,
    devices: u32,
    batch: u64,
    splits: bool,
    zero: bool,
    mixes: bool,
}

fn case() -> impl Strategy<Value = Case> {
    let chip =
        (1_u32..=4, 1_u32..=4, 3_u32..=7, 3_u32..=7, 1_u64..=32, 2_u64..=48).prop_map(|(tc, vc, w, d, glb, hbm)| {
            PhazeConfig {
                num_tc: tc * tc,
                num_vc: vc,
                width: 1 << w,
                width_vc: 1 << w,
                depth: 1 << d,
                global_buffer: Bytes(glb << 20),
                hbm: Bytes::from_gib(hbm as f64 / 4.0),
            }
        });
    let names = (
        prop::sample::select(vec!["opt-350m", "bert-large", "gpt2-xl"]),
        prop::sample::select(vec!["phaze_flat", "tpu_v4_ici", "selene_hdr200x8"]),
        prop::sample::select(vec!["ideal", "maxtext", "megatron_core"]),
    );
    (chip, names, 0_u32..=4, 0_u32..=3, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(chip, (model, fabric, stack), devices, batch, splits, zero, mixes)| Case {
            chip,
            model,
            fabric,
            stack,
            devices: 1 << devices,
            batch: 1 << (devices + batch),
            splits,
            zero,
            mixes: mixes && !splits,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
    #[test]
    fn the_fastest_on_a_chip_is_the_first_of_the_list_and_no_bound_is_above_it(case in case()) {
        let model = Model::load(case.model).unwrap();
        let stack = SoftwareStack::load(case.stack).unwrap();
        let fabric = Fabric::built_in(case.fabric).unwrap().for_devices(case.devices).unwrap();
        let chip = design_accelerator(&case.chip);
        let job = Job {
            model: &model,
            chip: &chip,
            fabric: &fabric,
            stack: &stack,
            devices: case.devices,
            global_batch: case.batch,
            sequence_length: 512,
            attention: Attention::Fused,
            precision: Precision::MIXED_BF16,
            optimizer: Optimizer::Adam,
            headroom: Bytes::ZERO,
            fit: NO_MARGIN,
            techniques: workloads::Techniques::none(),
        };
        let space = PlanSpace {
            zero: (!case.zero).then(|| vec![ZeroStage::None]),
            splits: Some(if case.splits { Splits::Best } else { Splits::Listed(vec![None]) }),
            mixes: case.mixes.then_some(MixKind::PerStage),
            ..PlanSpace::default()
        };
        // Plans with policies by stage may tie, so only their times are compared.
        let same = |a: &RankedPlan, b: &RankedPlan| {
            let [a_s, b_s] = [a, b].map(|plan| plan.time.total.0);
            if case.mixes { (a_s - b_s).abs() <= 1e-9 * b_s } else { a == b }
        };
        // The plans that the framework documents; all plans if it discourages none or all of them. Plans that it cannot
        // run are included.
        let documented = space.documented(&job).unwrap_or(space.clone());
        let listed = search_once(&job, &documented, 1, PlanWatch::NONE).unwrap();
        let prepared = PreparedJob::new(job, &space).unwrap();
        let fastest = prepared.fastest_plan(&chip, f64::INFINITY).unwrap();
        match (listed.best.first(), fastest) {
            (Some(listed), FastestPlan::Plan(fastest, _)) => {
                prop_assert!(same(listed, &fastest), "{:?} {:?}", listed, fastest);
                let seconds = fastest.time.total.0;
                let mut kernels = ChipKernels::new(&prepared, &chip).unwrap();
                let coarse = prepared.coarse_bound(&mut kernels).0;
                let buffered = PreparedJob::lower_bound_over_fabrics(&[&prepared], &mut kernels, f64::INFINITY, Fidelity::Buffered).0;
                let fine = prepared.fine_bound(&mut kernels, f64::INFINITY).0;
                prop_assert!(coarse <= buffered && buffered <= seconds, "{} {} {}", coarse, buffered, seconds);
                prop_assert!(coarse <= fine && fine <= seconds, "{} {} {}", coarse, fine, seconds);
                // With a cutoff just below the fastest plan's time, no plan is found. With one just above, this plan is
                // found.
                let below = prepared.fastest_plan(&chip, seconds * (1.0 - 1e-6)).unwrap();
                prop_assert!(matches!(below, FastestPlan::Beaten(bound) if bound.0 <= seconds), "{} {:?}", seconds, below);
                let again = prepared.fastest_plan(&chip, seconds * (1.0 + 1e-6)).unwrap();
                prop_assert!(matches!(again, FastestPlan::Plan(plan, _) if same(&plan, &fastest)));
                // With a tolerance, the plan found is slower by at most the tolerance. Its proven lower bound is at
                // most the time of the fastest plan.
                drop(kernels);
                let FastestPlan::Plan(near, status) = prepared.with_split_tolerance(0.02).fastest_plan(&chip, f64::INFINITY).unwrap() else {
                    return Err(TestCaseError::fail("no plan with a tolerance"));
                };
                let near_s = near.time.total.0;
                prop_assert!(near_s * 0.98 <= seconds * (1.0 + 1e-9) && seconds <= near_s * (1.0 + 1e-9), "{near_s} {seconds}");
                let least = if let SolveStatus::Gap { lower_bound, .. } = status { lower_bound } else { near_s };
                prop_assert!(least <= seconds * (1.0 + 1e-9), "{least} {seconds}");
            }
            (None, FastestPlan::TooLarge(why)) => {
                prop_assert_eq!(listed.nearest.map(|(plan, _)| plan), why.map(|why| why.0));
            }
            (listed, fastest) => prop_assert!(false, "{:?} {:?}", listed, fastest),
        }
    }
}

/// Runs a test with one model's job, prepared on each of two fabrics, and with a TPU v4.
fn on_two_fabrics(test: impl Fn(&[PreparedJob<'_>], &Accelerator)) {
    on_fabrics(&["tpu_v4_ici", "selene_hdr200x8"].map(|name| Fabric::built_in(name).unwrap()), test);
}

/// Runs a test with one model's job, prepared on each of the given fabrics, and with a TPU v4.
fn on_fabrics(fabrics: &[Fabric], test: impl Fn(&[PreparedJob<'_>], &Accelerator)) {
    let model = Model::load("mixtral-8x7b").unwrap();
    let stack = SoftwareStack::load("ideal").unwrap();
    let fabrics: Vec<Fabric> = fabrics.iter().map(|fabric| fabric.for_devices(64).unwrap()).collect();
    let chip = Accelerator::built_in("tpu_v4").unwrap();
    let job = |fabric| Job {
        model: &model,
        chip: &chip,
        fabric,
        stack: &stack,
        devices: 64,
        global_batch: 128,
        sequence_length: 2048,
        attention: Attention::Fused,
        precision: Precision::MIXED_BF16,
        optimizer: Optimizer::Adam,
        headroom: Bytes::ZERO,
        fit: NO_MARGIN,
        techniques: workloads::Techniques::none(),
    };
    let space = PlanSpace {
        tensor: Some(vec![1, 4]),
        pipeline: Some(vec![1, 4]),
        micro_batch: Some(vec![1, 2]),
        zero: Some(vec![ZeroStage::OptimizerStates]),
        virtual_stages: Some(vec![1]),
        orders: Some(vec![workloads::RankOrder::DataFirst]),
        splits: Some(Splits::Listed(vec![None])),
        ..PlanSpace::default()
    };
    let prepared: Vec<PreparedJob<'_>> =
        fabrics.iter().map(|fabric| PreparedJob::new(job(fabric), &space).unwrap()).collect();
    test(&prepared, &chip);
}

#[test]
fn shapes_prepared_once_are_those_that_are_lowered_for_the_chip() {
    on_two_fabrics(|prepared, chip| {
        let prepared = &prepared[0];
        let mut mapped = ChipTimes::new(chip, prepared.job.stack).unwrap().with_fidelity(Fidelity::Mapped);
        let mut kernels = ChipKernels::new(prepared, chip).unwrap();
        let search = search_in_memory(prepared, &prepared.job, ChipTimes::new(chip, prepared.job.stack).unwrap());
        let mut again = 0;
        for lot in &prepared.lots {
            let mut lowered = lot.lowered.clone();
            for (policy, outlined) in lot.outlined.iter().enumerate() {
                let outlined = outlined.as_ref().unwrap();
                let shape = kernels.shape_of_group(outlined, lot, prepared);
                let slow = lowered
                    .plan_shape(&mut mapped, prepared.job.fabric, &search.plan_under_policy(lot, policy))
                    .unwrap();
                assert_eq!(shape, slow);
                again += usize::from(
                    shape != *outlined.shape_without_times() && search.policies[policy] != ActivationPolicy::None,
                );
            }
        }
        assert!(again > 0);
    });
}

#[test]
fn a_bound_over_fabrics_is_below_that_of_each_and_is_it_where_there_is_one() {
    on_two_fabrics(|prepared, chip| {
        let all: Vec<&PreparedJob<'_>> = prepared.iter().collect();
        assert!(all[0].differs_in_fabric_only(all[1]));
        let mut shared = ChipKernels::new(all[0], chip).unwrap();
        for fidelity in [Fidelity::Peak, Fidelity::Buffered, Fidelity::Mapped] {
            let over = PreparedJob::lower_bound_over_fabrics(&all, &mut shared, f64::INFINITY, fidelity).0;
            let each = all
                .iter()
                .map(|one| PreparedJob::lower_bound_over_fabrics(&[one], &mut shared, f64::INFINITY, fidelity).0);
            let each: Vec<f64> = each.collect();
            let alone = all.iter().map(|one| {
                let mut kernels = ChipKernels::new(one, chip).unwrap();
                PreparedJob::lower_bound_over_fabrics(&[one], &mut kernels, f64::INFINITY, fidelity).0
            });
            assert_eq!(each, alone.collect::<Vec<f64>>(), "what another fabric has left shows");
            assert!(over > 0.0 && each.iter().all(|each| over <= *each), "{over} {each:?}");
        }
    });
}

#[test]
fn a_bound_over_links_of_several_speeds_is_that_of_the_fastest() {
    for name in ["tpu_v4_ici", "selene_hdr200x8"] {
        let fabric = Fabric::built_in(name).unwrap();
        let links = [0.3, 4.0, 1.0].map(|times| {
            let bandwidth = fabric.tiers[0].bandwidth;
            fabric.clone().with_bandwidth(0, sim::units::BytesPerSecond(bandwidth.0 * times))
        });
        on_fabrics(&links, |prepared, chip| {
            let all: Vec<&PreparedJob<'_>> = prepared.iter().collect();
            let bound = |all: &[&PreparedJob<'_>]| {
                let mut kernels = ChipKernels::new(all[0], chip).unwrap();
                let mut known = GroupBounds::default();
                PreparedJob::lower_bound_within(all, &mut kernels, f64::INFINITY, Fidelity::Exact, &mut known).0
            };
            let [slow, fast, own] = [0, 1, 2].map(|at| bound(&all[at..=at]));
            assert_eq!(bound(&all), fast);
            assert!(fast < own && own < slow, "{fast} {own} {slow}");
        });
    }
}
