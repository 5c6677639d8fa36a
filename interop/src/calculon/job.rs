//! Calculon's application and execution files (Isaev et al., SC 2023): the model, and its layout on devices.
//!
//! The application is a repeated GPT block of Megatron: a pre-norm block of attention with separate query, key and
//! value products, dropout, residual sums and a GELU MLP, with biases and without a vocabulary. A model of this project
//! has an embedding and a head, so the caller gives the vocabulary's rows; [`VOCABULARY`] is the default.

use sim::files::FileError;
use sim::files::json::{JsonObject, JsonReader};
use sim::hardware::FileFault;
use sim::kernel::{DataType, ElementwiseFunction};
use std::collections::BTreeSet;
use workloads::footprint::Precision;
use workloads::layer_list::LayerList;
use workloads::layout::{Batch, Layout, ZeroStage};
use workloads::limits::{MAX_FFN, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_WIDTH};
use workloads::model::{Dropout, Model, Norm, NormPlacement, PositionEncoding};
use workloads::parallel::MAX_MICRO_BATCH;
use workloads::recompute_policy::{ActivationPolicy, NamedTensor};
use workloads::variations::Variations;

/// The vocabulary in Calculon's own parameter count: 51,200 rows, the padded GPT-2 vocabulary of Narayanan et al., SC
/// 2021.
pub const VOCABULARY: u64 = 51_200;
/// Probability of dropout; only the presence of dropout affects the cost.
const DROPOUT: f64 = 0.1;
/// Limits on devices and on sequences per step.
const MOST_DEVICES: u64 = 1 << 20;
const MOST_SEQUENCES: u64 = 1 << 24;

/// An application: one block and its repetitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CalculonApplication {
    /// The file.
    pub file: String,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Width of the MLP.
    pub feedforward: u64,
    /// Tokens per sequence.
    pub seq_size: u64,
    /// Heads.
    pub attn_heads: u64,
    /// Dimension of a head.
    pub attn_size: u64,
    /// Blocks.
    pub num_blocks: u64,
}

/// How tensor-parallel ranks communicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TensorCommunication {
    /// All-reduces; pipeline stages send whole activations.
    AllReduce,
    /// All-reduces; the ranks of a pipeline stage send slices, and the next stage gathers them.
    SlicedSends,
    /// Reduce-scatters and all-gathers: Megatron's sequence parallelism.
    SequenceParallel,
}

/// An execution: degrees, batch and options.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // The file's own flags.
pub struct CalculonExecution {
    /// The file.
    pub file: String,
    /// Devices.
    pub num_procs: u32,
    /// Tensor-parallel degree.
    pub tensor_par: u32,
    /// Pipeline stages.
    pub pipeline_par: u32,
    /// Data-parallel ranks.
    pub data_par: u32,
    /// Network numbers in the system's file for tensor, pipeline and data parallelism.
    pub networks: [usize; 3],
    /// Sequences per step.
    pub batch_size: u64,
    /// Sequences per micro-batch.
    pub microbatch_size: u64,
    /// The type of all computations.
    pub data_type: DataType,
    /// True if the MLP's activation is fused with its neighbours.
    pub fused_activation: bool,
    /// True if all heads share one key and value.
    pub multiquery: bool,
    /// The recomputation: `none`, `attn_only`, `full`.
    pub recompute: ActivationPolicy,
    /// Model chunks per stage.
    pub pipeline_interleaving: u32,
    /// True if data-parallel ranks shard the optimizer's states.
    pub optimizer_sharding: bool,
    /// How tensor-parallel ranks communicate.
    pub tensor_communication: TensorCommunication,
    /// True if tensor-parallel communication overlaps with computation.
    pub tensor_par_overlap: bool,
    /// True if the backward pass gathers activations again instead of keeping the gathered ones.
    pub seq_par_ag_redo: bool,
    /// True if the reduction of gradients overlaps with the backward pass.
    pub data_par_overlap: bool,
    /// True if activations are offloaded to the second memory.
    pub activations_offload: bool,
}

impl CalculonApplication {
    /// Parses an application; `file` names it in errors.
    ///
    /// # Errors
    /// Malformed JSON, missing or unknown keys, invalid sizes; all faults are listed.
    pub fn from_json_str(text: &str, file: &str) -> Result<Self, FileError> {
        let mut r = JsonReader::new(file);
        let json = r.parse_value(text, "an application of Calculon (.json)")?;
        let read = r.root_object(&json).map(|o| {
            r.refuse_unknown_keys(&o, &["hidden", "feedforward", "seq_size", "attn_heads", "attn_size", "num_blocks"]);
            Self {
                file: file.to_owned(),
                hidden: r.count_under(&o, "hidden", 1, MAX_WIDTH),
                feedforward: r.count_under(&o, "feedforward", 1, MAX_FFN),
                seq_size: r.count_under(&o, "seq_size", 1, MAX_POSITIONS),
                attn_heads: r.count_under(&o, "attn_heads", 1, MAX_HEADS),
                attn_size: r.count_under(&o, "attn_size", 1, MAX_WIDTH),
                num_blocks: r.count_under(&o, "num_blocks", 1, MAX_LAYERS),
            }
        });
        check_whole_quotient(r, read, file)
    }

