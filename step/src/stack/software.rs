//! The software that runs a step: its kernels, launch costs, overlaps and own memory. `step/stacks/` has one TOML file
//! per stack. Every scalar has its source, or the data that it was fitted on.

use crate::stack::fitted_run::FittedRuns;
use crate::stack::framework::FrameworkOptions;
use include_dir::{Dir, include_dir};
use serde::{Deserialize, Serialize};
use sim::files::carried::Files;
use sim::files::{FaultParts, StructuredError};
use sim::kernel::DataType;
use sim::units::Seconds;
use std::collections::BTreeMap;
use thiserror::Error;
use workloads::Release;
use workloads::footprint::Precision;
use workloads::recompute_policy::ReplayExtent;
use workloads::training::{Autocast, LossForm};

static STACKS: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/stacks");

/// An invalid software stack.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StackError {
    /// The name is neither a built-in stack nor a file.
    #[error(
        "unknown software stack `{name}`: {}; or give the path of a stack file (.toml)",
        sim::names::hint(name, known, "built in are")
    )]
    Unknown {
        /// The given name.
        name: String,
        /// The built-in names.
        known: String,
    },
    /// The file cannot be read.
    #[error("{file}: {why}; give the path of a readable stack file")]
    Unreadable {
        /// The file.
        file: String,
        /// The operating system's reason.
        why: String,
    },
    /// The file is not the TOML of a stack.
    #[error("{file}: {why}; a stack has the tables and keys of step/stacks/megatron.toml, all of them and no other")]
    Malformed {
        /// The file.
        file: String,
        /// The parser's reason, with line and key.
        why: String,
    },
    /// The user names no stack, and the chip's file names no usual one.
    #[error(
        "--stack is missing: the file of chip {chip} has no usual_stack; give --stack NAME (coplace list stacks), \
        or add usual_stack = \"NAME\" to {file}"
    )]
    NoUsualStack {
        /// The chip.
        chip: String,
        /// The chip's file.
        file: String,
    },
    /// A value is out of range, conflicts with another one, or has no source.
    #[error("{file}: {key} = {value}: {limit}; {cure}")]
    Value {
        /// The file.
        file: String,
        /// The key, with its table.
        key: String,
        /// The value.
        value: String,
        /// The rule broken.
        limit: String,
        /// The cure.
        cure: &'static str,
    },
}

impl StructuredError for StackError {
    fn fault_parts(&self) -> FaultParts {
        match self {
            Self::Unknown { name, known } => FaultParts::of_key(
                "stack",
                name,
                "is no built-in software stack",
                sim::names::hint(name, known, "built in are"),
            ),
            Self::Unreadable { file, why } => FaultParts::of_file(file, why, "give the path of a readable stack file"),
            Self::Malformed { file, why } => FaultParts::of_file(
                file,
                why,
                "a stack has the tables and keys of step/stacks/megatron.toml, all of them and no other",
            ),
            Self::NoUsualStack { chip, file } => FaultParts::of_key(
                "--stack",
                "",
                format!("is missing: the file of chip {chip} has no usual_stack"),
                format!("give --stack NAME (coplace list stacks), or add usual_stack = \"NAME\" to {file}"),
            ),
            Self::Value { file, key, value, limit, cure } => FaultParts::of_key(key, value, limit, *cure).in_file(file),
        }
    }
}

/// The way in which a device runs the kernels of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecutionMode {
    /// In sequence, in the order in which frameworks launch them. Each kernel uses the whole chip.
    Stream,
    /// By the operator schedule on cores and network, concurrently if that is faster ([`sim::schedule`]).
    Scheduled,
}

