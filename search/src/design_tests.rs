#![allow(clippy::unwrap_used, clippy::panic)]
use super::*;
use crate::pareto::{Front, FrontPoint};
use crate::planner::{Job, PlanSpace, Splits};
use crate::space::{ChipLimits, Grid};
use proptest::prelude::*;
use sim::hardware::{ChipDocument, Setting};
use sim::network::{Fabric, FabricDocument};
use step::SoftwareStack;
use workloads::Model;
use workloads::footprint::{Optimizer, Precision};
use workloads::training::Attention;

const DEVICES: u32 = 8;

/// A random space, what is asked of it, and the software.
#[derive(Debug, Clone)]
struct Case {
    dimensions: String,
    stack: &'static str,
    aim: Aim,
    limits: ChipLimits,
}

fn case() -> impl Strategy<Value = Case> {
    let subset = |all: &'static [u32]| prop::sample::subsequence(all, 1..=all.len().min(2));
    let lists = (
        subset(&[1, 2, 4]),
        subset(&[1, 2, 4]),
        subset(&[32, 64, 128]),
        subset(&[1, 2, 4]),
        subset(&[500, 1050]),
        subset(&[2, 6]),
    );
    let objectives = prop::sample::select(Objective::NAMES.map(|(_, objective)| objective).to_vec());
    let axes = prop::sample::select(Axis::NAMES.map(|(_, axis)| axis).to_vec());
    let limits = (prop::option::of(150.0..400.0_f64), prop::option::of(60.0..200.0_f64), prop::option::of(0.01..1.0_f64));
    let stacks = prop::sample::select(vec!["ideal", "maxtext"]);
    (lists, objectives, axes, limits, stacks).prop_map(|((cores, arrays, side, stacks, clock, links), objective, axis, limits, stack)| {
        let dimensions = format!(
            "\"tensor.cores\" = {cores:?}\n\"area.cores\" = \"tensor.cores\"\n\"vector.cores\" = \"tensor.cores\"\n\
             \"tensor.arrays_per_core\" = {arrays:?}\nside = {side:?}\n\"tensor.rows\" = \"side\"\n\"tensor.columns\" = \"side\"\n\
             hbm_stacks = {stacks:?}\n\"area.hbm_stacks\" = \"hbm_stacks\"\n\"memory.hbm.capacity_gib\" = \"2 * hbm_stacks\"\n\
             \"memory.hbm.read_gb_per_s\" = \"300 * hbm_stacks\"\n\"memory.hbm.write_gb_per_s\" = \"300 * hbm_stacks\"\n\
             clock_mhz = {clock:?}\nlinks = {links:?}\n\"area.links\" = \"links\"\n\
             \"fabric.tier.ici.bandwidth_gb_per_s\" = \"45 * links\"\n\"energy.static_w\" = \"0.15 * area_mm2\"\n"
        );
        let aim = Aim { objective, axis, max_step: limits.2.map(Seconds), evaluations: usize::MAX };
        let limits = ChipLimits { max_area_mm2: limits.0, max_power_w: limits.1, max_cost_usd: None };
        Case { dimensions, stack, aim, limits }
    })
}

/// The value and the cost of every chip, each evaluated by itself.
fn brute_force(search: &DesignSearch<'_>) -> Vec<Option<(f64, f64)>> {
    let of = |point: usize| {
        let id = search.space.largest(point);
        let (chip, figures) = (search.space.chip(id).unwrap(), search.space.figures[point]);
        let ranked = best_plan(search.prepared(id), &chip).outcome.ok()?;
        let (seconds, energy) = (ranked.time.total, ranked.energy.0);
        if search.aim.max_step.is_some_and(|most| seconds > most) {
            return None;
        }
        let value = match search.aim.objective {
            Objective::EnergyPerToken => energy,
            objective => objective.factor(&figures)? * seconds.0,
        };
        let cost = match search.aim.axis {
            Axis::Energy => energy,
            Axis::None => 0.0,
            axis => axis.of(&figures).unwrap(),
        };
        Some((cost, value))
    };
    (0..search.space.points()).map(of).collect()
}

