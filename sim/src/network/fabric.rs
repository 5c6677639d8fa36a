//! A fabric: tiers of links between devices.

use super::error::NetworkError;
use super::matrix::LinkMatrix;
use super::parts::FabricSystem;
use super::torus::{self, TorusDim};
use crate::kernel::RankGroup;
use crate::units::{BytesPerSecond, Seconds};
use serde::{Deserialize, Serialize};

/// Most tiers of a fabric.
pub const MAX_TIERS: usize = 4;

/// The topology that joins the units of a tier.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Topology {
    /// Every port at full rate to every other (NVSwitch, a non-blocking rail or fat tree).
    Switch,
    /// A fat tree whose upper levels carry `1/oversubscription` of the ports' bandwidth.
    FatTree {
        /// Downlink over uplink bandwidth, at least 1.
        oversubscription: f64,
    },
    /// Every unit has a link to each other unit; a port's bandwidth is the sum of its links.
    FullyConnected {
        /// Units that are cabled, even if a cluster uses fewer.
        units: u32,
    },
    /// A ring (one dimension), or a 2D/3D torus or mesh; a port's bandwidth is the sum of its `2 * dims` links.
    Torus {
        /// The sides of this fabric, first fastest in device numbering.
        dims: Vec<TorusDim>,
        /// The largest sides that can be built.
        limits: Vec<u32>,
        /// A side wraps around if it is a multiple of this (1: always; TPU v4/v5p: 4; TPU v5e/v6e: 16).
        wrap_multiple: u32,
        /// True if slices of `n x n x 2n` and `n x 2n x 2n` are cabled as twisted tori.
        twisted: bool,
        /// Mean distance between chips of this slice if it is twisted.
        twisted_hops: Option<f64>,
    },
    /// A measured bandwidth between any two units.
    Matrix(LinkMatrix),
}

/// The low-latency protocol of a tier: flags travel with the data and no fence is needed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LowLatency {
    /// Latency of a step.
    pub step: Seconds,
    /// Bandwidth achieved, as a fraction of nominal.
    pub fraction: f64,
}

/// The protocol between low latency and bulk (NCCL's LL128): flags travel with lines of 128 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LineProtocol {
    /// Latency of a step.
    pub step: Seconds,
    /// Bandwidth achieved, as a fraction of nominal.
    pub fraction: f64,
    /// Time per pipelined chunk.
    pub chunk: Seconds,
}

/// The protocols of an all-to-all, if they were measured: parallel sends and receives. In NCCL they have no lines of
/// 128 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ExchangeProtocol {
    /// Time of bulk messages in addition to their bytes. It does not depend on the number of peers.
    pub step: Seconds,
    /// Bandwidth that they achieve together, as a fraction of nominal.
    pub fraction: f64,
    /// Time per pipelined chunk.
    pub chunk: Seconds,
    /// Bytes per second to each peer under low latency.
    pub peer_rate: BytesPerSecond,
}

/// Reduction and multicast in the switch (NVLink SHARP).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct InNetwork {
    /// Latency of the whole operation, without the launch.
    pub latency: Seconds,
    /// Bandwidth achieved, as a fraction of nominal.
    pub fraction: f64,
    /// Time per pipelined chunk.
    pub chunk: Seconds,
    /// True if the library is told to use it for messages of any size.
    #[serde(default)]
    pub forced: bool,
}

/// One tier of links.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tier {
    /// `nvlink`, `infiniband`, `ici`, `dcn`, ...
    pub name: String,
    /// Devices in one unit of this tier, all inner tiers included; `u32::MAX` if the network sets no limit.
    pub devices: u32,
    /// The topology that joins the units of the tier below.
    pub topology: Topology,
    /// Nominal bandwidth of a device's port into this tier, one direction. For a matrix, that of the slowest link, per
    /// device.
    pub bandwidth: BytesPerSecond,
    /// Fraction of `bandwidth` that bulk transfers achieve.
    pub achieved_fraction: f64,
    /// Fixed time of an operation that crosses this tier. It does not depend on steps and bytes.
    pub operation: Seconds,
    /// Latency of one step (hop) of the bulk protocol.
    pub step: Seconds,
    /// Time that each pipelined chunk adds, for synchronising sender and receiver.
    pub chunk: Seconds,
    /// The least time of every step of a ring that crosses this tier, steps inside units included: members forward in
    /// step, so all wait for the slowest hop. If it is given, gathering and scattering across the tier run as one ring,
    /// because NCCL has no other algorithm for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ring_step: Option<Seconds>,
    /// Rate of the local copy that ends a collective; infinite if the copy is hidden.
    pub final_copy: BytesPerSecond,
    /// The low-latency protocol, if any.
    pub low_latency: Option<LowLatency>,
    /// The protocol of lines, if any.
    pub line: Option<LineProtocol>,
    /// The protocols of an all-to-all, if they were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange: Option<ExchangeProtocol>,
    /// Bytes per second of a device in groups of 2, 3, ... members inside a unit, if some links are missing or doubled
    /// (a cube mesh). Empty if every group has the whole port.
    pub group_bandwidth: Vec<BytesPerSecond>,
    /// Reduction in the switch, if any.
    pub in_network: Option<InNetwork>,
    /// The source of the figures.
    pub source: String,
}