/// Options of the lowering of a model to kernels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelOptions {
    /// The way in which a pass runs its kernels.
    pub execution: ExecutionMode,
    /// True if neighbouring elementwise work is one kernel.
    pub elementwise_fusion: bool,
    /// True if RMS norms, rotations and conversions run as the single operations in the model's Python file (see
    /// `Lowering::composed_layers`). The rotation of latent attention stays one kernel.
    #[serde(default)]
    pub composed_layers: bool,
    /// The library that runs causal attention over whole sequences: a name of the chip's file (`cudnn`,
    /// `flash_attention_2`) for its measured rates, `sdpa` for what PyTorch takes (cuDNN where the chip's file has its
    /// rates), or `modelled` for the modelled kernel at `sustained.attention_fraction`.
    #[serde(default = "modelled")]
    pub attention_library: String,
    /// True if a separate kernel adds weight gradients to the accumulated ones in memory.
    pub separate_accumulation: bool,
    /// True if narrow operands are converted by Transformer Engine's rules: weights once per step, inputs and gradients
    /// once for both products that read them. The converted inputs are kept for the backward pass.
    #[serde(default)]
    pub cached_conversions: bool,
    /// True if experts' results are weighted in the activation before their last product (see
    /// `Lowering::weighted_experts`).
    #[serde(default)]
    pub weighted_experts: bool,
    /// True if the loss is one kernel per direction.
    pub fused_loss: bool,
    /// The form of head and loss: `whole`, or `chunked` by Liger's rule ([`LossForm`]).
    #[serde(default)]
    pub loss: LossForm,
    /// The vocabulary is padded to a multiple of this times the tensor-parallel degree, unless the model's file has a
    /// multiple (`make_vocab_size_divisible_by`). 1 pads to the degree alone.
    #[serde(default = "one")]
    pub vocabulary_multiple: u32,
    /// True if the projections to query, key and value are separate products, and so are gate and up.
    pub separate_projections: bool,
    /// True if adapters are in fp32 and read fp32 copies of their inputs (PEFT's `autocast_adapter_dtype`).
    #[serde(default)]
    pub wide_adapters: bool,
    /// PyTorch's autocast over fp32 parameters: `none`, `pytorch1` (GELU in fp32 too) or `pytorch2` ([`Autocast`]). The
    /// 16-bit weights are cached casts. Their master copy is the parameters themselves, which ZeRO-1 and ZeRO-2 leave
    /// whole. Collectives of weights move the casts.
    #[serde(default)]
    pub autocast: Autocast,
    /// True if parameters are sharded only inside a fast domain, with copies in every domain (hybrid sharding).
    pub shard_within_domain: bool,
    /// True if ZeRO-1 gives every rank whole parameter tensors. All ranks then sum all gradients, and each owner
    /// broadcasts its updated tensors, one owner after the other (InternEvo's `HybridZeroOptimizer`, PyTorch's
    /// `ZeroRedundancyOptimizer`). Otherwise ranks have equal shards: one reduce-scatter and one all-gather.
    #[serde(default)]
    pub whole_tensor_shards: bool,
    /// True if gradients of bf16 weights with an fp32 master copy are accumulated, kept and reduced in fp32 (see
    /// [`SoftwareStack::precision_of_run`]).
    pub fp32_gradients: bool,
    /// True if gradients are converted to fp32 for their reduction only (FSDP2's `reduce_dtype`).
    #[serde(default)]
    pub fp32_reduction: bool,
    /// True if a fully recomputed layer repeats its whole forward pass, as a checkpointed function does. Otherwise the
    /// part that the backward pass does not read is skipped (a compiler's dead code elimination, PyTorch's early stop).
    pub recompute_whole_layer: bool,
    /// True if expert-parallel devices gather all tokens and sum their shares of the results, instead of all-to-alls.
    #[serde(default)]
    pub expert_all_gather: bool,
    /// True if a token crosses every network tier once per unit that holds any of its experts, and is forwarded inside
    /// it (see `Lowering::expert_deduplicated`): DeepEP, Megatron-LM's dispatcher `flex`.
    #[serde(default)]
    pub expert_deduplicated: bool,
    /// Load of the fullest expert-parallel device relative to an even share. All other devices wait for it (hot
    /// experts), so it sets the time. 1 is even routing, which published runs force. For memory see
    /// `memory.expert_imbalance`.
    #[serde(default = "even_routing")]
    pub expert_imbalance: f64,
    /// Extra passes that read the gradients, besides the update: global norm, scaling, overflow check.
    pub gradient_reads: f64,
    /// Extra passes that write the gradients, besides the update: clipping, unscaling, conversion.
    pub gradient_writes: f64,
}

/// Name of the modelled attention kernel, as a value of `kernels.attention_library`.
pub(crate) const MODELLED_ATTENTION: &str = "modelled";

/// Name of PyTorch's own choice of attention library, and the library that it chooses: cuDNN on an H100 and an H200
/// (2.11, `torch._fused_sdp_choice`).
pub(crate) const SDPA: (&str, &str) = ("sdpa", "cudnn");

