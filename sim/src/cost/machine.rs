//! The accelerator as the cost model uses it: rates instead of bandwidths, plain floats, one set of resources per span.

use super::level_rates::{LevelRates, split_levels};
use super::library_model::LibraryModel;
use super::route::Route;
use super::tensor_core::{CoreArrays, SumPlace};
use super::{CostError, MAX_LEVELS, Span};
use crate::hardware::constants::KernelConstants;
use crate::hardware::{Accelerator, Calibration, MemoryScope};
use crate::kernel::{DataType, Kernel};

/// The resources of a kernel on one span.
#[derive(Debug, Clone)]
pub(super) struct SpanResources {
    /// Tensor cores.
    pub(super) cores: f64,
    /// Vector lanes of all vector cores of the span.
    pub(super) lanes: f64,
    /// Levels that all cores share, outermost first; the device's memory is the first.
    pub(super) shared: Vec<LevelRates>,
    /// Ways through the shared levels: at least one.
    pub(super) routes: Vec<Route>,
    /// Levels of each core, outermost first.
    pub(super) local: Vec<LevelRates>,
    /// Bytes in which a vector core can keep rows: its buffer, else its core's memory; `None` if it has neither.
    row_buffer: Option<f64>,
    /// Vector cores.
    pub(super) vector_cores: f64,
    /// Exposed fraction of computing and moving, and unfused fraction of row passes. Both are nonzero only for a kernel
    /// that its framework runs alone.
    pub(super) exposed: f64,
    pub(super) unfused: f64,
    /// The vendor's kernel library; `None` if the span is not the whole chip or the chip has no library.
    pub(super) library: Option<LibraryModel>,
}

impl SpanResources {
    /// The longest latency of a level on the shortest route, in seconds.
    pub(super) fn least_latency(&self) -> f64 {
        self.routes.first().map_or(0.0, |route| route.latency_seconds(&self.shared))
    }

    /// The routes that vector work may take. Its data is used once, so it takes the shortest route, unless a vector
    /// core has no memory of its own and keeps rows in a shared one.
    pub(super) fn stream_routes(&self) -> &[Route] {
        if self.row_buffer.is_some() { self.routes.get(..1).unwrap_or_default() } else { &self.routes }
    }

    /// Returns the bytes in which a vector core keeps rows on this route: those of its own memory, else its share of
    /// the outermost shared memory on the die that the route crosses.
    pub(super) fn row_buffer_on(&self, route: Route) -> f64 {
        let shared = || route.levels_crossed(&self.shared).nth(1).map(|(_, level)| level.capacity);
        self.row_buffer.or_else(shared).unwrap_or(0.0)
    }
}

/// The accelerator prepared for costing.
#[derive(Debug, Clone)]
pub(super) struct Machine {
    pub(super) clock: f64,
    /// Functions per lane and cycle that units beside the lanes compute.
    pub(super) transcendentals_per_lane: f64,
    pub(super) arrays: CoreArrays,
    /// Multiply-accumulates per unit and cycle, by type. They include the achieved fraction and the fallbacks.
    rates: [f64; DataType::ALL.len()],
    /// As `rates`, without the achieved fraction.
    peak_rates: [f64; DataType::ALL.len()],
    /// [`Accelerator::cell_rate_limit`]; infinite without one.
    cell_rate_limit: f64,
    pub(super) calibration: Calibration,
    pub(super) constants: KernelConstants,
    one_tensor: SpanResources,
    one_vector: SpanResources,
    one_pair: SpanResources,
    /// The resources of the cores that have a partner, with the whole memories, and their fraction of the tensor cores.
    /// `None` if every core has a partner.
    pairs: Option<(SpanResources, f64)>,
    all: SpanResources,
    alone: SpanResources,
    alone_by_host: SpanResources,
}

/// bf16 products that make one fp32 product: three bf16 parts per operand, six products kept (Henry, Tang, Heinecke,
/// *Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations*, 2019).
const FP32_PASSES: f64 = 6.0;

/// Returns the multiply-accumulates per unit and cycle of a type, with these fallbacks if the arrays lack it:
/// - 16-bit types replace one another, or run as fp32.
/// - fp8 and int8 run as 16-bit types or as fp32; block formats run as fp8, or else with the same fallbacks as fp8.
/// - fp32 takes [`FP32_PASSES`] 16-bit products.
/// - Failing these, the first supported type's rate counts. `None` if the arrays support no type.
fn rate_with_fallback(accelerator: &Accelerator, data_type: DataType) -> Option<f64> {
    let get = |t| accelerator.tensor.macs_per_unit_per_cycle.get(t);
    let sixteen = || get(DataType::Bf16).or_else(|| get(DataType::Fp16));
    let fallback = match data_type {
        DataType::Fp32 => sixteen().map(|r| r / FP32_PASSES),
        DataType::Bf16 | DataType::Fp16 => sixteen().or_else(|| get(DataType::Fp32)),
        DataType::Mxfp8 | DataType::Nvfp4 | DataType::Mxfp4 => {
            get(DataType::Fp8).or_else(sixteen).or_else(|| get(DataType::Fp32))
        }
        DataType::Fp8 | DataType::Int8 => sixteen().or_else(|| get(DataType::Fp32)),
    };
    get(data_type).or(fallback).or_else(|| accelerator.tensor.macs_per_unit_per_cycle.iter().next().map(|(_, r)| r))
}

