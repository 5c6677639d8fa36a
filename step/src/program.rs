//! A model's passes with their kernels interned: what many chips bound and time, prepared once for all of them.

use sim::kernel::{Kernel, KernelGraph};
use sim::units::Seconds;
use std::collections::BTreeMap;
use workloads::{RecomputeSet, SegmentKind, TrainingGraph};

/// Position of a kernel in its [`KernelTable`].
pub type KernelIndex = u32;

/// The distinct kernels of many passes.
#[derive(Debug, Default)]
pub struct KernelTable {
    kernels: Vec<Kernel>,
    index: BTreeMap<Kernel, KernelIndex>,
}

impl KernelTable {
    /// The place of a kernel, new or known.
    pub fn intern(&mut self, kernel: Kernel) -> KernelIndex {
        *self.index.entry(kernel).or_insert_with(|| {
            self.kernels.push(kernel);
            (self.kernels.len() - 1) as KernelIndex
        })
    }

    /// All kernels, by index.
    #[must_use]
    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }
}

/// A kernel graph with its kernels interned.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Program {
    /// The kernel of each node, in an order in which they can run.
    pub kernels: Vec<KernelIndex>,
    /// What each node waits for: (before, after) with before < after, sorted by after.
    pub edges: Vec<(u32, u32)>,
}

impl Program {
    /// A graph, its kernels new or known to `table`.
    #[must_use]
    pub fn new(graph: &KernelGraph, table: &mut KernelTable) -> Self {
        let kernels = graph.node_weights().map(|node| table.intern(node.kernel)).collect();
        let mut edges: Vec<(u32, u32)> =
            graph.raw_edges().iter().map(|e| (e.source().index() as u32, e.target().index() as u32)).collect();
        // Lowering adds a node after all that it waits for, so node order is topological.
        edges.sort_unstable_by_key(|&(before, after)| (after, before));
        debug_assert!(edges.iter().all(|(before, after)| before < after), "kernels are added after those they wait for");
        Self { kernels, edges }
    }

    /// The longest chain of kernels that wait for each other, each taking `time`: no schedule is shorter.
    #[must_use]
    pub fn critical_path(&self, mut time: impl FnMut(KernelIndex) -> Seconds) -> Seconds {
        let mut ends = vec![0.0_f64; self.kernels.len()];
        let mut longest = 0.0_f64;
        let mut edges = self.edges.iter().peekable();
        for (node, &kernel) in self.kernels.iter().enumerate() {
            let mut start = 0.0_f64;
            while let Some((before, _)) = edges.next_if(|(_, after)| *after as usize == node) {
                start = start.max(ends[*before as usize]);
            }
            ends[node] = start + time(kernel).0;
            longest = longest.max(ends[node]);
        }
        Seconds(longest)
    }

    /// The kernels one after the other, each taking `time`.
    #[must_use]
    pub fn sum(&self, time: impl FnMut(KernelIndex) -> Seconds) -> Seconds {
        self.kernels.iter().copied().map(time).sum()
    }
}

/// The passes of one segment, nothing run again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Passes {
    /// The forward pass.
    pub forward: Program,
    /// The backward pass.
    pub backward: Program,
}

impl Passes {
    /// Of a lowered model's embedding, layer and head.
    #[must_use]
    pub fn of(graph: &TrainingGraph, table: &mut KernelTable) -> [Self; 3] {
        [SegmentKind::Embedding, SegmentKind::Layer, SegmentKind::Head].map(|kind| {
            graph.segment(kind).map_or_else(Self::default, |segment| Self {
                forward: Program::new(&segment.forward(), table),
                backward: Program::new(&segment.backward(&RecomputeSet::none()), table),
            })
        })
    }
}
