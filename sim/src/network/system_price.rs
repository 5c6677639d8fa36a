//! The price of the system around the devices: hosts, network cards, switches, cables, optics.
//!
//! Each part is priced per device, from the fabric and its number of devices alone. Bandwidths are GB/s of one
//! direction; `p` are constants of `sim/constants/system.toml`.
//!
//! - Host: `p.host_board / devices of a host + p.host_chassis + p.host_power_supply`.
//! - A network of `L` layers of switches with rate `b` per device, `o` times oversubscribed above the first layer:
//!   card `b p`, ports `b (1 + 2 (L - 1) / o) p`, a first cable `b`, and `b (L - 1) / o` of optical links. `L` is the
//!   least number for which `2 (radix / 2) ^ L` ports suffice (one switch: `radix`).
//! - Switches of a board: `b p`. Those of a rack: ports as a network's, a cartridge `b`, optics from layer to layer.
//! - A torus of `d` sides has `b / 2 d` per link. A side of `n` devices, of which `c` stand in a rack, has `n` links if
//!   it closes, else `n - 1`. Those between blocks are optical, and with an optical switch the closing one too.

use super::fabric::{Fabric, Tier, Topology};
use super::parts::TierParts;
use super::torus::TorusDim;
use crate::files::{FaultParts, StructuredError};
use crate::hardware::constants::{Constants, SystemConstants};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The price of the system around a device, in USD per device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SystemPrice {
    /// Its part of a host, with chassis and power supplies.
    pub host_usd: f64,
    /// Network cards.
    pub nic_usd: f64,
    /// Switches, optical ones included.
    pub switch_usd: f64,
    /// Copper cables.
    pub cable_usd: f64,
    /// Optical links with their modules.
    pub optics_usd: f64,
}

impl SystemPrice {
    /// Returns the sum of all parts, in USD per device.
    #[must_use]
    pub fn total_usd(&self) -> f64 {
        self.host_usd + self.nic_usd + self.switch_usd + self.cable_usd + self.optics_usd
    }
}

/// A fabric whose parts are not known.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("fabric `{fabric}` has no system price: {why}; {CURE}")]
pub struct UnpricedFabric {
    /// The fabric.
    pub fabric: String,
    /// The reason, with the tier.
    pub why: String,
}

const CURE: &str = "take a fabric with known parts, or a copy of its file with a full [system] table";

impl StructuredError for UnpricedFabric {
    fn fault_parts(&self) -> FaultParts {
        FaultParts::of_key("fabric", &self.fabric, format!("has no system price: {}", self.why), CURE)
    }
}

impl Fabric {
    /// Returns the price of the system around each of the fabric's devices. A fabric without a limit of devices must be
    /// cut to a cluster first ([`Fabric::for_devices`]).
    ///
    /// # Errors
    /// A tier with unknown parts, or an unknown host.
    pub fn price_system(&self, constants: &Constants) -> Result<SystemPrice, UnpricedFabric> {
        let fail = |what: &str| {
            let reason = self.system.unknown.as_deref().unwrap_or("its file has no such parts in [system]");
            Err(UnpricedFabric { fabric: self.name.clone(), why: format!("{what} unknown: {reason}") })
        };
        let prices = &constants.system;
        if self.system.host_devices == 0 {
            return fail("its host is");
        }
        let in_host = self.system.host_devices.min(self.device_count()).max(1);
        let host_usd = prices.host_board / f64::from(in_host) + prices.host_chassis + prices.host_power_supply;
        let mut price = SystemPrice { host_usd, ..SystemPrice::default() };
        for tier in &self.tiers {
            let Some(parts) = self.system.tiers.get(&tier.name) else {
                return fail(&format!("the parts of its {} are", tier.name));
            };
            match parts {
                TierParts::HostBus | TierParts::BoardLinks => {}
                TierParts::ScaleUpSwitch if tier.devices <= self.system.host_devices => {
                    price.switch_usd += rate_of(tier) * prices.scale_up_switch;
                }
                TierParts::ScaleUpSwitch => price.add_rack_switches(tier, prices),
                TierParts::RackNetwork => price.add_network(tier, self, prices, true),
                TierParts::RailNetwork => {
                    let in_rack = f64::from(self.device_count()) <= prices.rack_devices;
                    price.add_network(tier, self, prices, in_rack);
                }
                TierParts::CabledTorus => price.add_torus(tier, &self.system.rack_dims, prices, false),
                TierParts::OpticalTorus => price.add_torus(tier, &self.system.rack_dims, prices, true),
            }
        }
        Ok(price)
    }
}

/// Returns the rate, in GB/s, of a device's port.
fn rate_of(tier: &Tier) -> f64 {
    tier.bandwidth.0 / 1e9
}

/// Returns the layers above the first, each as a fraction of its bandwidth.
fn upper_layers(tier: &Tier, ports: f64, radix: f64) -> f64 {
    let thin = if let Topology::FatTree { oversubscription } = tier.topology { 1.0 / oversubscription } else { 1.0 };
    (count_layers(ports, radix) - 1.0) * thin
}

