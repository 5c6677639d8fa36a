//! Searches studies to their end and prints the time, the decisions and the certificate.
//!
//! `cargo bench -p coplace-search --bench designs -- phaze llama2-7b`; without arguments it runs all PHAZE models.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, missing_docs)]

use coplace_search::design::{Aim, DesignSearch, DesignWatch, Workload};
use coplace_search::planner::{Job, NO_MARGIN, PreparedJob};
use coplace_search::runner::CandidateOutcome;
use coplace_search::space::{Chips, Space};
use coplace_search::study::Study;
use sim::hardware::Accelerator;
use sim::network::Fabric;
use std::time::Instant;
use step::SoftwareStack;
use workloads::Model;
use workloads::footprint::Precision;

/// The models of the paper.
const MODELS: [&str; 9] = [
    "bert-large",
    "gpt2-xl",
    "opt-350m",
    "llama2-7b",
    "megatron-bert",
    "megatron-gpt2-xl",
    "megatron-gpt2-54",
    "megatron-gpt2-72",
    "gpt3-175b",
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let study = arguments.first().map_or("phaze", String::as_str);
    let known = workloads::model::built_in_names().map(str::to_owned).collect::<Vec<_>>();
    let mut models: Vec<&str> = arguments.iter().skip(1).map(String::as_str).collect();
    if models.is_empty() {
        models = MODELS.into_iter().filter(|name| known.iter().any(|k| k == name)).collect();
    }
    let study = Study::load(study).unwrap();
    let reference = Accelerator::built_in(&study.space.reference_chip).unwrap();
    let Chips::Phaze(grid) = &study.space.chips else { panic!("a study of PHAZE's chips") };
    let space = Space::from_phaze(grid, &study.space.limits, &reference).unwrap();
    let fabric = Fabric::load_for_chip(&study.cluster.fabric, &reference.name)
        .unwrap()
        .for_devices(study.cluster.devices)
        .unwrap();
    let stack = SoftwareStack::load(&study.plan.stack).unwrap();
    for name in models {
        let model = Model::load(name).unwrap();
        let job = Job {
            model: &model,
            chip: &reference,
            fabric: &fabric,
            stack: &stack,
            devices: study.cluster.devices,
            global_batch: study.cluster.global_batch_sequences.into(),
            sequence_length: model.max_sequence,
            attention: study.plan.attention,
            precision: Precision::default(),
            optimizer: study.plan.optimizer,
            headroom: sim::units::Bytes::ZERO,
            fit: NO_MARGIN,
            techniques: workloads::Techniques::none(),
        };
        let start = Instant::now();
        let prepared = PreparedJob::new(job, &study.plan.choices).unwrap();
        let ready = start.elapsed().as_secs_f64();
        let aim = Aim { evaluations: study.limits.evaluations, ..Aim::default() };
        let prepared = [prepared];
        let search = DesignSearch { workloads: &[Workload::of_one_model(&prepared)], space: &space, aim, robust: None };
        let answer = DesignWatch::silent(|watch| search.run_design_search(watch)).unwrap();
        let seconds = start.elapsed().as_secs_f64();
        let count =
            |wanted: fn(&CandidateOutcome<_>) -> bool| answer.designs.iter().filter(|d| wanted(&d.outcome)).count();
        let best = answer.best.map(|b| &answer.designs[b]);
        println!(
            "{name:20} {seconds:7.1} s ({ready:.1} s preparing)  evaluated {:5}  {}  {}",
            count(|o| matches!(o, CandidateOutcome::Evaluated { .. })),
            answer.status,
            best.map_or_else(String::new, |b| match &b.outcome {
                CandidateOutcome::Evaluated { value, evaluation } => {
                    let plan =
                        evaluation[0].outcome.as_ref().map(|p| format!("{:?} {:?}", p.plan.layout, p.plan.activations));
                    format!("{value:.4} s on {} {}", space.describe_design(b.id), plan.unwrap_or_default())
                }
                _ => String::new(),
            }),
        );
    }
}
