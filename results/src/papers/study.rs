//! Runs the study of a figure (a model, hardware, software, a plan and memory techniques), and reads quantities from
//! the run.

use super::inference::InferenceStudy;
use include_dir::{Dir, include_dir};
use search::techniques::{TechniqueSetting, TechniqueTrial};
use serde::Deserialize;
use serving::ServingEngine;
use sim::files::carried::Files;
use sim::hardware::{Accelerator, ChipTemplate, Storage};
use sim::network::Fabric;
use sim::pipeline::PipelineSchedule;
use sim::units::{Bytes, BytesPerSecond};
use std::collections::BTreeMap;
use step::{MemoryClass, MemoryReading, SoftwareStack, StageMemory, TrainingPlan, lower_plan};
use workloads::footprint::{Optimizer, Precision};
use workloads::training::Attention;
use workloads::{ActivationPolicy, Batch, Layout, Model, SegmentKind, Technique, Techniques, ZeroStage};

/// The model, chip and stack of a study that does not name them.
const MODEL: &str = "llama2-7b";
const CHIP: &str = "a100_80gb_sxm";
const STACK: &str = "huggingface";

/// Bytes of storage per device, if a study gives only the rate of the storage. They are enough for every study.
const STORAGE: u64 = 1 << 47;

static MODELS: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/reference/techniques");

/// The quantity of a run that a figure states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StudyQuantity {
    /// Bytes of weights.
    Weights,
    /// Bytes of gradients.
    Gradients,
    /// Bytes of master weights and optimizer states.
    States,
    /// Bytes of kept activations and of the loss, at the time of the loss.
    ActivationsAtLoss,
    /// Peak of the live bytes.
    Peak,
    /// The peak, less weights, master weights and optimizer states, in bytes.
    BesideWeightsAndStates,
    /// Bytes of the output head alone in the forward pass: input, logits, weights and the weights' gradient.
    HeadForward,
    /// Bytes of the output head alone in both passes. They also include the input's gradient.
    Head,
    /// The longest sequence that fits, in thousands of tokens.
    Longest,
    /// The longest sequence, over the longest one if only the inputs of layers are kept.
    LongestOverRecompute,
    /// The longest sequence, over the longest one without techniques.
    LongestOverPlain,
    /// Bytes of activations that all layers on all devices keep, without statistics.
    ActivationsOfAllDevices,
    /// Model FLOPs utilisation in percent.
    Mfu,
    /// 1 if the plan fits, otherwise 0.
    Fits,
    /// Reduction of activations, logits and transients at the peak, in percent of those without techniques.
    ActivationCut,
    /// Kept inputs of matrix products, except the attention's output projection, in percent of those without
    /// techniques.
    InputsLeft,
    /// Bytes that a layer keeps, per token and element of the residual stream.
    BytesPerSbh,
    /// Bytes of weights, master weights and optimizer states.
    WeightsAndStates,
    /// Bytes of weights, gradients, master weights, optimizer states, activations and the loss, summed as in the
    /// papers' tables.
    Sum,
    /// Bytes of temporary tensors in the optimizer's update.
    UpdateTemporaries,
    /// Size of attention's result, in percent of all kept tensors of a layer that have gradients.
    AttentionShare,
    /// The largest micro-batch that fits, in sequences.
    LargestMicroBatch,
    /// Bytes of the inputs of matrix products that all layers keep, except the attention's output projection.
    LinearInputs,
    /// Bytes of activations, logits and transients at the peak.
    PeakActivations,
    /// Seconds of a step.
    StepSeconds,
    /// Tokens per second over all devices.
    TokensPerSecond,
    /// Sequences per second over all devices.
    SequencesPerSecond,
    /// Necessary FLOPs per second and device, in TFLOP/s.
    TeraflopsPerDevice,
    /// Bytes of a device that programs may use.
    UsableMemory,
    /// Bytes of read-only data, in host memory and storage.
    ReadOnly,
    /// The value of the parameter that the study names, in its first technique.
    Parameter,
    /// Bytes per token of the input of one matrix product, which the study names as `operator`.
    BytesPerToken,
    /// Inference: bytes of the weights plus those of a prompt's keys and values at their peak.
    PromptPeak,
    /// Inference: bytes of the technique's stored memories, which are keys and values of reference texts.
    Stored,
    /// Inference: tokens that a batch generates per second, from the start of its prompts to its last tokens.
    GeneratedPerSecond,
}

