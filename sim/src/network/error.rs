//! Errors of a fabric, or of its use.

use crate::files::{FaultParts, StructuredError};
use std::fmt;
use thiserror::Error;

/// One broken rule of a fabric's description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FabricFault {
    /// The key, with its tier: `tier[1] "infiniband".bandwidth_gb_per_s`.
    pub key: String,
    /// The offending value.
    pub value: String,
    /// The rule it breaks.
    pub limit: &'static str,
    /// The cure.
    pub cure: String,
}

impl fmt::Display for FabricFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}: {}; {}", self.key, self.value, self.limit, self.cure)
    }
}

/// The reason why a fabric or its use was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NetworkError {
    /// A file that cannot be read.
    #[error("{file}: cannot be read: {why}; give the path of a readable fabric file (.toml)")]
    Unreadable {
        /// The file.
        file: String,
        /// The system's message.
        why: String,
    },
    /// No template of this name.
    #[error(
        "unknown fabric `{name}`: {}; or give the path of a fabric file (.toml)",
        crate::names::hint(name, known, "built in are")
    )]
    Unknown {
        /// The name given.
        name: String,
        /// The built-in names.
        known: String,
    },
    /// No fabric has this name, but links of some fabrics have it.
    #[error(
        "`{name}` is no fabric, but names links of some: {fabrics}; give one of them, or the path of a fabric file \
        (.toml)"
    )]
    NameOfTier {
        /// The name given.
        name: String,
        /// The built-in fabrics that have links of this name.
        fabrics: String,
    },
    /// The text is not the TOML that a fabric needs.
    #[error("{file}: {why}")]
    Malformed {
        /// The file or template.
        file: String,
        /// The parser's message, with line and key.
        why: String,
    },
    /// Impossible values; every fault is listed.
    #[error("{file}: {}", list_faults(faults))]
    Invalid {
        /// The file or template.
        file: String,
        /// All faults.
        faults: Vec<FabricFault>,
    },
    /// A fabric that several chips share has no figures for this one.
    #[error(
        "fabric `{fabric}` has no figures for chip `{chip}`: it has {known}; give the bandwidth explicitly or add a [[chip]] table"
    )]
    NoChip {
        /// The fabric.
        fabric: String,
        /// The chip asked for.
        chip: String,
        /// The chips for which it has figures.
        known: String,
    },
    /// The fabric does not hold that many devices.
    #[error("fabric `{fabric}` cannot hold {devices} devices: {limit}; {cure}")]
    DoesNotFit {
        /// The fabric.
        fabric: String,
        /// Devices asked for.
        devices: u32,
        /// The limit that was exceeded.
        limit: String,
        /// The nearest numbers that fit.
        cure: String,
    },
    /// A group reaches beyond the fabric.
    #[error(
        "a group of {ranks} ranks {stride} apart spans {span} devices, fabric `{fabric}` has {devices}; use fewer ranks, a smaller stride \
         or a larger fabric"
    )]
    GroupTooLarge {
        /// The fabric.
        fabric: String,
        /// Members.
        ranks: u32,
        /// Distance of neighbours in device numbering.
        stride: u32,
        /// Devices from the first member to the last.
        span: u64,
        /// Devices of the fabric.
        devices: u32,
    },
}

impl StructuredError for NetworkError {
    fn fault_parts(&self) -> FaultParts {
        match self {
            Self::Unreadable { file, why } => FaultParts::of_file(
                file,
                format!("cannot be read: {why}"),
                "give the path of a readable fabric file (.toml)",
            ),
            Self::Unknown { name, known } => FaultParts::of_key(
                "fabric",
                name,
                "is no built-in fabric",
                crate::names::hint(name, known, "built in are"),
            ),
            Self::NameOfTier { name, fabrics } => FaultParts::of_key(
                "fabric",
                name,
                format!("is no fabric, but names links of some: {fabrics}"),
                "give one of them, or the path of a fabric file (.toml)",
            ),
            Self::Malformed { file, why } => FaultParts::of_file(file, why, ""),
            Self::Invalid { file, faults } => {
                let parts = |fault: &FabricFault| {
                    FaultParts::of_key(&fault.key, &fault.value, fault.limit, &fault.cure).in_file(file)
                };
                faults.first().map(parts).unwrap_or_default()
            }
            Self::NoChip { fabric, chip, known } => FaultParts::of_key(
                "fabric",
                fabric,
                format!("has no figures for chip `{chip}`: it has {known}"),
                "give the bandwidth explicitly or add a [[chip]] table",
            ),
            Self::DoesNotFit { devices, limit, cure, .. } => {
                FaultParts::of_key("devices", devices.to_string(), limit, cure)
            }
            Self::GroupTooLarge { ranks, span, fabric, devices, .. } => FaultParts::of_key(
                "ranks",
                ranks.to_string(),
                format!("they span {span} devices, fabric `{fabric}` has {devices}"),
                "use fewer ranks, a smaller stride or a larger fabric",
            ),
        }
    }
}

/// Most faults that a message lists one by one.
const MOST_FAULTS: usize = 8;

pub(super) fn list_faults(faults: &[FabricFault]) -> String {
    let mut told: Vec<String> = faults.iter().take(MOST_FAULTS).map(ToString::to_string).collect();
    if faults.len() > MOST_FAULTS {
        told.push(format!("{} more like these", faults.len() - MOST_FAULTS));
    }
    told.join("; and ")
}
