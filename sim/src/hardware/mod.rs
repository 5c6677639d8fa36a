//! One accelerator: tensor cores, vector cores, a hierarchy of memories, links to the host and to storage, area and
//! energy models, and its published figures.
//!
//! TPU-like chips (few cores, large arrays) and GPU-like chips (many cores, several small arrays and vector lanes per
//! core) are one type with different numbers. `sim/templates/chips/*.toml` describes the built-in chips
//! ([`ChipTemplate`]). [`phaze::design_accelerator`] builds points of a design space. [`find_faults`] checks either.

mod accumulators;
pub mod area;
mod buildable;
mod calibration;
mod compute;
pub mod constants;
mod document;
pub mod energy;
mod error;
pub mod fields;
mod file;
mod interfaces;
mod library;
mod lowered;
pub mod manufacturing;
mod memory;
mod memory_tables;
pub mod phaze;
mod sources;
mod streams;
mod technology;
mod template;
mod verify;
#[cfg(test)]
mod verify_tests;
#[cfg(test)]
pub(crate) use verify_tests::every_number_has_limits;

pub use accumulators::{Accumulation, AccumulatorMemory};
pub use area::{AreaBreakdown, AreaError, Floorplan, chip_area};
pub use buildable::{
    BuildRule, Unbuildable, cooled_power, find_unbuildable, find_unbuildable_between, largest_compute_area,
    list_broken_rules,
};
pub use calibration::{Calibration, CalibrationParameter};
pub use compute::{Dataflow, PerDataType, TensorCores, VectorCores};
pub use constants::{ChipFamily, Constants};
pub use document::ChipDocument;
pub use energy::{
    ControlStyle, EnergyModel, SustainedPower, full_cell_rate, least_power_at_cell_rate, least_sustained_power,
    sustained_power,
};
pub use error::HardwareError;
pub use file::ChipTemplate;
pub use interfaces::{DieLink, HbmGeneration};
pub use library::{AttentionLibrary, DecodeKernel, FittedScalar, FormatKernels, KernelLibrary, UnalignedKernels};
pub use lowered::{
    LoweredClock, highest_clock_where, highest_clock_within, lower_clock, lower_clock_to_power, lowest_clock,
};
pub use memory::{HostBus, HostLink, MemoryKind, MemoryLevel, MemoryScope, Storage};
pub use streams::StreamContention;
pub use technology::ProcessNode;
pub use template::{all_templates as templates, template_names};
pub use verify::find_faults;

pub use crate::cores::{Exclusivity, Pairing};
pub use crate::files::FileFault;
pub use crate::files::document::FieldValue;

use crate::kernel::DataType;
use crate::units::{Bytes, FlopsPerSecond, Hertz, SquareMillimeters, Watts};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The model of an accelerator's silicon area.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AreaModel {
    /// PHAZE's 22 nm tables: multiply-accumulate units, local buffers and the global buffer; exact on its design space.
    #[default]
    Phaze22nm,
    /// Unit areas of a technology node: transistor counts over densities, bit cells over array efficiency, PHYs.
    UnitAreas(Box<Floorplan>),
    /// The vendor discloses too little of the die.
    Undisclosed,
}

/// The vendor's published figures. They are compared with the model and never used to predict.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct PublishedFigures {
    /// Area of the die, or the sum over all compute dies.
    pub die_area: Option<SquareMillimeters>,
    /// Thermal design power.
    pub tdp: Option<Watts>,
    /// Dense peak rate of the matrix units, per type.
    pub peak: PerDataType<FlopsPerSecond>,
}

/// Facts of a chip that are not part of its hardware. They are identifiers, which the owners of stacks and fabrics
/// resolve.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChipOrigin {
    /// The built-in chip whose hardware its file describes; `None` for other hardware.
    pub built_in: Option<String>,
    /// The software stack that usually runs on it, if its file says so.
    pub usual_stack: Option<String>,
    /// The fabric that usually joins such chips, if its file says so.
    pub usual_fabric: Option<String>,
}

