//! Laws of the cost model over random accelerators and kernels: finite answers, lower bounds, no port above its rate,
//! and times that never rise with better hardware or more effort.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use coplace_sim::cost::{Bottleneck, CostCache, CostModel, MappingEffort, Span};
use coplace_sim::hardware::phaze::{self, PhazeConfig};
use coplace_sim::hardware::{Accelerator, Accumulation, AccumulatorMemory, Dataflow, TensorCores, VectorCores};
use coplace_sim::hardware::{MemoryKind, MemoryLevel, MemoryScope};
use coplace_sim::kernel::{
    Contraction, DataType, Direction, Elementwise, ElementwiseFunction, Epilogue, FusedAttention, Kernel, PieceLength,
    Reduction, RowFunction, SequencePieces, Transfer, TransferLink,
};
use coplace_sim::units::{Bytes, BytesPerSecond, Hertz, Seconds};
use proptest::prelude::*;

const TYPES: [DataType; 8] = DataType::ALL;
const FLOWS: [Dataflow; 3] = [Dataflow::OutputStationary, Dataflow::WeightStationary, Dataflow::InputStationary];

fn level(name: String, scope: MemoryScope) -> impl Strategy<Value = MemoryLevel> {
    let rates = (1e9_f64..1e13, 1e9_f64..1e13);
    let figures = (7_u32..30, rates, 1_u32..4, 0.0_f64..1e-6, kind(scope));
    figures.prop_map(move |(capacity, (read, write), ports, latency, kind)| MemoryLevel {
        name: name.clone(),
        scope,
        kind,
        capacity: Bytes(1 << capacity),
        read_bandwidth: BytesPerSecond(read),
        write_bandwidth: BytesPerSecond(write),
        ports,
        latency: Seconds(latency),
        ..template().hbm
    })
}

fn kind(scope: MemoryScope) -> impl Strategy<Value = MemoryKind> {
    let bypassed = scope == MemoryScope::Chip;
    prop_oneof![
        Just(MemoryKind::Cache),
        Just(MemoryKind::Scratchpad { bypass: false }),
        Just(MemoryKind::Scratchpad { bypass: bypassed }),
    ]
}

fn accumulation() -> impl Strategy<Value = Accumulation> {
    let memory = (7_u32..24, 1.0_f64..1e4, 1.0_f64..1e4).prop_map(|(capacity, read, write)| {
        Accumulation::Memory(AccumulatorMemory {
            capacity: Bytes(1 << capacity),
            read_bytes_per_cycle: read,
            write_bytes_per_cycle: write,
            read_energy_per_byte: template().hbm.read_energy_per_byte,
            write_energy_per_byte: template().hbm.write_energy_per_byte,
        })
    });
    prop_oneof![Just(Accumulation::LocalBuffer), Just(Accumulation::DedicatedPorts), memory]
}

/// Draws bytes per cycle from 0.01 to 4,096.
fn log_rate() -> impl Strategy<Value = f64> {
    (0.01_f64.ln()..4096.0_f64.ln()).prop_map(f64::exp)
}

fn template() -> Accelerator {
    phaze::design_accelerator(&PhazeConfig::tpu_v4_like())
}

fn tensor() -> impl Strategy<Value = TensorCores> {
    (1_u32..130, 1_u32..9, 0_u32..9, 0_u32..9, 0_usize..3, any::<bool>(), accumulation()).prop_map(
        |(cores, arrays_per_core, rows, columns, flow, preload, accumulation)| TensorCores {
            cores,
            arrays_per_core,
            rows: 1 << rows,
            columns: 1 << columns,
            dataflow: FLOWS[flow],
            preload,
            accumulation,
            macs_per_unit_per_cycle: template().tensor.macs_per_unit_per_cycle,
        },
    )
}

