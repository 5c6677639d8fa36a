#![allow(clippy::unwrap_used, clippy::panic)]
use super::*;
use crate::objective::{PaidHardware, Term};
use crate::pareto::{Front, FrontCosts, FrontPoint};
use crate::planner::{Job, NO_MARGIN, PlanSpace, Splits};
use crate::runner::Exclusion;
use crate::shard::Shard;
use crate::space::{ChipLimits, Grid, SingleCombination};
use proptest::prelude::*;
use sim::hardware::{ChipDocument, ChipTemplate, FieldValue};
use sim::network::{Fabric, FabricDocument};
use std::sync::atomic::{AtomicUsize, Ordering};
use step::SoftwareStack;
use workloads::Model;
use workloads::footprint::{Optimizer, Precision};
use workloads::training::Attention;

const DEVICES: u32 = 8;

/// A random space, an aim, and the software.
#[derive(Debug, Clone)]
struct Case {
    dimensions: String,
    stack: &'static str,
    /// True if the search is for a second model too.
    both: bool,
    aim: Aim,
    limits: ChipLimits,
}

/// The dimensions of a space: cores, arrays per core, sides of arrays, HBM stacks, clocks, links, shapes of the torus.
fn dimensions_text([cores, arrays, side, stacks, clock, links]: [&[u32]; 6], shapes: &str) -> String {
    let dimensions = format!(
        "\"tensor.cores\" = {cores:?}\n\"area.cores\" = \"tensor.cores\"\n\"vector.cores\" = \"tensor.cores\"\n\
         \"tensor.arrays_per_core\" = {arrays:?}\nside = {side:?}\n\"tensor.rows\" = \"side\"\n\
         \"tensor.columns\" = \"side\"\nhbm_stacks = {stacks:?}\n\"area.hbm_stacks\" = \"hbm_stacks\"\n\
         \"memory.hbm.capacity_gib\" = \"2 * hbm_stacks\"\n\"memory.hbm.read_gb_per_s\" = \"300 * hbm_stacks\"\n\
         \"memory.hbm.write_gb_per_s\" = \"300 * hbm_stacks\"\nclock_mhz = {clock:?}\nlinks = {links:?}\n\
         \"area.links\" = \"links\"\n\"fabric.tier.ici.bandwidth_gb_per_s\" = \"45 * links\"\n\
         \"energy.static_w\" = \"0.15 * area_mm2\"\n"
    );
    let shapes = if shapes.is_empty() { String::new() } else { format!("\"fabric.tier.ici.dims\" = {shapes}\n") };
    dimensions + &shapes
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
    let axes = axes();
    let hbm = (prop::option::weighted(0.3, 2.0..6.0_f64), prop::option::weighted(0.3, 3.0..9.0_f64));
    let limits =
        (prop::option::of(150.0..400.0_f64), prop::option::of(60.0..200.0_f64), prop::option::of(0.01..1.0_f64), hbm);
    // For eight chips: a line, a square or a cube.
    let shapes = prop::sample::select(vec!["", "[\"8x1x1\", [2, 2, 2]]", "[[4, 2], \"2x2x2\", \"1x8\"]"]);
    let stacks = (
        prop::sample::select(vec!["ideal", "maxtext"]),
        prop::bool::weighted(0.3),
        any::<bool>(),
        shapes,
        prop::sample::select(vec![0.0, 0.5, 30.0]),
        prop::sample::select(PaidHardware::NAMES.map(|(_, dollars)| dollars).to_vec()),
    );
    let all = (lists, objectives, axes, limits, stacks);
    all.prop_map(
        |(
            (cores, arrays, side, stacks, clock, links),
            objective,
            axes,
            limits,
            (stack, both, mean, shapes, years, dollars),
        )| {
            let dimensions = dimensions_text([&cores, &arrays, &side, &stacks, &clock, &links], shapes);
            let over = if mean { MeasureMean::Mean } else { MeasureMean::Geomean };
            let operation = OperatingCost { years, dollars, ..OperatingCost::default() };
            let aim = Aim {
                objective,
                over,
                operation,
                axes,
                max_step: limits.2.map(Seconds),
                evaluations: usize::MAX,
                gap: 0.0,
            };
            let (min_hbm_gib, max_hbm_gib) = limits.3;
            let rate = min_hbm_gib.filter(|gib| *gib < 3.0).map(|gib| 300.0 * gib);
            let (max_area_mm2, max_power_w) = (limits.0, limits.1);
            let limits = ChipLimits {
                max_area_mm2,
                max_power_w,
                min_hbm_gib,
                max_hbm_gib,
                min_hbm_gb_per_s: rate,
                ..ChipLimits::default()
            };
            Case { dimensions, stack, both, aim, limits }
        },
    )
}

