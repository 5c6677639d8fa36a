//! A memo of costs by kernel value, one per thread.

use super::{CostModel, KernelCost, Span};
use crate::kernel::Kernel;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// The multiply-rotate hash of Firefox's and rustc's tables, for short integer keys without an adversary.
#[derive(Debug, Default, Clone, Copy)]
struct WordHasher(u64);

/// An odd constant with well mixed bits: 2^64 over the golden ratio.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

impl WordHasher {
    #[inline]
    fn mix_word(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(MULTIPLIER);
    }
}

impl Hasher for WordHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.mix_word(u64::from(*byte));
        }
    }

    #[inline]
    fn write_u8(&mut self, value: u8) {
        self.mix_word(u64::from(value));
    }

    #[inline]
    fn write_u32(&mut self, value: u32) {
        self.mix_word(u64::from(value));
    }

    #[inline]
    fn write_u64(&mut self, value: u64) {
        self.mix_word(value);
    }

    #[inline]
    fn write_isize(&mut self, value: isize) {
        self.mix_word(value as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        // The table takes its bucket from the low bits and its tag from the high ones, but the product mixes only
        // upwards.
        self.0 ^ (self.0 >> 32)
    }
}

/// Remembers the cost of every kernel seen on one accelerator. It is never iterated, so results stay deterministic.
#[derive(Debug, Clone)]
pub struct CostCache<'a> {
    model: &'a CostModel,
    known: HashMap<(Kernel, Span), KernelCost, BuildHasherDefault<WordHasher>>,
}

impl<'a> CostCache<'a> {
    /// Creates an empty cache for a model.
    #[must_use]
    pub fn new(model: &'a CostModel) -> Self {
        Self { model, known: HashMap::default() }
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &'a CostModel {
        self.model
    }

    /// Returns the cost of a kernel, computed on first use: the same value as [`CostModel::cost_of_kernel`].
    pub fn cost_of_kernel(&mut self, kernel: &Kernel, span: Span) -> KernelCost {
        let model = self.model;
        *self.known.entry((*kernel, span)).or_insert_with(|| model.cost_of_kernel(kernel, span))
    }

    /// Returns the number of distinct pairs of kernel and span seen.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// True if nothing has been costed yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }
}
