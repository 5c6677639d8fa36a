//! The stored schedule instances: every answer is proven, and equal to the one that two independent solvers proved.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use coplace_sim::schedule::{
    Problem, ScheduleInstance, SolveLimits, StoredAnswer, read_instance, solve_problem, verify_schedule,
};
use coplace_sim::status::SolveStatus;
use std::path::PathBuf;
use std::time::Instant;

fn instances() -> Vec<(String, ScheduleInstance)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../results/reference/phaze/schedule");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|p| p.extension().is_some_and(|e| e == "json"));
    files.sort();
    files.iter().map(|p| (p.file_stem().unwrap().to_string_lossy().into_owned(), read_instance(p).unwrap())).collect()
}

fn check(name: &str, problem: &Problem, stored: StoredAnswer, seconds: &mut Vec<f64>) {
    let begun = Instant::now();
    let schedule = solve_problem(problem, &SolveLimits::default());
    seconds.push(begun.elapsed().as_secs_f64());
    println!(
        "{name:40} {:>7} stored {:>7} bound {:>7} {:?} {} steps {} pieces {} largest {} {:.3} ms",
        schedule.makespan,
        stored.makespan,
        schedule.lower_bound,
        schedule.status.relative_gap(),
        schedule.method,
        schedule.statistics.steps,
        schedule.statistics.pieces,
        schedule.statistics.largest_piece,
        seconds[seconds.len() - 1] * 1e3
    );
    assert_eq!(verify_schedule(problem, &schedule), Vec::new(), "{name}");
    assert_eq!(schedule.status, SolveStatus::Optimal, "{name}");
    if stored.proved {
        assert_eq!(schedule.makespan, stored.makespan, "{name}");
    } else {
        assert!((stored.lower_bound..=stored.makespan).contains(&schedule.makespan), "{name}");
    }
}

#[test]
fn every_stored_instance_is_proven_optimal_in_both_pairings() {
    let instances = instances();
    assert_eq!(instances.len(), 24);
    let (mut proved, mut seconds) = (0, Vec::new());
    for (name, instance) in &instances {
        for (pairing, problem, stored) in
            [("unpaired", &instance.unpaired, instance.stored_unpaired), ("paired", &instance.paired, instance.stored_paired)]
        {
            let stored = stored.expect("every instance stores both answers");
            proved += usize::from(stored.proved);
            check(&format!("{name} {pairing}"), problem, stored, &mut seconds);
        }
    }
    assert_eq!(proved, 45);
    seconds.sort_by(f64::total_cmp);
    println!("median {:.3} ms, worst {:.3} ms", seconds[24] * 1e3, seconds[47] * 1e3);
}
