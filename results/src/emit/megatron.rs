//! Megatron-LM's command-line arguments (`megatron/training/arguments.py` of Megatron-LM core 0.8 and later).

use crate::planned::schedule_name;
use search::step::TrainingPlan;
use sim::kernel::DataType;
use sim::pipeline::Schedule;
use workloads::model::{Norm, Position};
use workloads::training::{Attention, ContextMethod};
use workloads::{ActivationPolicy, Model, RankOrder, ZeroStage};

/// The arguments of a plan, one per line; lines that begin with `#` say what Megatron-LM has no argument for.
#[must_use]
pub fn megatron(model: &Model, plan: &TrainingPlan) -> String {
    let mut out = Vec::new();
    shape(model, plan, &mut out);
    layout(model, plan, &mut out);
    activations(plan, &mut out);
    let mut text = out.join("\n");
    text.push('\n');
    text
}

fn shape(model: &Model, plan: &TrainingPlan, out: &mut Vec<String>) {
    let mut set = |key: &str, value: u64| out.push(format!("--{key} {value}"));
    set("num-layers", model.layers);
    set("hidden-size", model.hidden);
    set("ffn-hidden-size", model.ffn);
    set("num-attention-heads", model.heads);
    set("kv-channels", model.head_dim);
    if model.kv_heads != model.heads {
        out.push("--group-query-attention".to_owned());
        out.push(format!("--num-query-groups {}", model.kv_heads));
    }
    let mut set = |key: &str, value: u64| out.push(format!("--{key} {value}"));
    set("seq-length", plan.batch.sequence_length);
    set("max-position-embeddings", plan.batch.sequence_length.max(model.max_sequence));
    let flags = [
        ("--swiglu", model.gated),
        ("--normalization RMSNorm", model.norm == Norm::RmsNorm),
        ("--position-embedding-type rope", model.position == Position::Rotary),
        ("--untie-embeddings-and-output-weights", !model.tied_head),
        ("--disable-bias-linear", !model.mlp_bias),
        ("--bf16", plan.precision.operand == DataType::Bf16),
        ("--fp16", plan.precision.operand == DataType::Fp16),
        ("--fp8-format hybrid", plan.precision.product == Some(DataType::Fp8)),
        ("--use-flash-attn", plan.attention == Attention::Fused),
    ];
    out.extend(flags.into_iter().filter(|(_, on)| *on).map(|(flag, _)| flag.to_owned()));
    if let Some(experts) = &model.experts {
        out.push(format!("--num-experts {}", experts.count));
        out.push(format!("--moe-router-topk {}", experts.top_k));
    }
}

fn layout(model: &Model, plan: &TrainingPlan, out: &mut Vec<String>) {
    let l = &plan.layout;
    out.push(format!("--tensor-model-parallel-size {}", l.tensor));
    out.push(format!("--pipeline-model-parallel-size {}", l.pipeline));
    for (key, degree) in [("context-parallel-size", l.context), ("expert-model-parallel-size", l.expert)] {
        if degree > 1 {
            out.push(format!("--{key} {degree}"));
        }
    }
    if l.context > 1 && l.context_method == ContextMethod::Ulysses {
        out.push("--cp-comm-type a2a".to_owned());
    }
    stages(model, plan, out);
    if l.order == RankOrder::PipelineFirst {
        out.push("--use-tp-pp-dp-mapping".to_owned());
    }
    if l.sequence_parallel {
        out.push("--sequence-parallel".to_owned());
    }
    match l.zero {
        ZeroStage::None => {}
        ZeroStage::OptimizerStates => out.push("--use-distributed-optimizer".to_owned()),
        ZeroStage::Gradients => out.push("# ZeRO-2: --use-distributed-optimizer is ZeRO-1, gradients stay whole".to_owned()),
        ZeroStage::Parameters => out.push("--use-torch-fsdp2".to_owned()),
    }
    match plan.schedule {
        Schedule::OneForwardOneBackward | Schedule::Interleaved { .. } => {}
        _ => out.push(format!("# schedule {}: Megatron-LM runs 1F1B, which takes longer than this plan", schedule_name(plan))),
    }
    out.push(format!("--micro-batch-size {}", plan.batch.micro_batch));
    out.push(format!("--global-batch-size {}", plan.batch.global_batch));
}

/// How the layers are divided among the stages. Ends that count as layers have flags of their own, and so have other ends that hold some layers
/// where every stage is one chunk; everything else is spelled out chunk by chunk (Megatron-LM core 0.13 and later).
fn stages(model: &Model, plan: &TrainingPlan, out: &mut Vec<String>) {
    let l = &plan.layout;
    let Ok(split) = l.chunk_split(model.layers) else { return };
    match l.ends {
        Some(ends) if l.virtual_stages == 1 && ends.first > 0 && ends.last > 0 => {
            out.push(format!("--decoder-first-pipeline-num-layers {}", ends.first));
            out.push(format!("--decoder-last-pipeline-num-layers {}", ends.last));
        }
        Some(_) => {
            let chunk = |place: u64| match split.layers(place) {
                0 => None,
                1 => Some("t".to_owned()),
                layers => Some(format!("t*{layers}")),
            };
            let with_ends = |place: u64| {
                let embedding = (place == 0).then(|| "E".to_owned());
                let loss = (place + 1 == split.chunks).then(|| "L".to_owned());
                [embedding, chunk(place), loss].into_iter().flatten().collect::<Vec<_>>().join(",")
            };
            let list: Vec<String> = (0..split.chunks).map(with_ends).collect();
            out.push(format!("--pipeline-model-parallel-layout \"{}\"", list.join("|")));
        }
        None => {
            if l.virtual_stages > 1 {
                out.push(format!("--num-layers-per-virtual-pipeline-stage {}", split.inner));
            }
            let flags = [("embedding", split.first), ("loss", split.last)];
            let shorter = flags.into_iter().filter(|(_, layers)| split.chunks > 1 && *layers < split.inner);
            out.extend(shorter.map(|(end, _)| format!("--account-for-{end}-in-pipeline-split")));
        }
    }
}

fn activations(plan: &TrainingPlan, out: &mut Vec<String>) {
    match &plan.activations {
        ActivationPolicy::None => {}
        ActivationPolicy::Selective => out.push("--recompute-granularity selective".to_owned()),
        ActivationPolicy::Full => {
            out.push("--recompute-granularity full".to_owned());
            out.push("--recompute-method uniform".to_owned());
            out.push("--recompute-num-layers 1".to_owned());
        }
        other => out.push(format!("# recompute {other}: Megatron-LM has none, selective and full")),
    }
}
