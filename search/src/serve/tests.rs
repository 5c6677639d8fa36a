//! Searches of small random spaces against brute force over every chip and every pair of chips.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use super::*;
use crate::design::best_plan;
use crate::objective::Objective;
use crate::planner::{Job, NO_MARGIN, PlanSpace, PreparedJob};
use crate::random::SeededRandom;
use crate::space::{ChipLimits, Grid, read_dimensions};
use serving::ServingMethod;
use serving::apart::{SizedRate, apart, decode_rates, prompt_rates};
use serving::best::{GivenDegrees, ServiceLevel};
use serving::lengths::RequestLengths;
use serving::method::{Drafter, HeldPrefixes, Speculation};
use serving::plan::{ServedProduct, ServingFormats};
use sim::files::carried::Files;
use sim::hardware::{Accelerator, ChipDocument};
use sim::kernel::DataType;
use sim::network::FabricDocument;
use sim::units::{Bytes, Seconds, Watts};
use step::SoftwareStack;
use workloads::Model;
use workloads::footprint::{Optimizer, Precision};
use workloads::training::Attention;

struct Draws(SeededRandom);

impl Draws {
    fn below(&mut self, n: usize) -> usize {
        self.0.next_below(n as u64) as usize
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Returns one to `most` consecutive values of a list, as text.
    fn some<T: std::fmt::Debug>(&mut self, from: &[T], most: usize) -> String {
        let count = 1 + self.below(most);
        let first = self.below(from.len() - count + 1);
        format!("{:?}", &from[first..first + count])
    }
}

/// Draws a small space of variants of H100, with the space's fabrics for `devices` devices.
fn draw_space(draws: &mut Draws, devices: u32) -> (Space, Vec<Fabric>) {
    let dimensions = format!(
        "\"tensor.cores\" = {}\n\"area.cores\" = \"ceil(12 * tensor.cores / 11)\"\n\
         \"vector.cores\" = \"tensor.cores\"\n\"tensor.columns\" = {}\nhbm_stacks = {}\n\
         \"area.hbm_stacks\" = \"hbm_stacks\"\n\"memory.hbm.capacity_gib\" = \"{} * hbm_stacks\"\n\
         \"memory.hbm.read_gb_per_s\" = \"670 * hbm_stacks\"\n\"memory.hbm.write_gb_per_s\" = \"670 * hbm_stacks\"\n\
         links = {}\n\"area.links\" = \"links\"\n\"fabric.tier.nvlink.bandwidth_gb_per_s\" = \"25 * links\"\n",
        draws.some(&[72, 96, 120, 132, 144], 3),
        draws.some(&[16, 32], 2),
        draws.some(&[2, 3, 4, 5, 6, 8], 2),
        draws.pick(&[8, 16]),
        draws.some(&[9, 18, 36], 2),
    );
    let dimensions = read_dimensions(&toml::from_str(&dimensions).unwrap()).unwrap();
    let document = FabricDocument::load_for("nvlink4_node", "h100_80gb_sxm").unwrap();
    let base = ChipDocument::of_built_in_chip("h100_80gb_sxm").unwrap().strip_measured(true);
    let limits = ChipLimits { max_area_mm2: Some(858.0), max_power_w: Some(700.0), ..ChipLimits::default() };
    let grid = Grid::new(base, &dimensions, &|key| document.field_value(key)).unwrap();
    let space = Space::from_grid(grid, &limits).unwrap();
    let build = |settings: Vec<(String, sim::hardware::FieldValue)>| {
        let mut own = document.clone();
        settings.iter().for_each(|(key, value)| own.set_field(key, value).unwrap());
        own.build_fabric().unwrap().for_devices(devices).unwrap()
    };
    let fabrics = space.fabric_settings().into_iter().map(build).collect();
    (space, fabrics)
}

fn draw_question<'a>(draws: &mut Draws, model: &'a Model, devices: u32) -> ServingQuestion<'a> {
    let products = draws.pick(&[ServedProduct::Fp8, ServedProduct::Bf16, ServedProduct::Int4Weights]);
    let (input, output) = draws.pick(&[(512, 128), (2048, 256), (8192, 128), (128, 1024)]);
    let limit = |limit: f64| (limit > 0.0).then_some(Seconds(limit));
    let level = ServiceLevel {
        time_to_first_token: limit(draws.pick(&[0.0, 0.3, 1.0, 4.0])),
        time_per_output_token: limit(draws.pick(&[0.0, 0.008, 0.015, 0.03])),
    };
    let speculation = Some(Speculation::new(4, 2.5, Drafter::Lookup).unwrap());
    let method = draws.pick(&[
        ServingMethod::default(),
        ServingMethod { speculation, ..ServingMethod::default() },
        ServingMethod { prefixes: Some(HeldPrefixes::new(0.5, None).unwrap()), ..ServingMethod::default() },
    ]);
    ServingQuestion {
        model,
        devices,
        method,
        formats: ServingFormats { products, experts: products, cache: DataType::Bf16 },
        lengths: RequestLengths::uniform(input, output).unwrap(),
        level,
        given: GivenDegrees { pipeline: Some(1), ..GivenDegrees::default() },
        power_limit: draws.pick(&[None, Some(Watts(700.0)), Some(Watts(350.0))]),
    }
}

