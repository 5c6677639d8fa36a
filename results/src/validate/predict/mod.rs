//! From a row of measured data to what `sim` predicts for it. Adapters only translate: nothing here is fitted, and
//! nothing depends on a row's measured value.

pub(super) mod collectives;
pub(super) mod systolic;

use super::row::RowFailure;
use sim::network::Fabric;
use std::collections::BTreeMap;

/// Chips and fabrics that earlier rows of a file needed, prepared once.
#[derive(Debug, Default)]
pub(super) struct Session {
    fabrics: BTreeMap<(String, String), Result<Fabric, String>>,
}

impl Session {
    /// The fabric with the figures that it has for the chip.
    fn fabric(&mut self, name: &str, chip: &str) -> Result<&Fabric, RowFailure> {
        let prepared = self.fabrics.entry((name.into(), chip.into())).or_insert_with(|| {
            let fabric = Fabric::template_for(name, chip);
            fabric.map_err(|e| e.to_string())
        });
        prepared.as_ref().map_err(|why| RowFailure::Unpredictable(why.clone()))
    }
}
