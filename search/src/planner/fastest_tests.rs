#![allow(clippy::unwrap_used, clippy::panic)]
use super::super::search::search_once;
use super::super::{PlanSpace, Splits};
use super::*;
use proptest::prelude::*;
use sim::hardware::phaze::{PhazeConfig, design};
use sim::network::Fabric;
use sim::units::Bytes;
use step::{MixKind, SoftwareStack};
use workloads::footprint::{Optimizer, Precision};
use workloads::training::Attention;
use workloads::{Model, ZeroStage};

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
        (1_u32..=4, 1_u32..=4, 3_u32..=7, 3_u32..=7, 1_u64..=32, 2_u64..=48).prop_map(|(tc, vc, w, d, glb, hbm)| PhazeConfig {
            num_tc: tc * tc,
            num_vc: vc,
            width: 1 << w,
            width_vc: 1 << w,
            depth: 1 << d,
            global_buffer: Bytes(glb << 20),
            hbm: Bytes::from_gib(hbm as f64 / 4.0),
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
        let fabric = Fabric::template(case.fabric).unwrap().for_devices(case.devices).unwrap();
        let chip = design(&case.chip);
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
            techniques: workloads::Techniques::none(),
        };
        let space = PlanSpace {
            zero: (!case.zero).then(|| vec![ZeroStage::None]),
            splits: Some(if case.splits { Splits::Best } else { Splits::Listed(vec![None]) }),
            mixes: case.mixes.then_some(MixKind::PerStage),
            ..PlanSpace::default()
        };
        // Of policies by stage several may be as fast.
        let same = |a: &RankedPlan, b: &RankedPlan| {
            let [a_s, b_s] = [a, b].map(|plan| plan.time.total.0);
            if case.mixes { (a_s - b_s).abs() <= 1e-9 * b_s } else { a == b }
        };
        // Whatever the framework can run.
        let listed = search_once(&job, &space, 1).unwrap();
        let prepared = Prepared::new(job, &space).unwrap();
        let fastest = prepared.fastest(&chip, f64::INFINITY).unwrap();
        match (listed.best.first(), fastest) {
            (Some(listed), Fastest::Plan(fastest, _)) => {
                prop_assert!(same(listed, &fastest), "{:?} {:?}", listed, fastest);
                let seconds = fastest.time.total.0;
                let coarse = prepared.coarse_bound(&chip).unwrap().0;
                let fine = prepared.fine_bound(&chip, f64::INFINITY).unwrap().0;
                prop_assert!(coarse <= fine && fine <= seconds, "{} {} {}", coarse, fine, seconds);
                // Nothing faster than a hair below it; it itself where a hair more is allowed.
                let below = prepared.fastest(&chip, seconds * (1.0 - 1e-6)).unwrap();
                prop_assert!(matches!(below, Fastest::Beaten(bound) if bound.0 <= seconds), "{} {:?}", seconds, below);
                let again = prepared.fastest(&chip, seconds * (1.0 + 1e-6)).unwrap();
                prop_assert!(matches!(again, Fastest::Plan(plan, _) if same(&plan, &fastest)));
            }
            (None, Fastest::TooLarge(why)) => {
                prop_assert_eq!(listed.nearest.map(|(plan, _)| plan), why.map(|why| why.0));
            }
            (listed, fastest) => prop_assert!(false, "{:?} {:?}", listed, fastest),
        }
    }
}