/// An accelerator.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Accelerator {
    /// Its name: a template's, or a design point's dimensions.
    pub name: String,
    /// Clock of the cores and of the on-chip memories.
    pub clock: Hertz,
    /// The designed clock and voltage, if the clock is lowered: see [`lower_clock`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lowered: Option<LoweredClock>,
    /// An upper limit on cells times clock. It caps the arrays' rate below their number times [`Self::clock`]. Only
    /// chips that bound a set of chips have a limit, where no chip of the set has both the most cells and the highest
    /// clock.
    #[serde(skip)]
    pub cell_rate_limit: Option<Hertz>,
    /// True if the chip's file says on which measurements the rate of its products was fitted. The chip kept to its
    /// published power limit during them.
    #[serde(skip)]
    pub rates_are_measured: bool,
    /// Fraction of the clock that matrix products keep in hours of training, limited by power and heat. It is relative
    /// to the short runs that `calibration` was fitted to; 1 if unknown.
    pub sustained_clock_fraction: f64,
    /// The matrix units.
    pub tensor: TensorCores,
    /// The vector units.
    pub vector: VectorCores,
    /// Memories on the die, innermost first; may be empty.
    pub on_chip: Vec<MemoryLevel>,
    /// The outermost memory of the device (HBM), where weights and activations live.
    pub hbm: MemoryLevel,
    /// The link to the host's memory, if any.
    pub host: Option<HostLink>,
    /// Storage behind the host, if any.
    pub storage: Option<Storage>,
    /// The pairing of a fused kernel's cores.
    pub pairing: Pairing,
    /// The cores that a kernel on all cores blocks.
    pub exclusivity: Exclusivity,
    /// True if collectives overlap with computation (they have a DMA engine of their own).
    pub collectives_overlap: bool,
    /// The model of its area.
    pub area_model: AreaModel,
    /// Energy per operation and static power; energy per byte belongs to each memory level.
    pub energy: EnergyModel,
    /// Physical scalars fitted to measurements; ideal by default.
    pub calibration: Calibration,
    /// The vendor's kernel library, if its scalars are fitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub library: Option<KernelLibrary>,
    /// Versions of attention libraries that were measured on it, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub attention: BTreeMap<String, AttentionLibrary>,
    /// The slowdown of concurrent streams by one another, if it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streams: Option<StreamContention>,
    /// The vendor's published figures.
    pub published: PublishedFigures,
    /// Facts besides its hardware.
    #[serde(skip)]
    pub origin: ChipOrigin,
    /// The model's constants that area, power and cost take.
    #[serde(serialize_with = "serialize_constants", skip_serializing_if = "is_nominal")]
    pub constants: Arc<Constants>,
}

/// Writes the changed constants.
fn serialize_constants<S: serde::Serializer>(constants: &Constants, serializer: S) -> Result<S::Ok, S::Error> {
    constants.changed_values().serialize(serializer)
}

/// True if a chip's constants need not be written.
fn is_nominal(constants: &Constants) -> bool {
    constants.is_nominal()
}

impl Accelerator {
    /// True if all work takes the same time and the same dynamic energy on both. They may then differ only in name,
    /// area, static power, published figures and origin.
    #[must_use]
    pub fn runs_like(&self, other: &Self) -> bool {
        let bare = |chip: &Self| Self {
            name: String::new(),
            area_model: other.area_model.clone(),
            energy: EnergyModel { static_power: Watts(0.0), ..chip.energy },
            published: PublishedFigures::default(),
            origin: ChipOrigin::default(),
            ..chip.clone()
        };
        bare(self) == bare(other)
    }

    /// True if both have the same hardware. Names, published figures and origins may differ.
    #[must_use]
    pub fn has_hardware_of(&self, other: &Self) -> bool {
        let same_power = self.energy.static_power == other.energy.static_power;
        same_power && self.area_model == other.area_model && self.runs_like(other)
    }

