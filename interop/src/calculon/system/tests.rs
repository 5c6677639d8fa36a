#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use super::{CalculonAxis, CalculonSystem};
use sim::kernel::{Collective, CollectiveKind, Contraction, DataType, Kernel, RankGroup};
use sim::units::{Bytes, BytesPerSecond, Seconds};

const SYSTEM: &str = include_str!("../../../tests/calculon/system.json");
const OLDER: &str = include_str!("../../../tests/calculon/system_older.json");

fn system() -> CalculonSystem {
    CalculonSystem::from_json_str(SYSTEM, "dir/system.json").unwrap()
}

fn error(from: &str, to: &str) -> String {
    assert!(SYSTEM.contains(from), "{from}");
    CalculonSystem::from_json_str(&SYSTEM.replacen(from, to, 1), "s.json").unwrap_err().to_string()
}

#[test]
fn peaks_fractions_and_memories_are_read_in_their_units() {
    let chip = system().to_chip(Some(DataType::Fp16)).unwrap().accelerator;
    assert_eq!(chip.name, "system");
    assert!((chip.peak_flops(DataType::Fp16).unwrap().0 / 200e12 - 1.0).abs() < 1e-12);
    assert!((chip.peak_flops(DataType::Fp8).unwrap().0 / 400e12 - 1.0).abs() < 1e-12);
    assert!((chip.peak_vector_operations().0 / 50e12 - 1.0).abs() < 1e-12);
    assert_eq!((chip.memory_capacity(), chip.hbm.read_bandwidth), (Bytes(64 << 30), BytesPerSecond(1.5e12)));
    let c = chip.calibration;
    assert_eq!((c.tensor_achieved_fraction, c.vector_achieved_fraction, c.hbm_achieved_fraction), (0.9, 0.8, 0.85));
    assert_eq!(
        chip.host.map(|host| (host.capacity, host.bandwidth)),
        Some((Bytes(256 << 30), BytesPerSecond(20e9 * 0.9)))
    );
}

#[test]
fn both_forms_of_the_file_say_the_same() {
    let older = CalculonSystem::from_json_str(OLDER, "dir/system.json").unwrap();
    let both = [&older, &system()].map(|s| s.to_chip(Some(DataType::Fp16)).unwrap().accelerator);
    assert_eq!(both[0].peak_flops(DataType::Fp16), both[1].peak_flops(DataType::Fp16));
    assert_eq!((both[0].calibration, &both[0].hbm), (both[1].calibration, &both[1].hbm));
    assert_eq!(older.to_fabric().unwrap().tiers, system().to_fabric().unwrap().tiers);
}

#[test]
fn a_large_product_takes_its_operations_over_the_achieved_peak_or_its_bytes_over_the_achieved_rate() {
    let chip = system().to_chip(Some(DataType::Fp16)).unwrap().accelerator;
    let model = sim::cost::CostModel::new(chip).unwrap();
    let time = |m: u64, n: u64, k: u64| {
        let product = Contraction { batch: 1, m, n, k, operand: DataType::Fp16, result: DataType::Fp16 };
        model.cost_of_kernel(&Kernel::Contraction(product), sim::cost::Span::AllCores).latency.0
    };
    let computing = 2.0 * 8192_f64.powi(3) / (200e12 * 0.9);
    assert!((time(8192, 8192, 8192) / computing - 1.0).abs() < 0.02, "{} {computing}", time(8192, 8192, 8192));
    // A matrix-vector product is bound by reading the matrix.
    let moving = 2.0 * 16384_f64.powi(2) / (1.5e12 * 0.85);
    assert!((time(16384, 1, 16384) / moving - 1.0).abs() < 0.02, "{} {moving}", time(16384, 1, 16384));
}

