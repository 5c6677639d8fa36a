//! Turns a claim into runs and quantities, by rules about the paper, the model, the setting and the metric.

use super::models;
use super::text::{has_word, parse_chips, parse_size, parse_tokens, split_parts, words_of};
use super::{ClaimQuestion, PublishedClaim, RunFigure};
use crate::papers::{PaperStudy, StudyQuantity};

const GIB: f64 = 1_073_741_824.0;
const MIB: f64 = 1_048_576.0;

/// The questions of a claim, one per number of its value. A question without an answer has the reason.
pub(super) fn questions_of_claim(claim: &PublishedClaim) -> Result<Vec<Result<ClaimQuestion, String>>, String> {
    let system = claim.system.to_lowercase();
    let of_system = |name: &str| system == name || system.starts_with(&format!("{name} "));
    match () {
        () if of_system("mst") => mst_questions(claim),
        () if of_system("memo") => memo_questions(claim),
        () if of_system("ssdtrain") => ssdtrain_questions(claim),
        () if of_system("galore") => galore_questions(claim),
        () if of_system("compact") => compact_questions(claim),
        () if of_system("lomo") => lomo_questions(claim),
        () if of_system("megatron") => megatron_questions(claim),
        () => preset_questions(claim),
    }
}

/// The bytes of a claim's unit. Tables of LOMO, MsT, MEMO, CompAct and GaLore print GB and mean GiB: only GiB give the
/// printed digits of parameters in most rows.
fn bytes_of_unit(claim: &PublishedClaim) -> f64 {
    match claim.unit.split(['(', ' ']).next().unwrap_or_default().to_lowercase().as_str() {
        "gb" | "gib" => GIB,
        "mb" | "mib" => MIB,
        "tb" => 1e12,
        "ms" => 1e-3,
        _ => 1.0,
    }
}

fn ask_quantity(study: PaperStudy, quantity: StudyQuantity, claim: &PublishedClaim) -> ClaimQuestion {
    ClaimQuestion::figure_in_units(RunFigure { study, quantity }, bytes_of_unit(claim))
}

fn study_based_on(name: &str) -> PaperStudy {
    PaperStudy { base: Some(name.to_owned()), ..PaperStudy::default() }
}

fn with_techniques(study: &PaperStudy, techniques: &[&str]) -> PaperStudy {
    PaperStudy { techniques: Some(techniques.iter().map(|t| (*t).to_owned()).collect()), ..study.clone() }
}

/// The questions of a claim whose metric or setting lists several things. Their number is that of the longer list; a
/// single entry of the other applies to all.
fn questions_of_several(
    claim: &PublishedClaim,
    one: impl Fn(&str, &str) -> Result<ClaimQuestion, String>,
) -> Vec<Result<ClaimQuestion, String>> {
    let (settings, metrics) = (split_parts(&claim.setting), split_metric(&claim.metric));
    let count = settings.len().max(metrics.len()).max(1);
    let whole = |all: &[&str], whole: &str, at: usize| match all.len() {
        n if n == count => all[at].to_owned(),
        _ => whole.to_owned(),
    };
    (0..count).map(|at| one(&whole(&settings, &claim.setting, at), &whole(&metrics, &claim.metric, at))).collect()
}

/// The parts of a metric: `params/grads/states`, `total with AC / without`.
fn split_metric(metric: &str) -> Vec<&str> {
    metric.split('/').map(str::trim).filter(|part| !part.is_empty()).collect()
}

/// A claim about the ratio of two settings.
fn ratio_question(
    claim: &PublishedClaim,
    quantity: StudyQuantity,
    study: impl Fn(&str) -> PaperStudy,
) -> Result<Vec<Result<ClaimQuestion, String>>, String> {
    let [above, below] = split_parts(&claim.setting)[..] else { return Err("a ratio of other than two settings".to_owned()) };
    let figure = |setting| RunFigure { study: study(setting), quantity };
    Ok(vec![Ok(ClaimQuestion::ratio_of(figure(above), figure(below)))])
}

fn unknown_setting(claim: &PublishedClaim) -> String {
    format!("{}: no quantity of a run that is modelled", claim.metric)
}

