//! The bounds of splits against every contiguous split, played event by event.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::planner::bounds::loads::PassSeconds;
use proptest::prelude::*;
use sim::pipeline::{Pipeline, PipelineSchedule, PipelineStage};
use workloads::Layout;
use workloads::footprint::{Optimizer, Precision};
use workloads::training::Attention;
use workloads::{ActivationPolicy, Batch};

/// No costs besides passes.
struct Passes;

impl SplitCosts for Passes {
    fn late_exchange_seconds(&mut self, _held: DeviceHolding) -> f64 {
        0.0
    }

    fn update_seconds(&mut self, _held: DeviceHolding) -> f64 {
        0.0
    }

    fn may_fit(&self, _split: ChunkSplit) -> bool {
        true
    }

    fn may_fit_without(&self, _split: ChunkSplit, _end: EndChunk) -> bool {
        true
    }
}

/// All lists of `p` numbers with the sum `n`.
fn compositions(n: u64, p: u32) -> Vec<Vec<u64>> {
    if p == 1 {
        return vec![vec![n]];
    }
    (0..=n)
        .flat_map(|last| {
            compositions(n - last, p - 1).into_iter().map(move |mut list| {
                list.push(last);
                list
            })
        })
        .collect()
}

/// The layers and ends that each device holds if the chunks hold these layers. A device exchanges it after its own
/// passes.
fn held_by_devices(layers: &[u64], devices: u32, schedule: PipelineSchedule) -> Vec<DeviceHolding> {
    let chunks = layers.len() as u32;
    let device = |place: u32| match (schedule, place < devices) {
        (PipelineSchedule::ZB_V, false) => 2 * devices - 1 - place,
        _ => place % devices,
    };
    let held = |at: u32| DeviceHolding {
        layers: (0..chunks).filter(|&place| device(place) == at).map(|place| layers[place as usize]).sum(),
        ends: [device(0) == at, device(chunks - 1) == at],
    };
    (0..devices).map(held).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Compares with every contiguous split, whatever its chunks hold. Bounds of single splits are compared with the
    /// splits that are tried.
    #[test]
    fn no_contiguous_split_is_below_the_bounds(
        (p, v, n, m) in prop_oneof![(2_u32..6, Just(1), 1_u64..9, 1_u64..12), (2_u32..4, 2_u32..3, 1_u64..9, 1_u64..4)],
        (forward, backward, send) in (0.5_f64..2.0, 0.5_f64..4.0, 0.0_f64..0.5),
        embedding in 0.0_f64..2.0,
        head in 0.0_f64..8.0,
        kind in 0_usize..3,
        (weight, exchange) in (0.0_f64..1.0, 0.0_f64..4.0),
        ([forward_once, forward_each], [backward_once, backward_each]) in ([0.0_f64..0.5, 0.0_f64..0.5], [0.0_f64..0.5, 0.0_f64..0.5]),
    ) {
        let schedule = match (kind, v) {
            (0, 1) => PipelineSchedule::GPipe,
            (1, 1) => PipelineSchedule::ZbH1,
            (1, 2) => PipelineSchedule::ZB_V,
            _ => PipelineSchedule::OneForwardOneBackward,
        };
        let interleaved = v > 1 && schedule != PipelineSchedule::ZB_V;
        let (layout, m) = (Layout { pipeline: p, virtual_stages: v, ..Layout::default() }, if interleaved { m * u64::from(p) } else { m });
        // A third of an end's work is forward. A share of the backward work is for weights.
        let of = |forward: f64, backward: f64| PassSeconds { forward, input: backward * (1.0 - weight), weight: backward * weight };
        let loads = PassLoads {
            embedding,
            layer: forward + backward,
            head,
            apart: [of(embedding / 3.0, embedding / 1.5), of(forward, backward), of(head / 3.0, head / 1.5)],
            chunk: [forward_once.min(0.1), backward_once.min(0.1)],
            between: [[forward_once, backward_once], [forward_each, backward_each]],
            sends: [send, 0.0],
        };
        let share = least_share_of_work(&layout, schedule, m) * loads.all_loads(n);
        let (chunks, part) = (p * v, |x: f64, of: f64| Seconds(x * of / 3.0));
        let tried: Vec<ChunkSplit> = layout.chunk_splits(n).collect();
        let listed = |split: &ChunkSplit| (0..split.chunks).map(|chunk| split.layers_of_chunk(chunk)).collect::<Vec<u64>>();
        for list in compositions(n, chunks) {
            let stage = |(place, layers): (usize, &u64)| {
                let inner = place > 0 && place + 1 < chunks as usize && *layers > 0;
                let [up, down] = if inner { loads.overhead_of_chunk(*layers) } else { loads.chunk };
                let backward = backward * *layers as f64;
                PipelineStage {
                    forward: Seconds(forward * *layers as f64 + up),
                    backward_input: Seconds(backward * (1.0 - weight) + down),
                    backward_weight: Seconds(backward * weight),
                    ..PipelineStage::default()
                }
            };
            let mut stages: Vec<PipelineStage> = list.iter().enumerate().map(stage).collect();
            for (end, more) in [(0, embedding), (chunks as usize - 1, head)] {
                stages[end].forward += part(more, 1.0);
                stages[end].backward_input += part(more, 2.0 * (1.0 - weight));
                stages[end].backward_weight += part(more, 2.0 * weight);
            }
            let schedule_of_chunks = if interleaved { PipelineSchedule::Interleaved { chunks: v } } else { schedule };
            let sends = vec![Seconds(send); chunks as usize - 1];
            let pipeline =
                Pipeline { stages, sends, ..Pipeline::with_uniform_stages(PipelineStage::default(), 1, m as u32, schedule_of_chunks) };
            let played = pipeline.simulate_without_records().unwrap();
            let time = played.passes_end.0;
            let late = |held: DeviceHolding| exchange * (held.layers + held.ends.iter().filter(|end| **end).count() as u64) as f64;
            let ends = played.devices.iter().zip(held_by_devices(&list, p, schedule)).map(|(d, held)| d.passes_end.0 + late(held));
            let with_exchange = ends.fold(time, f64::max);
            prop_assert!(share <= time * (1.0 + 1e-9), "{list:?}: {share} {time}");
            for split in tried.iter().filter(|split| listed(split) == list) {
                let busy = loads.lower_bound_of_split(split, &layout, schedule, m, |_| 0.0);
                let paths = loads.lower_bound_by_paths(split, &layout, schedule, m);
                prop_assert!(busy.max(paths) <= time * (1.0 + 1e-9), "{list:?}: {busy} {paths} {time}");
                prop_assert!(share <= busy * (1.0 + 1e-9), "{list:?}: {share} {busy}");
                let exchanged = loads.lower_bound_of_split(split, &layout, schedule, m, late);
                prop_assert!(exchanged >= busy && exchanged <= with_exchange * (1.0 + 1e-9), "{list:?}: {exchanged} {with_exchange}");
            }
        }
        let plan = TrainingPlan { layout, schedule, ..any_plan(m) };
        for limit in [1.0, 1.5, 4.0].map(|more| share * more) {
            let mut waiting = loads.splits_by_bound(n, &plan, limit, &mut Passes);
            let each: Vec<_> = std::iter::from_fn(|| waiting.next_below(&loads, &plan, limit, &Passes)).collect();
            prop_assert!(each.is_sorted_by(|a, b| (a.bound, a.split) <= (b.bound, b.split)));
            let mut found: Vec<ChunkSplit> = each.into_iter().map(|least| least.split).collect();
            let bound = |s: &ChunkSplit| loads.lower_bound_of_split(s, &layout, schedule, m, |_| 0.0).max(loads.lower_bound_by_paths(s, &layout, schedule, m));
            let mut below: Vec<ChunkSplit> = tried.iter().filter(|s| bound(s) < limit).copied().collect();
            found.sort();
            below.sort();
            prop_assert_eq!(found, below);
        }
    }
}

/// A plan with this many micro-batches.
fn any_plan(micro_batches: u64) -> TrainingPlan {
    TrainingPlan {
        layout: Layout::default(),
        batch: Batch { micro_batch: 1, global_batch: micro_batches, sequence_length: 1024 },
        activations: ActivationPolicy::None.into(),
        attention: Attention::Fused,
        precision: Precision::MIXED_BF16,
        optimizer: Optimizer::Adam,
        schedule: PipelineSchedule::OneForwardOneBackward,
        techniques: workloads::Techniques::default(),
    }
}