    /// Returns the name that measured data and fabrics use: that of the built-in chip with this hardware, else the
    /// chip's own.
    #[must_use]
    pub fn known_name(&self) -> &str {
        self.origin.built_in.as_deref().unwrap_or(&self.name)
    }

    /// Returns the dense peak of the matrix units: 2 x cores x arrays x rows x columns x MACs per unit and cycle x
    /// clock. `None` if the arrays do not support the type.
    #[must_use]
    pub fn peak_flops(&self, data_type: DataType) -> Option<FlopsPerSecond> {
        let rate = self.tensor.macs_per_unit_per_cycle.get(data_type)?;
        Some(FlopsPerSecond(2.0 * self.tensor.unit_count() as f64 * rate * self.clock.0))
    }

    /// Returns the peak of the vector units, counting one operation per lane and cycle.
    #[must_use]
    pub fn peak_vector_operations(&self) -> FlopsPerSecond {
        FlopsPerSecond(f64::from(self.vector.cores) * f64::from(self.vector.lanes) * self.clock.0)
    }

    /// Returns the same chip with the efficiency that chips of its family were measured to reach, in place of its own
    /// (`sim/constants/efficiency.toml`).
    #[must_use]
    pub fn with_family_efficiency(self) -> Self {
        let calibration = self.constants.efficiency.of_family(self.family()).calibration();
        Self { calibration, sustained_clock_fraction: 1.0, ..self }
    }

    /// Returns the chip as [`ChipDocument::strip_measured`] leaves it: no fitted scalar, no kernel library, no
    /// attention library and no contention of streams.
    #[must_use]
    pub fn without_measured_limits(self) -> Self {
        Self {
            calibration: Calibration::default(),
            rates_are_measured: false,
            sustained_clock_fraction: 1.0,
            library: None,
            attention: BTreeMap::new(),
            streams: None,
            ..self
        }
    }

    /// Its family, by its outermost shared memory.
    #[must_use]
    pub fn family(&self) -> ChipFamily {
        ChipFamily::of_memory_kind(self.global_buffer().map(|level| level.kind))
    }

    /// The process node of the die; `None` if the die is not disclosed.
    #[must_use]
    pub fn process_node(&self) -> Option<ProcessNode> {
        match &self.area_model {
            AreaModel::Phaze22nm => Some(ProcessNode::N22),
            AreaModel::UnitAreas(floorplan) => Some(floorplan.node),
            AreaModel::Undisclosed => None,
        }
    }

    /// Returns the capacity of the device's memory, which must hold a stage's weights, gradients, optimiser states and
    /// activations.
    #[must_use]
    pub fn memory_capacity(&self) -> Bytes {
        self.hbm.capacity
    }

    /// Returns all memories, innermost first, the device's memory last.
    pub fn memory_levels(&self) -> impl DoubleEndedIterator<Item = &MemoryLevel> {
        self.on_chip.iter().chain(std::iter::once(&self.hbm))
    }

    /// Returns the number of memory levels, the device's memory included: at least 1.
    #[must_use]
    pub fn level_count(&self) -> usize {
        self.on_chip.len() + 1
    }

    /// The innermost memory private to a core, if any.
    #[must_use]
    pub fn local_buffer(&self) -> Option<&MemoryLevel> {
        self.on_chip.iter().find(|level| level.scope == MemoryScope::Core)
    }

    /// The outermost memory on the die that all cores share, if any.
    #[must_use]
    pub fn global_buffer(&self) -> Option<&MemoryLevel> {
        self.on_chip.iter().rev().find(|level| level.scope == MemoryScope::Chip)
    }

    /// Returns the number of instances of a level on this chip: one per tensor core, or one.
    #[must_use]
    pub fn instance_count(&self, level: &MemoryLevel) -> u32 {
        match level.scope {
            MemoryScope::Core => self.tensor.cores,
            MemoryScope::Chip => 1,
        }
    }
}
