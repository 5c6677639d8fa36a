//! Reads recipes of Megatron Bridge as Megatron-LM's arguments. A field has the argument's name with underscores, or a
//! row in [`BRIDGE_FIELDS`].

use super::arguments::read_arguments;
use super::keys::{FrameworkFileError, FrameworkKeys};
use super::megatron;
use super::megatron_model;
use super::model::FrameworkModel;
use super::python::{PythonRecipe, read_recipe};
use super::run::{FrameworkContext, FrameworkRun};
use std::collections::BTreeMap;
use step::{BRIDGE_FIELDS, BridgeField, FieldReading, PythonLiteral};
use workloads::Model;
use workloads::model::other_names;

/// Fields that change neither time nor memory of a step, or that every run of this kind has: logs, checkpoints, data,
/// initial values, learning rates, and kernels whose form the stack decides. A trailing `*` matches every field with
/// that beginning.
const NOTHING: [&str; 42] = [
    "checkpoint.*",
    "comm_overlap.align_param_gather",
    "comm_overlap.bucket_size",
    "comm_overlap.tp_comm_bootstrap_backend",
    "dataset.*",
    "ddp.align_param_gather",
    "ddp.average_in_collective",
    "ddp.bucket_size",
    "ddp.check_for_nan_in_grad",
    "dist.distributed_*",
    "env_vars",
    "logger.*",
    "mixed_precision.autocast_*",
    "mixed_precision.fp8_amax_*",
    "mixed_precision.fp8_margin",
    "model.apply_rope_fusion",
    "model.attention_softmax_in_fp32",
    "model.bf16",
    "model.bias_activation_fusion",
    "model.bias_dropout_fusion",
    "model.calculate_per_token_loss",
    "model.cuda_graph_scope",
    "model.cuda_graph_warmup_steps",
    "model.init_method_std",
    "model.masked_softmax_fusion",
    "model.moe_hybridep_num_sms",
    "model.moe_router_fusion",
    "model.params_dtype",
    "model.persist_layer_norm",
    "model.pipeline_dtype",
    "model.transformer_layer_spec.*",
    "optimizer.adam_*",
    "optimizer.clip_grad",
    "optimizer.lr",
    "optimizer.min_lr",
    "optimizer.weight_decay",
    "profiling.*",
    "rng.*",
    "scheduler.*",
    "train.manual_gc*",
    "train.train_*",
    "validation.*",
];

/// The configurations inside [`ConfigContainer`](https://github.com/NVIDIA-NeMo/Megatron-Bridge) and the end of their
/// classes' names (`src/megatron/bridge/training/config.py`). A model's provider has another check.
const SECTIONS: [(&str, &str); 21] = [
    ("checkpoint", "CheckpointConfig"),
    ("comm_overlap", "CommOverlapConfig"),
    ("dataset", "Config"),
    ("ddp", "DistributedDataParallelConfig"),
    ("dist", "DistributedInitConfig"),
    ("env_vars", "Config"),
    ("ft", "FaultToleranceConfig"),
    ("inprocess_restart", "InProcessRestartConfig"),
    ("logger", "LoggerConfig"),
    ("mixed_precision", "MixedPrecisionConfig"),
    ("model", ""),
    ("nvrx_straggler", "NVRxStragglerDetectionConfig"),
    ("optimizer", "OptimizerConfig"),
    ("profiling", "ProfilingConfig"),
    ("rerun_state_machine", "RerunStateMachineConfig"),
    ("rng", "RNGConfig"),
    ("scheduler", "SchedulerConfig"),
    ("straggler", "StragglerDetectionConfig"),
    ("tokenizer", "TokenizerConfig"),
    ("train", "TrainingConfig"),
    ("validation", "ValidationConfig"),
];

/// Values of `mixed_precision` by name, as fields (`src/megatron/bridge/training/mixed_precision.py`). The other values
/// keep weights in 8 bits, or some layers in 16 bits, which is not modelled.
const PRECISIONS: [(&str, &[(&str, &str)]); 3] = [
    ("bf16_mixed", &[("bf16", "true")]),
    ("fp16_mixed", &[("fp16", "true"), ("accumulate-allreduce-grads-in-fp32", "false")]),
    (
        "bf16_with_fp8_subchannel_scaling_mixed",
        &[("bf16", "true"), ("fp8-format", "hybrid"), ("fp8-recipe", "blockwise")],
    ),
];

/// Arguments of the model that a recipe may set even if the model comes from Hugging Face.
const OF_THE_RUN: [&str; 3] = ["make-vocab-size-divisible-by", "max-position-embeddings", "vocab-size"];

/// The arguments collected so far, each with the path of its field and the line.
#[derive(Default)]
struct BridgeArguments {
    values: BTreeMap<String, Vec<String>>,
    fields: BTreeMap<String, (String, usize)>,
}

