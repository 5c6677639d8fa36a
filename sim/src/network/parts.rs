//! The hardware of a fabric: its hosts, and the parts that each tier is built of.

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
    /// Network cards and optical cables. A cluster in one rack has copper cables instead.
    RailNetwork,
    /// Direct links: copper in a rack, optics between racks.
    CabledTorus,
    /// Direct links: copper in a rack. Links that leave the rack's block of the torus go through optics and an optical
    /// switch.
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

    /// True for direct links.
    pub(super) fn is_torus(self) -> bool {
        matches!(self, Self::CabledTorus | Self::OpticalTorus)
    }

    /// Its word in files.
    pub(super) fn word(self) -> &'static str {
        Self::ALL.iter().find(|(of, _)| *of == self).map_or("", |(_, word)| *word)
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
