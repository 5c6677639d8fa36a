//! A call of attention, as measurements of single kernels describe it.

use crate::hardware::{Accelerator, AttentionLibrary};
use crate::kernel::{DataType, Direction, FusedAttention};

/// A call of attention: `queries` new tokens of each sequence attend to the `keys` tokens before and among them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionCall {
    /// Forward or backward.
    pub direction: Direction,
    /// Sequences.
    pub batch: u64,
    /// Query heads.
    pub heads: u64,
    /// Key and value heads.
    pub kv_heads: u64,
    /// New tokens of a sequence; 1 in decoding.
    pub queries: u64,
    /// Visible tokens of a sequence, the new ones included.
    pub keys: u64,
    /// Dimension of a head.
    pub head_dim: u64,
    /// Keys that a query sees at most, if attention has a window.
    pub window: Option<u64>,
    /// Type of queries, keys and values.
    pub operand: DataType,
    /// The library that runs it.
    pub software: AttentionSoftware,
}

impl AttentionCall {
    /// Returns the call that runs a kernel of a step. `None` if libraries' rates do not cover the kernel: attention
    /// that is not causal, over pieces of a sequence, or on keys that are the values.
    #[must_use]
    pub fn of_kernel(kernel: &FusedAttention, software: AttentionSoftware) -> Option<Self> {
        let covered = kernel.causal && kernel.pieces.is_none() && !kernel.values_are_keys;
        covered.then_some(Self {
            direction: kernel.direction,
            batch: kernel.batch,
            heads: kernel.heads,
            kv_heads: kernel.kv_heads,
            queries: kernel.queries,
            keys: kernel.keys,
            head_dim: kernel.head_dim,
            window: kernel.window,
            operand: kernel.operand,
            software,
        })
    }
}

/// The library of an attention kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum AttentionSoftware {
    /// A serving library (TensorRT-LLM). A call includes the rotary embedding and the write of keys and values to their
    /// cache.
    Serving,
    /// A training library's kernel of the generation of FlashAttention 2.
    Training,
    /// A version that was measured on the chip.
    Version(AttentionLibrary),
}

/// Error: a chip has no attention library of this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{chip} has no attention library {name:?}; known are: {known}")]
pub struct UnknownAttentionLibrary {
    /// The chip.
    pub chip: String,
    /// The name.
    pub name: String,
    /// The names that exist, with commas between.
    pub known: String,
}

impl AttentionSoftware {
    const SERVING: &str = "tensorrt_llm";
    const TRAINING: &str = "flash_attention_2";

    /// Returns the library of this name whose rates the chip's file has.
    ///
    /// # Errors
    /// [`UnknownAttentionLibrary`] lists the names that exist.
    pub fn measured_on_chip(chip: &Accelerator, name: &str) -> Result<Self, UnknownAttentionLibrary> {
        chip.attention.get(name).map(|own| Self::Version(*own)).ok_or_else(|| {
            let own: Vec<&str> = chip.attention.keys().map(String::as_str).collect();
            let known = if own.is_empty() { "none".to_owned() } else { own.join(", ") };
            UnknownAttentionLibrary { chip: chip.name.clone(), name: name.to_owned(), known }
        })
    }

    /// Returns the library of this name on a chip. A serving library and the generation of FlashAttention 2 are known
    /// on every chip, by rates that were fitted to several chips.
    ///
    /// # Errors
    /// [`UnknownAttentionLibrary`] lists the names that exist.
    pub fn find_on_chip(chip: &Accelerator, name: &str) -> Result<Self, UnknownAttentionLibrary> {
        match (name, chip.attention.get(name)) {
            (_, Some(version)) => Ok(Self::Version(*version)),
            (Self::SERVING, None) => Ok(Self::Serving),
            (Self::TRAINING, None) => Ok(Self::Training),
            _ => {
                let own = chip.attention.keys().map(String::as_str);
                let everywhere = [Self::SERVING, Self::TRAINING];
                let further = own.filter(|name| !everywhere.contains(name));
                let known = everywhere.into_iter().chain(further).collect::<Vec<_>>().join(", ");
                Err(UnknownAttentionLibrary { chip: chip.name.clone(), name: name.to_owned(), known })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::cost::{CostModel, Routine};

    fn call(direction: Direction, software: AttentionSoftware) -> AttentionCall {
        let operand = DataType::Bf16;
        AttentionCall {
            direction,
            batch: 8,
            heads: 16,
            kv_heads: 16,
            queries: 4096,
            keys: 4096,
            head_dim: 128,
            window: None,
            operand,
            software,
        }
    }

    #[test]
    fn a_later_library_is_faster_and_its_name_must_be_known() {
        let chip = Accelerator::built_in("b200").unwrap();
        let model = CostModel::new(chip.clone()).unwrap();
        let time = |name: &str, direction: Direction| {
            let software = AttentionSoftware::find_on_chip(&chip, name).unwrap();
            model.time_alone(&Routine::Attention(call(direction, software))).micros()
        };
        let (second, fourth) =
            (time("flash_attention_2", Direction::Forward), time("flash_attention_4", Direction::Forward));
        assert!((fourth / 380.0 - 1.0).abs() < 0.1, "{fourth}; 380 was measured");
        assert!(second > 1.4 * fourth);
        assert!(time("flash_attention_4", Direction::Backward) < time("flash_attention_2", Direction::Backward));
        let refused = AttentionSoftware::find_on_chip(&chip, "flash_attention_9").unwrap_err().to_string();
        assert_eq!(
            refused,
            "b200 has no attention library \"flash_attention_9\"; known are: tensorrt_llm, flash_attention_2, flash_attention_4"
        );
    }

    #[test]
    fn a_better_figure_of_a_library_never_slows_a_call() {
        let chip = Accelerator::built_in("b200").unwrap();
        let model = CostModel::new(chip.clone()).unwrap();
        let own = chip.attention["flash_attention_4"];
        let time = |library: AttentionLibrary, direction: Direction| {
            model.time_alone(&Routine::Attention(call(direction, AttentionSoftware::Version(library)))).micros()
        };
        let better = |change: fn(&mut AttentionLibrary)| {
            let mut changed = own;
            change(&mut changed);
            changed
        };
        let changes = [
            better(|l| l.backward_issue_fraction *= 1.2),
            better(|l| l.exposed_fraction = 0.0),
            better(|l| l.softmax_fraction *= 1.2),
            better(|l| l.tile_overhead = l.tile_overhead * 0.5),
        ];
        for changed in changes {
            for direction in [Direction::Forward, Direction::Backward] {
                assert!(time(changed, direction) <= time(own, direction), "{changed:?}");
            }
        }
    }
}
