//! The network of a row of measured training: the named fabric, its nodes, and the bandwidth between them. Assumptions
//! about missing and unusable values are noted.

use super::PreparedInputs;
use crate::validate::row::{MeasuredRow, RowFailure};
use sim::network::{Fabric, NetworkError, Topology};
use sim::units::BytesPerSecond;
use workloads::Layout;

/// The column with the number of chips of a node.
const PER_NODE: &str = "chips_per_node";
/// The column with the bandwidth between nodes, in GB/s per chip.
const BETWEEN: &str = "inter_node_gbytes_per_s_per_chip";
/// Smallest accepted value above 0: a 10 Mbit/s Ethernet.
const LEAST_GB_PER_S: f64 = 1e-3;
/// Largest accepted value: ten times the NVLink port of a 2025 GPU.
const MOST_GB_PER_S: f64 = 1e5;

/// The network as the row states it.
struct StatedNetwork<'a> {
    /// The built-in fabric, if the row names one.
    fabric: Option<&'a str>,
    /// Text for the case that the row names no built-in fabric.
    unknown: String,
    /// Number of chips of the run.
    chips: u32,
    /// The layout of the run on them.
    layout: Layout,
    /// Number of chips of a node.
    per_node: Option<u32>,
    /// GB/s of a chip between nodes, in one direction.
    between: Option<f64>,
}

impl<'a> StatedNetwork<'a> {
    fn read_row(row: &MeasuredRow<'a>, layout: &Layout) -> Result<Self, RowFailure> {
        let small =
            |key: &str, n: u64| u32::try_from(n).map_err(|_| row.row_fault(key, "must be below 2^32", "correct it"));
        let between = row.number(BETWEEN)?;
        if between.is_some_and(|between| between != 0.0 && !(LEAST_GB_PER_S..=MOST_GB_PER_S).contains(&between)) {
            let cure = "give GB/s of one chip, one direction; an empty cell means unknown";
            return Err(row.row_fault(BETWEEN, "must be 0, or from 1e-3 to 1e5", cure));
        }
        let named = row.cell("fabric");
        Ok(Self {
            fabric: named.filter(|name| Fabric::names().contains(name)),
            unknown: named.map_or("no fabric is named".to_owned(), |name| {
                format!("fabric `{}` is not built in", name.escape_debug())
            }),
            chips: small("chips", layout.device_count())?,
            layout: *layout,
            per_node: row.optional_count(PER_NODE)?.map(|n| small(PER_NODE, n)).transpose()?,
            between: between.filter(|between| *between > 0.0),
        })
    }

    /// Returns the first axis whose groups do not lie on nodes as the network assumes, with its number of chips; `None`
    /// if all do. The network assumes that a group of consecutive chips is a part of a node, whole nodes, or all chips
    /// from the first node on. Groups of other sizes start anywhere in a node, and some cross into the next.
    fn chips_off_node(&self, per_node: u32) -> Option<(&'static str, u64)> {
        let Layout { tensor, context, data, expert, .. } = self.layout;
        let [tensor, context, data, expert, per_node] = [tensor, context, data, expert, per_node].map(u64::from);
        let inner = tensor.saturating_mul(context);
        // Expert-parallel groups are parts of data-parallel ones, or extend into the inner axes.
        let experts = if let Some(width) = self.layout.expert_tensor {
            expert.saturating_mul(width.into())
        } else if data.is_multiple_of(expert) {
            inner.saturating_mul(expert)
        } else {
            expert
        };
        let spans = [("tp", tensor), ("cp", inner), ("ep", experts), ("dp", inner.saturating_mul(data))];
        let chips = u64::from(self.chips);
        spans
            .into_iter()
            .find(|(_, span)| !per_node.is_multiple_of(*span) && !span.is_multiple_of(per_node) && *span != chips)
    }
}