/// Luo et al. 2024.
fn mst_questions(claim: &PublishedClaim) -> Result<Vec<Result<ClaimQuestion, String>>, String> {
    let metric = claim.metric.to_lowercase();
    let model = if claim.model == "Llama3" { "Llama3-8B" } else { &claim.model };
    let model = models::language_model(model)?;
    if metric.contains("intermediate/input") || claim.setting.contains("intermediate/input") {
        let share = |width: u64| Ok(ClaimQuestion::known_value(width as f64 / model.hidden as f64));
        let projections = model.heads * model.head_dim + 2 * model.kv_heads * model.head_dim;
        return Ok(vec![share(projections), share(2 * model.ffn), share(model.vocabulary)]);
    }
    let base = PaperStudy { own_model: Some(model), sequence: parse_size(&claim.setting, "s"), ..study_based_on("mst") };
    let method = |text: &str| mst_method(&base, text);
    if claim.model.to_lowercase().ends_with("lm-head") {
        return mst_head(claim, &base).map(|question| vec![question]);
    }
    if claim.model.to_lowercase().ends_with("mlp") || metric.contains("time") {
        return Err("one block alone is no run".to_owned());
    }
    if metric.contains("ratio") {
        return ratio_question(claim, StudyQuantity::Longest, method);
    }
    let quantity = match () {
        () if metric.contains("max sequence") => StudyQuantity::Longest,
        () if metric.contains("peak") => StudyQuantity::Peak,
        () if metric.contains("temporar") => StudyQuantity::UpdateTemporaries,
        () if metric.contains("weights") => StudyQuantity::Weights,
        () if metric.contains("gradient") => StudyQuantity::Gradients,
        () if metric.contains("state") => StudyQuantity::States,
        // With recomputation the head's gradient is live together with the logits, and counts.
        () if metric.contains("activation") && method(&claim.setting).techniques.is_some() => {
            StudyQuantity::BesideWeightsAndStates
        }
        () if metric.contains("activation") => StudyQuantity::ActivationsAtLoss,
        () => return Err(unknown_setting(claim)),
    };
    Ok(vec![Ok(ask_quantity(method(&claim.setting), quantity, claim))])
}

fn mst_method(base: &PaperStudy, text: &str) -> PaperStudy {
    let text = text.to_lowercase();
    let by_layer = text.contains("in-backward") || text.contains("in-bwd");
    let again = has_word(&text, "ar") || text.contains("recompute");
    match (has_word(&text, "mst") || text == "same", by_layer, again) {
        (true, ..) => with_techniques(base, &["mst"]),
        (false, true, true) => with_techniques(base, &["mst,mlp_slices=1,head_slices=1"]),
        (false, true, false) => with_techniques(base, &["mst,recompute=0,mlp_slices=1,head_slices=1"]),
        (false, false, true) => with_techniques(base, &["megatron-full"]),
        (false, false, false) => base.clone(),
    }
}

/// The head alone. Unsliced, it is that of the forward pass with a copy of the logits in fp32; sliced, it is that of
/// both passes.
fn mst_head(claim: &PublishedClaim, base: &PaperStudy) -> Result<Result<ClaimQuestion, String>, String> {
    if claim.metric.contains("time") {
        return Err("one block alone is no run".to_owned());
    }
    let whole = PaperStudy { stack_options: vec!["memory.bytes_per_logit=6".to_owned()], ..base.clone() };
    let whole = RunFigure { study: whole, quantity: StudyQuantity::HeadForward };
    let Some(slices) = parse_size(&claim.setting, "m") else {
        return Ok(Ok(ClaimQuestion::figure_in_units(whole, bytes_of_unit(claim))));
    };
    let sliced =
        RunFigure { study: with_techniques(base, &[&format!("mst,head_slices={slices}")]), quantity: StudyQuantity::Head };
    let saved = claim.metric.contains("reduction");
    Ok(Ok(if saved {
        ClaimQuestion::saved_percent(sliced, whole)
    } else {
        ClaimQuestion::figure_in_units(sliced, bytes_of_unit(claim))
    }))
}

