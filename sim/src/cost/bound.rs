//! Lower bounds and latencies of a kernel, from cheapest to exact: at peak rates, with the traffic that the cores'
//! buffers force, and mapped.

use super::machine::{CoreUse, SpanResources};
use super::{CostModel, Span, attention, contraction, vector_core};
use crate::kernel::{Contraction, DataType, Epilogue, Kernel};
use crate::units::Seconds;

/// Relative rounding margin. Bounds are compared with times that were summed in another order.
const ROUNDING: f64 = 1e-9;

impl CostModel {
    /// Returns a lower bound on the latency over all mappings: the launch overhead plus the larger of the work at peak
    /// rate and the compulsory bytes over the device memory's bandwidth. Costs a few arithmetic operations. If a kernel
    /// library runs the product, the bound is its latency less a rounding margin.
    #[must_use]
    pub fn lower_bound(&self, kernel: &Kernel, span: Span) -> Seconds {
        self.lower_bound_on(kernel, self.view_of_span(span, kernel))
    }

    pub(super) fn lower_bound_on(&self, kernel: &Kernel, view: &SpanResources) -> Seconds {
        let m = &self.machine;
        // Library products are not mapped: their exact latency is as cheap as a bound.
        match (&view.library, kernel) {
            (Some(_), Kernel::Contraction(c)) => {
                return Seconds(
                    contraction::latency_of_contraction(self, view, c, None, f64::INFINITY) * (1.0 - ROUNDING),
                );
            }
            (Some(_), Kernel::Epilogue(e)) if e.summed <= 1 => {
                let time = contraction::latency_of_contraction(self, view, &e.contraction, Some(e), f64::INFINITY);
                return Seconds(time * (1.0 - ROUNDING));
            }
            _ => {}
        }
        let data_type = match kernel {
            Kernel::Contraction(c) => c.operand,
            Kernel::Epilogue(e) => e.contraction.operand,
            Kernel::FusedAttention(a) => a.operand,
            Kernel::Transfer(t) => return self.cost_of_transfer(t).latency,
            _ => DataType::Bf16,
        };
        let peak = 2.0 * m.peak_macs(view, data_type) * m.calibration.achieved_fraction_of(data_type);
        let compute = kernel.flops().as_f64() / peak;
        let memory = self.compulsory_time(view, kernel);
        Seconds(m.calibration.launch_overhead.0 + compute.max(memory))
    }

    fn compulsory_time(&self, view: &SpanResources, kernel: &Kernel) -> f64 {
        let Some(memory) = view.shared.first() else { return 0.0 };
        kernel.compulsory_bytes().as_f64()
            * if memory.single_port { memory.read.min(memory.write) } else { 0.5 * memory.read.min(memory.write) }
    }

    /// Returns a tighter lower bound over all mappings on one core or on all cores. It is the largest of
    /// [`Self::lower_bound`], the folds that the arrays cannot fill, and the operand traffic that the cores' buffers
    /// force through the shared level. Costs some dozens of arithmetic operations. For kernels that are not mapped it
    /// equals [`Self::lower_bound`].
    #[must_use]
    pub fn buffered_bound(&self, kernel: &Kernel) -> Seconds {
        self.buffered_bound_on(kernel, Span::OneCore).min(self.buffered_bound_on(kernel, Span::AllCores))
    }

    /// Returns [`Self::buffered_bound`] on this span alone.
    #[must_use]
    pub fn buffered_bound_on(&self, kernel: &Kernel, span: Span) -> Seconds {
        let on = |view: &SpanResources| self.lower_bound_on(kernel, view).0.max(self.unit_lower_bound(kernel, view));
        let paired = self.restrict_to_pairs(kernel, span).map_or(f64::INFINITY, on);
        Seconds(on(self.view_of_span(span, kernel)).min(paired) * (1.0 - ROUNDING))
    }

    /// Returns the resources of the paired cores for a contraction with an epilogue across all cores, on a chip with
    /// unequal numbers of tensor and vector cores. `None` in all other cases.
    fn restrict_to_pairs(&self, kernel: &Kernel, span: Span) -> Option<&SpanResources> {
        let pairs =
            self.machine.paired_resources().filter(|_| span == Span::AllCores && matches!(kernel, Kernel::Epilogue(_)));
        pairs.map(|(view, _)| view)
    }

