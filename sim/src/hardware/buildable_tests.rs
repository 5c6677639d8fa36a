#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]
use super::*;
use crate::hardware::{ChipDocument, FieldValue, templates};
use proptest::prelude::*;

fn with(name: &str, fields: &[(&str, f64)]) -> Accelerator {
    let mut document = ChipDocument::of_built_in_chip(name).unwrap().strip_measured(true);
    for (key, value) in fields {
        document.set_field(key, &FieldValue::Number(*value)).unwrap();
    }
    document.build_accelerator().unwrap()
}

/// Every chip that exists can be built, at its own power.
#[test]
fn published_chips_pass_their_own_limits() {
    let mut checked = Vec::new();
    for template in templates().unwrap() {
        let chip = &template.accelerator;
        let Ok(area) = chip_area(chip) else { continue };
        assert_eq!(find_unbuildable(chip).unwrap(), None, "{}", template.name);
        if let Some(tdp) = chip.published.tdp {
            let most = cooled_power(chip, area.total_area());
            assert!(tdp <= most, "{}: {tdp:?} of {most:?}", template.name);
        }
        checked.push(template.name.as_str());
    }
    for name in ["a100_80gb_sxm", "h100_80gb_sxm", "b200", "mi300x", "tpu_v4", "tpu_v5p", "tpu_v6e", "tpu_v7"] {
        assert!(checked.contains(&name), "{name} has no area");
    }
}

#[test]
fn each_rule_is_broken_by_too_much_of_its_own() {
    let rule = |chip: &Accelerator| find_unbuildable(chip).unwrap().map(|broken| broken.rule);
    assert_eq!(rule(&with("h100_80gb_sxm", &[("area.cores", 400.0)])), Some(BuildRule::Reticle));
    // Four stacks on a side need 39.5 mm, more than a reticle has.
    assert_eq!(rule(&with("h100_80gb_sxm", &[("area.hbm_stacks", 8.0)])), Some(BuildRule::HbmSides));
    assert_eq!(rule(&with("h100_80gb_sxm", &[("memory.hbm.read_gb_per_s", 6000.0)])), Some(BuildRule::HbmRate));
    assert_eq!(rule(&with("tpu_v4", &[("area.links", 40.0)])), Some(BuildRule::Shoreline));
    let many = [("area.dies", 9.0), ("area.cores", 1200.0), ("area.hbm_stacks", 18.0)];
    assert_eq!(rule(&with("h100_80gb_sxm", &many)), Some(BuildRule::Package));
    let text = find_unbuildable(&with("h100_80gb_sxm", &[("area.hbm_stacks", 8.0)])).unwrap().unwrap().to_string();
    assert_eq!(text, "hbm_sides: needs 8 of 6 HBM stacks along the sides of a die");
}

/// Checks the number of border crossings against the mean over all pairs of dies.
#[test]
fn a_byte_crosses_the_borders_between_its_dies() {
    for dies in 1..60_u32 {
        let width = f64::from(dies).sqrt().ceil() as u32;
        let place = |die: u32| (die % width, die / width);
        let far = |(x, y): (u32, u32), (u, v): (u32, u32)| f64::from(x.abs_diff(u) + y.abs_diff(v));
        let sum: f64 = (0..dies).flat_map(|a| (0..dies).map(move |b| far(place(a), place(b)))).sum();
        let (mean, all) = (mean_border_crossings(dies), f64::from(dies));
        assert!((mean - sum / (all * all)).abs() < 1e-9, "{dies}: {mean}");
        assert!(mean >= (all - 1.0) / all - 1e-9, "{dies}: each byte of another die crosses a border");
    }
    assert_eq!([1, 2, 4].map(mean_border_crossings), [0.0, 0.5, 1.0]);
}

/// Prints and checks need and supply of every built chip with several dies. Blackwell's 10 TB/s are published; TPU v7's
/// figure is assumed to be its need.
#[test]
fn links_between_the_dies_of_built_chips_carry_their_memory() {
    let mut seen = Vec::new();
    for template in templates().unwrap() {
        let chip = &template.accelerator;
        let AreaModel::UnitAreas(plan) = &chip.area_model else { continue };
        if plan.dies == 1 {
            continue;
        }
        let area = chip_area(chip).unwrap().total_area();
        let range = BuildRange { small: chip, large: chip, least: area, most: area };
        let figures = range.need_and_supply(BuildRule::DieToDie);
        println!("{:8} {} dies, base dies: {}, GB/s: {figures:?}", template.name, plan.dies, plan.base.is_some());
        assert_eq!(figures.is_none(), plan.base.is_some());
        assert!(figures.is_none_or(|(need, have)| need <= have), "{}: {figures:?}", template.name);
        seen.push((template.name.as_str(), figures.map(|(need, _)| need)));
    }
    let of = |name: &str| seen.iter().find(|(seen, _)| *seen == name).unwrap().1;
    assert_eq!((of("b200"), of("tpu_v7"), of("mi300x")), (Some(4000.0), Some(3690.0), None));
    assert_eq!(seen.len(), 8, "{seen:?}");
}