/// Axes of a front: none, one, or two.
pub(super) fn axes() -> impl Strategy<Value = CostAxes> {
    let one = FrontAxis::NAMES.map(|(name, _)| name.to_owned());
    let pairs = ["area,power", "power,energy", "cost,area", "energy,cost"].map(str::to_owned);
    prop::sample::select([&one[..], &pairs[..]].concat()).prop_map(|text| CostAxes::parse_list(&text).unwrap())
}

/// The costs and the value of every chip within the limits, each evaluated on its own.
fn brute_force(search: &DesignSearch<'_>) -> Vec<Option<(FrontCosts, f64)>> {
    let of = |point: usize| {
        let SingleCombination::Chip(chip, figures) = search.space.single_point(point).unwrap() else { return None };
        let id = search.space.with_largest_memory(point);
        let fabric = search.prepared_job(0, id).job.fabric;
        let figures = figures.with_system(search.aim.counted_system_usd(fabric, &chip.constants));
        let (mut seconds, mut joules) = (Vec::new(), Vec::new());
        for model in 0..search.workloads.len() {
            let ranked = best_plan(search.prepared_job(model, id), &chip).outcome.ok()?;
            let worst = |robust: RobustSearch<'_>| (robust.factor)(&search.prepared_job(model, id).job(&chip), &ranked);
            let counted = ranked.time.total.0 * search.robust.map_or(1.0, worst);
            if search.aim.max_step.is_some_and(|most| counted > most.0) {
                return None;
            }
            seconds.push(counted);
            joules.push(ranked.energy.0);
        }
        let mean = |measures: &[f64], reference: fn(&ReferenceStep) -> f64| {
            let [alone] = measures else {
                let terms: Vec<Term> = search
                    .workloads
                    .iter()
                    .map(|w| Term { share: w.share, reference: reference(&w.reference) })
                    .collect();
                return search.aim.over.combine_measures(&terms, measures);
            };
            *alone
        };
        let value = match search.aim.objective {
            Objective::EnergyPerToken => mean(&joules, |r| r.energy.0),
            Objective::PerDollar if search.aim.operation.years > 0.0 => {
                let watt = search.aim.operation.usd_per_watt() / f64::from(DEVICES);
                let dollars = |(seconds, joules): (&f64, &f64)| Some(figures.paid_usd()? * seconds + watt * joules);
                mean(&seconds.iter().zip(&joules).map(dollars).collect::<Option<Vec<_>>>()?, |r| r.time.0)
            }
            objective => objective.factor_of_chip(&figures)? * mean(&seconds, |r| r.time.0),
        };
        let costs = search.aim.axes.costs_along(|axis| match axis {
            FrontAxis::Energy => mean(&joules, |r| r.energy.0),
            axis => axis.cost_along(&figures).unwrap(),
        });
        Some((costs, value))
    };
    (0..search.space.chip_count()).map(of).collect()
}

