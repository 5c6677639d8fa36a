//! The optimizer's update on one device: its kernels, their time and their energy.

use crate::pass::chip_times::ChipTimes;
use crate::pass::profile::StepProfile;
use sim::kernel::{Direction, Elementwise, ElementwiseFunction, Kernel};
use sim::units::{Bytes, Joules, Seconds};

impl ChipTimes {
    /// Returns the time of the optimizer's update of `parameters` on one device, with the stack's passes over the
    /// gradients.
    pub fn time_of_update(&mut self, profile: &StepProfile, parameters: u64) -> Seconds {
        self.update_kernels(profile, parameters)
            .iter()
            .map(|(kernel, times)| self.time_of_kernel(kernel) * *times)
            .sum()
    }

    /// Returns the energy of [`Self::time_of_update`], without static power.
    pub(crate) fn energy_of_update(&mut self, profile: &StepProfile, parameters: u64) -> Joules {
        self.update_kernels(profile, parameters)
            .iter()
            .map(|(kernel, times)| self.energy_of_kernel(kernel) * *times)
            .sum()
    }

    /// Returns the kernels of an update, and how often a step runs each.
    fn update_kernels(&self, profile: &StepProfile, parameters: u64) -> Vec<(Kernel, f64)> {
        if parameters == 0 {
            return Vec::new();
        }
        let mut kernels = profile.layer_segment.update_kernels(parameters);
        if self.stack().kernels.gradient_reads + self.stack().kernels.gradient_writes == 0.0 {
            return kernels;
        }
        let size = profile.gradient_bytes * parameters;
        let pass = |times: f64| Bytes((size.as_f64() * times) as u64);
        let passes = Kernel::Elementwise(Elementwise {
            function: ElementwiseFunction::Mul,
            direction: Direction::Forward,
            elements: parameters,
            read: pass(self.stack().kernels.gradient_reads),
            written: pass(self.stack().kernels.gradient_writes),
        });
        kernels.push((passes, 1.0));
        kernels
    }
}