    /// Returns the model, with an embedding and a head of `vocabulary` rows.
    #[must_use]
    pub fn to_model(&self, vocabulary: u64, multiquery: bool) -> Model {
        Model {
            name: self.file.clone(),
            family: "calculon".to_owned(),
            layers: self.num_blocks,
            hidden: self.hidden,
            heads: self.attn_heads,
            kv_heads: if multiquery { 1 } else { self.attn_heads },
            head_dim: self.attn_size,
            ffn: self.feedforward,
            experts: None,
            vocabulary,
            vocabulary_multiple: 1,
            max_sequence: self.seq_size,
            embedding_width: self.hidden,
            position: PositionEncoding::Learned { rows: self.seq_size },
            token_types: 0,
            norm: Norm::LayerNorm,
            norm_affine: true,
            norm_placement: NormPlacement::Pre,
            embedding_norm: false,
            final_norm: true,
            activation: ElementwiseFunction::Gelu,
            gated: false,
            qkv_bias: true,
            attention_output_bias: true,
            mlp_bias: true,
            causal: true,
            dropout: Dropout { embedding: DROPOUT, attention: DROPOUT, residual: DROPOUT, activation: 0.0 },
            tied_head: true,
            head_transform: false,
            head_bias: false,
            variations: Variations::default(),
            list: LayerList::default(),
            documents: Vec::new(),
            assumptions: Vec::new(),
        }
    }
}

const KEYS: [&str; 23] = [
    "num_procs",
    "tensor_par",
    "pipeline_par",
    "data_par",
    "tensor_par_net",
    "pipeline_par_net",
    "data_par_net",
    "batch_size",
    "microbatch_size",
    "datatype",
    "fused_activation",
    "attention_type",
    "activation_recompute",
    "pipeline_interleaving",
    "optimizer_sharding",
    "tensor_par_comm_type",
    "tensor_par_overlap",
    "seq_par_ag_redo",
    "data_par_overlap",
    "weight_offload",
    "activations_offload",
    "optimizer_offload",
    "training",
];

const DATA_TYPES: [(&str, DataType); 4] =
    [("float16", DataType::Fp16), ("bfloat16", DataType::Bf16), ("float8", DataType::Fp8), ("float32", DataType::Fp32)];

const COMMUNICATIONS: [(&str, TensorCommunication); 3] = [
    ("ar", TensorCommunication::AllReduce),
    ("p2p_rs_ag", TensorCommunication::SlicedSends),
    ("rs_ag", TensorCommunication::SequenceParallel),
];

/// Adds a fault for each flag of an execution that is not modelled.
fn refuse_unmodelled(r: &mut JsonReader, execution: &JsonObject<'_>) {
    for (key, needed, cure) in [
        ("training", true, "inference is not modelled: write true"),
        ("weight_offload", false, "weights in the second memory are not modelled: write false"),
        ("optimizer_offload", false, "optimizer states in the second memory are not modelled: write false"),
    ] {
        if r.flag_under(execution, key) != needed && r.is_sound() {
            r.add_fault(key, !needed, format!("must be {needed}"), cure);
        }
    }
}