impl StudyQuantity {
    /// True if the quantity depends only on the model's parameters.
    pub(crate) fn is_of_parameters(self) -> bool {
        matches!(
            self,
            Self::Weights | Self::Gradients | Self::States | Self::WeightsAndStates | Self::UpdateTemporaries
        )
    }
}

/// A study. Its values replace those of its base study.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PaperStudy {
    pub(crate) base: Option<String>,
    pub(crate) model: Option<String>,
    /// A model that has no file.
    #[serde(skip)]
    pub(crate) own_model: Option<Model>,
    pub(crate) chip: Option<String>,
    pub(crate) stack: Option<String>,
    #[serde(default)]
    pub(crate) stack_options: Vec<String>,
    pub(crate) fabric: Option<String>,
    pub(crate) precision: Option<String>,
    pub(crate) optimizer: Option<Optimizer>,
    pub(crate) attention: Option<Attention>,
    pub(crate) recompute: Option<String>,
    pub(crate) sequence: Option<u64>,
    pub(crate) micro_batch: Option<u64>,
    pub(crate) global_batch: Option<u64>,
    pub(crate) tensor: Option<u32>,
    pub(crate) sequence_parallel: Option<bool>,
    pub(crate) context: Option<u32>,
    pub(crate) data: Option<u32>,
    pub(crate) pipeline: Option<u32>,
    pub(crate) virtual_stages: Option<u32>,
    pub(crate) zero: Option<u8>,
    /// Micro-batches per step and replica. Without it, they follow from the global batch.
    pub(crate) accumulate: Option<u64>,
    pub(crate) nvme_gb_per_s: Option<f64>,
    /// A serving engine. If given, the study is one of inference.
    pub(crate) engine: Option<String>,
    /// Tokens of an answer, in inference.
    pub(crate) output: Option<u64>,
    /// The parameter of the first technique that [`StudyQuantity::Parameter`] reads.
    pub(crate) parameter: Option<String>,
    /// The operator of a layer whose input [`StudyQuantity::BytesPerToken`] counts.
    pub(crate) operator: Option<String>,
    pub(crate) techniques: Option<Vec<String>>,
}
/// A study with all its inputs resolved.
pub(crate) struct PreparedPaperStudy {
    model: Model,
    chip: Accelerator,
    fabric: Fabric,
    stack: SoftwareStack,
    plan: TrainingPlan,
    techniques: Techniques,
    /// In inference: the engine, and the tokens of an answer.
    inference: Option<(ServingEngine, u64)>,
    parameter: Option<String>,
    operator: Option<String>,
}