fn check(case: &Case) -> Result<(), TestCaseError> {
    let dimensions = crate::space::read_dimensions(&toml::from_str(&case.dimensions).unwrap()).unwrap();
    let document = FabricDocument::load_for("tpu_v4_ici", "tpu_v4").unwrap();
    let base = ChipDocument::of_built_in_chip("tpu_v4").unwrap().strip_measured(true);
    let reference = base.build_accelerator().unwrap();
    let grid = Grid::new(base, &dimensions, &|key| document.field_value(key)).unwrap();
    let one_by_one = Space::from_grid(grid.clone(), &case.limits).unwrap();
    let wider = ChipLimits { max_power_w: case.limits.max_power_w.map(|most| most * 1.3), ..case.limits };
    let wider = Space::from_boxes(grid.clone(), &wider).unwrap();
    let space = Space::from_boxes(grid, &case.limits).unwrap();
    let build = |settings: &Vec<(String, FieldValue)>| {
        let mut document = document.clone();
        settings.iter().for_each(|(key, value)| document.set_field(key, value).unwrap());
        document.build_fabric().unwrap().for_devices(DEVICES).unwrap()
    };
    // A space of single chips has only the fabrics of chips within the limits.
    let [fabrics, fabrics_alone] =
        [&space, &one_by_one].map(|space| space.fabric_settings().iter().map(build).collect::<Vec<Fabric>>());
    let (models, stack) =
        (["opt-350m", "bert-large"].map(|name| Model::load(name).unwrap()), SoftwareStack::load(case.stack).unwrap());
    let plans = PlanSpace {
        context: Some(vec![1]),
        virtual_stages: Some(vec![1]),
        splits: Some(Splits::Listed(vec![None])),
        activations: Some(vec![workloads::ActivationPolicy::None, workloads::ActivationPolicy::Full]),
        schedules: Some(vec![sim::pipeline::PipelineSchedule::OneForwardOneBackward]),
        ..PlanSpace::default()
    };
    let job = |model, fabric| Job {
        model,
        chip: &reference,
        fabric,
        stack: &stack,
        devices: DEVICES,
        global_batch: 32,
        sequence_length: 512,
        attention: Attention::Fused,
        precision: stack.precision_of_run(Precision::MIXED_BF16),
        optimizer: Optimizer::Adam,
        headroom: Bytes::ZERO,
        fit: NO_MARGIN,
        techniques: workloads::Techniques::none(),
    };
    let on_all = |fabrics, model| {
        let fabrics = <[Fabric]>::iter(fabrics);
        fabrics.map(|fabric| PreparedJob::new(job(model, fabric), &plans).unwrap()).collect::<Vec<_>>()
    };
    let count = if case.both { 2 } else { 1 };
    let prepare = |fabrics| models.iter().take(count).map(|model| on_all(fabrics, model)).collect::<Vec<_>>();
    let (prepared, prepared_alone) = (prepare(&fabrics[..]), prepare(&fabrics_alone[..]));
    let of = |prepared| match case.both {
        true => {
            Workload { prepared, share: 0.5, reference: ReferenceStep { time: Seconds(0.3), energy: Joules(70.0) } }
        }
        false => Workload::of_one_model(prepared),
    };
    let workloads: Vec<Workload<'_>> = prepared.iter().map(|prepared| of(prepared)).collect();
    let workloads_alone: Vec<Workload<'_>> = prepared_alone.iter().map(|prepared| of(prepared)).collect();
    let search = DesignSearch { workloads: &workloads, space: &space, aim: case.aim, robust: None };
    let run = |search: DesignSearch<'_>, threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| DesignWatch::silent(|watch| search.run_design_search(watch))).unwrap()
    };
    let (one, four) = (run(search, 1), run(search, 4));
    prop_assert_eq!(format!("{one:?}"), format!("{four:?}"), "the number of threads shows");
    // Chip by chip, as in spaces without boxes.
    let alone = run(DesignSearch { space: &one_by_one, workloads: &workloads_alone, ..search }, 1);
    let answer = |space: &Space, of: &DesignAnswer| {
        of.front
            .iter()
            .map(|&at| format!("{} {}", space.describe_design(of.designs[at].id), of.value_of_design(at)))
            .collect::<Vec<_>>()
    };
    prop_assert_eq!(answer(&space, &one), answer(&one_by_one, &alone), "boxes show");
    prop_assert_eq!(alone.outside.total() + alone.designs.len(), space.chip_count());
    in_parts(&search, &one)?;
    in_parts(&DesignSearch { space: &one_by_one, workloads: &workloads_alone, ..search }, &alone)?;
    let truth = brute_force(&search);
    let mut front = Front::default();
    for (id, known) in truth.iter().enumerate() {
        if let Some((costs, value)) = *known {
            front.insert(FrontPoint { costs, value, id });
        }
    }
    // Among equal designs, the front keeps the first one, as the exhaustive front does.
    let expected: Vec<(usize, f64)> = front.points().iter().map(|p| (p.id, p.value)).collect();
    let found: Vec<(usize, f64)> =
        one.front.iter().map(|&at| (one.designs[at].id.point, one.value_of_design(at))).collect();
    prop_assert_eq!(&found, &expected, "the front");
    let best = one.best.map(|at| one.value_of_design(at));
    prop_assert_eq!(best, front.best_point().map(|p| p.value), "the best");
    for of in &one.boxes {
        let CandidateOutcome::Pruned { bound, .. } = of.outcome else { panic!("{of:?}") };
        for point in space.points_of_region(&of.region) {
            let value = truth[point].map(|(_, value)| value);
            prop_assert!(value.is_none_or(|value| bound <= value * (1.0 + 1e-9)), "{bound} {value:?} of {point}");
        }
    }
    let in_boxes: u64 = one.boxes.iter().map(|of| of.region.combination_count()).sum();
    prop_assert_eq!(one.outside.total() as u64 + one.designs.len() as u64 + in_boxes, space.chip_count() as u64);
    more_power_is_no_slower(&search, &wider)?;
    bad_ends(&search)?;
    for design in &one.designs {
        match (&design.outcome, truth[design.id.point]) {
            // The factor allows for rounding in the bounds of schedules.
            (CandidateOutcome::Pruned { bound, .. }, Some((_, value))) => {
                prop_assert!(*bound <= value * (1.0 + 1e-9), "{bound} {value}")
            }
            (CandidateOutcome::Evaluated { value, .. }, known) => {
                prop_assert_eq!(Some(*value), known.map(|(_, value)| value))
            }
            (CandidateOutcome::Infeasible { .. }, known) => prop_assert_eq!(known, None),
            (CandidateOutcome::Open { .. }, _) => prop_assert!(false, "undecided without a limit"),
            (CandidateOutcome::Pruned { .. }, None) => {}
            (CandidateOutcome::Excluded(_), _) => prop_assert!(false, "a design that is none"),
        }
    }
    Ok(())
}

