//! Two properties of a chip's cores: its description states them, and its operator schedules obey them.

use serde::{Deserialize, Serialize};

/// How a fused operator's vector core is paired with its tensor core: a property of the chip.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pairing {
    /// Any vector core with any tensor core.
    #[default]
    AnyPair,
    /// The vector core with the tensor core's own index.
    SameIndex,
}

/// The cores that an operator across all cores blocks: a property of the chip.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exclusivity {
    /// Every tensor and every vector core.
    #[default]
    AllCores,
    /// The cores of the kinds that it uses; the other kind stays free.
    OwnKind,
}