fn check(case: &Case) -> Result<(), TestCaseError> {
    let dimensions = crate::space::read_dimensions(&toml::from_str(&case.dimensions).unwrap()).unwrap();
    let document = FabricDocument::load_for("tpu_v4_ici", "tpu_v4").unwrap();
    let base = ChipDocument::template("tpu_v4").unwrap().unbuilt(true);
    let reference = base.accelerator().unwrap();
    let grid = Grid::new(base, &dimensions, &|key| document.get(key)).unwrap();
    let space = Space::grid(grid, &case.limits).unwrap();
    let build = |settings: &Vec<(String, Setting)>| {
        let mut document = document.clone();
        settings.iter().for_each(|(key, value)| document.set(key, value).unwrap());
        document.fabric().unwrap().for_devices(DEVICES).unwrap()
    };
    let fabrics: Vec<Fabric> = space.fabrics().iter().map(build).collect();
    let (model, stack) = (Model::load("opt-350m").unwrap(), SoftwareStack::load(case.stack).unwrap());
    let plans = PlanSpace {
        context: Some(vec![1]),
        virtual_stages: Some(vec![1]),
        splits: Some(Splits::Listed(vec![None])),
        activations: Some(vec![workloads::ActivationPolicy::None, workloads::ActivationPolicy::Full]),
        schedules: Some(vec![sim::pipeline::Schedule::OneForwardOneBackward]),
        ..PlanSpace::default()
    };
    let job = |fabric| Job {
        model: &model,
        chip: &reference,
        fabric,
        stack: &stack,
        devices: DEVICES,
        global_batch: 32,
        sequence_length: 512,
        attention: Attention::Fused,
        precision: stack.precision(Precision::MIXED_BF16),
        optimizer: Optimizer::Adam,
        headroom: Bytes::ZERO,
        techniques: workloads::Techniques::none(),
    };
    let prepared: Vec<Prepared<'_>> = fabrics.iter().map(|fabric| Prepared::new(job(fabric), &plans).unwrap()).collect();
    let search = DesignSearch { prepared: &prepared, space: &space, aim: case.aim };
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| search.run(&|_| {}))
    };
    let (one, four) = (run(1), run(4));
    prop_assert_eq!(format!("{one:?}"), format!("{four:?}"), "the number of threads shows");
    let truth = brute_force(&search);
    let mut front = Front::default();
    for (id, known) in truth.iter().enumerate() {
        if let Some((first, second)) = *known {
            front.insert(FrontPoint { first, second, id });
        }
    }
    let expected: Vec<(f64, f64)> = front.points().iter().map(|p| (p.first, p.second)).collect();
    let found: Vec<(f64, f64)> = one.front.iter().map(|&at| truth[one.designs[at].id.point].unwrap()).collect();
    prop_assert_eq!(&found, &expected, "the front");
    let best = one.best.map(|at| one.value(at));
    prop_assert_eq!(best, expected.last().map(|(_, value)| *value), "the best");
    for design in &one.designs {
        match (&design.outcome, truth[design.id.point]) {
            // A hair for schedules whose bounds are kept to a relative rounding.
            (Outcome::Pruned { bound, .. }, Some((_, value))) => prop_assert!(*bound <= value * (1.0 + 1e-9), "{bound} {value}"),
            (Outcome::Evaluated { value, .. }, known) => prop_assert_eq!(Some(*value), known.map(|(_, value)| value)),
            (Outcome::Infeasible { .. }, known) => prop_assert_eq!(known, None),
            (Outcome::Open { .. }, _) => prop_assert!(false, "undecided without a limit"),
            (Outcome::Pruned { .. }, None) => {}
        }
    }
    Ok(())
}

/// Small spaces of random dimensions, objectives, axes and limits: few here, a hundred with COPLACE_SPACES=100.
fn cases() -> u32 {
    std::env::var("COPLACE_SPACES").ok().and_then(|n| n.parse().ok()).unwrap_or(6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]
    #[test]
    fn the_search_finds_what_brute_force_finds_whatever_the_threads(case in case()) {
        check(&case)?;
    }
}
