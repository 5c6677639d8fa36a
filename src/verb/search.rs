//! `coplace search`: the main job.

use crate::answer::{self, Format};
use crate::failure::{self, Failure, OrInput, OrOther};
use crate::input;
use indicatif::{ProgressBar, ProgressStyle};
use results::baseline::expert_placement;
use results::compare::{Comparison, Entry};
use results::design::DesignRow;
use results::record::{self, BestDesign, Record, StudyRecord, Versions};
use results::run::Run;
use results::{from_search as conversion, report};
use search::bench::{Bench, BenchError};
use search::design::{DesignAnswer, search_designs};
use search::evaluate::{Evaluation, best_plan, fixed_plan};
use search::explain::{explain, simulate};
use search::placement::plan::{Effort, LayerSplit};
use search::runner::{Outcome, Progress};
use search::space::HardwareSpace;
use search::study::Study;
use sim::hardware::Accelerator;
use sim::hardware::area::area;
use sim::hardware::phaze::design;
use sim::import;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;
use workloads::Model;

/// A design whose step takes at most this fraction more than the best one's is nearly as fast.
const NEARLY: f64 = 0.01;

/// Search for the accelerator on which a model trains fastest, and how it should run there
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  coplace search llama2-7b\n  coplace search path/to/config.json --sequence-length 4096 --out runs/mine\n\n\
    Writes into the run directory: record.json (study, proof, best design, comparison, times), designs.parquet (every design and what\n\
    became of it), pareto.svg and pareto.png (throughput against area). JSON: the record, as in record.json."
)]
pub struct Arguments {
    /// A built-in model (coplace list models) or a Hugging Face config.json
    model: String,
    /// A built-in study (coplace list studies) or a study file (.toml)
    #[arg(long, default_value = "phaze")]
    study: String,
    /// Tokens per sequence [default: the model's longest]
    #[arg(long, value_name = "TOKENS", allow_negative_numbers = true)]
    sequence_length: Option<u64>,
    /// Run directory [default: runs/MODEL-STUDY]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Seed of everything random; kept in the record (the exhaustive search draws nothing)
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    seed: u64,
    /// Form of the answer
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// Searches, writes the run directory, prints the report.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let start = Instant::now();
    let mut times = BTreeMap::new();
    let model = Model::load(&arguments.model).or_input()?;
    let study = Study::load(&arguments.study).or_input()?;
    let reference = input::chip(&study.space.reference_chip)
        .map_err(|e| e.context(format!("{}: space.reference_chip", arguments.study)))?
        .accelerator;
    let space = HardwareSpace::enumerate(&study.space, &reference).or_input()?;
    let bench = import::load_fabric(&study.cluster.fabric, &reference.name)
        .map_err(BenchError::Network)
        .and_then(|fabric| Bench::new(model, &study, &fabric, arguments.sequence_length))
        .map_err(|e| input::bench_fault(&arguments.study, &e))?;
    let out = run_directory(arguments)?;
    open(&out)?;
    times.insert("prepare".to_owned(), start.elapsed().as_secs_f64());

    let searching = Instant::now();
    let bar = progress_bar(space.points.len());
    let answer = search_designs(&bench, &space, study.limits.evaluations, &|p| show(&bar, p, &bench));
    bar.finish_and_clear();
    times.insert("search".to_owned(), searching.elapsed().as_secs_f64());

