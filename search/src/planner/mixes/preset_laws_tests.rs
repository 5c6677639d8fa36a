//! No preset that only decides what is kept and where is faster than the best policies by stage. The reported
//! sufficient memory suffices.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::tests::{MixHardware, hold, mixed, one, seconds};
use crate::planner::search_plans::search_once;
use crate::planner::{Job, PlanSpace, PlanWatch, search_plans};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use sim::hardware::HostLink;
use sim::pipeline::PipelineSchedule;
use sim::units::{Bytes, BytesPerSecond};
use step::{DeviceMemory, MixKind, SoftwareStack};
use workloads::memory::Preset;
use workloads::{ActivationPolicy, Technique, Techniques};

/// Relative difference allowed between sums of times in different orders.
const ROUNDING: f64 = 1e-9;

fn config(cases: u32) -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(cases);
    ProptestConfig { rng_seed: RngSeed::Fixed(23), failure_persistence: None, ..ProptestConfig::with_cases(cases) }
}

/// Presets that only decide what is kept and where, and `mst`, which slices the passes. A preset with an open fraction
/// is listed once for each eighth.
fn presets() -> Vec<Technique> {
    let all = Preset::built_in_names().into_iter().map(|name| name.parse::<Technique>().unwrap());
    all.filter(|technique| technique.preset().decides_places() || technique.preset().name == "mst")
        .flat_map(|technique| match technique.is_adaptive() {
            true => (1..=8).map(|part| technique.with_parameter("fraction", f64::from(part) / 8.0)).collect(),
            false => vec![technique],
        })
        .collect()
}

/// Returns the techniques of the mixed plans that a preset is compared with: planned addresses if the preset has them,
/// and the preset itself if it does more than decide what is kept and where.
fn beside(preset: &Technique) -> Techniques {
    let planned = preset.preset().planned_addresses.then(|| "planned-addresses".parse().unwrap());
    let more = (!preset.preset().decides_places()).then(|| preset.clone());
    planned.into_iter().chain(more).collect()
}

#[derive(Debug, Clone)]
struct Case {
    model: &'static str,
    stack: &'static str,
    pipeline: (u32, u32, PipelineSchedule),
    sequence: u64,
    headroom: f64,
    /// The rate of the link to the host in GB/s, and the host's memory in GiB.
    host: (f64, f64),
}

fn case() -> impl Strategy<Value = Case> {
    let pipelines = vec![
        (1, 1, PipelineSchedule::OneForwardOneBackward),
        (4, 1, PipelineSchedule::OneForwardOneBackward),
        (8, 2, PipelineSchedule::OneForwardOneBackward),
        (4, 1, PipelineSchedule::ZbH1),
    ];
    (
        prop::sample::select(vec!["llama2-7b", "llama3-8b", "llama3-70b", "mixtral-8x7b"]),
        prop::sample::select(vec!["ideal", "megatron_core"]),
        prop::sample::select(pipelines),
        prop::sample::select(vec![8192_u64, 32_768, 131_072]),
        0.0..70.0,
        (2.0..200.0, 10.0..400.0),
    )
        .prop_map(|(model, stack, pipeline, sequence, headroom, host)| Case {
            model,
            stack,
            pipeline,
            sequence,
            headroom,
            host,
        })
}

impl Case {
    fn hardware(&self) -> MixHardware {
        let mut hardware = MixHardware::new(self.model, self.stack);
        let (rate, gib) = self.host;
        hardware.chip.host =
            Some(HostLink { bandwidth: BytesPerSecond(rate * 1e9), capacity: Bytes::from_gib(gib), memory: None });
        hardware
    }

    fn space(&self) -> PlanSpace {
        let (pipeline, chunks, schedule) = self.pipeline;
        let policies = vec![ActivationPolicy::None, ActivationPolicy::Selective, ActivationPolicy::Full];
        PlanSpace { activations: Some(policies), mixes: Some(MixKind::None), ..one(pipeline, chunks, schedule) }
    }
}

proptest! {
    #![proptest_config(config(8))]
    #[test]
    fn no_preset_is_faster_than_the_best_that_every_stage_keeps(case in case()) {
        let hardware = case.hardware();
        let plain = hardware.job(64, case.sequence, case.headroom);
        let mut known: Vec<(Techniques, f64)> = Vec::new();
        for preset in presets() {
            let under = |techniques: &Techniques, space: &PlanSpace| {
                let job = Job { techniques, ..plain };
                let found = search_once(&job, space, 1, PlanWatch::NONE).ok()?;
                found.best.iter().for_each(|best| hold(&job, best));
                Some(seconds(&found))
            };
            // A preset without any effect on the model is refused.
            let Some(own) = under(&[preset.clone()].into_iter().collect(), &case.space()) else { continue };
            let besides = beside(&preset);
            let best = known.iter().find(|(other, _)| *other == besides).map(|(_, best)| *best);
            let best = best.unwrap_or_else(|| under(&besides, &mixed(&case.space())).unwrap_or(f64::INFINITY));
            prop_assert!(best <= own * (1.0 + ROUNDING), "{preset}: {best} {own}");
            known.push((besides, best));
        }
    }
}

proptest! {
    #![proptest_config(config(24))]
    #[test]
    fn what_would_be_enough_is_and_a_byte_less_is_not(
        mut case in case(),
        [best, planned, ample] in any::<[bool; 3]>(),
    ) {
        case.host.1 *= if ample { 1e4 } else { 1.0 };
        let hardware = case.hardware();
        let space = if best { mixed(&case.space()) } else { case.space() };
        let techniques: Techniques = planned.then(|| "planned-addresses".parse().unwrap()).into_iter().collect();
        let usable = step::usable_hbm(&SoftwareStack::load(case.stack).unwrap(), DeviceMemory::of_chip(&hardware.chip).hbm);
        let of = |headroom: Bytes| {
            let job = Job { headroom, techniques: &techniques, ..hardware.job(64, case.sequence, 0.0) };
            search_plans(&job, &space, 1).unwrap()
        };
        // Without memory no plan fits.
        let none = of(DeviceMemory::of_chip(&hardware.chip).hbm);
        prop_assert!(none.best.is_empty());
        let Some(enough) = none.enough.filter(|enough| *enough <= usable) else { return Ok(()) };
        let there = of(usable.saturating_sub(enough));
        prop_assert!(!there.best.is_empty(), "{enough:?} {:?}", there.nearest);
        // A host that is too small for all layers under one policy may be large enough for some of them. Then less
        // memory may suffice.
        let ample = case.host.1 > 1e3 || !best;
        let less = of(usable.saturating_sub(enough) + Bytes(1));
        prop_assert!(!ample || less.best.is_empty(), "{enough:?}: {}", less.best[0].plan.activations.first_layer_policy());
    }
}