impl PaperStudy {
    /// Returns the study with the values of its base studies filled in.
    pub(crate) fn resolve_bases(&self, studies: &BTreeMap<String, Self>) -> Self {
        let Some(base) = self.base.as_ref().and_then(|name| studies.get(name)) else { return self.clone() };
        let base = base.resolve_bases(studies);
        let own = self.clone();
        Self {
            base: None,
            // A model of the study without a file replaces a named one of the base, and vice versa.
            own_model: own.own_model.or(if own.model.is_some() { None } else { base.own_model }),
            model: own.model.or(base.model),
            chip: own.chip.or(base.chip),
            stack: own.stack.or(base.stack),
            stack_options: if own.stack_options.is_empty() { base.stack_options } else { own.stack_options },
            fabric: own.fabric.or(base.fabric),
            precision: own.precision.or(base.precision),
            optimizer: own.optimizer.or(base.optimizer),
            attention: own.attention.or(base.attention),
            recompute: own.recompute.or(base.recompute),
            sequence: own.sequence.or(base.sequence),
            micro_batch: own.micro_batch.or(base.micro_batch),
            global_batch: own.global_batch.or(base.global_batch),
            tensor: own.tensor.or(base.tensor),
            sequence_parallel: own.sequence_parallel.or(base.sequence_parallel),
            context: own.context.or(base.context),
            data: own.data.or(base.data),
            pipeline: own.pipeline.or(base.pipeline),
            virtual_stages: own.virtual_stages.or(base.virtual_stages),
            zero: own.zero.or(base.zero),
            accumulate: own.accumulate.or(base.accumulate),
            nvme_gb_per_s: own.nvme_gb_per_s.or(base.nvme_gb_per_s),
            engine: own.engine.or(base.engine),
            output: own.output.or(base.output),
            parameter: own.parameter.or(base.parameter),
            operator: own.operator.or(base.operator),
            techniques: own.techniques.or(base.techniques),
        }
    }

    /// Describes the setting: model, chips, degrees, batch, formats, optimizer, recomputation, techniques.
    pub(crate) fn describe_setting(&self) -> String {
        let model = self.own_model.as_ref().map_or(self.model.as_deref().unwrap_or(MODEL), |model| &model.name);
        let model = model.rsplit('/').next().unwrap_or(model).trim_end_matches(".json");
        let degrees = [("t", self.tensor), ("c", self.context), ("p", self.pipeline), ("d", self.data)];
        let devices: u32 = degrees.iter().map(|(_, degree)| degree.unwrap_or(1)).product();
        let mut words = vec![format!("{model} on {devices} {}", self.chip.as_deref().unwrap_or(CHIP))];
        words.extend(degrees.iter().filter_map(|(name, n)| n.filter(|n| *n > 1).map(|n| format!("{name}{n}"))));
        words.extend(self.zero.filter(|stage| *stage > 0).map(|stage| format!("ZeRO-{stage}")));
        words.extend(self.sequence.map(|tokens| format!("{tokens} tokens")));
        let techniques = self.techniques.iter().flatten().cloned().collect::<Vec<_>>().join(" + ");
        let techniques = if techniques.is_empty() { "no technique".to_owned() } else { techniques };
        if let Some(engine) = &self.engine {
            words.push(format!("batch {}", self.micro_batch.unwrap_or(1)));
            words.extend(self.output.map(|tokens| format!("answers of {tokens}")));
            words.extend(self.nvme_gb_per_s.map(|rate| format!("storage of {rate} GB/s")));
            words.extend(["bf16".to_owned(), engine.clone(), techniques]);
            return words.join(", ");
        }
        words.push(format!("micro-batch {}", self.micro_batch.unwrap_or(1)));
        words.extend(self.accumulate.filter(|n| *n > 1).map(|n| format!("{n} micro-batches")));
        words.extend(self.global_batch.map(|n| format!("global batch {n}")));
        words.push(self.precision.clone().unwrap_or_else(|| "pure".to_owned()));
        words.push(self.optimizer.unwrap_or_default().to_string());
        words.extend(self.recompute.as_ref().filter(|p| *p != "none").map(|policy| format!("recompute {policy}")));
        words.push(self.stack.clone().unwrap_or_else(|| STACK.to_owned()));
        words.extend(self.stack_options.iter().cloned());
        words.push(techniques);
        words.join(", ")
    }

    fn prepare_chip(&self) -> Result<Accelerator, String> {
        let mut chip = ChipTemplate::find_built_in(self.chip.as_deref().unwrap_or(CHIP))
            .map_err(|e| e.to_string())?
            .accelerator
            .clone();
        if let Some(rate) = self.nvme_gb_per_s {
            let bandwidth = BytesPerSecond(rate * 1e9);
            chip.storage =
                Some(Storage { read_bandwidth: bandwidth, write_bandwidth: bandwidth, capacity: Bytes(STORAGE) });
        }
        Ok(chip)
    }

