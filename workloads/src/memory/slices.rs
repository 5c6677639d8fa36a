//! Kernels of a block that runs slice by slice.

use crate::graph::{KernelStep, OpId, OperatorGraph};
use sim::kernel::{Contraction, Kernel};
use std::collections::BTreeSet;

/// Splits the products of the chosen operators along their tokens into `slices` smaller products. Each slice reads the
/// weights again, or adds to their gradient again. Elementwise and row-wise kernels do not change, because slicing does
/// not change the bytes that they move.
pub(crate) fn cut_products(graph: &mut OperatorGraph, chosen: &BTreeSet<OpId>, slices: u64) {
    for op in graph.operators.iter_mut().filter(|op| chosen.contains(&op.id)) {
        op.forward.iter_mut().for_each(|step| cut_product(step, slices, false));
        for chain in &mut op.backward {
            let weights = chain.gradient == crate::graph::Gradient::Weights;
            chain.steps.iter_mut().for_each(|step| cut_product(step, slices, weights));
        }
    }
}

/// Contracted tokens are padded with zeros to a multiple of 16. At one byte per number, 16 tokens are one whole 16-byte
/// vector, so libraries load no partial vectors.
const WHOLE: u64 = 16;

/// Returns the number of tokens that a weight gradient contracts for a slice of `part` tokens: `part` padded to a
/// multiple of 16, at most `tokens`.
pub(crate) fn contracted_tokens(part: u64, tokens: u64) -> u64 {
    part.next_multiple_of(WHOLE).min(tokens)
}

fn cut_product(step: &mut KernelStep, slices: u64, weights: bool) {
    let Kernel::Contraction(c) = step.kernel else { return };
    let tokens = if weights { c.k } else { c.m };
    let slices = slices.clamp(1, tokens.max(1));
    let each = tokens.div_ceil(slices);
    let batch = c.batch.saturating_mul(slices);
    step.kernel = Kernel::Contraction(match weights {
        true => Contraction { batch, k: contracted_tokens(each, tokens), ..c },
        false => Contraction { batch, m: each, ..c },
    });
}
