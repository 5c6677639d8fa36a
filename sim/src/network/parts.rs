//! The hardware of a fabric: its hosts, and the parts that each tier is built of.

use super::error::FabricFault;
use super::tables::{FabricFile, TopologyName};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The parts that join the units of a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TierParts {
    /// The host's own bus: no further part.
    HostBus,
    /// Traces of the devices' board: no further part.
    BoardLinks,
    /// Switch chips on the board. If a unit is larger than a host: switch trays and a cable cartridge in a rack.
    ScaleUpSwitch,
    /// Network cards, copper to a switch in the rack, optics between switches.
    RackNetwork,
    /// Network cards, and optics from there on. A cluster of one rack has copper.
    RailNetwork,
    /// Direct links: copper in a rack, optics between racks.
    CabledTorus,
    /// Direct links: copper in a rack. Those that leave its block go through optics and an optical switch.
    OpticalTorus,
}

impl TierParts {
    const ALL: [(Self, &'static str); 7] = [
        (Self::HostBus, "host_bus"),
        (Self::BoardLinks, "board_links"),
        (Self::ScaleUpSwitch, "scale_up_switch"),
        (Self::RackNetwork, "rack_network"),
        (Self::RailNetwork, "rail_network"),
        (Self::CabledTorus, "cabled_torus"),
        (Self::OpticalTorus, "optical_torus"),
    ];

    fn is_torus(self) -> bool {
        matches!(self, Self::CabledTorus | Self::OpticalTorus)
    }

    /// True if tiers of this topology can be built of these parts.
    fn can_build(self, topology: TopologyName) -> bool {
        match topology {
            TopologyName::Torus | TopologyName::Ring => self.is_torus(),
            TopologyName::FullyConnected => matches!(self, Self::BoardLinks | Self::HostBus),
            TopologyName::Switch => !self.is_torus() && self != Self::BoardLinks,
            TopologyName::FatTree => matches!(self, Self::RackNetwork | Self::RailNetwork | Self::ScaleUpSwitch),
            // Measured links do not say what a port is sold for.
            TopologyName::Matrix => false,
        }
    }
}

/// The `[system]` table of a fabric's file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FabricSystem {
    /// Devices of a host; 0 if the file does not say.
    #[serde(default)]
    pub host_devices: u32,
    /// The parts of each tier, by its name. A tier that is not listed has unknown parts.
    #[serde(default)]
    pub tiers: BTreeMap<String, TierParts>,
    /// The reason why parts are unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
    /// Sides of the block of a torus that stands in one rack, in the order of `dims`. Further sides are as the last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rack_dims: Vec<u32>,
    /// Devices that share a network card.
    #[serde(default = "one_device")]
    pub port_devices: u32,
    /// The source of the parts.
    #[serde(default)]
    pub source: String,
}

fn one_device() -> u32 {
    1
}

/// Returns the faults of a file's `[system]` table.
pub(super) fn find_system_faults(file: &FabricFile) -> Vec<FabricFault> {
    let Some(system) = &file.system else { return Vec::new() };
    let mut faults = Vec::new();
    let mut add = |key: &str, value: String, limit: &'static str, cure: &str| {
        faults.push(FabricFault { key: format!("system.{key}"), value, limit, cure: cure.into() });
    };
    if system.source.trim().is_empty() {
        add("source", "\"\"".into(), "must not be empty", "say where the parts are from");
    }
    if system.port_devices == 0 {
        add("port_devices", "0".into(), "must be at least 1", "give the devices that share a network card");
    }
    if system.host_devices == 0 && system.unknown.is_none() {
        add("host_devices", "missing".into(), "is needed if all parts are known", "give the devices of a host");
    }
    for (name, parts) in &system.tiers {
        let key = format!("tiers.{name}");
        let word = TierParts::ALL.iter().find(|(of, _)| of == parts).map_or("", |(_, word)| *word);
        let Some(tier) = file.tiers.iter().find(|tier| tier.name == *name) else {
            add(&key, word.into(), "names no tier of the file", "correct the name");
            continue;
        };
        if !parts.can_build(tier.topology) {
            add(&key, word.into(), "does not build the tier's topology", "correct it, or leave it out: unknown");
        }
        if parts.is_torus() && (system.rack_dims.is_empty() || system.rack_dims.contains(&0)) {
            let cure = "give the sides of the block that stands in one rack";
            add("rack_dims", format!("{:?}", system.rack_dims), "needs sides of at least 1 for a torus", cure);
        }
    }
    if system.unknown.is_none()
        && let Some(tier) = file.tiers.iter().find(|tier| !system.tiers.contains_key(&tier.name))
    {
        let cure = "give its parts, or `unknown` with the reason";
        add(&format!("tiers.{}", tier.name), "missing".into(), "every tier has parts", cure);
    }
    faults
}