/// Returns the fabric of a row, with the nodes and the bandwidth that the row states. If the row names no built-in
/// fabric, it is the usual fabric of the chip.
pub(super) fn fabric_of_row(
    prepared: &mut PreparedInputs,
    row: &MeasuredRow<'_>,
    chip: &str,
    layout: &Layout,
) -> Result<Fabric, RowFailure> {
    let stated = StatedNetwork::read_row(row, layout)?;
    let name = match stated.fabric {
        Some(name) => name.to_owned(),
        None => usual_fabric(prepared, row, chip)?,
    };
    let (fabric, borrowed) = named_fabric_of_chip(prepared, &name, chip)?;
    let torus = fabric.tiers.first().is_some_and(|tier| matches!(tier.topology, Topology::Torus { .. }));
    if fabric.tiers.len() == 1 && stated.per_node.is_some_and(|chips| chips < stated.chips) {
        prepared.note_assumption(format!("{PER_NODE} is not used, {} joins all chips in one network", fabric.name));
    }
    let fabric = if torus && fabric.tiers.len() == 1 {
        fabric.for_devices(stated.chips).map_err(|e| RowFailure::Unpredictable(e.to_string()))?
    } else {
        fabric_with_nodes(prepared, row, &stated, fabric)?
    };
    let crosses = stated.chips > fabric.fast_domain_devices();
    if borrowed && crosses {
        prepared.note_assumption(format!(
            "{name} does not say what joins slices of {chip}, taken as what joins those of its first chip"
        ));
    }
    if stated.fabric.is_none() && stated.chips > 1 {
        let unknown = &stated.unknown;
        prepared.note_assumption(match (crosses, stated.between, fabric.tiers.get(1)) {
            (true, Some(_), _) => format!("{unknown}, taken as nodes of {name} with the stated bandwidth between them"),
            (true, None, Some(tier)) => {
                let rate = tier.bandwidth.0 / 1e9;
                format!("{unknown} and no bandwidth between nodes is stated, taken as {name}, {rate} GB/s per chip")
            }
            _ => format!("{unknown}, taken as the network inside a node of {name}"),
        });
    }
    Ok(fabric_with_bandwidth(prepared, &stated, fabric))
}

/// Returns the fabric with nodes as the row states them. The last node may be partly filled if the network can cost
/// that.
fn fabric_with_nodes(
    prepared: &mut PreparedInputs,
    row: &MeasuredRow<'_>,
    stated: &StatedNetwork<'_>,
    fabric: Fabric,
) -> Result<Fabric, RowFailure> {
    let (chips, most, own) = (stated.chips, fabric.device_count(), fabric.fast_domain_devices());
    if chips > most {
        let limit = format!("{} joins at most {most} chips, the run has {chips}", fabric.name);
        return Err(match stated.fabric {
            Some(_) => row.row_fault("fabric", &limit, "name the fabric that joins its nodes"),
            None => RowFailure::Unpredictable(format!(
                "{} and the usual node does not hold the run: {limit}",
                stated.unknown
            )),
        });
    }
    if fabric.tiers.len() == 1 {
        return Ok(fabric);
    }
    let per_node = chips_per_domain(prepared, stated, &fabric, stated.per_node.unwrap_or(own));
    if chips > per_node && !chips.is_multiple_of(per_node) {
        note_partly_filled(prepared, row, stated, &fabric, per_node)?;
    }
    if per_node == own {
        return Ok(fabric);
    }
    if fabric.measured_links().is_some() {
        let limit = format!("the links of {} are measured between nodes of {own}", fabric.name);
        return Err(row.row_fault(PER_NODE, &limit, &format!("give {own}, or leave it empty")));
    }
    if per_node > own && chips > own {
        prepared.note_assumption(format!(
            "{PER_NODE} {per_node} goes before the {own} of {}, one network joins so many chips",
            fabric.name
        ));
    }
    fabric.with_fast_domain(per_node).map_err(|e: NetworkError| RowFailure::Unpredictable(e.to_string()))
}

/// Number of devices from which a fast domain is a rack, not a node.
const RACK: u32 = 16;

/// Returns the number of a run's chips in each fast domain. For racks that the run does not fill, it is the largest
/// equal number into which its groups fit.
fn chips_per_domain(prepared: &mut PreparedInputs, stated: &StatedNetwork<'_>, fabric: &Fabric, per_node: u32) -> u32 {
    let chips = stated.chips;
    if fabric.fast_domain_devices() < RACK
        || chips <= per_node
        || chips.is_multiple_of(per_node)
        || stated.chips_off_node(per_node).is_none()
    {
        return per_node;
    }
    let fits = |part: &u32| chips.is_multiple_of(*part) && stated.chips_off_node(*part).is_none();
    let Some(part) = (RACK / 2..per_node).rev().find(fits) else { return per_node };
    prepared.note_assumption(format!(
        "the {chips} chips of the run are no whole racks of {per_node}, taken as {part} of each"
    ));
    part
}

