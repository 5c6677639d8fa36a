//! The sources of constants, as a page shows them.

use serde::Serialize;
use sim::hardware::ChipTemplate;
use sim::network::Fabric;
use step::SoftwareStack;

/// The sources that a file gives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SourceFile {
    /// The kind and name of the file: `chip tpu_v4`.
    pub file: String,
    /// Pairs of a key and its source.
    pub rows: Vec<[String; 2]>,
}

impl SourceFile {
    /// Returns the sources of a chip.
    #[must_use]
    pub fn of_chip(template: &ChipTemplate) -> Self {
        let mut rows: Vec<[String; 2]> =
            template.sources.iter().map(|(key, source)| [key.clone(), source.clone()]).collect();
        rows.extend(
            template.fitted_on.iter().map(|(key, on)| [format!("calibration.{key}"), format!("fitted on {on}")]),
        );
        Self { file: format!("chip {}", template.name), rows }
    }

    /// Returns the sources of a fabric.
    #[must_use]
    pub fn of_fabric(fabric: &Fabric) -> Self {
        let mut rows: Vec<[String; 2]> = Vec::new();
        for (at, tier) in fabric.tiers.iter().enumerate() {
            rows.push([format!("tier {at}"), tier.source.clone()]);
        }
        if !fabric.fitted_on.is_empty() {
            rows.push(["scalars".into(), format!("fitted on {}", fabric.fitted_on)]);
        }
        Self { file: format!("fabric {}", fabric.name), rows }
    }

    /// Returns the sources of a software stack.
    #[must_use]
    pub fn of_stack(stack: &SoftwareStack) -> Self {
        let rows = stack.sources.iter().map(|(key, source)| [key.clone(), source.clone()]).collect();
        Self { file: format!("stack {}", stack.name), rows }
    }
}