    fn unit_lower_bound(&self, kernel: &Kernel, view: &SpanResources) -> f64 {
        match kernel {
            Kernel::Contraction(c) => contraction::lower_bound_of_contraction(self, view, c, None),
            Kernel::Epilogue(e) => contraction::lower_bound_of_contraction(self, view, &e.contraction, Some(e)),
            Kernel::FusedAttention(a) => attention::lower_bound_of_attention(self, view, a),
            _ => 0.0,
        }
    }

    /// Returns the time that a kernel's products take at
    /// [`Accelerator::cell_rate_limit`](crate::hardware::Accelerator), on any span; zero without a limit.
    #[must_use]
    pub fn time_at_cell_rate_limit(&self, kernel: &Kernel) -> Seconds {
        Seconds(self.machine.time_at_cell_rate_limit(kernel) * (1.0 - ROUNDING))
    }

    /// Returns the lower of the latencies of [`Self::cost_of_kernel`] on one core and on all cores, in a fraction of
    /// its time.
    #[must_use]
    pub fn fastest_latency(&self, kernel: &Kernel) -> Seconds {
        match kernel {
            Kernel::Contraction(c) => self.fastest_mapping(kernel, c, None),
            Kernel::Epilogue(e) => self.fastest_mapping(kernel, &e.contraction, Some(e)),
            Kernel::FusedAttention(_) => {
                let all = self.cost_of_kernel(kernel, Span::AllCores).latency;
                let one = self.view_of_span(Span::OneCore, kernel);
                if self.cannot_beat(kernel, one, all.0) {
                    all
                } else {
                    all.min(self.cost_of_kernel(kernel, Span::OneCore).latency)
                }
            }
            _ => self.latency_of_kernel(kernel, Span::OneCore).min(self.latency_of_kernel(kernel, Span::AllCores)),
        }
    }

    /// Returns the latency of [`Self::cost_of_kernel`], in a fraction of its time.
    #[must_use]
    pub fn latency_of_kernel(&self, kernel: &Kernel, span: Span) -> Seconds {
        let view = self.view_of_span(span, kernel);
        match kernel {
            Kernel::Contraction(c) => Seconds(contraction::latency_of_contraction(self, view, c, None, f64::INFINITY)),
            Kernel::Epilogue(e) => {
                let on = |view, known| contraction::latency_of_contraction(self, view, &e.contraction, Some(e), known);
                let best = on(view, f64::INFINITY);
                Seconds(self.restrict_to_pairs(kernel, span).map_or(best, |pairs| on(pairs, best)))
            }
            _ => vector_core::latency_of_vector_kernel(self, view, kernel)
                .map_or_else(|| self.cost_of_kernel(kernel, span).latency, Seconds),
        }
    }

    /// Returns the fastest latency over both spans. All cores come first: they are seldom slower than one core, so most
    /// of the single core's mappings are then pruned.
    fn fastest_mapping(&self, kernel: &Kernel, c: &Contraction, epilogue: Option<&Epilogue>) -> Seconds {
        let mut best = contraction::latency_of_contraction(
            self,
            self.view_of_span(Span::AllCores, kernel),
            c,
            epilogue,
            f64::INFINITY,
        );
        // If the numbers of tensor and vector cores differ, leaving the unpaired cores idle may be faster.
        if epilogue.is_some()
            && let Some((pairs, _)) = self.machine.paired_resources()
            && best > self.lower_bound_on(kernel, pairs).0
        {
            best = contraction::latency_of_contraction(self, pairs, c, epilogue, best);
        }
        let one = self.view_of_span(Span::OneCore, kernel);
        Seconds(if self.cannot_beat(kernel, one, best) {
            best
        } else {
            contraction::latency_of_contraction(self, one, c, epilogue, best)
        })
    }

    fn view_of_span(&self, span: Span, kernel: &Kernel) -> &SpanResources {
        self.machine.resources_of(span, cores_of_kernel(kernel))
    }

    /// True if no mapping on these resources takes less than `known` seconds.
    fn cannot_beat(&self, kernel: &Kernel, view: &SpanResources, known: f64) -> bool {
        self.lower_bound_on(kernel, view).0 * (1.0 - ROUNDING) >= known
            || self.unit_lower_bound(kernel, view) * (1.0 - ROUNDING) >= known
    }
}

/// Returns the kind of cores that a kernel occupies.
fn cores_of_kernel(kernel: &Kernel) -> CoreUse {
    match kernel {
        Kernel::Contraction(_) => CoreUse::Tensor,
        Kernel::Epilogue(_) | Kernel::FusedAttention(_) => CoreUse::Pair,
        _ => CoreUse::Vector,
    }
}