/// True if a text is a recipe of Megatron Bridge.
pub(super) fn recognises(text: &str) -> bool {
    text.contains("megatron.bridge") || text.contains("ConfigContainer")
}

/// Reads a recipe.
///
/// # Errors
/// A line that is not read, or a field that is not understood.
pub(super) fn read(file: &str, text: &str, context: FrameworkContext<'_>) -> Result<FrameworkRun, FrameworkFileError> {
    let fault =
        |line: usize, why: String| FrameworkFileError { file: file.to_owned(), key: format!("line {line}"), why };
    let recipe = read_recipe(text).map_err(|(line, why)| fault(line, why))?;
    let known = match known_model(&recipe) {
        _ if context.model_is_named => None,
        Ok(known) => known,
        Err(why) => return Err(fault(1, why)),
    };
    check_sections(&recipe).map_err(|(line, why)| fault(line, why))?;
    let mut found = BridgeArguments::default();
    found.read_fields(file, &recipe)?;
    if let Some(name) = known {
        found.refuse_other_shape(file)?;
        found.set_layers(name);
    }
    let named = FrameworkContext { model_is_named: context.model_is_named || known.is_some(), ..context };
    let assumed: Vec<String> = context.assumed.iter().map(|path| argument_of_path(path)).collect();
    let named = FrameworkContext { assumed: &assumed, ..named };
    let run = megatron::read(FrameworkKeys::new(file, found.values.clone()), named);
    let run = run.map_err(|error| found.with_path(error))?;
    let path_of = |argument: &String| found.fields.get(argument).map_or(argument, |(path, _)| path).clone();
    let model = known.map(FrameworkModel::BuiltIn).or(run.model);
    let keys = run.keys.into_iter().map(|(argument, value)| (path_of(&argument), value)).collect();
    let assumed = run.assumed.iter().map(path_of).collect();
    Ok(FrameworkRun { framework: "Megatron Bridge", model, keys, assumed, ..run })
}

/// Returns the built-in model that a provider names; `None` for a provider that states the model's sizes itself. Fails
/// if the recipe has no model, or names one that is not built in.
fn known_model(recipe: &PythonRecipe) -> Result<Option<&'static str>, String> {
    let (class, name) = &recipe.provider;
    match (class.as_str(), name) {
        ("GPTModelProvider" | "MLAModelProvider", _) => Ok(None),
        (_, Some(name)) => match other_names().find(|(other, _)| sim::names::are_same_name(other, name)) {
            Some((_, built_in)) => Ok(Some(built_in)),
            None => Err(format!("model {name} is no built-in one; name the model before --from")),
        },
        ("", _) => Err("has no model; give ConfigContainer one".to_owned()),
        (class, None) => Err(format!("a {class} has numbers that are not in the file; name the model before --from")),
    }
}

/// Checks that every inner configuration has a known place, and the class that belongs there.
fn check_sections(recipe: &PythonRecipe) -> Result<(), (usize, String)> {
    for (path, (_, line)) in &recipe.fields {
        let section = path.split('.').next().unwrap_or(path);
        if !SECTIONS.iter().any(|(known, _)| *known == section) {
            let known: Vec<&str> = SECTIONS.iter().map(|(known, _)| *known).collect();
            return Err((*line, format!("{section} is not understood; ConfigContainer has {}", known.join(", "))));
        }
    }
    for (path, (class, line)) in &recipe.classes {
        let expected = SECTIONS.iter().find(|(known, _)| known == path).map_or("", |(_, class)| class);
        if !class.ends_with(expected) {
            return Err((*line, format!("{path} is given a {class}; give it a {expected}")));
        }
    }
    Ok(())
}

/// Returns Megatron-LM's argument with the name of a field: the path without its section, with `-` for `_`.
fn argument_of_path(path: &str) -> String {
    path.split_once('.').map_or(path, |(_, name)| name).replace('_', "-")
}

/// The place of a setting in a recipe.
#[derive(Debug, Clone, Copy)]
struct SettingPlace<'a> {
    path: &'a str,
    line: usize,
}

impl BridgeArguments {
    fn set(&mut self, argument: &str, words: Vec<String>, place: SettingPlace<'_>) {
        self.values.insert(argument.to_owned(), words);
        self.fields.insert(argument.to_owned(), (place.path.to_owned(), place.line));
    }

