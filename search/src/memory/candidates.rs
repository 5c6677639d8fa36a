//! Finds the policies that can be on the Pareto front for some operator times, once per layer structure.

use super::labels::{AnyTimes, undominated_labels};
use super::layer::{LayerTensors, OperatorSet};

/// Limit on labels alive at one moment. Above it, listing candidates takes longer (quadratic in their number) than
/// solving again for each hardware.
const CANDIDATE_LIMIT: usize = 8_192;

/// A policy that is optimal for some operator times.
#[derive(Debug, Clone, Copy)]
pub(super) struct PolicyCandidate {
    pub stash: u64,
    pub workspace: u64,
    pub operators: OperatorSet,
}

/// Lists all candidates in ascending (stash, workspace, set) order. `None` if more than [`CANDIDATE_LIMIT`] labels are
/// alive at some moment.
///
/// A policy is left out only if another one has no more stash and reruns a subset of its operators. For any
/// non-negative times, that other policy is no slower and rebuilds no more bytes.
pub(super) fn enumerate_candidates(layer: &LayerTensors) -> Option<Vec<PolicyCandidate>> {
    let labels = undominated_labels(layer, AnyTimes(OperatorSet::EMPTY), CANDIDATE_LIMIT)?;
    let mut found: Vec<PolicyCandidate> = labels
        .into_iter()
        .map(|label| PolicyCandidate {
            stash: label.stash,
            workspace: layer.policy_of_rerun(label.cost.0).workspace.0,
            operators: label.cost.0,
        })
        .collect();
    found.sort_by_key(|c| (c.stash, c.workspace, c.operators));
    Some(found)
}

/// Sums of times over operator sets, with at most sixteen table look-ups per set.
pub(super) struct SetTimes {
    tables: Vec<[f64; 256]>,
}

impl SetTimes {
    /// Builds the tables from one time per operator.
    pub fn new(seconds: &[f64]) -> Self {
        let table = |chunk: &[f64]| {
            let mut sums = [0.0; 256];
            for set in 1..256_usize {
                let highest = set.ilog2() as usize;
                sums[set] = sums[set & !(1 << highest)] + chunk.get(highest).copied().unwrap_or(0.0);
            }
            sums
        };
        Self { tables: seconds.chunks(8).map(table).collect() }
    }

    /// The sum over a set, in seconds.
    pub fn time_of_set(&self, set: OperatorSet) -> f64 {
        let byte = |i: usize| (set.0 >> (8 * i) & 0xff) as usize;
        self.tables.iter().enumerate().map(|(i, table)| table[byte(i)]).sum()
    }
}