/// Zhao et al. 2025.
fn memo_questions(claim: &PublishedClaim) -> Result<Vec<Result<ClaimQuestion, String>>, String> {
    let metric = claim.metric.to_lowercase();
    if claim.setting.contains(" vs ") || claim.setting.contains("average") {
        return Err("the plans of the other systems are not given".to_owned());
    }
    let name = if models::size_of(&claim.model).is_some() { &claim.model } else { "7B" };
    let model = models::memo_model(name)?;
    let all = format!("{} {}", claim.setting, claim.metric);
    let sequence = parse_tokens(&all).or(parse_size(&all, "s")).unwrap_or(1 << 20);
    let devices = parse_chips(&claim.hardware).max(8);
    // Tensor parallelism inside a node, context parallelism between nodes.
    let base = PaperStudy {
        own_model: Some(model.clone()),
        sequence: Some(sequence),
        context: Some(devices / 8),
        tensor: Some(8),
        ..study_based_on("memo")
    };
    let numbers = (sequence * model.hidden) as f64;
    let kept = PaperStudy { base: Some("memo_kept".to_owned()), ..base.clone() };
    let stash = RunFigure { study: kept.clone(), quantity: StudyQuantity::ActivationsOfAllDevices };
    let question = match () {
        () if metric == "mfu" => ask_quantity(base, StudyQuantity::Mfu, claim),
        () if metric.contains("max sequence") => ask_quantity(base, StudyQuantity::Longest, claim),
        () if metric.contains("iteration") || metric.contains("step time") => {
            ask_quantity(base, StudyQuantity::StepSeconds, claim)
        }
        () if metric.contains("fraction") && claim.setting.contains("output / skeletal") => {
            ask_quantity(kept, StudyQuantity::AttentionShare, claim)
        }
        () if claim.setting.contains("output / skeletal") => ask_quantity(kept, StudyQuantity::AttentionShare, claim),
        () if all.contains("layer inputs") => {
            ClaimQuestion::known_value(2.0 * numbers * model.layers as f64 / bytes_of_unit(claim).max(GIB))
        }
        () if all.contains("skeletal") && metric.contains("element") => {
            ClaimQuestion::figure_in_units(stash, 2.0 * numbers * model.layers as f64)
        }
        () if all.contains("skeletal activations") => ClaimQuestion::figure_in_units(stash, bytes_of_unit(claim)),
        () => return Err(unknown_setting(claim)),
    };
    Ok(vec![Ok(question)])
}

/// Wu et al. 2024: all families and shapes that the claim names.
fn ssdtrain_questions(claim: &PublishedClaim) -> Result<Vec<Result<ClaimQuestion, String>>, String> {
    let families: Vec<&str> = claim.model.split('/').map(str::trim).collect();
    let mut cuts = Vec::new();
    let mut refused = None;
    for family in &families {
        for (hidden, layers) in ssdtrain_shapes(&claim.setting) {
            match models::ssdtrain_model(family, hidden, layers) {
                Ok(model) => {
                    let sequence = parse_size(&claim.setting, "s").or(Some(1024));
                    let micro_batch = parse_size(&claim.setting, "b");
                    let study = PaperStudy { own_model: Some(model), sequence, micro_batch, ..study_based_on("ssdtrain_8192") };
                    cuts.push(RunFigure { study, quantity: StudyQuantity::ActivationCut });
                }
                Err(why) => refused = Some(why),
            }
        }
    }
    let metric = claim.metric.to_lowercase();
    if cuts.is_empty() {
        return Err(refused.unwrap_or_else(|| unknown_setting(claim)));
    }
    let most = metric.contains("max") || claim.value.contains("up to");
    Ok(split_metric(&metric)
        .into_iter()
        .map(|part| match () {
            () if part.contains("activation peak reduction") && most => Ok(ClaimQuestion::largest_of(cuts.clone())),
            () if part.contains("activation peak reduction") => Ok(ClaimQuestion::spread_of(cuts.clone())),
            // The number of sequences grows by the factor by which the activations of one shrink.
            () if part.contains("batch size") => Ok(ClaimQuestion::largest_of(cuts.clone()).as_gain()),
            () => Err(format!("{part}: of configurations that are not given")),
        })
        .collect())
}

