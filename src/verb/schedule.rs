//! `coplace schedule`: solves operator-schedule instances with proof, with and without pairing of cores.

use crate::answer::{self, Format, Versioned};
use crate::call::Call;
use crate::failure::{self, Failure};
use crate::numbers::{real_number, whole_number_in};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use interop::schedule_instance::{ScheduleInstance, StoredAnswer};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sim::schedule::{Backend, ExactMethod, Memo, Pairing, PieceProof, Schedule, SolveLimits};
use sim::status::SolveStatus;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Schedule operator graphs on tensor and vector cores: the optimum, proven
#[derive(clap::Args)]
#[command(after_help = "Example:\n  coplace schedule interop/reference/phaze/schedule/instance_000.json\n\n\
    A file: {\"num_tc\", \"num_vc\", \"ops\": [{\"id\", \"type\", \"latency\", \"intra_latency\"}], \"edges\": [[from, to]], \"exclusivity\"}; type is \"TC\",\n\
    \"VC\", \"TCandVC\" or \"Nop\", times are whole numbers of one unit, edges name ids.\n\
    An operator without intra_latency, or with null there, runs on one core and never across all.\n\
    exclusivity is optional and says which cores an operator across all cores blocks: \"all_cores\" (the default)\n\
    every core of both kinds, \"own_kind\" those of the kinds that it uses. If the file claims a proven answer\n\
    (optimal_unpaired, optimal_paired) that cannot be true, the answer says so.\n\n\
    JSON: one object per line and file: {\"file\", \"unpaired\": {\"makespan\", \"lower_bound\", \"status\", \
    \"method\",\n\
    \"seconds\", \"pieces\": [{\"operators\", \"method\", \"makespan\", \"lower_bound\"}],\n\
    \"contradicts\", \"operators\": [{\"id\", \"start\", \"end\", \"across\", \"tensor_core\", \
    \"vector_core\"}]},\n\
    \"paired\": {...}}. unpaired lets a fused operator take any tensor and vector core, paired only two with the\n\
    same index. status is \"optimal\" or \"gap\". contradicts is the file's answer if it cannot be true. An \
    operator\n\
    across all cores has no core of its own, nor has one that takes no time. Times have the unit of the file's\n\
    latencies.")]
pub struct ScheduleArguments {
    /// Instance files (JSON)
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Wall time for each piece of an instance: no search pass begins after it, and a piece that the search leaves open goes
    /// to the integer program with the time that is left. Without it no program runs under --method auto, and the answer
    /// does not depend on the machine
    #[arg(long, value_name = "SECONDS", value_parser = real_number)]
    time_limit: Option<f64>,
    /// Most search states per piece of an instance; about a million take a second and up to 0.3 GB of memory
    #[arg(long, value_name = "N", default_value_t = SolveLimits::default().steps, value_parser = whole_number_in(0..=u64::MAX))]
    steps: u64,
    /// Exact method for a piece that bounds leave open: auto (the search, then the integer program), search, or ilp (the
    /// program alone)
    #[arg(long, value_name = "METHOD", default_value = "auto", value_parser = parse_named::<ExactMethod>(&["auto", "search", "ilp"]))]
    method: ExactMethod,
    /// Solver of the integer program; highs needs a build with --features highs
    #[arg(long, value_name = "SOLVER", default_value = "microlp", value_parser = parse_named::<Backend>(&["microlp", "highs"]))]
    solver: Backend,
    /// Form of the answer
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// Makes a parser of one of `names`. A value that this build lacks is refused with the cure.
fn parse_named<T: DeserializeOwned + Clone + Send + Sync + 'static>(
    names: &'static [&'static str],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(names).try_map(|name| {
        serde_json::from_value(serde_json::Value::String(name.clone()))
            .map_err(|_| format!("{name} is not in this build; build with `cargo build --release --features {name}`"))
    })
}

const OPTIMAL: &str = "optimal";
const GAP: &str = "gap";

#[derive(Clone, Serialize)]
struct ScheduleAnswer {
    makespan: u64,
    lower_bound: u64,
    status: &'static str,
    method: String,
    seconds: f64,
    pieces: Vec<PieceProof>,
    contradicts: Option<u64>,
    operators: Vec<PlacedOperator>,
}

/// The time and the place of an operator.
#[derive(Clone, Serialize)]
struct PlacedOperator {
    id: u64,
    start: u64,
    end: u64,
    across: bool,
    tensor_core: Option<u32>,
    vector_core: Option<u32>,
}

#[derive(Serialize)]
struct PairingLine {
    file: String,
    unpaired: ScheduleAnswer,
    paired: ScheduleAnswer,
}

/// Runs the verb: solves every file under both pairings. A bad file is reported; the others are still solved.
pub fn run_schedule(arguments: &ScheduleArguments, call: &Call) -> Result<(), Failure> {
    let time = match arguments.time_limit {
        Some(s) if !(s > 0.0 && s < 1e9) => {
            return Err(failure::option_failure(
                "--time-limit",
                s,
                "must be above 0 and below 1e9 seconds",
                "leave it out for none",
            ));
        }
        limit => limit.map(Duration::from_secs_f64),
    };
    let limits = SolveLimits { time, steps: arguments.steps, method: arguments.method, solver: arguments.solver };
    let mut faults = Vec::new();
    for path in &arguments.files {
        match interop::schedule_instance::read_instance(path) {
            Ok(instance) => {
                let mut unpaired = ScheduleAnswer::answer_line(&instance, Pairing::AnyPair, limits);
                let paired = ScheduleAnswer::answer_line(&instance, Pairing::SameIndex, limits);
                unpaired.adopt_shorter(&paired, instance.stored_unpaired);
                let line = PairingLine { file: path.display().to_string(), unpaired, paired };
                answer::write_answer_line(call, arguments.format, &Versioned::with_schema_one(&line), |_| {
                    answer_text(&line)
                })?;
            }
            Err(error) => faults.push(error.into()),
        }
    }
    failure::all_faults(faults)
}