/// Returns the least number of layers of switches with `radix` ports that join `ports` ends.
fn count_layers(ports: f64, radix: f64) -> f64 {
    // With at least three ports on either side of a switch, each layer multiplies the reach and the loop ends.
    let half = (radix / 2.0).max(3.0);
    let (mut layers, mut reach) = (1.0, 2.0 * half);
    while reach < ports {
        (layers, reach) = (layers + 1.0, reach * half);
    }
    layers
}

impl SystemPrice {
    /// The parts in words, with their prices; parts without a price are left out.
    #[must_use]
    pub fn describe_parts(&self) -> String {
        let parts = [
            ("host", self.host_usd),
            ("network cards", self.nic_usd),
            ("switches", self.switch_usd),
            ("copper cables", self.cable_usd),
            ("optics", self.optics_usd),
        ];
        let paid = parts.into_iter().filter(|(_, usd)| *usd > 0.0);
        paid.map(|(name, usd)| format!("{name} {usd:.0}")).collect::<Vec<_>>().join(", ")
    }

    fn add_network(&mut self, tier: &Tier, fabric: &Fabric, prices: &SystemConstants, copper: bool) {
        let rate = rate_of(tier);
        let ports = f64::from(tier.devices) / f64::from(fabric.system.port_devices.max(1));
        let upper = upper_layers(tier, ports, prices.network_radix);
        self.nic_usd += rate * prices.network_card;
        self.switch_usd += rate * (1.0 + 2.0 * upper) * prices.network_switch;
        let first = if copper { prices.copper_cable } else { prices.optical_link };
        *if copper { &mut self.cable_usd } else { &mut self.optics_usd } += rate * first;
        self.optics_usd += rate * upper * prices.optical_link;
    }

    fn add_rack_switches(&mut self, tier: &Tier, prices: &SystemConstants) {
        let (rate, upper) = (rate_of(tier), upper_layers(tier, f64::from(tier.devices), prices.rack_radix));
        self.switch_usd += rate * (1.0 + 2.0 * upper) * prices.rack_switch;
        self.cable_usd += rate * prices.backplane_cable;
        self.optics_usd += rate * upper * prices.optical_link;
    }

