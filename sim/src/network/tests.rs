//! Laws of the network model, and its errors.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::{Algorithm, Fabric, NetworkError, Topology};
use crate::kernel::{Collective, CollectiveKind, RankGroup};
use crate::units::{Bytes, BytesPerSecond, Seconds};
use proptest::prelude::*;

const KINDS: [CollectiveKind; 6] = [
    CollectiveKind::AllReduce,
    CollectiveKind::AllGather,
    CollectiveKind::ReduceScatter,
    CollectiveKind::AllToAll,
    CollectiveKind::Broadcast,
    CollectiveKind::SendRecv,
];

fn op(kind: CollectiveKind, bytes: u64, ranks: u32, stride: u32) -> Collective {
    Collective { kind, bytes: Bytes(bytes), group: RankGroup { ranks, stride } }
}

fn two_tier(topology: &str) -> String {
    format!(
        r#"
name = "test"
description = "two tiers"
source = "a test"
launch_us = 2.0
[[tier]]
name = "inner"
topology = "switch"
devices = 4
bandwidth_gb_per_s = 100.0
achieved_fraction = 0.8
step_latency_us = 1.0
source = "a test"
[[tier]]
name = "outer"
achieved_fraction = 0.9
step_latency_us = 5.0
chunk_overhead_us = 1.0
source = "a test"
{topology}
"#
    )
}

fn flat_switch() -> Fabric {
    Fabric::from_toml_str("t", &two_tier("topology = \"switch\"\ndevices = 32\nbandwidth_gb_per_s = 5.0")).unwrap()
}

fn matrix_text(mut entry: impl FnMut(usize, usize) -> f64) -> String {
    let rows: Vec<Vec<f64>> =
        (0..8).map(|i| (0..8).map(|j| if i == j { 0.0 } else { entry(i, j) }).collect()).collect();
    two_tier(&format!("topology = \"matrix\"\nlinks_gb_per_s = {rows:?}"))
}

#[test]
fn every_template_loads_and_says_where_it_is_from() {
    assert!(Fabric::names().len() >= 28);
    for name in Fabric::names() {
        let fabric = Fabric::built_in(name).unwrap();
        assert_eq!(fabric.name, name);
        assert!(fabric.tiers.iter().all(|t| !t.source.is_empty()));
    }
}

#[test]
fn a_network_names_built_in_chips_and_every_chip_that_is_sold_has_one() {
    let chips = crate::hardware::template_names();
    let fabrics: Vec<Fabric> = Fabric::names().into_iter().map(|name| Fabric::built_in(name).unwrap()).collect();
    for fabric in &fabrics {
        let strange: Vec<&String> = fabric.joins.iter().filter(|chip| !chips.contains(&chip.as_str())).collect();
        assert!(strange.is_empty(), "{}: {strange:?}", fabric.name);
    }
    // No built-in fabric is sold with these chips.
    let without = ["tpu_v2", "tpu_v3", "tpu_v4i", "mi210", "a100_80gb_pcie"];
    for chip in chips {
        let joined = fabrics.iter().any(|fabric| !fabric.joins.is_empty() && fabric.may_join_chip(chip));
        assert_ne!(joined, without.contains(&chip), "{chip}");
    }
}

#[test]
fn phaze_flat_is_phazes_formula() {
    let fabric = Fabric::built_in("phaze_flat").unwrap();
    for ranks in [2_u32, 4, 8, 1024] {
        let bytes = 123_456_789_u64;
        let t = f64::from(ranks);
        let expected = 2.0 * bytes as f64 * (t - 1.0) / t / (4.0 * 1_073_741_824.0);
        let cost = fabric.cost_of_collective(&op(CollectiveKind::AllReduce, bytes, ranks, 1));
        assert!((cost.latency.0 / expected - 1.0).abs() < 1e-12);
    }
    let p2p = fabric.cost_of_collective(&op(CollectiveKind::SendRecv, 1 << 32, 2, 8));
    assert!((p2p.latency.0 - 1.0).abs() < 1e-12);
}

