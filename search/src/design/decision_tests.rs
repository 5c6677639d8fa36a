//! Compares estimates of how sure a choice is with the values of all designs, under the estimate's own draws and under
//! further draws.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]
use super::decision::{DecisionAnswer, DecisionEffort, decide_under_draws};
use super::draws::ConstantDraws;
use super::*;
use crate::planner::{Job, NO_MARGIN, PlanSpace, Splits};
use crate::random::SeededRandom;
use crate::runner::Verdict;
use crate::space::{ChipLimits, Chips, EfficiencyChoice, Grid};
use crate::study::Study;
use sim::hardware::ChipDocument;
use sim::network::{Fabric, FabricDocument};
use step::SoftwareStack;
use workloads::Model;
use workloads::footprint::{Optimizer, Precision};
use workloads::training::Attention;

const DEVICES: u32 = 8;

/// A small random study: some values of a built-in study's dimensions, with limits.
struct SmallStudy {
    dimensions: String,
    limits: ChipLimits,
    objective: Objective,
}

impl SmallStudy {
    fn draw(seed: u64) -> Self {
        let mut random = SeededRandom(seed);
        let mut some = |all: &[u32], most: usize| -> Vec<u32> {
            let mut left = all.to_vec();
            let count = 1 + random.next_below(most as u64) as usize;
            let mut taken: Vec<u32> =
                (0..count).map(|_| left.remove(random.next_below(left.len() as u64) as usize)).collect();
            taken.sort_unstable();
            taken
        };
        let (arrays, lanes) = (some(&[2, 4, 8, 12], 3), some(&[1024, 2048, 4096], 2));
        let (cmem, stacks) = (some(&[0, 32, 128], 2), some(&[2, 4, 6], 2));
        let clock = some(&[850, 1250, 1750], 2);
        let dimensions = format!(
            "\"area.node\" = [\"n5\"]\n\"energy.node\" = \"area.node\"\n\
             \"tensor.arrays_per_core\" = {arrays:?}\n\"vector.lanes\" = {lanes:?}\n\
             \"area.fp32_units\" = \"vector.lanes\"\ncmem_mib = {cmem:?}\n\"memory.cmem.capacity_mib\" = \"cmem_mib\"\n\
             \"memory.cmem.read_gb_per_s\" = \"32 * cmem_mib\"\n\"memory.cmem.write_gb_per_s\" = \"16 * cmem_mib\"\n\
             \"area.chip_memory.global_buffer.capacity_kib\" = \"1024 * cmem_mib\"\nhbm_stacks = {stacks:?}\n\
             \"area.hbm_stacks\" = \"hbm_stacks\"\n\"memory.hbm.read_gb_per_s\" = \"300 * hbm_stacks\"\n\
             \"memory.hbm.write_gb_per_s\" = \"300 * hbm_stacks\"\nclock_mhz = {clock:?}\n"
        );
        let objectives = [Objective::Throughput, Objective::PerWatt, Objective::PerDollar, Objective::EnergyPerToken];
        let objective = objectives[random.next_below(objectives.len() as u64) as usize];
        let max_power_w = (random.next_below(2) == 0).then(|| 120.0 + 200.0 * random.next_unit());
        Self { dimensions, limits: ChipLimits { max_power_w, ..ChipLimits::default() }, objective }
    }