/// Parses `(h,L)=(8192,4),(12288,3)`, or `3-layer h=12K/14K`. The default is the three shapes of the paper's figure 6.
fn ssdtrain_shapes(setting: &str) -> Vec<(u64, u64)> {
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
            widths.split('/').filter_map(|width| parse_size(&format!("h={width}"), "h")).map(|hidden| (hidden, layers)).collect()
        }
        _ => vec![(8192, 4), (12_288, 3), (16_384, 2)],
    }
}

/// Zhao et al. 2024, tables 2 and 6.
fn galore_questions(claim: &PublishedClaim) -> Result<Vec<Result<ClaimQuestion, String>>, String> {
    let base = PaperStudy { own_model: Some(models::small_llama(&claim.model, false)?), ..study_based_on("full_60m") };
    // The ranks of table 2.
    let usual = match models::size_of(&claim.model).as_deref() {
        Some("60m") => 128,
        Some("130m" | "350m") => 256,
        Some("1b" | "3b") => 512,
        _ => 1024,
    };
    let rank = parse_size(&claim.setting, "r").or_else(|| parse_size(&claim.setting, "d")).unwrap_or(usual);
    Ok(questions_of_several(claim, |setting, metric| {
        let quantity = statics_quantity(metric).ok_or_else(|| unknown_setting(claim))?;
        Ok(ask_quantity(low_rank_method(&base, setting, rank)?, quantity, claim))
    }))
}

/// The quantity of a table of weights, gradients and states.
fn statics_quantity(metric: &str) -> Option<StudyQuantity> {
    let metric = metric.to_lowercase();
    Some(match () {
        () if metric.contains("weights") && (metric.contains('+') || metric.contains("and")) => StudyQuantity::WeightsAndStates,
        () if metric.contains("weight") || metric.contains("param") => StudyQuantity::Weights,
        () if metric.contains("grad") => StudyQuantity::Gradients,
        () if metric.contains("state") => StudyQuantity::States,
        () if metric.contains("linear activation") => StudyQuantity::LinearInputs,
        () if metric.contains("peak") || metric.contains("memory") => StudyQuantity::Peak,
        () if metric.contains("total") => StudyQuantity::Sum,
        () => return None,
    })
}

/// A low-rank method, from its words.
fn low_rank_method(base: &PaperStudy, text: &str, rank: u64) -> Result<PaperStudy, String> {
    let words = words_of(text);
    let says = |word: &str| words.iter().any(|w| w == word);
    let narrow = text.to_lowercase().contains("8-bit");
    let own_rank = words.iter().find_map(|w| w.strip_prefix('r').and_then(|digits| digits.parse().ok())).unwrap_or(rank);
    match () {
        () if says("compact") && !text.contains("n/") => Ok(with_techniques(base, &["compact"])),
        () if text.contains("n/") => {
            let part = parse_size(&text.replace("n/", "part="), "part").ok_or_else(|| format!("{text}: no part of n"))?;
            Ok(with_techniques(base, &[&format!("compact,rank={}", 1.0 / part.max(1) as f64)]))
        }
        () if says("galore") && narrow => Ok(with_techniques(base, &[&format!("galore-8bit,rank={own_rank}")])),
        () if says("galore") => Ok(with_techniques(base, &[&format!("galore,rank={own_rank}")])),
        () if says("lora") || says("relora") => {
            Err("adapters that are trained from scratch beside embedding and head are no preset (`lora` freezes those)"
                .to_owned())
        }
        () if narrow => Ok(with_techniques(base, &["adam8bit"])),
        () => Ok(with_techniques(base, &[])),
    }
}