/// A network of devices. [`Fabric::built_in`] and [`Fabric::from_toml_str`] build and verify it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fabric {
    /// The template's name.
    pub name: String,
    /// One line for `list fabrics`.
    pub description: String,
    /// Fixed cost of starting a collective (kernel launch and the first synchronisation).
    pub launch: Seconds,
    /// Innermost first.
    pub tiers: Vec<Tier>,
    /// The measurements that the scalars were fitted to; empty if none were.
    pub fitted_on: String,
    /// The built-in chips that are sold with it; empty if it is made for any chip.
    #[serde(default)]
    pub joins: Vec<String>,
    /// The hosts and parts that it is built of.
    #[serde(default)]
    pub system: FabricSystem,
}

impl Tier {
    /// Returns the nominal bytes per second of a device on this tier, one direction, while all devices send. It is the
    /// rate of its port, or its part of a fat tree's thinner upper links.
    #[must_use]
    pub fn shared_rate(&self) -> f64 {
        match self.topology {
            Topology::FatTree { oversubscription } => self.bandwidth.0 / oversubscription,
            _ => self.bandwidth.0,
        }
    }
}

impl Fabric {
    /// True if the fabric is sold with this chip, or made for any chip.
    #[must_use]
    pub fn may_join_chip(&self, chip: &str) -> bool {
        self.joins.is_empty() || self.joins.iter().any(|joined| joined == chip)
    }

    /// The number of devices of the whole fabric; `u32::MAX` if the fabric sets no limit.
    #[must_use]
    pub fn device_count(&self) -> u32 {
        self.tiers.last().map_or(1, |t| t.devices)
    }

    /// Returns the number of devices in one unit of the innermost tier: an NVLink node, an ICI slice.
    #[must_use]
    pub fn fast_domain_devices(&self) -> u32 {
        self.tiers.first().map_or(1, |t| t.devices)
    }

    /// Returns the number of devices in one unit *joined by* tier `tier`: a unit of the tier below, or one device for
    /// the innermost tier.
    #[must_use]
    pub(crate) fn unit_devices(&self, tier: usize) -> u32 {
        if tier == 0 { 1 } else { self.tiers[tier - 1].devices }
    }

    /// Returns the part of this fabric that `devices` devices use. Inner tiers are filled first, unused outer ones are
    /// dropped, and a torus is cut to its most compact slice.
    ///
    /// # Errors
    /// More devices than the fabric has, a number that leaves a unit partly filled, or one that no torus slice has.
    pub fn for_devices(&self, devices: u32) -> Result<Self, NetworkError> {
        let fail = |limit: String, cure: String| {
            Err(NetworkError::DoesNotFit { fabric: self.name.clone(), devices, limit, cure })
        };
        if devices == 0 {
            return fail("a cluster has at least one device".into(), "give 1 or more".into());
        }
        let Some(outer) = self.tiers.iter().position(|t| t.devices >= devices) else {
            return fail(
                format!("it holds at most {}", self.device_count()),
                "use fewer devices or a larger fabric".into(),
            );
        };
        let unit = self.unit_devices(outer);
        if !devices.is_multiple_of(unit) {
            let (low, high) = (devices / unit * unit, (devices / unit + 1).saturating_mul(unit));
            return fail(
                format!("its {} joins units of {unit}", self.tiers[outer].name),
                format!("use {low} or {high}"),
            );
        }
        let mut fabric = self.clone();
        fabric.tiers.truncate(outer + 1);
        match fabric.resize_tier(outer, devices) {
            Some(resized) => Ok(resized),
            None => {
                let fits = |n: &u32| self.clone().resize_tier(outer, *n).is_some();
                let low = (1..devices / unit).rev().map(|u| u * unit).find(fits).unwrap_or(unit);
                let high = (devices / unit + 1..=self.tiers[outer].devices / unit).map(|u| u * unit).find(fits);
                let cure = high.map_or_else(|| format!("use {low}"), |high| format!("use {low} or {high}"));
                fail(format!("no slice of its {} torus has that many", self.tiers[outer].name), cure)
            }
        }
    }