fn modelled() -> String {
    MODELLED_ATTENTION.to_owned()
}

/// Returns the default `vocabulary_multiple`: no multiple beyond the tensor-parallel degree.
fn one() -> u32 {
    1
}

/// Returns the default `expert_imbalance` for the time: even routing.
fn even_routing() -> f64 {
    1.0
}

/// Launch costs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchOptions {
    /// Microseconds of host time per kernel of the forward pass and of recomputation. A pass takes at least the sum
    /// over its kernels.
    pub host_forward_us: f64,
    /// Microseconds of host time per kernel of the backward pass. An engine launches these kernels without the
    /// framework's language.
    pub host_backward_us: f64,
    /// Microseconds on the device between two kernels of one stream.
    pub gap_us: f64,
    /// Microseconds for which every pass of a pipelined stage waits for the host: a blocking exchange with the
    /// neighbours drains the queue of launched kernels. Exchanges that overlap with other passes cause no wait (see
    /// [`SoftwareStack::pipeline_pass_overhead`]).
    pub pipeline_pass_us: f64,
    /// Extra microseconds to launch a collective, per rank of its group, in a pipeline whose messages cross nodes.
    #[serde(default)]
    pub collective_rank_us: f64,
    /// Milliseconds per step outside any kernel (data loading, logging, synchronisation with the host).
    pub per_step_ms: f64,
}

/// Rates of the chip under this stack, relative to kernels measured alone.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SustainedOptions {
    /// True if the chip's clock falls to its sustained fraction (`sustained_clock_fraction` in the chip's file).
    pub throttled: bool,
    /// Rate of matrix products in hours of training, as a fraction of their rate when measured alone (clock under
    /// load).
    pub tensor_fraction: f64,
    /// Rate of memory-bound kernels in hours of training, as a fraction of their rate when measured alone.
    pub memory_fraction: f64,
    /// Rate of the stack's fused attention kernel relative to the modelled one (FlashAttention's recurrence with one
    /// operation per lane and cycle, ideally pipelined). Below 1 if the kernel's pipelining is poor, above 1 if lanes
    /// issue several operations per cycle.
    pub attention_fraction: f64,
    /// Rate of the stack's 8-bit and 4-bit products relative to a library's with one scale per tensor, at the clock
    /// that bf16 products sustain. Below 1 with a scale per row (not applied where the chip's own rates include it,
    /// `FormatKernels::row_scaled`), above 1 if narrow products hold a higher clock under the power limit.
    pub narrow_fraction: f64,
    /// Rate of the collectives of ZeRO-1 and -2 once per step, relative to the fabric's rate for the same bytes at
    /// once. Below 1 if a framework exchanges tensor by tensor.
    #[serde(default = "even_routing")]
    pub exchange_fraction: f64,
}

/// Overlap of communication with computation. Each value is the hidden fraction of the time that could be hidden, from
/// 0 (none) to 1. The work, and the ports that its own collectives leave free, limit the time that could be hidden (see
/// [`crate::OverlapWindow::time_saved`]).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OverlapOptions {
    /// Reduction of gradients with the last micro-batch's backward pass; under ZeRO-2 and -3, of a layer's gradients
    /// with the next layer's backward pass.
    pub data_reduction: f64,
    /// Gathering of weights. Under ZeRO-1 and -2: of the updated weights, with the first forward pass. Under ZeRO-3: of
    /// the next layer's weights, with this layer's work.
    pub parameter_prefetch: f64,
    /// Tensor-parallel communication with independent kernels (asynchronous or decomposed products), if the group lies
    /// in one fast domain.
    pub tensor: f64,
    /// Tensor-parallel gathers and scatters with the products that they feed or follow, if the group lies in one fast
    /// domain. Each is cut into one part per rank, and one part is not hidden (Transformer Engine's userbuffers).
    #[serde(default)]
    pub products: f64,
    /// Context-parallel exchange of keys and values, with attention.
    pub context: f64,
    /// Expert-parallel exchange with the work of another micro-batch's pass (Megatron-LM's
    /// `--overlap-moe-expert-parallel-comm`, DeepSeek's DualPipe). A step of one micro-batch has no such work.
    #[serde(default)]
    pub experts: f64,
    /// Expert-parallel exchange, with the shared expert's work (Megatron-LM's `--moe-shared-expert-overlap`).
    #[serde(default)]
    pub shared_expert: f64,
    /// Sends between pipeline stages, with the next pass's work, if stages hold several chunks (see
    /// [`SoftwareStack::hidden_send_fraction`]).
    pub pipeline: f64,
    /// Copies to and from host and storage, with the pass's other work.
    pub host: f64,
    /// True if concurrent kernels, collectives and copies slow each other by the chip's scalars (`[streams]` in its
    /// file). Set it to false if the fractions, or the rates under load, were fitted on steps that already contain the
    /// slowdown.
    #[serde(default = "streams_contend")]
    pub contended: bool,
}

