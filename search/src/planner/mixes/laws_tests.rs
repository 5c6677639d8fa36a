//! Laws of memory, links and bytes, on random jobs.
//! `PROPTEST_CASES=200 cargo test --release -p coplace-search --lib laws` tries more of them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::tests::{MixHardware, hold, mixed, one, seconds, under};
use crate::planner::search_plans::search_once;
use crate::planner::{PlanSpace, PlanWatch, RankedPlan};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use sim::hardware::{HostLink, Storage};
use sim::pipeline::PipelineSchedule;
use sim::units::{Bytes, BytesPerSecond};
use std::collections::BTreeMap;
use step::layer_keeps_by_stage;
use workloads::{ActivationPolicy, SegmentKind, TrainingGraph};

/// Relative difference allowed between sums of times in different orders.
const ROUNDING: f64 = 1e-9;

#[derive(Debug, Clone)]
struct Case {
    model: &'static str,
    stack: &'static str,
    pipeline: (u32, u32, PipelineSchedule),
    batch: u64,
    sequence: u64,
    /// GiB left free, more and less.
    headroom: [f64; 2],
    /// The host's memory in GiB, less and more.
    host_gib: [f64; 2],
    /// GB/s to the host.
    host_rate: f64,
    /// GB/s to storage, if there is any.
    storage_rate: Option<f64>,
    /// Storage in GB, less and more.
    storage_gb: [f64; 2],
}

fn config() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(6);
    ProptestConfig { rng_seed: RngSeed::Fixed(17), failure_persistence: None, ..ProptestConfig::with_cases(cases) }
}

fn case() -> impl Strategy<Value = Case> {
    let pipelines = vec![
        (8, 1, PipelineSchedule::OneForwardOneBackward),
        (4, 1, PipelineSchedule::OneForwardOneBackward),
        (2, 1, PipelineSchedule::OneForwardOneBackward),
        (1, 1, PipelineSchedule::OneForwardOneBackward),
        (8, 2, PipelineSchedule::OneForwardOneBackward),
        (4, 1, PipelineSchedule::GPipe),
        (4, 1, PipelineSchedule::ZbH1),
        (4, 2, PipelineSchedule::ZB_V),
    ];
    let sorted = |[a, b]: [f64; 2]| [a.min(b), a.max(b)];
    let pair = move |low: f64, high: f64| prop::array::uniform2(low..high).prop_map(sorted);
    (
        prop::sample::select(vec!["llama3-70b", "olmo-2-7b", "llama3-8b", "mixtral-8x7b"]),
        prop::sample::select(vec!["ideal", "megatron_core"]),
        prop::sample::select(pipelines),
        prop::sample::select(vec![16_u64, 32, 64]),
        prop::sample::select(vec![8192_u64, 16_384, 32_768, 65_536]),
        pair(0.0, 60.0),
        pair(0.0, 400.0),
        1.0..200.0,
        (prop::option::of(0.5..20.0), pair(1.0, 400.0)),
    )
        .prop_map(
            |(model, stack, pipeline, batch, sequence, headroom, host_gib, host_rate, (storage_rate, storage_gb))| {
                Case {
                    model,
                    stack,
                    pipeline,
                    batch,
                    sequence,
                    headroom,
                    host_gib,
                    host_rate,
                    storage_rate,
                    storage_gb,
                }
            },
        )
}

impl Case {
    fn space(&self) -> PlanSpace {
        let (pipeline, chunks, schedule) = self.pipeline;
        one(pipeline, chunks, schedule)
    }

    /// The fastest mix with this much memory left free on the device, with this host and the smaller storage.
    fn best(&self, hardware: &mut MixHardware, free_gib: f64, host: Option<HostLink>) -> Option<RankedPlan> {
        self.best_with(hardware, free_gib, host, self.storage(self.storage_gb[0]))
    }

