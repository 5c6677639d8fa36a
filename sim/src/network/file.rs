//! Fabric files: one TOML per fabric in `sim/templates/fabrics/`, with a source for every number.

use super::error::NetworkError;
use super::fabric::{ExchangeProtocol, Fabric, InNetwork, LineProtocol, LowLatency, Tier, Topology};
use super::matrix::LinkMatrix;
use super::tables::{FabricChipTable, FabricFile, SoftwareTable, TierTable, TopologyName};
use super::torus::{TorusDim, twisted_hops};
use super::verify;
use super::verify_system::find_system_faults;
use crate::files::carried::Files;
use crate::hardware::Accelerator;
use crate::names;
use crate::units::{BytesPerSecond, Seconds};

pub(super) mod embedded {
    include!(concat!(env!("OUT_DIR"), "/templates.rs"));
}

impl Fabric {
    /// Returns the names of the built-in fabrics, sorted.
    #[must_use]
    pub fn names() -> Vec<&'static str> {
        embedded::FABRICS.iter().map(|(name, _)| *name).collect()
    }

    /// Returns a built-in fabric. If several chips share it, it has the figures of the first one.
    ///
    /// # Errors
    /// [`NetworkError::Unknown`] lists the names that exist.
    pub fn built_in(name: &str) -> Result<Self, NetworkError> {
        let file = parse_file(name, template_text(name)?)?;
        build_fabric(&file)
    }

    /// Returns the text of a built-in fabric's file.
    ///
    /// # Errors
    /// [`NetworkError::Unknown`] lists the names that exist.
    pub fn built_in_text(name: &str) -> Result<&'static str, NetworkError> {
        template_text(name)
    }

    /// Loads a built-in fabric by name, or a fabric file by path (any name that ends in `.toml`). If several chips
    /// share it, it has the figures of the first one.
    ///
    /// # Errors
    /// An unknown name, an unreadable or malformed file, or impossible values.
    pub fn load(name_or_path: &str) -> Result<Self, NetworkError> {
        load_fabric(name_or_path, None, &Files::default())
    }

    /// Loads like [`Fabric::load`], with the fabric's figures for `chip`. A fabric without `[[chip]]` tables ignores
    /// `chip`; fabrics like `ici_3d_torus` have one set of figures per TPU generation.
    ///
    /// # Errors
    /// Those of [`Fabric::load`], and a fabric without figures for this chip.
    pub fn load_for_chip(name_or_path: &str, chip: &str) -> Result<Self, NetworkError> {
        Self::load_for_chip_from(name_or_path, chip, &Files::default())
    }

    /// Loads like [`Fabric::load_for_chip`], with the texts of `files` in place of files on the disk.
    ///
    /// # Errors
    /// Those of [`Self::load_for_chip`].
    pub fn load_for_chip_from(name_or_path: &str, chip: &str, files: &Files) -> Result<Self, NetworkError> {
        load_fabric(name_or_path, Some(chip), files)
    }

    /// Loads like [`Fabric::load_for_chip_from`], for an accelerator. Uses the figures for its own name, or else those
    /// for the built-in chip with the same hardware.
    ///
    /// # Errors
    /// Those of [`Self::load_for_chip`].
    pub fn load_for_accelerator(name_or_path: &str, chip: &Accelerator, files: &Files) -> Result<Self, NetworkError> {
        match Self::load_for_chip_from(name_or_path, &chip.name, files) {
            Err(NetworkError::NoChip { .. }) if chip.known_name() != chip.name => {
                Self::load_for_chip_from(name_or_path, chip.known_name(), files)
            }
            found => found,
        }
    }

    /// Returns a built-in fabric with its figures for `chip`, as in [`Fabric::load_for_chip`].
    ///
    /// # Errors
    /// An unknown fabric, or one without figures for this chip.
    pub fn built_in_for_chip(name: &str, chip: &str) -> Result<Self, NetworkError> {
        fabric_for_chip(parse_file(name, template_text(name)?)?, name, chip)
    }

    /// Returns the fabric of [`Self::built_in_for_chip`] under a version or setting of the communication library. The
    /// figures are those of the first `[[software]]` table that `software` names, else the file's own.
    ///
    /// # Errors
    /// As [`Self::built_in_for_chip`].
    pub fn built_in_under_software(name: &str, chip: &str, software: &str) -> Result<Self, NetworkError> {
        let mut file = parse_file(name, template_text(name)?)?;
        if let Some(figures) = file.software.iter().find(|s| names_software(software, &s.name)).cloned() {
            apply_software(&mut file, &figures);
        }
        fabric_for_chip(file, name, chip)
    }

    /// Returns the text of a fabric's file; an error if the file cannot be read.
    pub fn text_of_file(path: &str, files: &Files) -> Result<String, NetworkError> {
        files.read(path.as_ref()).map_err(|e| NetworkError::Unreadable { file: path.into(), why: e.to_string() })
    }

    /// Reads and verifies a fabric file; `file` names it in errors.
    ///
    /// # Errors
    /// Malformed TOML, a missing or unknown key, or impossible values (all of them are listed).
    pub fn from_toml_str(file: &str, text: &str) -> Result<Self, NetworkError> {
        build_fabric(&parse_file(file, text)?)
    }
}

