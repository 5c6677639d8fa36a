//! A fabric's file as written: keys carry the unit.

use super::parts::FabricSystem;
use serde::Deserialize;

/// A fabric file as written.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FabricFile {
    pub name: String,
    pub description: String,
    #[serde(default)]
    pub joins: Vec<String>,
    pub source: String,
    #[serde(default)]
    pub fitted_on: String,
    pub launch_us: f64,
    #[serde(rename = "tier")]
    pub tiers: Vec<TierTable>,
    #[serde(rename = "chip", default)]
    pub chips: Vec<FabricChipTable>,
    #[serde(default)]
    pub software: Vec<SoftwareTable>,
    pub system: Option<FabricSystem>,
}

/// A `[[tier]]` table.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TierTable {
    pub name: String,
    pub topology: TopologyName,
    pub devices: Option<u32>,
    pub dims: Option<Vec<u32>>,
    pub wrap_multiple: Option<u32>,
    pub twisted: Option<bool>,
    pub oversubscription: Option<f64>,
    pub links_gb_per_s: Option<Vec<Vec<f64>>>,
    pub bandwidth_gb_per_s: Option<f64>,
    pub achieved_fraction: f64,
    pub step_latency_us: f64,
    #[serde(default)]
    pub chunk_overhead_us: f64,
    pub ring_step_us: Option<f64>,
    pub final_copy_gb_per_s: Option<f64>,
    pub low_latency_step_us: Option<f64>,
    pub low_latency_fraction: Option<f64>,
    pub line_step_us: Option<f64>,
    pub line_fraction: Option<f64>,
    pub line_chunk_us: Option<f64>,
    pub exchange_step_us: Option<f64>,
    pub exchange_fraction: Option<f64>,
    pub exchange_chunk_us: Option<f64>,
    pub exchange_peer_gb_per_s: Option<f64>,
    pub group_gb_per_s: Option<Vec<f64>>,
    pub in_network_latency_us: Option<f64>,
    pub in_network_fraction: Option<f64>,
    pub in_network_chunk_us: Option<f64>,
    pub in_network_forced: Option<bool>,
    pub source: String,
}

/// A `[[chip]]` table: the figures of one chip on a fabric that several chips share.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FabricChipTable {
    pub name: String,
    pub bandwidth_gb_per_s: Vec<f64>,
    pub dims: Option<Vec<u32>>,
    pub wrap_multiple: Option<u32>,
    #[serde(rename = "source")]
    pub _source: String,
}

/// A `[[software]]` table: figures of the innermost tier under another version or setting of the communication library.
/// Missing keys keep the file's figures, except for lines and all-to-all, which then have no protocol.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SoftwareTable {
    pub name: String,
    pub launch_us: Option<f64>,
    pub achieved_fraction: Option<f64>,
    pub step_latency_us: Option<f64>,
    pub chunk_overhead_us: Option<f64>,
    pub final_copy_gb_per_s: Option<f64>,
    pub low_latency_step_us: Option<f64>,
    pub low_latency_fraction: Option<f64>,
    pub line_step_us: Option<f64>,
    pub line_fraction: Option<f64>,
    pub line_chunk_us: Option<f64>,
    pub exchange_step_us: Option<f64>,
    pub exchange_fraction: Option<f64>,
    pub exchange_chunk_us: Option<f64>,
    pub exchange_peer_gb_per_s: Option<f64>,
    pub in_network_latency_us: Option<f64>,
    pub in_network_fraction: Option<f64>,
    pub in_network_chunk_us: Option<f64>,
    pub in_network_forced: Option<bool>,
    #[serde(rename = "source")]
    pub _source: String,
}

/// The topologies by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TopologyName {
    Switch,
    FatTree,
    FullyConnected,
    Ring,
    Torus,
    Matrix,
}