/// The kind of cores that a kernel occupies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CoreUse {
    /// Tensor cores.
    Tensor,
    /// Vector cores.
    Vector,
    /// Pairs of a tensor core and a vector core.
    Pair,
}

impl Machine {
    pub(super) fn new(accelerator: &Accelerator) -> Result<Self, CostError> {
        let calibration = accelerator.calibration;
        check_figures(accelerator)?;
        let (tensor, vector) = (f64::from(accelerator.tensor.cores), f64::from(accelerator.vector.cores));
        let pairs = tensor.min(vector);
        let mut rates = [0.0; DataType::ALL.len()];
        for (slot, data_type) in rates.iter_mut().zip(DataType::ALL) {
            *slot = rate_with_fallback(accelerator, data_type)
                .ok_or_else(|| CostError::NoRate { chip: accelerator.name.clone() })?;
        }
        let lanes = f64::from(accelerator.vector.lanes);
        let view = |cores: f64, vector_cores: f64, share: f64| SpanResources {
            cores,
            lanes: vector_cores * lanes,
            vector_cores,
            routes: Route::list_routes(&split_levels(accelerator, MemoryScope::Chip, share)),
            shared: split_levels(accelerator, MemoryScope::Chip, share),
            local: split_levels(accelerator, MemoryScope::Core, 1.0),
            row_buffer: row_buffer(accelerator),
            exposed: 0.0,
            unfused: 0.0,
            library: None,
        };
        let library = accelerator.library.as_ref().map(|scalars| LibraryModel::new(accelerator, scalars));
        let all = SpanResources { library, ..view(tensor, vector, 1.0) };
        let alone = |library: fn(LibraryModel) -> LibraryModel| SpanResources {
            exposed: 1.0 - calibration.overlap_fraction,
            unfused: calibration.unfused_fraction,
            library: all.library.map(library),
            ..all.clone()
        };
        Ok(Self {
            clock: accelerator.clock.0,
            transcendentals_per_lane: accelerator.vector.transcendentals_per_cycle
                / f64::from(accelerator.vector.lanes),
            arrays: CoreArrays {
                dataflow: accelerator.tensor.dataflow,
                preload: accelerator.tensor.preload,
                sums: SumPlace::of_chip(accelerator),
                count: f64::from(accelerator.tensor.arrays_per_core),
                rows: f64::from(accelerator.tensor.rows),
                columns: f64::from(accelerator.tensor.columns),
            },
            rates: DataType::ALL.map(|format| rates[format as usize] * calibration.achieved_fraction_of(format)),
            peak_rates: rates,
            cell_rate_limit: accelerator.cell_rate_limit.map_or(f64::INFINITY, |limit| limit.0),
            calibration,
            constants: accelerator.constants.kernel,
            one_tensor: view(1.0, 1.0, 1.0 / tensor),
            one_vector: view(1.0, 1.0, 1.0 / vector),
            one_pair: view(1.0, 1.0, 1.0 / pairs),
            pairs: (tensor != vector).then(|| (view(pairs, pairs, 1.0), pairs / tensor)),
            alone: alone(LibraryModel::measured_alone),
            alone_by_host: alone(LibraryModel::measured_by_host),
            all,
        })
    }

    pub(super) fn resources_of(&self, span: Span, cores: CoreUse) -> &SpanResources {
        match (span, cores) {
            (Span::AllCores, _) => &self.all,
            (Span::OneCore, CoreUse::Tensor) => &self.one_tensor,
            (Span::OneCore, CoreUse::Vector) => &self.one_vector,
            (Span::OneCore, CoreUse::Pair) => &self.one_pair,
        }
    }

    /// Returns the resources of the paired cores and their fraction of the tensor cores; `None` if every core has a
    /// partner.
    pub(super) fn paired_resources(&self) -> Option<(&SpanResources, f64)> {
        self.pairs.as_ref().map(|(view, share)| (view, *share))
    }

    /// The resources of the whole chip for a kernel that a framework runs alone.
    pub(super) fn resources_alone(&self) -> &SpanResources {
        &self.alone
    }

    /// Returns [`Self::resources_alone`] for a kernel that the host's clock times. The kernel's start is not
    /// counted, because the host's overhead already contains it.
    pub(super) fn resources_alone_by_host(&self) -> &SpanResources {
        &self.alone_by_host
    }

