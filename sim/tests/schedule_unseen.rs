//! Problems like the stored instances, but others: proven optimal or nearly so, within a limit of counted work.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod schedule_support;

use coplace_sim::schedule::{Limits, Method, Pairing, Problem, Schedule, solve, verify};
use schedule_support::{FAMILIES, Random, Spec, Style, generate};
use std::time::Instant;

/// Seconds, what was asked and what came out, for each of `specs`; prints a summary.
fn run(title: &str, specs: impl Iterator<Item = (u64, Spec)>) -> Vec<(f64, u64, Spec, Schedule)> {
    let mut rows: Vec<(f64, u64, Spec, Schedule)> = specs
        .map(|(seed, spec)| {
            let problem: Problem = generate(&spec, seed);
            let begun = Instant::now();
            let schedule = solve(&problem, &Limits::default());
            let seconds = begun.elapsed().as_secs_f64();
            assert_eq!(verify(&problem, &schedule), Vec::new(), "seed {seed} {spec:?}");
            (seconds, seed, spec, schedule)
        })
        .collect();
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    let open: Vec<_> = rows.iter().filter(|r| r.3.method == Method::Open).collect();
    println!("{title}: {} problems, {} open, median {:.3} ms, 90 % {:.3} ms, worst {:.3} ms", rows.len(), open.len(),
        rows[rows.len() / 2].0 * 1e3, rows[rows.len() * 9 / 10].0 * 1e3, rows[rows.len() - 1].0 * 1e3);
    for (seconds, seed, spec, schedule) in rows.iter().rev().filter(|r| r.3.method == Method::Open).chain(rows.iter().rev().take(3)) {
        println!(
            "  {seconds:.3} s seed {seed} {:?} {:?} {} operators {}+{} links {} {:?} {:?}: {} to {} (gap {:.2} %) {} largest piece {} steps {}",
            spec.style, spec.family, spec.operators, spec.tensor_cores, spec.vector_cores, spec.network_links, spec.pairing, spec.exclusivity,
            schedule.lower_bound, schedule.makespan, (1.0 - schedule.lower_bound as f64 / schedule.makespan as f64) * 100.0,
            schedule.method, schedule.statistics.largest_piece, schedule.statistics.steps
        );
    }
    rows
}

fn gap(schedule: &Schedule) -> f64 {
    1.0 - schedule.lower_bound as f64 / schedule.makespan as f64
}

#[test]
fn problems_like_the_stored_ones_are_proven() {
    for (title, low, high) in [("5 to 15 operators", 5, 15), ("16 to 28 operators", 16, 28), ("29 to 40 operators", 29, 40)] {
        let rows = run(title, (0..100).map(|i| {
            let seed = 1_000 * high + i;
            let mut random = Random(seed);
            let mut spec = Spec::drawn(random.range(low, high) as usize, seed);
            spec.pairing = random.pick(&[Pairing::AnyPair, Pairing::SameIndex]);
            (seed, spec)
        }));
        let open = rows.iter().filter(|r| r.3.method == Method::Open).count();
        assert!(open == 0, "{title}: {open} open");
    }
}

#[test]
fn transformer_like_graphs_of_80_operators_are_within_one_percent() {
    let rows = run("80 operators", (0..40).map(|i| {
        let mut random = Random(80_000 + i);
        let mut spec = Spec::drawn(80, 80_000 + i);
        spec.style = random.pick(&[Style::Attention, Style::Layered, Style::SeriesParallel]);
        (80_000 + i, spec)
    }));
    for (_, seed, spec, schedule) in rows {
        assert!(gap(&schedule) <= 0.01, "seed {seed} {spec:?}: {} to {}", schedule.lower_bound, schedule.makespan);
    }
}

#[test]
fn backward_passes_with_weight_gradients_and_collectives_are_proven() {
    let rows = run("backward", (0..60).map(|i| {
        let mut random = Random(90_000 + i);
        let mut spec = Spec::drawn(random.range(10, 40) as usize, 90_000 + i);
        spec.style = Style::Backward;
        spec.family = FAMILIES[i as usize % 3];
        spec.network_links = random.pick(&[0, 1]);
        spec.longest = 1_000_000;
        (90_000 + i, spec)
    }));
    for (_, seed, spec, schedule) in rows {
        assert!(gap(&schedule) <= 0.01, "seed {seed} {spec:?}: {} to {}", schedule.lower_bound, schedule.makespan);
    }
}