#[test]
fn nothing_to_do_costs_nothing() {
    let fabric = Fabric::built_in("selene_hdr200x8").unwrap();
    for kind in KINDS {
        for cost in [fabric.cost_of_collective(&op(kind, 1 << 20, 1, 8)), fabric.cost_of_collective(&op(kind, 0, 8, 1))]
        {
            assert_eq!((cost.latency, cost.algorithm), (Seconds::ZERO, Algorithm::None));
        }
    }
    assert_eq!(fabric.cost_of_send_between(3, 3, Bytes(1)).latency, Seconds::ZERO);
}

#[test]
fn rings_across_a_tier_go_in_step_where_it_says_so() {
    let outer = "topology = \"fat_tree\"\nbandwidth_gb_per_s = 50.0";
    let with = |ring_step: &str| Fabric::from_toml_str("t", &two_tier(&format!("{outer}\n{ring_step}"))).unwrap();
    let (hops, in_step) = (with(""), with("ring_step_us = 40.0"));
    let small = |fabric: &Fabric, kind, ranks| fabric.cost_of_collective(&op(kind, 1 << 10, ranks, 1)).startup.micros();
    for kind in [CollectiveKind::AllGather, CollectiveKind::ReduceScatter] {
        assert_eq!(small(&hops, kind, 4), small(&in_step, kind, 4), "a group inside a unit");
        assert!((small(&in_step, kind, 16) - 15.0 * 40.0).abs() < 1e-9, "every step waits for the slowest hop");
        assert!(small(&hops, kind, 16) < 30.0, "hops add up");
    }
    let sum = small(&in_step, CollectiveKind::AllReduce, 16);
    assert!(sum < 100.0, "trees are no rings: {sum}");
}

#[test]
fn absurd_groups_cost_a_finite_time() {
    for name in Fabric::names() {
        let fabric = Fabric::built_in(name).unwrap();
        for (ranks, stride) in [(u32::MAX, 1), (2, u32::MAX), (u32::MAX, u32::MAX), (3, 7)] {
            for kind in KINDS {
                let cost = fabric.cost_of_collective(&op(kind, 1 << 20, ranks, stride));
                assert!(cost.latency.is_finite() && cost.latency > Seconds::ZERO, "{name} {kind:?} {ranks} {stride}");
            }
        }
        assert!(fabric.check_group(RankGroup { ranks: u32::MAX, stride: u32::MAX }).is_err());
        assert_eq!(fabric.for_devices(1).unwrap().device_count(), 1);
    }
}

#[test]
fn in_switch_reduction_carries_less_and_wins_on_large_messages() {
    let fabric = Fabric::built_in("nvlink4_node").unwrap();
    let large = fabric.cost_of_collective(&op(CollectiveKind::AllReduce, 1 << 30, 8, 1));
    assert_eq!(large.algorithm, Algorithm::InNetwork);
    assert_eq!(large.link_bytes[0], Bytes((1 << 30) + (1 << 27)));
    assert_eq!(fabric.cost_of_collective(&op(CollectiveKind::AllReduce, 1 << 15, 8, 1)).algorithm, Algorithm::Ring);
}

#[test]
fn a_group_across_nodes_is_bound_by_the_network_and_uses_every_port() {
    let fabric = Fabric::built_in("selene_hdr200x8").unwrap();
    let bytes = 1_u64 << 30;
    let wide = fabric.cost_of_collective(&op(CollectiveKind::AllReduce, bytes, 64, 1));
    let narrow = fabric.cost_of_collective(&op(CollectiveKind::AllReduce, bytes, 8, 8));
    assert_eq!((wide.bound_tier, narrow.bound_tier), (1, 1));
    // Eight ports of a node share the traffic that one member per node sends through its own.
    assert!(narrow.transfer.0 > 4.0 * wide.transfer.0);
    assert!(wide.link_bytes[1].0 <= 2 * bytes / 8);
}

