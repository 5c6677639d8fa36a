//! From a claim to runs and what is read off them, by rules about the paper, the model, the setting and the metric.

use super::models;
use super::text::{chips, has, parts, size, tokens, words};
use super::{Claim, Figure, Question};
use crate::papers::{Quantity, Study};

const GIB: f64 = 1_073_741_824.0;
const MIB: f64 = 1_048_576.0;

/// The questions of a claim, one per number of its value; those that cannot be answered with the reason.
pub(super) fn questions(claim: &Claim) -> Result<Vec<Result<Question, String>>, String> {
    let system = claim.system.to_lowercase();
    let of_system = |name: &str| system == name || system.starts_with(&format!("{name} "));
    match () {
        () if of_system("mst") => mst(claim),
        () if of_system("memo") => memo(claim),
        () if of_system("ssdtrain") => ssdtrain(claim),
        () if of_system("galore") => galore(claim),
        () if of_system("compact") => compact(claim),
        () if of_system("lomo") => lomo(claim),
        () if of_system("megatron") => megatron(claim),
        () => preset(claim),
    }
}

/// The bytes of a claim's unit. Tables of LOMO, MsT, MEMO, CompAct and GaLore print GB and mean GiB: of the parameters that they are of, only GiB give
/// the printed digits of most rows.
fn unit(claim: &Claim) -> f64 {
    match claim.unit.split(['(', ' ']).next().unwrap_or_default().to_lowercase().as_str() {
        "gb" | "gib" => GIB,
        "mb" | "mib" => MIB,
        "tb" => 1e12,
        "ms" => 1e-3,
        _ => 1.0,
    }
}

fn ask(study: Study, quantity: Quantity, claim: &Claim) -> Question {
    Question::of(Figure { study, quantity }, unit(claim))
}

fn based(name: &str) -> Study {
    Study { base: Some(name.to_owned()), ..Study::default() }
}

fn with(study: &Study, techniques: &[&str]) -> Study {
    Study { techniques: Some(techniques.iter().map(|t| (*t).to_owned()).collect()), ..study.clone() }
}

/// The questions of a claim whose metric or whose setting names several things: as many as the longer list has, the other said once.
fn several(claim: &Claim, one: impl Fn(&str, &str) -> Result<Question, String>) -> Vec<Result<Question, String>> {
    let (settings, metrics) = (parts(&claim.setting), slashed(&claim.metric));
    let count = settings.len().max(metrics.len()).max(1);
    let whole = |all: &[&str], whole: &str, at: usize| match all.len() {
        n if n == count => all[at].to_owned(),
        _ => whole.to_owned(),
    };
    (0..count).map(|at| one(&whole(&settings, &claim.setting, at), &whole(&metrics, &claim.metric, at))).collect()
}

/// The parts of a metric: `params/grads/states`, `total with AC / without`.
fn slashed(metric: &str) -> Vec<&str> {
    metric.split('/').map(str::trim).filter(|part| !part.is_empty()).collect()
}

/// A claim that is a ratio of two settings.
fn ratio(claim: &Claim, quantity: Quantity, study: impl Fn(&str) -> Study) -> Result<Vec<Result<Question, String>>, String> {
    let [above, below] = parts(&claim.setting)[..] else { return Err("a ratio of other than two settings".to_owned()) };
    let figure = |setting| Figure { study: study(setting), quantity };
    Ok(vec![Ok(Question::ratio(figure(above), figure(below)))])
}

fn unknown(claim: &Claim) -> String {
    format!("{}: no quantity of a run that is modelled", claim.metric)
}

