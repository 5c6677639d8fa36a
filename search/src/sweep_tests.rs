#![allow(clippy::unwrap_used, clippy::panic)]
use super::*;
use crate::design::{Aim, DesignSearch, DesignWatch, Workload};
use crate::planner::{Job, NO_MARGIN, PlanSpace};
use crate::runner::CandidateOutcome;
use crate::shard::Shard;
use crate::space::{ChipLimits, Grid, PhazeGrid, combination_of_places, places_of_combination};
use proptest::prelude::*;
use sim::hardware::{Accelerator, ChipDocument};
use sim::network::{Fabric, FabricDocument};
use step::SoftwareStack;
use workloads::Model;
use workloads::footprint::{Optimizer, Precision};
use workloads::training::Attention;

/// Relatives of TPU v4. Some are too large, some are no chips (buffers larger than the memory around them), some are on
/// other fabrics.
const RELATIVES: &str = "\"tensor.cores\" = [1, 2]\n\"area.cores\" = \"tensor.cores\"\n\"vector.cores\" = \"tensor.cores\"\n\
    \"memory.cmem.capacity_mib\" = [32, 128]\n\"memory.hbm.capacity_gib\" = [0.05, 1, 16]\n\"area.hbm_stacks\" = [1, 8]\nlinks = [6, 12]\n\
    \"fabric.tier.ici.bandwidth_gb_per_s\" = \"45 * links\"\n";

fn relatives() -> Space {
    let dimensions = crate::space::read_dimensions(&toml::from_str(RELATIVES).unwrap()).unwrap();
    let fabric = FabricDocument::load_for("tpu_v4_ici", "tpu_v4").unwrap();
    let base = ChipDocument::of_built_in_chip("tpu_v4").unwrap().strip_measured(true);
    let limits = ChipLimits { max_area_mm2: Some(520.0), lift_build_limits: true, ..ChipLimits::default() };
    Space::from_grid(Grid::new(base, &dimensions, &|key| fabric.field_value(key)).unwrap(), &limits).unwrap()
}

fn fabrics(space: &Space) -> Vec<Fabric> {
    let build = |settings: Vec<(String, sim::hardware::FieldValue)>| {
        let mut document = FabricDocument::load_for("tpu_v4_ici", "tpu_v4").unwrap();
        settings.iter().for_each(|(key, value)| document.set_field(key, value).unwrap());
        document.build_fabric().unwrap().for_devices(8).unwrap()
    };
    space.fabric_settings().into_iter().map(build).collect()
}