/// A search by the bad ends of steps finds the optimum of brute force. Its design's bad end is no worse than that of
/// the design found by predicted steps. If all plans have the same factor, both searches find the same design.
fn bad_ends(search: &DesignSearch<'_>) -> Result<(), TestCaseError> {
    if search.aim.objective == Objective::EnergyPerToken || search.aim.pays_energy() {
        return Ok(());
    }
    let plain = DesignSearch { aim: Aim { axes: CostAxes::single(FrontAxis::None), ..search.aim }, ..*search };
    let run = |search: DesignSearch<'_>| DesignWatch::silent(|watch| search.run_design_search(watch)).unwrap();
    let best = |of: &DesignAnswer| of.best.map(|at| of.designs[at].id);
    let by_steps = best(&run(plain));
    let twice: StepFactor = |_, _| 2.0;
    let tensor: StepFactor = |_, plan| if plan.plan.layout.tensor > 1 { 1.25 } else { 3.0 };
    // A limit on steps applies to the bad end.
    let later = Aim { max_step: plain.aim.max_step.map(|most| most * 2.0), ..plain.aim };
    let equal =
        run(DesignSearch { robust: Some(RobustSearch { factor: twice, least: &[2.0; 2] }), aim: later, ..plain });
    prop_assert_eq!(best(&equal), by_steps);
    let robust = DesignSearch { robust: Some(RobustSearch { factor: tensor, least: &[1.25; 2] }), ..plain };
    let (found, truth) = (run(robust), brute_force(&robust));
    let value = found.best.map(|at| found.value_of_design(at));
    let values = || truth.iter().flatten().map(|(_, value)| *value);
    prop_assert_eq!(value, values().reduce(f64::min), "the best at its bad end");
    let chosen_by_steps = by_steps.and_then(|id| truth[id.point]);
    prop_assert!(chosen_by_steps.is_none_or(|(_, chosen)| value.is_some_and(|value| value <= chosen)));
    if let SolveStatus::Gap { lower_bound, .. } = found.status {
        prop_assert!(values().all(|value| lower_bound <= value * (1.0 + 1e-9)), "{lower_bound}");
    }
    in_parts(&robust, &found)
}