#[test]
fn strided_groups_on_a_torus_share_links() {
    let fabric = Fabric::built_in("tpu_v4_ici").unwrap().for_devices(64).unwrap();
    let bytes = 1 << 30;
    let line = fabric.cost_of_collective(&op(CollectiveKind::AllGather, bytes, 4, 1));
    let column = fabric.cost_of_collective(&op(CollectiveKind::AllGather, bytes, 4, 4));
    assert_eq!(line, column);
    let cube = fabric.cost_of_collective(&op(CollectiveKind::AllGather, bytes, 64, 1));
    assert_eq!(cube.algorithm, Algorithm::TorusDimensions);
    let (one, three) = (line.transfer.0 / 0.75, cube.transfer.0 / (63.0 / 64.0));
    assert!((one / three - 3.0).abs() < 1e-9, "three dimensions carry three times one's: {one} {three}");
    // Two members two chips apart form an open pair. They share their links with a sibling pair.
    let spread = fabric.cost_of_collective(&op(CollectiveKind::AllGather, bytes, 2, 2));
    let adjacent = fabric.cost_of_collective(&op(CollectiveKind::AllGather, bytes, 2, 1));
    assert!((spread.transfer.0 / adjacent.transfer.0 - 2.0).abs() < 1e-9);
}

#[test]
fn torus_all_to_all_is_bound_by_the_bisection() {
    let fabric = Fabric::built_in("tpu_v5e_ici").unwrap();
    // 16 x 16 closed: half of every chip's bytes cross the middle, 2 x 16 links of 50 GB/s each way.
    let bytes = 1_u64 << 30;
    let bisection = 128.0 * bytes as f64 / 2.0 / (32.0 * 50e9 * 0.9);
    let cost = fabric.cost_of_collective(&op(CollectiveKind::AllToAll, bytes, 256, 1));
    assert!((cost.transfer.0 / bisection - 1.0).abs() < 1e-6, "{} {bisection}", cost.transfer);
}

#[test]
fn an_all_to_all_of_sends_side_by_side_starts_once_whatever_the_peers() {
    let fabric = Fabric::built_in("nvlink4_node").unwrap();
    let time = |bytes: u64, ranks: u32| {
        fabric.cost_of_collective(&op(CollectiveKind::AllToAll, bytes, ranks, 1)).latency.micros()
    };
    // A send of 64 KiB per peer starts like a bulk transfer, one of 8 KiB like a low-latency message.
    let [two, eight] = [2, 8].map(|ranks| time((64 << 10) * u64::from(ranks), ranks));
    assert!((eight / two - 1.0).abs() < 0.25, "{two} {eight}");
    let low = 5.13 + 0.761 + f64::from(8 << 10) / 4e3;
    assert!((time(16 << 10, 2) - low).abs() < 1e-6, "{} {low}", time(16 << 10, 2));
    // Without scalars of its own an all-to-all uses those of the other collectives.
    let mut plain = fabric.clone();
    plain.tiers[0].exchange = None;
    let of = |fabric: &Fabric, kind| fabric.cost_of_collective(&op(kind, 1 << 18, 2, 1));
    assert!(of(&plain, CollectiveKind::AllToAll).latency < of(&fabric, CollectiveKind::AllToAll).latency);
    assert_eq!(of(&plain, CollectiveKind::AllGather), of(&fabric, CollectiveKind::AllGather));
    // An incomplete set of scalars forms no protocol.
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/templates/fabrics/nvlink4_node.toml");
    let text = std::fs::read_to_string(path).unwrap().replace("exchange_fraction = 0.66\n", "");
    let why = Fabric::from_toml_str("f.toml", &text).unwrap_err().to_string();
    assert!(why.contains("exchange_*") && why.contains("give all or none"), "{why}");
}