fn memories() -> impl Strategy<Value = (Vec<MemoryLevel>, MemoryLevel)> {
    (0_usize..3, 0_usize..3).prop_flat_map(|(local, shared)| {
        let core: Vec<_> = (0..local).map(|i| level(format!("core{i}"), MemoryScope::Core)).collect();
        let chip: Vec<_> = (0..shared).map(|i| level(format!("chip{i}"), MemoryScope::Chip)).collect();
        (core, chip, level("hbm".to_owned(), MemoryScope::Chip))
            .prop_map(|(core, chip, hbm)| (core.into_iter().chain(chip).collect(), hbm))
    })
}

fn accelerators() -> impl Strategy<Value = Accelerator> {
    (tensor(), memories(), 1_u32..130, 1_u32..2049, 1e8_f64..3e9, 0.0_f64..=1.0, 0.1_f64..=1.0).prop_map(
        |(tensor, (on_chip, hbm), cores, lanes, clock, overlap, achieved)| {
            let mut accelerator = Accelerator {
                clock: Hertz(clock),
                tensor,
                vector: VectorCores { cores, lanes, buffer: None, transcendentals_per_cycle: 0.0 },
                on_chip,
                hbm,
                ..template()
            };
            accelerator.calibration.overlap_fraction = overlap;
            accelerator.calibration.unfused_fraction = 1.0 - overlap;
            accelerator.calibration.hbm_achieved_fraction = achieved;
            accelerator.calibration.launch_overhead = Seconds(1e-6);
            accelerator
        },
    )
}

fn dimension() -> impl Strategy<Value = u64> {
    prop_oneof![1_u64..40, 1_u64..5000, (0_u32..15).prop_map(|p| 1 << p)]
}

fn contractions() -> impl Strategy<Value = Contraction> {
    (prop_oneof![Just(1), 1_u64..100], dimension(), dimension(), dimension(), 0_usize..5)
        .prop_map(|(batch, m, n, k, t)| Contraction { batch, m, n, k, operand: TYPES[t], result: DataType::Bf16 })
}

fn kernels() -> impl Strategy<Value = Kernel> {
    const FUNCTIONS: [ElementwiseFunction; 6] = [
        ElementwiseFunction::Add,
        ElementwiseFunction::Gelu,
        ElementwiseFunction::SwiGlu,
        ElementwiseFunction::Adam,
        ElementwiseFunction::Gather,
        ElementwiseFunction::Tanh,
    ];
    const ROWS: [RowFunction; 5] = [
        RowFunction::Softmax,
        RowFunction::LayerNorm,
        RowFunction::RmsNorm,
        RowFunction::CrossEntropy,
        RowFunction::Sum,
    ];
    let direction = || any::<bool>().prop_map(|back| if back { Direction::Backward } else { Direction::Forward });
    let elementwise = (0_usize..6, direction(), 0_u64..100_000_000).prop_map(|(f, direction, elements)| Elementwise {
        function: FUNCTIONS[f],
        direction,
        elements,
        read: Bytes(elements * 4),
        written: Bytes(elements * 2),
    });
    let reduction = (0_usize..5, direction(), dimension(), dimension()).prop_map(|(f, direction, rows, columns)| {
        let bytes = Bytes(rows * columns * 2);
        Kernel::Reduction(Reduction { function: ROWS[f], direction, rows, columns, read: bytes, written: bytes })
    });
    let (window, cut) = (proptest::option::of(1_u64..513), proptest::option::of((0.0..1.0, 0.0..1.0)));
    let shapes = (direction(), 1_u64..9, 1_u64..65, dimension(), dimension(), 1_u64..257, any::<bool>(), window);
    let attention =
        (shapes, cut).prop_map(|((direction, batch, heads, queries, keys, head_dim, causal, window), cut)| {
            Kernel::FusedAttention(FusedAttention {
                direction,
                batch,
                heads,
                kv_heads: heads,
                queries,
                keys,
                head_dim,
                causal,
                window,
                values_are_keys: queries.is_multiple_of(2),
                pieces: cut.and_then(|cut| pieces_of(keys, cut)),
                operand: DataType::Bf16,
            })
        });
    prop_oneof![
        contractions().prop_map(Kernel::Contraction),
        elementwise.clone().prop_map(Kernel::Elementwise),
        (contractions(), elementwise, 1_u64..80).prop_map(|(contraction, elementwise, summed)| {
            Kernel::Epilogue(Epilogue { contraction, elementwise, summed })
        }),
        reduction,
        attention,
        (0_u64..1 << 40).prop_map(|bytes| Kernel::Transfer(Transfer { link: TransferLink::Host, bytes: Bytes(bytes) })),
    ]
}

