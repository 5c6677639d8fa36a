//! The space in a study: PHAZE's grid, or a base chip with dimensions.

use super::dimension::{Dimension, dimensions_table, read_dimensions};
use super::efficiency::EfficiencyChoice;
use super::limits::ChipLimits;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// PHAZE's grid of chips.
#[derive(Debug, Clone, PartialEq)]
pub struct PhazeGrid {
    /// Tensor cores per chip.
    pub tensor_cores: Vec<u32>,
    /// Vector cores per chip.
    pub vector_cores: Vec<u32>,
    /// Rows of each tensor core's array, and lanes of each vector core (PHAZE's width).
    pub array_widths: Vec<u32>,
    /// Columns of each tensor core's array (PHAZE's depth).
    pub array_depths: Vec<u32>,
    /// Global buffer capacity in MiB.
    pub global_buffer_mib: Vec<u64>,
    /// HBM capacity in GiB.
    pub hbm_gib: Vec<f64>,
    /// Lower area limit as a fraction of the upper one; chips with one tensor or one vector core are exempt.
    pub min_area_fraction: f64,
}

/// A base chip and its varied dimensions.
#[derive(Debug, Clone, PartialEq)]
pub struct SpaceDimensions {
    /// The chip that all others are made from: a built-in one's name or a chip file's path.
    pub base_chip: String,
    /// The efficiency that all chips reach.
    pub efficiency: EfficiencyChoice,
    /// The dimensions, by key.
    pub dimensions: Vec<Dimension>,
}

/// The chips of a space.
#[derive(Debug, Clone, PartialEq)]
pub enum Chips {
    /// PHAZE's grid.
    Phaze(PhazeGrid),
    /// The variants of a base chip.
    Grid(SpaceDimensions),
}

/// A space.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "SpaceFile", into = "SpaceFile")]
pub struct SpaceSpec {
    /// Its chips.
    pub chips: Chips,
    /// The chip for comparison. Its area is the area limit of PHAZE's grid.
    pub reference_chip: String,
    /// The limits on its chips.
    pub limits: ChipLimits,
    /// Constants of the model that differ from the nominal ones, by key.
    pub constants: BTreeMap<String, f64>,
}

/// The chips: a base chip with dimensions, or PHAZE's lists (`tensor_cores` and so on).
#[derive(Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SpaceFile {
    /// PHAZE's chips: tensor cores per chip.
    #[serde(skip_serializing_if = "Option::is_none")]
    tensor_cores: Option<Vec<u32>>,
    /// PHAZE's chips: vector cores per chip.
    #[serde(skip_serializing_if = "Option::is_none")]
    vector_cores: Option<Vec<u32>>,
    /// PHAZE's chips: rows of each tensor core's array; also the lanes of each vector core.
    #[serde(skip_serializing_if = "Option::is_none")]
    array_widths: Option<Vec<u32>>,
    /// PHAZE's chips: columns of each tensor core's array.
    #[serde(skip_serializing_if = "Option::is_none")]
    array_depths: Option<Vec<u32>>,
    /// PHAZE's chips: capacities of the global buffer in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    global_buffer_mib: Option<Vec<u64>>,
    /// PHAZE's chips: HBM capacities in GiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    hbm_gib: Option<Vec<f64>>,
    /// PHAZE's chips: smallest area as a fraction of the reference chip's, 0 to 1. Chips with one tensor or one vector
    /// core are exempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    min_area_fraction: Option<f64>,
    /// The chip that all others are made from: a built-in one's name (coplace list chips) or a chip file's path.
    #[serde(skip_serializing_if = "Option::is_none")]
    base_chip: Option<String>,
    /// How far the relatives of the base chip get; as chips of its family where it is left out.
    #[serde(skip_serializing_if = "Option::is_none", alias = "calibration")]
    efficiency: Option<EfficiencyChoice>,
    /// The dimensions: fields of the base chip's file, fields of the fabric's behind `fabric.` (coplace list dimensions),
    /// or names of the study's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::schema::dimensions_schema")]
    dimensions: Option<toml::Table>,
    /// The chip that an answer is compared with (the area limit of PHAZE's chips); the base chip where it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    reference_chip: Option<String>,
    /// Largest area of a chip's compute dies, in mm² of their node.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_area_mm2: Option<f64>,
    /// Largest power of a chip under its heavier sustained load (a large contraction, a stream through HBM), in W.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_power_w: Option<f64>,
    /// Most that a chip may cost to make, in USD.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_cost_usd: Option<f64>,
    /// Least capacity of a chip's HBM, in GiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    min_hbm_gib: Option<f64>,
    /// Largest capacity of a chip's HBM, in GiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_hbm_gib: Option<f64>,
    /// Least rate at which a chip's HBM is read, in GB/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    min_hbm_gb_per_s: Option<f64>,
    /// False lifts the limits of building (reticle, die edge, package, heat). Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    build_limits: Option<bool>,
    /// Constants of the model by key, as in the study's table `constants`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    constants: BTreeMap<String, f64>,
}

impl JsonSchema for SpaceSpec {
    fn schema_name() -> Cow<'static, str> {
        "SpaceSpec".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        SpaceFile::json_schema(generator)
    }
}

impl SpaceSpec {
    /// The efficiency that its chips reach. PHAZE's chips are ideal.
    #[must_use]
    pub fn efficiency(&self) -> EfficiencyChoice {
        if let Chips::Grid(spec) = &self.chips { spec.efficiency } else { EfficiencyChoice::Ideal }
    }

