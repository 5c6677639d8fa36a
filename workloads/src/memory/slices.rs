//! Kernels of a block that is run slice by slice.

use crate::graph::{KernelStep, OpId, OperatorGraph};
use sim::kernel::{Contraction, Kernel};
use std::collections::BTreeSet;

/// Cuts the products of the chosen operators along their tokens: as many smaller ones, each of which reads the weights (or adds to their gradient)
/// again. Elementwise and row-wise work moves the same bytes whatever the cut.
pub(crate) fn cut_products(graph: &mut OperatorGraph, chosen: &BTreeSet<OpId>, slices: u64) {
    for op in graph.operators.iter_mut().filter(|op| chosen.contains(&op.id)) {
        op.forward.iter_mut().for_each(|step| cut_product(step, slices, false));
        for chain in &mut op.backward {
            let weights = chain.gradient == crate::graph::Gradient::Weights;
            chain.steps.iter_mut().for_each(|step| cut_product(step, slices, weights));
        }
    }
}

/// Tokens that a product contracts are filled up with zeros to so many: whole vectors of 16 bytes at one byte per number, so that no library loads them
/// piece by piece.
const WHOLE: u64 = 16;

/// Of all `tokens` a part, as many as a product of a weight's gradient contracts for it.
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