    /// Returns the achieved multiply-accumulates per unit and second.
    pub(super) fn mac_rate(&self, data_type: DataType) -> f64 {
        self.rates[data_type as usize] * self.clock
    }

    /// Returns the count of numbers along the contracted dimension that a unit multiplies and sums in a cycle.
    pub(super) fn contracted_at_once(&self, data_type: DataType) -> f64 {
        self.peak_rates[data_type as usize].max(1.0)
    }

    /// Returns the peak multiply-accumulates of one core per second.
    pub(super) fn core_peak(&self, data_type: DataType) -> f64 {
        let a = &self.arrays;
        self.peak_rates[data_type as usize] * self.clock * a.count * a.rows * a.columns
    }

    /// Returns the peak multiply-accumulates per second on these resources.
    pub(super) fn peak_macs(&self, view: &SpanResources, data_type: DataType) -> f64 {
        let a = &self.arrays;
        self.peak_rates[data_type as usize] * self.clock * view.cores * a.count * a.rows * a.columns
    }

    /// Returns the time that a kernel's products take at [`Accelerator::cell_rate_limit`]; zero without a limit.
    pub(super) fn time_at_cell_rate_limit(&self, kernel: &Kernel) -> f64 {
        let operand = match kernel {
            Kernel::Contraction(c) => c.operand,
            Kernel::Epilogue(e) => e.contraction.operand,
            Kernel::FusedAttention(a) => a.operand,
            _ => return 0.0,
        };
        kernel.flops().as_f64() / (2.0 * self.rates[operand as usize] * self.cell_rate_limit)
    }

    /// Returns the achieved vector results per second on these resources, for a function of one cycle per element.
    pub(super) fn lane_rate(&self, view: &SpanResources) -> f64 {
        view.lanes * self.clock * self.calibration.vector_achieved_fraction
    }
}

/// Returns the bytes in which a vector core keeps rows: its own buffer, else the core's outermost memory.
fn row_buffer(accelerator: &Accelerator) -> Option<f64> {
    let local = || {
        accelerator
            .on_chip
            .iter()
            .rev()
            .find(|level| level.scope == MemoryScope::Core)
            .map(|level| level.capacity.as_f64())
    };
    let own = accelerator.vector.buffer.map(|bytes| bytes.as_f64());
    own.or_else(local)
}

fn check_figures(accelerator: &Accelerator) -> Result<(), CostError> {
    let chip = || accelerator.name.clone();
    if accelerator.level_count() > MAX_LEVELS {
        return Err(CostError::TooManyLevels { chip: chip(), levels: accelerator.level_count() });
    }
    let mut shared_seen = false;
    for level in &accelerator.on_chip {
        if level.scope == MemoryScope::Core && shared_seen {
            return Err(CostError::LevelOrder { chip: chip(), level: level.name.clone() });
        }
        shared_seen |= level.scope == MemoryScope::Chip;
    }
    let tensor = &accelerator.tensor;
    let counts = [
        ("tensor cores", tensor.cores),
        ("arrays per core", tensor.arrays_per_core),
        ("array rows", tensor.rows),
        ("array columns", tensor.columns),
        ("vector cores", accelerator.vector.cores),
        ("vector lanes", accelerator.vector.lanes),
    ];
    for (what, value) in counts {
        is_positive(&chip, what, f64::from(value))?;
    }
    is_positive(&chip, "clock in Hz", accelerator.clock.0)?;
    for level in accelerator.memory_levels() {
        is_positive(&chip, &format!("read bandwidth of {} in B/s", level.name), level.read_bandwidth.0)?;
        is_positive(&chip, &format!("write bandwidth of {} in B/s", level.name), level.write_bandwidth.0)?;
        is_positive(&chip, &format!("latency of {} in s, plus one,", level.name), level.latency.0 + 1.0)?;
    }
    let calibration = &accelerator.calibration;
    is_positive(&chip, "hbm_achieved_fraction", calibration.hbm_achieved_fraction)?;
    is_positive(&chip, "tensor_achieved_fraction", calibration.tensor_achieved_fraction)?;
    for (format, fraction) in calibration.achieved_by_format.iter() {
        is_positive(&chip, &format!("achieved_by_format of {format}"), fraction)?;
    }
    is_positive(&chip, "vector_achieved_fraction", calibration.vector_achieved_fraction)?;
    for (data_type, rate) in tensor.macs_per_unit_per_cycle.iter() {
        is_positive(&chip, &format!("MACs per unit and cycle of {data_type}"), rate)?;
    }
    Ok(())
}

fn is_positive(chip: &dyn Fn() -> String, what: &str, value: f64) -> Result<(), CostError> {
    if value.is_finite() && value > 0.0 {
        Ok(())
    } else {
        Err(CostError::NotPositive { chip: chip(), what: what.to_owned(), value })
    }
}