/// If TPU v4 had two dies, half of CMEM's traffic would cross between them, and the links would have to carry it.
/// Without CMEM they would carry half of HBM's traffic.
#[test]
fn several_dies_need_links_and_cores() {
    let broken = |fields: &[(&str, f64)]| find_unbuildable(&with("tpu_v4", fields)).unwrap();
    let two = |rate: f64| broken(&[("area.dies", 2.0), ("area.die_to_die_tb_per_s", rate)]);
    let cmem = shared_traffic(&with("tpu_v4", &[])) / 1e9;
    assert!(cmem > 3.0 * 1200.0, "{cmem}");
    assert_eq!(two(0.0), Some(Unbuildable { rule: BuildRule::DieToDie, need: cmem / 2.0, have: 0.0 }));
    assert_eq!((two(cmem / 2e3), two(cmem / 2.1e3).unwrap().rule), (None, BuildRule::DieToDie));
    let without = |rate: f64| {
        broken(&[("area.dies", 2.0), ("area.die_to_die_tb_per_s", rate), ("memory.cmem.capacity_mib", 0.0)])
    };
    assert_eq!((without(0.6), without(0.59).unwrap().need), (None, 600.0));
    let text = without(0.0).unwrap().describe_with_cure();
    assert_eq!(
        text,
        "die_to_die: needs 600 of 0 GB/s between the compute dies, both directions; join the dies by faster links, or \
         take fewer dies (area.die_to_die_tb_per_s, area.dies)"
    );
    // Eight dies cannot share two cores, however fast their links are.
    let eight = broken(&[("area.dies", 8.0), ("area.die_to_die_tb_per_s", 10.0)]).unwrap();
    assert_eq!((eight.rule, eight.need, eight.have), (BuildRule::DieCores, 8.0, 2.0));
    // The rates are those at the designed clock: a lowered chip has the same links.
    let chip = with("tpu_v4", &[("area.dies", 2.0)]);
    let slow = crate::hardware::lower_clock(&chip, crate::units::Hertz(chip.clock.0 / 2.0));
    assert!((shared_traffic(&slow) / shared_traffic(&chip) - 1.0).abs() < 1e-12);
}

/// The links that two dies of TPU v4 need take more area than two small networks save.
#[test]
fn links_between_dies_take_more_area_than_small_networks_save() {
    let parts = |dies: f64, rate: f64| {
        let chip = with("tpu_v4", &[("area.dies", dies), ("area.die_to_die_tb_per_s", rate)]);
        let cost = crate::hardware::manufacturing::chip_cost(&chip).unwrap().unwrap().total_usd();
        let areas = chip_area(&chip).unwrap();
        println!("{dies} dies, {rate} TB/s: {:.1} mm², {cost:.0} USD", areas.total_area().0);
        (areas.component_area("die", "crossbar").unwrap(), areas.total_area())
    };
    let (one, two) = (parts(1.0, 0.0), parts(2.0, shared_traffic(&with("tpu_v4", &[])) / 2e12));
    assert!(two.0 < one.0 && two.1 > one.1, "{one:?} {two:?}");
}

/// A chip that breaks several rules gets all of them.
#[test]
fn all_broken_rules_are_listed() {
    let mut document = ChipDocument::of_built_in_chip("a100_80gb_sxm").unwrap().strip_measured(true);
    document.set_field("area.hbm_generation", &FieldValue::Word("hbm2".into())).unwrap();
    let fields = [("area.hbm_stacks", 20.0), ("area.links", 60.0), ("memory.hbm.read_gb_per_s", 8000.0)];
    for (key, value) in fields {
        document.set_field(key, &FieldValue::Number(value)).unwrap();
    }
    let chip = document.build_accelerator().unwrap();
    let broken = list_broken_rules(&chip).unwrap();
    let rules: Vec<BuildRule> = broken.iter().map(|broken| broken.rule).collect();
    assert_eq!(find_unbuildable(&chip).unwrap(), broken.first().copied());
    assert_eq!(rules, [BuildRule::Reticle, BuildRule::HbmSides, BuildRule::HbmRate, BuildRule::Shoreline]);
    assert_eq!(
        broken[2].describe_with_cure(),
        "hbm_rate: needs 8000 of 6140 GB/s of HBM; take more stacks or a newer generation (area.hbm_stacks, \
         area.hbm_generation)"
    );
}

