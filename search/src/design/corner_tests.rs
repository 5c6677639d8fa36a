//! Boxes of the built-in studies against their chips.
#![allow(clippy::unwrap_used, clippy::panic)]
use super::bounds::BoundDepth;
use super::*;
use crate::objective::PaidHardware;
use crate::planner::{Job, NO_MARGIN, PlanSpace, Splits};
use crate::space::{ChipLimits, Chips, EfficiencyChoice, Enclosed, Grid, SingleCombination};
use crate::study::Study;
use proptest::prelude::*;
use sim::hardware::ChipDocument;
use sim::network::{Fabric, FabricDocument};
use step::SoftwareStack;
use workloads::Model;
use workloads::footprint::{Optimizer, Precision};
use workloads::training::Attention;

const DEVICES: u32 = 8;
/// Allowance for rounding: a box's bound may add the same terms in another order than a chip's.
const ROUNDING: f64 = 1.0 + 2e-9;

/// A part of a study's space, by halving, and one of its chips.
#[derive(Debug, Clone)]
struct Case {
    study: &'static str,
    halvings: Vec<(usize, bool)>,
    member: usize,
    objective: Objective,
    efficiency: EfficiencyChoice,
    axes: CostAxes,
    max_power_w: Option<f64>,
    years: f64,
    dollars: PaidHardware,
}

fn case() -> impl Strategy<Value = Case> {
    let objectives = prop::sample::select(Objective::NAMES.map(|(_, objective)| objective).to_vec());
    let axes = super::tests::axes();
    let halvings = prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 4..26);
    let studies = prop::sample::select(vec!["tpu", "gpu"]);
    let powers = prop::option::weighted(0.75, 100.0..900.0_f64);
    let years = prop::sample::select(vec![0.0, 4.0]);
    let efficiencies = prop::sample::select(EfficiencyChoice::NAMES.map(|(_, efficiency)| efficiency).to_vec());
    let paid = (years, prop::sample::select(PaidHardware::NAMES.map(|(_, dollars)| dollars).to_vec()));
    let all = (studies, halvings, any::<prop::sample::Index>(), objectives, efficiencies, axes, powers, paid);
    all.prop_map(|(study, halvings, member, objective, efficiency, axes, max_power_w, (years, dollars))| {
        let halvings = halvings.into_iter().map(|(index, upper)| (index.index(64), upper)).collect();
        Case {
            study,
            halvings,
            member: member.index(1 << 20),
            objective,
            efficiency,
            axes,
            max_power_w,
            years,
            dollars,
        }
    })
}