/// Shamshoum et al. 2024, table 3: 128 sequences of 256 tokens, which follows from 7.0 GiB of inputs without the
/// technique.
fn compact_questions(claim: &PublishedClaim) -> Result<Vec<Result<ClaimQuestion, String>>, String> {
    let model = models::small_llama(&claim.model, true)?;
    let base = PaperStudy { own_model: Some(model), micro_batch: Some(128), ..study_based_on("compact_original") };
    if claim.metric.contains("reduction") {
        let figure = |study| RunFigure { study, quantity: StudyQuantity::Peak };
        let low = low_rank_method(&base, &format!("compact {}", claim.setting), 128)?;
        return Ok(vec![Ok(ClaimQuestion::saved_percent(figure(low), figure(with_techniques(&base, &[]))))]);
    }
    Ok(questions_of_several(claim, |setting, metric| {
        let quantity = statics_quantity(metric).ok_or_else(|| unknown_setting(claim))?;
        Ok(ask_quantity(low_rank_method(&base, setting, 128)?, quantity, claim))
    }))
}

/// Lv et al. 2023, table 1.
fn lomo_questions(claim: &PublishedClaim) -> Result<Vec<Result<ClaimQuestion, String>>, String> {
    let setting = claim.setting.to_lowercase();
    let base = if has_word(&setting, "lomo") {
        "lomo_fused"
    } else if has_word(&setting, "sgd") {
        "lomo_sgd"
    } else {
        "lomo"
    };
    let base = PaperStudy {
        own_model: Some(models::language_model(&claim.model)?),
        sequence: parse_size(&setting, "s"),
        micro_batch: parse_size(&setting, "b"),
        // Scores are in memory, as transformers computed them then. The table adds what the forward pass leaves: logits
        // and one wide copy.
        attention: Some(workloads::training::Attention::Unfused),
        stack_options: vec!["memory.bytes_per_logit=6".to_owned()],
        ..study_based_on(base)
    };
    let activations = claim.metric.contains("activation");
    Ok(questions_of_several(claim, |_, metric| {
        let part = metric.to_lowercase();
        let again = has_word(&part, "ac");
        let recomputed = PaperStudy { recompute: Some(if again { "full" } else { "none" }.to_owned()), ..base.clone() };
        let quantity = match () {
            () if activations => StudyQuantity::ActivationsAtLoss,
            () if again || part.contains("without") || part.contains("total") => StudyQuantity::Sum,
            () => statics_quantity(&part).ok_or_else(|| unknown_setting(claim))?,
        };
        Ok(ask_quantity(recomputed, quantity, claim))
    }))
}

/// Korthikanti et al. 2022, tables 3 to 5: degrees, batches and interleaving by size.
fn megatron_questions(claim: &PublishedClaim) -> Result<Vec<Result<ClaimQuestion, String>>, String> {
    let name = claim.model.split(" / ").next().unwrap_or_default();
    let names = split_parts(&claim.model);
    let base = |name: &str| -> Result<PaperStudy, String> {
        let model = models::megatron_model(name)?;
        let (pipeline, chunks, global, micro) = match model.layers {
            48 => (1, 1, 4, 4),
            96 => (8, 3, 64, 1),
            105 => (35, 3, 280, 1),
            _ => (64, 1, 512, 1),
        };
        let data = (parse_chips(&claim.hardware) / (8 * pipeline)).max(1);
        Ok(PaperStudy {
            own_model: Some(model),
            tensor: Some(8),
            pipeline: Some(pipeline),
            virtual_stages: Some(chunks),
            data: Some(data),
            micro_batch: Some(micro),
            global_batch: Some(global * u64::from(data)),
            fabric: Some("selene_hdr200x8".to_owned()),
            ..study_based_on("megatron_22b")
        })
    };
    let of = |base: &PaperStudy, text: &str| {
        let text = text.to_lowercase();
        let policy = if text.contains("selective") {
            "selective"
        } else if text.contains("full") {
            "full"
        } else {
            "none"
        };
        PaperStudy { recompute: Some(policy.to_owned()), sequence_parallel: Some(has_word(&text, "sp")), ..base.clone() }
    };
    let metric = claim.metric.to_lowercase();
    if metric.contains("activation saving") {
        // Two models with a saving and operations each. No run prints these separately.
        let savings = names.iter().map(|name| {
            let base = PaperStudy { tensor: Some(1), pipeline: Some(1), virtual_stages: Some(1), ..base(name)? };
            let figure = |policy| RunFigure { study: of(&base, policy), quantity: StudyQuantity::BytesPerSbh };
            Ok(ClaimQuestion::saved_percent(figure("selective"), figure("none")))
        });
        return Ok(savings.collect());
    }
    let quantity = match () {
        () if metric == "mfu" => StudyQuantity::Mfu,
        () if metric.contains("iteration") => StudyQuantity::StepSeconds,
        () => return Err(unknown_setting(claim)),
    };
    let base = base(name)?;
    Ok(questions_of_several(claim, |setting, _| Ok(ask_quantity(of(&base, setting), quantity, claim))))
}

