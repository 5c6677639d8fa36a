//! The stored schedule instances: every answer is proven, and equal to the one that two independent solvers proved.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use coplace_interop::schedule_instance::{ScheduleInstance, StoredAnswer, parse_instance, read_instance};
use sim::schedule::{MAX_TOTAL_TICKS, Problem, SolveLimits, solve_problem, verify_schedule};
use sim::status::SolveStatus;
use std::path::{Path, PathBuf};
use std::time::Instant;

fn instances() -> Vec<(String, ScheduleInstance)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("reference/phaze/schedule");
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
        for (pairing, problem, stored) in [
            ("unpaired", &instance.unpaired, instance.stored_unpaired),
            ("paired", &instance.paired, instance.stored_paired),
        ] {
            let stored = stored.expect("every instance stores both answers");
            proved += usize::from(stored.proved);
            check(&format!("{name} {pairing}"), problem, stored, &mut seconds);
        }
    }
    assert_eq!(proved, 45);
    seconds.sort_by(f64::total_cmp);
    println!("median {:.3} ms, worst {:.3} ms", seconds[24] * 1e3, seconds[47] * 1e3);
}

fn file_error(text: &str) -> String {
    parse_instance(Path::new("x.json"), text).unwrap_err().to_string()
}

#[test]
fn a_file_says_what_is_wrong_with_it() {
    assert_eq!(
        file_error(r#"{"num_vc": 1, "ops": [], "edges": []}"#),
        "x.json: `num_tc` is missing; give a whole number of cores, 0 to 4294967295"
    );
    assert_eq!(
        file_error(r#"{"num_tc": -1, "num_vc": 1, "ops": [], "edges": []}"#),
        "x.json: `num_tc` is -1; give a whole number of cores, 0 to 4294967295"
    );
    let with = |op: &str, edges: &str| {
        file_error(&format!(r#"{{"num_tc": 1, "num_vc": 1, "ops": [{op}], "edges": {edges}}}"#))
    };
    assert_eq!(
        with(r#"{"id": 7, "type": "TC", "latency": -4}"#, "[]"),
        "x.json: `ops[0] (id 7).latency` is -4; give a whole number, 0 or more"
    );
    assert_eq!(
        with(r#"{"id": 0, "type": "GPU", "latency": 4}"#, "[]"),
        "x.json: `ops[0] (id 0).type` is \"GPU\"; give \"TC\", \"VC\", \"TCandVC\" or \"Nop\""
    );
    let good = r#"{"id": 5, "type": "TC", "latency": 4, "intra_latency": 2}"#;
    assert_eq!(
        with(good, "[[5, 6]]"),
        "x.json: `edges[0]` is [5,6], but no operator of `ops` has the id 6; correct the edge, or add the operator"
    );
    for edge in ["[5, \"5\"]", "[5]", "[5, 5, 5]", "[5, -5]"] {
        let message = with(good, &format!("[{edge}]"));
        assert!(message.ends_with("; give a pair [from, to] of operator ids that occur in `ops`"), "{message}");
    }
    assert_eq!(
        with(&format!("{good}, {good}"), "[]"),
        "x.json: `ops[1].id` is 5; give an id that no other operator has"
    );
    assert_eq!(with(good, "[[5, 5]]"), "x.json: the operators form a cycle: 5 -> 5; remove one of its edges");
    let more = r#"{"id": 9, "type": "Nop", "latency": 0}, {"id": 3, "type": "TC", "latency": 1}"#;
    assert_eq!(
        with(&format!("{good}, {more}"), "[[3, 9], [5, 3], [9, 5]]"),
        "x.json: the operators form a cycle: 5 -> 3 -> 9 -> 5; remove one of its edges"
    );
    assert_eq!(
        with(&format!("{good}, {}", more.replace("0}", "4}")), "[]"),
        "x.json: operator 9 is a no-operation but has a latency of 4 ticks; a no-operation takes 0, give it another kind"
    );
    let long = format!(r#"{good}, {{"id": 8, "type": "TC", "latency": {MAX_TOTAL_TICKS}}}"#);
    assert!(with(&long, "[]").starts_with("x.json: the latencies up to operator 8 add up to more than "));
    let coreless = format!(r#"{{"num_tc": 0, "num_vc": 1, "ops": [{good}], "edges": []}}"#);
    assert!(
        file_error(&coreless).starts_with("x.json: operator 5 is a tensor operator, but the chip has 0 tensor cores; ")
    );
    assert!(file_error(r#"{"num_tc": 1, "ops"#).starts_with("x.json: not valid JSON: "));
    assert!(
        file_error(r#"{"num_tc": 1, "num_vc": 1, "ops": [{"id": 0, "type": "TC", "latency": 1e999}], "edges": []}"#)
            .starts_with("x.json: not valid JSON: ")
    );
}
