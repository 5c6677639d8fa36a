//! Two properties of a chip's cores. The chip's description states them, and its operator schedules obey them.

use serde::{Deserialize, Serialize};

/// The pairing of a fused operator's vector core with its tensor core: a property of the chip.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pairing {
    /// Any vector core with any tensor core.
    #[default]
    AnyPair,
    /// The vector core with the tensor core's own index.
    SameIndex,
}

/// The cores that an operator blocks while it spans all cores: a property of the chip.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exclusivity {
    /// Every tensor and every vector core.
    #[default]
    AllCores,
    /// The cores of the kinds that the operator uses; cores of the other kind stay free.
    OwnKind,
}
