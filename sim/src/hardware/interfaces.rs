//! Kinds of chip-to-chip links and generations of memory.

use serde::{Deserialize, Serialize};

/// A kind of chip-to-chip link.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DieLink {
    /// NVLink 2 and 3: 25 GB/s per direction over eight or four pairs.
    Nvlink3,
    /// NVLink 4: 25 GB/s per direction over two pairs.
    Nvlink4,
    /// NVLink 5: 50 GB/s per direction over two pairs.
    Nvlink5,
    /// AMD Infinity Fabric.
    InfinityFabric,
    /// Inter-chip interconnect of a TPU, 45 to 50 GB/s per direction.
    Ici,
    /// Inter-chip interconnect of TPU v5p and later, 100 GB/s per direction.
    #[serde(rename = "ici_100")]
    Ici100,
    /// 100 Gb/s Ethernet with RDMA.
    #[serde(rename = "ethernet_100g")]
    Ethernet100g,
}

/// A generation of high-bandwidth memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HbmGeneration {
    /// 2016: 2 to 2.4 Gb/s per pin.
    Hbm2,
    /// 2020: to 3.6 Gb/s.
    Hbm2e,
    /// 2022: to 6.4 Gb/s.
    #[default]
    Hbm3,
    /// 2024: to 9.6 Gb/s.
    Hbm3e,
    /// 2026: 2048 pins.
    Hbm4,
}