#[test]
fn a_twist_helps_all_to_all_only() {
    for (chips, gain) in [(128, 1.745), (256, 1.391), (64, 1.0)] {
        let plain = Fabric::built_in("tpu_v4_ici").unwrap().for_devices(chips).unwrap();
        let twisted = plain.clone().with_twist();
        let all_to_all = op(CollectiveKind::AllToAll, 1 << 30, chips, 1);
        let ratio = plain.cost_of_collective(&all_to_all).transfer / twisted.cost_of_collective(&all_to_all).transfer;
        assert!((ratio - gain).abs() < 1e-3, "{chips}: {ratio}");
        let gather = op(CollectiveKind::AllGather, 1 << 30, chips, 1);
        assert_eq!(plain.cost_of_collective(&gather), twisted.cost_of_collective(&gather));
        // A fabric file with `twisted = true` gives the same fabric.
        let file = file_with("topology = \"torus\"", "topology = \"torus\"\ntwisted = true").unwrap();
        assert_eq!(file.for_devices(chips).unwrap(), twisted);
    }
}

/// Returns the fabric of TPU v4 from its file with one change.
fn file_with(from: &str, to: &str) -> Result<Fabric, String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/templates/fabrics/tpu_v4_ici.toml");
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains(from));
    Fabric::from_toml_str("f.toml", &text.replacen(from, to, 1)).map_err(|e| e.to_string())
}

#[test]
fn only_tori_with_room_for_a_twisted_slice_are_twisted() {
    let twist = |dims: &str| file_with("dims = [16, 16, 16]", &format!("twisted = true\ndims = {dims}")).unwrap_err();
    for dims in ["[16, 16]", "[4, 4, 4]", "[16, 16, 2]"] {
        let error = twist(dims);
        assert!(
            error.contains("twisted = true: needs room for closed sides of n x n x 2n or n x 2n x 2n in dims"),
            "{error}"
        );
    }
    assert!(file_with("dims = [16, 16, 16]", "twisted = true\ndims = [4, 8, 4]").is_ok());
    let error =
        file_with("topology = \"torus\"\ndims = [16, 16, 16]", "topology = \"ring\"\ndevices = 8\ntwisted = false")
            .unwrap_err();
    assert!(error.contains("twisted"), "{error}");
}

#[test]
fn slices_are_compact_and_wrap_where_they_can() {
    let fabric = Fabric::built_in("tpu_v4_ici").unwrap();
    let dims = |n: u32| match &fabric.for_devices(n).unwrap().tiers[0].topology {
        Topology::Torus { dims, .. } => dims.iter().map(|d| (d.size, d.wrap)).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(dims(8), [(2, false), (2, false), (2, false)]);
    assert_eq!(dims(64), [(4, true), (4, true), (4, true)]);
    assert_eq!(dims(1024), [(8, true), (8, true), (16, true)]);
    let error = fabric.for_devices(4097).unwrap_err().to_string();
    assert_eq!(
        error,
        "fabric `tpu_v4_ici` cannot hold 4097 devices: it holds at most 4096; use fewer devices or a larger fabric"
    );
    let error = fabric.for_devices(19).unwrap_err().to_string();
    assert_eq!(
        error,
        "fabric `tpu_v4_ici` cannot hold 19 devices: no slice of its ici torus has that many; use 18 or 20"
    );
}

#[test]
fn clusters_are_whole_nodes() {
    let fabric = Fabric::built_in("selene_hdr200x8").unwrap();
    assert_eq!(fabric.for_devices(4).unwrap().tiers.len(), 1);
    assert_eq!(fabric.for_devices(3072).unwrap().device_count(), 3072);
    let error = fabric.for_devices(12).unwrap_err().to_string();
    assert_eq!(error, "fabric `selene_hdr200x8` cannot hold 12 devices: its infiniband joins units of 8; use 8 or 16");
    let node = Fabric::built_in("nvlink3_node").unwrap();
    let group = RankGroup { ranks: 4, stride: 4 };
    let error = node.check_group(group).unwrap_err().to_string();
    assert!(error.starts_with("a group of 4 ranks 4 apart spans 13 devices, fabric `nvlink3_node` has 8;"), "{error}");
}

#[test]
fn chips_that_share_a_fabric_have_their_own_figures() {
    let v5p = Fabric::built_in_for_chip("ici_3d_torus", "tpu_v5p").unwrap();
    assert_eq!(v5p.tiers[0].bandwidth, BytesPerSecond(600e9));
    assert_eq!(v5p.device_count(), 8960);
    let error = Fabric::built_in_for_chip("ici_3d_torus_dcn", "tpu_v4").unwrap_err();
    assert!(matches!(error, NetworkError::NoChip { .. }), "{error}");
    let slices = Fabric::built_in_for_chip("ici_2d_torus_dcn", "tpu_v6e").unwrap();
    assert_eq!(slices.with_fast_domain(64).unwrap().for_devices(128).unwrap().device_count(), 128);
}

#[test]
fn a_fabric_by_path_has_the_same_figures_per_chip_as_by_name() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/templates/fabrics/ici_3d_torus.toml");
    for chip in ["tpu_v4", "tpu_v5p", "tpu_v7"] {
        assert_eq!(
            Fabric::load_for_chip(path, chip).unwrap(),
            Fabric::built_in_for_chip("ici_3d_torus", chip).unwrap()
        );
    }
    let error = Fabric::load_for_chip(path, "tpu_v5e").unwrap_err();
    assert!(matches!(error, NetworkError::NoChip { .. }), "{error}");
}