/// Returns a fabric by name or by path, with the figures of `chip`, or of the file's first chip if there is no `chip`.
fn load_fabric(name_or_path: &str, chip: Option<&str>, files: &Files) -> Result<Fabric, NetworkError> {
    let file = if name_or_path.ends_with(".toml") {
        parse_file(name_or_path, &Fabric::text_of_file(name_or_path, files)?)?
    } else {
        parse_file(name_or_path, template_text(name_or_path)?)?
    };
    match chip {
        Some(chip) => fabric_for_chip(file, name_or_path, chip),
        None => build_fabric(&file),
    }
}

/// Returns the fabric of a file with its figures for a chip.
fn fabric_for_chip(mut file: FabricFile, name: &str, chip: &str) -> Result<Fabric, NetworkError> {
    if file.chips.is_empty() {
        return build_fabric(&file);
    }
    let Some(figures) = file.chips.iter().find(|c| c.name == chip).cloned() else {
        let known = file.chips.iter().map(|c| c.name.as_str()).collect::<Vec<_>>().join(", ");
        return Err(NetworkError::NoChip { fabric: name.into(), chip: chip.into(), known });
    };
    apply_chip(&mut file, &figures);
    build_fabric(&file)
}

fn template_text(name: &str) -> Result<&'static str, NetworkError> {
    embedded::FABRICS
        .iter()
        .find(|(n, _)| names::are_same_name(n, name))
        .map(|(_, text)| *text)
        .ok_or_else(|| unknown_fabric(name))
}

/// Returns the error for a name of no built-in fabric. A name of links (`infiniband`) gets the fabrics that have them.
fn unknown_fabric(name: &str) -> NetworkError {
    let has_tier = |fabric: &Fabric| fabric.tiers.iter().any(|tier| names::are_same_name(&tier.name, name));
    let known = Fabric::names();
    let fabrics: Vec<&str> = known
        .iter()
        .map(AsRef::as_ref)
        .filter(|known| Fabric::built_in(known).is_ok_and(|fabric| has_tier(&fabric)))
        .collect();
    match fabrics.is_empty() {
        true => NetworkError::Unknown { name: name.into(), known: known.join(", ") },
        false => NetworkError::NameOfTier { name: name.into(), fabrics: fabrics.join(", ") },
    }
}

/// Returns the text of a fabric by name or by path.
pub(super) fn text_by_name_or_path(name_or_path: &str, files: &Files) -> Result<String, NetworkError> {
    if name_or_path.ends_with(".toml") {
        return Fabric::text_of_file(name_or_path, files);
    }
    template_text(name_or_path).map(str::to_owned)
}

/// Checks a file that was not read from text, and builds its fabric.
pub(super) fn build_checked(name: &str, file: FabricFile) -> Result<Fabric, NetworkError> {
    build_fabric(&check_file(name, file)?)
}

