//! What no plan of a model on a chip beats: from cheap to tight, nothing scheduled.

use crate::bench::Bench;
use crate::profile::{Profile, ProfileError};
use crate::shape::{KernelIndex, Program, SegmentShape, Shape};
use sim::cost::{CostModel, Span};
use sim::hardware::Accelerator;
use sim::kernel::{Collective, CollectiveKind, Group, Kernel};
use sim::network::Fabric;
use sim::units::{Bytes, Seconds};

/// How much a lower bound may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Contractions at their peak and compulsory traffic, vector work and collectives exactly: microseconds per kernel are too many.
    Peak,
    /// Besides, the folds that arrays cannot fill and what the cores' buffers make operands cross the shared one.
    Buffered,
    /// Every kernel mapped, and as fast as it can run.
    Mapped,
}

/// How long `bytes` of gradients take to be summed among `ranks` devices of a fabric.
pub(crate) fn gradient_sync(fabric: &Fabric, bytes: Bytes, ranks: u64, stride: u64) -> Seconds {
    let group = Group { ranks: ranks as u32, stride: stride as u32 };
    fabric.collective(&Collective { kind: CollectiveKind::AllReduce, bytes, group }).latency
}

/// What bounds a shape's step besides its segments' times, for each number of replicas.
///
/// With d replicas there are at most p = N / (t d) stages, never more than pieces of the chain. The slowest stage takes at least an equal share of
/// the chain's work W, and at least its largest piece; the stage with most gradients reduces at least an equal share of them, and the fullest
/// holds at least an equal share of the weights. Activations, recomputation and transfers between stages are left out.
#[derive(Debug)]
pub(crate) struct StepBound {
    /// Bytes of weights, gradients and optimizer states of the whole chain on the devices of one tensor-parallel rank.
    weights: f64,
    pipelines: Vec<Pipeline>,
}

/// The longest pipelines of one number of replicas.
#[derive(Debug)]
struct Pipeline {
    /// Micro-batches behind the first.
    behind: f64,
    stages: f64,
    /// Seconds to reduce an equal share of the gradients.
    sync: f64,
}

/// Least times of one piece of a segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub(crate) forward: Seconds,
    pub(crate) backward: Seconds,
    pub(crate) optimizer: Seconds,
}

impl StepBound {
    /// For a shape on `devices` devices of a fabric that take `global_batch` sequences per step.
    pub(crate) fn new(shape: &Shape, fabric: &Fabric, devices: u32, global_batch: u32) -> Self {
        let of = |f: fn(&SegmentShape) -> Bytes| {
            shape.segments.iter().map(|s| f(s).as_f64() * (s.segment.repeat as usize) as f64).sum::<f64>()
        };
        let gradient = of(|s| s.segment.gradient_bytes());
        let units = shape.segments.iter().map(|s| s.segment.repeat as usize).fold(0, usize::saturating_add) as u64;
        let width = u64::from(shape.tensor_parallel);
        let replicas = u64::from(global_batch / shape.micro_batch);
        let most = (u64::from(devices) / width).min(replicas);
        let pipeline = |d: u64| {
            let stages = (u64::from(devices) / (width * d)).min(units) as f64;
            // Rounded down: a bound must not lose a byte to rounding.
            let sync = if d > 1 { gradient_sync(fabric, Bytes((gradient / stages) as u64), d, width) } else { Seconds::ZERO };
            Pipeline { behind: (replicas / d - 1) as f64, stages, sync: sync.0 }
        };
        Self {
            weights: of(|s| s.segment.weight_bytes() + s.segment.gradient_bytes() + s.segment.optimizer_bytes()),
            pipelines: (1..=most).filter(|d| replicas.is_multiple_of(*d)).map(pipeline).collect(),
        }
    }

    /// A step time that no plan beats on devices of `hbm` bytes, in closed form: infinite where there is no plan.
    pub(crate) fn step(&self, shape: &Shape, hbm: Bytes, times: impl Iterator<Item = Times> + Clone) -> Seconds {
        let sum = |f: fn(&Times) -> f64| {
            shape.segments.iter().zip(times.clone()).map(|(s, t)| f(&t) * (s.segment.repeat as usize) as f64).sum::<f64>()
        };
        let piece = |t: &Times| t.forward.0 + t.backward.0;
        let work = sum(piece);
        let optimizer = sum(|t| t.optimizer.0);
        let largest = times.clone().map(|t| piece(&t)).fold(0.0, f64::max);
        let step = |p: &Pipeline| {
            if self.weights / p.stages > hbm.as_f64() {
                return f64::INFINITY;
            }
            let slowest = (work / p.stages).max(largest);
            p.behind * slowest + work + p.sync.max(optimizer / p.stages)
        };
        Seconds(self.pipelines.iter().map(step).fold(f64::INFINITY, f64::min))
    }

    /// The same from the passes as scheduled on a chip, nothing recomputed.
    pub(crate) fn scheduled(&self, shape: &Shape, hbm: Bytes, profile: &Profile) -> Seconds {
        let times =
            profile.segments.iter().map(|s| Times { forward: s.forward.time, backward: s.backward.time, optimizer: s.optimizer });
        self.step(shape, hbm, times)
    }
}

/// Lower bounds of kernels on one chip, found once each; `NAN` where not yet found.
#[derive(Debug)]
struct KernelBounds<'a> {
    bench: &'a Bench,
    peak: Vec<f64>,
    buffered: Vec<f64>,
    exact: Vec<f64>,
}