#[test]
fn a_sweep_has_every_combination_and_the_search_s_best() {
    let space = relatives();
    let (fabrics, model) = (fabrics(&space), Model::load("opt-350m").unwrap());
    let (chip, stack) = (Accelerator::built_in("tpu_v4").unwrap(), SoftwareStack::load("ideal").unwrap());
    let job = |fabric| Job {
        model: &model,
        chip: &chip,
        fabric,
        stack: &stack,
        devices: 8,
        global_batch: 64,
        sequence_length: 1024,
        attention: Attention::Fused,
        precision: Precision::default(),
        optimizer: Optimizer::Adam,
        headroom: sim::units::Bytes::ZERO,
        fit: NO_MARGIN,
        techniques: workloads::Techniques::none(),
    };
    let plans = PlanSpace {
        tensor: Some(vec![1, 2]),
        micro_batch: Some(vec![1, 4]),
        context: Some(vec![1]),
        ..PlanSpace::default()
    };
    let prepared: Vec<PreparedJob<'_>> =
        fabrics.iter().map(|fabric| PreparedJob::new(job(fabric), &plans).unwrap()).collect();
    let sweep = Sweep { prepared: &prepared, space: &space, max_step: None };
    let mut fates = Vec::new();
    run_in_groups(space.combinations_by_fabric(), &|numbers| sweep.evaluate_combinations(numbers), &mut |found| {
        fates.extend(found);
        Ok::<(), String>(())
    })
    .unwrap();
    fates.sort_by_key(|(number, _)| *number);
    assert_eq!(fates.iter().map(|(number, _)| *number).collect::<Vec<_>>(), (0..48).collect::<Vec<_>>());
    // Chips that differ only in their fabric are evaluated together. Each result equals that of the chip alone, to the
    // last digit.
    assert!(space.combinations_by_fabric().all(|group| group.len() == fabrics.len()) && fabrics.len() > 1);
    for (number, fate) in &fates {
        assert_eq!(format!("{fate:?}"), format!("{:?}", sweep.evaluate_combination(*number).unwrap()), "{number}");
    }
    let count = |wanted: fn(&SweptOutcome) -> bool| fates.iter().filter(|(_, fate)| wanted(fate)).count();
    assert_eq!(count(|fate| matches!(fate, SweptOutcome::Outside(OutsideReason::Area, _))), space.outside.area);
    assert_eq!(count(|fate| matches!(fate, SweptOutcome::NoChip(_))), space.outside.refused);
    assert!(space.outside.area > 0 && space.outside.refused > 0 && space.chip_count() > 8, "{:?}", space.outside);
    let workloads = [Workload::of_one_model(&prepared)];
    let searched = DesignSearch {
        workloads: &workloads,
        space: &space,
        aim: Aim { evaluations: usize::MAX, ..Aim::default() },
        robust: None,
    };
    let answer = searched.run_design_search(DesignWatch { stop: &|| false, told: &mut |_, _| {} }).unwrap();
    let (mut least, mut infeasible) = (f64::INFINITY, 0);
    for (number, fate) in &fates {
        let SweptOutcome::Evaluated(built, evaluation) = fate else {
            assert_eq!(space.design_of_combination(*number), None);
            continue;
        };
        let design = space.design_of_combination(*number).unwrap();
        assert_eq!(space.combination_of_design(design), *number);
        assert_eq!(space.chip_of_design(design).unwrap(), built.chip);
        assert_eq!(space.figures[design.point], built.figures);
        assert_eq!(Some(space.fabric_of_design(design)), built.fabric);
        let decided = answer.designs.iter().find(|found| found.id == design).unwrap();
        match (&evaluation.outcome, &decided.outcome) {
            (Ok(plan), CandidateOutcome::Evaluated { value, .. }) => {
                assert_eq!(plan.time.total.0, *value);
                least = least.min(*value);
            }
            (Ok(plan), CandidateOutcome::Pruned { bound, .. }) => {
                assert!(plan.time.total.0 >= *bound, "a bound that is none")
            }
            (Err(_), _) => infeasible += 1,
            (Ok(_), other) => assert!(matches!(other, CandidateOutcome::Pruned { .. }), "{other:?}"),
        }
    }
    assert_eq!(least, answer.value_of_design(answer.best.unwrap()));
    assert!(infeasible > 0);
}

#[test]
fn phaze_s_combinations_are_its_space_s() {
    let grid = PhazeGrid {
        tensor_cores: vec![16, 8, 8],
        vector_cores: vec![2, 1],
        array_widths: vec![64, 128],
        array_depths: vec![128],
        global_buffer_mib: vec![8, 128],
        hbm_gib: vec![64.0, 32.7],
        min_area_fraction: 0.3,
    };
    let reference = Accelerator::built_in("phaze_tpuv4").unwrap();
    let space = Space::from_phaze(&grid, &ChipLimits { max_power_w: Some(300.0), ..ChipLimits::default() }, &reference)
        .unwrap();
    assert_eq!(space.combination_count(), 32);
    let mut inside = 0;
    for number in 0..space.combination_count() {
        match (space.combination_at(number).unwrap(), space.design_of_combination(number)) {
            (Combination::Chip(built), Some(design)) => {
                assert_eq!(space.chip_of_design(design).unwrap(), built.chip);
                assert_eq!(space.combination_of_design(design), number);
                inside += 1;
            }
            (Combination::Outside(..), None) => {}
            other => panic!("{number}: {other:?}"),
        }
    }
    assert_eq!(inside, space.design_count());
    assert_eq!(32 - inside, space.outside.total() * 2);
    assert!(inside > 0 && inside < 32);
}

