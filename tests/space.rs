//! PHAZE's design space: every configuration, and every area by the closed formula fitted to the original's table.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use search::space::{Chips, HardwareSpace};
use search::study::Study;
use serde_json::Value;
use sim::hardware::Accelerator;
use sim::hardware::phaze::PhazeConfig;

const AREA_MODEL: &str = include_str!("../interop/reference/phaze/area_model.json");
/// The original's areas of the largest (TPUv4-like) and the smallest configuration, in square micrometres.
const LARGEST: f64 = 278_826_676.31;
const SMALLEST: f64 = 3_355_047.77;

fn space() -> HardwareSpace {
    let study = Study::load("phaze").unwrap();
    let Chips::Phaze(grid) = &study.space.chips else { panic!("PHAZE's grid") };
    HardwareSpace::enumerate_chips(
        grid,
        &study.space.limits,
        &Accelerator::built_in(&study.space.reference_chip).unwrap(),
    )
    .unwrap()
}

/// Returns the area in square micrometres by the formula of `interop/reference/phaze/README.md`, with the coefficients
/// beside it, independently of the program.
fn closed_form(coefficients: &Value, config: &PhazeConfig) -> f64 {
    let of = |key: &str| coefficients[key].as_f64().unwrap_or_else(|| panic!("no coefficient {key}"));
    let (width, depth) = (u64::from(config.width), u64::from(config.depth));
    let tensor = (width * depth) as f64 * of("tc_mac") + of(&format!("l2_{}", (width * depth * 16).max(1024)));
    let vector = width as f64 * of("vc_lane") + of(&format!("l2v_{}", (width * 16).max(1024)));
    f64::from(config.num_tc) * tensor
        + f64::from(config.num_vc) * vector
        + of(&format!("glb_{}", config.global_buffer.0))
}

#[test]
fn it_has_29_360_configurations_with_the_areas_of_the_closed_form() {
    let space = space();
    assert_eq!(space.points.len(), 29_360);
    let model: Value = serde_json::from_str(AREA_MODEL).unwrap();
    let um2 = |mm2: f64| mm2 * 1e6;
    for point in &space.points {
        assert_eq!(point.config.width, point.config.width_vc);
        let expected = closed_form(&model["coef"], &point.config);
        let error = (um2(point.area.0) / expected - 1.0).abs();
        assert!(error < 1e-9, "{}: {} um^2, closed form {expected}", point.config, um2(point.area.0));
    }
    let areas = || space.points.iter().map(|point| um2(point.area.0));
    let (smallest, largest) = (areas().fold(f64::INFINITY, f64::min), areas().fold(0.0, f64::max));
    // Both areas are given to a hundredth of a square micrometre, which matters only for the smallest.
    assert!((largest / LARGEST - 1.0).abs() < 1e-9, "{largest}");
    assert!((smallest - SMALLEST).abs() <= 0.005 + 1e-9 * SMALLEST, "{smallest}");
    let tpu = PhazeConfig::tpu_v4_like();
    let same = |c: &PhazeConfig| PhazeConfig { hbm: tpu.hbm, ..*c } == tpu;
    let reference = space.points.iter().find(|point| same(&point.config)).unwrap();
    assert!((um2(reference.area.0) / LARGEST - 1.0).abs() < 1e-9, "the TPUv4-like chip is the largest");
}

#[test]
fn the_limits_alone_decide_what_is_in_it() {
    let model: Value = serde_json::from_str(AREA_MODEL).unwrap();
    let powers = |from: u32, to: u32| (from..=to).map(|e| 1_u32 << e);
    let limit = closed_form(&model["coef"], &PhazeConfig::tpu_v4_like());
    let (mut inside, mut all) = (0, 0);
    for num_tc in powers(0, 12) {
        for num_vc in powers(0, 12) {
            for width in powers(1, 8) {
                for depth in powers(1, 8) {
                    for mib in powers(1, 7) {
                        let global_buffer = sim::units::Bytes(u64::from(mib) << 20);
                        let shape = PhazeConfig {
                            num_tc,
                            num_vc,
                            width,
                            depth,
                            width_vc: width,
                            global_buffer,
                            ..PhazeConfig::tpu_v4_like()
                        };
                        let area = closed_form(&model["coef"], &shape);
                        let single = num_tc == 1 || num_vc == 1;
                        // The reference has exactly the area of the limit. The tolerance of 1e-9 is far below the gap
                        // to the next area.
                        inside += usize::from(area <= limit * (1.0 + 1e-9) && (single || area >= 0.3 * limit));
                        all += 1;
                    }
                }
            }
        }
    }
    let space = space();
    assert_eq!((inside, space.points.len() + space.outside), (29_360, all));
}
