//! The optimizer's update on one device: its kernels, their time and their energy.

use crate::pass::chip_times::ChipTimes;
use crate::pass::profile::StepProfile;
use sim::kernel::{Direction, Elementwise, ElementwiseFunction, Kernel, TransferLink};
use sim::units::{Bytes, Joules, Seconds};

impl ChipTimes {
    /// Returns the time of the optimizer's update of `parameters` on one device, with the stack's extra passes over the
    /// gradients. An overlapped update takes as long as its busiest resource; otherwise the resources work in sequence.
    pub fn time_of_update(&mut self, profile: &StepProfile, parameters: u64) -> Seconds {
        let kernels = self.update_kernels(profile, parameters);
        let mut busy: Vec<(Option<TransferLink>, Seconds)> = Vec::new();
        for (kernel, times) in &kernels {
            let link = match kernel {
                Kernel::Transfer(copy) => Some(copy.link),
                _ => None,
            };
            let time = self.time_of_kernel(kernel) * *times;
            match busy.iter_mut().find(|(known, _)| *known == link) {
                Some((_, sum)) => *sum += time,
                None => busy.push((link, time)),
            }
        }
        let times = busy.into_iter().map(|(_, time)| time);
        if profile.layer_segment.overlapped_update { times.fold(Seconds::ZERO, Seconds::max) } else { times.sum() }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::SoftwareStack;
    use crate::technique_tests::technique_plan;
    use sim::hardware::Accelerator;
    use sim::network::Fabric;
    use workloads::{Layout, Model};

    #[test]
    fn an_overlapped_update_takes_as_long_as_its_busiest_resource() {
        let stack = SoftwareStack::load("megatron").unwrap();
        let model = Model { layers: 2, ..Model::load("llama2-7b").unwrap() };
        let fabric = Fabric::built_in("nvlink4_node").unwrap().for_devices(1).unwrap();
        let mut chip = ChipTimes::new(&Accelerator::built_in("h200").unwrap(), &stack).unwrap();
        let mut update = |technique: &str| {
            let plan = technique_plan(Layout::default(), 1, technique);
            let profile = chip.profile_plan(&model, &fabric, &plan).unwrap();
            chip.time_of_update(&profile, 100_000_000).0
        };
        let [plain, overlapped] =
            ["optimizer-offload,fraction=0.5", "optimizer-offload,fraction=0.5,overlap=1"].map(&mut update);
        // The host streams 28 bytes of half the numbers at 76.8 GB/s; the rest is shorter.
        assert!((overlapped / (28.0 * 50e6 / 76.8e9) - 1.0).abs() < 1e-3, "{overlapped}");
        assert!(overlapped < plain && plain < 3.0 * overlapped, "{plain} {overlapped}");
        let none = update("optimizer-offload,fraction=0");
        assert!((none / update("") - 1.0).abs() < 1e-6);
    }
}