    let explaining = Instant::now();
    let mut rows = conversion::rows(&bench, &answer);
    let best = best_design(&bench, &answer, &mut rows)?;
    let comparison = best.as_ref().map(|b| compare(&bench, &reference, &answer, &rows, b)).transpose()?;
    let study_record = study_record(arguments, &study, &bench, &space);
    let certificate = conversion::certificate(&bench, &answer, space.outside * space.hbm.len());
    times.insert("compare".to_owned(), explaining.elapsed().as_secs_f64());
    times.insert("total".to_owned(), start.elapsed().as_secs_f64());
    let methods = bench.schedules.get().into_iter().map(|(method, n)| (method.to_string(), n)).collect();
    let memo = bench.memo_statistics();
    let record = Record {
        format: record::FORMAT,
        versions: Versions::current(),
        study: study_record,
        seed: arguments.seed,
        certificate,
        schedule_methods: methods,
        schedule_memo_hit_rate: (memo.dropped == 0).then(|| memo.hit_rate()),
        best,
        comparison,
        times,
    };
    let name = out.file_name().unwrap_or(out.as_os_str()).to_string_lossy().into_owned();
    let run = Run { name, record, designs: rows };
    let written = run.write(&out).or_other()?;
    match arguments.format {
        Format::Json => answer::json(&run.record),
        Format::Text => {
            let files: Vec<String> = written.iter().map(|file| file.display().to_string()).collect();
            answer::text(&format!("{}\nWritten: {}\n", report::run(&run.record), files.join(", ")))
        }
    }
}

/// The run directory: refused where it holds something that is not a run of ours.
fn run_directory(arguments: &Arguments) -> Result<PathBuf, Failure> {
    let stem = |name: &str| {
        let path = Path::new(name);
        let path = if path.file_name().is_some_and(|f| f == "config.json") { path.parent().unwrap_or(path) } else { path };
        path.file_stem().map_or_else(|| "model".into(), |s| s.to_string_lossy().into_owned())
    };
    let model = if Path::new(&arguments.model).exists() { stem(&arguments.model) } else { arguments.model.clone() };
    let default = || PathBuf::from("runs").join(format!("{model}-{}", stem(&arguments.study)));
    let out = arguments.out.clone().unwrap_or_else(default);
    if out.is_file() {
        return Err(failure::input(format!("--out {}: is a file; give a directory", out.display())));
    }
    let foreign = out.is_dir()
        && !out.join("record.json").exists()
        && !out.join("designs.parquet").exists()
        && std::fs::read_dir(&out).is_ok_and(|mut d| d.next().is_some());
    if foreign {
        let out = out.display();
        return Err(failure::input(format!("--out {out}: holds files that are not a run; give an empty or a new directory")));
    }
    Ok(out)
}

/// Makes the run directory and tries to write into it: a long search must not end before a closed door.
fn open(out: &Path) -> Result<(), Failure> {
    let probe = out.join(format!(".writable-{}", std::process::id()));
    let tried =
        std::fs::create_dir_all(out).and_then(|()| std::fs::write(&probe, "")).and_then(|()| std::fs::remove_file(&probe));
    tried.map_err(|e| {
        failure::input(format!("--out {}: cannot be written into: {e}; give a directory you may write to", out.display()))
    })
}

fn progress_bar(chips: usize) -> ProgressBar {
    let bar = ProgressBar::new(chips as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} chips decided, {msg} [{elapsed_precise}]") {
        bar.set_style(style);
    }
    bar
}

fn show(bar: &ProgressBar, progress: Progress, bench: &Bench) {
    bar.set_position(progress.decided as u64);
    let best =
        progress.best.map_or_else(|| "none yet".into(), |step| format!("{:.1} seq/s", f64::from(bench.global_batch) / step));
    bar.set_message(format!("{} evaluated, best {best}", progress.evaluated));
}

/// The best design with its explanation; its row learns what bounds it.
fn best_design(bench: &Bench, answer: &DesignAnswer, rows: &mut [DesignRow]) -> Result<Option<BestDesign>, Failure> {
    let Some(index) = answer.best else { return Ok(None) };
    let found = &answer.designs[index];
    let Outcome::Evaluated { evaluation, .. } = &found.outcome else { return Ok(None) };
    let Ok(planned) = &evaluation.outcome else { return Ok(None) };
    let why = explain(bench, design(&found.config), planned).or_other()?;
    let simulated = simulate(planned).or_other()?;
    let best = conversion::best(bench, planned, found.config.hbm, rows[index].clone(), &why, simulated);
    rows[index] = best.design.clone();
    Ok(Some(best))
}

