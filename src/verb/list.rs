//! `coplace list`: lists the built-in files.

use crate::answer::{self, Format};
use crate::call::Call;
use crate::failure::{self, Failure, OrInput, OrOther};
use crate::verb::search::chip_document;
use clap::ValueEnum;
use results::text::{ColumnAlign, TextTable, format_area, format_gib, format_significant};
use search::space::FABRIC;
use search::study::Study;
use serde_json::{Value, json};
use serving::ServingEngine;
use sim::files::carried::Files;
use sim::hardware::constants::{ConstantDefinition, constant_definitions};
use sim::hardware::fields::{self, ChipField};
use sim::hardware::{Accelerator, FieldValue};
use sim::kernel::DataType;
use sim::network::{Fabric, FabricDocument};
use std::collections::BTreeSet;
use step::SoftwareStack;
use workloads::import::hugging_face::family_coverage;
use workloads::memory::{Preset, PresetParameter};
use workloads::model::{Model, built_in_names};
use workloads::{Lowering, TrainingGraph};

/// The kinds that can be listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ListedKind {
    /// Models that can be trained
    Models,
    /// Accelerators
    Chips,
    /// Networks of accelerators
    Fabrics,
    /// Studies: questions for a search
    Studies,
    /// Software that runs a training step
    Stacks,
    /// Engines that serve a model
    Engines,
    /// Memory techniques, with their parameters
    Techniques,
    /// Fields of a chip's and a fabric's file that a study's space may vary
    Dimensions,
    /// Constants of the model, with range, unit, source and year
    Constants,
}

