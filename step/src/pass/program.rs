//! A model's passes with interned kernels, prepared once so that many chips can bound and time them.

use sim::costed::TICKS_PER_SECOND;
use sim::kernel::{Kernel, KernelGraph};
use sim::schedule::{Cores, OperatorLeastTimes, Outline};
use sim::units::Seconds;
use std::collections::BTreeMap;
use std::sync::Arc;
use workloads::{RecomputeSet, SegmentKind, TrainingGraph};

/// Index of a kernel in its [`KernelTable`].
pub type KernelIndex = u32;

/// Index of a program in its [`KernelTable`].
pub type ProgramIndex = u32;

/// Identity of a program: the kernels of its nodes, and the dependencies between nodes.
type ProgramKey = (Vec<KernelIndex>, Vec<(u32, u32)>);

/// The distinct kernels and the distinct programs of many passes.
#[derive(Debug, Default)]
pub struct KernelTable {
    kernels: Vec<Kernel>,
    index: BTreeMap<Kernel, KernelIndex>,
    programs: BTreeMap<ProgramKey, Arc<KernelProgram>>,
}

impl KernelTable {
    /// Returns the index of a kernel; adds it if it is new.
    pub fn intern_kernel(&mut self, kernel: Kernel) -> KernelIndex {
        *self.index.entry(kernel).or_insert_with(|| {
            self.kernels.push(kernel);
            (self.kernels.len() - 1) as KernelIndex
        })
    }

    /// Returns all kernels, by index.
    #[must_use]
    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }

    /// Returns the number of distinct programs.
    #[must_use]
    pub fn program_count(&self) -> usize {
        self.programs.len()
    }

    /// Returns the program of a graph; adds it if it is new.
    pub fn intern_graph(&mut self, graph: &KernelGraph) -> Arc<KernelProgram> {
        let kernels: Vec<KernelIndex> = graph.node_weights().map(|node| self.intern_kernel(node.kernel)).collect();
        let mut edges: Vec<(u32, u32)> =
            graph.raw_edges().iter().map(|e| (e.source().index() as u32, e.target().index() as u32)).collect();
        // Lowering adds a node after all nodes that it waits for, so node order is topological.
        edges.sort_unstable_by_key(|&(before, after)| (after, before));
        debug_assert!(
            edges.iter().all(|(before, after)| before < after),
            "kernels are added after those they wait for"
        );
        let index = self.programs.len() as ProgramIndex;
        let Self { kernels: all, programs, .. } = self;
        let program = programs.entry((kernels, edges)).or_insert_with_key(|(kernels, edges)| {
            let outline = Outline::new(kernels.len(), edges, |node| occupies_cores(&all[kernels[node] as usize]));
            Arc::new(KernelProgram { index, kernels: kernels.clone(), edges: edges.clone(), outline })
        });
        Arc::clone(program)
    }
}

/// A kernel graph with its kernels interned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelProgram {
    /// Its index in its table.
    pub index: ProgramIndex,
    /// The kernel of each node, in a valid execution order.
    pub kernels: Vec<KernelIndex>,
    /// Dependencies: (before, after) with before < after, sorted by after.
    pub edges: Vec<(u32, u32)>,
    outline: Outline,
}

impl KernelProgram {
    /// Returns a lower bound in seconds on the time of the program over all schedules. `least` gives a lower bound on
    /// each kernel, in ticks; see [`Outline::lower_bound`] for `chains`.
    #[must_use]
    pub fn least_ticks(
        &self,
        cores: &Cores,
        chains: bool,
        mut least: impl FnMut(KernelIndex) -> OperatorLeastTimes,
    ) -> Seconds {
        Seconds(self.outline.lower_bound(cores, chains, |node| least(self.kernels[node])) / TICKS_PER_SECOND)
    }

    /// Returns the total time of the kernels in sequence; `time` gives the time of each.
    #[must_use]
    pub fn sum_of_kernels(&self, time: impl FnMut(KernelIndex) -> Seconds) -> Seconds {
        self.kernels.iter().copied().map(time).sum()
    }
}

/// Returns whether a kernel occupies cores on every chip; see [`sim::costed::operator_kind`].
pub(crate) fn occupies_cores(kernel: &Kernel) -> bool {
    !matches!(kernel, Kernel::Collective(_) | Kernel::Transfer(_))
}

/// The passes of one segment, without recomputation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentPasses {
    /// The forward pass.
    pub forward: Arc<KernelProgram>,
    /// The backward pass.
    pub backward: Arc<KernelProgram>,
}

impl SegmentPasses {
    /// Returns the passes of a lowered model's embedding, layer and head.
    #[must_use]
    pub fn from_graph(graph: &TrainingGraph, table: &mut KernelTable) -> [Self; 3] {
        [SegmentKind::Embedding, SegmentKind::Layer, SegmentKind::Head].map(|kind| {
            let of = |graph: Option<KernelGraph>| graph.unwrap_or_default();
            let segment = graph.segment(kind);
            Self {
                forward: table.intern_graph(&of(segment.map(|segment| segment.forward_graph()))),
                backward: table.intern_graph(&of(segment.map(|segment| segment.backward_graph(&RecomputeSet::none())))),
            }
        })
    }
}