    fn add_torus(&mut self, tier: &Tier, rack: &[u32], prices: &SystemConstants, switched: bool) {
        let Topology::Torus { dims, .. } = &tier.topology else { return };
        let link = rate_of(tier) / (2.0 * dims.len().max(1) as f64);
        for (at, TorusDim { size, wrap }) in dims.iter().enumerate() {
            let in_rack = rack.get(at).or(rack.last()).copied().unwrap_or(1);
            let blocks = size.div_ceil(in_rack.max(1));
            let links = size - u32::from(!wrap);
            let closing = u32::from(*wrap && (switched || blocks > 1));
            let optical = f64::from(blocks - 1 + closing) / f64::from(*size);
            let copper = f64::from(links) / f64::from(*size) - optical;
            self.cable_usd += copper * link * prices.copper_cable;
            self.optics_usd += optical * link * prices.optical_link;
            // A link enters the optical switch and leaves it.
            self.switch_usd += if switched { 2.0 * optical * prices.optical_switch } else { 0.0 };
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::units::BytesPerSecond;
    use std::collections::BTreeMap;

    fn price(fabric: &str, devices: u32) -> SystemPrice {
        let fabric = Fabric::built_in(fabric).unwrap().for_devices(devices).unwrap();
        fabric.price_system(&Constants::nominal()).unwrap()
    }

    fn assert_near(value: f64, expected: f64) {
        assert!((value - expected).abs() < 1e-9 * expected.abs().max(1.0), "{value} is not {expected}");
    }

    /// 1,024 B200: NVSwitch on the board, one card of 50 GB/s each, two layers of 64 ports, optics throughout.
    #[test]
    fn a_switched_cluster_costs_the_sum_of_its_parts() {
        let found = price("dgx_b200_400g", 1024);
        assert_near(found.host_usd, 17_391.0 / 8.0 + 314.0 + 150.0);
        assert_near(found.nic_usd, 50.0 * 27.27);
        // 2 x 32^2 = 2,048 ends on two layers: each device pays for three ports.
        assert_near(found.switch_usd, 900.0 * 1.2 + 3.0 * 50.0 * 11.25);
        assert_near(found.optics_usd, 2.0 * 50.0 * 25.6);
        assert_eq!(found.cable_usd, 0.0);
        assert_near(found.total_usd(), 2637.875 + 1363.5 + 1080.0 + 1687.5 + 2560.0);
        // There are three layers beyond 2,048 devices and one layer up to 64. A cluster in one rack has copper cables.
        assert_near(price("dgx_b200_400g", 4096).optics_usd, 3.0 * 50.0 * 25.6);
        assert_near(price("dgx_b200_400g", 64).switch_usd, 900.0 * 1.2 + 50.0 * 11.25);
        let rack = price("dgx_b200_400g", 32);
        assert_near(rack.cable_usd, 50.0 * 3.0);
        assert_eq!((rack.optics_usd, price("dgx_b200_400g", 8).nic_usd), (0.0, 0.0));
        // A rack of 72 has its switches in trays.
        let rack = price("gb200_nvl72_400g", 72);
        assert_near(rack.switch_usd, 900.0 * 3.5);
        assert_near(rack.cable_usd, 900.0 * 0.4);
    }

    /// 4,096 TPU v4 in cubes of 64. A chip has three links of 45 GB/s, and a quarter of the links leave their cube. The
    /// numbers are those of Jouppi et al., ISCA 2023: 96 links leave the 64 chips of a cube, and 48 switches have 128
    /// ports each.
    #[test]
    fn a_torus_pays_for_copper_in_its_racks_and_optics_between_them() {
        let found = price("tpu_v4_ici", 4096);
        assert_near(found.host_usd, 17_391.0 / 4.0 + 314.0 + 150.0);
        assert_near(found.cable_usd, 2.25 * 45.0 * 3.0);
        assert_near(found.optics_usd, 0.75 * 45.0 * 25.6);
        assert_near(found.switch_usd, 1.5 * 150.0);
        assert_eq!(found.nic_usd, 0.0);
        // A slice smaller than a cube has no closing links: 2 x 2 x 1 has one link per chip.
        let four = price("tpu_v4_ici", 4);
        assert_near(four.cable_usd, 45.0 * 3.0);
        assert_eq!((four.optics_usd, four.switch_usd), (0.0, 0.0));
        // 16 x 16 chips stand in racks of 8 x 8, without an optical switch. Two of the 16 links of a row or column join
        // different racks.
        let flat = price("tpu_v5e_ici", 256);
        assert_near(flat.optics_usd, 2.0 * 2.0 / 16.0 * 50.0 * 25.6);
        assert_near(flat.cable_usd, 2.0 * 14.0 / 16.0 * 50.0 * 3.0);
        assert_eq!(flat.switch_usd, 0.0);
    }

    #[test]
    fn a_thinner_tree_costs_less_and_a_faster_port_more() {
        let full = Fabric::built_in("dgx_b200_400g").unwrap().for_devices(1024).unwrap();
        let nominal = Constants::nominal();
        let mut thin = full.clone();
        thin.tiers[1].topology = Topology::FatTree { oversubscription: 4.0 };
        let (full_price, thin) = (full.price_system(&nominal).unwrap(), thin.price_system(&nominal).unwrap());
        assert_near(thin.optics_usd, (1.0 + 0.25) * 50.0 * 25.6);
        assert!(thin.switch_usd < full_price.switch_usd);
        let fast = full.clone().with_bandwidth(1, BytesPerSecond(100e9)).price_system(&nominal).unwrap();
        assert_near(fast.nic_usd, 2.0 * full_price.nic_usd);
        let changes = BTreeMap::from([("system.optical_link".to_owned(), 10.0)]);
        let cheap = full.price_system(&Constants::with_changes(&changes).unwrap()).unwrap();
        assert_near(cheap.optics_usd, 1000.0);
    }

    #[test]
    fn unknown_parts_are_refused_with_their_reason() {
        let refused = |name: &str, devices: u32| {
            let fabric = Fabric::built_in(name).unwrap().for_devices(devices).unwrap();
            fabric.price_system(&Constants::nominal()).unwrap_err().to_string()
        };
        let text = refused("efa_8x400g", 64);
        assert!(text.contains("the parts of its efa are unknown") && text.contains("[system]"), "{text}");
        // Within a node EFA is not used.
        price("efa_8x400g", 8);
        assert!(refused("ideal_switch", 8).contains("no such switch is sold"));
    }

    #[test]
    fn every_built_in_fabric_has_parts_or_a_reason() {
        for name in Fabric::names() {
            let fabric = Fabric::built_in(name).unwrap();
            assert!(!fabric.system.source.is_empty(), "{name}");
            let all = fabric.tiers.iter().all(|tier| fabric.system.tiers.contains_key(&tier.name));
            assert_ne!(all, fabric.system.unknown.is_some(), "{name}");
        }
    }

    #[test]
    fn faults_of_a_system_table_are_listed() {
        let text = Fabric::built_in_text("tpu_v4_ici").unwrap();
        let wrong = text.replace("ici = ", "icy = ");
        let told = Fabric::from_toml_str("wrong.toml", &wrong).unwrap_err().to_string();
        assert!(told.contains("system.tiers.icy") && told.contains("system.tiers.ici = missing"), "{told}");
        let wrong = text.replace("\"optical_torus\"", "\"rail_network\"");
        assert!(Fabric::from_toml_str("wrong.toml", &wrong).unwrap_err().to_string().contains("topology"));
        let wrong = text.replace("rack_dims = [4, 4, 4]", "rack_dims = [4, 0]");
        assert!(Fabric::from_toml_str("wrong.toml", &wrong).unwrap_err().to_string().contains("system.rack_dims"));
    }
}
