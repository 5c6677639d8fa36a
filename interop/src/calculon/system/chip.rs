//! A system's processor as a chip.

use super::read::LARGEST_GIB;
use super::{CalculonEngine, CalculonMemory, CalculonSystem};
use crate::rated_chip::RatedChip;
use sim::files::FileError;
use sim::hardware::{Calibration, ChipTemplate, HostLink, PerDataType};
use sim::kernel::DataType;
use sim::limits::format_number;
use sim::units::{BytesPerSecond, Hertz};

/// Lanes over which the vector engine's rate is spread; at a clock of 1.2 GHz they give 78.6 TFLOP/s. Only the product
/// matters.
const LANES: u32 = 1 << 16;
/// The usual software stack: Calculon models Megatron-LM (Isaev et al., SC 2023).
const USUAL_STACK: &str = "megatron";

/// Returns the second memory as the host's memory. The device itself updates offloaded data there, so the bandwidth of
/// the host's processors stays open.
fn host_link(host: &CalculonMemory) -> HostLink {
    let bandwidth = BytesPerSecond(host.bandwidth.0 * host.efficiency.largest_efficiency());
    HostLink { bandwidth, capacity: host.capacity, memory: None }
}

impl CalculonSystem {
    /// Returns the processor as a chip, with Calculon's assumptions: engines reach the stated fraction of their peak
    /// for every shape, and every operand of a product is read once from the device's memory. `data_type` selects the
    /// curves if they differ between types; by default it is the first of fp16, bf16, fp8, fp32 that the matrix engine
    /// has. The file states no area and no energy, so both are zero.
    ///
    /// # Errors
    /// A type that an engine does not have, or figures that are impossible for a chip.
    pub fn to_chip(&self, data_type: Option<DataType>) -> Result<ChipTemplate, FileError> {
        let matrix = self.engine_of_type("matrix", &self.matrix, data_type)?;
        let vector = self.engine_of_type("vector", &self.vector, data_type.or(Some(matrix.data_type)))?;
        let clock = Hertz(vector.peak.0 / f64::from(LANES));
        let mut rates = PerDataType::default();
        for engine in &self.matrix {
            // A multiply-accumulate is two operations.
            set_field(&mut rates, engine.data_type, engine.peak.0 / 2.0 / clock.0);
        }
        let chip = RatedChip {
            name: self.name(),
            file: &self.file,
            tool: "Calculon",
            noun: "processor",
            clock,
            rates,
            lanes: LANES,
            memory_name: "mem1",
            capacity: self.memory.capacity,
            bandwidth: self.memory.bandwidth,
            host: self.host.as_ref().map(host_link),
            collectives_overlap: false,
            calibration: Calibration {
                hbm_achieved_fraction: self.memory.efficiency.largest_efficiency(),
                tensor_achieved_fraction: matrix.efficiency.largest_efficiency(),
                vector_achieved_fraction: vector.efficiency.largest_efficiency(),
                overlap_fraction: if self.roofline { 1.0 } else { 0.0 },
                ..Calibration::default()
            },
            tdp: None,
            usual_stack: USUAL_STACK,
            usual_fabric: None,
        };
        chip.to_template()
    }

    fn engine_of_type<'a>(
        &self,
        key: &str,
        engines: &'a [CalculonEngine],
        data_type: Option<DataType>,
    ) -> Result<&'a CalculonEngine, FileError> {
        let found = engines.iter().find(|engine| data_type.is_none_or(|wanted| engine.data_type == wanted));
        found.ok_or_else(|| {
            let known: Vec<String> = engines.iter().map(|engine| engine.data_type.to_string()).collect();
            let asked = data_type.map_or_else(String::new, |wanted| wanted.to_string());
            let limit = format!("no rate of {asked}; it has {}", known.join(", "));
            let fault = sim::hardware::FileFault::new(key, "nothing", limit, "add its rate, or run in another type");
            FileError { file: self.file.clone(), faults: vec![fault] }
        })
    }

    /// Lists the endless memories, one line each. The chip has the largest modelled capacity instead.
    #[must_use]
    pub fn list_endless_memories(&self) -> Vec<String> {
        let memories = [("mem1", Some(&self.memory)), ("mem2", self.host.as_ref())];
        let beyond = |(name, memory): (&str, Option<&CalculonMemory>)| {
            let gib = format_number(memory?.beyond_gib?);
            let most = format_number(LARGEST_GIB);
            Some(format!("{name}.GiB = {gib}: a memory without end, taken as {most} GiB"))
        };
        memories.into_iter().filter_map(beyond).collect()
    }

    /// Lists the parts of the file that the chip does not model, one line each.
    #[must_use]
    pub fn list_unmodelled_of_chip(&self) -> Vec<String> {
        let mut lines = self.list_endless_memories();
        let mut curve = |key: String, points: &[(f64, f64)]| {
            let smaller = points.get(1..).unwrap_or_default();
            if let (Some((from, _)), false) = (points.first(), smaller.is_empty()) {
                lines.push(format!(
                    "{key}: the steps below {from:.3e}; this model's tiles and launches give the losses of small operations"
                ));
            }
        };
        for (name, engines) in [("matrix", &self.matrix), ("vector", &self.vector)] {
            for engine in engines {
                curve(format!("{name} {} efficiency by FLOPs", engine.data_type), &engine.efficiency.0);
            }
        }
        curve("mem1 efficiency by bytes".to_owned(), &self.memory.efficiency.0);
        if let Some(host) = &self.host {
            curve("mem2 efficiency by bytes".to_owned(), &host.efficiency.0);
        }
        if !self.roofline {
            lines.push(
                "processing_mode no_overlap: in a step the next kernel's data moves while one computes".to_owned(),
            );
        }
        lines
    }
}

fn set_field(rates: &mut PerDataType<f64>, data_type: DataType, rate: f64) {
    let slot = match data_type {
        DataType::Fp32 => &mut rates.fp32,
        DataType::Bf16 => &mut rates.bf16,
        DataType::Fp16 => &mut rates.fp16,
        DataType::Fp8 => &mut rates.fp8,
        DataType::Int8 => &mut rates.int8,
        DataType::Mxfp8 => &mut rates.mxfp8,
        DataType::Nvfp4 => &mut rates.nvfp4,
        DataType::Mxfp4 => &mut rates.mxfp4,
    };
    *slot = Some(rate);
}