#[test]
fn an_error_of_keeping_stops_the_sweep() {
    let alone = |number: u64| vec![number];
    let all = |numbers: &[u64]| Ok::<Vec<u64>, String>(numbers.to_vec());
    let mut kept = 0;
    let outcome = run_in_groups((0..u64::MAX).map(alone), &all, &mut |found| {
        kept += found.len();
        if kept > 3000 { Err("the disk is full".to_owned()) } else { Ok(()) }
    });
    assert_eq!(outcome.unwrap_err(), "the disk is full");
    let mut kept = 0;
    let odd = |numbers: &[u64]| if numbers[0] < 5000 { Ok(numbers.to_vec()) } else { Err("5000".to_owned()) };
    let outcome = run_in_groups((0..1 << 40).map(alone), &odd, &mut |found| {
        kept += found.len();
        Ok(())
    });
    assert_eq!(outcome.unwrap_err(), "5000");
    assert!(kept > 4000, "what was found before an error is kept: {kept}");
}

#[test]
fn parts_are_read_and_refused() {
    assert_eq!("3/8".parse::<Shard>().unwrap(), Shard { part: 3, of: 8 });
    for wrong in ["", "3", "0/8", "9/8", "1/0", "a/b", "1/70000"] {
        assert!(wrong.parse::<Shard>().unwrap_err().contains("1/8"), "{wrong}");
    }
}

proptest! {
    #[test]
    fn every_combination_is_in_one_part(total in 0_u64..3000, of in 1_u32..20) {
        let parts: Vec<Shard> = (1..=of).map(|part| Shard { part, of }).collect();
        for number in 0..total {
            prop_assert_eq!(parts.iter().filter(|part| part.contains(number)).count(), 1);
        }
        for part in parts {
            prop_assert_eq!(part.size_of(total), (0..total).filter(|number| part.contains(*number)).count() as u64);
        }
    }

    #[test]
    fn places_and_numbers_are_one_to_one(sizes in prop::collection::vec(1_usize..5, 0..5)) {
        let dials: Vec<crate::space::ListedDimension> = sizes.iter().map(|&size| crate::space::ListedDimension {
            key: "a".into(), values: (0..size).map(|value| sim::hardware::FieldValue::Number(value as f64)).collect(),
        }).collect();
        let total: u64 = sizes.iter().map(|&size| size as u64).product();
        for at in 0..total {
            prop_assert_eq!(combination_of_places(&dials, &places_of_combination(&dials, at)), at);
        }
    }
}

#[test]
fn a_sweep_ends_on_the_threads_of_any_pool() {
    use rayon::prelude::*;
    // Evaluating a group runs parallel tasks itself, as a planner does. A thread that waits for them may take up
    // another task of the pool.
    let squares = |numbers: &[u64]| -> Result<Vec<u64>, String> {
        Ok(numbers.par_iter().with_max_len(1).map(|number| number * number).collect())
    };
    for threads in [1, 2, 4] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let mut kept = Vec::new();
        let groups = || (0..3 * WAITING as u64).map(|at| vec![2 * at, 2 * at + 1]);
        pool.install(|| {
            run_in_groups(groups(), &squares, &mut |found| {
                kept.extend(found);
                Ok(())
            })
        })
        .unwrap();
        kept.sort_unstable();
        let all: Vec<(u64, u64)> = (0..6 * WAITING as u64).map(|number| (number, number * number)).collect();
        assert_eq!(kept, all, "{threads} threads");
        // An error of either function ends the run.
        let refused = |numbers: &[u64]| if numbers[0] == 40 { Err("some".to_owned()) } else { squares(numbers) };
        let wrong = pool.install(|| run_in_groups(groups(), &refused, &mut |_| Ok(())));
        assert_eq!(wrong, Err("some".to_owned()));
        let wrong = pool.install(|| run_in_groups(groups(), &squares, &mut |_| Err("keep".to_owned())));
        assert_eq!(wrong, Err("keep".to_owned()));
    }
}