/// Notes that the last node of a run is partly filled. Between switched nodes, a group's part in each node has the
/// ports of its chips there. Links of whole nodes and slices of a torus have no such parts, so the row has a fault.
fn note_partly_filled(
    prepared: &mut PreparedInputs,
    row: &MeasuredRow<'_>,
    stated: &StatedNetwork<'_>,
    fabric: &Fabric,
    per_node: u32,
) -> Result<(), RowFailure> {
    let chips = stated.chips;
    let limit = format!("the {chips} chips of the run are no whole nodes of {per_node}");
    let switched = |topology: &Topology| matches!(topology, Topology::Switch | Topology::FatTree { .. });
    let why = match (fabric.tiers.iter().all(|tier| switched(&tier.topology)), stated.chips_off_node(per_node)) {
        (true, None) => {
            let (nodes, last) = (chips.div_ceil(per_node), chips % per_node);
            prepared.note_assumption(format!("{limit}, taken as {nodes} nodes of which the last holds {last}"));
            return Ok(());
        }
        (true, Some((axis, span))) => format!(", and the {span} chips of a {axis} group would cross from node to node"),
        (false, _) => format!(", and {} joins whole ones", fabric.name),
    };
    let own = fabric.fast_domain_devices();
    let nodes = format!("give the chips of each of its equal nodes; an empty cell means the {own} of {}", fabric.name);
    Err(row.row_fault(PER_NODE, &format!("{limit}{why}"), &nodes))
}

/// Returns the fabric with the row's bandwidth between nodes, which overrides that of the fabric's file.
fn fabric_with_bandwidth(prepared: &mut PreparedInputs, stated: &StatedNetwork<'_>, fabric: Fabric) -> Fabric {
    let Some(between) = stated.between else { return fabric };
    let why = match fabric.tiers.get(1).map(|tier| &tier.topology) {
        Some(Topology::Matrix(_)) => "has measured links between its nodes",
        Some(_) => return fabric.with_bandwidth(1, BytesPerSecond(between * 1e9)),
        None => "joins all chips in one network",
    };
    if stated.chips > stated.per_node.unwrap_or(fabric.fast_domain_devices()) {
        prepared.note_assumption(format!("{BETWEEN} is not used, {} {why}", fabric.name));
    }
    fabric
}

/// Returns the fabric with its figures for the chip. The fabric's file may describe slices of this chip, but the
/// network between slices only for another chip. Then the other chip's network is taken, and the second value is true.
fn named_fabric_of_chip(prepared: &mut PreparedInputs, name: &str, chip: &str) -> Result<(Fabric, bool), RowFailure> {
    let fabric = prepared.fabric_of_chip(name, chip).cloned();
    let (Err(_), Some(slice)) = (&fabric, name.strip_suffix("_dcn")) else {
        return fabric.map(|fabric| (fabric, false));
    };
    let slice = prepared.fabric_of_chip(slice, chip)?.clone();
    let mut joined = Fabric::built_in(name).map_err(|e| RowFailure::Unpredictable(e.to_string()))?;
    if let (Some(tier), Some(inner)) = (joined.tiers.first_mut(), slice.tiers.into_iter().next()) {
        *tier = inner;
    }
    Ok((joined, true))
}

/// Returns the name of the fabric that the chip's file names as usual.
fn usual_fabric(prepared: &mut PreparedInputs, row: &MeasuredRow<'_>, chip: &str) -> Result<String, RowFailure> {
    let Some(usual) = prepared.cost_model(chip)?.accelerator().origin.usual_fabric.clone() else {
        let limit = format!("must be a built-in fabric: the file of chip {chip} has no usual_fabric");
        let cure = "name one (coplace list fabrics), or add usual_fabric to the chip's file";
        return Err(row.row_fault("fabric", &limit, cure));
    };
    Fabric::built_in(&usual).map(|fabric| fabric.name).map_err(|error| {
        let key = format!("the file of chip {chip}: usual_fabric = {usual}");
        RowFailure::Unpredictable(format!("{key}: {error}; or leave the key out"))
    })
}
