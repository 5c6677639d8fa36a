//! A model lowered for one tensor-parallel width and micro-batch: everything about it that does not depend on the chip, prepared once for
//! all the chips of a search. Kernels are interned: a chip costs each distinct kernel once.

use crate::memory::{
    LayerError, LayerOperator, LayerTensors, OperatorIndex, OperatorSet, RecomputeSpace, SavedTensor, TensorIndex, TensorSource,
};
use sim::kernel::{Kernel, KernelGraph};
use sim::units::{Bytes, Seconds};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use thiserror::Error;
use workloads::{Lowering, Model, OpId, RecomputeSet, Segment, TrainingGraph, WorkloadError};

/// Why a model cannot be prepared.
#[derive(Debug, Error)]
pub enum ShapeError {
    /// The model or the way it is trained.
    #[error(transparent)]
    Workload(Box<WorkloadError>),
    /// A segment's tensors are inconsistent.
    #[error("segment {segment}: {source}")]
    Layer {
        /// The segment.
        segment: String,
        /// What is wrong.
        source: LayerError,
    },
}

impl From<WorkloadError> for ShapeError {
    fn from(error: WorkloadError) -> Self {
        Self::Workload(Box::new(error))
    }
}

/// Position of a kernel in its [`KernelTable`].
pub type KernelIndex = u32;

/// The distinct kernels of all shapes.
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

    /// The place of a kernel that was interned before.
    fn find(&self, kernel: &Kernel) -> Option<KernelIndex> {
        self.index.get(kernel).copied()
    }

    /// All kernels, by index.
    #[must_use]
    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }
}

/// A kernel graph with its kernels interned: what is scheduled.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Program {
    /// The kernel of each node.
    pub kernels: Vec<KernelIndex>,
    /// What each node waits for: (before, after) with before < after, sorted by after.
    pub edges: Vec<(u32, u32)>,
}

impl Program {
    /// A graph with its kernels interned by `kernel`; `None` where it does not know one.
    fn new(graph: &KernelGraph, mut kernel: impl FnMut(Kernel) -> Option<KernelIndex>) -> Option<Self> {
        let kernels = graph.node_weights().map(|node| kernel(node.kernel)).collect::<Option<_>>()?;
        let mut edges: Vec<(u32, u32)> =
            graph.raw_edges().iter().map(|e| (e.source().index() as u32, e.target().index() as u32)).collect();
        // Lowering adds a node after all that it waits for, so node order is topological; bounds walk the edges in it.
        edges.sort_unstable_by_key(|&(before, after)| (after, before));
        debug_assert!(edges.iter().all(|(before, after)| before < after), "kernels are added after those they wait for");
        Some(Self { kernels, edges })
    }

    /// A graph whose kernels may be new to `table`.
    fn interned(graph: &KernelGraph, table: &mut KernelTable) -> Self {
        Self::new(graph, |kernel| Some(table.intern(kernel))).unwrap_or_default()
    }
}

impl Program {
    /// The longest chain of kernels that wait for each other, each taking `time`: no schedule is shorter.
    #[must_use]
    pub fn critical_path(&self, mut time: impl FnMut(KernelIndex) -> Seconds) -> Seconds {
        let mut ends = vec![0.0f64; self.kernels.len()];
        let mut longest = 0.0f64;
        let mut edges = self.edges.iter().peekable();
        for (node, &kernel) in self.kernels.iter().enumerate() {
            let mut start = 0.0f64;
            while let Some((before, _)) = edges.next_if(|(_, after)| *after as usize == node) {
                start = start.max(ends[*before as usize]);
            }
            ends[node] = start + time(kernel).0;
            longest = longest.max(ends[node]);
        }
        Seconds(longest)
    }
}