fn latency(accelerator: &Accelerator, kernel: &Kernel, span: Span) -> f64 {
    CostModel::new(accelerator.clone()).unwrap().cost_of_kernel(kernel, span).latency.0
}

/// Returns the memory with this index; the device's memory is the last.
fn memory(accelerator: &mut Accelerator, index: usize) -> &mut MemoryLevel {
    let count = accelerator.on_chip.len() + 1;
    match index % count {
        i if i + 1 == count => &mut accelerator.hbm,
        i => &mut accelerator.on_chip[i],
    }
}

const SPANS: [Span; 2] = [Span::OneCore, Span::AllCores];
/// Tolerance for sums of the same terms in another order.
const ROUNDING: f64 = 1.0 + 1e-9;

/// Returns a kernel's attention; `None` for another kernel.
fn attention_of(kernel: &Kernel) -> Option<FusedAttention> {
    if let Kernel::FusedAttention(attention) = kernel { Some(*attention) } else { None }
}

#[test]
fn two_halves_of_a_sequence_have_half_of_its_scores() {
    let whole = FusedAttention {
        direction: Direction::Forward,
        batch: 3,
        heads: 8,
        kv_heads: 2,
        queries: 4096,
        keys: 4096,
        head_dim: 128,
        causal: true,
        window: None,
        values_are_keys: false,
        pieces: None,
        operand: DataType::Bf16,
    };
    let cut = |keys| SequencePieces::new(&[PieceLength { keys, held: 4096 }]);
    let in_pieces = |keys| FusedAttention { pieces: cut(keys), ..whole };
    // 3 sequences, 8 heads, 4,096 queries that see 2,048 keys on average; 4 operations per score and dimension.
    assert_eq!(whole.flops().0, 3 * 8 * 4096 * 2048 * 4 * 128);
    assert_eq!(in_pieces(4096).flops(), whole.flops());
    assert_eq!(in_pieces(2048).flops().0 * 2, whole.flops().0);
    assert_eq!(in_pieces(2048).compulsory_bytes(), whole.compulsory_bytes());
    // A window of 1,024 keys: 1024 - 1024^2 / (2 * 2048) = 768 keys of each half.
    let windowed = FusedAttention { window: Some(1024), ..in_pieces(2048) };
    assert_eq!(windowed.score_count(), 3 * 8 * 4096 * 768);
    let model = CostModel::new(Accelerator::built_in("h100_80gb_sxm").unwrap()).unwrap();
    let time = |a: FusedAttention| model.cost_of_kernel(&Kernel::FusedAttention(a), Span::AllCores).latency.0;
    assert_eq!(time(in_pieces(4096)).to_bits(), time(whole).to_bits());
    // The halves are two sequences of 2,048.
    let halves = FusedAttention { batch: 6, queries: 2048, keys: 2048, ..whole };
    assert!((time(in_pieces(2048)) / time(halves) - 1.0).abs() < 1e-9);
    assert!(time(in_pieces(2048)) < 0.6 * time(whole));
}

