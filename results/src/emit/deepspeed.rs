//! DeepSpeed's `.json`: the batch, ZeRO, offloads and formats of a run. Source: DeepSpeed's page "DeepSpeed
//! Configuration JSON" (2025). JSON has no comments; therefore only `lacking` names the parts that the file cannot
//! express.

use super::{DOCUMENTS, EmittedPlan, Inexpressible, PlanRecipe};
use search::planner::{PlanSpace, Splits};
use serde_json::{Map, Value, json};
use sim::kernel::DataType;
use workloads::footprint::{Optimizer, Precision};
use workloads::training::{Attention, LossForm};
use workloads::{ActivationPolicy, ZeroStage};

/// Techniques that are keys of `zero_optimization`: technique, key, and device.
const OFFLOADS: [(&str, &str, &str); 3] = [
    ("zero-offload", "offload_optimizer", "cpu"),
    ("zero-infinity", "offload_param", "cpu"),
    ("zero-infinity,to_nvme=1", "offload_param", "nvme"),
];

/// Writes a plan as DeepSpeed's configuration. The script that starts DeepSpeed defines the model and its
/// recomputation.
///
/// # Errors
/// None: DeepSpeed trains whatever model the script defines.
pub fn write_deepspeed(recipe: &PlanRecipe<'_>) -> Result<EmittedPlan, Inexpressible> {
    let mut out = DeepSpeedKeys::default();
    out.set_batch(recipe);
    out.set_sharding(recipe);
    out.set_numerics(recipe);
    out.note_the_rest(recipe);
    let text = serde_json::to_string_pretty(&Value::Object(out.keys)).unwrap_or_default();
    Ok(EmittedPlan { text: text + "\n", lacking: out.lacking })
}

/// Returns the decisions that a file of DeepSpeed can state: any stage of ZeRO and tensor parallelism; no pipeline, no
/// context or expert parallelism; even layers; no or full recomputation.
#[must_use]
pub fn deepspeed_choices() -> PlanSpace {
    PlanSpace {
        pipeline: Some(vec![1]),
        context: Some(vec![1]),
        expert: Some(vec![1]),
        splits: Some(Splits::Listed(vec![None])),
        activations: Some(vec![ActivationPolicy::None, ActivationPolicy::Full]),
        ..PlanSpace::default()
    }
}

#[derive(Default)]
struct DeepSpeedKeys {
    keys: Map<String, Value>,
    lacking: Vec<String>,
}

impl DeepSpeedKeys {
    fn set(&mut self, key: &str, value: Value) {
        self.keys.insert(key.to_owned(), value);
    }

    fn lack(&mut self, on: bool, text: &str) {
        if on {
            self.lacking.push(text.to_owned());
        }
    }

    fn set_batch(&mut self, recipe: &PlanRecipe<'_>) {
        let plan = recipe.plan;
        self.set("train_batch_size", json!(plan.batch.global_batch));
        self.set("train_micro_batch_size_per_gpu", json!(plan.batch.micro_batch));
        self.set("gradient_accumulation_steps", json!(plan.micro_batches()));
        if plan.layout.tensor > 1 {
            self.set("tensor_parallel", json!({ "autotp_size": plan.layout.tensor }));
        }
    }

    fn set_sharding(&mut self, recipe: &PlanRecipe<'_>) {
        let (plan, overlap) = (recipe.plan, &recipe.stack.overlap);
        let stage = match plan.layout.zero {
            ZeroStage::None => 0,
            ZeroStage::OptimizerStates => 1,
            ZeroStage::Gradients => 2,
            ZeroStage::Parameters => 3,
        };
        let mut zero = Map::new();
        zero.insert("stage".to_owned(), json!(stage));
        zero.insert("overlap_comm".to_owned(), json!(overlap.data_reduction > 0.0));
        for technique in plan.techniques.iter() {
            let named = technique.to_string();
            match OFFLOADS.iter().find(|(name, ..)| *name == named) {
                Some((_, key, device)) => drop(zero.insert((*key).to_owned(), json!({ "device": device }))),
                None => self.lack(true, &format!("technique {named}: no key of DeepSpeed is written for it")),
            }
        }
        self.set("zero_optimization", Value::Object(zero));
    }

    fn set_numerics(&mut self, recipe: &PlanRecipe<'_>) {
        let precision = recipe.plan.precision;
        let fp16 = precision.operand == DataType::Fp16;
        let usual = Precision { operand: precision.operand, gradient: precision.gradient, ..Precision::MIXED_BF16 };
        self.lack(
            precision != usual || precision.operand == DataType::Fp32,
            "number formats: DeepSpeed trains in bf16 or fp16 with fp32 master weights and moments",
        );
        self.set(if fp16 { "fp16" } else { "bf16" }, json!({ "enabled": true }));
        self.lack(
            recipe.plan.optimizer != Optimizer::Adam,
            "optimizer: AdamW is written, with its usual learning rate",
        );
        self.set("optimizer", json!({ "type": "AdamW", "params": { "lr": 1e-4 } }));
    }

    /// Notes the parts for which DeepSpeed's file has no keys.
    fn note_the_rest(&mut self, recipe: &PlanRecipe<'_>) {
        let (plan, layout) = (recipe.plan, &recipe.plan.layout);
        self.lack(layout.pipeline > 1, "a pipeline: DeepSpeed's is built by the script (PipelineModule)");
        self.lack(layout.context > 1, "context parallelism: DeepSpeed's is built by the script (Ulysses)");
        self.lack(layout.expert > 1, "expert parallelism: DeepSpeed's is built by the script (deepspeed.moe)");
        self.lack(layout.sequence_parallel && layout.tensor > 1, "norms split along the sequence");
        match plan.activations.uniform_policy() {
            Some(ActivationPolicy::None) => {}
            Some(ActivationPolicy::Full) => {
                self.lack(true, "full recomputation: switch it on in the script (gradient_checkpointing_enable())");
            }
            _ => self.lack(true, "recomputation of parts: the script's, and transformers' is of whole layers"),
        }
        self.lack(!recipe.model.documents.is_empty(), DOCUMENTS);
        self.lack(plan.attention != Attention::Fused, "attention operator by operator: the script's choice");
        self.lack(recipe.stack.kernels.loss == LossForm::Chunked, "head and loss by chunks of tokens: Liger's kernel");
    }
}
