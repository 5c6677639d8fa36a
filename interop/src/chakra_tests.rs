#![allow(clippy::unwrap_used)]
use super::*;
use search::planner::{Job, NO_MARGIN, PlanSpace, search_plans};
use sim::hardware::Accelerator;
use sim::network::Fabric;
use std::collections::BTreeMap;
use step::SoftwareStack;
use workloads::Model;
use workloads::footprint::{Optimizer, Precision};
use workloads::training::Attention;

/// BERT-large on two stages of two tensor-parallel devices each.
fn explained(chip: &Accelerator, stack: &str) -> Explanation {
    let (model, fabric) = (Model::load("bert-large").unwrap(), Fabric::built_in("ideal_switch").unwrap());
    let (stack, fabric) = (SoftwareStack::load(stack).unwrap(), fabric.for_devices(8).unwrap());
    let job = Job {
        model: &model,
        chip,
        fabric: &fabric,
        stack: &stack,
        devices: 8,
        global_batch: 64,
        sequence_length: 512,
        attention: Attention::Fused,
        precision: Precision::MIXED_BF16,
        optimizer: Optimizer::Adam,
        headroom: sim::units::Bytes::ZERO,
        fit: NO_MARGIN,
        techniques: workloads::Techniques::none(),
    };
    let space = PlanSpace {
        tensor: Some(vec![2]),
        pipeline: Some(vec![2]),
        micro_batch: Some(vec![2]),
        sequence_parallel: Some(vec![false]),
        ..PlanSpace::default()
    };
    let answer = search_plans(&job, &space, 1).unwrap();
    let mut times = step::ChipTimes::new(chip, &stack).unwrap();
    step::explain::explain_plan(&mut times, &model, &fabric, &answer.best[0].plan).unwrap()
}

/// A raw field of a protobuf message.
#[derive(Debug, Clone, PartialEq)]
enum Raw {
    Number(u64),
    Bytes(Vec<u8>),
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let byte = bytes[0];
        *bytes = &bytes[1..];
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}

fn take(bytes: &mut &[u8]) -> Vec<u8> {
    let length = usize::try_from(varint(bytes)).unwrap();
    let (taken, rest) = bytes.split_at(length);
    *bytes = rest;
    taken.to_vec()
}

/// The fields of a message by number. They are parsed from the wire format, independently of the writer.
fn fields(message: &[u8]) -> BTreeMap<u64, Vec<Raw>> {
    let (mut rest, mut found) = (message, BTreeMap::<u64, Vec<Raw>>::new());
    while !rest.is_empty() {
        let key = varint(&mut rest);
        let value = match key & 7 {
            0 => Raw::Number(varint(&mut rest)),
            2 => Raw::Bytes(take(&mut rest)),
            other => unreachable!("wire type {other}"),
        };
        found.entry(key >> 3).or_default().push(value);
    }
    found
}

fn number(fields: &BTreeMap<u64, Vec<Raw>>, tag: u64) -> u64 {
    match fields.get(&tag).map(Vec::as_slice) {
        None => 0,
        Some([Raw::Number(value)]) => *value,
        other => unreachable!("{tag}: {other:?}"),
    }
}

/// Attributes by name: the tag of the value, and the value.
fn attributes(node: &BTreeMap<u64, Vec<Raw>>) -> BTreeMap<String, (u64, Raw)> {
    let of = |raw: &Raw| {
        let Raw::Bytes(bytes) = raw else { unreachable!() };
        let mut fields = fields(bytes);
        let Some([Raw::Bytes(name)]) = fields.remove(&1).as_deref().map(|v| [v[0].clone()]) else { unreachable!() };
        let (tag, value) = fields.pop_first().unwrap();
        (String::from_utf8(name).unwrap(), (tag, value[0].clone()))
    };
    node.get(&10).into_iter().flatten().map(of).collect()
}

#[test]
fn a_trace_has_every_kernel_of_a_micro_batch_in_an_order_that_can_be_run() {
    let chip = Accelerator::built_in("tpu_v4").unwrap();
    let explained = explained(&chip, "ideal");
    let file = write_execution_trace("test", &explained);
    let mut rest = file.as_slice();
    let metadata = fields(&take(&mut rest));
    assert_eq!(metadata.get(&1), Some(&vec![Raw::Bytes(b"0.0.4".to_vec())]));
    let (mut nodes, mut flops, mut sent, mut ends) = (0_u64, 0_u64, 0_u64, BTreeMap::new());
    while !rest.is_empty() {
        let node = fields(&take(&mut rest));
        nodes += 1;
        assert_eq!(number(&node, 1), nodes);
        // The data dependencies are a packed list, as in proto3.
        let Some([Raw::Bytes(packed)]) = node.get(&5).map(Vec::as_slice) else {
            assert_eq!(nodes, 1, "only the first waits for nothing");
            ends.insert(nodes, number(&node, 6) + number(&node, 7));
            continue;
        };
        let mut packed = packed.as_slice();
        while !packed.is_empty() {
            let before = varint(&mut packed);
            assert!(ends[&before] <= number(&node, 6), "{nodes} starts before {before} ends");
        }
        ends.insert(nodes, number(&node, 6) + number(&node, 7));
        let attributes = attributes(&node);
        let value = |name: &str, tag: u64| match attributes.get(name) {
            Some((found, Raw::Number(value))) if *found == tag => *value,
            None => 0,
            other => unreachable!("{name}: {other:?}"),
        };
        flops += value("num_ops", 9);
        sent += value("comm_size", 9);
        match number(&node, 3) {
            4 => assert!(attributes.contains_key("num_ops") && attributes["tensor_size"].0 == 13),
            7 => {
                // Without sequence parallelism, the collectives of tensor parallelism are all-reduces (0).
                assert_eq!(attributes["comm_type"], (9, Raw::Number(0)));
                assert_eq!(attributes["pg_name"], (29, Raw::Bytes(b"1".to_vec())));
            }
            other => unreachable!("node type {other}"),
        }
        assert_eq!(attributes["is_cpu_op"].0, 27);
    }
    assert_eq!(write_rank_groups(&explained), "{\"1\":[0,1]}");
    let all = explained.passes.iter().flat_map(|pass| pass.kernels.iter().map(move |kernel| (pass.count, kernel)));
    let all: Vec<_> = all.filter(|(_, kernel)| kernel.latency > Seconds::ZERO).collect();
    assert_eq!(nodes, all.iter().map(|(count, _)| count).sum::<u64>());
    let work: f64 = all.iter().map(|(count, kernel)| *count as f64 * kernel.kernel.flops().as_f64()).sum();
    assert!((flops as f64 / work - 1.0).abs() < 1e-9, "{flops} of {work}");
    let bytes = all.iter().map(|(count, kernel)| match kernel.kernel {
        Kernel::Collective(collective) => count * collective.bytes.0,
        _ => 0,
    });
    assert!(sent > 0 && sent == bytes.sum::<u64>());
    let micro_batch: f64 = explained.passes.iter().map(|pass| pass.time.0 * pass.count as f64).sum();
    let last = *ends.values().max().unwrap() as f64 * 1e-6;
    assert!(last <= micro_batch + 1e-6 && last > 0.99 * micro_batch, "{last} of {micro_batch}");
}