#[test]
fn every_fault_is_named() {
    let text = two_tier("topology = \"switch\"\ndevices = 6\nbandwidth_gb_per_s = nan").replace("= 0.8", "= -0.8");
    let NetworkError::Invalid { faults, .. } = Fabric::from_toml_str("t", &text).unwrap_err() else { panic!() };
    let lines: Vec<String> = faults.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "tier[0] \"inner\".achieved_fraction = -0.8: must be above 0 and at most 1; give achieved over nominal bandwidth",
            "tier[1] \"outer\".bandwidth_gb_per_s = NaN: must be a finite number above 0; give GB/s of one device, one direction",
            "tier[1] \"outer\".devices = 6: must be a multiple of the inner tier's devices; give whole units; \
             did you mean 24?",
        ]
    );
    let branches = two_tier("topology = \"switch\"\ndevices = 3\nbandwidth_gb_per_s = 1.0");
    let error = Fabric::from_toml_str("my.toml", &branches).unwrap_err().to_string();
    assert!(error.contains(
        "devices = 3: must be at least 2 and above the inner tier's; give the devices of one unit; did you mean 12?"
    ));
    let typo = two_tier("topology = \"star\"");
    assert!(Fabric::from_toml_str("my.toml", &typo).unwrap_err().to_string().contains("unknown variant `star`"));
    let error = Fabric::built_in("nvlink9").unwrap_err().to_string();
    assert!(error.starts_with("unknown fabric `nvlink9`: built in are azure_ndr400x8"), "{error}");
    let error = Fabric::built_in("InfiniBand").unwrap_err().to_string();
    assert!(error.starts_with("`InfiniBand` is no fabric, but names links of some: azure_ndr400x8, "), "{error}");
    assert!(error.contains("eos_ndr400x8") && !error.contains("nvlink4_node"), "{error}");
}

#[test]
fn bad_matrices_are_refused() {
    let fault = |text: &str| Fabric::from_toml_str("my.toml", text).unwrap_err().to_string();
    let asymmetric = matrix_text(|i, j| if (i, j) == (1, 2) { 9.0 } else { 10.0 });
    assert_eq!(
        fault(&asymmetric),
        "my.toml: tier[1] \"outer\".links_gb_per_s[1][2] = 9 but 10 back: must be symmetric; average the two directions"
    );
    let negative = matrix_text(|i, j| if i.min(j) == 0 && i.max(j) == 5 { -1.0 } else { 10.0 });
    assert!(fault(&negative).contains("links_gb_per_s[0][5] = -1: must be from 1e-6 to 1e6"));
    let own = two_tier("topology = \"matrix\"\nlinks_gb_per_s = [[0.0, 1.0], [1.0, 2.0]]");
    assert!(fault(&own).contains("links_gb_per_s[1][1] = 2: no link leads from a unit to itself; write 0"));
    let ragged = two_tier("topology = \"matrix\"\nlinks_gb_per_s = [[0.0, 1.0], [1.0]]");
    assert!(fault(&ragged).contains("links_gb_per_s[1] = 1 entries: must have as many entries"));
}