fn check(case: &Case) -> Result<(), TestCaseError> {
    let study = Study::load(case.study).unwrap();
    let Chips::Grid(spec) = &study.space.chips else { panic!("a base chip's relatives") };
    let fabric = FabricDocument::load_for(&study.cluster.fabric, &spec.base_chip).unwrap();
    let base = ChipDocument::of_built_in_chip(&spec.base_chip).unwrap();
    let mut base = base.strip_measured(case.efficiency != EfficiencyChoice::Base);
    let reference = base.build_accelerator().unwrap();
    if case.efficiency == EfficiencyChoice::Family {
        base.set_family_efficiency(reference.family());
    }
    let grid = Grid::new(base, &spec.dimensions, &|key| fabric.field_value(key)).unwrap();
    let space =
        Space::from_boxes(grid, &ChipLimits { max_power_w: case.max_power_w, ..ChipLimits::default() }).unwrap();
    let build = |settings: &Vec<_>| {
        let mut document = fabric.clone();
        settings.iter().for_each(|(key, value): &(String, _)| document.set_field(key, value).unwrap());
        document.build_fabric().unwrap().for_devices(DEVICES).unwrap()
    };
    let fabrics: Vec<Fabric> = space.fabric_settings().iter().map(build).collect();
    let (model, stack) = (Model::load("opt-350m").unwrap(), SoftwareStack::load("ideal").unwrap());
    let plans = PlanSpace {
        context: Some(vec![1]),
        virtual_stages: Some(vec![1]),
        splits: Some(Splits::Listed(vec![None])),
        activations: Some(vec![workloads::ActivationPolicy::None]),
        schedules: Some(vec![sim::pipeline::PipelineSchedule::OneForwardOneBackward]),
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
        precision: stack.precision_of_run(Precision::MIXED_BF16),
        optimizer: Optimizer::Adam,
        headroom: Bytes::ZERO,
        fit: NO_MARGIN,
        techniques: workloads::Techniques::none(),
    };
    let prepared: Vec<PreparedJob<'_>> =
        fabrics.iter().map(|fabric| PreparedJob::new(job(fabric), &plans).unwrap()).collect();
    let operation = OperatingCost { years: case.years, dollars: case.dollars, ..OperatingCost::default() };
    let aim = Aim { objective: case.objective, operation, axes: case.axes, ..Aim::default() };
    let search = DesignSearch { workloads: &[Workload::of_one_model(&prepared)], space: &space, aim, robust: None };
    let mut region = space.whole_region().unwrap();
    for (which, upper) in &case.halvings {
        let open: Vec<usize> = region.open_dimensions().collect();
        let Some(&dimension) = open.get(which % open.len().max(1)) else { break };
        let [low, high] = region.split_in_halves(dimension);
        region = if *upper { high } else { low };
    }
    let members = space.points_of_region(&region);
    prop_assert_eq!(members.len() as u64, region.combination_count());
    prop_assert_eq!(members.iter().min().copied(), Some(space.first_point(&region)));
    let point = members[case.member % members.len()];
    let single = space.single_point(point).unwrap();
    let enclosed = space.enclose_boxes(&region).unwrap();
    if matches!(enclosed, Enclosed::Outside(_)) {
        prop_assert!(
            matches!(single, SingleCombination::Outside(_)),
            "{} is within the limits, its box is not",
            space.describe_design(space.with_largest_memory(point))
        );
        return Ok(());
    }
    let SingleCombination::Chip(chip, figures) = single else { return Ok(()) };
    let id = space.with_largest_memory(point);
    let own = search.see_chip(*chip, figures, space.fabric_of_design(id));
    let Enclosed::Within(corners) = enclosed else {
        // Only a box with several words in a dimension, such as the process, may have no bound.
        prop_assert!(!space.word_dimensions_of(&region).is_empty(), "{} has no bound", space.describe_design(id));
        return Ok(());
    };
    prop_assert!(corners.fabrics.contains(&space.fabric_of_design(id)));
    prop_assert_eq!(own.figures.cost_usd.is_some(), corners.least.cost_usd.is_some());
    let seen = search.see_box(*corners);
    let below = |least: f64, own: f64, what: &str| {
        prop_assert!(least <= own * ROUNDING, "{what} of the box {least}, of {} {own}", space.describe_design(id));
        Ok(())
    };
    below(seen.figures.area.0, own.figures.area.0, "area")?;
    below(seen.figures.peak_power.0, own.figures.peak_power.0, "power")?;
    below(seen.figures.cost_usd.unwrap_or(0.0), own.figures.cost_usd.unwrap_or(0.0), "cost")?;
    below(seen.figures.system_usd, own.figures.system_usd, "system price")?;
    for (least, exact) in search.least_costs(&seen).into_iter().zip(search.least_costs(&own)) {
        below(least, exact, "cost along an axis")?;
    }
    below(
        search.coarse_lower_bound(&seen, BoundDepth::Buffered, &mut Vec::new()),
        search.coarse_lower_bound(&own, BoundDepth::Buffered, &mut Vec::new()),
        "coarse bound",
    )?;
    let mut known = Vec::new();
    let fine = search.fine_lower_bound(&own, f64::INFINITY, &mut Vec::new());
    below(search.fine_lower_bound(&seen, f64::INFINITY, &mut known), fine, "fine bound")?;
    // Bounds of the box hold for its chips.
    let within = search.fine_lower_bound(&own, f64::INFINITY, &mut known.clone());
    prop_assert!(within == fine || (within / fine - 1.0).abs() < 1e-6, "{within} within the box, {fine} alone");
    // A bound that only has to reach a cutoff reaches it.
    let cutoff = fine * 0.9;
    below(search.fine_lower_bound(&seen, cutoff, &mut Vec::new()), fine, "fine bound up to a cutoff")?;
    Ok(())
}

/// Number of random parts of studies: 24, or the value of COPLACE_BOXES.
fn cases() -> u32 {
    std::env::var("COPLACE_BOXES").ok().and_then(|n| n.parse().ok()).unwrap_or(24)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn no_chip_of_a_box_is_better_than_its_bound(case in case()) {
        check(&case)?;
    }
}
