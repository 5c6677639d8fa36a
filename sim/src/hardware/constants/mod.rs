//! The model's constants as data: `sim/constants/*.toml`. Each has a range, a nominal value, a unit, a source and a
//! year. A chip's file or a study may set any of them to another value in its range (`[constants]`).

mod definition;
mod kernel;
mod library;
mod scaling;
mod system;
mod values;

pub use definition::{ConstantDefinition, constant_definitions};
pub use kernel::KernelConstants;
pub use library::LibraryConstants;
pub use system::SystemConstants;
pub use values::{
    AreaConstants, ChipFamily, DieToDie, EfficiencyConstants, EnergyConstants, EnergyPair, EnergyScale,
    FamilyEfficiency, HbmConstants, LinkConstants, LinkKind, ManufacturingConstants, NodeValues, PackageConstants,
    PcieLane, ProcessConstants, StackConstants,
};

use crate::files::FileFault;
use crate::limits;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// The command that lists the keys.
const LIST: &str = "`coplace list constants` lists them";

/// Values of all constants. They are nominal, except those that a file changed.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constants {
    /// `process.toml`: densities, voltages, leakage.
    pub process: ProcessConstants,
    /// `area.toml`: unit areas of a die.
    pub area: AreaConstants,
    /// `hbm.toml`: high-bandwidth memory.
    pub hbm: HbmConstants,
    /// `link.toml`: chip-to-chip links.
    pub link: LinkConstants,
    /// `energy.toml`: energies of operations.
    pub energy: EnergyConstants,
    /// `manufacturing.toml`: prices and yield.
    pub manufacturing: ManufacturingConstants,
    /// `package.toml`: limits on chips that can be built.
    pub package: PackageConstants,
    /// `efficiency.toml`: the fractions of their peaks that chips of a family reach.
    pub efficiency: EfficiencyConstants,
    /// `kernel.toml`: work of kernels.
    pub kernel: KernelConstants,
    /// `library.toml`: kernels of vendors' libraries.
    pub library: LibraryConstants,
    /// `system.toml`: the price of the system around the devices.
    pub system: SystemConstants,
    /// The values that differ from the nominal ones, by key.
    #[serde(skip)]
    changed: BTreeMap<String, f64>,
}

impl PartialEq for Constants {
    fn eq(&self, other: &Self) -> bool {
        // All other values are nominal.
        self.changed == other.changed
    }
}

impl Constants {
    /// Returns the nominal values, read once.
    #[must_use]
    pub fn nominal() -> Arc<Self> {
        static NOMINAL: OnceLock<Arc<Constants>> = OnceLock::new();
        let read = || Arc::new(Self::from_values(&BTreeMap::new()).unwrap_or_default());
        Arc::clone(NOMINAL.get_or_init(read))
    }

    /// Returns the nominal values with changes.
    ///
    /// # Errors
    /// Every unknown key and every value outside its range.
    pub fn with_changes(changes: &BTreeMap<String, f64>) -> Result<Arc<Self>, Vec<FileFault>> {
        if changes.is_empty() {
            return Ok(Self::nominal());
        }
        let faults: Vec<FileFault> = changes.iter().filter_map(|(key, value)| find_fault(key, *value)).collect();
        if !faults.is_empty() {
            return Err(faults);
        }
        Self::from_values(changes)
            .map(Arc::new)
            .map_err(|why| vec![FileFault::new("constants", "sim/constants", why, "restore the files")])
    }

    /// True if no value was changed.
    #[must_use]
    pub fn is_nominal(&self) -> bool {
        self.changed.is_empty()
    }

    /// The changed values by key.
    #[must_use]
    pub fn changed_values(&self) -> &BTreeMap<String, f64> {
        &self.changed
    }

    fn from_values(changes: &BTreeMap<String, f64>) -> Result<Self, String> {
        let mut table = toml::Table::new();
        for definition in constant_definitions() {
            let value = changes.get(&definition.key).copied().unwrap_or(definition.nominal);
            let mut at = &mut table;
            let mut parts = definition.key.split('.').peekable();
            while let Some(part) = parts.next() {
                if parts.peek().is_none() {
                    at.insert(part.to_owned(), toml::Value::Float(value));
                    break;
                }
                let inner = at.entry(part).or_insert_with(|| toml::Value::Table(toml::Table::new()));
                at = inner.as_table_mut().ok_or_else(|| format!("{}: a table was expected", definition.key))?;
            }
        }
        let mut constants = Self::deserialize(table).map_err(|why| why.to_string())?;
        let nominal =
            |key: &String| constant_definitions().iter().find(|known| known.key == *key).map(|known| known.nominal);
        constants.changed =
            changes.iter().filter(|(key, value)| nominal(key) != Some(**value)).map(|(k, v)| (k.clone(), *v)).collect();
        Ok(constants)
    }
}

