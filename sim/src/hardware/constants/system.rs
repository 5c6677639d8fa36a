//! The constants of the system around the devices. `sim/constants/system.toml` has their ranges and sources.

use serde::Deserialize;

/// `system.toml`.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SystemConstants {
    /// USD of a host: processors, memory, storage, board.
    pub host_board: f64,
    /// USD per device: chassis, cooling, assembly.
    pub host_chassis: f64,
    /// USD per device of power supplies.
    pub host_power_supply: f64,
    /// USD per GB/s of a network card.
    pub network_card: f64,
    /// USD per GB/s of a port of a network switch.
    pub network_switch: f64,
    /// Ports of a network switch.
    pub network_radix: f64,
    /// USD per GB/s of a port of a switch chip on the devices' board.
    pub scale_up_switch: f64,
    /// USD per GB/s of a port of a rack's switch tray.
    pub rack_switch: f64,
    /// Devices that one layer of a rack's switches joins.
    pub rack_radix: f64,
    /// USD per port of an optical circuit switch.
    pub optical_switch: f64,
    /// USD per GB/s of a copper cable.
    pub copper_cable: f64,
    /// USD per GB/s of copper in a rack's cartridge.
    pub backplane_cable: f64,
    /// USD per GB/s of an optical link with both modules.
    pub optical_link: f64,
    /// Devices of a rack of servers.
    pub rack_devices: f64,
}
