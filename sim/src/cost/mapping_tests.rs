//! The pruned search against brute force over every tile size.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::super::contraction::least_compute_seconds;
use super::super::machine::CoreUse;
use super::super::shared_traffic::compute_outer_traffic;
use super::super::{CostModel, Span};
use super::*;
use crate::hardware::phaze::{self, PhazeConfig};
use crate::hardware::{Accelerator, Accumulation, AccumulatorMemory, Dataflow, MemoryKind, MemoryLevel, MemoryScope};
use crate::kernel::{
    Contraction, DataType, Direction, Elementwise, ElementwiseFunction, Epilogue, FusedAttention, Kernel, Reduction,
    RowFunction,
};
use crate::units::{Bytes, BytesPerSecond};
use proptest::prelude::*;

/// A small chip: arrays up to 16 x 16, a local buffer of 64 B to 16 KiB, one shared buffer.
fn chips() -> impl Strategy<Value = Accelerator> {
    let shape = (1_u32..5, 1_u32..5, 0_u32..5, 0_u32..5, 0_usize..3, any::<bool>());
    let paths = (any::<bool>(), 0_usize..3);
    (shape, 6_u32..15, 8_u32..18, 1e8_f64..1e12, 1e8_f64..1e12, paths).prop_map(
        |((cores, arrays, rows, columns, flow, preload), local, shared, fast, slow, (bypass, sums))| {
            let mut chip = phaze::design_accelerator(&PhazeConfig::tpu_v4_like());
            let level = |name: &str, scope, capacity: u32, rate| MemoryLevel {
                name: name.to_owned(),
                scope,
                capacity: Bytes(1 << capacity),
                read_bandwidth: BytesPerSecond(rate),
                write_bandwidth: BytesPerSecond(rate),
                ..chip.hbm.clone()
            };
            let on_chip =
                vec![level("local", MemoryScope::Core, local, 1e12), level("shared", MemoryScope::Chip, shared, fast)];
            chip.on_chip = on_chip;
            chip.on_chip[1].kind = MemoryKind::Scratchpad { bypass };
            let accumulators = AccumulatorMemory {
                capacity: Bytes(1 << shared),
                read_bytes_per_cycle: 16.0,
                write_bytes_per_cycle: 16.0,
                read_energy_per_byte: chip.hbm.read_energy_per_byte,
                write_energy_per_byte: chip.hbm.write_energy_per_byte,
            };
            chip.tensor.accumulation =
                [Accumulation::LocalBuffer, Accumulation::DedicatedPorts, Accumulation::Memory(accumulators)][sums];
            chip.hbm.read_bandwidth = BytesPerSecond(slow);
            chip.hbm.write_bandwidth = BytesPerSecond(slow);
            chip.tensor.cores = cores;
            chip.tensor.arrays_per_core = arrays;
            chip.tensor.rows = 1 << rows;
            chip.tensor.columns = 1 << columns;
            chip.tensor.preload = preload;
            chip.tensor.dataflow =
                [Dataflow::OutputStationary, Dataflow::WeightStationary, Dataflow::InputStationary][flow];
            chip
        },
    )
}

fn problem(model: &CostModel, batch: f64, m: f64, n: f64, k: f64) -> MappingProblem {
    MappingProblem {
        batch,
        m,
        n,
        k,
        operand: 2.0,
        result: 2.0,
        rate: model.machine.mac_rate(crate::kernel::DataType::Bf16),
        depth: 1.0,
        epilogue_time: 0.0,
        epilogue_read: 0.0,
        epilogue_written: 0.0,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn pruning_keeps_the_optimum(chip in chips(), batch in 1_u32..4, m in 1_u32..65, n in 1_u32..65, k in 1_u32..200) {
        let model = CostModel::new(chip).unwrap();
        let (m, n) = (f64::from(m), f64::from(n));
        for (effort, larger) in
            [(MappingEffort::Exhaustive, 1.0), (MappingEffort::Library, 1.0), (MappingEffort::Library, 97.0), (MappingEffort::Thorough, 31.0)]
        {
            let p = problem(&model, f64::from(batch), m * larger, n * larger, f64::from(k));
            for span in [Span::OneCore, Span::AllCores] {
                let view = model.machine.resources_of(span, CoreUse::Tensor);
                let outer = compute_outer_traffic(&model.machine, view, &p);
                let least = Some(least_compute_seconds(&model.machine, view, &p));
                let [pruned, brute] =
                    [least, None].map(|least| choose_mappings(&model.machine, view, &p, &outer, effort, least));
                let times = [pruned.fastest.time, brute.fastest.time];
                prop_assert!((times[0] - times[1]).abs() <= 1e-12 * times[1], "{effort:?}: {times:?} s");
                let joules = [pruned, brute].map(|chosen| chosen.thrifty.traffic_energy(&model.machine, view, &p));
                prop_assert!(joules[0] <= joules[1] * (1.0 + 1e-12), "{effort:?}: {joules:?} J");
            }
        }
    }

    #[test]
    fn the_fastest_is_the_lower_latency_and_bounds_are_below_it(
        chip in chips(),
        lanes in (1_u32..5, 1_u32..64),
        (batch, m, n, k) in (1_u64..5, 1_u64..300, 1_u64..300, 1_u64..300),
        (causal, backward) in (any::<bool>(), any::<bool>()),
        // The bytes written per result are divided by `summed`. Only powers of two keep them exact; otherwise equal
        // times would differ in the last digit.
        summed in prop::sample::select(vec![1_u64, 2, 64]),
    ) {
        let mut chip = chip;
        (chip.vector.cores, chip.vector.lanes) = lanes;
        let (operand, result) = (DataType::Bf16, DataType::Bf16);
        let contraction = Contraction { batch, m, n, k, operand, result };
        let bytes = contraction.compulsory_bytes();
        let direction = if backward { Direction::Backward } else { Direction::Forward };
        let elementwise =
            Elementwise { function: ElementwiseFunction::Gelu, direction, elements: batch * m * n, read: bytes, written: bytes };
        let own = Elementwise { read: Bytes(m), written: Bytes(n), ..elementwise };
        let epilogue = Epilogue { contraction, elementwise: own, summed };
        let attention = FusedAttention {
            batch, heads: 2, kv_heads: 1, queries: m, keys: n, head_dim: k, causal, window: None,
            values_are_keys: causal, operand, direction,
            pieces: None,
        };
        let rows = Reduction { function: RowFunction::LayerNorm, direction, rows: m, columns: n, read: bytes, written: bytes };
        for effort in [MappingEffort::Library, MappingEffort::Thorough] {
            let model = CostModel::new(chip.clone()).unwrap().with_effort(effort);
            for kernel in [
                Kernel::Contraction(contraction), Kernel::Epilogue(epilogue), Kernel::FusedAttention(attention),
                Kernel::Elementwise(elementwise), Kernel::Reduction(rows),
            ] {
                let slower = [Span::OneCore, Span::AllCores].map(|span| model.cost_of_kernel(&kernel, span).latency);
                let least = slower[0].min(slower[1]);
                prop_assert_eq!(model.fastest_latency(&kernel), least, "{:?}", kernel);
                for (span, cost) in [Span::OneCore, Span::AllCores].into_iter().zip(slower) {
                    prop_assert_eq!(model.latency_of_kernel(&kernel, span), cost, "{:?}", kernel);
                    prop_assert!(model.buffered_bound_on(&kernel, span) <= cost, "{:?}", kernel);
                }
                prop_assert!(model.buffered_bound(&kernel) <= least, "{:?}: {:?} > {:?}", kernel, model.buffered_bound(&kernel), least);
            }
        }
    }
}