impl<'a> KernelBounds<'a> {
    fn new(bench: &'a Bench) -> Self {
        let unknown = vec![f64::NAN; bench.table.kernels().len()];
        Self { bench, peak: unknown.clone(), buffered: unknown.clone(), exact: unknown }
    }

    /// The least time of a kernel however it runs.
    fn kernel(&mut self, model: &CostModel, index: KernelIndex, detail: Detail) -> Seconds {
        let known = match detail {
            Detail::Peak => &self.peak,
            Detail::Buffered => &self.buffered,
            Detail::Mapped => &self.exact,
        };
        let known = known[index as usize];
        if !known.is_nan() {
            return Seconds(known);
        }
        let kernel = &self.bench.table.kernels()[index as usize];
        let mapped = matches!(kernel, Kernel::Contraction(_) | Kernel::Epilogue(_) | Kernel::FusedAttention(_));
        let bound = match (kernel, detail) {
            (Kernel::Collective(_), _) => self.bench.collectives[index as usize],
            (_, Detail::Peak) if mapped => {
                model.lower_bound(kernel, Span::AllCores).min(model.lower_bound(kernel, Span::OneCore))
            }
            (_, Detail::Buffered) if mapped => model.buffered_bound(kernel),
            _ => model.fastest(kernel),
        };
        match detail {
            Detail::Peak if mapped => self.peak[index as usize] = bound.0,
            Detail::Buffered if mapped => self.buffered[index as usize] = bound.0,
            Detail::Mapped if mapped => self.exact[index as usize] = bound.0,
            // What is not mapped has one bound only, the exact one.
            _ => [&mut self.peak, &mut self.buffered, &mut self.exact].into_iter().for_each(|b| b[index as usize] = bound.0),
        }
        bound
    }

    /// A step time that no plan of a shape beats: each pass takes at least its critical path, every kernel at its own lower bound; nothing is
    /// recomputed and everything fits.
    fn step(&mut self, model: &CostModel, index: usize, detail: Detail) -> Seconds {
        let shape = &self.bench.shapes[index];
        let pass = |bounds: &mut Self, program: &Program| program.critical_path(|k| bounds.kernel(model, k, detail));
        let times: Vec<Times> = shape
            .segments
            .iter()
            .map(|s| Times {
                forward: pass(self, &s.forward),
                backward: pass(self, &s.backward),
                optimizer: s.optimizer.iter().map(|&k| self.kernel(model, k, detail)).sum(),
            })
            .collect();
        let hbm = model.accelerator().memory_capacity();
        self.bench.bounds[index].step(shape, hbm, times.into_iter())
    }
}

/// A shape with a bound of its step time.
#[derive(Debug, Clone, Copy)]
struct Bounded {
    /// From its peaks, or mapped: what is told.
    bound: f64,
    /// What decides its turn: no more than the bound of the shape mapped.
    turn: f64,
    shape: usize,
    detail: Detail,
}

/// The shapes of a bench in the order of their bounds on a chip. Mapping every kernel of a shape costs far more than bounding it from its
/// peaks and buffers, so a shape is mapped only once no other has a smaller bound.
pub(crate) struct ShapeOrder<'a> {
    bounds: KernelBounds<'a>,
    waiting: Vec<Bounded>,
}

impl<'a> ShapeOrder<'a> {
    pub(crate) fn new(bench: &'a Bench, model: &CostModel) -> Self {
        let mut bounds = KernelBounds::new(bench);
        let bounded = |shape: usize| {
            let bound = bounds.step(model, shape, Detail::Peak).0;
            Bounded { bound, turn: bound, shape, detail: Detail::Peak }
        };
        let waiting = (0..bench.shapes.len()).map(bounded).collect();
        Self { bounds, waiting }
    }

    /// The least bound of all shapes waiting, with every kernel of that shape mapped; it is taken out.
    pub(crate) fn next(&mut self, model: &CostModel) -> Option<(Seconds, usize)> {
        loop {
            let order = |a: &Bounded, b: &Bounded| a.turn.total_cmp(&b.turn).then(a.shape.cmp(&b.shape));
            let at = (0..self.waiting.len()).min_by(|&a, &b| order(&self.waiting[a], &self.waiting[b]))?;
            let least = self.waiting[at];
            self.waiting[at] = match least.detail {
                Detail::Peak => {
                    let buffered = self.bounds.step(model, least.shape, Detail::Buffered).0;
                    Bounded { turn: buffered.max(least.bound), detail: Detail::Buffered, ..least }
                }
                Detail::Buffered => {
                    let bound = self.bounds.step(model, least.shape, Detail::Mapped).0.max(least.bound);
                    Bounded { bound, turn: bound, detail: Detail::Mapped, ..least }
                }
                Detail::Mapped => {
                    self.waiting.swap_remove(at);
                    return Some((Seconds(least.bound), least.shape));
                }
            };
        }
    }

    /// The least bound from the peaks alone.
    fn least_peak(&self) -> Seconds {
        Seconds(self.waiting.iter().map(|w| w.bound).fold(f64::INFINITY, f64::min))
    }
}

/// A step time that no plan of the bench's model on `chip` beats. Nothing is scheduled; with [`Detail::Peak`] nothing is mapped either.
///
/// # Errors
/// A chip that the cost model cannot use.
pub fn step_bound(bench: &Bench, chip: Accelerator, detail: Detail) -> Result<Seconds, ProfileError> {
    let model = CostModel::new(chip)?;
    let mut order = ShapeOrder::new(bench, &model);
    Ok(match detail {
        Detail::Peak => order.least_peak(),
        Detail::Buffered | Detail::Mapped => order.next(&model).map_or(Seconds(f64::INFINITY), |(bound, _)| bound),
    })
}
