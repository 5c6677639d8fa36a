//! Search time of `coplace plan` with its defaults: jobs over all built-in models on eight chips, up to 16,384 devices.
//!
//! `cargo bench -p coplace-search --bench plan_jobs`. After `--` comes a text that selects jobs, and `best` to also try
//! every split of the layers and print what the defaults lose. It prints for each job the plans of the space, the CPU
//! seconds of all threads, the wall seconds and the fastest plan's step, and finally the worst.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use coplace_search::planner::{Job, NO_MARGIN, PlanAnswer, PlanSpace, Splits, search_plans};
use sim::hardware::Accelerator;
use sim::network::Fabric;
use sim::units::Bytes;
use std::time::Instant;
use step::SoftwareStack;
use workloads::Model;
use workloads::footprint::{Optimizer, Precision};
use workloads::training::Attention;

/// Model, chip, fabric, devices, sequences per step.
const JOBS: [(&str, &str, &str, u32, u64); 40] = [
    ("bert-large", "a100_80gb_sxm", "selene_hdr200x8", 8, 256),
    ("bert-large", "v100_32gb", "jeanzay_opa", 64, 1024),
    ("bert-large", "tpu_v4", "tpu_v4_ici", 256, 4096),
    ("opt-350m", "a100_80gb_sxm", "selene_hdr200x8", 16, 256),
    ("opt-350m", "h100_80gb_sxm", "eos_ndr400x8", 128, 1024),
    ("megatron-bert", "a100_80gb_sxm", "selene_hdr200x8", 32, 512),
    ("megatron-gpt2-xl", "v100_32gb", "jeanzay_opa", 128, 512),
    ("gpt2-xl", "a100_80gb_sxm", "selene_hdr200x8", 32, 512),
    ("gpt2-xl", "v100_32gb", "jeanzay_opa", 64, 512),
    ("gpt2-xl", "mi300x", "roce_1600g", 256, 1024),
    ("megatron-gpt2-54", "a100_80gb_sxm", "selene_hdr200x8", 64, 512),
    ("megatron-gpt2-72", "a100_80gb_sxm", "selene_hdr200x8", 512, 1536),
    ("megatron-gpt2-72", "v100_32gb", "jeanzay_opa", 512, 512),
    ("llama2-7b", "a100_80gb_sxm", "selene_hdr200x8", 64, 256),
    ("llama2-7b", "h100_80gb_sxm", "eos_ndr400x8", 256, 1024),
    ("llama2-7b", "tpu_v5p", "tpu_v5p_ici", 1024, 1024),
    ("llama2-7b", "v100_32gb", "jeanzay_opa", 128, 512),
    ("llama3-8b", "h100_80gb_sxm", "eos_ndr400x8", 64, 512),
    ("llama3-8b", "h100_80gb_sxm", "eos_ndr400x8", 1024, 1024),
    ("llama3-8b", "mi300x", "roce_1600g", 64, 256),
    ("llama3-8b", "b200", "roce_1600g", 128, 512),
    ("llama3-8b", "tpu_v5p", "ici_3d_torus", 64, 512),
    ("mixtral-8x7b", "h100_80gb_sxm", "eos_ndr400x8", 64, 256),
    ("mixtral-8x7b", "a100_80gb_sxm", "selene_hdr200x8", 256, 512),
    ("mixtral-8x7b", "mi300x", "roce_1600g", 128, 512),
    ("mixtral-8x7b", "b200", "roce_1600g", 1024, 1024),
    ("llama3-70b", "h100_80gb_sxm", "eos_ndr400x8", 64, 512),
    ("llama3-70b", "h100_80gb_sxm", "eos_ndr400x8", 64, 128),
    ("llama3-70b", "h100_80gb_sxm", "eos_ndr400x8", 1024, 1024),
    ("llama3-70b", "h100_80gb_sxm", "eos_ndr400x8", 4096, 4096),
    ("llama3-70b", "a100_80gb_sxm", "selene_hdr200x8", 512, 1024),
    ("llama3-70b", "b200", "roce_1600g", 256, 1024),
    ("llama3-70b", "tpu_v5p", "tpu_v5p_ici", 4096, 2048),
    ("llama3-70b", "mi300x", "roce_1600g", 2048, 2048),
    ("gpt3-175b", "a100_80gb_sxm", "selene_hdr200x8", 1024, 1536),
    ("gpt3-175b", "a100_80gb_sxm", "selene_hdr200x8", 16384, 16384),
    ("gpt3-175b", "h100_80gb_sxm", "eos_ndr400x8", 128, 512),
    ("gpt3-175b", "h100_80gb_sxm", "eos_ndr400x8", 16384, 4096),
    ("gpt3-175b", "tpu_v4", "tpu_v4_ici", 2048, 2048),
    ("gpt3-175b", "b200", "roce_1600g", 512, 1536),
];

