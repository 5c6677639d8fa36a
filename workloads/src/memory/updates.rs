//! Kernels of a parameter update besides the optimizer's own pass: projections, decompositions, and copies to the
//! memories that hold gradients and states.

use super::parameters::{NumberWidths, ParameterTensors};
use super::policy::{OffloadTarget, ProjectionBasis, Representation};
use sim::kernel::{Contraction, DataType, Direction, Elementwise, ElementwiseFunction, Kernel, Transfer, TransferLink};
use sim::units::Bytes;

/// Kernels and how often a step runs each.
#[derive(Default)]
struct ExtraKernels(Vec<(Kernel, f64)>);

impl ExtraKernels {
    fn add_runs(&mut self, kernel: Kernel, times: f64) {
        match self.0.iter_mut().find(|(known, _)| *known == kernel) {
            Some((_, sum)) => *sum += times,
            None => self.0.push((kernel, times)),
        }
    }

    /// Adds a transfer, unless it has no bytes.
    fn add_transfer(&mut self, transfer: Transfer) {
        if transfer.bytes > Bytes::ZERO {
            self.add_runs(Kernel::Transfer(transfer), 1.0);
        }
    }
}

impl ParameterTensors {
    /// Returns the extra kernels, and how often a step runs each. A decomposition runs once in `period` steps.
    pub(crate) fn extra_update_kernels(
        &self,
        widths: &NumberWidths,
        operand: DataType,
        period: u64,
    ) -> Vec<(Kernel, f64)> {
        let mut extra = ExtraKernels::default();
        self.add_projection_kernels(&mut extra, operand, period);
        self.add_copy_kernels(&mut extra, widths);
        let [host, storage] = self.update_link_bytes(widths);
        let links = [
            Transfer { link: TransferLink::Host, bytes: host },
            Transfer { link: TransferLink::Storage, bytes: storage },
            Transfer { link: TransferLink::HostMemory, bytes: self.host_update_bytes(widths) },
        ];
        links.into_iter().for_each(|transfer| extra.add_transfer(transfer));
        extra.0
    }

    /// Adds the kernels that project gradients down and updates back up.
    fn add_projection_kernels(&self, extra: &mut ExtraKernels, operand: DataType, period: u64) {
        for (matrix, forms) in self.optimizer_state_forms() {
            let [side, other] = matrix.projected_and_other_side();
            let [rows, columns] = matrix.undivided_sides();
            let (small, large) = (rows.min(columns), rows.max(columns));
            let product =
                |m, n, k| Kernel::Contraction(Contraction { batch: matrix.copies, m, n, k, operand, result: operand });
            for form in forms {
                let Representation::Projected { rank, basis } = form else { continue };
                let rank = matrix.rank_within_sides(*rank, *basis).unwrap_or(0);
                match basis {
                    // The gradient is projected down, and the update back up.
                    ProjectionBasis::SingularVectors => {
                        extra.add_runs(product(rank, other, side), 1.0);
                        extra.add_runs(product(side, other, rank), 1.0);
                        // Every device that holds a part decomposes the whole gradient with 6 m n^2 + 20 n^3 operations
                        // (Golub and Van Loan, Matrix Computations, table 8.6.1: R-SVD). The decomposition is modelled
                        // as a product with as many operations.
                        let depth = 3 * small + 10 * small * small / large.max(1);
                        extra.add_runs(product(small, large, depth), 1.0 / period.max(1) as f64);
                    }
                    ProjectionBasis::Seed => extra.add_runs(product(matrix.rows, matrix.columns, rank), 1.0),
                }
            }
        }
    }

    /// Adds the kernels that read the further copies of trained weights.
    fn add_copy_kernels(&self, extra: &mut ExtraKernels, widths: &NumberWidths) {
        let statics = self.static_bytes(widths).own;
        let copies = statics.copies;
        let [here, host, nvme] = [copies.device, copies.host, copies.nvme].map(|placed| placed.per_device_count());
        if here + host + nvme > 0 {
            // g += lambda (x - x0) in one pass: a difference, a product and a sum per element. The pass reads weights,
            // their copy and gradients, and writes gradients.
            let numbers = statics.updated.per_device_count();
            let (weight, gradient) = (widths.per.weight * numbers, widths.per.gradient * numbers);
            let pass = Elementwise {
                function: ElementwiseFunction::Add,
                direction: Direction::Forward,
                elements: 3 * numbers,
                read: Bytes(here + host + nvme) + weight + gradient,
                written: gradient,
            };
            extra.add_runs(Kernel::Elementwise(pass), 1.0);
        }
        extra.add_transfer(Transfer { link: TransferLink::Host, bytes: Bytes(host) });
        extra.add_transfer(Transfer { link: TransferLink::Storage, bytes: Bytes(nvme) });
    }

    /// Returns the bytes that the host's processors read and write in host memory to update the offloaded parameters.
    /// They read and write states and master weights, read gradients and write weights. Data from storage passes
    /// through host memory the same way.
    fn host_update_bytes(&self, widths: &NumberWidths) -> Bytes {
        let all = self.static_bytes(widths).own;
        let away = |p: &super::BytesByPlace| p.host.per_device_count() + p.nvme.per_device_count();
        let total = |p: &super::BytesByPlace| p.device.per_device_count() + away(p);
        let states = away(&all.states) + away(&all.masters);
        let share = states as f64 / (total(&all.states) + total(&all.masters)).max(1) as f64;
        let numbers = all.updated.per_device_count() as f64 * share;
        Bytes(2 * states + (numbers * (widths.per.weight.0 + widths.per.gradient.0) as f64) as u64)
    }

    /// Returns the bytes that an update copies over the host's link and over storage's, in both directions: gradients
    /// to the states, and weights back. States in storage are also read and written over its link. The host updates its
    /// own memory in place. Gradients that micro-batches already sent to the host are not copied again. Weights that
    /// micro-batches fetch from the host are not copied back.
    fn update_link_bytes(&self, widths: &NumberWidths) -> [Bytes; 2] {
        let all = self.static_bytes(widths).own;
        let (weight, gradient) = (widths.per.weight.0, widths.per.gradient.0);
        let total = |p: &super::BytesByPlace| {
            p.device.per_device_count() + p.host.per_device_count() + p.nvme.per_device_count()
        };
        let hosted = |p: &super::BytesByPlace| p.host.per_device_count() as f64 / total(p).max(1) as f64;
        // Gradients that are consumed one after the other do not count as resident on the device.
        let made = (all.exchanged.per_device_count() * gradient).max(1) as f64;
        let hosted_gradients = (all.gradients.host.per_device_count() as f64 / made).min(1.0);
        let of = |away: OffloadTarget| {
            let held = |placed: &super::BytesByPlace| match away {
                OffloadTarget::Host => placed.host.per_device_count(),
                OffloadTarget::Nvme => placed.nvme.per_device_count(),
            };
            let states = held(&all.states) + held(&all.masters);
            if states == 0 {
                return Bytes::ZERO;
            }
            let share = states as f64 / (total(&all.states) + total(&all.masters)).max(1) as f64;
            let numbers = all.updated.per_device_count() as f64 * share;
            let copied =
                numbers * (weight as f64 * (1.0 - hosted(&all.weights)) + gradient as f64 * (1.0 - hosted_gradients));
            let twice = if away == OffloadTarget::Nvme { 2 * states } else { 0 };
            Bytes(copied as u64 + twice)
        };
        [of(OffloadTarget::Host), of(OffloadTarget::Nvme)]
    }
}