/// List the built-in models, chips, fabrics, studies, software stacks, serving engines or memory techniques, or the
/// dimensions that a study may vary
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  coplace list chips\n  coplace list models --family\n  coplace list techniques\n  \
        coplace list dimensions --chip h100 --fabric nvlink4_node\n  coplace list constants\n\nJSON: an array of objects, one per entry, with \
        the unit in each key."
)]
pub struct ListArguments {
    /// Kind to list
    #[arg(value_enum)]
    what: ListedKind,
    /// With models: list the families whose config.json files can be read, and how each is checked
    #[arg(long)]
    family: bool,
    /// With dimensions: the base chip, built in, a chip file (.toml), or a run directory of `coplace search` for its
    /// found chip
    /// [default: tpu_v4]
    #[arg(long)]
    chip: Option<String>,
    /// With dimensions: the base fabric, built in or a fabric file (.toml) [default: tpu_v4_ici]
    #[arg(long)]
    fabric: Option<String>,
    /// Format of the answer
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// Runs the verb.
pub fn run_list(arguments: &ListArguments, call: &Call) -> Result<(), Failure> {
    let flags = [
        ("--family", arguments.family, ListedKind::Models, "models"),
        ("--chip", arguments.chip.is_some(), ListedKind::Dimensions, "dimensions"),
        ("--fabric", arguments.fabric.is_some(), ListedKind::Dimensions, "dimensions"),
    ];
    for (flag, given, of, name) in flags {
        if given && arguments.what != of {
            return Err(failure::option_failure(
                flag,
                "",
                format!("is of `coplace list {name}` alone"),
                "leave it out",
            ));
        }
    }
    let (table, entries) = match arguments.what {
        ListedKind::Models if arguments.family => list_families(),
        ListedKind::Models => list_models()?,
        ListedKind::Chips => list_chips()?,
        ListedKind::Fabrics => list_fabrics()?,
        ListedKind::Studies => list_studies()?,
        ListedKind::Stacks => list_stacks()?,
        ListedKind::Engines => list_engines()?,
        ListedKind::Techniques => list_techniques()?,
        ListedKind::Dimensions => list_dimensions(arguments, &call.files)?,
        ListedKind::Constants => list_constants(),
    };
    let note = if arguments.family { HOW_CHECKED } else { "" };
    answer::write_answer(call, arguments.format, &entries, |_| format!("{}{note}", table.render()))
}

type ListFunction = (TextTable, Vec<Value>);

/// A function that reads all files of a kind and returns their number.
type CountFunction = fn() -> Result<usize, Failure>;

/// The kinds of built-in files, with a function that reads and counts them.
pub const KINDS: [(&str, CountFunction); 7] = [
    ("models", || list_models().map(|(_, entries)| entries.len())),
    ("chips", || list_chips().map(|(_, entries)| entries.len())),
    ("fabrics", || list_fabrics().map(|(_, entries)| entries.len())),
    ("studies", || list_studies().map(|(_, entries)| entries.len())),
    ("stacks", || list_stacks().map(|(_, entries)| entries.len())),
    ("engines", || list_engines().map(|(_, entries)| entries.len())),
    ("techniques", || list_techniques().map(|(_, entries)| entries.len())),
];

fn list_models() -> Result<ListFunction, Failure> {
    let header =
        ["model", "family", "layers", "hidden", "heads", "kv heads", "ffn", "vocabulary", "sequence", "parameters"];
    let mut table = TextTable::new(header).align_column(1, ColumnAlign::Left).keep_columns(&["layers", "parameters"]);
    let mut entries = Vec::new();
    for name in built_in_names() {
        let m = Model::load(name).or_other()?;
        let parameters = TrainingGraph::new(&m, &Lowering::new(&m)).or_other()?.parameters().per_device_count();
        table.add_row([
            name.to_owned(),
            m.family.clone(),
            m.layer_count().to_string(),
            m.hidden.to_string(),
            list_distinct(m.attention_heads().iter().map(|(heads, _)| *heads)),
            list_distinct(m.attention_heads().iter().map(|(_, kv_heads)| *kv_heads)),
            m.ffn.to_string(),
            m.vocabulary.to_string(),
            m.max_sequence.to_string(),
            format!("{:.2} B", parameters as f64 / 1e9),
        ]);
        entries.push(entry_of_model(name, &m)?);
    }
    Ok((table, entries))
}

/// Returns distinct numbers as text, ascending, with commas between.
fn list_distinct(numbers: impl Iterator<Item = u64>) -> String {
    let distinct: BTreeSet<u64> = numbers.collect();
    distinct.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

/// Returns a model as an entry of the list. If its layers have different numbers of attention heads, the entry has the
/// largest.
pub fn entry_of_model(name: &str, m: &Model) -> Result<Value, Failure> {
    let parameters = TrainingGraph::new(m, &Lowering::new(m)).or_other()?.parameters().per_device_count();
    let (heads, kv_heads) = m.attention_heads().last().copied().unwrap_or((m.heads, m.kv_heads));
    Ok(json!({
        "name": name, "family": m.family, "layers": m.layer_count(), "hidden": m.hidden, "heads": heads,
        "kv_heads": kv_heads, "ffn": m.ffn, "vocabulary": m.vocabulary, "max_sequence": m.max_sequence,
        "parameters": parameters,
        "active_parameters": m.active_parameters(),
    }))
}

/// Explanation of the columns for families.
const HOW_CHECKED: &str = "checked: checkpoints whose config.json gives the published number of parameters, exactly \
    (exact) or to the published digits (digits). active: checkpoints whose parameters per token are the published \
    ones. formula: operations per token are derived from the published sizes. In every family, even without \
    checkpoints, operators have the parameters and operations of closed forms. JSON has the names.\n";

/// Returns the families that can be read, with their tested checkpoints.
fn list_families() -> ListFunction {
    let mut table = TextTable::new(["model_type", "checked", "exact", "digits", "active", "formula"]);
    for column in 1..6 {
        table = table.align_column(column, ColumnAlign::Right);
    }
    let mut entries = Vec::new();
    for family in family_coverage() {
        let lists = [
            family.checked.clone(),
            family.exact_models(),
            family.models_to_published_digits(),
            family.models_by_active_parameters(),
            family.models_by_formula(),
        ];
        let counts = lists.each_ref().map(|list| list.len().to_string());
        table.add_row(std::iter::once(family.model_types.join(", ")).chain(counts));
        let [checked, exact, digits, active, formula] = lists;
        entries.push(json!({
            "model_types": family.model_types, "checkpoints_checked": checked, "parameters_exact": exact, "parameters_to_digits": digits,
            "active_parameters": active, "operations_by_formula": formula,
        }));
    }
    (table, entries)
}

fn list_chips() -> Result<ListFunction, Failure> {
    let header = [
        "chip",
        "cores",
        "array",
        "lanes",
        "clock",
        "bf16 peak",
        "on-chip buffer",
        "HBM",
        "HBM bandwidth",
        "host link",
        "node",
        "dies",
        "TDP",
    ];
    let mut table = TextTable::new(header).keep_columns(&["bf16 peak", "HBM", "HBM bandwidth", "TDP"]);
    let mut entries = Vec::new();
    for name in sim::hardware::template_names() {
        let c = Accelerator::built_in(name).or_other()?;
        let array = format!("{} x {}x{}", c.tensor.arrays_per_core, c.tensor.rows, c.tensor.columns);
        let peak = c.peak_flops(DataType::Bf16).or(c.peak_flops(DataType::Fp16));
        let buffer = c.global_buffer().map(|level| level.capacity);
        let dies = sim::hardware::chip_area(&c).ok().map(|areas| areas.total_area());
        table.add_row([
            name.to_owned(),
            c.tensor.cores.to_string(),
            array,
            format!("{} x {}", c.vector.cores, c.vector.lanes),
            format!("{:.0} MHz", c.clock.0 / 1e6),
            peak.map_or("-".into(), |p| format!("{:.0} TFLOP/s", p.0 / 1e12)),
            buffer.map_or("-".into(), |b| format!("{:.0} MiB", b.gib() * 1024.0)),
            format_gib(c.memory_capacity()),
            format!("{:.0} GB/s", c.hbm.read_bandwidth.0 / 1e9),
            c.host.map_or("-".into(), |host| format!("{:.0} GB/s", host.bandwidth.0 / 1e9)),
            c.process_node().map_or("-".into(), |node| node.to_string()),
            dies.map_or("-".into(), format_area),
            c.published.tdp.map_or("-".into(), |tdp| format!("{:.0} W", tdp.0)),
        ]);
        entries.push(entry_of_chip(name, &c));
    }
    Ok((table, entries))
}

/// Returns a chip as an entry of the list.
pub fn entry_of_chip(name: &str, c: &Accelerator) -> Value {
    let peak = c.peak_flops(DataType::Bf16).or(c.peak_flops(DataType::Fp16));
    let buffer = c.global_buffer().map(|level| level.capacity);
    let dies = sim::hardware::chip_area(c).ok().map(|areas| areas.total_area());
    json!({
        "name": name, "tensor_cores": c.tensor.cores, "arrays_per_core": c.tensor.arrays_per_core, "rows": c.tensor.rows,
        "columns": c.tensor.columns, "vector_cores": c.vector.cores, "vector_lanes": c.vector.lanes, "clock_mhz": c.clock.0 / 1e6,
        "peak_bf16_tflop_per_s": peak.map(|p| p.0 / 1e12), "global_buffer_mib": buffer.map(|b| b.gib() * 1024.0),
        "hbm_gib": c.memory_capacity().gib(), "hbm_gb_per_s": c.hbm.read_bandwidth.0 / 1e9,
        "host_gb_per_s": c.host.map(|host| host.bandwidth.0 / 1e9),
        "node_nm": c.process_node().map(sim::hardware::ProcessNode::nanometres), "area_mm2": dies.map(|area| area.0), "tdp_w": c.published.tdp.map(|tdp| tdp.0),
    })
}

fn list_fabrics() -> Result<ListFunction, Failure> {
    let header = ["fabric", "devices", "fast domain", "GB/s per device, innermost first", "chips", "description"];
    let mut table = TextTable::new(header)
        .align_column(3, ColumnAlign::Left)
        .align_column(4, ColumnAlign::Left)
        .align_column(5, ColumnAlign::Left);
    let mut entries = Vec::new();
    for name in Fabric::names() {
        let f = Fabric::built_in(name).or_other()?;
        let bandwidths: Vec<f64> = f.tiers.iter().map(|t| t.bandwidth.0 / 1e9).collect();
        let (devices, domain) = (limited_devices(f.device_count()), limited_devices(f.fast_domain_devices()));
        let or_any = |n: Option<u32>| n.map_or_else(|| "any".to_owned(), |n| n.to_string());
        let rates: Vec<String> = bandwidths.iter().map(|b| format!("{b:.1}")).collect();
        table.add_row([
            name.to_owned(),
            or_any(devices),
            or_any(domain),
            rates.join(", "),
            f.joins.join(", "),
            f.description.clone(),
        ]);
        entries.push(entry_of_fabric(name, &f));
    }
    Ok((table, entries))
}

/// Returns a number of devices; `None` if it is unlimited, because the outermost tier is a switch of unstated size.
fn limited_devices(devices: u32) -> Option<u32> {
    (devices != u32::MAX).then_some(devices)
}

/// Returns a fabric as an entry of the list.
pub fn entry_of_fabric(name: &str, f: &Fabric) -> Value {
    let bandwidths: Vec<f64> = f.tiers.iter().map(|t| t.bandwidth.0 / 1e9).collect();
    json!({
        "name": name, "devices": limited_devices(f.device_count()), "fast_domain": limited_devices(f.fast_domain_devices()),
        "gb_per_s_per_device": bandwidths, "chips": f.joins, "description": f.description,
    })
}

fn list_studies() -> Result<ListFunction, Failure> {
    let mut table = TextTable::new(["study", "devices", "fabric", "batch", "description"])
        .align_column(2, ColumnAlign::Left)
        .align_column(4, ColumnAlign::Left);
    let mut entries = Vec::new();
    for name in Study::names() {
        let s = Study::load(&name).or_other()?;
        let (devices, batch) = (s.cluster.devices, s.cluster.global_batch_sequences);
        table.add_row([
            name.clone(),
            devices.to_string(),
            s.cluster.fabric.clone(),
            batch.to_string(),
            s.description.clone(),
        ]);
        entries.push(entry_of_study(&name, &s));
    }
    Ok((table, entries))
}

/// Returns a study as an entry of the list.
pub fn entry_of_study(name: &str, s: &Study) -> Value {
    json!({
        "name": name, "devices": s.cluster.devices, "fabric": s.cluster.fabric,
        "global_batch_sequences": s.cluster.global_batch_sequences, "description": s.description, "source": s.source,
    })
}

fn list_stacks() -> Result<ListFunction, Failure> {
    let mut table = TextTable::new(["stack", "description"]).align_column(1, ColumnAlign::Left);
    let mut entries = Vec::new();
    for name in SoftwareStack::built_in_names() {
        let stack = SoftwareStack::load(&name).or_other()?;
        table.add_row([name, stack.description.clone()]);
        entries.push(serde_json::to_value(&stack).or_other()?);
    }
    Ok((table, entries))
}

fn list_engines() -> Result<ListFunction, Failure> {
    let mut table = TextTable::new(["engine", "description"]).align_column(1, ColumnAlign::Left);
    let mut entries = Vec::new();
    for name in ServingEngine::built_in_names() {
        let engine = ServingEngine::load_from(&name, &Files::default()).or_other()?;
        table.add_row([name, engine.description.clone()]);
        entries.push(serde_json::to_value(&engine).or_other()?);
    }
    Ok((table, entries))
}

fn list_techniques() -> Result<ListFunction, Failure> {
    let mut table = TextTable::new(["technique", "gate", "parameters", "what it does"])
        .align_column(1, ColumnAlign::Left)
        .align_column(2, ColumnAlign::Left)
        .align_column(3, ColumnAlign::Left)
        .keep_columns(&["parameters"]);
    let mut entries = Vec::new();
    for name in Preset::built_in_names() {
        let preset = Preset::load(&name).or_other()?;
        let default = |(key, parameter): (&String, &PresetParameter)| format!("{key}={}", parameter.default);
        // Parameters that follow from others appear only under --format json.
        let follows = |parameter: &PresetParameter| {
            let text = parameter.default.to_string();
            text.split_whitespace().any(|word| preset.parameters.contains_key(word))
        };
        let own = preset.parameters.iter().filter(|(_, parameter)| !follows(parameter));
        let parameters: Vec<String> = own.map(default).collect();
        table.add_row([name.clone(), preset.gate.to_string(), parameters.join(", "), preset.description.clone()]);
        entries.push(json!({
            "name": name, "description": preset.description, "gate": preset.gate.to_string(), "formula": preset.formula,
            "source": preset.source, "parameters": serde_json::to_value(&preset.parameters).or_other()?,
        }));
    }
    Ok((table, entries))
}

/// Returns the constants of areas, energies, prices and packages. A study and a chip's file may change them.
fn list_constants() -> ListFunction {
    let mut table = TextTable::new(["constant", "low", "nominal", "high", "year", "unit", "source"])
        .align_column(5, ColumnAlign::Left)
        .align_column(6, ColumnAlign::Left)
        .keep_columns(&["nominal", "unit"])
        .spill_below();
    let mut entries = Vec::new();
    for constant in constant_definitions() {
        let ConstantDefinition { key, low, nominal, high, unit, source, year, limit } = constant;
        let shown = |value: &f64| format_significant(*value, 4);
        let (year, low_text) = (year.to_string(), shown(low));
        table.add_row([key.clone(), low_text, shown(nominal), shown(high), year, unit.clone(), source.clone()]);
        entries.push(json!({
            "constant": key, "low": low, "nominal": nominal, "high": high, "unit": unit, "source": source, "year": constant.year,
            "limit": limit,
        }));
    }
    (table, entries)
}

/// Lists the fields of a chip and a fabric with their values, and further fields that their files may have.
fn list_dimensions(arguments: &ListArguments, files: &Files) -> Result<ListFunction, Failure> {
    let chip = chip_document(arguments.chip.as_deref().unwrap_or("tpu_v4"), files)?;
    let name = chip.build_accelerator().or_input()?.name;
    let fabric =
        FabricDocument::load_from(arguments.fabric.as_deref().unwrap_or("tpu_v4_ici"), &name, files).or_input()?;
    let of_fabric = fabric.list_fields().into_iter().map(|(key, value)| (format!("{FABRIC}{key}"), value));
    let given: Vec<(String, FieldValue)> =
        chip.strip_measured(true).list_fields().into_iter().chain(of_fabric).collect();
    let mut table = TextTable::new(["dimension", "there", "unit", "from", "to", "what it is"])
        .align_column(2, ColumnAlign::Left)
        .align_column(5, ColumnAlign::Left)
        .keep_columns(&["there", "unit"])
        .spill_below();
    let mut entries = Vec::new();
    let mut row = |key: &str, there: Option<&FieldValue>, field: Option<&ChipField>| {
        let (unit, meaning) = field.map_or(("", ""), |field| (field.unit, field.meaning));
        let range = field.and_then(|field| field.range);
        let end = |value: Option<f64>| value.map_or_else(String::new, |value| format_significant(value, 3));
        let shown = there.map_or_else(|| "-".to_owned(), FieldValue::to_string);
        let ends = [end(range.map(|(least, _)| least)), end(range.map(|(_, most)| most))];
        let [least, most] = ends;
        table.add_row([key.to_owned(), shown, unit.to_owned(), least, most, meaning.to_owned()]);
        entries.push(json!({
            "dimension": key, "value": there.map(FieldValue::to_string), "unit": unit, "least": range.map(|(least, _)| least),
            "most": range.map(|(_, most)| most), "meaning": meaning,
        }));
    };
    for (key, value) in &given {
        row(key, Some(value), fields::find_field(key));
    }
    let known = |field: &&ChipField| given.iter().any(|(key, _)| fields::find_field(key) == Some(*field));
    for field in fields::CHIP.iter().chain(&fields::FABRIC).filter(|field| !known(field)) {
        row(field.key, None, Some(field));
    }
    Ok((table, entries))
}