#[test]
fn a_matrix_of_equal_links_is_the_flat_switch() {
    let flat = flat_switch();
    let equal = Fabric::from_toml_str("t", &matrix_text(|_, _| 20.0)).unwrap();
    let tree = "topology = \"fat_tree\"\noversubscription = 2.0\ndevices = 32\nbandwidth_gb_per_s = 10.0";
    let tree = Fabric::from_toml_str("t", &two_tier(tree)).unwrap();
    let [written, thinner] = [&flat, &tree].map(|fabric| fabric.with_written_links().unwrap());
    assert!(!equal.links_differ() && !flat.links_differ());
    let slower = |i: usize, j: usize| if (i.min(j), i.max(j)) == (2, 5) { 19.0 } else { 20.0 };
    assert!(Fabric::from_toml_str("t", &matrix_text(slower)).unwrap().links_differ());
    assert!(Fabric::built_in("tpu_v4_ici").unwrap().with_written_links().is_none());
    assert!(
        Fabric::built_in("selene_hdr200x8")
            .unwrap()
            .for_devices(8)
            .unwrap()
            .with_written_links()
            .is_some_and(|node| node.device_count() == 8)
    );
    for kind in KINDS {
        for (ranks, stride) in [(2, 1), (4, 1), (8, 1), (32, 1), (8, 4), (4, 8), (2, 16), (16, 2)] {
            for bytes in [1_u64 << 10, 1 << 20, 1 << 30] {
                let of = |fabric: &Fabric| fabric.cost_of_collective(&op(kind, bytes, ranks, stride));
                let a = of(&flat);
                for b in [&equal, &tree, &written, &thinner].map(of) {
                    assert!((a.latency.0 / b.latency.0 - 1.0).abs() < 1e-12, "{kind:?} {ranks} {stride}: {a:?} {b:?}");
                }
            }
        }
    }
}

#[test]
fn the_order_of_nodes_matters_on_a_matrix() {
    // Two interleaved racks of four: neighbours in numbering are far apart until the order sorts them.
    let racks = Fabric::from_toml_str("t", &matrix_text(|i, j| if i % 2 == j % 2 { 40.0 } else { 10.0 })).unwrap();
    let pairs = op(CollectiveKind::AllReduce, 1 << 30, 4, 4);
    let sorted = racks.clone().permute_units(&[0, 2, 4, 6, 1, 3, 5, 7]);
    assert!(sorted.cost_of_collective(&pairs).latency < racks.cost_of_collective(&pairs).latency);
}

#[test]
fn links_are_compared_only_between_fabrics_that_differ_in_nothing_else() {
    let own = Fabric::built_in("selene_hdr200x8").unwrap();
    let faster = own.clone().with_bandwidth(1, BytesPerSecond(own.tiers[1].bandwidth.0 * 2.0));
    assert!(own.has_links_of_at_least(&own));
    assert!(faster.has_links_of_at_least(&own) && !own.has_links_of_at_least(&faster));
    // One link is faster, another slower.
    let mixed = faster.clone().with_bandwidth(0, BytesPerSecond(own.tiers[0].bandwidth.0 / 2.0));
    assert!(!mixed.has_links_of_at_least(&own) && !own.has_links_of_at_least(&mixed));
    let mut slow_start = faster;
    slow_start.launch = Seconds(slow_start.launch.0 * 2.0);
    assert!(!slow_start.has_links_of_at_least(&own));
    assert!(!own.for_devices(16).unwrap().has_links_of_at_least(&own));
}