impl CalculonExecution {
    /// Parses an execution; `file` names it in errors.
    ///
    /// # Errors
    /// Malformed JSON, missing or unknown keys, invalid values, broken rules of the format, and features that are not
    /// modelled: inference, weights or optimizer states in the second memory, offloaded activations that are not
    /// recomputed.
    pub fn from_json_str(text: &str, file: &str) -> Result<Self, FileError> {
        let mut r = JsonReader::new(file);
        let json = r.parse_value(text, "an execution of Calculon (.json)")?;
        let read = r.root_object(&json).map(|o| {
            r.refuse_unknown_keys(&o, &KEYS);
            let degree = |r: &mut JsonReader, key| r.count_under(&o, key, 1, MOST_DEVICES) as u32;
            let mut policies = vec![ActivationPolicy::None, ActivationPolicy::Selective, ActivationPolicy::Full];
            let chosen =
                r.choice_under(&o, "activation_recompute", &[("none", 0), ("attn_only", 1), ("full", 2)]).unwrap_or(0);
            refuse_unmodelled(&mut r, &o);
            Self {
                file: file.to_owned(),
                num_procs: degree(&mut r, "num_procs"),
                tensor_par: degree(&mut r, "tensor_par"),
                pipeline_par: degree(&mut r, "pipeline_par"),
                data_par: degree(&mut r, "data_par"),
                networks: ["tensor_par_net", "pipeline_par_net", "data_par_net"]
                    .map(|key| r.count_under(&o, key, 0, 1000) as usize),
                batch_size: r.count_under(&o, "batch_size", 1, MOST_SEQUENCES),
                microbatch_size: r.count_under(&o, "microbatch_size", 1, MAX_MICRO_BATCH),
                data_type: r.choice_under(&o, "datatype", &DATA_TYPES).unwrap_or(DataType::Fp16),
                fused_activation: r.flag_under(&o, "fused_activation"),
                multiquery: r
                    .choice_under(&o, "attention_type", &[("multihead", false), ("multiquery", true)])
                    .unwrap_or(false),
                recompute: policies.swap_remove(chosen),
                pipeline_interleaving: degree(&mut r, "pipeline_interleaving"),
                optimizer_sharding: r.flag_under(&o, "optimizer_sharding"),
                tensor_communication: r
                    .choice_under(&o, "tensor_par_comm_type", &COMMUNICATIONS)
                    .unwrap_or(TensorCommunication::AllReduce),
                tensor_par_overlap: r
                    .choice_under(&o, "tensor_par_overlap", &[("none", false), ("ring", true), ("pipe", true)])
                    .unwrap_or(false),
                seq_par_ag_redo: r.flag_under(&o, "seq_par_ag_redo"),
                data_par_overlap: r.flag_under(&o, "data_par_overlap"),
                activations_offload: r.flag_under(&o, "activations_offload"),
            }
        });
        if let (Some(execution), true) = (&read, r.is_sound()) {
            execution.check_rules(&mut r);
        }
        check_whole_quotient(r, read, file)
    }

    /// Checks the rules that tie the keys of one execution to each other.
    fn check_rules(&self, r: &mut JsonReader) {
        let (t, p, d) = (u64::from(self.tensor_par), u64::from(self.pipeline_par), u64::from(self.data_par));
        let ranks = t * p * d;
        if u64::from(self.num_procs) != ranks {
            let limit = format!("must be tensor_par x pipeline_par x data_par = {t} x {p} x {d} = {ranks}");
            r.add_fault("num_procs", self.num_procs, limit, format!("write {ranks}, or change a degree"));
        }
        let share = d * self.microbatch_size;
        if !self.batch_size.is_multiple_of(share) {
            let limit =
                format!("must be a multiple of data_par x microbatch_size = {d} x {} = {share}", self.microbatch_size);
            let below = self.batch_size / share * share;
            let near = if below == 0 { share.to_string() } else { format!("{below} or {}", below + share) };
            r.add_fault("batch_size", self.batch_size, limit, format!("write {near}"));
        }
        let only_with = |r: &mut JsonReader, key: &str, on: bool, given: bool, needs: &str, cure: &str| {
            if on && !given {
                r.add_fault(key, "true", format!("needs {needs}"), cure.to_owned());
            }
        };
        if p == 1 && self.pipeline_interleaving > 1 {
            let cure = "write 1, or pipeline_par of at least 2";
            r.add_fault("pipeline_interleaving", self.pipeline_interleaving, "must be 1 without a pipeline", cure);
        }
        only_with(
            r,
            "optimizer_sharding",
            self.optimizer_sharding,
            d > 1,
            "data_par of at least 2",
            "write false, or raise data_par",
        );
        only_with(
            r,
            "data_par_overlap",
            self.data_par_overlap,
            d > 1,
            "data_par of at least 2",
            "write false, or raise data_par",
        );
        only_with(
            r,
            "tensor_par_overlap",
            self.tensor_par_overlap,
            t > 1,
            "tensor_par of at least 2",
            "write \"none\", or raise tensor_par",
        );
        let full = self.recompute == ActivationPolicy::Full;
        let redo = self.tensor_communication == TensorCommunication::SequenceParallel && !full;
        let needs = "tensor_par_comm_type \"rs_ag\" and activation_recompute other than \"full\"";
        only_with(r, "seq_par_ag_redo", self.seq_par_ag_redo, redo, needs, "write false");
        let needs = "activation_recompute \"full\": only block inputs can go to the second memory here";
        only_with(r, "activations_offload", self.activations_offload, full, needs, "write false, or recompute in full");
    }