    /// Searches the study, decides under draws, and gives both to a check.
    fn decide<T>(
        &self,
        effort: DecisionEffort,
        check: impl FnOnce(&DesignSearch<'_>, &DesignAnswer, DecisionAnswer) -> T,
    ) -> Option<T> {
        let study = Study::load("tpu").unwrap();
        let dimensions = crate::space::read_dimensions(&toml::from_str(&self.dimensions).unwrap()).unwrap();
        let Chips::Grid(spec) = &study.space.chips else { panic!("a base chip's relatives") };
        assert_eq!(spec.efficiency, EfficiencyChoice::Family);
        let fabric = FabricDocument::load_for(&study.cluster.fabric, &spec.base_chip).unwrap();
        let mut base = ChipDocument::of_built_in_chip(&spec.base_chip).unwrap().strip_measured(true);
        base.set_family_efficiency(base.build_accelerator().unwrap().family());
        let reference = base.build_accelerator().unwrap();
        let grid = Grid::new(base, &dimensions, &|key| fabric.field_value(key)).unwrap();
        let space = Space::from_relatives(grid, &self.limits).unwrap();
        let fabric: Fabric = fabric.build_fabric().unwrap().for_devices(DEVICES).unwrap();
        let (model, stack) = (Model::load("opt-350m").unwrap(), SoftwareStack::load("ideal").unwrap());
        let plans = PlanSpace {
            tensor: Some(vec![1, 2]),
            pipeline: Some(vec![1]),
            context: Some(vec![1]),
            virtual_stages: Some(vec![1]),
            splits: Some(Splits::Listed(vec![None])),
            activations: Some(vec![workloads::ActivationPolicy::None]),
            schedules: Some(vec![sim::pipeline::PipelineSchedule::OneForwardOneBackward]),
            ..PlanSpace::default()
        };
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
        let prepared = [PreparedJob::new(job, &plans).unwrap()];
        let axes = CostAxes::single(FrontAxis::None);
        let aim = Aim { objective: self.objective, axes, evaluations: usize::MAX, ..Aim::default() };
        let search = DesignSearch { workloads: &[Workload::of_one_model(&prepared)], space: &space, aim, robust: None };
        let answer = DesignWatch::silent(|watch| search.run_design_search(watch)).unwrap();
        let decision = decide_under_draws(&search, &answer, effort, &|| false).ok()??;
        Some(check(&search, &answer, decision))
    }
}

/// Number of random studies: 12, or the value of COPLACE_STUDIES.
fn studies() -> u64 {
    std::env::var("COPLACE_STUDIES").ok().and_then(|n| n.parse().ok()).unwrap_or(12)
}

/// The values of all designs of a space under drawn constants, each evaluated on its own.
fn values_under(search: &DesignSearch<'_>, draws: &ConstantDraws, draw: usize) -> Vec<(DesignId, f64)> {
    let space = search.space.with_constants(&draws.values_of_draw(draw)).unwrap();
    let there = DesignSearch { space: &space, ..*search };
    (0..search.space.chip_count())
        .map(|point| search.space.with_largest_memory(point))
        .map(|id| {
            let chip = space.chip_of_design(id).unwrap();
            let figures = space.figures_of_design(id, &chip);
            let most = space.limits().power_limit(&chip, figures.area);
            let over = most.is_some_and(|limit| figures.peak_power.0 > limit.most.0 * (1.0 + 1e-6));
            match there.evaluate_design(id, f64::INFINITY) {
                Verdict::Feasible { value, .. } if !over => (id, value),
                _ => (id, f64::INFINITY),
            }
        })
        .collect()
}

fn least(values: &[(DesignId, f64)]) -> f64 {
    values.iter().map(|(_, value)| *value).fold(f64::INFINITY, f64::min)
}

#[test]
fn every_design_that_is_best_under_some_draw_is_a_finalist() {
    let effort = DecisionEffort { draws: 12, ..DecisionEffort::default() };
    let mut checked = 0;
    for seed in 0..studies() {
        let check = |search: &DesignSearch<'_>, _: &DesignAnswer, decision: DecisionAnswer| {
            assert_eq!(decision.draws.places.len() + decision.left_out, effort.draws);
            if seed < 2 {
                // A constant that moves one design alone is drawn too.
                for finalist in &decision.finalists {
                    let own = search.influential_constants(&[finalist.id]).unwrap().keys;
                    assert!(own.iter().all(|key| decision.draws.keys.contains(key)), "study {seed}: {own:?}");
                }
            }
            for draw in 0..decision.draws.places.len() {
                let values = values_under(search, &decision.draws, draw);
                let best = least(&values);
                let found = decision.finalists.iter().map(|one| one.values[draw]).fold(f64::INFINITY, f64::min);
                assert!((found / best - 1.0).abs() < 1e-9, "study {seed}, draw {draw}: {found} of {best}");
            }
            let sum: f64 = decision.finalists.iter().map(|one| one.probability_best).sum();
            assert!((sum - 1.0).abs() < 1e-9, "{sum}");
        };
        checked += usize::from(SmallStudy::draw(seed).decide(effort, check).is_some());
    }
    // A study gives no decision if no design is within the power limit under any draw, or if no drawn constant matters.
    assert!(checked as u64 * 5 >= studies() * 4, "{checked}");
}

