//! Operator schedules: the stored instances, a sweep, and PHAZE's integer program next to coplace's.
//!
//! `cargo bench -p coplace-interop --bench schedule` (add `--features highs` for `HiGHS`, which needs cmake and
//! libclang). Times are wall times on this machine.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

extern crate sim as coplace_sim;

#[path = "../../sim/tests/schedule_support/mod.rs"]
mod schedule_support;

use coplace_interop::schedule_instance::read_instance;
use coplace_sim::schedule::{
    Backend, Cores, Formulation, IlpOptions, Memo, Pairing, Problem, ProofMethod, SolveLimits, solve_ilp, solve_problem,
};
use schedule_support::{Random, Spec, Style, generate};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Wall time for each integer program.
const PROGRAM_LIMIT: Duration = Duration::from_secs(10);

fn stored() -> Vec<(String, Problem)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("reference/phaze/schedule");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|p| p.extension().is_some_and(|e| e == "json"));
    files.sort();
    files
        .iter()
        .map(|p| (p.file_stem().unwrap().to_string_lossy().into_owned(), read_instance(p).unwrap().unpaired))
        .collect()
}

fn side_by_side(backend: Backend, name: &str, largest: usize) {
    println!(
        "\nPHAZE's program, ours and the search, programs by {name} with {} s each (gap where open)",
        PROGRAM_LIMIT.as_secs()
    );
    for (file, problem) in stored().iter().filter(|(_, p)| p.operators().len() <= largest) {
        let mut columns = vec![format!("{file:26} {:3} operators", problem.operators().len())];
        for (title, formulation) in [("plain", Formulation::Plain), ("tight", Formulation::Tight)] {
            let begun = Instant::now();
            let options = IlpOptions { formulation, backend, time_limit: Some(PROGRAM_LIMIT) };
            columns.push(match solve_ilp(problem, &options) {
                Ok(s) => format!(
                    "{title} {:>7} {:>5.1} % {:>9.2} ms",
                    s.makespan,
                    s.status.relative_gap().unwrap_or(1.0) * 100.0,
                    begun.elapsed().as_secs_f64() * 1e3
                ),
                Err(error) => format!("{title} {error}"),
            });
        }
        let begun = Instant::now();
        let schedule = solve_problem(problem, &SolveLimits::default());
        columns.push(format!(
            "search {:>7} {:>9.3} ms ({})",
            schedule.makespan,
            begun.elapsed().as_secs_f64() * 1e3,
            schedule.method
        ));
        println!("{}", columns.join(" | "));
    }
}

/// Solves problems as in a sweep over chips, and prints the time. All problems have one layer's graph, with random
/// cores and random latencies.
fn sweep(problems: usize, threads: usize) {
    let memo = Memo::new(SolveLimits::default(), 100_000);
    let layer = generate(&Spec { style: Style::Attention, ..Spec::drawn(40, 7) }, 7);
    let counts: Vec<AtomicUsize> = (0..5).map(|_| AtomicUsize::new(0)).collect();
    let next = AtomicUsize::new(0);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= problems {
                        break;
                    }
                    let mut random = Random(at as u64);
                    let cores = Cores {
                        tensor_cores: 1 << random.range(0, 6),
                        vector_cores: 1 << random.range(0, 6),
                        ..*layer.cores()
                    };
                    let mut operators = layer.operators().to_vec();
                    for operator in &mut operators {
                        operator.latency *= random.range(1_000, 1_000_000);
                        operator.exclusive_latency =
                            operator.exclusive_latency.map(|_| operator.latency / random.range(1, 4));
                    }
                    let problem = Problem::new(cores, operators, layer.edges().to_vec()).unwrap();
                    counts[memo.solve_problem(&problem).method as usize].fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    println!(
        "\nsweep: {problems} layers of 40 operators, latencies drawn anew for each, {threads} threads: {:.2} s",
        begun.elapsed().as_secs_f64()
    );
    for method in
        [ProofMethod::Decomposition, ProofMethod::Bounds, ProofMethod::Search, ProofMethod::Ilp, ProofMethod::Open]
    {
        println!("  closed by {method}: {}", counts[method as usize].load(Ordering::Relaxed));
    }
    println!("  memo: {:?}, hit rate {:.3}", memo.statistics(), memo.statistics().hit_rate());
}

fn main() {
    let mut times: Vec<f64> = Vec::new();
    for (_, problem) in stored() {
        for pairing in [Pairing::AnyPair, Pairing::SameIndex] {
            let problem = problem.on_cores(Cores { pairing, ..*problem.cores() }).unwrap();
            let begun = Instant::now();
            assert_ne!(solve_problem(&problem, &SolveLimits::default()).method, ProofMethod::Open);
            times.push(begun.elapsed().as_secs_f64() * 1e3);
        }
    }
    times.sort_by(f64::total_cmp);
    println!(
        "stored instances, both pairings: median {:.3} ms, worst {:.3} ms",
        times[times.len() / 2],
        times[times.len() - 1]
    );
    sweep(100_000, 2);
    side_by_side(Backend::Microlp, "microlp", 9);
    #[cfg(feature = "highs")]
    side_by_side(Backend::Highs, "HiGHS", 40);
}