/// Luo et al. 2024.
fn mst(claim: &Claim) -> Result<Vec<Result<Question, String>>, String> {
    let metric = claim.metric.to_lowercase();
    let model = if claim.model == "Llama3" { "Llama3-8B" } else { &claim.model };
    let model = models::language_model(model)?;
    if metric.contains("intermediate/input") || claim.setting.contains("intermediate/input") {
        let share = |width: u64| Ok(Question::value(width as f64 / model.hidden as f64));
        let projections = model.heads * model.head_dim + 2 * model.kv_heads * model.head_dim;
        return Ok(vec![share(projections), share(2 * model.ffn), share(model.vocabulary)]);
    }
    let base = Study { own_model: Some(model), sequence: size(&claim.setting, "s"), ..based("mst") };
    let method = |text: &str| mst_method(&base, text);
    if claim.model.to_lowercase().ends_with("lm-head") {
        return mst_head(claim, &base).map(|question| vec![question]);
    }
    if claim.model.to_lowercase().ends_with("mlp") || metric.contains("time") {
        return Err("one block alone is no run".to_owned());
    }
    if metric.contains("ratio") {
        return ratio(claim, Quantity::Longest, method);
    }
    let quantity = match () {
        () if metric.contains("max sequence") => Quantity::Longest,
        () if metric.contains("peak") => Quantity::Peak,
        () if metric.contains("temporar") => Quantity::UpdateTemporaries,
        () if metric.contains("weights") => Quantity::Weights,
        () if metric.contains("gradient") => Quantity::Gradients,
        () if metric.contains("state") => Quantity::States,
        // With recomputation the head's gradient is there with the logits and counts.
        () if metric.contains("activation") && method(&claim.setting).techniques.is_some() => Quantity::BesideWeightsAndStates,
        () if metric.contains("activation") => Quantity::ActivationsAtLoss,
        () => return Err(unknown(claim)),
    };
    Ok(vec![Ok(ask(method(&claim.setting), quantity, claim))])
}

fn mst_method(base: &Study, text: &str) -> Study {
    let text = text.to_lowercase();
    let by_layer = text.contains("in-backward") || text.contains("in-bwd");
    let again = has(&text, "ar") || text.contains("recompute");
    match (has(&text, "mst") || text == "same", by_layer, again) {
        (true, ..) => with(base, &["mst"]),
        (false, true, true) => with(base, &["mst,mlp_slices=1,head_slices=1"]),
        (false, true, false) => with(base, &["mst,recompute=0,mlp_slices=1,head_slices=1"]),
        (false, false, true) => with(base, &["megatron-full"]),
        (false, false, false) => base.clone(),
    }
}

/// The head alone: whole it is the forward pass's, with a copy of the logits in fp32; sliced it is that of both passes.
fn mst_head(claim: &Claim, base: &Study) -> Result<Result<Question, String>, String> {
    if claim.metric.contains("time") {
        return Err("one block alone is no run".to_owned());
    }
    let whole = Study { stack_options: vec!["memory.bytes_per_logit=6".to_owned()], ..base.clone() };
    let whole = Figure { study: whole, quantity: Quantity::HeadForward };
    let Some(slices) = size(&claim.setting, "m") else { return Ok(Ok(Question::of(whole, unit(claim)))) };
    let sliced = Figure { study: with(base, &[&format!("mst,head_slices={slices}")]), quantity: Quantity::Head };
    let saved = claim.metric.contains("reduction");
    Ok(Ok(if saved { Question::saved(sliced, whole) } else { Question::of(sliced, unit(claim)) }))
}

/// Zhao et al. 2025.
fn memo(claim: &Claim) -> Result<Vec<Result<Question, String>>, String> {
    let metric = claim.metric.to_lowercase();
    if claim.setting.contains(" vs ") || claim.setting.contains("average") {
        return Err("the plans of the other systems are not given".to_owned());
    }
    let name = if models::size_of(&claim.model).is_some() { &claim.model } else { "7B" };
    let model = models::memo(name)?;
    let all = format!("{} {}", claim.setting, claim.metric);
    let sequence = tokens(&all).or(size(&all, "s")).unwrap_or(1 << 20);
    let devices = chips(&claim.hardware).max(8);
    // Tensor parallelism inside a node, context parallelism between nodes.
    let base = Study {
        own_model: Some(model.clone()),
        sequence: Some(sequence),
        context: Some(devices / 8),
        tensor: Some(8),
        ..based("memo")
    };
    let numbers = (sequence * model.hidden) as f64;
    let kept = Study { base: Some("memo_kept".to_owned()), ..base.clone() };
    let stash = Figure { study: kept.clone(), quantity: Quantity::ActivationsOfAllDevices };
    let question = match () {
        () if metric == "mfu" => ask(base, Quantity::Mfu, claim),
        () if metric.contains("max sequence") => ask(base, Quantity::Longest, claim),
        () if metric.contains("iteration") || metric.contains("step time") => ask(base, Quantity::StepSeconds, claim),
        () if metric.contains("fraction") && claim.setting.contains("output / skeletal") => {
            ask(kept, Quantity::AttentionShare, claim)
        }
        () if claim.setting.contains("output / skeletal") => ask(kept, Quantity::AttentionShare, claim),
        () if all.contains("layer inputs") => Question::value(2.0 * numbers * model.layers as f64 / unit(claim).max(GIB)),
        () if all.contains("skeletal") && metric.contains("element") => Question::of(stash, 2.0 * numbers * model.layers as f64),
        () if all.contains("skeletal activations") => Question::of(stash, unit(claim)),
        () => return Err(unknown(claim)),
    };
    Ok(vec![Ok(question)])
}