/// Results that parts have sent, by part.
type Board = std::cell::RefCell<std::collections::BTreeMap<u32, Vec<FrontPoint>>>;

struct Listener<'a>(u32, &'a Board);

impl runner::ShardExchange for Listener<'_> {
    fn exchange_results(&mut self, own: &[FrontPoint]) -> Vec<FrontPoint> {
        self.1.borrow_mut().insert(self.0, own.to_vec());
        self.1.borrow().iter().filter(|(part, _)| **part != self.0).flat_map(|(_, front)| front).copied().collect()
    }
}

/// Parts, one of them started again after the others, give the answer of the whole; so do parts without exchange.
fn in_parts(search: &DesignSearch<'_>, whole: &DesignAnswer) -> Result<(), TestCaseError> {
    const PARTS: u32 = 3;
    let board = Board::default();
    let part = |part: u32, listens: bool| {
        let mut listener = Listener(part, &board);
        let others = listens.then_some(&mut listener as &mut dyn runner::ShardExchange);
        DesignWatch::silent(|watch| search.run_design_part(Shard { part, of: PARTS }, watch, others)).unwrap()
    };
    let front = |of: &DesignAnswer| {
        of.front.iter().map(|&at| (of.designs[at].id, of.designs[at].outcome.clone())).collect::<Vec<_>>()
    };
    for listens in [true, false] {
        let mut answers: Vec<PartAnswer> = (1..=PARTS).map(|number| part(number, listens)).collect();
        answers[0] = part(1, listens);
        let merged = search.merge_parts(&answers).unwrap();
        prop_assert_eq!(front(&merged), front(whole), "parts show");
        prop_assert_eq!(
            merged.best.map(|at| merged.value_of_design(at)),
            whole.best.map(|at| whole.value_of_design(at))
        );
        prop_assert_eq!(&merged.status, &whole.status);
        // Excluded designs inside a pruned box are counted with the box. Which boxes are pruned may differ.
        let in_boxes = |of: &DesignAnswer| of.boxes.iter().map(|of| of.region.combination_count()).sum::<u64>();
        let all = |of: &DesignAnswer| of.outside.total() as u64 + of.designs.len() as u64 + in_boxes(of);
        prop_assert_eq!(all(&merged), all(whole), "every design is decided once");
        // A part's wrong claim is detected.
        let mut damaged = answers;
        let best = merged.best.map(|at| merged.designs[at].id.point);
        let evaluated = damaged.iter_mut().flat_map(|part| &mut part.decided);
        for (_, fate) in evaluated.filter(|(set, _)| best.is_some_and(|best| *set == DecidedDesigns::One(best))) {
            *fate = PartDecision::Evaluated(whole.value_of_design(whole.best.unwrap()) * 0.99);
        }
        prop_assert_eq!(search.merge_parts(&damaged).is_err(), best.is_some());
    }
    Ok(())
}

/// Under a higher power limit no chip is slower, and none is lost.
fn more_power_is_no_slower(search: &DesignSearch<'_>, wider: &Space) -> Result<(), TestCaseError> {
    for point in (0..search.space.chip_count()).step_by(5) {
        let SingleCombination::Chip(slow, _) = search.space.single_point(point).unwrap() else { continue };
        let SingleCombination::Chip(fast, figures) = wider.single_point(point).unwrap() else {
            panic!("{point} is lost")
        };
        prop_assert!(
            fast.clock >= slow.clock
                && figures.peak_power.0 <= search.space.limits().max_power_w.map_or(f64::INFINITY, |most| most * 1.3)
        );
        let prepared = search.prepared_job(0, search.space.with_largest_memory(point));
        let step = |chip: &Accelerator| best_plan(prepared, chip).outcome.ok().map(|plan| plan.time.total.0);
        let (slow, fast) = (step(&slow), step(&fast));
        prop_assert_eq!(slow.is_some(), fast.is_some());
        prop_assert!(
            fast <= slow.map(|seconds| seconds * (1.0 + 1e-9)),
            "{fast:?} with more power, {slow:?} with less"
        );
    }
    Ok(())
}

