//! The memory hierarchy against hand bounds: partial sums at ports, and scratchpads that are worth crossing or not.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use coplace_sim::cost::{ArrayProblem, Bottleneck, CostModel, KernelCost, Span};
use coplace_sim::hardware::{Accelerator, Accumulation, AccumulatorMemory, ChipDocument, FieldValue};
use coplace_sim::kernel::{
    Contraction, DataType, Direction, Elementwise, ElementwiseFunction, Epilogue, FusedAttention, Kernel,
};
use coplace_sim::units::Bytes;

const SIDE: u64 = 8192;

/// Returns an ideal relative of TPU v4 with these fields.
fn relative_of_tpu_v4(fields: &[(&str, f64)]) -> Accelerator {
    let mut document = ChipDocument::of_built_in_chip("tpu_v4").unwrap().strip_measured(true);
    for (key, value) in fields {
        document.set_field(key, &FieldValue::Number(*value)).unwrap();
    }
    document.build_accelerator().unwrap()
}

/// Two cores of eight 128 x 128 arrays at 1625 MHz.
const WINNER: [(&str, f64); 7] = [
    ("clock_mhz", 1625.0),
    ("tensor.arrays_per_core", 8.0),
    ("vector.lanes", 4096.0),
    ("memory.vmem.capacity_mib", 8.0),
    ("memory.hbm.read_gb_per_s", 2760.0),
    ("memory.hbm.write_gb_per_s", 2760.0),
    ("memory.hbm.capacity_gib", 96.0),
];

fn with_vmem(read: f64, write: f64, more: &[(&str, f64)]) -> Accelerator {
    let ports = [("memory.vmem.read_bytes_per_cycle", read), ("memory.vmem.write_bytes_per_cycle", write)];
    relative_of_tpu_v4(&[&WINNER[..], &ports, more].concat())
}

fn square() -> Kernel {
    let (operand, result) = (DataType::Bf16, DataType::Bf16);
    Kernel::Contraction(Contraction { batch: 1, m: SIDE, n: SIDE, k: SIDE, operand, result })
}

/// Returns the seconds at the write ports of two cores: 64 folds of K write all sums, the last as 2-byte results.
/// Operands are written once per unit: 1024 x 1024 sums, the largest that 8 MiB hold.
fn seconds_by_hand(bytes_per_cycle: f64) -> f64 {
    let results = (SIDE * SIDE) as f64;
    let operands = 8.0 * 2.0 * results * 2.0;
    (63.0 * 4.0 * results + 2.0 * results + operands) / (2.0 * bytes_per_cycle * 1.625e9)
}

fn cost(chip: &Accelerator, kernel: &Kernel) -> KernelCost {
    CostModel::new(chip.clone()).unwrap().cost_of_kernel(kernel, Span::AllCores)
}

#[test]
fn partial_sums_take_the_time_of_their_port() {
    let wide = cost(&with_vmem(16384.0, 8192.0, &[]), &square()).latency.0;
    let narrow = cost(&with_vmem(1024.0, 512.0, &[]), &square()).latency.0;
    let (hand, sums) = (seconds_by_hand(512.0), 64.0 * (SIDE * SIDE) as f64 * 4.0 / (2.0 * 512.0 * 1.625e9));
    assert!((narrow / hand - 1.0).abs() < 0.02, "{narrow} s, by hand {hand} s");
    assert!(narrow > sums && narrow < 1.12 * sums, "{narrow} s, {sums} s for the sums alone");
    assert!(wide < 1.4e-3, "{wide} s with ports that keep up");
}

#[test]
fn few_lanes_feed_few_arrays() {
    // Sixteen arrays put out 16 x 128 x 4 B a cycle. The write port of the local buffer takes 2,048 B, a quarter of
    // that.
    let chip = relative_of_tpu_v4(
        &[
            &WINNER[..],
            &[
                ("tensor.arrays_per_core", 16.0),
                ("memory.vmem.read_bytes_per_cycle", 4096.0),
                ("memory.vmem.write_bytes_per_cycle", 2048.0),
            ],
        ]
        .concat(),
    );
    let (hand, time) = (seconds_by_hand(2048.0), cost(&chip, &square()).latency.0);
    assert!((time / hand - 1.0).abs() < 0.02, "{time} s, by hand {hand} s");
}

#[test]
fn the_report_counts_sums_as_the_array_does() {
    let chip = with_vmem(16384.0, 8192.0, &[]);
    let traffic = cost(&chip, &square()).traffic;
    let arrays = ArrayProblem { rows: 128, columns: 128, dataflow: chip.tensor.dataflow, m: SIDE, n: SIDE, k: SIDE };
    let sums = 4 * (arrays.run_stall_free().ofmap_writes - SIDE * SIDE);
    let results = 2 * SIDE * SIDE;
    // VMEM also takes in the operands that the shared levels deliver.
    let filled = traffic.written[0] - (sums + results) as f64;
    assert!(filled >= (2 * 2 * SIDE * SIDE) as f64, "{filled} B of operands");
    assert_eq!(filled, traffic.read[1].max(traffic.read[2]));
}