/// Wu et al. 2024: every family and shape that the claim names.
fn ssdtrain(claim: &Claim) -> Result<Vec<Result<Question, String>>, String> {
    let families: Vec<&str> = claim.model.split('/').map(str::trim).collect();
    let mut cuts = Vec::new();
    let mut refused = None;
    for family in &families {
        for (hidden, layers) in shapes(&claim.setting) {
            match models::ssdtrain(family, hidden, layers) {
                Ok(model) => {
                    let sequence = size(&claim.setting, "s").or(Some(1024));
                    let micro_batch = size(&claim.setting, "b");
                    let study = Study { own_model: Some(model), sequence, micro_batch, ..based("ssdtrain_8192") };
                    cuts.push(Figure { study, quantity: Quantity::ActivationCut });
                }
                Err(why) => refused = Some(why),
            }
        }
    }
    let metric = claim.metric.to_lowercase();
    if cuts.is_empty() {
        return Err(refused.unwrap_or_else(|| unknown(claim)));
    }
    let most = metric.contains("max") || claim.value.contains("up to");
    Ok(slashed(&metric)
        .into_iter()
        .map(|part| match () {
            () if part.contains("activation peak reduction") && most => Ok(Question::most(cuts.clone())),
            () if part.contains("activation peak reduction") => Ok(Question::spread(cuts.clone())),
            // As many more sequences as activations of one are fewer.
            () if part.contains("batch size") => Ok(Question::most(cuts.clone()).gained()),
            () => Err(format!("{part}: of configurations that are not given")),
        })
        .collect())
}

/// `(h,L)=(8192,4),(12288,3)`, or `3-layer h=12K/14K`; without either the three of the paper's figure 6.
fn shapes(setting: &str) -> Vec<(u64, u64)> {
    let pair = |text: &str| {
        let (hidden, layers) = text.split_once(',')?;
        Some((hidden.trim().parse().ok()?, layers.trim().parse().ok()?))
    };
    let given: Vec<(u64, u64)> = setting.split(['(', ')']).filter_map(pair).collect();
    if !given.is_empty() {
        return given;
    }
    let layers = setting.split_once("-layer").and_then(|(before, _)| before.split([' ', ',']).next_back()?.parse().ok());
    let widths = setting.split_once("h=").map(|(_, after)| after.split([' ', ',', ';']).next().unwrap_or_default());
    match (layers, widths) {
        (Some(layers), Some(widths)) => {
            widths.split('/').filter_map(|width| size(&format!("h={width}"), "h")).map(|hidden| (hidden, layers)).collect()
        }
        _ => vec![(8192, 4), (12_288, 3), (16_384, 2)],
    }
}

/// Zhao et al. 2024, tables 2 and 6.
fn galore(claim: &Claim) -> Result<Vec<Result<Question, String>>, String> {
    let base = Study { own_model: Some(models::small_llama(&claim.model, false)?), ..based("full_60m") };
    // Ranks of table 2.
    let usual = match models::size_of(&claim.model).as_deref() {
        Some("60m") => 128,
        Some("130m" | "350m") => 256,
        Some("1b" | "3b") => 512,
        _ => 1024,
    };
    let rank = size(&claim.setting, "r").or_else(|| size(&claim.setting, "d")).unwrap_or(usual);
    Ok(several(claim, |setting, metric| {
        let quantity = statics(metric).ok_or_else(|| unknown(claim))?;
        Ok(ask(low_rank(&base, setting, rank)?, quantity, claim))
    }))
}

/// The quantity of tables of weights, gradients and states.
fn statics(metric: &str) -> Option<Quantity> {
    let metric = metric.to_lowercase();
    Some(match () {
        () if metric.contains("weights") && (metric.contains('+') || metric.contains("and")) => Quantity::WeightsAndStates,
        () if metric.contains("weight") || metric.contains("param") => Quantity::Weights,
        () if metric.contains("grad") => Quantity::Gradients,
        () if metric.contains("state") => Quantity::States,
        () if metric.contains("linear activation") => Quantity::LinearInputs,
        () if metric.contains("peak") || metric.contains("memory") => Quantity::Peak,
        () if metric.contains("total") => Quantity::Sum,
        () => return None,
    })
}