/// Tries all divisions of the devices into whole replicas. Returns the most requests per second of any.
fn split_by_brute_force(devices: u32, prompts: &[SizedRate], decoding: &[SizedRate]) -> f64 {
    let mut best = 0.0_f64;
    for (a, b) in prompts.iter().flat_map(|a| decoding.iter().map(move |b| (a, b))) {
        for (n, m) in (1..=devices).flat_map(|n| (1..=devices).map(move |m| (n, m))) {
            if n * a.devices + m * b.devices <= devices {
                best = best.max((f64::from(n) * a.rate).min(f64::from(m) * b.rate));
            }
        }
    }
    best
}

fn is_near(found: f64, truth: f64) -> bool {
    (found - truth).abs() <= truth.abs() * 1e-9
}

/// Counts of answers, so that the test cannot pass on empty spaces.
#[derive(Debug, Default)]
struct Seen {
    served: usize,
    pairs: usize,
    two_kinds: usize,
    trained: usize,
    split_costs: usize,
}

fn check_one_chip(served: &ServedSpace<'_>, chips: &[ServedChip], seen: &mut Seen, what: &str) {
    let bounds = served.bound_chips(chips);
    let values: Vec<f64> = chips.iter().map(|chip| served.price_chip(chip).0).collect();
    for (at, value) in values.iter().enumerate() {
        assert!(*value <= bounds.at_most(at), "{what}: chip {at} has {value}, above its bound {}", bounds.at_most(at));
    }
    let truth = values.iter().copied().fold(0.0, f64::max);
    match served.best_chip(chips) {
        Some(found) => {
            assert_eq!(found.value, truth, "{what}");
            assert!(found.open_bound <= found.value, "{what}: {} is left", found.open_bound);
            seen.served += 1;
        }
        None => assert_eq!(truth, 0.0, "{what}"),
    }
}

fn check_pair(served: &ServedSpace<'_>, chips: &[ServedChip], seen: &mut Seen, what: &str) {
    let output = served.question.lengths.mean_output();
    let devices = served.question.devices;
    let pools: Vec<(Vec<SizedRate>, Vec<SizedRate>)> = chips
        .iter()
        .map(|chip| {
            let hardware = served.hardware(chip).unwrap();
            (prompt_rates(served.question, hardware), decode_rates(served.question, hardware))
        })
        .collect();
    let most = |rates: &[SizedRate]| rates.iter().map(|own| own.rate / f64::from(own.devices)).fold(0.0, f64::max);
    for (chip, (prompts, decoding)) in chips.iter().zip(&pools) {
        assert!(most(prompts) <= chip.bounds.prompts(), "{what}: prompts of {}", chip.number);
        assert!(most(decoding) <= chip.bounds.decoding(), "{what}: decoding of {}", chip.number);
    }
    let (mut many, mut one, mut cluster) = (0.0_f64, 0.0_f64, 0.0_f64);
    for (i, (prompts, _)) in pools.iter().enumerate() {
        for (j, (_, decoding)) in pools.iter().enumerate() {
            let (a, b) = (most(prompts), most(decoding));
            let joint = if a + b > 0.0 { a * b / (a + b) } else { 0.0 };
            let split = split_by_brute_force(devices, prompts, decoding);
            // No finite cluster serves more per device than the limit for many devices.
            assert!(split <= joint * f64::from(devices) * (1.0 + 1e-12), "{what}: {split} on {devices}, {joint} each");
            if chips.len() <= 4 {
                let side = |at: usize| served.hardware(&chips[at]).unwrap();
                let answer = apart(served.question, side(i), side(j));
                let best = answer.deployments.first().map_or(0.0, |best| best.requests_per_second);
                assert!(is_near(best, split), "{what}: {best} deployed, {split} by brute force");
            }
            many = many.max(joint * output);
            cluster = cluster.max(split * output);
            one = if i == j { one.max(joint * output) } else { one };
        }
    }
    let Some(found) = served.best_pair(chips) else {
        assert_eq!(many, 0.0, "{what}");
        return;
    };
    assert!(is_near(found.many_devices, many), "{what}: {} on many devices, {many}", found.many_devices);
    assert!(is_near(found.one_kind, one), "{what}: {} with one kind, {one}", found.one_kind);
    seen.pairs += 1;
    seen.two_kinds += usize::from(found.prompts != found.decoding);
    let of_cluster = found.cluster.as_ref().map_or(0.0, |pair| pair.tokens_per_second);
    assert!(is_near(of_cluster, cluster), "{what}: {of_cluster} on the cluster, {cluster}");
    let deployed = found.cluster.and_then(|pair| Some(pair.answer.deployments.first()?.tokens_per_second));
    assert!(is_near(deployed.unwrap_or(0.0), cluster), "{what}: {deployed:?} deployed, {cluster}");
    seen.split_costs += usize::from(cluster < many * f64::from(devices) * 0.999);
}