proptest! {
    /// Attention within pieces never takes longer than on whole sequences.
    #[test]
    fn pieces_are_never_slower(accelerator in accelerators(), kernel in kernels(), cut in (0.0..1.0, 0.0..1.0)) {
        if let Some(attention) = attention_of(&kernel) {
            let whole = FusedAttention { pieces: None, ..attention };
            let cut = FusedAttention { pieces: pieces_of(attention.keys, cut), ..attention };
            for span in SPANS {
                let time = |a| latency(&accelerator, &Kernel::FusedAttention(a), span);
                prop_assert!(time(cut) <= time(whole) * ROUNDING);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_mapping_beats_the_arrays_or_the_compulsory_bytes(accelerator in accelerators(), c in contractions()) {
        let kernel = Kernel::Contraction(c);
        let model = CostModel::new(accelerator.clone()).unwrap();
        let cost = model.cost_of_kernel(&kernel, Span::AllCores);
        if let Some(peak) = accelerator.peak_flops(c.operand) {
            prop_assert!(cost.latency.0 * ROUNDING >= (c.flops() / peak).0);
        }
        let (read, write) = (accelerator.hbm.read_bandwidth.0, accelerator.hbm.write_bandwidth.0);
        let directions = if accelerator.hbm.ports <= 1 { 1.0 } else { 2.0 };
        prop_assert!(cost.latency.0 * ROUNDING >= c.compulsory_bytes().as_f64() / (directions * read.max(write)));
        prop_assert!(cost.utilization <= ROUNDING);
    }

    #[test]
    fn the_lower_bound_is_admissible_and_costs_are_numbers(accelerator in accelerators(), kernel in kernels()) {
        let model = CostModel::new(accelerator).unwrap();
        let mut cache = CostCache::new(&model);
        let alone = model.cost_alone(&kernel).latency;
        prop_assert!(alone.0 * ROUNDING >= model.cost_of_kernel(&kernel, Span::AllCores).latency.0, "alone {alone}");
        for span in SPANS {
            let cost = model.cost_of_kernel(&kernel, span);
            let bound = model.lower_bound(&kernel, span);
            prop_assert!(bound.0 <= cost.latency.0 * ROUNDING, "{bound} above {}", cost.latency);
            prop_assert!(!cost.latency.0.is_nan() && cost.latency.0 >= 0.0 && cost.energy.0 >= 0.0);
            prop_assert!(cost.traffic.read.iter().chain(&cost.traffic.written).all(|b| b.is_finite() && *b >= 0.0));
            prop_assert_eq!(cache.cost_of_kernel(&kernel, span), cost);
            prop_assert_eq!(cache.cost_of_kernel(&kernel, span), cost);
        }
    }

    #[test]
    fn more_bandwidth_is_never_slower(accelerator in accelerators(), kernel in kernels(), which in 0_usize..6, factor in 1.0_f64..8.0) {
        let mut wider = accelerator.clone();
        let level = memory(&mut wider, which);
        level.read_bandwidth.0 *= factor;
        level.write_bandwidth.0 *= factor;
        for span in SPANS {
            prop_assert!(latency(&wider, &kernel, span) <= latency(&accelerator, &kernel, span) * ROUNDING);
        }
    }

    #[test]
    fn more_capacity_is_never_slower(accelerator in accelerators(), kernel in kernels(), which in 0_usize..6, factor in 1_u64..9) {
        let mut larger = accelerator.clone();
        let level = memory(&mut larger, which);
        level.capacity = level.capacity * factor;
        for span in SPANS {
            prop_assert!(latency(&larger, &kernel, span) <= latency(&accelerator, &kernel, span) * ROUNDING);
        }
    }

    #[test]
    fn more_ports_are_never_slower(accelerator in accelerators(), kernel in kernels(), which in 0_usize..6) {
        let mut wider = accelerator.clone();
        memory(&mut wider, which).ports += 1;
        for span in SPANS {
            prop_assert!(latency(&wider, &kernel, span) <= latency(&accelerator, &kernel, span) * ROUNDING);
        }
    }

    #[test]
    fn a_scratchpad_that_can_be_bypassed_is_never_slower(
        accelerator in accelerators(), kernel in kernels(), place in 0_usize..3,
        added in level("added".to_owned(), MemoryScope::Chip),
    ) {
        let mut deeper = accelerator.clone();
        let cores = deeper.on_chip.iter().filter(|level| level.scope == MemoryScope::Core).count();
        let place = (cores + place).min(deeper.on_chip.len());
        deeper.on_chip.insert(place, MemoryLevel { kind: MemoryKind::Scratchpad { bypass: true }, ..added });
        for span in SPANS {
            let (with, without) = (latency(&deeper, &kernel, span), latency(&accelerator, &kernel, span));
            prop_assert!(with <= without * ROUNDING, "{with} with it, {without} without, {kernel:?}");
        }
    }

    #[test]
    fn a_path_around_a_memory_is_never_slower(accelerator in accelerators(), kernel in kernels(), which in 0_usize..3) {
        let mut freer = accelerator.clone();
        let mut shared = freer.on_chip.iter_mut().filter(|level| level.scope == MemoryScope::Chip);
        if let Some(level) = shared.nth(which) {
            level.kind = MemoryKind::Scratchpad { bypass: true };
        }
        for span in SPANS {
            let (with, without) = (latency(&freer, &kernel, span), latency(&accelerator, &kernel, span));
            prop_assert!(with <= without * ROUNDING, "{with} with it, {without} without, {kernel:?}");
        }
    }

    #[test]
    fn more_lanes_are_never_slower(accelerator in accelerators(), kernel in kernels(), more in 1_u32..4) {
        let mut larger = accelerator.clone();
        larger.vector.lanes += more;
        for span in SPANS {
            let (few, many) = (latency(&accelerator, &kernel, span), latency(&larger, &kernel, span));
            prop_assert!(many <= few * ROUNDING, "{many} with more, {few} with fewer, {kernel:?}");
        }
    }

    /// Fused attention is left out. Its model uses every core that has a tile, even if fewer cores would be faster.
    #[test]
    fn more_cores_are_never_slower(
        accelerator in accelerators(), kernel in kernels(),
        tensor in 0_u32..3, vector in 0_u32..3, double in any::<bool>()
    ) {
        if matches!(kernel, Kernel::FusedAttention(_)) {
            return Ok(());
        }
        let mut larger = accelerator.clone();
        if double {
            (larger.tensor.cores, larger.vector.cores) = (2 * accelerator.tensor.cores, 2 * accelerator.vector.cores);
        } else {
            larger.tensor.cores += tensor;
            larger.vector.cores += vector;
        }
        let (few, many) = (latency(&accelerator, &kernel, Span::AllCores), latency(&larger, &kernel, Span::AllCores));
        prop_assert!(many <= few * (1.0 + 1e-4), "{many} with more, {few} with fewer, {kernel:?}");
    }

    #[test]
    fn units_for_transcendental_functions_are_never_slower(
        accelerator in accelerators(), kernel in kernels(), units in 1e-3_f64..4.0, more in 1.0_f64..8.0
    ) {
        let with = |per_lane: f64| {
            let mut chip = accelerator.clone();
            chip.vector.transcendentals_per_cycle = per_lane * f64::from(chip.vector.lanes);
            latency(&chip, &kernel, Span::AllCores)
        };
        let (none, few, many) = (with(0.0), with(units), with(units * more));
        prop_assert!(few <= none * ROUNDING && many <= few * ROUNDING, "{none}, {few}, {many}: {kernel:?}");
    }

    #[test]
    fn no_port_moves_its_traffic_faster_than_its_rate(accelerator in accelerators(), kernel in kernels()) {
        let model = CostModel::new(accelerator.clone()).unwrap();
        let cost = model.cost_of_kernel(&kernel, Span::AllCores);
        let seconds = cost.latency.0 * ROUNDING;
        // Attention with its sums in registers reports operands at every memory of a core, and waits for one of them.
        let registers = accelerator.tensor.dataflow == Dataflow::OutputStationary
            || accelerator.tensor.accumulation == Accumulation::DedicatedPorts;
        let unfitted = matches!(kernel, Kernel::FusedAttention(_)) && registers;
        for (at, level) in accelerator.memory_levels().enumerate() {
            if unfitted && level.scope == MemoryScope::Core {
                continue;
            }
            // A tensor core and a vector core share one core memory. Each core without a partner has its own.
            let instances = match level.scope {
                MemoryScope::Core => f64::from(accelerator.tensor.cores.max(accelerator.vector.cores)),
                MemoryScope::Chip => 1.0,
            };
            let rate = |bandwidth: BytesPerSecond| bandwidth.0 * instances;
            let read = cost.traffic.read[at] / rate(level.read_bandwidth);
            let write = cost.traffic.written[at] / rate(level.write_bandwidth);
            let busy = if level.ports <= 1 { read + write } else { read.max(write) };
            prop_assert!(busy <= seconds, "{}: busy for {busy} of {seconds}, {kernel:?}", level.name);
        }
        if let Some(memory) = accelerator.tensor.accumulation.memory() {
            let rate = memory.read_bytes_per_cycle.min(memory.write_bytes_per_cycle);
            let busy = cost.traffic.accumulated / (rate * accelerator.clock.0 * f64::from(accelerator.tensor.cores));
            prop_assert!(busy <= seconds, "accumulators: busy for {busy} of {seconds}, {kernel:?}");
        }
    }

    /// Adding accumulators, however slow or small, never costs time. Equal times never take more energy. An epilogue's
    /// energy on all cores is left out: accumulators may decide whether all cores or the paired ones run it.
    #[test]
    fn accumulators_are_never_slower_and_cost_no_energy_for_nothing(
        accelerator in accelerators(), kernel in kernels(),
        capacity in 7_u32..25, (read, write) in (log_rate(), log_rate()), factor in 0.0_f64..2.0,
    ) {
        let local = |chip: &Accelerator| chip.on_chip.first().unwrap_or(&chip.hbm).clone();
        let mut bare = accelerator;
        bare.tensor.accumulation = Accumulation::LocalBuffer;
        let mut own = bare.clone();
        own.tensor.accumulation = Accumulation::Memory(AccumulatorMemory {
            capacity: Bytes(1 << capacity),
            read_bytes_per_cycle: read,
            write_bytes_per_cycle: write,
            read_energy_per_byte: local(&bare).read_energy_per_byte * factor,
            write_energy_per_byte: local(&bare).write_energy_per_byte * factor,
        });
        for span in SPANS {
            let cost = |chip: &Accelerator| CostModel::new(chip.clone()).unwrap().cost_of_kernel(&kernel, span);
            let (with, without) = (cost(&own), cost(&bare));
            prop_assert!(
                with.latency.0 <= without.latency.0 * ROUNDING,
                "{} with, {} without, {kernel:?}", with.latency, without.latency
            );
            let paired = matches!(kernel, Kernel::Epilogue(_)) && span == Span::AllCores;
            if with.latency == without.latency && !paired {
                prop_assert!(
                    with.energy.0 <= without.energy.0 * ROUNDING,
                    "{} with, {} without, {kernel:?}", with.energy, without.energy
                );
            }
        }
    }

    /// A product that is bound by a core's memory is faster with a faster one.
    #[test]
    fn a_product_bound_by_a_cores_memory_gains_from_its_rate(accelerator in accelerators(), c in contractions()) {
        let mut accelerator = accelerator;
        accelerator.tensor.accumulation = Accumulation::LocalBuffer;
        let kernel = Kernel::Contraction(c);
        for span in SPANS {
            let cost = CostModel::new(accelerator.clone()).unwrap().cost_of_kernel(&kernel, span);
            let Bottleneck::Memory(index) = cost.bound else { continue };
            let mut faster = accelerator.clone();
            let level = memory(&mut faster, usize::from(index));
            if level.scope == MemoryScope::Core {
                level.read_bandwidth.0 *= 2.0;
                level.write_bandwidth.0 *= 2.0;
                prop_assert!(latency(&faster, &kernel, span) < cost.latency.0, "{kernel:?}: {cost:?}");
            }
        }
    }

    #[test]
    fn more_effort_is_never_slower(accelerator in accelerators(), c in contractions()) {
        let kernel = Kernel::Contraction(c);
        let model = CostModel::new(accelerator).unwrap();
        let times: Vec<f64> = [MappingEffort::Library, MappingEffort::Thorough, MappingEffort::Exhaustive]
            .into_iter()
            .map(|effort| model.clone().with_effort(effort).cost_of_kernel(&kernel, Span::AllCores).latency.0)
            .collect();
        prop_assert!(times[1] <= times[0] * ROUNDING && times[2] <= times[1] * ROUNDING, "{times:?}");
    }

    #[test]
    fn all_cores_are_never_slower_than_one(accelerator in accelerators(), kernel in kernels()) {
        let (all, one) = (latency(&accelerator, &kernel, Span::AllCores), latency(&accelerator, &kernel, Span::OneCore));
        prop_assert!(all <= one * ROUNDING, "all {all}, one {one}");
    }
}

/// Cuts a sequence's keys into pieces. The fraction `part` of the keys lies in pieces whose length is the fraction
/// `length` of it; the rest is one piece.
fn pieces_of(keys: u64, (part, length): (f64, f64)) -> Option<SequencePieces> {
    let held = (keys as f64 * part) as u64;
    let piece = (held as f64 * length) as u64;
    let rest = keys - held;
    SequencePieces::new(&[PieceLength { keys: piece.max(1), held }, PieceLength { keys: rest, held: rest }])
}

#[test]
fn no_kernel_is_too_small_or_too_large() {
    let chips = [template(), Accelerator::built_in("a100_80gb_sxm").unwrap()];
    let sizes = [0, 1, 7, u64::from(u32::MAX), u64::MAX];
    for chip in chips {
        let model = CostModel::new(chip).unwrap();
        for i in 0..sizes.len().pow(3) {
            let (m, n, k) = (sizes[i % 5], sizes[i / 5 % 5], sizes[i / 25]);
            let contraction = Contraction { batch: m, m, n, k, operand: DataType::Fp8, result: DataType::Fp32 };
            let (function, direction) = (RowFunction::LayerNorm, Direction::Backward);
            let attention = FusedAttention {
                direction,
                batch: k,
                heads: m,
                kv_heads: m,
                queries: n,
                keys: k,
                head_dim: m,
                causal: true,
                window: None,
                values_are_keys: false,
                pieces: None,
                operand: DataType::Bf16,
            };
            let bytes = Bytes(m).max(Bytes(k));
            let kernels = [
                Kernel::Contraction(contraction),
                Kernel::Reduction(Reduction { function, direction, rows: m, columns: n, read: bytes, written: bytes }),
                Kernel::FusedAttention(attention),
                Kernel::Elementwise(Elementwise {
                    function: ElementwiseFunction::Adam,
                    direction,
                    elements: k,
                    read: bytes,
                    written: bytes,
                }),
                Kernel::Transfer(Transfer { link: TransferLink::Storage, bytes }),
            ];
            for (kernel, span) in kernels.iter().flat_map(|kernel| SPANS.map(|span| (kernel, span))) {
                let cost = model.cost_of_kernel(kernel, span);
                assert!(!cost.latency.0.is_nan() && cost.latency.0 >= 0.0, "{kernel:?}: {cost:?}");
                assert!(model.lower_bound(kernel, span).0 <= cost.latency.0 * ROUNDING, "{kernel:?}: {cost:?}");
            }
        }
    }
}