/// A method of low rank by its words.
fn low_rank(base: &Study, text: &str, rank: u64) -> Result<Study, String> {
    let words = words(text);
    let says = |word: &str| words.iter().any(|w| w == word);
    let narrow = text.to_lowercase().contains("8-bit");
    let own_rank = words.iter().find_map(|w| w.strip_prefix('r').and_then(|digits| digits.parse().ok())).unwrap_or(rank);
    match () {
        () if says("compact") && !text.contains("n/") => Ok(with(base, &["compact"])),
        () if text.contains("n/") => {
            let part = size(&text.replace("n/", "part="), "part").ok_or_else(|| format!("{text}: no part of n"))?;
            Ok(with(base, &[&format!("compact,rank={}", 1.0 / part.max(1) as f64)]))
        }
        () if says("galore") && narrow => Ok(with(base, &[&format!("galore-8bit,rank={own_rank}")])),
        () if says("galore") => Ok(with(base, &[&format!("galore,rank={own_rank}")])),
        () if says("lora") || says("relora") => {
            Err("adapters that are trained from scratch beside embedding and head are no preset (`lora` freezes those)"
                .to_owned())
        }
        () if narrow => Ok(with(base, &["adam8bit"])),
        () => Ok(with(base, &[])),
    }
}

/// Shamshoum et al. 2024, table 3: 128 sequences of 256 tokens, as 7.0 GiB of inputs without the technique say.
fn compact(claim: &Claim) -> Result<Vec<Result<Question, String>>, String> {
    let model = models::small_llama(&claim.model, true)?;
    let base = Study { own_model: Some(model), micro_batch: Some(128), ..based("compact_original") };
    if claim.metric.contains("reduction") {
        let figure = |study| Figure { study, quantity: Quantity::Peak };
        let low = low_rank(&base, &format!("compact {}", claim.setting), 128)?;
        return Ok(vec![Ok(Question::saved(figure(low), figure(with(&base, &[]))))]);
    }
    Ok(several(claim, |setting, metric| {
        let quantity = statics(metric).ok_or_else(|| unknown(claim))?;
        Ok(ask(low_rank(&base, setting, 128)?, quantity, claim))
    }))
}

/// Lv et al. 2023, table 1.
fn lomo(claim: &Claim) -> Result<Vec<Result<Question, String>>, String> {
    let setting = claim.setting.to_lowercase();
    let base = if has(&setting, "lomo") {
        "lomo_fused"
    } else if has(&setting, "sgd") {
        "lomo_sgd"
    } else {
        "lomo"
    };
    let base = Study {
        own_model: Some(models::language_model(&claim.model)?),
        sequence: size(&setting, "s"),
        micro_batch: size(&setting, "b"),
        // Scores in memory, as transformers computed them then; the table adds what the forward pass leaves: logits and one wide copy.
        attention: Some(workloads::training::Attention::Unfused),
        stack_options: vec!["memory.bytes_per_logit=6".to_owned()],
        ..based(base)
    };
    let activations = claim.metric.contains("activation");
    Ok(several(claim, |_, metric| {
        let part = metric.to_lowercase();
        let again = has(&part, "ac");
        let recomputed = Study { recompute: Some(if again { "full" } else { "none" }.to_owned()), ..base.clone() };
        let quantity = match () {
            () if activations => Quantity::ActivationsAtLoss,
            () if again || part.contains("without") || part.contains("total") => Quantity::Sum,
            () => statics(&part).ok_or_else(|| unknown(claim))?,
        };
        Ok(ask(recomputed, quantity, claim))
    }))
}

