//! Two properties of a chip's cores that its description states and its operator schedules obey.

use serde::{Deserialize, Serialize};

/// Which vector core a fused operator takes beside its tensor core: a property of the chip.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pairing {
    /// Any vector core with any tensor core.
    #[default]
    AnyPair,
    /// The vector core with the tensor core's own index.
    SameIndex,
}

/// What an operator that runs across all cores blocks: a property of the chip.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exclusivity {
    /// Every tensor and every vector core.
    #[default]
    AllCores,
    /// The cores of the kinds it uses; the other kind stays free.
    OwnKind,
}