    fn storage(&self, gb: f64) -> Option<Storage> {
        let storage = |rate: f64| {
            let bandwidth = BytesPerSecond(rate * 1e9);
            Storage { read_bandwidth: bandwidth, write_bandwidth: bandwidth, capacity: Bytes((gb * 1e9) as u64) }
        };
        self.storage_rate.map(storage)
    }

    fn best_with(
        &self,
        hardware: &mut MixHardware,
        free_gib: f64,
        host: Option<HostLink>,
        storage: Option<Storage>,
    ) -> Option<RankedPlan> {
        hardware.chip.host = host;
        hardware.chip.storage = storage;
        let job = hardware.job(self.batch, self.sequence, free_gib);
        let answer = search_once(&job, &mixed(&self.space()), 1, PlanWatch::NONE).unwrap();
        answer.best.iter().for_each(|best| hold(&job, best));
        answer.best.into_iter().next()
    }
}

fn time(plan: &Option<RankedPlan>) -> f64 {
    plan.as_ref().map_or(f64::INFINITY, |plan| plan.time.total.0)
}

fn link(rate: f64, gib: f64) -> HostLink {
    HostLink { bandwidth: BytesPerSecond(rate * 1e9), capacity: Bytes::from_gib(gib), memory: None }
}

/// Checks that no time exceeds the one before it, up to rounding.
fn never_slower(what: &str, times: &[f64]) -> Result<(), TestCaseError> {
    for pair in times.windows(2) {
        prop_assert!(pair[1] <= pair[0] * (1.0 + ROUNDING), "{what}: {times:?}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn more_memory_is_never_slower(case in case()) {
        let mut hardware = MixHardware::new(case.model, case.stack);
        let mut of = |free: f64, gib: f64, rate: f64| time(&case.best(&mut hardware, free, Some(link(rate, gib))));
        let ([less_free, more_free], [little, much], slow) = (case.headroom, case.host_gib, case.host_rate);
        let first = of(more_free, little, slow);
        never_slower("memory of the device", &[first, of(less_free, little, slow), of(0.0, little, slow)])?;
        never_slower("memory of the host", &[of(more_free, 0.0, slow), first, of(more_free, much, slow)])?;
        let [few, many] = case.storage_gb.map(|gb| case.storage(gb));
        let mut with = |storage| time(&case.best_with(&mut hardware, more_free, Some(link(slow, little)), storage));
        never_slower("storage", &[with(None), with(few), with(many)])?;
    }

    #[test]
    fn a_host_without_limits_is_as_good_as_keeping_everything_and_one_without_rate_is_none(case in case()) {
        let mut hardware = MixHardware::new(case.model, case.stack);
        let free = case.headroom[0];
        let none = time(&case.best_with(&mut hardware, free, None, None));
        let still = time(&case.best_with(&mut hardware, free, Some(link(1e-9, case.host_gib[1])), None));
        prop_assert!(still == none || (still - none).abs() <= ROUNDING * none, "{still} {none}");
        let slowest = Case { storage_rate: Some(1e-9), ..case.clone() };
        let still = time(&slowest.best(&mut hardware, free, None));
        prop_assert!(still == none || (still - none).abs() <= ROUNDING * none, "{still} {none}");
        let endless = time(&case.best_with(&mut hardware, free, Some(link(1e21, 1e9)), None));
        let stored = Case { storage_rate: Some(1e21), ..case.clone() };
        let stored = time(&case.best_with(&mut hardware, free, None, stored.storage(1e12)));
        prop_assert!(stored == endless || (stored - endless).abs() <= ROUNDING * endless, "{stored} {endless}");
        prop_assert!(endless <= none * (1.0 + ROUNDING), "{endless} {none}");
        // The copies of a layer run beside its neighbour's passes: if they fit there, everything can be offloaded.
        let layer = {
            let job = hardware.job(case.batch, case.sequence, free);
            let plan = job.make_plan(
                workloads::Layout { tensor: 8, sequence_parallel: true, ..workloads::Layout::default() },
                workloads::Batch { micro_batch: 1, global_batch: case.batch, sequence_length: case.sequence },
                ActivationPolicy::None,
                PipelineSchedule::OneForwardOneBackward,
            );
            saved(&job, &plan).values().sum::<u64>()
        };
        hardware.chip.host = None;
        let tight = free + 2.0 * Bytes(layer).gib();
        let full = search_once(&hardware.job(case.batch, case.sequence, tight), &under(&case.space(), ActivationPolicy::Full), 1, PlanWatch::NONE);
        if seconds(&full.unwrap()).is_finite() {
            hardware.chip.hbm.capacity = Bytes(u64::MAX >> 20);
            let kept = search_once(&hardware.job(case.batch, case.sequence, 0.0), &under(&case.space(), ActivationPolicy::None), 1, PlanWatch::NONE);
            let kept = seconds(&kept.unwrap());
            prop_assert!((endless - kept).abs() <= 1e-6 * kept, "{endless} {kept}");
        }
    }

    #[test]
    fn every_saved_byte_is_on_the_device_away_or_made_again(case in case()) {
        let mut hardware = MixHardware::new(case.model, case.stack);
        let Some(best) = case.best(&mut hardware, case.headroom[1], Some(link(case.host_rate, case.host_gib[1]))) else {
            return Ok(());
        };
        let job = hardware.job(case.batch, case.sequence, case.headroom[1]);
        let saved = saved(&job, &best.plan);
        let keeps = layer_keeps_by_stage(job.model, &best.plan, job.stack).unwrap();
        prop_assert_eq!(keeps.iter().flatten().map(|keeps| keeps.layers).sum::<u64>(), job.model.layers);
        for keeps in keeps.iter().flatten() {
            let mut found: BTreeMap<&str, u64> = BTreeMap::new();
            for (name, bytes) in keeps.device.iter().chain(&keeps.host).chain(&keeps.storage).chain(&keeps.rebuilt) {
                if saved.contains_key(name.as_str()) {
                    *found.entry(name).or_default() += bytes.0;
                }
            }
            let wanted: BTreeMap<&str, u64> = saved.iter().map(|(name, bytes)| (name.as_str(), *bytes)).collect();
            prop_assert_eq!(found, wanted, "{}", keeps.policy);
        }
        // Offloaded bytes are within the capacities of host and storage. Stages have such bytes exactly if layers send
        // some.
        let most = |of: fn(&step::StageMemory) -> Bytes| best.memory.stages.iter().map(of).max().unwrap();
        let sends = |of: fn(&step::LayerKeeps) -> bool| keeps.iter().flatten().any(of);
        let (host, storage) = (most(|stage| stage.host), most(|stage| stage.storage));
        prop_assert!(host <= Bytes::from_gib(case.host_gib[1]));
        prop_assert!(storage <= case.storage(case.storage_gb[0]).map_or(Bytes::ZERO, |storage| storage.capacity));
        prop_assert_eq!(sends(|keeps| !keeps.host.is_empty()), host > Bytes::ZERO);
        prop_assert_eq!(sends(|keeps| !keeps.storage.is_empty()), storage > Bytes::ZERO);
    }
}

/// The tensors that the backward pass of a plan's layer reads, with their bytes.
fn saved(job: &crate::planner::Job<'_>, plan: &step::TrainingPlan) -> BTreeMap<String, u64> {
    let graph = TrainingGraph::new(job.model, &step::lowering_of_plan(job.model, plan, job.stack)).unwrap();
    let layer = &graph.segment(SegmentKind::Layer).unwrap().graph;
    let tensors = layer.tensors.iter().filter(|t| t.saved);
    tensors.map(|t| (t.name.strip_prefix("layer.").unwrap_or(&t.name).to_owned(), t.bytes.0)).collect()
}