    /// Returns this fabric with units of `devices` devices at `tier`. Outer tiers keep their device counts, rounded
    /// down to whole units. `None` if no torus slice has that size or the inner units do not divide it.
    pub(crate) fn resize_tier(mut self, tier: usize, devices: u32) -> Option<Self> {
        let below = self.unit_devices(tier);
        if devices == 0 || !devices.is_multiple_of(below) {
            return None;
        }
        let units = devices / below;
        let t = self.tiers.get_mut(tier)?;
        match &mut t.topology {
            Topology::Torus { dims, limits, wrap_multiple, twisted, twisted_hops } => {
                *dims = torus::compact_slice(limits, *wrap_multiple, units)?;
                *twisted_hops = if *twisted { torus::twisted_hops(dims) } else { None };
            }
            Topology::Matrix(matrix) => {
                if units > matrix.unit_count() {
                    return None;
                }
                *matrix = matrix.truncate(units);
            }
            Topology::Switch | Topology::FatTree { .. } | Topology::FullyConnected { .. } => {}
        }
        t.devices = devices;
        for outer in &mut self.tiers[tier + 1..] {
            if outer.devices != u32::MAX {
                outer.devices = (outer.devices / devices).max(1) * devices;
            }
        }
        Some(self)
    }

    /// Returns this fabric with fast domains (NVLink nodes, ICI slices) of `devices` devices.
    ///
    /// # Errors
    /// A size that no unit of the innermost tier can have.
    pub fn with_fast_domain(&self, devices: u32) -> Result<Self, NetworkError> {
        let limit = match self.tiers.first().map(|t| &t.topology) {
            Some(Topology::Torus { limits, .. }) => limits.iter().product(),
            _ => u32::MAX,
        };
        self.clone().resize_tier(0, devices).ok_or_else(|| NetworkError::DoesNotFit {
            fabric: self.name.clone(),
            devices,
            limit: format!("a unit of its innermost tier holds at most {limit}"),
            cure: "give the size of one node or slice".into(),
        })
    }

    /// Returns this fabric with another nominal bandwidth of `tier` (per device, one direction). A measured matrix
    /// keeps its links.
    #[must_use]
    pub fn with_bandwidth(mut self, tier: usize, bandwidth: BytesPerSecond) -> Self {
        if let Some(t) = self.tiers.get_mut(tier) {
            t.bandwidth = bandwidth;
        }
        self
    }

    /// True if the fabrics differ at most in the bandwidth of their links, and no link of this one is slower. Then no
    /// collective is slower either.
    #[must_use]
    pub fn has_links_of_at_least(&self, other: &Self) -> bool {
        let faster = |(own, other): (&Tier, &Tier)| {
            own.bandwidth >= other.bandwidth && *own == Tier { bandwidth: own.bandwidth, ..other.clone() }
        };
        let Self { name, description, launch, tiers, fitted_on, joins, system } = self;
        tiers.len() == other.tiers.len()
            && tiers.iter().zip(&other.tiers).all(faster)
            && (name, description, launch, fitted_on, joins, system)
                == (&other.name, &other.description, &other.launch, &other.fitted_on, &other.joins, &other.system)
    }

    /// Returns this fabric with its 3D tori cabled as twisted ones if their sides allow it (`n x n x 2n`, `n x 2n x
    /// 2n`, all closed). This option of TPU v4 slices speeds up all-to-all. Other patterns keep their times.
    #[must_use]
    pub fn with_twist(mut self) -> Self {
        for tier in &mut self.tiers {
            if let Topology::Torus { dims, twisted, twisted_hops, .. } = &mut tier.topology {
                (*twisted, *twisted_hops) = (true, torus::twisted_hops(dims));
            }
        }
        self
    }

    /// Returns this fabric with every measured link replaced by the harmonic mean of all, so that the placement of
    /// units does not matter.
    #[must_use]
    pub fn with_equal_links(mut self) -> Self {
        for tier in &mut self.tiers {
            if let Topology::Matrix(matrix) = &mut tier.topology {
                *matrix = matrix.equalise();
            }
        }
        self
    }

    /// Returns this fabric with the units of its matrix tier in another order: `order[i]` is the hardware unit at
    /// position `i`. It models a mapping of ranks to devices. Other tiers are symmetric; an order of the wrong length
    /// changes nothing.
    #[must_use]
    pub fn permute_units(mut self, order: &[u32]) -> Self {
        for tier in &mut self.tiers {
            if let Topology::Matrix(matrix) = &mut tier.topology
                && order.len() == matrix.unit_count() as usize
            {
                *matrix = matrix.permute(order);
            }
        }
        self
    }

    /// Checks that a group lies within the fabric.
    ///
    /// # Errors
    /// The group reaches beyond the last device.
    pub fn check_group(&self, group: RankGroup) -> Result<(), NetworkError> {
        let span = u64::from(group.ranks.max(1) - 1) * u64::from(group.stride) + 1;
        if span <= u64::from(self.device_count()) {
            return Ok(());
        }
        Err(NetworkError::GroupTooLarge {
            fabric: self.name.clone(),
            ranks: group.ranks,
            stride: group.stride,
            span,
            devices: self.device_count(),
        })
    }
}