/// One segment (embedding, layer, head) of a shape.
#[derive(Debug)]
pub struct SegmentShape {
    /// The lowered segment.
    pub segment: Segment,
    /// Its forward pass.
    pub forward: Program,
    /// Its backward pass with nothing recomputed.
    pub backward: Program,
    /// Its optimizer step, kernel after kernel.
    pub optimizer: Vec<KernelIndex>,
    /// The forward kernels of each operator, kernel after kernel.
    pub operators: Vec<Vec<KernelIndex>>,
    /// Which operators a backward pass may run again, and what that keeps.
    pub recompute: RecomputeSpace,
    /// Backward passes with recomputation, lowered when first asked for. They use the forward and backward passes' kernels only.
    recomputed: Mutex<BTreeMap<OperatorSet, Arc<Program>>>,
}

impl SegmentShape {
    fn new(segment: Segment, table: &mut KernelTable) -> Result<Self, ShapeError> {
        let recompute = RecomputeSpace::new(layer_tensors(&segment))
            .map_err(|source| ShapeError::Layer { segment: segment.name.clone(), source })?;
        let operators =
            segment.operators().iter().map(|op| op.forward.iter().map(|step| table.intern(step.kernel)).collect()).collect();
        Ok(Self {
            forward: Program::interned(&segment.forward(), table),
            backward: Program::interned(&segment.backward(&RecomputeSet::none()), table),
            optimizer: segment.optimizer_step().iter().map(|node| table.intern(node.kernel)).collect(),
            operators,
            recompute,
            segment,
            recomputed: Mutex::default(),
        })
    }

    /// The backward pass that runs `operators` again, made of kernels of the forward and the backward pass. `table` must be
    /// that of the shape; `None` where it is not.
    #[must_use]
    pub fn backward_with(&self, operators: OperatorSet, table: &KernelTable) -> Option<Arc<Program>> {
        let mut known = self.recomputed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(program) = known.get(&operators) {
            return Some(Arc::clone(program));
        }
        let program = Arc::new(Program::new(&self.segment.backward(&recompute_set(operators)), |kernel| table.find(&kernel))?);
        known.insert(operators, Arc::clone(&program));
        Some(program)
    }
}

/// The operators of a set as the workload names them.
#[must_use]
pub fn recompute_set(operators: OperatorSet) -> RecomputeSet {
    operators.iter().map(|index| OpId(index as u32)).collect()
}

/// The segment's tensors and operators as the memory optimiser sees them. Times are filled in by each chip.
fn layer_tensors(segment: &Segment) -> LayerTensors {
    let tensors = segment.tensors().iter().map(|tensor| SavedTensor {
        name: tensor.name.clone(),
        bytes: tensor.bytes,
        source: tensor.producer.map_or(TensorSource::LayerInput, |op| TensorSource::Operator(OperatorIndex(op.index()))),
        needed_by_backward: tensor.saved,
    });
    let indices = |ids: &[workloads::TensorId]| ids.iter().map(|id| TensorIndex(id.index())).collect();
    let operators = segment.operators().iter().map(|op| LayerOperator {
        name: op.name.clone(),
        forward: Seconds::ZERO,
        inputs: indices(&op.inputs),
        outputs: indices(&op.outputs),
        recomputable: true,
    });
    LayerTensors { tensors: tensors.collect(), operators: operators.collect() }
}

/// A model lowered for one tensor-parallel width and micro-batch.
#[derive(Debug)]
pub struct Shape {
    /// Tensor-parallel width.
    pub tensor_parallel: u32,
    /// Sequences per micro-batch.
    pub micro_batch: u32,
    /// The segments in pipeline order.
    pub segments: Vec<SegmentShape>,
    /// Bytes passed from stage to stage per micro-batch and device.
    pub boundary: Bytes,
}

impl Shape {
    /// Lowers `model` as `lowering` says.
    ///
    /// # Errors
    /// What [`TrainingGraph::new`] refuses.
    pub fn new(model: &Model, lowering: &Lowering, table: &mut KernelTable) -> Result<Self, ShapeError> {
        let graph = TrainingGraph::new(model, lowering)?;
        let boundary = graph.segments.iter().map(|s| s.boundary_bytes).max().unwrap_or_default();
        let segments = graph.segments.into_iter().map(|s| SegmentShape::new(s, table)).collect::<Result<_, _>>()?;
        Ok(Self { tensor_parallel: lowering.tensor_parallel, micro_batch: lowering.micro_batch as u32, segments, boundary })
    }
}