    /// The names or paths of the chips that it refers to: the base chip, if any, and the reference chip.
    #[must_use]
    pub fn named_chips(&self) -> Vec<&str> {
        let base = if let Chips::Grid(spec) = &self.chips { Some(spec.base_chip.as_str()) } else { None };
        base.into_iter().chain([self.reference_chip.as_str()]).collect()
    }

    /// [`Self::named_chips`] as mutable references, to change their spelling.
    pub(crate) fn named_chips_mut(&mut self) -> impl Iterator<Item = &mut String> {
        let base = if let Chips::Grid(spec) = &mut self.chips { Some(&mut spec.base_chip) } else { None };
        base.into_iter().chain([&mut self.reference_chip])
    }
}

impl From<SpaceSpec> for SpaceFile {
    fn from(spec: SpaceSpec) -> Self {
        let ChipLimits {
            max_area_mm2,
            max_power_w,
            max_cost_usd,
            min_hbm_gib,
            max_hbm_gib,
            min_hbm_gb_per_s,
            lift_build_limits,
            // The search sets this limit, not the study.
            lower_to_w: _,
        } = spec.limits;
        let reference_chip = Some(spec.reference_chip);
        let file = Self {
            constants: spec.constants,
            reference_chip,
            max_area_mm2,
            max_power_w,
            max_cost_usd,
            min_hbm_gib,
            max_hbm_gib,
            min_hbm_gb_per_s,
            build_limits: lift_build_limits.then_some(false),
            ..Self::default()
        };
        match spec.chips {
            Chips::Grid(SpaceDimensions { base_chip, efficiency, dimensions }) => Self {
                base_chip: Some(base_chip),
                efficiency: Some(efficiency),
                dimensions: Some(dimensions_table(&dimensions)),
                ..file
            },
            Chips::Phaze(grid) => Self {
                tensor_cores: Some(grid.tensor_cores),
                vector_cores: Some(grid.vector_cores),
                array_widths: Some(grid.array_widths),
                array_depths: Some(grid.array_depths),
                global_buffer_mib: Some(grid.global_buffer_mib),
                hbm_gib: Some(grid.hbm_gib),
                min_area_fraction: Some(grid.min_area_fraction),
                ..file
            },
        }
    }
}

impl TryFrom<SpaceFile> for SpaceSpec {
    type Error = String;

    fn try_from(file: SpaceFile) -> Result<Self, String> {
        let limits = ChipLimits {
            max_area_mm2: file.max_area_mm2,
            max_power_w: file.max_power_w,
            lower_to_w: None,
            max_cost_usd: file.max_cost_usd,
            min_hbm_gib: file.min_hbm_gib,
            max_hbm_gib: file.max_hbm_gib,
            min_hbm_gb_per_s: file.min_hbm_gb_per_s,
            lift_build_limits: file.build_limits == Some(false),
        };
        let phaze = file.tensor_cores.is_some() || file.vector_cores.is_some() || file.array_widths.is_some();
        let other = file.array_depths.is_some() || file.global_buffer_mib.is_some() || file.hbm_gib.is_some();
        if let Some(base_chip) = file.base_chip {
            if phaze || other || file.min_area_fraction.is_some() {
                return Err(
                    "a space has a base_chip and dimensions, or PHAZE's lists (tensor_cores, ...), not both; keep one"
                        .into(),
                );
            }
            let dimensions = read_dimensions(&file.dimensions.unwrap_or_default())?;
            if dimensions.is_empty() {
                return Err(
                    "space.dimensions = {}: nothing is varied; list the values of a field of the base chip".into()
                );
            }
            let reference_chip = file.reference_chip.unwrap_or_else(|| base_chip.clone());
            let efficiency = file.efficiency.unwrap_or_default();
            return Ok(Self {
                chips: Chips::Grid(SpaceDimensions { base_chip, efficiency, dimensions }),
                reference_chip,
                limits,
                constants: file.constants,
            });
        }
        if file.dimensions.is_some() || file.efficiency.is_some() {
            return Err(
                "dimensions and efficiency need a base_chip: give a built-in chip's name or a chip file's path".into(),
            );
        }
        fn require_list<T>(value: Option<T>, key: &str) -> Result<T, String> {
            value.ok_or_else(|| format!("missing field `{key}`: add it, or give base_chip and dimensions"))
        }
        let grid = PhazeGrid {
            tensor_cores: require_list(file.tensor_cores, "tensor_cores")?,
            vector_cores: require_list(file.vector_cores, "vector_cores")?,
            array_widths: require_list(file.array_widths, "array_widths")?,
            array_depths: require_list(file.array_depths, "array_depths")?,
            global_buffer_mib: require_list(file.global_buffer_mib, "global_buffer_mib")?,
            hbm_gib: require_list(file.hbm_gib, "hbm_gib")?,
            min_area_fraction: require_list(file.min_area_fraction, "min_area_fraction")?,
        };
        if !file.constants.is_empty() {
            return Err("constants need a base_chip: PHAZE's chips have areas and energies of their own".into());
        }
        let reference_chip = require_list(file.reference_chip, "reference_chip")?;
        Ok(Self { chips: Chips::Phaze(grid), reference_chip, limits, constants: BTreeMap::new() })
    }
}