/// Returns the CPU seconds of this process over all threads: user and system time. Reads `/proc/self/stat`, which
/// counts hundredths of a second; 0 without that file.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    [11, 12].iter().filter_map(|at| fields.get(*at)?.parse::<f64>().ok()).sum::<f64>() / 100.0
}

fn timed(job: &Job<'_>, space: &PlanSpace) -> (PlanAnswer, f64, f64) {
    let (start, before) = (Instant::now(), cpu_seconds());
    let answer = search_plans(job, space, 10).unwrap();
    (answer, cpu_seconds() - before, start.elapsed().as_secs_f64())
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let best = arguments.iter().any(|argument| argument == "best");
    let wanted: Vec<&String> = arguments.iter().filter(|argument| *argument != "best").collect();
    let (mut worst, mut sum, mut lost) = (0.0_f64, 0.0, 0.0_f64);
    println!("   CPU s   clock s      plans  splits tried     step s  job");
    for (name, chip, fabric, devices, global_batch) in JOBS {
        let line = format!("{name} {chip} {fabric} {devices} {global_batch}");
        if !wanted.iter().all(|text| line.contains(text.as_str())) {
            continue;
        }
        let (model, chip) = (Model::load(name).unwrap(), Accelerator::built_in(chip).unwrap());
        let fabric = Fabric::built_in(fabric).unwrap().for_devices(devices).unwrap();
        let stack = SoftwareStack::load_usual_of_chip(&chip, &chip.name).unwrap();
        let half = chip.peak_flops(sim::kernel::DataType::Bf16).is_none();
        let fp16 = sim::kernel::DataType::Fp16;
        let asked = if half {
            Precision { operand: fp16, gradient: fp16, ..Precision::MIXED_BF16 }
        } else {
            Precision::MIXED_BF16
        };
        let job = Job {
            model: &model,
            chip: &chip,
            fabric: &fabric,
            stack: &stack,
            devices,
            global_batch,
            sequence_length: model.max_sequence,
            attention: Attention::Fused,
            precision: stack.precision_of_run(asked),
            optimizer: Optimizer::Adam,
            headroom: Bytes::ZERO,
            fit: NO_MARGIN,
            techniques: workloads::Techniques::none(),
        };
        let (answer, cpu, clock) = timed(&job, &PlanSpace::default());
        let step = answer.best.first().map_or(f64::NAN, |plan| plan.time.total.0);
        println!("{cpu:>8.2}  {clock:>8.2}  {:>9}  {:>12}  {step:>9.4}  {line}", answer.plans, answer.splits_tried);
        (worst, sum) = (worst.max(cpu), sum + cpu);
        if best {
            let (all, cpu, clock) = timed(&job, &PlanSpace { splits: Some(Splits::Best), ..PlanSpace::default() });
            let fastest = all.best.first().map_or(f64::NAN, |plan| plan.time.total.0);
            lost = lost.max(step / fastest - 1.0);
            println!(
                "{cpu:>8.2}  {clock:>8.2}  {:>9}  {:>12}  {fastest:>9.4}  all splits",
                all.plans, all.splits_tried
            );
        }
    }
    println!("worst {worst:.2} CPU s, all {sum:.2} CPU s");
    if best {
        println!("the defaults take {:.3} % longer at most than all splits of the layers", lost * 100.0);
    }
}