/// Returns the default `contended`: streams slow each other.
fn streams_contend() -> bool {
    true
}

/// The stack's use of memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryOptions {
    /// GiB of a chip's nominal memory that programs never see (driver and error correction).
    pub driver_reserved_gib: f64,
    /// GiB of the driver's context and loaded kernels, outside the allocator.
    pub context_gib: f64,
    /// MiB of buffers per communicator of the collective library, outside the allocator.
    pub communicator_mib: f64,
    /// GiB of workspaces that libraries take from the allocator.
    pub workspace_gib: f64,
    /// Additional bytes that the allocator caches if memory is not scarce, as a fraction of the live bytes.
    pub allocator_slack: f64,
    /// Bytes that fragmentation wastes even if memory is scarce, as a fraction of the live bytes.
    pub fragmentation: f64,
    /// True if the addresses of a pass's tensors are planned ahead ([`crate::plan_addresses`]). Then the gaps of the
    /// packing count, and fragmentation wastes nothing more.
    #[serde(default)]
    pub planned_addresses: bool,
    /// True if the stored weights are the master copy, and products read a converted one (FSDP, MaxText). Otherwise the
    /// optimizer has its own master copy (Megatron-LM).
    pub stored_master: bool,
    /// True if gradients occupy memory permanently. Otherwise they occupy it only from the first micro-batch's backward
    /// pass to the update.
    pub gradients_persist: bool,
    /// True if gradients of a step of one micro-batch arrive layer by layer while their activations are freed (eager
    /// PyTorch with `zero_grad(set_to_none=True)`). Otherwise all gradients exist beside all activations.
    #[serde(default)]
    pub gradients_by_layer: bool,
    /// True if a layer's kept tensors are freed one by one after their last reader ([`Release::BehindReaders`]), as in
    /// automatic differentiation operator by operator. A compiled loop over layers holds all of them until the layer's
    /// end.
    #[serde(default)]
    pub released_by_tensor: bool,
    /// Number of layers whose weights are gathered at once under ZeRO-3: the current one and the prefetched ones.
    pub gathered_layers: u32,
    /// True if embedding and head stay gathered for the whole step under ZeRO-3 (FSDP's root module).
    pub root_gathered: bool,
    /// Bytes per parameter of a layer's gradients while ZeRO-2 or ZeRO-3 reduces them.
    pub reduced_bytes_per_parameter: f64,
    /// True if the backward pass's gradients in the weights' type stay in memory beside the fp32 ones that they are
    /// added to.
    #[serde(default)]
    pub second_gradients: bool,
    /// True if ZeRO-2 and ZeRO-3 in a pipeline keep gradients whole, and ZeRO-3 weights gathered, from the first
    /// micro-batch to the last (FSDP2 without resharding).
    #[serde(default)]
    pub unsharded_in_pipeline: bool,
    /// True if weight gradients leave empty placeholders in the weights' type when products add them to the main
    /// gradients: one per shape of a layer's weights permanently, and the head's in its backward pass.
    #[serde(default)]
    pub placeholder_gradients: bool,
    /// Number of hidden states of a micro-batch (before sequence parallelism divides them) in blocks that asynchronous
    /// tensor-parallel collectives hold while the host runs ahead of the device.
    #[serde(default)]
    pub states_ahead: f64,
    /// Bytes per updated parameter of the optimizer's temporaries, whatever the optimizer.
    pub update_bytes_per_parameter: f64,
    /// Number of copies of one of Adam's states that its update makes for all parameters at once (PyTorch's foreach:
    /// the roots of the second moments). Other optimizers update in place.
    #[serde(default)]
    pub update_state_copies: f64,
    /// True if the optimizer's temporaries are buffers as large as all parameters of a device, which do not fit into
    /// the allocator's cache.
    #[serde(default)]
    pub update_contiguous: bool,
    /// Unevenness `x` of routing without a capacity limit over `e` expert-parallel devices, for memory. The fullest
    /// device has `1 + x (1 - 1/e)` times its even share of the tokens.
    pub expert_imbalance: f64,
    /// Bytes per logit at the loss's peak, forward or backward.
    pub bytes_per_logit: f64,
}

