//! Kernels costed per second on one core: cold distinct contractions, repeated ones through the cache, and SCALE-Sim's
//! closed form as the floor for any mapping search. `cargo bench -p coplace-sim --bench cost`.
//!
//! On Linux the seconds are the thread's CPU time, so other load on the machine does not change them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use coplace_sim::cost::{ArrayProblem, CostCache, CostModel, Span};
use coplace_sim::hardware::phaze::{self, PhazeConfig};
use coplace_sim::hardware::{Accelerator, Accumulation, Dataflow, MemoryLevel, MemoryScope, TensorCores, VectorCores};
use coplace_sim::kernel::{Contraction, DataType, Kernel};
use coplace_sim::units::{Bytes, BytesPerSecond, Hertz, Seconds};
use std::hint::black_box;
use std::time::Instant;

/// Returns distinct shapes from a linear congruential sequence (Knuth's MMIX constants): dimensions from 1 to 16384,
/// batch 1 to 64.
fn shapes(count: usize) -> Vec<Kernel> {
    let mut state = 42_u64;
    let mut next = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        1 + (state >> 33) % below
    };
    (0..count)
        .map(|_| {
            let (m, n, k, batch) = (next(16_384), next(16_384), next(16_384), if next(4) == 1 { next(64) } else { 1 });
            Kernel::Contraction(Contraction { batch, m, n, k, operand: DataType::Bf16, result: DataType::Bf16 })
        })
        .collect()
}

/// Returns a chip of many small cores: 108 of four 16x16 output-stationary arrays and 64 lanes, 192 KiB each, 40 MiB
/// shared, 2 TB/s.
fn gpu_like() -> Accelerator {
    let base = phaze::design_accelerator(&PhazeConfig::tpu_v4_like());
    let level = |name: &str, scope, capacity, bandwidth| MemoryLevel {
        name: name.to_owned(),
        scope,
        capacity: Bytes(capacity),
        read_bandwidth: BytesPerSecond(bandwidth),
        write_bandwidth: BytesPerSecond(bandwidth),
        ports: 1,
        latency: Seconds(5e-7),
        ..base.hbm.clone()
    };
    let tensor = TensorCores {
        cores: 108,
        arrays_per_core: 4,
        rows: 16,
        columns: 16,
        dataflow: Dataflow::OutputStationary,
        preload: true,
        accumulation: Accumulation::default(),
        macs_per_unit_per_cycle: base.tensor.macs_per_unit_per_cycle,
    };
    Accelerator {
        name: "gpu-like".to_owned(),
        clock: Hertz(1.41e9),
        tensor,
        vector: VectorCores { cores: 108, lanes: 64, buffer: None, transcendentals_per_cycle: 0.0 },
        on_chip: vec![
            level("registers", MemoryScope::Core, 256 << 10, 2.1e12),
            level("shared memory", MemoryScope::Core, 192 << 10, 1.8e11),
            level("l2", MemoryScope::Chip, 40 << 20, 7.2e12),
        ],
        hbm: level("hbm", MemoryScope::Chip, 80_000_000_000, 2.039e12),
        ..base.clone()
    }
}

/// Returns the CPU time of this thread in seconds. The first figure of its scheduler statistics gives it in
/// nanoseconds.
fn on_core() -> Option<f64> {
    let statistics = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(statistics.split_whitespace().next()?.parse::<f64>().ok()? * 1e-9)
}

/// Runs `work` for about a second; prints calls per second and the time of one call.
fn measure(name: &str, per_call: usize, mut work: impl FnMut()) {
    let begin = Instant::now();
    let clock = || on_core().unwrap_or_else(|| begin.elapsed().as_secs_f64());
    work();
    let start = clock();
    let mut calls = 0_u64;
    let mut seconds = 0.0;
    while seconds < 1.0 {
        work();
        calls += 1;
        seconds = clock() - start;
    }
    let rate = calls as f64 * per_call as f64 / seconds;
    println!("{name:<58} {rate:>14.0} per second {:>10.3} µs each", 1e6 / rate);
}

fn bench(accelerator: Accelerator) {
    let name = accelerator.name.clone();
    let model = CostModel::new(accelerator).expect("a valid accelerator");
    let kernels = shapes(2_000);
    for span in [Span::AllCores, Span::OneCore] {
        measure(&format!("{name}: cold contractions, {span:?}"), kernels.len(), || {
            for kernel in &kernels {
                black_box(model.cost_of_kernel(black_box(kernel), span));
            }
        });
    }
    let mut cache = CostCache::new(&model);
    measure(&format!("{name}: memoised contractions"), kernels.len(), || {
        for kernel in &kernels {
            black_box(cache.cost_of_kernel(black_box(kernel), Span::AllCores));
        }
    });
    measure(&format!("{name}: lower bounds"), kernels.len(), || {
        for kernel in &kernels {
            black_box(model.lower_bound(black_box(kernel), Span::AllCores));
        }
    });
}

fn main() {
    let kernels = shapes(2_000);
    measure("closed form of one array (no mapping)", kernels.len(), || {
        for kernel in &kernels {
            if let Kernel::Contraction(c) = black_box(kernel) {
                let problem = ArrayProblem {
                    rows: 128,
                    columns: 128,
                    dataflow: Dataflow::WeightStationary,
                    m: c.m,
                    n: c.n,
                    k: c.k,
                };
                black_box(problem.run_stall_free());
            }
        }
    });
    bench(phaze::design_accelerator(&PhazeConfig::tpu_v4_like()));
    bench(gpu_like());
}
