//! Routines of serving and training libraries as measured: attention with its library's other work, and the layer of
//! experts, which is several kernels in one call.

use super::attention_call::AttentionCall;
use super::library;
use super::library_model::LibraryModel;
use super::machine::SpanResources;
use super::{CostModel, library_attention};
use crate::kernel::{Contraction, DataType, Direction, Elementwise, ElementwiseFunction, FusedAttention, Kernel};
use crate::units::{Bytes, Seconds};

/// A call of a layer of gated experts (SwiGLU) on one device, with tokens spread evenly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertsCall {
    /// Tokens.
    pub tokens: u64,
    /// Experts.
    pub experts: u64,
    /// Experts per token.
    pub top_k: u64,
    /// Width of a token.
    pub hidden: u64,
    /// Width of an expert.
    pub width: u64,
    /// Type of the products' operands.
    pub operand: DataType,
}

/// The conversion of a linear layer's 16-bit input to narrow operands, as a framework does it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputConversion {
    /// The operands are narrow already.
    None,
    /// Conversion by a scale that the input's largest number gives, in launches of their own (TensorRT-LLM).
    Quantise,
    /// Conversion in one elementwise kernel, by a scale that is known before (PyTorch's `to`).
    Cast,
}

/// A routine that was measured alone.
#[derive(Debug, Clone, PartialEq)]
pub enum Routine {
    /// One kernel.
    Kernel(Kernel),
    /// A framework's linear layer with 8-bit or 4-bit operands, which may convert its 16-bit input first.
    Linear(Contraction, InputConversion),
    /// A call of attention.
    Attention(AttentionCall),
    /// A layer of experts.
    Experts(ExpertsCall),
    /// Equal products in one call.
    Grouped(Contraction),
}

impl CostModel {
    /// Returns the device time of a routine that runs alone.
    #[must_use]
    pub fn time_alone(&self, routine: &Routine) -> Seconds {
        match routine {
            Routine::Kernel(kernel) => self.cost_alone(kernel).latency,
            Routine::Linear(product, conversion) => self.time_of_linear_alone(product, *conversion),
            Routine::Attention(call) => self.time_of_attention_alone(call),
            Routine::Experts(call) => self.time_of_experts_alone(call),
            Routine::Grouped(group) => self.time_of_group_alone(group),
        }
    }

    /// Returns the time of a framework's linear layer measured alone. Only a chip with a library converts the input,
    /// and only to operands of one byte.
    fn time_of_linear_alone(&self, c: &Contraction, conversion: InputConversion) -> Seconds {
        let product = self.cost_alone(&Kernel::Contraction(*c)).latency;
        let numbers = c.batch * c.m * c.k;
        match (&self.machine.resources_alone().library, c.operand.bytes(), conversion) {
            (Some(library), 1, InputConversion::Quantise) => {
                let launches = library
                    .scalars
                    .formats
                    .get(c.operand)
                    .map_or(library.constants.quantise * 1e-6, |format| format.convert.0);
                Seconds(product.0 + launches + numbers as f64 * library.constants.quantise_bytes * library.read)
            }
            (Some(_), 1, InputConversion::Cast) => product + self.cost_alone(&cast_to_narrow(numbers)).latency,
            _ => product,
        }
    }

    /// Returns the time of a call of attention measured alone.
    fn time_of_attention_alone(&self, call: &AttentionCall) -> Seconds {
        let view = self.machine.resources_alone();
        if let Some(library) = &view.library {
            return Seconds(library_attention::time_alone(self, view, library, call));
        }
        let kernel = FusedAttention {
            direction: call.direction,
            batch: call.batch,
            heads: call.heads,
            kv_heads: call.kv_heads,
            queries: call.queries,
            keys: call.window.map_or(call.keys, |window| window.min(call.keys)),
            head_dim: call.head_dim,
            causal: call.queries > 1 && call.window.is_none(),
            window: None,
            values_are_keys: false,
            pieces: None,
            operand: call.operand,
        };
        self.cost_alone(&Kernel::FusedAttention(kernel)).latency
    }

    /// Returns the time of a layer of experts measured alone.
    fn time_of_experts_alone(&self, call: &ExpertsCall) -> Seconds {
        let rows = call.tokens * call.top_k;
        let active = rows.min(call.experts).max(1);
        let product = |n: u64, k: u64| Contraction {
            batch: active,
            m: rows.div_ceil(active),
            n,
            k,
            operand: call.operand,
            result: DataType::Bf16,
        };
        let (up, down) = (product(2 * call.width, call.hidden), product(call.hidden, call.width));
        let view = self.machine.resources_alone();
        let Some(library) = &view.library else {
            let kernels = [Kernel::Contraction(up), gated_activation(rows, call.width), Kernel::Contraction(down)];
            return kernels.iter().map(|kernel| self.cost_alone(kernel).latency).sum();
        };
        // Three passes of 16-bit numbers: tokens into the order of their experts, between the products, and back.
        let between = 6.0 * rows as f64 * (call.hidden + call.width) as f64 + 2.0 * (call.tokens * call.hidden) as f64;
        let constants = &self.machine.constants;
        Seconds(
            constants.experts_launch * 1e-6
                + self.time_of_group(view, library, &[up, down])
                + library.constants.experts_passes * between * library.read,
        )
    }

    /// Returns the time of equal products in one call, measured alone.
    fn time_of_group_alone(&self, group: &Contraction) -> Seconds {
        let view = self.machine.resources_alone();
        match &view.library {
            Some(library) => {
                Seconds(library.scalars.floor.0 + self.time_of_group(view, library, std::slice::from_ref(group)))
            }
            None => self.cost_alone(&Kernel::Contraction(*group)).latency,
        }
    }

    fn time_of_group(&self, view: &SpanResources, library: &LibraryModel, groups: &[Contraction]) -> f64 {
        let mut slower = *library;
        slower.scalars.tile_overhead = library.scalars.tile_overhead * self.machine.constants.group_tile;
        groups.iter().map(|c| library::time_of_group(&self.machine, view, &slower, c)).sum()
    }
}

/// Returns a kernel that reads 16-bit numbers once and writes 8-bit ones once.
fn cast_to_narrow(elements: u64) -> Kernel {
    Kernel::Elementwise(Elementwise {
        function: ElementwiseFunction::Convert,
        direction: Direction::Forward,
        elements,
        read: Bytes(2) * elements,
        written: Bytes(elements),
    })
}

/// Returns the kernel of silu(gate) * up on the rows between the two products.
fn gated_activation(rows: u64, width: u64) -> Kernel {
    let elements = rows * width;
    let bytes = Bytes(2) * elements;
    Kernel::Elementwise(Elementwise {
        function: ElementwiseFunction::SwiGlu,
        direction: Direction::Forward,
        elements,
        read: bytes * 2,
        written: bytes,
    })
}
