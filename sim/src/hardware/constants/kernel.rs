//! The constants of kernels. `sim/constants/kernel.toml` has their units, ranges and sources.

use crate::kernel::{Direction, Elementwise, ElementwiseFunction, Kernel};
use serde::Deserialize;

/// `kernel.toml`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelConstants {
    /// Lane cycles of a number whose address the kernel computes by itself.
    pub indexed: f64,
    /// Lane cycles of a number that is added to memory atomically.
    pub atomic_add: f64,
    /// Fraction of the memory's peak that a library's kernels reach if they do not stream.
    pub broken_stream: f64,
    attention_forward: f64,
    attention_backward: f64,
    /// Microseconds to launch a layer of experts.
    pub experts_launch: f64,
    /// Ratio of the time to start and end a tile of grouped products to that of a single product.
    pub group_tile: f64,
}

impl KernelConstants {
    /// Returns the lane cycles of a score of attention.
    #[must_use]
    pub fn cycles_of_score(&self, direction: Direction) -> f64 {
        match direction {
            Direction::Forward => self.attention_forward,
            Direction::Backward => self.attention_backward,
        }
    }

    /// Returns the key of the constant that this kernel's work takes in a step; `None` if it takes none.
    #[must_use]
    pub fn key_of_kernel(kernel: &Kernel) -> Option<&'static str> {
        let of_function = |e: &Elementwise| match e.function {
            ElementwiseFunction::Indexed => Some("kernel.indexed"),
            ElementwiseFunction::ScatterAdd => Some("kernel.atomic_add"),
            _ => None,
        };
        match kernel {
            Kernel::Elementwise(e) => of_function(e),
            Kernel::Epilogue(e) => of_function(&e.elementwise),
            Kernel::FusedAttention(a) => Some(match a.direction {
                Direction::Forward => "kernel.attention_forward",
                Direction::Backward => "kernel.attention_backward",
            }),
            _ => None,
        }
    }
}