fn check_both(served: &ServedSpace<'_>, chips: &[ServedChip], weight: f64, seen: &mut Seen, what: &str) {
    let (model, stack) = (Model::load("opt-350m").unwrap(), SoftwareStack::load("ideal").unwrap());
    let reference = Accelerator::built_in("h100_80gb_sxm").unwrap().without_measured_limits();
    let job = |fabric| Job {
        model: &model,
        chip: &reference,
        fabric,
        stack: &stack,
        devices: served.question.devices,
        global_batch: 32,
        sequence_length: 512,
        attention: Attention::Fused,
        precision: Precision::default(),
        optimizer: Optimizer::Adam,
        headroom: Bytes::ZERO,
        fit: NO_MARGIN,
        techniques: workloads::Techniques::none(),
    };
    let plans = PlanSpace { tensor: Some(vec![1, 2]), pipeline: Some(vec![1]), ..PlanSpace::default() };
    let prepared: Vec<PreparedJob<'_>> =
        served.fabrics.iter().map(|fabric| PreparedJob::new(job(fabric), &plans).unwrap()).collect();
    let tokens = 32.0 * 512.0 / f64::from(served.question.devices);
    let trains = |chip: &ServedChip| {
        let evaluation = best_plan(&prepared[chip.built.fabric.unwrap()], &chip.built.chip);
        evaluation.outcome.map_or(0.0, |plan| tokens / plan.time.total.0)
    };
    let trained: Vec<f64> = chips.iter().map(trains).collect();
    let serving: Vec<f64> = chips.iter().map(|chip| served.price_chip(chip).0).collect();
    let join = |at: usize| trained[at].powf(weight) * serving[at].powf(1.0 - weight);
    let truth = (0..chips.len()).map(join).fold(0.0, f64::max);
    let space = TrainedSpace { prepared: &prepared, tokens_per_chip: tokens };
    let Some(found) = served.best_for_both(chips, &space, weight) else {
        assert_eq!(truth, 0.0, "{what}");
        return;
    };
    assert!(is_near(join(found.chip), truth), "{what}: {} for both, {truth}", join(found.chip));
    assert!(found.open_bound <= 1.0, "{what}: {} is left", found.open_bound);
    let most = |rates: &[f64]| rates.iter().copied().fold(0.0, f64::max);
    assert!(is_near(found.training[1], most(&trained)) && is_near(found.serving[2], most(&serving)), "{what}");
    for (place, at) in [found.chip, found.trainer, found.server].into_iter().enumerate() {
        assert!(is_near(found.training[place], trained[at]), "{what}: training of {at}");
        assert!(is_near(found.serving[place], serving[at]), "{what}: serving of {at}");
    }
    seen.trained += 1;
}