/// Returns a fault if there is no such constant or if the value is outside its range.
fn find_fault(key: &str, value: f64) -> Option<FileFault> {
    let known = constant_definitions();
    let Some(definition) = known.iter().find(|known| known.key == key) else {
        let near = crate::names::find_nearest(key, known.iter().map(|known| known.key.as_str()));
        let cure = near.map_or_else(|| LIST.to_owned(), |near| format!("did you mean `{near}`? {LIST}"));
        return Some(FileFault::new(
            format!("constants.{key}"),
            limits::format_number(value),
            "no such constant",
            cure,
        ));
    };
    let within = (definition.low..=definition.high).contains(&value);
    (!within).then(|| {
        let range = limits::describe_range(definition.low, definition.high);
        let limit = format!("{range} ({})", definition.unit);
        let cure = format!("give a value of this range; its source: {}, {}", definition.source, definition.year);
        FileFault::new(format!("constants.{key}"), limits::format_number(value), limit, cure)
    })
}

/// Returns the numbers of a `[constants]` table by dotted key. Nested tables and quoted dotted keys are equivalent.
///
/// # Errors
/// Every value that is not a number.
pub fn read_changes(table: &toml::Table) -> Result<BTreeMap<String, f64>, Vec<FileFault>> {
    let (mut found, mut faults) = (BTreeMap::new(), Vec::new());
    let mut stack: Vec<(String, &toml::Value)> = table.iter().map(|(key, value)| (key.clone(), value)).collect();
    while let Some((key, value)) = stack.pop() {
        match value {
            toml::Value::Float(number) => drop(found.insert(key, *number)),
            toml::Value::Integer(number) => drop(found.insert(key, *number as f64)),
            toml::Value::Table(inner) => stack.extend(inner.iter().map(|(k, v)| (format!("{key}.{k}"), v))),
            other => faults.push(FileFault::new(format!("constants.{key}"), other, "a number", "write its value")),
        }
    }
    if faults.is_empty() { Ok(found) } else { Err(faults) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn every_constant_has_a_range_a_unit_and_a_source() {
        let known = constant_definitions();
        assert!(known.len() > 100, "{}", known.len());
        for constant in known {
            assert!(constant.low <= constant.nominal && constant.nominal <= constant.high, "{constant:?}");
            assert!(!constant.unit.is_empty() && !constant.source.is_empty(), "{constant:?}");
            assert!((1990..=2030).contains(&constant.year), "{constant:?}");
        }
        Constants::from_values(&BTreeMap::new()).unwrap();
    }

    #[test]
    fn a_change_is_kept_and_a_nominal_value_is_no_change() {
        let nominal = Constants::nominal();
        let value = nominal.hbm.phy;
        let same = Constants::with_changes(&BTreeMap::from([("hbm.phy".to_owned(), value)])).unwrap();
        assert!(same.is_nominal() && same == nominal);
        let other = Constants::with_changes(&BTreeMap::from([("hbm.phy".to_owned(), value * 1.1)])).unwrap();
        assert_eq!(other.hbm.phy, value * 1.1);
        assert_ne!(other, nominal);
        assert_eq!(other.changed_values().len(), 1);
    }

    #[test]
    fn faults_name_the_range_and_the_source() {
        let changes = BTreeMap::from([("hbm.phy".to_owned(), 1000.0), ("hbm.fie".to_owned(), 1.0)]);
        let faults = Constants::with_changes(&changes).unwrap_err();
        let text = faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        assert!(
            text.contains("constants.hbm.phy = 1000: must be from 8 to 13") && text.contains("LLMCompass"),
            "{text}"
        );
        assert!(
            text.contains("constants.hbm.fie") && text.contains("no such constant") && text.contains("hbm.phy"),
            "{text}"
        );
        let table: toml::Table =
            toml::from_str("hbm.phy = 11\n\"hbm.controller\" = 4e8\nlink.nvlink3.phy = \"x\"").unwrap();
        assert!(read_changes(&table).unwrap_err()[0].to_string().contains("constants.link.nvlink3.phy"));
    }
}
