#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use super::*;
use crate::hardware::{ChipDocument, Constants, FieldValue, template_names};
use proptest::prelude::*;

fn chip(name: &str) -> Accelerator {
    ChipDocument::of_built_in_chip(name).unwrap().strip_measured(true).build_accelerator().unwrap()
}

fn power(chip: &Accelerator) -> f64 {
    sustained_power(chip).peak_power().0
}

/// Operating points of chips on sale: MHz and volts, highest first.
#[test]
fn the_voltage_is_within_eight_per_cent_of_published_operating_points() {
    let mt8192 = [(866.0, 0.8), (724.0, 0.725), (647.0, 0.693_75), (523.0, 0.656_25), (358.0, 0.606_25)];
    let rk3399 = [(800.0, 1.1), (600.0, 0.925), (500.0, 0.875), (400.0, 0.825), (297.0, 0.8)];
    let s922x = [(1896.0, 0.981), (1704.0, 0.861), (1512.0, 0.791), (1398.0, 0.761), (1200.0, 0.731), (1000.0, 0.731)];
    let constants = Constants::nominal();
    for (node, points) in [(ProcessNode::N7, &mt8192[..]), (ProcessNode::N28, &rk3399), (ProcessNode::N16, &s922x)] {
        let (clock, voltage) = points[0];
        for (f, v) in points {
            let (modelled, measured) =
                (constants.voltage_fraction(node, Hertz(clock * 1e6), Hertz(f * 1e6)), v / voltage);
            assert!(
                (modelled / measured - 1.0).abs() < 0.08,
                "{node} at {f} MHz: {modelled:.3}, measured {measured:.3}"
            );
        }
    }
}

#[test]
fn above_the_floor_power_falls_with_clock_and_voltage_and_below_it_with_the_clock_alone() {
    let chip = chip("tpu_v4");
    let dynamic = |part: f64| {
        sustained_power(&lower_clock(&chip, Hertz(chip.clock.0 * part))).contraction - chip.energy.static_power
    };
    // HBM's power does not follow the clock; it is at most a twentieth of a contraction's.
    let part = |part: f64| dynamic(part).0 / dynamic(1.0).0;
    let square = |clock: f64| clock * clock.powf(2.0 * Constants::nominal().process.voltage_exponent);
    assert!((part(0.8) - square(0.8)).abs() < 0.02, "{} {}", part(0.8), square(0.8));
    let floor = Constants::nominal().process.voltage_floor.at_node(ProcessNode::N7);
    assert!((part(0.4) - 0.4 * floor * floor).abs() < 0.02, "{}", part(0.4));
    assert!((part(0.4) / part(0.5) - 0.8).abs() < 0.01);
}

/// At a given clock a chip takes the same energies whatever clock it is designed for. This holds for TPU v4's stated
/// energies and for those of a node.
#[test]
fn at_one_clock_a_chip_takes_one_energy() {
    let base = ChipDocument::of_built_in_chip("tpu_v4").unwrap().strip_measured(true);
    for (node, mhz) in [("n7", 850.0), ("n5", 1050.0), ("n3", 1400.0), ("n16", 700.0)] {
        let designed = |designed: f64| {
            let mut document = base.clone();
            for (key, value) in [("area.node", node), ("energy.node", node)] {
                document.set_field(key, &FieldValue::Word(value.to_owned())).unwrap();
            }
            document.set_field("clock_mhz", &FieldValue::Number(designed)).unwrap();
            lower_clock(&document.build_accelerator().unwrap(), Hertz(mhz * 1e6))
        };
        let (own, faster) = (designed(mhz), designed(1750.0));
        assert_eq!(own.lowered, None);
        let near = |a: Joules, b: Joules| assert!((a.0 / b.0 - 1.0).abs() < 1e-9, "{node}, {mhz} MHz: {a:?} {b:?}");
        near(own.energy.per_mac.bf16.unwrap(), faster.energy.per_mac.bf16.unwrap());
        near(own.energy.per_vector_operation, faster.energy.per_vector_operation);
        for (a, b) in own.on_chip.iter().zip(&faster.on_chip) {
            near(a.read_energy_per_byte, b.read_energy_per_byte);
            near(a.write_energy_per_byte, b.write_energy_per_byte);
        }
    }
}