/// Parses a file, checks every set of figures in it, and applies those of its first chip if the file lists chips.
fn parse_file(name: &str, text: &str) -> Result<FabricFile, NetworkError> {
    let file = toml::from_str(text);
    check_file(
        name,
        file.map_err(|e| NetworkError::Malformed { file: name.into(), why: e.to_string().trim_end().into() })?,
    )
}

fn check_file(name: &str, mut file: FabricFile) -> Result<FabricFile, NetworkError> {
    let mut faults: Vec<_> = file.chips.iter().flat_map(|chip| verify::find_chip_faults(&file, chip)).collect();
    if let Some(first) = file.chips.first().cloned() {
        apply_chip(&mut file, &first);
    }
    faults.extend(verify::find_faults(&file));
    faults.extend(find_system_faults(&file));
    for software in &file.software {
        let mut under = file.clone();
        apply_software(&mut under, software);
        // A fault of the file itself is listed once.
        faults.extend(
            verify::find_faults(&under).into_iter().filter(|fault| !faults.contains(fault)).collect::<Vec<_>>(),
        );
    }
    if faults.is_empty() { Ok(file) } else { Err(NetworkError::Invalid { file: name.into(), faults }) }
}

fn apply_chip(file: &mut FabricFile, chip: &FabricChipTable) {
    for (tier, bandwidth) in file.tiers.iter_mut().zip(&chip.bandwidth_gb_per_s) {
        tier.bandwidth_gb_per_s = Some(*bandwidth);
    }
    if let Some(tier) = file.tiers.first_mut() {
        tier.dims = chip.dims.clone().or(tier.dims.take());
        tier.wrap_multiple = chip.wrap_multiple.or(tier.wrap_multiple);
    }
}

/// True if a run's description of its software names this version or setting, and does not say that it is off.
pub(super) fn names_software(text: &str, name: &str) -> bool {
    text.contains(name) && !text.contains(&format!("{name} off"))
}

fn apply_software(file: &mut FabricFile, s: &SoftwareTable) {
    file.launch_us = s.launch_us.unwrap_or(file.launch_us);
    let Some(tier) = file.tiers.first_mut() else { return };
    tier.achieved_fraction = s.achieved_fraction.unwrap_or(tier.achieved_fraction);
    tier.step_latency_us = s.step_latency_us.unwrap_or(tier.step_latency_us);
    tier.chunk_overhead_us = s.chunk_overhead_us.unwrap_or(tier.chunk_overhead_us);
    tier.final_copy_gb_per_s = s.final_copy_gb_per_s.or(tier.final_copy_gb_per_s);
    tier.low_latency_step_us = s.low_latency_step_us.or(tier.low_latency_step_us);
    tier.low_latency_fraction = s.low_latency_fraction.or(tier.low_latency_fraction);
    tier.line_step_us = s.line_step_us;
    tier.line_fraction = s.line_fraction;
    tier.line_chunk_us = s.line_chunk_us;
    tier.exchange_step_us = s.exchange_step_us;
    tier.exchange_fraction = s.exchange_fraction;
    tier.exchange_chunk_us = s.exchange_chunk_us;
    tier.exchange_peer_gb_per_s = s.exchange_peer_gb_per_s;
    tier.in_network_latency_us = s.in_network_latency_us.or(tier.in_network_latency_us);
    tier.in_network_fraction = s.in_network_fraction.or(tier.in_network_fraction);
    tier.in_network_chunk_us = s.in_network_chunk_us.or(tier.in_network_chunk_us);
    tier.in_network_forced = s.in_network_forced.or(tier.in_network_forced);
}

fn build_fabric(file: &FabricFile) -> Result<Fabric, NetworkError> {
    let mut below = 1_u32;
    let mut tiers = Vec::with_capacity(file.tiers.len());
    for t in &file.tiers {
        let tier = build_tier(t, below);
        below = tier.devices;
        tiers.push(tier);
    }
    Ok(Fabric {
        name: file.name.clone(),
        description: file.description.clone(),
        launch: Seconds::from_micros(file.launch_us),
        tiers,
        fitted_on: file.fitted_on.clone(),
        joins: if file.chips.is_empty() {
            file.joins.clone()
        } else {
            file.chips.iter().map(|chip| chip.name.clone()).collect()
        },
        system: file.system.clone().unwrap_or_default(),
    })
}