#[test]
fn accumulators_take_the_sums_from_the_local_buffer() {
    // TPU v1's accumulators, 4 MiB (Jouppi et al., ISCA 2017), at 4 B for each column of eight arrays.
    let own = "[tensor.accumulators]\ncapacity_kib = 4096\nread_bytes_per_cycle = 4096\nwrite_bytes_per_cycle = 4096\n";
    let text = ChipDocument::of_built_in_chip("tpu_v4").unwrap().strip_measured(true).to_text(&[], "test").unwrap();
    let text = text.replacen("[tensor.macs", &format!("{own}\n[tensor.macs"), 1);
    let text = text.replacen("[sources]", "[sources]\n\"tensor.accumulators\" = \"test\"", 1);
    let mut chip = Accelerator::from_toml_str(&text, "own.toml").unwrap();
    chip.tensor.arrays_per_core = 8;
    let mut narrow = chip.clone();
    narrow.on_chip[0].read_bandwidth.0 /= 4.0;
    narrow.on_chip[0].write_bandwidth.0 /= 4.0;
    let bare = Accelerator {
        tensor: coplace_sim::hardware::TensorCores { accumulation: Default::default(), ..narrow.tensor },
        ..narrow.clone()
    };
    let (own, without) = (cost(&narrow, &square()), cost(&bare, &square()));
    let peak = 2.0 * (SIDE as f64).powi(3) / chip.peak_flops(DataType::Bf16).unwrap().0;
    let (own_time, other) = (own.latency.0, without.latency.0);
    assert!(own_time < 1.1 * peak && other > 3.0 * peak, "{own_time} and {other} of {peak}");
    // Every fold writes all sums once.
    assert_eq!(own.traffic.accumulated, 64.0 * 4.0 * (SIDE * SIDE) as f64);
    assert_eq!(without.traffic.accumulated, 0.0);
}

#[test]
fn a_scratchpad_slower_than_what_lies_behind_it_is_not_crossed() {
    let slow = [("memory.cmem.read_gb_per_s", 512.0), ("memory.cmem.write_gb_per_s", 256.0)];
    let with = with_vmem(16384.0, 8192.0, &slow);
    let without = with_vmem(16384.0, 8192.0, &[("memory.cmem.capacity_mib", 0.0)]);
    assert_eq!((with.on_chip.len(), without.on_chip.len()), (2, 1));
    let bytes = Bytes(1 << 30);
    let stream = Kernel::Elementwise(Elementwise {
        function: ElementwiseFunction::Add,
        direction: Direction::Forward,
        elements: 1 << 29,
        read: bytes * 2,
        written: bytes,
    });
    for kernel in [square(), stream] {
        let (with, without) = (cost(&with, &kernel), cost(&without, &kernel));
        assert!(with.latency <= without.latency, "{} with it, {} without", with.latency, without.latency);
    }
    assert_eq!(cost(&with, &stream).traffic.read[1], 0.0, "a stream is used once");
}

#[test]
fn a_fast_scratchpad_spares_the_devices_memory() {
    // 8 MiB of VMEM hold so little of a square product that HBM with an eighth of its bandwidth is the bottleneck.
    let hbm = [("memory.hbm.read_gb_per_s", 345.0), ("memory.hbm.write_gb_per_s", 345.0)];
    let (with, without) = (
        with_vmem(16384.0, 8192.0, &hbm),
        with_vmem(16384.0, 8192.0, &[&hbm[..], &[("memory.cmem.capacity_mib", 0.0)]].concat()),
    );
    let (with, without) = (cost(&with, &square()), cost(&without, &square()));
    assert!(with.latency.0 < 0.8 * without.latency.0, "{} with it, {} without", with.latency, without.latency);
    assert!(with.traffic.read[2] < 0.5 * without.traffic.read[1]);
}

/// A unit that multiplies two fp8 pairs in a cycle adds them, so its sums leave as often as those of one bf16 pair.
#[test]
fn narrow_operands_double_the_work_between_two_partial_sums() {
    let product = |operand, k| {
        Kernel::Contraction(Contraction { batch: 1, m: SIDE, n: SIDE, k, operand, result: DataType::Bf16 })
    };
    let mut chip = with_vmem(1024.0, 512.0, &[]);
    chip.tensor.macs_per_unit_per_cycle.fp8 = Some(2.0);
    let (wide, narrow) = (cost(&chip, &product(DataType::Bf16, SIDE)), cost(&chip, &product(DataType::Fp8, 2 * SIDE)));
    let ratio = narrow.latency.0 / wide.latency.0;
    assert!((ratio - 1.0).abs() < 0.01, "{ratio}");
}

