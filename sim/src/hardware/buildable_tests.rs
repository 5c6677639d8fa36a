#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use super::*;
use crate::hardware::{ChipDocument, FieldValue, templates};

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

/// A box is rejected only if its smallest needs more than its largest has.
#[test]
fn a_box_that_holds_a_buildable_chip_is_not_rejected() {
    let (small, large) = (with("tpu_v4", &[("area.hbm_stacks", 2.0)]), with("tpu_v4", &[("area.hbm_stacks", 8.0)]));
    let area = |chip: &Accelerator| chip_area(chip).unwrap().total_area();
    assert!(find_unbuildable(&large).unwrap().is_some());
    assert_eq!(find_unbuildable_between(&small, &large, area(&small), area(&large)), None);
    let few = with("tpu_v4", &[("area.hbm_stacks", 7.0)]);
    assert!(find_unbuildable_between(&few, &large, area(&few), area(&large)).is_some());
}