    /// Checks the degrees against an application.
    ///
    /// # Errors
    /// The first width, or number of heads, tokens or blocks, that a degree does not divide.
    pub fn check_against_application(&self, application: &CalculonApplication) -> Result<(), FileError> {
        let t = u64::from(self.tensor_par);
        let fault = |key: &str, value: String, limit: String, cure: String| {
            Err(FileError { file: self.file.clone(), faults: vec![FileFault::new(key, value, limit, cure)] })
        };
        // Only sequence parallelism splits the sequence. Otherwise 0, a multiple of every degree, passes the check.
        let sequence = if self.to_layout().sequence_parallel { application.seq_size } else { 0 };
        let widths = [
            ("hidden", application.hidden),
            ("feedforward", application.feedforward),
            ("attn_heads", application.attn_heads),
            ("seq_size", sequence),
        ];
        if let Some((key, width)) = widths.into_iter().find(|(_, width)| !width.is_multiple_of(t)) {
            let divides_all = |t: &u64| widths.iter().all(|(_, width)| width.is_multiple_of(*t));
            let below = (1..t).rev().find(divides_all).unwrap_or(1);
            let limit = format!("must divide the {key} {width} of {}", application.file);
            return fault("tensor_par", t.to_string(), limit, format!("write {below}, or change the application"));
        }
        if let Err(error) = self.to_layout().chunk_layers(application.num_blocks) {
            let (key, value) = if error.key == "pp" {
                ("pipeline_par", self.pipeline_par)
            } else {
                ("pipeline_interleaving", self.pipeline_interleaving)
            };
            let cure =
                error.cure.replace("pp = ", "pipeline_par = ").replace("virtual_stages = ", "pipeline_interleaving = ");
            let limit = format!(
                "pipeline_par x pipeline_interleaving = {} must divide the {} num_blocks of {}, or those and the \
                 embedding and the head",
                self.to_layout().chunk_count(),
                application.num_blocks,
                application.file
            );
            return fault(key, value.to_string(), limit, cure);
        }
        Ok(())
    }

    /// Returns the parallel degrees.
    #[must_use]
    pub fn to_layout(&self) -> Layout {
        Layout {
            tensor: self.tensor_par,
            pipeline: self.pipeline_par,
            data: self.data_par,
            virtual_stages: self.pipeline_interleaving,
            sequence_parallel: self.tensor_communication == TensorCommunication::SequenceParallel
                && self.tensor_par > 1,
            zero: if self.optimizer_sharding { ZeroStage::OptimizerStates } else { ZeroStage::None },
            ..Layout::default()
        }
    }

    /// Returns the batch of a step.
    #[must_use]
    pub fn to_batch(&self, application: &CalculonApplication) -> Batch {
        Batch {
            micro_batch: self.microbatch_size,
            global_batch: self.batch_size,
            sequence_length: application.seq_size,
        }
    }

    /// Returns the activation policy of a block.
    #[must_use]
    pub fn activation_policy(&self) -> ActivationPolicy {
        if self.activations_offload {
            let host = BTreeSet::from([NamedTensor::DecoderLayerInput]);
            return ActivationPolicy::Custom { host, device: BTreeSet::new() };
        }
        self.recompute.clone()
    }

    /// Returns the number formats. As Calculon counts, narrower weights have an fp32 copy, and moments are fp32. A
    /// float8 run has fp8 products and bf16 elsewhere.
    #[must_use]
    pub fn number_formats(&self) -> Precision {
        match self.data_type {
            DataType::Fp32 => Precision::FP32,
            DataType::Fp8 => Precision::MIXED_BF16.with_product_type(DataType::Fp8),
            operand => Precision { operand, gradient: operand, ..Precision::MIXED_BF16 },
        }
    }

    /// Returns the differences between a run here and the execution, one line each.
    #[must_use]
    pub fn describe_differences(&self) -> Vec<String> {
        let (t, p) = (self.tensor_par > 1, self.pipeline_par > 1);
        let sequence_parallel = self.to_layout().sequence_parallel;
        let lines = [
            (
                t && p && self.tensor_communication == TensorCommunication::AllReduce,
                "tensor_par_comm_type ar: between stages every rank sends its slice and gathers the rest, not the \
                 whole activation",
            ),
            (
                sequence_parallel && !self.seq_par_ag_redo && self.recompute != ActivationPolicy::Full,
                "seq_par_ag_redo false: gathered activations are gathered again in the backward pass, not kept",
            ),
            (
                self.tensor_par_overlap,
                "tensor_par_overlap: communication of input gradients is hidden behind weight gradients, nothing else",
            ),
            (self.data_type == DataType::Fp8, "datatype float8: products of blocks are fp8, all else is bf16"),
        ];
        lines.into_iter().filter(|(on, _)| *on).map(|(_, line)| line.to_owned()).collect()
    }
}

fn check_whole_quotient<T>(r: JsonReader, read: Option<T>, file: &str) -> Result<T, FileError> {
    r.finish_reading(()).and_then(|()| read.ok_or_else(|| FileError { file: file.to_owned(), faults: Vec::new() }))
}

#[cfg(test)]
#[path = "job_tests.rs"]
mod tests;
