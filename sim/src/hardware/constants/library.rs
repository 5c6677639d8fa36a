//! The constants of vendors' kernel libraries. `sim/constants/library.toml` has their units, ranges and sources.

use serde::Deserialize;

/// `library.toml`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LibraryConstants {
    /// Fraction of the fp32 units' rate at which misaligned products of a batch run.
    pub scattered_issue: f64,
    /// Microseconds to start summing the parts of a split.
    pub split_overhead: f64,
    /// Microseconds to the first bytes from the device's memory.
    pub memory_ramp: f64,
    /// Exposed fraction of the shorter of computing and moving.
    pub exposed: f64,
    /// Power of the device's memory at its peak, as a fraction of the chip's dynamic power.
    pub memory_power: f64,
    /// Fraction of the shared cache that holds data from the previous run.
    pub cache_held: f64,
    /// Ratio of the fraction of peak that power allows 8-bit products to that of 16-bit products.
    pub narrow_power: f64,
    /// Load width of single products with unaligned rows, as a fraction of a full vector.
    pub unaligned_loads: f64,
    /// Microseconds to launch the quantisation of an input.
    pub quantise: f64,
    /// Bytes that quantising moves per number.
    pub quantise_bytes: f64,
    /// Traffic of tokens between the kernels of experts, as a multiple of one crossing of the device's memory each.
    pub experts_passes: f64,
    /// Microseconds of a row's own wait, beyond a kernel's floor.
    pub row_wait: f64,
    /// Rate of products between softmaxes in a serving library's kernel, as a fraction of the arrays' peak.
    pub attention_issue: f64,
    /// Exposed fraction of the shorter of products and softmax.
    pub attention_exposed: f64,
    /// Rate of products between softmaxes in a training library's forward kernel, as a fraction of the arrays' peak.
    pub training_attention_issue: f64,
    /// Exposed fraction of the shorter of products and softmax in a training library's forward kernel.
    pub training_attention_exposed: f64,
    /// Rate of products in a training library's backward kernel, as a fraction of the arrays' peak.
    pub backward_attention_issue: f64,
    /// Microseconds to launch context attention.
    pub context_launch: f64,
    /// Crossings of the device's memory in context attention.
    pub context_passes: f64,
    /// Microseconds to launch a decoding step.
    pub decode_launch: f64,
    /// Microseconds to sum the parts of split keys.
    pub decode_split: f64,
    /// Microseconds to start and end one head's stream.
    pub decode_head: f64,
    /// Microseconds to start and end a group's stream.
    pub decode_group: f64,
    /// Rate of keys and values into a core, as a fraction of the rate of a product's operands.
    pub decode_read: f64,
    /// Achieved bandwidth of a long stream of keys from the device's memory, as a fraction of that of a product's
    /// operands.
    pub decode_stream: f64,
}
