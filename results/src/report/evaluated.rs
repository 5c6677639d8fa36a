//! One plan on one chip as text: the totals first, then stage by stage, then kernel by kernel.

use super::run::{stages, step_times, time_shares};
use super::{
    Align, Table, bytes, count, fields, heading, percent, power_of_ten_rate, rate, seconds, signed_percent, significant,
};
use crate::evaluated::{EnergyRecord, Evaluated, KernelRecord, PassRecord, PlanRecord, TimeRecord};
use sim::units::{Bytes, Seconds};

/// Why the closed form and the simulation differ.
const DIFFERENCE: &str = "\
The closed form, which plans are ranked by, charges a send to both stages and the slowest stage's gradient reduction to all. In the
simulation sends keep nobody busy, and each stage reduces its gradients and updates its weights after its own last backward pass.
";

/// The whole report of an evaluation.
#[must_use]
pub fn evaluated(answer: &Evaluated) -> String {
    let (model, chip, cluster) = (&answer.model, &answer.chip, &answer.cluster);
    let peak = chip.peak_tflop_per_s.map_or_else(String::new, |p| format!("{} TFLOP/s, ", significant(p, 4)));
    let options: Vec<String> = answer.options.iter().map(|(name, value)| format!("{name} {value}")).collect();
    let mut text = fields(&[
        ("model", format!("{}, {} parameters", model.name, count(model.parameters))),
        (
            "chip",
            format!(
                "{}: {} tensor and {} vector cores, {peak}{} GiB at {} GB/s",
                chip.name,
                chip.tensor_cores,
                chip.vector_cores,
                significant(chip.hbm_gib, 4),
                significant(chip.hbm_gb_per_s, 4)
            ),
        ),
        ("cluster", format!("{} devices, {}", count(u64::from(cluster.devices)), cluster.fabric)),
        (
            "batch",
            format!(
                "{} sequences of {} tokens per step",
                count(u64::from(cluster.global_batch_sequences)),
                count(model.sequence_tokens)
            ),
        ),
        ("options", options.join(", ")),
    ]);
    match (&answer.result, &answer.why) {
        (Some(result), _) => text.push_str(&plan(result)),
        (None, why) => {
            text.push_str(&heading("No plan"));
            text.push_str(&fields(&[("because", why.clone().unwrap_or_else(|| "unknown".into()))]));
        }
    }
    text
}

fn plan(result: &PlanRecord) -> String {
    let p = &result.plan;
    let mut text = heading("Plan");
    text.push_str(&fields(&[
        (
            "degrees",
            format!(
                "{} pipeline {} x {} data-parallel x {} tensor-parallel",
                p.pipeline_stages,
                if p.pipeline_stages == 1 { "stage" } else { "stages" },
                p.data_parallel,
                p.tensor_parallel
            ),
        ),
        ("micro-batches", format!("{} of {} sequences per replica", count(p.micro_batches), p.micro_batch_sequences)),
        ("devices used", count(p.devices_used)),
        ("plan is", format!("{}, by the closed form", p.status)),
    ]));
    text.push_str(&heading("Time and energy of a step"));
    text.push_str(&fields(&totals(&result.time, &result.energy)));
    if (result.time.simulated_step_s / result.time.step_s - 1.0).abs() >= 0.0005 {
        text.push_str(DIFFERENCE);
    }
    text.push_str(&heading("Where the step's time goes"));
    text.push_str(&time_shares(&result.time_shares));
    text.push_str(&heading("Pipeline stages"));
    text.push_str(&stages(&result.stages));
    let title = match result.stages.len() {
        1 => "Kernels".to_owned(),
        stages => format!("Kernels of the slowest stage (stage {}; 0 to {})", result.slowest_stage, stages - 1),
    };
    text.push_str(&heading(&title));
    text.push_str(
        "Shares are of the pass's time; kernels that overlap add up to more than 100 %. HBM counts reads and writes.\n",
    );
    for pass in &result.passes {
        text.push_str(&kernels(pass));
    }
    text
}

fn totals(time: &TimeRecord, energy: &EnergyRecord) -> Vec<(&'static str, String)> {
    let fraction = |part: f64| percent(if energy.step_j > 0.0 { part / energy.step_j } else { 0.0 });
    let energies = format!(
        "{}: {} dynamic ({}), {} static ({})",
        power_of_ten_rate(energy.step_j, "J"),
        power_of_ten_rate(energy.dynamic_j, "J"),
        fraction(energy.dynamic_j),
        power_of_ten_rate(energy.static_j, "J"),
        fraction(energy.static_j)
    );
    let difference = time.simulated_step_s / time.step_s - 1.0;
    let step = step_times(Seconds(time.step_s), Seconds(time.simulated_step_s));
    vec![
        ("step", format!("{step} ({})", signed_percent(difference))),
        ("throughput", format!("{} sequences/s", significant(time.sequences_per_s, 4))),
        ("", format!("{} tokens/s", rate(time.tokens_per_s))),
        ("MFU", time.mfu.map_or_else(|| "unknown".into(), percent)),
        ("energy", energies),
        ("mean power", format!("{} per device", power_of_ten_rate(energy.mean_power_per_device_w, "W"))),
    ]
}

fn kernels(pass: &PassRecord) -> String {
    let times = if pass.count == 1 { "once".into() } else { format!("{} times", pass.count) };
    let mut text = format!(
        "\n{}, {}: {}, {}; {times} per micro-batch\n",
        pass.segment,
        pass.pass,
        seconds(Seconds(pass.time_s)),
        power_of_ten_rate(pass.energy_j, "J")
    );
    let head = ["kernel", "runs on", "start µs", "latency µs", "share", "energy mJ", "HBM", "utilization", "bound by"];
    let mut table = Table::new(head).align(1, Align::Left).align(8, Align::Left);
    for kernel in &pass.kernels {
        table.row(row(kernel));
    }
    text.push_str(&table.render());
    text
}

fn row(kernel: &KernelRecord) -> [String; 9] {
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".into());
    [
        kernel.name.clone(),
        kernel.span.clone(),
        format!("{:.2}", kernel.start_s * 1e6),
        format!("{:.2}", kernel.latency_s * 1e6),
        percent(kernel.share),
        or_dash(kernel.energy_j.map(|e| format!("{:.3}", e * 1e3))),
        or_dash(kernel.hbm_bytes.map(|b| bytes(Bytes(b)))),
        or_dash(kernel.utilization.map(percent)),
        kernel.bound.clone(),
    ]
}
