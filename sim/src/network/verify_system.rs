//! The rules of a fabric's `[system]` table.

use super::error::FabricFault;
use super::parts::TierParts;
use super::tables::{FabricFile, TopologyName};

/// True if tiers of this topology can be built of these parts.
fn can_build(parts: TierParts, topology: TopologyName) -> bool {
    match topology {
        TopologyName::Torus | TopologyName::Ring => parts.is_torus(),
        TopologyName::FullyConnected => matches!(parts, TierParts::BoardLinks | TierParts::HostBus),
        TopologyName::Switch => !parts.is_torus() && parts != TierParts::BoardLinks,
        TopologyName::FatTree => {
            matches!(parts, TierParts::RackNetwork | TierParts::RailNetwork | TierParts::ScaleUpSwitch)
        }
        // Measured bandwidths do not tell which parts the links are built of.
        TopologyName::Matrix => false,
    }
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
        let word = parts.word();
        let Some(tier) = file.tiers.iter().find(|tier| tier.name == *name) else {
            add(&key, word.into(), "names no tier of the file", "correct the name");
            continue;
        };
        if !can_build(*parts, tier.topology) {
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