    fn read_fields(&mut self, file: &str, recipe: &PythonRecipe) -> Result<(), FrameworkFileError> {
        let is = |path: &str, name: &str| name.strip_suffix('*').map_or(path == name, |start| path.starts_with(start));
        for (path, (literal, line)) in &recipe.fields {
            let place = SettingPlace { path: path.as_str(), line: *line };
            let fault = |why: &str| FrameworkFileError {
                file: file.to_owned(),
                key: format!("line {line}: {path} = {literal}"),
                why: why.to_owned(),
            };
            if self.read_other(place, literal) {
                continue;
            }
            let rows: Vec<&BridgeField> = BRIDGE_FIELDS.iter().filter(|row| row.path == path).collect();
            let readings: Vec<FieldReading> = rows.iter().map(|row| row.read(literal)).collect();
            let stated = rows.iter().zip(&readings).find_map(|(row, reading)| match reading {
                FieldReading::Argument(words) => Some((row.argument, words.clone())),
                _ => None,
            });
            match stated {
                Some((argument, words)) => {
                    let other = self.values.get(argument).is_some_and(|known| *known != words);
                    if let (true, Some((known, line))) = (other, self.fields.get(argument)) {
                        return Err(fault(&format!("differs from {known} in line {line}; give both one value")));
                    }
                    self.set(argument, words, place);
                }
                None if readings.contains(&FieldReading::Absent) => {}
                None if !rows.is_empty() => return Err(fault("is no value that is modelled; correct it")),
                None if NOTHING.iter().any(|name| is(path, name)) => {}
                None if path == "mixed_precision" && *literal != PythonLiteral::Name("None".to_owned()) => {
                    let known: Vec<&str> = PRECISIONS.iter().map(|(name, _)| *name).collect();
                    return Err(fault(&format!("is not modelled; {} are", known.join(", "))));
                }
                None => {
                    let argument = argument_of_path(path);
                    let known = BRIDGE_FIELDS.iter().find(|row| row.argument == argument);
                    if let Some(row) = known.filter(|_| literal.to_string() != "None") {
                        return Err(fault(&format!("is not understood; did you mean {}?", row.path)));
                    }
                    self.set_by_name(place, literal);
                }
            }
        }
        self.complete(file, recipe)
    }

    /// Reads a field that does not stand for one argument of its own name. Returns false for any other field.
    fn read_other(&mut self, place: SettingPlace<'_>, literal: &PythonLiteral) -> bool {
        match (place.path, literal) {
            ("mixed_precision", PythonLiteral::Text(name)) => {
                let name = name.replace('-', "_");
                let known = PRECISIONS.iter().find(|(known, _)| *known == name);
                for (argument, value) in known.map(|(_, fields)| *fields).unwrap_or_default() {
                    self.set(argument, vec![(*value).to_owned()], place);
                }
                known.is_some()
            }
            ("model.virtual_pipeline_model_parallel_size", PythonLiteral::Number(chunks)) => {
                self.set("num-virtual-stages-per-pipeline-rank", vec![chunks.clone()], place);
                true
            }
            ("mixed_precision.grad_reduce_in_fp32", PythonLiteral::Name(wide)) => {
                if wide == "False" {
                    self.set("grad-reduce-in-bf16", vec!["true".to_owned()], place);
                }
                true
            }
            // mixed_precision decides its value.
            ("ddp.grad_reduce_in_fp32", _) => true,
            ("tokenizer.tokenizer_type", PythonLiteral::Text(kind)) => {
                self.set("tokenizer-type", vec![kind.clone()], place);
                true
            }
            _ => false,
        }
    }

    /// Sets the argument that has a field's own name. A field whose value is off sets nothing.
    fn set_by_name(&mut self, place: SettingPlace<'_>, literal: &PythonLiteral) {
        let words = match literal {
            PythonLiteral::Name(name) if name == "None" || name == "False" => return,
            // Fields such as cuda_graph_impl say "none" for off.
            PythonLiteral::Text(text) if text == "none" => return,
            PythonLiteral::Name(name) if name == "True" => "true".to_owned(),
            PythonLiteral::Text(text) | PythonLiteral::Number(text) => text.clone(),
            other => other.to_string(),
        };
        self.set(&argument_of_path(place.path), vec![words], place);
    }