#[test]
fn chips_one_by_one_are_bounded_until_the_search_is_stopped() {
    const LOOKS: usize = 5;
    let study = crate::study::Study::load("smoke").unwrap();
    let crate::space::Chips::Phaze(grid) = &study.space.chips else { panic!("smoke has PHAZE's chips") };
    let reference = ChipTemplate::find_built_in("phaze_tpuv4").unwrap().accelerator.clone();
    let space = Space::from_phaze(grid, &study.space.limits, &reference).unwrap();
    let fabric = Fabric::load("phaze_flat").unwrap().for_devices(DEVICES).unwrap();
    let (model, stack) = (Model::load("opt-350m").unwrap(), SoftwareStack::load("ideal").unwrap());
    let job = Job {
        model: &model,
        chip: &reference,
        fabric: &fabric,
        stack: &stack,
        devices: DEVICES,
        global_batch: 32,
        sequence_length: 512,
        attention: Attention::Fused,
        precision: stack.precision_of_run(Precision::MIXED_BF16),
        optimizer: Optimizer::Adam,
        headroom: Bytes::ZERO,
        fit: NO_MARGIN,
        techniques: workloads::Techniques::none(),
    };
    let prepared = [PreparedJob::new(job, &study.plan.choices).unwrap()];
    let workloads = [Workload::of_one_model(&prepared)];
    let aim = Aim { evaluations: usize::MAX, ..Aim::default() };
    let problem = ChipProblem::new(DesignSearch { workloads: &workloads, space: &space, aim, robust: None });
    // The stop function returns false `LOOKS` times.
    let asked = AtomicUsize::new(0);
    let nodes = runner::SearchProblem::root_nodes(&problem, &|| asked.fetch_add(1, Ordering::SeqCst) >= LOOKS);
    assert_eq!((nodes.len(), asked.into_inner()), (space.chip_count(), space.chip_count()));
    assert!(nodes.len() > LOOKS);
    assert_eq!(nodes.iter().filter(|node| node.bound > 0.0).count(), LOOKS);
    let all = runner::SearchProblem::root_nodes(&problem, &|| false);
    assert!(all.iter().all(|node| node.bound > 0.0));
}

/// Links and shapes of the torus change the price of the system: the search weighs them like the chip's own price.
#[test]
fn dollars_pay_for_the_system_too() {
    let lists: [&[u32]; 6] = [&[1, 2], &[2], &[64, 128], &[1], &[500, 1050], &[2, 6]];
    let operation = OperatingCost { dollars: PaidHardware::System, ..OperatingCost::default() };
    let objective = Objective::PerDollar;
    let aim = Aim { objective, operation, axes: CostAxes::single(FrontAxis::None), ..Aim::default() };
    let aim = Aim { evaluations: usize::MAX, ..aim };
    for years in [0.0, 4.0] {
        let aim = Aim { operation: OperatingCost { years, ..operation }, ..aim };
        let dimensions = dimensions_text(lists, "[\"8x1x1\", [2, 2, 2]]");
        let case = Case { dimensions, stack: "ideal", both: false, aim, limits: ChipLimits::default() };
        check(&case).unwrap();
    }
    // On a host of four chips without links the system is dearer than the chip.
    let fabric = Fabric::load("tpu_v4_ici").unwrap().for_devices(DEVICES).unwrap();
    let constants = sim::hardware::Constants::nominal();
    assert!(aim.counted_system_usd(&fabric, &constants) > 4000.0);
    let chips = Aim { operation: OperatingCost::default(), ..aim };
    assert_eq!(chips.counted_system_usd(&fabric, &constants), 0.0);
    // A fabric without known parts has no price, and no design on it is found.
    let ideal = Fabric::load("ideal_switch").unwrap().for_devices(DEVICES).unwrap();
    assert_eq!(aim.counted_system_usd(&ideal, &constants), f64::INFINITY);
}