/// A software stack.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SoftwareStack {
    /// Its name; a built-in stack's file is `NAME.toml`.
    pub name: String,
    /// A description of one line, for lists.
    pub description: String,
    /// The built-in stack whose scalars this stack has, or from which its calibration started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibrated_from: Option<String>,
    /// Options of the lowering.
    pub kernels: KernelOptions,
    /// Options of launches.
    pub launch: LaunchOptions,
    /// Rates under load.
    pub sustained: SustainedOptions,
    /// Options of overlap.
    pub overlap: OverlapOptions,
    /// Options of memory.
    pub memory: MemoryOptions,
    /// Plans that its framework can run.
    pub framework: FrameworkOptions,
    /// Source of each value, by `table.key` or by table; every value has one.
    pub sources: BTreeMap<String, String>,
    /// The runs that it was fitted to, if a user calibrated it.
    #[serde(default, skip_serializing_if = "FittedRuns::is_empty")]
    pub runs: FittedRuns,
}

impl SoftwareStack {
    /// Returns the names of the built-in stacks, sorted.
    #[must_use]
    pub fn built_in_names() -> Vec<String> {
        let stem = |f: &include_dir::File<'_>| f.path().file_stem().map(|s| s.to_string_lossy().into_owned());
        let toml = |f: &&include_dir::File<'_>| f.path().extension().is_some_and(|e| e == "toml");
        let mut names: Vec<String> = STACKS.files().filter(toml).filter_map(stem).collect();
        names.sort();
        names
    }

    /// Loads a built-in stack by name, or a stack's file by path (any name that ends in `.toml`).
    ///
    /// # Errors
    /// An unknown name, an unreadable file, or invalid values.
    pub fn load(name_or_path: &str) -> Result<Self, StackError> {
        Self::load_from(name_or_path, &Files::default())
    }