fn check_case(case: u32) -> Seen {
    // Under vLLM, the first two models have plans whose devices share the tokens of a sequence.
    let name = match case % 15 {
        7 => "qwen3-30b-a3b",
        11 => "deepseek-v2-lite",
        _ => "llama3-8b",
    };
    let model = Model::load(name).unwrap();
    let engine = ServingEngine::load_from(["vllm", "sglang"][usize::from(case % 3 == 2)], &Files::default()).unwrap();
    let names = ServedObjective::names();
    let objective = ServedObjective::from_name(names[case as usize % names.len()]).unwrap();
    let mut draws = Draws(SeededRandom(3800 + u64::from(case)));
    let devices = draws.pick(&[2, 3, 4, 6, 8]);
    let (space, fabrics) = loop {
        let drawn = draw_space(&mut draws, devices);
        if drawn.0.chip_count() >= 4 {
            break drawn;
        }
    };
    let question = draw_question(&mut draws, &model, devices);
    let served = ServedSpace { space: &space, fabrics: &fabrics, question: &question, engine: &engine, objective };
    let chips = served.list_chips().unwrap();
    assert!((4..=24).contains(&chips.len()), "{} chips", chips.len());
    let (level, by) = (question.level, Objective::from(objective));
    let what = format!("case {case}: {} chips, {devices} devices, {}, {level:?}, by {by}", chips.len(), model.name);
    let mut seen = Seen::default();
    if case % 4 < 2 {
        check_one_chip(&served, &chips, &mut seen, &what);
    } else {
        check_pair(&served, &chips, &mut seen, &what);
    }
    if case % 4 == 3 {
        let served = ServedSpace { objective: ServedObjective::default(), ..served };
        check_both(&served, &chips, draws.pick(&[0.2, 0.5, 0.8]), &mut seen, &what);
    }
    seen
}

/// Number of small random spaces: 20, or the value of COPLACE_SPACES.
fn cases() -> u32 {
    std::env::var("COPLACE_SPACES").ok().and_then(|n| n.parse().ok()).unwrap_or(20)
}

#[test]
fn small_spaces_are_answered_as_by_brute_force() {
    let cases = cases();
    let seen = (0..cases).into_par_iter().with_max_len(1).map(check_case).reduce(Seen::default, |a, b| Seen {
        served: a.served + b.served,
        pairs: a.pairs + b.pairs,
        two_kinds: a.two_kinds + b.two_kinds,
        trained: a.trained + b.trained,
        split_costs: a.split_costs + b.split_costs,
    });
    let at_least = |found: usize, of_sixty: u32| found as u32 * 60 > of_sixty * cases;
    assert!(at_least(seen.served, 15) && at_least(seen.pairs, 15) && at_least(seen.trained, 7), "{seen:?}");
    assert!(at_least(seen.two_kinds, 5) && at_least(seen.split_costs, 5), "{seen:?}");
}

#[test]
fn bounded_values_have_the_largest_of_brute_force_and_price_few() {
    let mut draws = Draws(SeededRandom(7));
    let (mut priced, mut all) = (0, 0);
    for _ in 0..200 {
        let count = 1 + draws.below(200);
        let values = |draws: &mut Draws| -> (Vec<f64>, Vec<f64>) {
            let one = |draws: &mut Draws| draws.below(1000) as f64 / 10.0;
            let exact: Vec<f64> = (0..count).map(|_| one(draws)).collect();
            let upper = exact.iter().map(|value| value * (1.0 + draws.below(30) as f64 / 100.0)).collect();
            (exact, upper)
        };
        let ((first, first_upper), (second, second_upper)) = (values(&mut draws), values(&mut draws));
        let price = |at: usize, _: f64| PricedValue::Exact(first[at]);
        // Some prices end at a bound, as soon as that is at or below the threshold.
        let price_second = |at: usize, threshold: f64| match second_upper[at].midpoint(second[at]) {
            bound if bound <= threshold => PricedValue::AtMost(bound),
            _ => PricedValue::Exact(second[at]),
        };
        let (mut a, mut b) =
            (BoundedValues::from_bounds(first_upper), BoundedValues::from_bounds(second_upper.clone()));
        let most = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, f64::max);
        let largest = a.settle_largest(&price).map_or(0.0, |at| first[at]);
        assert_eq!(largest, most(&mut first.iter().copied()));
        assert!(a.highest_open_bound() <= largest);
        (priced, all) = (priced + a.priced(), all + count);
        let joined = JoinedValues { join: &|a, b| a * b, needed: &|joint, first| joint / first };
        let joint = a.settle_joint(&mut b, &joined, &price, &price_second).map_or(0.0, |at| first[at] * second[at]);
        assert_eq!(joint, most(&mut first.iter().zip(&second).map(|(a, b)| a * b)));
        priced += b.priced();
        all += count;
    }
    assert!(priced * 2 < all, "{priced} of {all} priced");
}