#[test]
fn what_follows_the_clock_is_slowed_and_the_rest_stays() {
    let chip = chip("tpu_v4");
    let slow = lower_clock(&chip, Hertz(chip.clock.0 / 2.0));
    assert_eq!(
        slow.peak_flops(crate::kernel::DataType::Bf16).unwrap().0 * 2.0,
        chip.peak_flops(crate::kernel::DataType::Bf16).unwrap().0
    );
    for (before, after) in chip.on_chip.iter().zip(&slow.on_chip) {
        assert_eq!(after.read_bandwidth.0 * 2.0, before.read_bandwidth.0);
        assert_eq!(after.write_bandwidth.0 * 2.0, before.write_bandwidth.0);
        assert_eq!(after.latency.0, before.latency.0 * 2.0);
        assert!(after.read_energy_per_byte < before.read_energy_per_byte);
    }
    assert_eq!((&slow.hbm, slow.energy.static_power), (&chip.hbm, chip.energy.static_power));
    let area = |chip: &Accelerator| crate::hardware::chip_area(chip).unwrap().total_area().0;
    assert!((area(&slow) / area(&chip) - 1.0).abs() < 1e-12);
    assert_eq!(slow.lowered.unwrap().from, chip.clock);
}

/// Planar nodes have a voltage floor relative to the designed voltage, which must not be applied to a lowered one.
#[test]
fn a_chip_that_is_lowered_in_steps_is_the_chip_lowered_once() {
    for name in template_names() {
        let chip = chip(name);
        let at = |part: f64| Hertz(chip.clock.0 * part);
        let (steps, once) = (lower_clock(&lower_clock(&chip, at(0.6)), at(0.42)), lower_clock(&chip, at(0.42)));
        assert_eq!((steps.clock, steps.lowered.unwrap().from), (once.clock, chip.clock));
        assert_eq!(lowest_clock(&steps), lowest_clock(&chip));
        let (steps, once) = (sustained_power(&steps).peak_power().0, sustained_power(&once).peak_power().0);
        assert!((steps / once - 1.0).abs() < 1e-9, "{name}: {steps} W, {once} W");
    }
}

#[test]
fn a_limit_that_is_not_exceeded_changes_nothing() {
    for name in template_names() {
        let chip = chip(name);
        assert_eq!(lower_clock_to_power(&chip, sustained_power(&chip).peak_power()), Some(chip.clone()), "{name}");
        assert_eq!(lower_clock_to_power(&chip, Watts(f64::INFINITY)), Some(chip), "{name}");
    }
}

#[test]
fn a_lowered_clock_in_a_file_is_the_chip_lowered() {
    let chip = chip("tpu_v4");
    let lowered = lower_clock_to_power(&chip, Watts(150.0)).unwrap();
    let mut document = ChipDocument::of_built_in_chip("tpu_v4").unwrap().strip_measured(true);
    document.set_field("lowered_clock_mhz", &FieldValue::Number(lowered.clock.0 / 1e6)).unwrap();
    assert_eq!(document.build_accelerator().unwrap(), lowered);
    assert_eq!(document.clone().strip_measured(true).build_accelerator().unwrap(), chip, "another chip has its own");
    for (wrong, limit) in [(1051.0, "409.191176"), (409.0, "409.191176"), (0.0, "1050")] {
        document.set_field("lowered_clock_mhz", &FieldValue::Number(wrong)).unwrap();
        let error = document.build_accelerator().unwrap_err().to_string();
        assert!(error.contains(&format!("lowered_clock_mhz = {wrong}")) && error.contains(limit), "{error}");
    }
}

proptest! {
    #[test]
    fn the_clock_is_the_highest_within_the_limit_and_grows_with_it(
        name in prop::sample::select(template_names().to_vec()), part in 0.05..1.2_f64, more in 1.0..1.5_f64,
    ) {
        let chip = chip(name);
        let limit = power(&chip) * part;
        match lower_clock_to_power(&chip, Watts(limit)) {
            None => {
                let lowest = lower_clock(&chip, Hertz((lowest_clock(&chip).0 / STEP).ceil() * STEP));
                prop_assert!(power(&lowest) > limit);
            }
            Some(slow) => {
                prop_assert!(power(&slow) <= limit && slow.clock <= chip.clock);
                prop_assert!(slow.clock.0 >= lowest_clock(&chip).0);
                if slow.clock < chip.clock {
                    prop_assert!(power(&lower_clock(&chip, Hertz(slow.clock.0 + STEP))) > limit);
                    prop_assert_eq!(slow.clock.0 % STEP, 0.0);
                }
                let wider = lower_clock_to_power(&chip, Watts(limit * more)).unwrap();
                prop_assert!(wider.clock >= slow.clock);
                for (slow, wider) in slow.on_chip.iter().zip(&wider.on_chip) {
                    prop_assert!(slow.read_bandwidth <= wider.read_bandwidth && slow.latency >= wider.latency);
                }
            }
        }
    }
}