#[test]
fn built_chips_break_no_rule() {
    for template in templates().unwrap() {
        let Ok(broken) = list_broken_rules(&template.accelerator) else { continue };
        let text: Vec<String> = broken.iter().map(Unbuildable::describe_with_cure).collect();
        assert!(text.is_empty(), "{}: {}", template.name, text.join("\n"));
    }
}

/// The power density of a chip follows from its heaviest load, or from its published power limit if that is lower.
#[test]
fn a_chip_is_as_hot_as_it_is_held_to_be() {
    let fast = with("h100_80gb_sxm", &[("clock_mhz", 2600.0)]);
    let broken = list_broken_rules(&fast).unwrap();
    assert_eq!(broken.iter().map(|broken| broken.rule).collect::<Vec<_>>(), [BuildRule::PowerDensity]);
    let mut held = fast;
    held.published.tdp = Some(Watts(700.0));
    assert_eq!(list_broken_rules(&held).unwrap(), []);
}

/// A box of chips with several dies is rejected only if its least traffic exceeds its fastest links.
#[test]
fn boxes_of_dies_are_bounded_by_least_traffic_and_fastest_links() {
    let chip = |rate: f64, hbm: f64| {
        let links = [("area.dies", 2.0), ("area.die_to_die_tb_per_s", rate)];
        with("h100_80gb_sxm", &[&links[..], &[("memory.hbm.read_gb_per_s", hbm), ("area.hbm_stacks", 6.0)]].concat())
    };
    let between = |small: &Accelerator, large: &Accelerator| {
        let area = |chip: &Accelerator| chip_area(chip).unwrap().total_area();
        find_unbuildable_between(small, large, area(small), area(large)).map(|broken| broken.rule)
    };
    assert_eq!(find_unbuildable(&chip(0.0, 3000.0)).unwrap().unwrap().rule, BuildRule::DieToDie);
    assert_eq!(between(&chip(0.0, 3000.0), &chip(2.0, 4000.0)), None, "3,000 GB/s with 2 TB/s can be built");
    assert_eq!(between(&chip(0.0, 3000.0), &chip(1.0, 4000.0)), Some(BuildRule::DieToDie));
}

proptest! {
    /// Every chip of a rejected box is rejected, and the need does not depend on a lowered clock.
    #[test]
    fn a_rejected_box_of_dies_holds_no_buildable_chip(
        dies in 1..5_u32, low in 0.0..4.0_f64, more in 0.0..4.0_f64, at in 0.0..1.0_f64,
        cmem in prop_oneof![Just(0.0), Just(128.0)], slow in 0.4..1.0_f64,
    ) {
        let chip = |rate: f64, hbm: f64, clock: f64| {
            let links = [("area.dies", f64::from(dies)), ("area.die_to_die_tb_per_s", rate), ("area.cores", 4.0)];
            let rest = [("memory.hbm.read_gb_per_s", hbm), ("memory.cmem.capacity_mib", cmem), ("clock_mhz", clock)];
            with("tpu_v4", &[&links[..], &rest].concat())
        };
        let area = |chip: &Accelerator| chip_area(chip).unwrap().total_area();
        let (small, large) = (chip(low, 600.0, 900.0), chip(low + more, 1200.0, 1100.0));
        let middle = chip(low + more * at, 600.0 + 600.0 * at, 900.0 + 200.0 * at);
        let middle = crate::hardware::lower_clock(&middle, crate::units::Hertz(middle.clock.0 * slow));
        if find_unbuildable_between(&small, &large, area(&small), area(&large)).is_some() {
            prop_assert!(find_unbuildable(&middle).unwrap().is_some());
        }
    }
}

/// A box is rejected only if its smallest chip needs more than its largest chip has.
#[test]
fn a_box_that_holds_a_buildable_chip_is_not_rejected() {
    let (small, large) = (with("tpu_v4", &[("area.hbm_stacks", 2.0)]), with("tpu_v4", &[("area.hbm_stacks", 8.0)]));
    let area = |chip: &Accelerator| chip_area(chip).unwrap().total_area();
    assert!(find_unbuildable(&large).unwrap().is_some());
    assert_eq!(find_unbuildable_between(&small, &large, area(&small), area(&large)), None);
    let few = with("tpu_v4", &[("area.hbm_stacks", 7.0)]);
    assert!(find_unbuildable_between(&few, &large, area(&few), area(&large)).is_some());
}