/// The best design beside the smallest that is nearly as fast, and beside the reference chip under the expert's plan and under ours.
fn compare(
    bench: &Bench,
    reference: &Accelerator,
    answer: &DesignAnswer,
    rows: &[DesignRow],
    best: &BestDesign,
) -> Result<Comparison, Failure> {
    let mut entries = vec![Entry::from_design("best found", &best.design)];
    if let Some(index) = answer.smallest_within(NEARLY).filter(|i| Some(*i) != answer.best) {
        let found = &answer.designs[index];
        let mut entry = Entry::from_design(format!("smallest within {} %", NEARLY * 100.0), &rows[index]);
        if let Outcome::Evaluated { evaluation, .. } = &found.outcome {
            entry.bound_by = bound_by(bench, &design(&found.config), evaluation)?;
        }
        entries.push(entry);
    }
    let reference_area = Some(area(reference).or_input()?.total().0);
    let name = &reference.name;
    if let Some(expert) = expert_placement(&bench.model.name) {
        let evaluation = fixed_plan(bench, reference.clone(), expert.degrees, None, LayerSplit::Even);
        let mut entry = conversion::entry(&format!("{name}, expert's placement"), bench, reference, reference_area, &evaluation);
        let d = expert.degrees;
        let given = format!("p {}, t {}, d {}: {}", d.pipeline, d.tensor, d.data, expert.source);
        entry.bound_by = bound_by(bench, reference, &evaluation)?;
        entry.note = Some(entry.note.map_or_else(|| given.clone(), |why| format!("{given}: {why}")));
        entries.push(entry);
    }
    let evaluation = best_plan(bench, reference.clone(), Effort::Proof);
    let mut ours = conversion::entry(&format!("{name}, our best plan"), bench, reference, reference_area, &evaluation);
    ours.bound_by = bound_by(bench, reference, &evaluation)?;
    entries.push(ours);
    Ok(Comparison { entries })
}

/// What takes most of the time of the best plan on a chip, where it has one.
fn bound_by(bench: &Bench, chip: &Accelerator, evaluation: &Evaluation) -> Result<Option<String>, Failure> {
    let Ok(planned) = &evaluation.outcome else { return Ok(None) };
    Ok(explain(bench, chip.clone(), planned).or_other()?.parts.first().map(|p| p.name.clone()))
}

fn study_record(arguments: &Arguments, study: &Study, bench: &Bench, space: &HardwareSpace) -> StudyRecord {
    let parameters = bench.shapes.first().map_or(0, |shape| {
        let t = u64::from(shape.tensor_parallel);
        let count = |s: &search::shape::SegmentShape| {
            (s.segment.parameters.sharded * t + s.segment.parameters.replicated) * s.segment.repeat
        };
        shape.segments.iter().map(count).sum()
    });
    let plan = &study.plan;
    let options = BTreeMap::from([
        ("attention".to_owned(), format!("{:?}", plan.attention).to_lowercase()),
        ("optimizer".to_owned(), format!("{:?}, mixed precision", plan.optimizer).to_lowercase()),
        ("sequence_parallel".to_owned(), plan.sequence_parallel.to_string()),
        ("tensor_parallel".to_owned(), format!("{:?}", plan.tensor_parallel)),
        ("micro_batch_sequences".to_owned(), format!("{:?}", plan.micro_batch_sequences)),
        ("evaluations_at_most".to_owned(), study.limits.evaluations.to_string()),
    ]);
    StudyRecord {
        name: arguments.study.clone(),
        model: arguments.model.clone(),
        parameters,
        sequence_tokens: bench.sequence_length,
        space_designs: space.designs() as u64,
        reference_chip: study.space.reference_chip.clone(),
        devices: u64::from(bench.devices),
        fabric: bench.fabric.name.clone(),
        global_batch_sequences: u64::from(bench.global_batch),
        objective: "throughput".into(),
        options,
    }
}
