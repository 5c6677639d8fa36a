//! Collectives: the cost of a group on the row's fabric, from `sim::network`.

use super::PreparedInputs;
use crate::evidence::{AloneFacts, RunsAlone};
use crate::validate::row::{MeasuredRow, RowFailure};
use sim::kernel::{Collective, CollectiveKind, RankGroup};
use sim::network::{Fabric, Topology};
use sim::units::Bytes;

/// The names of collectives in measurements.
const KINDS: [(&str, CollectiveKind); 6] = [
    ("all_reduce", CollectiveKind::AllReduce),
    ("all_gather", CollectiveKind::AllGather),
    ("reduce_scatter", CollectiveKind::ReduceScatter),
    ("all_to_all", CollectiveKind::AllToAll),
    ("broadcast", CollectiveKind::Broadcast),
    ("send_recv", CollectiveKind::SendRecv),
];

/// The text in `algo` for runs in which the switch did not reduce.
const NO_SWITCH: &str = "NVLS off";

/// Predicts the time of a collective in microseconds.
pub(in crate::validate) fn predict_collective(
    prepared: &mut PreparedInputs,
    row: &MeasuredRow<'_>,
) -> Result<Vec<(&'static str, f64)>, RowFailure> {
    let algorithm = row.cell("algo").unwrap_or_default();
    collective_kind(row)?;
    let fabric = prepared.fabric_under_library(row.text("fabric")?, row.text("chip")?, algorithm)?;
    let us = time_on_fabric(prepared, row, fabric)?;
    prepared.alone = Some(facts_on_fabric(row));
    Ok(vec![("measured_us", us)])
}

/// Returns the facts on which the row's prediction rests.
pub(in crate::validate) fn facts_on_fabric(row: &MeasuredRow<'_>) -> AloneFacts {
    let cell = |key: &str| row.cell(key).unwrap_or("?");
    AloneFacts {
        what: RunsAlone::Collective,
        place: format!("{} on {}", cell("chip"), cell("fabric")),
        kind: cell("collective").to_owned(),
    }
}

/// Returns the time of a row's collective on a fabric, in microseconds.
pub(in crate::validate) fn time_on_fabric(
    prepared: &mut PreparedInputs,
    row: &MeasuredRow<'_>,
    mut fabric: Fabric,
) -> Result<f64, RowFailure> {
    let kind = collective_kind(row)?;
    let (ranks, nodes) = (device_count(row, "ranks")?, device_count(row, "nodes")?);
    if ranks < 2 {
        return Err(row.row_fault("ranks", "must be at least 2", "one rank has nothing to exchange"));
    }
    if !ranks.is_multiple_of(nodes) {
        return Err(row.row_fault("ranks", "must be a multiple of nodes", "give the ranks of all nodes together"));
    }
    if row.cell("algo").is_some_and(|algorithm| algorithm.contains(NO_SWITCH)) {
        fabric.tiers.iter_mut().for_each(|tier| tier.in_network = None);
    }
    let bytes = Bytes(row.count("bytes")?);
    check_nodes(prepared, row, &fabric, (ranks, nodes))?;
    let fabric = occupied_fabric(&fabric, ranks, nodes)?;
    let group = RankGroup { ranks, stride: 1 };
    fabric.check_group(group).map_err(|e| RowFailure::Unpredictable(e.to_string()))?;
    Ok(fabric.cost_of_collective(&Collective { kind, bytes, group }).latency.micros())
}

fn collective_kind(row: &MeasuredRow<'_>) -> Result<CollectiveKind, RowFailure> {
    let name = row.text("collective")?;
    let found = KINDS.iter().find(|(known, _)| *known == name);
    found.map(|(_, kind)| *kind).ok_or_else(|| {
        let known = KINDS.map(|(known, _)| known).join(", ");
        RowFailure::Unpredictable(format!("unknown collective `{name}`; known are {known}"))
    })
}

/// Returns a number of devices or nodes from the column `key`.
fn device_count(row: &MeasuredRow<'_>, key: &str) -> Result<u32, RowFailure> {
    u32::try_from(row.count(key)?).map_err(|_| row.row_fault(key, "must be below 2^32", "correct it"))
}

/// Checks that the fabric has nodes like the row's. On switches, larger nodes are accepted and noted.
fn check_nodes(
    prepared: &mut PreparedInputs,
    row: &MeasuredRow<'_>,
    fabric: &Fabric,
    (ranks, nodes): (u32, u32),
) -> Result<(), RowFailure> {
    let (name, own, per_node) = (&fabric.name, fabric.fast_domain_devices(), ranks / nodes);
    if let Some((links, unit)) =
        fabric.measured_links().filter(|(links, unit)| nodes > links.unit_count() || per_node > *unit)
    {
        let limit = format!("{name} has measured links between {} nodes of {unit}", links.unit_count());
        return Err(row.row_fault("nodes", &limit, "give ranks and nodes that it has"));
    }
    if per_node <= own || fabric.tiers.len() == 1 {
        return Ok(());
    }
    if nodes == 1 {
        let limit = format!("a node of {name} has {own} chips, the row {ranks} ranks");
        return Err(row.row_fault("nodes", &limit, "give the nodes of all ranks together"));
    }
    prepared.note_assumption(format!(
        "{per_node} ranks of a node go before the {own} chips of one of {name}, one network joins so many"
    ));
    Ok(())
}

/// Returns the part of the fabric that the ranks occupy. On a torus, it is the most compact slice. If another network
/// joins slices, each of the row's nodes is a slice. On other fabrics, `ranks / nodes` ranks share a node, so that a
/// group of one rank per node uses only the network between nodes.
fn occupied_fabric(fabric: &Fabric, ranks: u32, nodes: u32) -> Result<Fabric, RowFailure> {
    let unpredictable = |e: sim::network::NetworkError| RowFailure::Unpredictable(e.to_string());
    let torus = fabric.tiers.first().is_some_and(|tier| matches!(tier.topology, Topology::Torus { .. }));
    let per_node = ranks / nodes;
    if torus {
        let slices =
            if nodes > 1 && fabric.tiers.len() > 1 { fabric.with_fast_domain(per_node) } else { Ok(fabric.clone()) };
        return slices.and_then(|f| f.for_devices(ranks)).map_err(unpredictable);
    }
    if nodes > 1 && per_node != fabric.fast_domain_devices() {
        return fabric.with_fast_domain(per_node).map_err(unpredictable);
    }
    Ok(fabric.clone())
}