/// Draws further values of the constants (truths), independently of the decision's draws. Under them, the robust choice
/// has no more regret than the found design. The found design is the best about as often as the decision predicts.
#[test]
fn the_robust_choice_costs_less_and_chances_are_right_under_unseen_truths() {
    let effort = DecisionEffort { draws: 32, ..DecisionEffort::default() };
    // With only ten studies, the two choices may differ by less than the noise of the draws.
    let studies = studies().max(20);
    let (mut nominal, mut robust, mut said, mut seen, mut count) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for seed in 0..studies {
        let check = |search: &DesignSearch<'_>, answer: &DesignAnswer, decision: DecisionAnswer| {
            let truths = ConstantDraws::draw_constants(decision.draws.keys.clone(), 3, seed + 1_000);
            let found = answer.designs[answer.best.unwrap()].id;
            let chosen = decision.finalists[decision.robust].id;
            for truth in 0..3 {
                let values = values_under(search, &truths, truth);
                let best = least(&values);
                if !best.is_finite() {
                    continue;
                }
                let regret = |of: DesignId| {
                    let value = values.iter().find(|(id, _)| *id == of).unwrap().1;
                    if value.is_finite() { value / best - 1.0 } else { 1.0 }
                };
                nominal += regret(found);
                robust += regret(chosen);
                said += decision.finalists[0].probability_best;
                seen += f64::from(u8::from(regret(found) < 1e-12));
                count += 1.0;
            }
        };
        SmallStudy::draw(seed).decide(effort, check);
    }
    // The book has these figures of 100 studies.
    let percent = |sum: f64| sum / count * 100.0;
    let found = [nominal, robust, said, seen].map(percent);
    println!(
        "{count} truths: nominal costs {:.2} %, robust {:.2} %; best said {:.1} %, seen {:.1} %",
        found[0], found[1], found[2], found[3]
    );
    assert!(count > 2.0 * studies as f64, "{count}");
    assert!(robust <= nominal, "robust {robust}, nominal {nominal}");
    assert!((said / count - seen / count).abs() < 0.1, "said {}, seen {}", said / count, seen / count);
}

#[test]
fn draws_cover_each_range_evenly_and_are_the_same_for_a_seed() {
    let keys = vec!["hbm.phy".to_owned(), "process.leakage.n5".to_owned()];
    let draws = ConstantDraws::draw_constants(keys.clone(), 100, 7);
    assert_eq!(draws, ConstantDraws::draw_constants(keys.clone(), 100, 7));
    assert_ne!(draws, ConstantDraws::draw_constants(keys, 100, 8));
    let all: Vec<f64> = (0..100).map(|draw| draws.values_of_draw(draw)["hbm.phy"]).collect();
    // The range is 8 to 13, with the nominal value 10. Half of the draws lie below 10, and the draws reach both ends.
    assert_eq!(all.iter().filter(|value| **value < 10.0).count(), 50);
    assert!(all.iter().all(|value| (8.0..=13.0).contains(value)));
    assert!(all.iter().any(|value| *value < 8.1) && all.iter().any(|value| *value > 12.9));
}