    fn layout(&self) -> Layout {
        Layout {
            tensor: self.tensor.unwrap_or(1),
            context: self.context.unwrap_or(1),
            data: self.data.unwrap_or(1),
            pipeline: self.pipeline.unwrap_or(1),
            virtual_stages: self.virtual_stages.unwrap_or(1),
            sequence_parallel: self.sequence_parallel.unwrap_or(self.tensor.unwrap_or(1) > 1),
            zero: ZeroStage::from_number(self.zero.unwrap_or_default().into()).unwrap_or_default(),
            ..Layout::default()
        }
    }

    pub(crate) fn prepare_study(&self) -> Result<PreparedPaperStudy, String> {
        let model = match &self.own_model {
            Some(model) => model.clone(),
            None => named_model(self.model.as_deref().unwrap_or(MODEL))?,
        };
        let chip = self.prepare_chip()?;
        let mut stack = SoftwareStack::load(self.stack.as_deref().unwrap_or(STACK)).map_err(|e| e.to_string())?;
        for option in &self.stack_options {
            stack = stack.with_option(option).map_err(|e| e.to_string())?;
        }
        let layout = self.layout();
        let activations: ActivationPolicy =
            self.recompute.as_deref().unwrap_or("none").parse().map_err(|e: workloads::WorkloadError| e.to_string())?;
        let devices = u32::try_from(layout.device_count()).unwrap_or(u32::MAX);
        let fabric = self.fabric.as_deref().unwrap_or("phaze_flat");
        let fabric = Fabric::load_for_accelerator(fabric, &chip, &Files::default()).map_err(|e| e.to_string())?;
        let fabric = fabric.for_devices(devices).map_err(|e| e.to_string())?;
        let micro_batch = self.micro_batch.unwrap_or(1);
        let sequence_length = self.sequence.unwrap_or(model.max_sequence);
        let plan = TrainingPlan {
            layout,
            batch: Batch {
                micro_batch,
                global_batch: self
                    .global_batch
                    .unwrap_or(micro_batch * u64::from(layout.data) * self.accumulate.unwrap_or(1)),
                sequence_length,
            },
            activations: activations.into(),
            attention: self.attention.unwrap_or_default(),
            precision: stack.precision_of_run(training_precision(self.precision.as_deref())?),
            optimizer: self.optimizer.unwrap_or_default(),
            schedule: PipelineSchedule::OneForwardOneBackward,
            techniques: Techniques::default(),
        };
        let techniques = self.techniques.iter().flatten().map(|t| t.parse::<Technique>().map_err(|e| e.to_string()));
        let techniques = techniques.collect::<Result<_, _>>()?;
        let engine = self.engine.as_deref().map(|name| ServingEngine::load_from(name, &Files::default()));
        let engine = engine.transpose().map_err(|e| e.to_string())?;
        Ok(PreparedPaperStudy {
            model,
            chip,
            fabric,
            stack,
            plan,
            techniques,
            inference: engine.map(|engine| (engine, self.output.unwrap_or(1))),
            parameter: self.parameter.clone(),
            operator: self.operator.clone(),
        })
    }
}

fn training_precision(name: Option<&str>) -> Result<Precision, String> {
    match name {
        None | Some("pure") => Ok(Precision::PURE_BF16),
        Some("mixed") => Ok(Precision::MIXED_BF16),
        Some("fp32") => Ok(Precision::FP32),
        Some("fp16") => Ok(Precision {
            operand: sim::kernel::DataType::Fp16,
            gradient: sim::kernel::DataType::Fp16,
            ..Precision::PURE_BF16
        }),
        Some(other) => Err(format!("precision {other}: must be pure, mixed, fp16 or fp32")),
    }
}

/// Returns a built-in model, or one of the models in the directory of the reference (`techniques/...`).
pub(crate) fn named_model(name: &str) -> Result<Model, String> {
    let Some(file) = name.strip_prefix("techniques/") else { return Model::load(name).map_err(|e| e.to_string()) };
    let text = MODELS.get_file(file).and_then(|f| f.contents_utf8()).ok_or_else(|| format!("no model {name}"))?;
    workloads::import::hugging_face::parse_config(file, name, text).map_err(|e| e.to_string())
}