/// Presets of systems with other names.
const SYSTEMS: [(&str, &str); 1] = [("tralgorithm", "proximal-anchor")];

/// The run without the preset, for a preset's claim.
fn preset_base(claim: &PublishedClaim, cells: &str) -> Result<PaperStudy, String> {
    let micro_batch = parse_size(cells, "b");
    if let Some(study) = models::vision_study(&claim.model, cells)? {
        return Ok(PaperStudy { micro_batch, ..study_based_on(study) });
    }
    let model = models::language_model(&claim.model)?;
    let Some(sequence) = parse_size(cells, "s").or(parse_tokens(cells)) else {
        return Err("the sequence's length is not given (s=TOKENS)".to_owned());
    };
    let chip = if cells.to_lowercase().contains("40gb") { "a100_40gb_sxm" } else { "a100_80gb_sxm" };
    Ok(PaperStudy {
        own_model: Some(model),
        sequence: Some(sequence),
        micro_batch,
        chip: Some(chip.to_owned()),
        stack: Some("huggingface".to_owned()),
        ..PaperStudy::default()
    })
}

/// Any other system with the name of one or more presets, on a language model or DeiT. The words of the setting define
/// before and after.
fn preset_questions(claim: &PublishedClaim) -> Result<Vec<Result<ClaimQuestion, String>>, String> {
    let known = |name: &str| name.to_lowercase().replace([' ', '_'], "-");
    let system = known(&claim.system);
    let is_preset = |name: &&str| workloads::memory::Preset::built_in_names().iter().any(|preset| preset == name);
    // Some papers have several presets.
    let own: Vec<&str> = match SYSTEMS.iter().find(|(known, _)| *known == system) {
        Some((_, preset)) => vec![*preset],
        None => system.split('/').collect(),
    };
    if !own.iter().all(is_preset) {
        return Err(format!("{} is no preset, and the claim is of no run that is modelled", claim.system));
    }
    let cells = format!("{} {}", claim.setting, claim.hardware);
    let base = preset_base(claim, &cells)?;
    let rank = parse_size(&cells, "r").map_or_else(String::new, |rank| format!(",rank={rank}"));
    let method = |text: &str| {
        // The longest name in the text counts: `lora-fa` before `lora`.
        let text = known(text);
        if own.len() > 1 && text.contains(&system) {
            return with_techniques(&base, &own);
        }
        let named = workloads::memory::Preset::built_in_names().into_iter().filter(|name| text.contains(name.as_str()));
        let named = named.max_by_key(String::len);
        match named {
            Some(name) if rank.is_empty() || !name.contains("lora") => with_techniques(&base, &[&name]),
            Some(name) => with_techniques(&base, &[&format!("{name}{rank}")]),
            None if ["full", "baseline", "vanilla", "original", "standard"].iter().any(|w| text.contains(w)) => {
                with_techniques(&base, &[])
            }
            None => with_techniques(&base, &own),
        }
    };
    if claim.metric.contains("ratio") {
        return ratio_question(claim, StudyQuantity::Peak, method);
    }
    if claim.metric.contains("reduction") {
        let figure = |study| RunFigure { study, quantity: StudyQuantity::Peak };
        return Ok(vec![Ok(ClaimQuestion::saved_percent(figure(method(&claim.setting)), figure(with_techniques(&base, &[]))))]);
    }
    Ok(questions_of_several(claim, |setting, metric| {
        let quantity = statics_quantity(metric).ok_or_else(|| unknown_setting(claim))?;
        Ok(ask_quantity(method(setting), quantity, claim))
    }))
}