impl ScheduleAnswer {
    fn answer_line(instance: &ScheduleInstance, pairing: Pairing, limits: SolveLimits) -> Self {
        let (problem, stored) = match pairing {
            Pairing::AnyPair => (&instance.unpaired, instance.stored_unpaired),
            Pairing::SameIndex => (&instance.paired, instance.stored_paired),
        };
        let begun = Instant::now();
        let schedule = Memo::new(limits, 1 << 12).solve_problem(problem);
        let seconds = begun.elapsed().as_secs_f64();
        let Schedule { makespan, lower_bound, .. } = schedule;
        let ends = schedule.end_times(problem);
        let placed = |(at, &id): (usize, &u64)| PlacedOperator {
            id,
            start: schedule.starts[at],
            end: ends[at],
            across: schedule.exclusive[at],
            tensor_core: schedule.cores[at].tensor_core,
            vector_core: schedule.cores[at].vector_core,
        };
        Self {
            makespan,
            lower_bound,
            status: if schedule.status == SolveStatus::Optimal { OPTIMAL } else { GAP },
            method: schedule.method.to_string(),
            seconds,
            pieces: schedule.pieces,
            contradicts: stated_makespan_fault(stored, makespan, lower_bound),
            operators: instance.ids.iter().enumerate().map(placed).collect(),
        }
    }

    /// Adopts the schedule of the same operators under the stricter rule, if it is shorter: a schedule with cores
    /// paired by index is also valid without pairing. `stored` is the file's entry for the looser rule.
    fn adopt_shorter(&mut self, stricter: &Self, stored: Option<StoredAnswer>) {
        if stricter.makespan >= self.makespan {
            return;
        }
        let (makespan, lower_bound) = (stricter.makespan, self.lower_bound);
        *self = Self {
            lower_bound,
            status: if makespan == lower_bound { OPTIMAL } else { GAP },
            seconds: self.seconds,
            contradicts: stated_makespan_fault(stored, makespan, lower_bound),
            ..stricter.clone()
        };
    }
}

/// Returns the makespan in the file if it cannot be true: if it is below the lower bound, or claimed optimal although
/// `makespan` is shorter.
fn stated_makespan_fault(stored: Option<StoredAnswer>, makespan: u64, lower_bound: u64) -> Option<u64> {
    let untrue = |stored: &StoredAnswer| stored.makespan < lower_bound || stored.proved && stored.makespan > makespan;
    stored.filter(untrue).map(|stored| stored.makespan)
}

fn answer_text(line: &PairingLine) -> String {
    let mut out = format!("{}\n", line.file);
    for (name, a) in [("unpaired", &line.unpaired), ("paired", &line.paired)] {
        let proof = if a.status == OPTIMAL {
            format!("optimal by {}", a.method)
        } else {
            format!("gap at most {:.2} %", (1.0 - a.lower_bound as f64 / a.makespan as f64) * 100.0)
        };
        out += &format!(
            "  {name:<9} makespan {:>10}  lower bound {:>10}  {proof:<24} {:.3} ms\n",
            a.makespan,
            a.lower_bound,
            a.seconds * 1e3
        );
        if let Some(stored) = a.contradicts {
            out += &format!("            the file states {stored} as proven or reached: that cannot be true\n");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(makespan: u64, lower_bound: u64, stored: Option<StoredAnswer>) -> ScheduleAnswer {
        ScheduleAnswer {
            makespan,
            lower_bound,
            status: if makespan == lower_bound { OPTIMAL } else { GAP },
            method: format!("{makespan}"),
            seconds: 1.0,
            pieces: Vec::new(),
            contradicts: stated_makespan_fault(stored, makespan, lower_bound),
            operators: Vec::new(),
        }
    }

    #[test]
    fn a_shorter_paired_schedule_contradicts_what_the_file_states_without_pairing() {
        let stored = |makespan| Some(StoredAnswer { makespan, lower_bound: makespan, proved: true });
        // The file claims that 11 is optimal. A schedule of 12 does not contradict that; a schedule of 10 does.
        let mut unpaired = answer(12, 8, stored(11));
        assert_eq!((unpaired.contradicts, unpaired.status), (None, GAP));
        unpaired.adopt_shorter(&answer(10, 9, None), stored(11));
        let ScheduleAnswer { makespan, lower_bound, status, contradicts, .. } = unpaired;
        assert_eq!((makespan, lower_bound, status, contradicts), (10, 8, GAP, Some(11)));
        // A stated value below 8, the lower bound without pairing, stays false. A value from 8 to 10 may be true: the
        // bound of 10 holds only with pairing.
        for (stated, untrue) in [(7, Some(7)), (8, None), (9, None), (10, None)] {
            let mut unpaired = answer(12, 8, stored(stated));
            unpaired.adopt_shorter(&answer(10, 10, None), stored(stated));
            assert_eq!((unpaired.contradicts, unpaired.method.as_str()), (untrue, "10"), "{stated}");
        }
        let mut optimal = answer(12, 10, None);
        optimal.adopt_shorter(&answer(10, 9, stored(4)), None);
        assert_eq!((optimal.status, optimal.contradicts), (OPTIMAL, None));
        // A longer schedule changes nothing.
        optimal.adopt_shorter(&answer(11, 11, None), stored(1));
        assert_eq!((optimal.makespan, optimal.contradicts), (10, None));
    }
}