    /// Loads a stack as [`Self::load`] does, but reads the texts of `files` in place of files on the disk.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_from(name_or_path: &str, files: &Files) -> Result<Self, StackError> {
        if name_or_path.ends_with(".toml") {
            let text = files
                .read(name_or_path.as_ref())
                .map_err(|e| StackError::Unreadable { file: name_or_path.to_owned(), why: e.to_string() })?;
            return Self::from_toml_str(name_or_path, &text);
        }
        let own = Self::built_in_names()
            .into_iter()
            .find(|name| sim::names::are_same_name(name, name_or_path))
            .map(|name| format!("{name}.toml"));
        match own.and_then(|file| Some((STACKS.get_file(&file)?.contents_utf8()?, file))) {
            Some((text, file)) => Self::from_toml_str(&file, text),
            None => {
                Err(StackError::Unknown { name: name_or_path.to_owned(), known: Self::built_in_names().join(", ") })
            }
        }
    }

    /// Returns the number formats of a run under this stack: the requested ones, but with fp32 gradients if weights
    /// have a master copy and the stack accumulates in fp32. It does so for bf16 weights with `kernels.fp32_gradients`,
    /// and for all weights under autocast, whose parameters are fp32.
    #[must_use]
    pub fn precision_of_run(&self, asked: Precision) -> Precision {
        let wide = self.kernels.fp32_gradients && asked.operand == DataType::Bf16 || !self.kernels.autocast.is_none();
        let widened = wide && asked.master.is_some();
        Precision { gradient: if widened { DataType::Fp32 } else { asked.gradient }, ..asked }
    }

    /// Returns the hidden fraction of a send between stages. It is 0 with one chunk per stage: under plain 1F1B, a
    /// stage's next pass needs the data in flight, so the stage exchanges and waits. Megatron-LM switches
    /// `overlap_p2p_comm` off without the interleaved schedule. With several chunks, another chunk's pass runs
    /// meanwhile.
    #[must_use]
    pub fn hidden_send_fraction(&self, virtual_stages: u32) -> f64 {
        if virtual_stages > 1 { self.overlap.pipeline } else { 0.0 }
    }

    /// Returns the time for which a pass of a pipelined stage waits for the host. The fraction of its sends that other
    /// chunks' passes hide causes no wait.
    #[must_use]
    pub fn pipeline_pass_overhead(&self, virtual_stages: u32) -> Seconds {
        Seconds::from_micros(self.launch.pipeline_pass_us) * (1.0 - self.hidden_send_fraction(virtual_stages))
    }

    /// Returns the moment at which a layer's kept tensors are freed, if its backward pass runs in one go.
    #[must_use]
    pub fn release_of_layer(&self) -> Release {
        if self.memory.released_by_tensor { Release::BehindReaders } else { Release::AtTheEnd }
    }

    /// Returns the part of a checkpointed layer that is recomputed: the whole layer, or only what the backward pass
    /// reads.
    #[must_use]
    pub fn replay_extent(&self) -> ReplayExtent {
        if self.kernels.recompute_whole_layer { ReplayExtent::WholeRegion } else { ReplayExtent::NeededOnly }
    }

    /// Parses and checks a stack's file; `file` names it in errors.
    ///
    /// # Errors
    /// Malformed TOML, a missing or unknown key, a value out of range or without a source.
    pub fn from_toml_str(file: &str, text: &str) -> Result<Self, StackError> {
        let malformed = |why: String| StackError::Malformed { file: file.to_owned(), why: why.trim_end().to_owned() };
        let stack: Self = toml::from_str(text).map_err(|e| malformed(e.to_string()))?;
        stack.check_values(file)?;
        let table = text.parse::<toml::Table>().map_err(|e| malformed(e.to_string()))?;
        stack.check_sources(file, &table)?;
        Ok(stack)
    }

    /// Returns the stack's file as text; [`Self::from_toml_str`] parses it. A key without a source is left out: it has
    /// the value that a file without that key gets by default.
    ///
    /// # Errors
    /// A value that TOML cannot hold.
    pub fn to_toml_string(&self) -> Result<String, StackError> {
        let malformed = |why: String| StackError::Malformed { file: format!("{}.toml", self.name), why };
        let mut table = toml::Table::try_from(self).map_err(|e| malformed(e.to_string()))?;
        for (name, values) in table.iter_mut().filter(|(name, _)| *name != "sources") {
            if let Some(values) = values.as_table_mut().filter(|_| !self.sources.contains_key(name)) {
                values.retain(|key, _| self.sources.contains_key(&format!("{name}.{key}")));
            }
        }
        toml::to_string(&table).map_err(|e| malformed(e.to_string()))
    }

    /// Returns every scalar as (key, value, smallest allowed value, largest allowed value).
    pub(crate) fn values_with_ranges(&self) -> Vec<(&'static str, f64, f64, f64)> {
        let (k, l, s, o, m) = (&self.kernels, &self.launch, &self.sustained, &self.overlap, &self.memory);
        vec![
            ("kernels.gradient_reads", k.gradient_reads, 0.0, 100.0),
            ("kernels.gradient_writes", k.gradient_writes, 0.0, 100.0),
            ("kernels.vocabulary_multiple", f64::from(k.vocabulary_multiple), 1.0, 65536.0),
            ("launch.host_forward_us", l.host_forward_us, 0.0, 1e4),
            ("launch.host_backward_us", l.host_backward_us, 0.0, 1e4),
            ("launch.gap_us", l.gap_us, 0.0, 1e4),
            ("launch.pipeline_pass_us", l.pipeline_pass_us, 0.0, 1e6),
            ("launch.collective_rank_us", l.collective_rank_us, 0.0, 1e4),
            ("launch.per_step_ms", l.per_step_ms, 0.0, 1e6),
            ("sustained.tensor_fraction", s.tensor_fraction, 0.05, 1.0),
            ("sustained.memory_fraction", s.memory_fraction, 0.05, 2.0),
            ("sustained.attention_fraction", s.attention_fraction, 0.05, 8.0),
            ("sustained.narrow_fraction", s.narrow_fraction, 0.05, 2.0),
            ("sustained.exchange_fraction", s.exchange_fraction, 0.05, 1.0),
            ("overlap.products", o.products, 0.0, 1.0),
            ("overlap.data_reduction", o.data_reduction, 0.0, 1.0),
            ("overlap.parameter_prefetch", o.parameter_prefetch, 0.0, 1.0),
            ("overlap.tensor", o.tensor, 0.0, 1.0),
            ("overlap.context", o.context, 0.0, 1.0),
            ("overlap.experts", o.experts, 0.0, 1.0),
            ("overlap.shared_expert", o.shared_expert, 0.0, 1.0),
            ("overlap.pipeline", o.pipeline, 0.0, 1.0),
            ("overlap.host", o.host, 0.0, 1.0),
            ("memory.driver_reserved_gib", m.driver_reserved_gib, 0.0, 1e3),
            ("memory.context_gib", m.context_gib, 0.0, 1e3),
            ("memory.communicator_mib", m.communicator_mib, 0.0, 1e5),
            ("memory.workspace_gib", m.workspace_gib, 0.0, 1e3),
            ("memory.allocator_slack", m.allocator_slack, 0.0, 1.0),
            ("memory.fragmentation", m.fragmentation, 0.0, 1.0),
            ("memory.gathered_layers", f64::from(m.gathered_layers), 1.0, 1e6),
            ("memory.reduced_bytes_per_parameter", m.reduced_bytes_per_parameter, 0.0, 64.0),
            ("memory.update_bytes_per_parameter", m.update_bytes_per_parameter, 0.0, 64.0),
            ("memory.update_state_copies", m.update_state_copies, 0.0, 16.0),
            ("memory.states_ahead", m.states_ahead, 0.0, 1e4),
            ("memory.expert_imbalance", m.expert_imbalance, 0.0, 64.0),
            ("kernels.expert_imbalance", self.kernels.expert_imbalance, 1.0, 64.0),
            ("memory.bytes_per_logit", m.bytes_per_logit, 2.0, 64.0),
        ]
    }

    pub(crate) fn check_values(&self, file: &str) -> Result<(), StackError> {
        if let Some(from) = self.calibrated_from.as_ref().filter(|from| !Self::built_in_names().contains(from)) {
            return Err(StackError::Value {
                file: file.to_owned(),
                key: "calibrated_from".to_owned(),
                value: from.clone(),
                limit: "is not a built-in stack".to_owned(),
                cure: "give the stack that was calibrated (coplace list stacks), or leave the key out",
            });
        }
        if self.kernels.expert_all_gather && self.kernels.expert_deduplicated {
            return Err(StackError::Value {
                file: file.to_owned(),
                key: "kernels.expert_deduplicated".to_owned(),
                value: "true".to_owned(),
                limit: "must be false beside kernels.expert_all_gather = true".to_owned(),
                cure: "set one of the two",
            });
        }
        if self.kernels.composed_layers && self.kernels.elementwise_fusion {
            return Err(StackError::Value {
                file: file.to_owned(),
                key: "kernels.composed_layers".to_owned(),
                value: "true".to_owned(),
                limit: "must be false beside kernels.elementwise_fusion = true".to_owned(),
                cure: "set kernels.elementwise_fusion to false first, or leave the key out",
            });
        }
        if let Some((key, value, limit)) = self.runs.wrong_value() {
            let cure = "make the file with coplace calibrate, or leave the runs out";
            return Err(StackError::Value { file: file.to_owned(), key, value, limit, cure });
        }
        match self.values_with_ranges().into_iter().find(|(_, value, min, max)| !(*min..=*max).contains(value)) {
            Some((key, value, min, max)) => Err(StackError::Value {
                file: file.to_owned(),
                key: key.to_owned(),
                value: if value.abs() < 1e9 { value.to_string() } else { format!("{value:e}") },
                limit: format!("must be from {min} to {max}"),
                cure: "give a value in that range",
            }),
            None => Ok(()),
        }
    }

    fn check_sources(&self, file: &str, table: &toml::Table) -> Result<(), StackError> {
        for (name, values) in table.iter().filter(|(name, _)| *name != "sources") {
            for key in values.as_table().into_iter().flat_map(|t| t.keys()) {
                if !self.sources.contains_key(name) && !self.sources.contains_key(&format!("{name}.{key}")) {
                    return Err(StackError::Value {
                        file: file.to_owned(),
                        key: format!("{name}.{key}"),
                        value: values.get(key).map_or_else(String::new, ToString::to_string),
                        limit: "has no source".to_owned(),
                        cure: "state under [sources] its source or the data that it was fitted on",
                    });
                }
            }
        }
        Ok(())
    }
}