#[test]
fn operations_on_a_network_take_its_latency_once_and_a_ring_s_bytes() {
    let fabric = system().to_fabric().unwrap();
    assert_eq!(fabric.tiers.iter().map(|tier| tier.devices).collect::<Vec<_>>(), [8, 1024]);
    let time = |kind, ranks, stride| {
        fabric
            .cost_of_collective(&Collective { kind, bytes: Bytes(800_000_000), group: RankGroup { ranks, stride } })
            .latency
            .0
    };
    let near = |got: f64, expected: f64| assert!((got / expected - 1.0).abs() < 1e-9, "{got} {expected}");
    near(time(CollectiveKind::AllReduce, 8, 1), 3e-6 + 2.0 * 0.8 * 7.0 / 8.0 / (250.0 * 0.7));
    near(time(CollectiveKind::AllGather, 8, 1), 3e-6 + 0.8 * 7.0 / 8.0 / (250.0 * 0.7));
    near(time(CollectiveKind::SendRecv, 2, 8), 9e-6 + 0.8 / (25.0 * 0.9));
    // The network's switches reduce, so an all-reduce sends less than on a ring.
    near(time(CollectiveKind::AllReduce, 64, 8), 9e-6 + 0.8 * (1.0 + 1.0 / 64.0) / (25.0 * 0.9));
}

#[test]
fn axes_choose_the_tiers() {
    let axis = |key, degree, network| CalculonAxis { key, degree, network_key: "net", network };
    let tiers = |t: (u32, usize), d: (u32, usize), p: (u32, usize)| {
        let axes = [axis("tensor_par", t.0, t.1), axis("data_par", d.0, d.1), axis("pipeline_par", p.0, p.1)];
        system()
            .to_fabric_of_axes("run.json", &axes)
            .map(|f| f.tiers.iter().map(|t| (t.name.clone(), t.devices)).collect::<Vec<_>>())
    };
    let named = |list: &[(usize, u32)]| list.iter().map(|(i, n)| (format!("network {i}"), *n)).collect::<Vec<_>>();
    assert_eq!(tiers((4, 0), (16, 1), (2, 1)).unwrap(), named(&[(0, 4), (1, 128)]));
    assert_eq!(tiers((4, 0), (2, 0), (2, 1)).unwrap(), named(&[(0, 8), (1, 16)]));
    assert_eq!(tiers((1, 1), (2, 0), (1, 0)).unwrap(), named(&[(0, 2)]));
    assert_eq!(tiers((1, 0), (1, 1), (1, 1)).unwrap(), named(&[(0, 1)]));
    let fault = |t, d, p| tiers(t, d, p).unwrap_err().to_string();
    assert_eq!(
        fault((16, 0), (1, 0), (1, 0)),
        "run.json: tensor_par = 16: the axes on network 0 have 16 ranks, it has 8 endpoints; lower the degree, or put the axis on a \
         wider network"
    );
    assert_eq!(
        fault((6, 0), (1, 0), (1, 0)),
        "run.json: network 0 = 6: must be filled: the 6 ranks of the axes on it must divide its 8 endpoints; choose degrees that \
         divide it"
    );
    assert!(fault((2, 1), (2, 0), (1, 0)).starts_with("run.json: net = 0: lies inside network 1"));
    assert_eq!(
        fault((2, 5), (1, 0), (1, 0)),
        "run.json: net = 5: dir/system.json has networks 0 to 1; name one of them"
    );
}

#[test]
fn what_is_left_out_is_listed() {
    let lines = [system().list_unmodelled_of_chip(), system().list_unmodelled_of_fabric()].concat();
    for part in [
        "matrix fp16 efficiency",
        "mem1 efficiency",
        "no_overlap",
        "networks[1].ops.all_reduce [1, 0]",
        "processor_usage 0.1",
    ] {
        assert!(lines.iter().any(|line| line.contains(part)), "{part}: {lines:#?}");
    }
    assert_eq!(system().to_fabric().unwrap().tiers[0].step, Seconds::ZERO);
}