    /// Adds the arguments that follow from others, and the devices of torchrun's line in the file's description.
    fn complete(&mut self, file: &str, recipe: &PythonRecipe) -> Result<(), FrameworkFileError> {
        let place = |fields: &BTreeMap<String, (String, usize)>, argument: &str| fields.get(argument).cloned();
        let gated = recipe.fields.get("model.gated_linear_unit").is_some_and(|(value, _)| value.to_string() == "True");
        for activation in ["swiglu", "quick-geglu"] {
            if let (false, Some((path, line))) = (gated, place(&self.fields, activation)) {
                let key = format!("line {line}: {path}");
                let why = "is modelled beside gated_linear_unit=True only; name the model before --from".to_owned();
                return Err(FrameworkFileError { file: file.to_owned(), key, why });
            }
        }
        for (from, implied) in
            [("num-query-groups", "group-query-attention"), ("seq-length", "max-position-embeddings")]
        {
            if let (Some(words), Some((path, line))) = (self.values.get(from).cloned(), place(&self.fields, from)) {
                let words = if from == "seq-length" { words } else { vec!["true".to_owned()] };
                self.set(implied, words, SettingPlace { path: &path, line });
            }
        }
        self.apply_overlap(recipe);
        // The layout decides the number of chunks per stage, so the argument is dropped.
        if self.values.contains_key("pipeline-model-parallel-layout") {
            self.values.remove("num-virtual-stages-per-pipeline-rank");
        }
        let launch = recipe.description.lines().find(|line| line.trim_start().starts_with("torchrun "));
        if let Some((_, overrides)) =
            launch.and_then(|line| line.split_once(".py")).filter(|(_, o)| !o.trim().is_empty())
        {
            let why = "stand behind the recipe in torchrun's line, and are not read; write them as fields".to_owned();
            return Err(FrameworkFileError { file: file.to_owned(), key: overrides.trim().to_owned(), why });
        }
        let launcher = launch.map(|line| line.split(' ').filter(|word| !word.ends_with(".py")).collect::<Vec<_>>());
        for (argument, words) in launcher.map(|words| read_arguments(&words.join(" "))).unwrap_or_default() {
            self.values.entry(argument).or_insert(words);
        }
        Ok(())
    }

    /// With a distributed optimizer, `comm_overlap` overrides `ddp`. An overlap that `comm_overlap` leaves out is on.
    fn apply_overlap(&mut self, recipe: &PythonRecipe) {
        let stands = recipe.fields.keys().any(|path| path.starts_with("comm_overlap."));
        if !stands || !self.values.contains_key("use-distributed-optimizer") {
            return;
        }
        for argument in ["overlap-grad-reduce", "overlap-param-gather"] {
            let stated = recipe.fields.get(&format!("comm_overlap.{}", argument.replace('-', "_")));
            match stated.is_none_or(|(value, _)| value.to_string() != "False") {
                true => drop(self.values.insert(argument.to_owned(), vec!["true".to_owned()])),
                false => drop(self.values.remove(argument)),
            }
        }
    }

    /// Refuses a field that changes the shape of the model that the file names.
    fn refuse_other_shape(&mut self, file: &str) -> Result<(), FrameworkFileError> {
        let shape = megatron_model::KEYS.iter().filter(|argument| !OF_THE_RUN.contains(argument));
        match shape.filter_map(|argument| self.fields.get(*argument)).next() {
            None => Ok(()),
            Some((path, line)) => {
                let why = "changes the model that the file names; name the model before --from".to_owned();
                Err(FrameworkFileError { file: file.to_owned(), key: format!("line {line}: {path}"), why })
            }
        }
    }

    /// Adds the arguments that decide the layers of stages, from a built-in model.
    fn set_layers(&mut self, name: &str) {
        let Ok(model) = Model::load(name) else { return };
        let mut set = |argument: &str, words: String| drop(self.values.insert(argument.to_owned(), vec![words]));
        set("num-layers", model.layer_count().to_string());
        if model.experts.is_some() {
            set("num-experts", "true".to_owned());
        }
        if let Some(dense) = model.leading_dense() {
            set("moe-layer-freq", format!("([0]*{}+[1]*{})", dense.layers, model.layers));
        }
        if model.layers_per_block() > 1 {
            set("window-size", "0,0".to_owned());
            set("window-attn-skip-freq", model.layers_per_block().to_string());
        }
    }

    /// Returns the error under the field's own path and line, instead of the argument. A field that the file lacks has
    /// no line.
    fn with_path(&self, error: FrameworkFileError) -> FrameworkFileError {
        let (argument, value) = error.key.split_once(" = ").unwrap_or((&error.key, ""));
        let value = if value.is_empty() { String::new() } else { format!(" = {value}") };
        let of_table = |argument: &str| BRIDGE_FIELDS.iter().find(|row| row.argument == argument).map(|row| row.path);
        let key = match (self.fields.get(argument), of_table(argument)) {
            (Some((path, line)), _) => format!("line {line}: {path}{value}"),
            (None, Some(path)) => format!("{path}{value}"),
            (None, None) => error.key.clone(),
        };
        let with_path = |word: &str| {
            let name = word.trim_matches(|c: char| !c.is_alphanumeric());
            let path = self.fields.get(name).map(|(path, _)| path.as_str()).or_else(|| of_table(name));
            match path.filter(|_| name.contains('-') || word.starts_with("--") || name == argument) {
                Some(path) => word.trim_start_matches("--").replace(name, path),
                None => word.to_owned(),
            }
        };
        let why = error.why.split(' ').map(with_path).collect::<Vec<_>>().join(" ");
        FrameworkFileError { key, why, ..error }
    }
}