/// Returns causal attention of 32 heads over 4,096 tokens.
fn attention(direction: Direction) -> Kernel {
    Kernel::FusedAttention(FusedAttention {
        direction,
        batch: 1,
        heads: 32,
        kv_heads: 8,
        queries: 4096,
        keys: 4096,
        head_dim: 128,
        causal: true,
        window: None,
        values_are_keys: false,
        pieces: None,
        operand: DataType::Bf16,
    })
}

/// Returns the bytes through the device's memory, as a multiple of the compulsory bytes.
fn device_traffic(chip: &str, kernel: &Kernel) -> f64 {
    let chip = Accelerator::built_in(chip).unwrap();
    let last = chip.level_count() - 1;
    cost(&chip, kernel).traffic.bytes(last).as_f64() / kernel.compulsory_bytes().as_f64()
}

/// On TPU v4, equally fast tiles and routes differ by up to a factor of four in their HBM traffic.
#[test]
fn of_equally_fast_tilings_the_one_of_least_energy_is_taken() {
    for direction in [Direction::Forward, Direction::Backward] {
        let ratio = device_traffic("tpu_v4", &attention(direction));
        assert!(ratio < 1.01, "{direction:?}: {ratio} times the compulsory bytes");
    }
    let (operand, result) = (DataType::Fp32, DataType::Bf16);
    let product = Kernel::Contraction(Contraction { batch: 8, m: 2048, n: 128, k: 2048, operand, result });
    let ratio = device_traffic("tpu_v5p", &product);
    assert!(ratio < 1.1, "{ratio} times the compulsory bytes");
}

/// A core's own memory at a sixteenth of its rate sets the time of every kind of kernel.
#[test]
fn a_kernel_is_bound_by_the_cores_memory_where_its_ports_set_the_time() {
    let stream = Kernel::Elementwise(Elementwise {
        function: ElementwiseFunction::Add,
        direction: Direction::Forward,
        elements: 1 << 29,
        read: Bytes(2 << 30),
        written: Bytes(1 << 30),
    });
    let product = Contraction { batch: 1, m: SIDE, n: SIDE, k: SIDE, operand: DataType::Bf16, result: DataType::Bf16 };
    let gelu = Elementwise {
        function: ElementwiseFunction::Gelu,
        direction: Direction::Forward,
        elements: SIDE * SIDE,
        read: Bytes(0),
        written: Bytes(0),
    };
    let epilogue = Kernel::Epilogue(Epilogue { contraction: product, elementwise: gelu, summed: 1 });
    let kernels = [square(), epilogue, attention(Direction::Forward), attention(Direction::Backward)];
    for name in ["tpu_v4", "tpu_v5p"] {
        let fast = Accelerator::built_in(name).unwrap();
        let mut slow = fast.clone();
        slow.on_chip[0].read_bandwidth.0 /= 16.0;
        slow.on_chip[0].write_bandwidth.0 /= 16.0;
        for span in [Span::OneCore, Span::AllCores] {
            let bound =
                |chip: &Accelerator, kernel| CostModel::new(chip.clone()).unwrap().cost_of_kernel(kernel, span).bound;
            for kernel in &kernels {
                assert_eq!(bound(&fast, kernel), Bottleneck::Compute, "{name}: {kernel:?}");
                assert_eq!(bound(&slow, kernel), Bottleneck::Memory(0), "{name}: {kernel:?}");
            }
            let last = fast.level_count() as u8 - 1;
            assert_eq!(bound(&fast, &stream), Bottleneck::Memory(last), "{name}");
            assert_eq!(bound(&slow, &stream), Bottleneck::Memory(0), "{name}");
        }
    }
}

/// The accumulators are faster than a slow local buffer and slower than the arrays, so their port sets the time.
#[test]
fn the_accumulators_port_counts_as_the_cores_memory() {
    let mut chip = Accelerator::built_in("tpu_v4").unwrap();
    chip.on_chip[0].read_bandwidth.0 /= 8.0;
    chip.on_chip[0].write_bandwidth.0 /= 8.0;
    let buffered = cost(&chip, &square());
    chip.tensor.accumulation = Accumulation::Memory(AccumulatorMemory {
        capacity: Bytes(4 << 20),
        read_bytes_per_cycle: 1024.0,
        write_bytes_per_cycle: 1024.0,
        read_energy_per_byte: chip.on_chip[0].read_energy_per_byte,
        write_energy_per_byte: chip.on_chip[0].write_energy_per_byte,
    });
    let accumulated = cost(&chip, &square());
    assert!(accumulated.traffic.accumulated > 0.0 && accumulated.latency < buffered.latency);
    let port = accumulated.traffic.accumulated / (2.0 * 1024.0 * chip.clock.0);
    assert!(port > 0.95 * accumulated.latency.0, "{port} s of {}", accumulated.latency);
    assert_eq!(accumulated.bound, Bottleneck::Memory(0));
}