/// Calculon's `a100_80e` states 80,000,000,000 GiB for a memory that never fills.
#[test]
fn a_memory_without_end_is_the_largest_that_is_modelled() {
    let text = SYSTEM.replacen("\"GiB\": 64", "\"GiB\": 80000000000", 1);
    let endless = CalculonSystem::from_json_str(&text, "s.json").unwrap();
    assert_eq!(endless.to_chip(None).unwrap().accelerator.memory_capacity(), Bytes(1 << 50));
    let note = "mem1.GiB = 8e10: a memory without end, taken as 1048576 GiB";
    assert_eq!(endless.list_endless_memories(), [note]);
    assert_eq!(endless.list_unmodelled_of_chip()[0], note);
    assert_eq!(crate::import_chip(&text, "s.json").unwrap().notes, [note]);
    assert!(crate::import_chip(SYSTEM, "s.json").unwrap().notes.is_empty());
    // A memory of exactly the largest modelled capacity does not count as endless.
    let largest = SYSTEM.replacen("\"GiB\": 64", "\"GiB\": 1048576", 1);
    assert!(CalculonSystem::from_json_str(&largest, "s.json").unwrap().list_endless_memories().is_empty());
    assert!(error("\"GiB\": 64", "\"GiB\": -1").starts_with("s.json: mem1.GiB = -1: must lie between 0 and "));
}

#[test]
fn faults_name_key_value_limit_and_cure() {
    assert_eq!(
        error("\"tflops\": 200", "\"tflops\": -200"),
        "s.json: matrix.float16.tflops = -200: must lie between 0.001 and 1e7; correct it"
    );
    assert_eq!(error("\"GiB\": 64,", ""), "s.json: mem1.GiB = nothing: this key is needed; add it");
    assert_eq!(error("\"GiB\": 64", "\"GiB\": 0"), "s.json: mem1.GiB = 0: must be positive; give the device's memory");
    assert_eq!(
        error("\"GBps\": 1500", "\"GBps\": 1500, \"ns\": 3"),
        "s.json: mem1.ns = 3: is not a key; there are GiB, GBps, MB_efficiency; remove it or correct its name"
    );
    assert_eq!(
        error("[128, 0.9]", "[0, 0.9]"),
        "s.json: matrix.float16.gflops_efficiency[1][0] = 8: must be below the size before it; list sizes from the largest to 0"
    );
    assert_eq!(
        error("[8, 0.7],\n", "[8, 1.7],\n"),
        "s.json: matrix.float16.gflops_efficiency[1][1] = 1.7: must lie between 0 and 1; correct it"
    );
    assert_eq!(
        error("\"size\": 8,", "\"size\": \"eight\","),
        "s.json: networks[0].size = \"eight\": must be a whole number between 1 and 1048576; correct it"
    );
    assert_eq!(
        error("[1.0, null]", "[1.0, 0]"),
        "s.json: networks[0].ops.p2p[1] = 0: a send has no offset; write null"
    );
    assert!(
        error("\"no_overlap\"", "\"overlap\"")
            .contains("processing_mode = \"overlap\": must be one of roofline, no_overlap")
    );
    assert!(
        CalculonSystem::from_json_str("{", "s.json")
            .unwrap_err()
            .to_string()
            .starts_with("s.json: text = malformed: must be JSON")
    );
    let narrow = system().to_chip(Some(DataType::Fp32)).unwrap_err().to_string();
    assert_eq!(
        narrow,
        "dir/system.json: matrix = nothing: no rate of fp32; it has fp16, fp8; add its rate, or run in another type"
    );
    let flat = SYSTEM.replacen("\"size\": 1024", "\"size\": 12", 1);
    let nested = CalculonSystem::from_json_str(&flat, "s.json").unwrap().to_fabric().unwrap_err().to_string();
    assert!(
        nested.starts_with("s.json: networks[1].size = 12: must be a larger multiple of the 8 endpoints"),
        "{nested}"
    );
}

#[test]
fn the_two_tools_files_are_told_apart() {
    assert!(
        CalculonSystem::recognises(SYSTEM)
            && CalculonSystem::recognises(OLDER)
            && CalculonSystem::recognises(r#"{"networks": 3}"#)
    );
    let theirs = include_str!("../../../tests/llm_compass/a100_like.json");
    assert!(
        !CalculonSystem::recognises(theirs) && !CalculonSystem::recognises("{") && !CalculonSystem::recognises("[]")
    );
}