impl PreparedPaperStudy {
    fn technique_setting(&self) -> TechniqueSetting<'_> {
        TechniqueSetting {
            model: &self.model,
            chip: &self.chip,
            fabric: &self.fabric,
            stack: &self.stack,
            plan: &self.plan,
        }
    }

    pub(crate) fn value_of(&self, quantity: StudyQuantity) -> Result<f64, String> {
        if let Some((engine, output)) = &self.inference {
            return self.value_of_inference(engine, *output, quantity);
        }
        if let Some(limit) = self.value_of_limit(quantity)? {
            return Ok(limit);
        }
        let trial = self.technique_setting().try_best_fractions(&self.techniques).map_err(|e| e.to_string())?;
        let memory = self.value_of_memory(quantity, &trial)?;
        let memory = memory.map_or_else(|| self.value_of_activations(quantity, &trial), |value| Ok(Some(value)))?;
        if let Some(value) = memory.or_else(|| self.value_of_speed(quantity, &trial)) {
            return Ok(value);
        }
        match quantity {
            StudyQuantity::Parameter => self.parameter_value(),
            _ => Err("a study of inference names an engine".to_owned()),
        }
    }

    fn value_of_inference(&self, engine: &ServingEngine, output: u64, quantity: StudyQuantity) -> Result<f64, String> {
        let study = InferenceStudy {
            model: &self.model,
            chip: &self.chip,
            fabric: &self.fabric,
            engine,
            technique: self.techniques.iter().next(),
            sequences: self.plan.batch.micro_batch,
            input: self.plan.batch.sequence_length,
            output,
        };
        match quantity {
            StudyQuantity::PromptPeak => study.prompt_peak(),
            StudyQuantity::Stored => study.stored(),
            StudyQuantity::GeneratedPerSecond => study.generated_per_second(),
            _ => Err("a study with an engine has prompt_peak, stored and generated_per_second".to_owned()),
        }
    }

    /// Returns the largest sequence or batch that fits; `None` for another quantity.
    fn value_of_limit(&self, quantity: StudyQuantity) -> Result<Option<f64>, String> {
        let setting = self.technique_setting();
        let longest = |techniques: &Techniques| setting.longest_sequence(techniques).unwrap_or(0) as f64;
        Ok(Some(match quantity {
            StudyQuantity::Longest => longest(&self.techniques) / 1000.0,
            StudyQuantity::LongestOverPlain => longest(&self.techniques) / longest(Techniques::none()).max(1.0),
            StudyQuantity::LargestMicroBatch => setting.largest_micro_batch(&self.techniques).unwrap_or(0) as f64,
            StudyQuantity::LongestOverRecompute => {
                let recompute: Technique =
                    "megatron-full".parse().map_err(|e: workloads::TechniqueError| e.to_string())?;
                longest(&self.techniques) / longest(&[recompute].into_iter().collect()).max(1.0)
            }
            _ => return Ok(None),
        }))
    }

    /// Returns the bytes of one or several memory classes, or 1 if the plan fits and 0 if not; `None` for another
    /// quantity.
    fn value_of_memory(&self, quantity: StudyQuantity, trial: &TechniqueTrial) -> Result<Option<f64>, String> {
        let fullest = trial.memory.stages.iter().max_by_key(|s| s.bytes_needed()).ok_or("no stage")?;
        let class = |class: MemoryClass| fullest.class_bytes(class).as_f64();
        // The papers count master weights among the optimizer states.
        let states = class(MemoryClass::MasterWeights) + class(MemoryClass::OptimizerStates);
        Ok(Some(match quantity {
            StudyQuantity::Weights => class(MemoryClass::Weights),
            StudyQuantity::Gradients => self.gradient_bytes(trial)?,
            StudyQuantity::States => states,
            StudyQuantity::Peak => fullest.reading_of(MemoryReading::Allocated).as_f64(),
            StudyQuantity::BesideWeightsAndStates => {
                fullest.reading_of(MemoryReading::Allocated).as_f64() - class(MemoryClass::Weights) - states
            }
            StudyQuantity::Fits => f64::from(u8::from(trial.lacks.is_none())),
            StudyQuantity::WeightsAndStates => class(MemoryClass::Weights) + states,
            StudyQuantity::Sum => {
                let statics = class(MemoryClass::Weights) + states + self.gradient_bytes(trial)?;
                statics + self.activations_at_loss(trial)?
            }
            StudyQuantity::UpdateTemporaries => {
                let parameters = class(MemoryClass::Weights) / self.plan.precision.operand.bytes() as f64;
                // Adam's foreach implementation copies a state.
                let adam = self.plan.optimizer == Optimizer::Adam;
                let state = if adam { self.plan.precision.state_type().bytes() as f64 } else { 0.0 };
                let memory = &self.stack.memory;
                parameters * (memory.update_bytes_per_parameter + memory.update_state_copies * state)
            }
            StudyQuantity::UsableMemory => trial.memory.capacity.as_f64(),
            StudyQuantity::ReadOnly => fullest.read_only.into_iter().sum::<Bytes>().as_f64(),
            _ => return Ok(None),
        }))
    }

    /// Returns a quantity of kept tensors and logits; `None` for another quantity.
    fn value_of_activations(&self, quantity: StudyQuantity, trial: &TechniqueTrial) -> Result<Option<f64>, String> {
        Ok(Some(match quantity {
            StudyQuantity::ActivationCut => {
                let none = self.technique_setting().try_techniques(Techniques::none()).map_err(|e| e.to_string())?;
                (1.0 - peak_activations(trial) / peak_activations(&none)) * 100.0
            }
            StudyQuantity::ActivationsAtLoss => self.activations_at_loss(trial)?,
            StudyQuantity::HeadForward => self.head_bytes(false)?,
            StudyQuantity::Head => self.head_bytes(true)?,
            StudyQuantity::ActivationsOfAllDevices => {
                self.kept_bytes_with_gradients(trial)? * self.plan.layout.device_count() as f64
            }
            StudyQuantity::InputsLeft => {
                self.weight_gradient_inputs(&self.techniques)? / self.weight_gradient_inputs(Techniques::none())?
                    * 100.0
            }
            StudyQuantity::BytesPerSbh => {
                let batch = &self.plan.batch;
                trial.layer[0].as_f64() / (batch.sequence_length * batch.micro_batch * self.model.hidden) as f64
            }
            StudyQuantity::AttentionShare => self.attention_share_percent()?,
            StudyQuantity::LinearInputs => self.weight_gradient_inputs(&self.techniques)? * self.model.layers as f64,
            StudyQuantity::PeakActivations => peak_activations(trial),
            StudyQuantity::BytesPerToken => self.input_bytes_per_token()?,
            _ => return Ok(None),
        }))
    }

    /// Returns a quantity of the step's time; `None` for another quantity.
    fn value_of_speed(&self, quantity: StudyQuantity, trial: &TechniqueTrial) -> Option<f64> {
        Some(match quantity {
            StudyQuantity::Mfu => self.mfu(trial),
            StudyQuantity::StepSeconds => trial.time.total.0,
            StudyQuantity::TokensPerSecond => {
                (self.plan.batch.global_batch * self.plan.batch.sequence_length) as f64 / trial.time.total.0
            }
            StudyQuantity::SequencesPerSecond => self.plan.batch.global_batch as f64 / trial.time.total.0,
            StudyQuantity::TeraflopsPerDevice => {
                self.necessary_flops_per_second(trial) / self.plan.layout.device_count() as f64 / 1e12
            }
            _ => return None,
        })
    }

    fn parameter_value(&self) -> Result<f64, String> {
        let key = self.parameter.as_deref().ok_or("no parameter")?;
        let technique = self.techniques.iter().next().ok_or("no technique")?;
        let facts = self.technique_setting().model_facts().map_err(|e| e.to_string())?;
        let values = technique.parameter_values(&facts).map_err(|e| e.to_string())?;
        values.get(key).copied().ok_or_else(|| format!("no parameter {key}"))
    }

    /// Returns the bytes per token of the tensors from which one product's weight gradient is computed.
    fn input_bytes_per_token(&self) -> Result<f64, String> {
        let name = self.operator.as_deref().ok_or("no operator")?;
        let graph = self.graph(&self.techniques)?;
        let layer = &graph.segment(SegmentKind::Layer).ok_or("no layer")?.graph;
        let operator =
            layer.operators.iter().find(|op| op.name == name).ok_or_else(|| format!("no operator {name}"))?;
        let chains = operator.backward.iter().filter(|chain| chain.gradient == workloads::graph::Gradient::Weights);
        let read: std::collections::BTreeSet<_> = chains.flat_map(|chain| &chain.reads).copied().collect();
        let tokens = self.plan.batch.sequence_length * self.plan.batch.micro_batch;
        Ok(read.iter().map(|t| layer.tensors[t.index()].bytes).sum::<Bytes>().as_f64() / tokens as f64)
    }

    /// Returns the model FLOPs utilisation in percent.
    fn mfu(&self, trial: &TechniqueTrial) -> f64 {
        let peak = self.chip.peak_flops(self.plan.precision.operand).map_or(0.0, |peak| peak.0)
            * self.plan.layout.device_count() as f64;
        self.necessary_flops_per_second(trial) / peak.max(1.0) * 100.0
    }

    /// Returns the necessary FLOPs per second over all devices.
    fn necessary_flops_per_second(&self, trial: &TechniqueTrial) -> f64 {
        let batch = &self.plan.batch;
        let flops =
            self.model.necessary_training_flops(batch.global_batch, batch.sequence_length, self.model.vocabulary);
        flops.0 as f64 / trial.time.total.0
    }

    fn graph(&self, techniques: &Techniques) -> Result<workloads::TrainingGraph, String> {
        let plan = TrainingPlan { techniques: techniques.clone(), ..self.plan.clone() };
        lower_plan(&self.model, &plan, &self.stack).map_err(|e| e.to_string())
    }

    /// Returns the bytes of all gradients without parallelism, even if they are not live at the peak. For segments
    /// whose gradients are consumed at once, the largest gradient counts instead.
    fn gradient_bytes(&self, trial: &TechniqueTrial) -> Result<f64, String> {
        let graph = self.graph(&trial.techniques)?;
        let (mut sum, mut largest) = (0, 0);
        for (kind, copies) in
            [(SegmentKind::Embedding, 1), (SegmentKind::Layer, self.model.layers), (SegmentKind::Head, 1)]
        {
            let segment = graph.segment(kind).ok_or("no such segment")?;
            match segment.statics.as_deref() {
                Some(statics) => {
                    sum += statics.own.gradients.device.per_device_count() * copies;
                    largest = largest.max(statics.own.largest_gradient);
                }
                None => {
                    sum += segment.parameters.per_device_count() * segment.bytes_per_parameter().gradient.0 * copies
                }
            }
        }
        Ok((sum + largest) as f64)
    }

    /// Returns the bytes of the activations that all layers keep, and of the logits.
    fn activations_at_loss(&self, trial: &TechniqueTrial) -> Result<f64, String> {
        let logits = self.logits_bytes(&self.techniques)?;
        Ok(trial.layer[0].as_f64() * self.model.layers as f64 + logits)
    }

    /// Returns the bytes of the live logits.
    fn logits_bytes(&self, techniques: &Techniques) -> Result<f64, String> {
        let graph = self.graph(techniques)?;
        let head = &graph.segment(SegmentKind::Head).ok_or("no head")?.graph;
        let logits = head.find_tensor("head.logits.out").ok_or("no logits")?;
        let count = head.tensors[logits.index()].bytes.as_f64() / self.plan.precision.operand.bytes() as f64;
        let slices = head.settled.slices.get(&logits).copied().unwrap_or(1);
        Ok(count * self.stack.memory.bytes_per_logit / slices as f64)
    }

    /// Returns the bytes of the output head alone: logits, input, weights and the weights' gradient. `both` adds the
    /// input's gradient.
    fn head_bytes(&self, both: bool) -> Result<f64, String> {
        let batch = &self.plan.batch;
        let operand = self.plan.precision.operand.bytes();
        let input = (batch.sequence_length * batch.micro_batch * self.model.hidden * operand) as f64;
        let weights = (self.model.hidden * self.model.vocabulary) as f64
            * (operand + self.plan.precision.gradient.bytes()) as f64;
        Ok(self.logits_bytes(&self.techniques)? + input * if both { 2.0 } else { 1.0 } + weights)
    }

    /// Returns the bytes of those tensors with gradients that all layers keep.
    fn kept_bytes_with_gradients(&self, trial: &TechniqueTrial) -> Result<f64, String> {
        let graph = self.graph(&trial.techniques)?;
        let layer = &graph.segment(SegmentKind::Layer).ok_or("no layer")?.graph;
        let treatment =
            self.plan.activations.first_layer_policy().treatment_with_extent(layer, self.stack.replay_extent());
        let wide = treatment.kept.iter().map(|t| &layer.tensors[t.index()]).filter(|t| t.gradient_bytes > Bytes::ZERO);
        Ok(wide.map(|t| t.bytes).sum::<Bytes>().as_f64() * self.model.layers as f64)
    }

    /// Returns the size of attention's result, in percent of all kept tensors of a layer that have gradients.
    fn attention_share_percent(&self) -> Result<f64, String> {
        let graph = self.graph(Techniques::none())?;
        let layer = &graph.segment(SegmentKind::Layer).ok_or("no layer")?.graph;
        let result =
            ["layer.attention.core.out", "layer.attention.context.out"].iter().find_map(|name| layer.find_tensor(name));
        let result = layer.tensors[result.ok_or("no attention")?.index()].bytes;
        let kept = layer.kept_tensors(&workloads::RecomputeSet::none());
        let wide = kept.iter().map(|t| &layer.tensors[t.index()]).filter(|t| t.gradient_bytes > Bytes::ZERO);
        Ok(result.as_f64() / wide.map(|t| t.bytes).sum::<Bytes>().as_f64().max(1.0) * 100.0)
    }

    /// Returns the bytes of the tensors from which a layer's weight gradients are computed, each tensor once. Norms and
    /// the attention's output projection are left out.
    fn weight_gradient_inputs(&self, techniques: &Techniques) -> Result<f64, String> {
        let graph = self.graph(techniques)?;
        let layer = &graph.segment(SegmentKind::Layer).ok_or("no layer")?.graph;
        let product =
            |op: &&workloads::graph::OperatorNode| !op.name.ends_with("norm") && op.name != "layer.attention.output";
        let chains = layer.operators.iter().filter(product).flat_map(|op| &op.backward);
        let weights = chains.filter(|chain| chain.gradient == workloads::graph::Gradient::Weights);
        let read: std::collections::BTreeSet<_> = weights.flat_map(|chain| &chain.reads).copied().collect();
        Ok(read.iter().map(|t| layer.tensors[t.index()].bytes).sum::<Bytes>().as_f64())
    }
}

/// Returns the largest sum of activations, logits and transients of any stage at its peak, in bytes.
fn peak_activations(trial: &TechniqueTrial) -> f64 {
    let classes = [MemoryClass::Activations, MemoryClass::Transient, MemoryClass::Logits];
    let of = |s: &StageMemory| classes.map(|class| s.class_bytes(class)).into_iter().sum::<Bytes>().as_f64();
    trial.memory.stages.iter().map(of).fold(0.0, f64::max)
}