fn build_exchange(t: &TierTable) -> Option<ExchangeProtocol> {
    Some(ExchangeProtocol {
        step: Seconds::from_micros(t.exchange_step_us?),
        fraction: t.exchange_fraction?,
        chunk: Seconds::from_micros(t.exchange_chunk_us.unwrap_or(0.0)),
        peer_rate: BytesPerSecond(t.exchange_peer_gb_per_s? * 1e9),
    })
}

/// Builds a verified tier; an absent key has its documented default.
fn build_tier(t: &TierTable, below: u32) -> Tier {
    let gb = |x: f64| BytesPerSecond(x * 1e9);
    let wrap_multiple = t.wrap_multiple.unwrap_or(1);
    let twisted = t.twisted.unwrap_or(false);
    let torus = |limits: Vec<u32>| {
        let closed = |&size: &u32| TorusDim { size, wrap: size > 1 && size % wrap_multiple == 0 };
        let dims: Vec<TorusDim> = limits.iter().map(closed).collect();
        let hops = if twisted { twisted_hops(&dims) } else { None };
        Topology::Torus { dims, limits, wrap_multiple, twisted, twisted_hops: hops }
    };
    let units = t.devices.map_or(u32::MAX, |d| d / below);
    let topology = match t.topology {
        TopologyName::Switch => Topology::Switch,
        TopologyName::FatTree => Topology::FatTree { oversubscription: t.oversubscription.unwrap_or(1.0) },
        TopologyName::FullyConnected => Topology::FullyConnected { units },
        TopologyName::Ring => torus(vec![units]),
        TopologyName::Torus => torus(t.dims.clone().unwrap_or_default()),
        TopologyName::Matrix => {
            let rows: Vec<Vec<f64>> = t.links_gb_per_s.clone().unwrap_or_default();
            Topology::Matrix(LinkMatrix::from_rows(
                &rows.iter().map(|r| r.iter().map(|x| x * 1e9).collect()).collect::<Vec<_>>(),
            ))
        }
    };
    let (units, bandwidth) = match &topology {
        Topology::Torus { limits, .. } => (limits.iter().product(), gb(t.bandwidth_gb_per_s.unwrap_or(0.0))),
        Topology::Matrix(m) => (m.unit_count(), BytesPerSecond(m.slowest_rate() / f64::from(below))),
        _ => (units, gb(t.bandwidth_gb_per_s.unwrap_or(0.0))),
    };
    let low_latency = t.low_latency_step_us.zip(t.low_latency_fraction);
    let in_network = t.in_network_latency_us.zip(t.in_network_fraction);
    Tier {
        name: t.name.clone(),
        devices: units.saturating_mul(below),
        topology,
        bandwidth,
        achieved_fraction: t.achieved_fraction,
        operation: Seconds::ZERO,
        step: Seconds::from_micros(t.step_latency_us),
        chunk: Seconds::from_micros(t.chunk_overhead_us),
        ring_step: t.ring_step_us.map(Seconds::from_micros),
        final_copy: t.final_copy_gb_per_s.map_or(BytesPerSecond(f64::INFINITY), gb),
        low_latency: low_latency.map(|(step, fraction)| LowLatency { step: Seconds::from_micros(step), fraction }),
        line: t.line_step_us.zip(t.line_fraction).map(|(step, fraction)| LineProtocol {
            step: Seconds::from_micros(step),
            fraction,
            chunk: Seconds::from_micros(t.line_chunk_us.unwrap_or(0.0)),
        }),
        exchange: build_exchange(t),
        group_bandwidth: t.group_gb_per_s.iter().flatten().map(|rate| gb(*rate)).collect(),
        in_network: in_network.map(|(latency, fraction)| InNetwork {
            latency: Seconds::from_micros(latency),
            fraction,
            chunk: Seconds::from_micros(t.in_network_chunk_us.unwrap_or(0.0)),
            forced: t.in_network_forced.unwrap_or(false),
        }),
        source: t.source.clone(),
    }
}
