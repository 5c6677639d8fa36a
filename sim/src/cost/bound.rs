//! How long a kernel takes at least, from cheap to exact: at its peaks, with what its buffers make it move, mapped.

use super::machine::{Cores, View};
use super::{CostModel, Span, attention, contraction, vector_core};
use crate::kernel::{Contraction, DataType, Elementwise, Kernel};
use crate::units::Seconds;

/// Bounds are compared with times that were added up in another order: more than rounding can come to.
const ROUNDING: f64 = 1e-9;

impl CostModel {
    /// A time below which no mapping of the kernel can come: the larger of the arrays' (or lanes') work at peak and the
    /// compulsory bytes over the device memory's bandwidth, plus the launch overhead. A few arithmetic operations.
    #[must_use]
    pub fn lower_bound(&self, kernel: &Kernel, span: Span) -> Seconds {
        self.lower_bound_on(kernel, self.view(span, kernel))
    }

    pub(super) fn lower_bound_on(&self, kernel: &Kernel, view: &View) -> Seconds {
        let m = &self.machine;
        // Products of a library are not mapped: what they take is said as quickly as a bound.
        match (&view.library, kernel) {
            (Some(_), Kernel::Contraction(c)) => {
                return Seconds(contraction::latency(self, view, c, None, f64::INFINITY) * (1.0 - ROUNDING));
            }
            (Some(_), Kernel::Epilogue(e)) => {
                let time = contraction::latency(self, view, &e.contraction, Some(&e.elementwise), f64::INFINITY);
                return Seconds(time * (1.0 - ROUNDING));
            }
            _ => {}
        }
        let data_type = match kernel {
            Kernel::Contraction(c) => c.operand,
            Kernel::Epilogue(e) => e.contraction.operand,
            Kernel::FusedAttention(a) => a.operand,
            Kernel::Transfer(t) => return self.transfer(t).latency,
            _ => DataType::Bf16,
        };
        let peak = 2.0 * m.peak_macs(view, data_type) * m.calibration.tensor_achieved_fraction;
        let compute = kernel.flops().as_f64() / peak;
        let memory = self.compulsory_time(view, kernel);
        Seconds(m.calibration.launch_overhead.0 + compute.max(memory))
    }

    fn compulsory_time(&self, view: &View, kernel: &Kernel) -> f64 {
        let Some(memory) = view.shared.first() else { return 0.0 };
        kernel.compulsory_bytes().as_f64()
            * if memory.single_port { memory.read.min(memory.write) } else { 0.5 * memory.read.min(memory.write) }
    }

    /// A time below which no mapping of the kernel can come on one core or on all of them: [`Self::lower_bound`], the folds that the arrays
    /// cannot fill, and what the cores' buffers make the operands cross the shared one. Some dozens of arithmetic operations; for
    /// kernels that are not mapped, no better than [`Self::lower_bound`].
    #[must_use]
    pub fn buffered_bound(&self, kernel: &Kernel) -> Seconds {
        self.buffered_bound_on(kernel, Span::OneCore).min(self.buffered_bound_on(kernel, Span::AllCores))
    }

    /// [`Self::buffered_bound`] on one core or on all of them alone.
    #[must_use]
    pub fn buffered_bound_on(&self, kernel: &Kernel, span: Span) -> Seconds {
        let on = |view: &View| self.lower_bound_on(kernel, view).0.max(self.unit_bound(kernel, view));
        let paired = self.paired(kernel, span).map_or(f64::INFINITY, on);
        Seconds(on(self.view(span, kernel)).min(paired) * (1.0 - ROUNDING))
    }

    /// With more cores of one kind than of the other, the odd ones may stand idle, as in `cost`.
    fn paired(&self, kernel: &Kernel, span: Span) -> Option<&View> {
        let pairs = self.machine.pairs().filter(|_| span == Span::AllCores && matches!(kernel, Kernel::Epilogue(_)));
        pairs.map(|(view, _)| view)
    }

    fn unit_bound(&self, kernel: &Kernel, view: &View) -> f64 {
        match kernel {
            Kernel::Contraction(c) => contraction::bound(self, view, c, None),
            Kernel::Epilogue(e) => contraction::bound(self, view, &e.contraction, Some(&e.elementwise)),
            Kernel::FusedAttention(a) => attention::bound(self, view, a),
            _ => 0.0,
        }
    }

    /// The lower of the latencies of [`Self::cost`] on one core and on all: the same number in a fraction of the time.
    #[must_use]
    pub fn fastest(&self, kernel: &Kernel) -> Seconds {
        match kernel {
            Kernel::Contraction(c) => self.fastest_mapping(kernel, c, None),
            Kernel::Epilogue(e) => self.fastest_mapping(kernel, &e.contraction, Some(&e.elementwise)),
            Kernel::FusedAttention(_) => {
                let all = self.cost(kernel, Span::AllCores).latency;
                let one = self.view(Span::OneCore, kernel);
                if self.beaten(kernel, one, all.0) { all } else { all.min(self.cost(kernel, Span::OneCore).latency) }
            }
            _ => self.latency(kernel, Span::OneCore).min(self.latency(kernel, Span::AllCores)),
        }
    }

    /// The latency of [`Self::cost`]: the same number in a fraction of the time.
    #[must_use]
    pub fn latency(&self, kernel: &Kernel, span: Span) -> Seconds {
        let view = self.view(span, kernel);
        match kernel {
            Kernel::Contraction(c) => Seconds(contraction::latency(self, view, c, None, f64::INFINITY)),
            Kernel::Epilogue(e) => {
                let on = |view, known| contraction::latency(self, view, &e.contraction, Some(&e.elementwise), known);
                let best = on(view, f64::INFINITY);
                Seconds(self.paired(kernel, span).map_or(best, |pairs| on(pairs, best)))
            }
            _ => vector_core::latency(self, view, kernel).map_or_else(|| self.cost(kernel, span).latency, Seconds),
        }
    }

    /// All cores first: they are seldom slower than one, whose mappings then are passed over.
    fn fastest_mapping(&self, kernel: &Kernel, c: &Contraction, epilogue: Option<&Elementwise>) -> Seconds {
        let mut best = contraction::latency(self, self.view(Span::AllCores, kernel), c, epilogue, f64::INFINITY);
        // With more cores of one kind than of the other, the odd ones may stand idle, as in `cost`.
        if epilogue.is_some()
            && let Some((pairs, _)) = self.machine.pairs()
            && best > self.lower_bound_on(kernel, pairs).0
        {
            best = contraction::latency(self, pairs, c, epilogue, best);
        }
        let one = self.view(Span::OneCore, kernel);
        Seconds(if self.beaten(kernel, one, best) { best } else { contraction::latency(self, one, c, epilogue, best) })
    }

    fn view(&self, span: Span, kernel: &Kernel) -> &View {
        self.machine.view(span, cores(kernel))
    }

    /// Whether no mapping on a view takes less than `known` seconds.
    fn beaten(&self, kernel: &Kernel, view: &View, known: f64) -> bool {
        self.lower_bound_on(kernel, view).0 * (1.0 - ROUNDING) >= known
            || self.unit_bound(kernel, view) * (1.0 - ROUNDING) >= known
    }
}

/// The cores that a kernel runs on.
fn cores(kernel: &Kernel) -> Cores {
    match kernel {
        Kernel::Contraction(_) => Cores::Tensor,
        Kernel::Epilogue(_) | Kernel::FusedAttention(_) => Cores::Pair,
        _ => Cores::Vector,
    }
}