/// A model that no memory of the space holds is found out without an evaluation of every chip.
#[test]
fn that_nothing_fits_is_known_from_few_chips() {
    let text = dimensions_text([&[1, 2, 4], &[1, 2, 4], &[32, 64, 128], &[1, 2, 4], &[500, 1050], &[2, 6]], "");
    let dimensions = crate::space::read_dimensions(&toml::from_str(&text).unwrap()).unwrap();
    let document = FabricDocument::load_for("tpu_v4_ici", "tpu_v4").unwrap();
    let base = ChipDocument::of_built_in_chip("tpu_v4").unwrap().strip_measured(true);
    let reference = base.build_accelerator().unwrap();
    let grid = Grid::new(base, &dimensions, &|key| document.field_value(key)).unwrap();
    let space = Space::from_boxes(grid, &ChipLimits::default()).unwrap();
    let build = |settings: &Vec<(String, FieldValue)>| {
        let mut document = document.clone();
        settings.iter().for_each(|(key, value)| document.set_field(key, value).unwrap());
        document.build_fabric().unwrap().for_devices(DEVICES).unwrap()
    };
    let fabrics: Vec<Fabric> = space.fabric_settings().iter().map(build).collect();
    let (model, stack) = (Model::load("llama2-7b").unwrap(), SoftwareStack::load("ideal").unwrap());
    let job = |fabric| Job {
        model: &model,
        chip: &reference,
        fabric,
        stack: &stack,
        devices: DEVICES,
        global_batch: 32,
        sequence_length: 512,
        attention: Attention::Fused,
        precision: stack.precision_of_run(Precision::MIXED_BF16),
        optimizer: Optimizer::Adam,
        headroom: Bytes::ZERO,
        fit: NO_MARGIN,
        techniques: workloads::Techniques::none(),
    };
    let prepared: Vec<PreparedJob<'_>> =
        fabrics.iter().map(|fabric| PreparedJob::new(job(fabric), &PlanSpace::default()).unwrap()).collect();
    let workloads = [Workload::of_one_model(&prepared)];
    let search = DesignSearch {
        workloads: &workloads,
        space: &space,
        aim: Aim { evaluations: usize::MAX, ..Aim::default() },
        robust: None,
    };
    let found = search.run_design_search(DesignWatch { stop: &|| false, told: &mut |_, _| {} }).unwrap();
    assert!(matches!(&found.status, SolveStatus::Infeasible { why } if why.contains("no plan fits")), "{found:?}");
    assert!(found.counts.evaluated <= 2, "{found:?}");
    let without = |outcome: &CandidateOutcome<_>| matches!(outcome, CandidateOutcome::Excluded(Exclusion::NoPlan));
    let alone = found.designs.iter().filter(|of| without(&of.outcome)).count() as u64;
    let in_boxes = found.boxes.iter().filter(|of| without(&of.outcome)).map(|of| of.region.combination_count());
    let decided = found.counts.evaluated + alone + in_boxes.sum::<u64>() + found.outside.total() as u64;
    assert_eq!(decided, space.combination_count());
}

/// Number of small spaces with random dimensions, objectives, axes and limits: 2, or the value of COPLACE_SPACES.
fn cases() -> u32 {
    std::env::var("COPLACE_SPACES").ok().and_then(|n| n.parse().ok()).unwrap_or(2)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]
    #[test]
    fn the_search_finds_what_brute_force_finds_whatever_the_threads(case in case()) {
        check(&case)?;
    }
}

/// Cases that failed once.
#[test]
fn what_failed_once_is_found_as_by_brute_force() {
    let of = |lists: [&[u32]; 6], shapes: &str, axes: CostAxes, limits: ChipLimits| Case {
        dimensions: dimensions_text(lists, shapes),
        stack: "ideal",
        both: false,
        aim: Aim { axes, evaluations: usize::MAX, gap: 0.0, ..Aim::default() },
        limits,
    };
    let none = ChipLimits::default();
    let area = || CostAxes::parse_list("area").unwrap();
    let cases = [
        of([&[1], &[4], &[128], &[2], &[1050], &[6]], "", area(), ChipLimits { max_power_w: Some(60.0), ..none }),
        of(
            [&[1], &[2], &[64], &[2], &[1050], &[2, 6]],
            "[\"8x1x1\", [2, 2, 2]]",
            area(),
            ChipLimits { max_area_mm2: Some(300.241_712_134_365_57), ..none },
        ),
        of(
            [&[4], &[4], &[32], &[1, 4], &[500, 1050], &[2]],
            "",
            CostAxes::parse_list("energy").unwrap(),
            ChipLimits { max_hbm_gib: Some(3.0), ..none },
        ),
    ];
    for case in &cases {
        check(case).unwrap();
    }
}