/// Korthikanti et al. 2022, tables 3 to 5: degrees, batches and interleaving by size.
fn megatron(claim: &Claim) -> Result<Vec<Result<Question, String>>, String> {
    let name = claim.model.split(" / ").next().unwrap_or_default();
    let names = parts(&claim.model);
    let base = |name: &str| -> Result<Study, String> {
        let model = models::megatron(name)?;
        let (pipeline, chunks, global, micro) = match model.layers {
            48 => (1, 1, 4, 4),
            96 => (8, 3, 64, 1),
            105 => (35, 3, 280, 1),
            _ => (64, 1, 512, 1),
        };
        let data = (chips(&claim.hardware) / (8 * pipeline)).max(1);
        Ok(Study {
            own_model: Some(model),
            tensor: Some(8),
            pipeline: Some(pipeline),
            virtual_stages: Some(chunks),
            data: Some(data),
            micro_batch: Some(micro),
            global_batch: Some(global * u64::from(data)),
            fabric: Some("selene_hdr200x8".to_owned()),
            ..based("megatron_22b")
        })
    };
    let of = |base: &Study, text: &str| {
        let text = text.to_lowercase();
        let policy = if text.contains("selective") {
            "selective"
        } else if text.contains("full") {
            "full"
        } else {
            "none"
        };
        Study { recompute: Some(policy.to_owned()), sequence_parallel: Some(has(&text, "sp")), ..base.clone() }
    };
    let metric = claim.metric.to_lowercase();
    if metric.contains("activation saving") {
        // Two models, each with its saving and its operations, which no run prints apart.
        let savings = names.iter().map(|name| {
            let base = Study { tensor: Some(1), pipeline: Some(1), virtual_stages: Some(1), ..base(name)? };
            let figure = |policy| Figure { study: of(&base, policy), quantity: Quantity::BytesPerSbh };
            Ok(Question::saved(figure("selective"), figure("none")))
        });
        return Ok(savings.collect());
    }
    let quantity = match () {
        () if metric == "mfu" => Quantity::Mfu,
        () if metric.contains("iteration") => Quantity::StepSeconds,
        () => return Err(unknown(claim)),
    };
    let base = base(name)?;
    Ok(several(claim, |setting, _| Ok(ask(of(&base, setting), quantity, claim))))
}

/// Presets of systems that have other names.
const SYSTEMS: [(&str, &str); 1] = [("tralgorithm", "proximal-anchor")];

/// The run that a preset's claim is of, without it.
fn preset_base(claim: &Claim, cells: &str) -> Result<Study, String> {
    let micro_batch = size(cells, "b");
    if let Some(study) = models::vision_study(&claim.model, cells)? {
        return Ok(Study { micro_batch, ..based(study) });
    }
    let model = models::language_model(&claim.model)?;
    let Some(sequence) = size(cells, "s").or(tokens(cells)) else {
        return Err("the sequence's length is not given (s=TOKENS)".to_owned());
    };
    let chip = if cells.to_lowercase().contains("40gb") { "a100_40gb_sxm" } else { "a100_80gb_sxm" };
    Ok(Study {
        own_model: Some(model),
        sequence: Some(sequence),
        micro_batch,
        chip: Some(chip.to_owned()),
        stack: Some("huggingface".to_owned()),
        ..Study::default()
    })
}

/// Any other system whose name is a preset's, or several presets', on a language model or DeiT: before and after, by the words of the setting.
fn preset(claim: &Claim) -> Result<Vec<Result<Question, String>>, String> {
    let known = |name: &str| name.to_lowercase().replace([' ', '_'], "-");
    let system = known(&claim.system);
    let is_preset = |name: &&str| workloads::memory::Preset::names().iter().any(|preset| preset == name);
    // Some papers have several.
    let own: Vec<&str> = match SYSTEMS.iter().find(|(known, _)| *known == system) {
        Some((_, preset)) => vec![*preset],
        None => system.split('/').collect(),
    };
    if !own.iter().all(is_preset) {
        return Err(format!("{} is no preset, and the claim is of no run that is modelled", claim.system));
    }
    let cells = format!("{} {}", claim.setting, claim.hardware);
    let base = preset_base(claim, &cells)?;
    let rank = size(&cells, "r").map_or_else(String::new, |rank| format!(",rank={rank}"));
    let method = |text: &str| {
        // The longest name in the text: `lora-fa` before `lora`.
        let text = known(text);
        if own.len() > 1 && text.contains(&system) {
            return with(&base, &own);
        }
        let named = workloads::memory::Preset::names().into_iter().filter(|name| text.contains(name.as_str()));
        let named = named.max_by_key(String::len);
        match named {
            Some(name) if rank.is_empty() || !name.contains("lora") => with(&base, &[&name]),
            Some(name) => with(&base, &[&format!("{name}{rank}")]),
            None if ["full", "baseline", "vanilla", "original", "standard"].iter().any(|w| text.contains(w)) => with(&base, &[]),
            None => with(&base, &own),
        }
    };
    if claim.metric.contains("ratio") {
        return ratio(claim, Quantity::Peak, method);
    }
    if claim.metric.contains("reduction") {
        let figure = |study| Figure { study, quantity: Quantity::Peak };
        return Ok(vec![Ok(Question::saved(figure(method(&claim.setting)), figure(with(&base, &[]))))]);
    }
    Ok(several(claim, |setting, metric| {
        let quantity = statics(metric).ok_or_else(|| unknown(claim))?;
        Ok(ask(method(setting), quantity, claim))
    }))
}