proptest! {
    #[test]
    fn more_bytes_or_slower_links_are_never_faster(
        name in prop::sample::select(Fabric::names()),
        kind in prop::sample::select(KINDS.to_vec()),
        bytes in 1_u64..1 << 34, more in 0_u64..1 << 30,
        ranks in 2_u32..600, stride in prop::sample::select(vec![1_u32, 2, 3, 4, 8, 16, 64]),
        slower in 0.05_f64..1.0, tier in 0_usize..2, flows in 1.0_f64..8.0,
    ) {
        let fabric = Fabric::built_in(name).unwrap();
        let base = fabric.cost_of_collective(&op(kind, bytes, ranks, stride)).latency;
        prop_assert!(base.0 > 0.0 && base.is_finite());
        prop_assert!(fabric.cost_of_collective(&op(kind, bytes + more, ranks, stride)).latency >= base);
        prop_assert!(fabric.cost_of_collective_sharing(&op(kind, bytes, ranks, stride), flows).latency >= base);
        let tier = tier.min(fabric.tiers.len() - 1);
        let less = BytesPerSecond(fabric.tiers[tier].bandwidth.0 * slower);
        prop_assert!(fabric.clone().with_bandwidth(tier, less).cost_of_collective(&op(kind, bytes, ranks, stride)).latency >= base);
        let mut late = fabric;
        late.tiers[tier].step += Seconds(1e-6);
        prop_assert!(late.cost_of_collective(&op(kind, bytes, ranks, stride)).latency >= base);
    }

    #[test]
    fn latency_is_at_least_what_the_ports_can_carry(
        bytes in 1_u64..1 << 34, ranks in 2_u32..=8, kind in prop::sample::select(KINDS[..3].to_vec()),
    ) {
        let fabric = Fabric::built_in("nvlink3_node").unwrap();
        let passes = if kind == CollectiveKind::AllReduce { 2.0 } else { 1.0 };
        let floor = passes * bytes as f64 * f64::from(ranks - 1) / f64::from(ranks) / 300e9;
        prop_assert!(fabric.cost_of_collective(&op(kind, bytes, ranks, 1)).latency.0 >= floor);
    }

    /// A last node that is partly filled has only its members' ports. All data that the others need from it, or it from
    /// them, goes through these ports.
    #[test]
    fn a_node_that_is_filled_in_part_has_fewer_ports(
        bytes in 1_u64..1 << 34, ranks in 9_u32..64, kind in prop::sample::select(KINDS[..3].to_vec()),
    ) {
        let fabric = Fabric::built_in("selene_hdr200x8").unwrap();
        let ports = f64::from(if ranks.is_multiple_of(8) { 8 } else { ranks % 8 });
        let part = if kind == CollectiveKind::AllReduce { 1.0 } else { 1.0 - ports / f64::from(ranks) };
        let floor = bytes as f64 * part / ports / fabric.tiers[1].bandwidth.0;
        prop_assert!(fabric.cost_of_collective(&op(kind, bytes, ranks, 1)).latency.0 >= floor);
    }
}

#[test]
fn every_figure_has_both_limits() {
    for (name, text) in super::file::embedded::FABRICS {
        crate::hardware::every_number_has_limits(text, |text| Fabric::from_toml_str(name, text).is_ok());
    }
    let outer = "topology = \"switch\"\ndevices = 32\nbandwidth_gb_per_s = 5.0";
    let slow = two_tier(outer).replace("launch_us = 2.0", "launch_us = 1e308");
    let error = Fabric::from_toml_str("f.toml", &slow).unwrap_err().to_string();
    assert!(
        error.starts_with("f.toml: launch_us = 1e308: must be at most 1000000, a second; give microseconds"),
        "{error}"
    );
}

/// NCCL broadcasts by the ring only: a small broadcast takes a step per rank.
#[test]
fn a_broadcast_passes_every_rank() {
    let fabric = Fabric::built_in("selene_hdr200x8").unwrap();
    let startup = |ranks| {
        let collective =
            Collective { kind: CollectiveKind::Broadcast, bytes: Bytes(1024), group: RankGroup { ranks, stride: 1 } };
        let cost = fabric.cost_of_collective(&collective);
        assert_eq!(cost.algorithm, Algorithm::Ring);
        cost.startup.0
    };
    let [few, more, most] = [64, 128, 256].map(startup);
    assert!(((most - more) / (more - few) - 2.0).abs() < 0.01, "{few} {more} {most}");
}
