//! Why no plan fits: the split that needs the least memory, and what it lacks.

use super::instance::Instance;

/// States the reason.
pub(super) fn explain(instance: &Instance) -> String {
    format!("no split fits {} bytes per device", instance.max_memory)
}
