//! Reads the words of a claim's hardware and setting into a study. An unknown word is an error.

use super::models::ModelShape;
use crate::papers::{PaperStudy, PaperSystem};
use workloads::footprint::Optimizer;
use workloads::memory::Preset;
use workloads::training::Attention;

/// Write rate of one Intel Optane P5800X, in GB/s (Intel, product brief of the P5800X series, 2020: 6.2 GB/s).
const P5800X_GB_PER_S: f64 = 6.2;

/// A setting after reading: the study, and the techniques that the words name.
#[derive(Debug, Clone, Default)]
pub(super) struct ReadSetting {
    pub(super) study: PaperStudy,
    /// The techniques that the words name; `None` if they name no method, and empty for a baseline.
    pub(super) techniques: Option<Vec<String>>,
    /// The number of devices, if the words state it.
    pub(super) devices: Option<u32>,
    /// Widths and layers, if the setting lists shapes of models.
    pub(super) shapes: Vec<ModelShape>,
    /// The rank of a low-rank method.
    rank: Option<String>,
    /// The number of slices of the head.
    pub(super) slices: Option<u64>,
}

/// The effect of a phrase.
#[derive(Debug, Clone, Copy)]
enum PhraseEffect {
    /// The phrase changes nothing.
    Nothing,
    /// The phrase means the system's own techniques.
    Own,
    /// The phrase means no technique.
    Baseline,
    Recompute(&'static str),
    Precision(&'static str),
    Optimizer(Optimizer),
    Technique(&'static str),
    Attention(Attention),
    SequenceParallel,
    Chip(&'static str),
    Fabric(&'static str),
}
use PhraseEffect as Effect;

/// Phrases in papers, each with its effect on the setting. Hyphens and underscores count as spaces. The longest phrase
/// that matches decides.
const PHRASES: &[(&str, PhraseEffect)] = &[
    ("full param", Effect::Nothing),
    ("full parameter", Effect::Nothing),
    ("fine tuning", Effect::Nothing),
    ("training", Effect::Nothing),
    ("estimate", Effect::Nothing),
    ("gpu", Effect::Nothing),
    ("with", Effect::Nothing),
    ("and", Effect::Nothing),
    ("same hw", Effect::Nothing),
    ("vs full", Effect::Nothing),
    ("peak", Effect::Nothing),
    ("same", Effect::Own),
    ("vanilla", Effect::Baseline),
    ("baseline", Effect::Baseline),
    ("original", Effect::Baseline),
    ("standard", Effect::Baseline),
    ("full rank", Effect::Baseline),
    ("full ft", Effect::Baseline),
    ("full fine tuning", Effect::Baseline),
    ("full tuning", Effect::Baseline),
    ("ar", Effect::Recompute("full")),
    ("ac", Effect::Recompute("full")),
    ("activation recompute", Effect::Recompute("full")),
    ("activation recomputation", Effect::Recompute("full")),
    ("activation checkpointing", Effect::Recompute("full")),
    ("gradient checkpointing", Effect::Recompute("full")),
    ("checkpointing", Effect::Recompute("full")),
    ("recompute", Effect::Recompute("full")),
    ("full recompute", Effect::Recompute("full")),
    ("full recomputation", Effect::Recompute("full")),
    ("selective", Effect::Recompute("selective")),
    ("selective recompute", Effect::Recompute("selective")),
    ("selective recomputation", Effect::Recompute("selective")),
    ("without", Effect::Recompute("none")),
    ("without ac", Effect::Recompute("none")),
    ("without checkpointing", Effect::Recompute("none")),
    ("no checkpointing", Effect::Recompute("none")),
    ("no recompute", Effect::Recompute("none")),
    ("bf16", Effect::Precision("pure")),
    ("pure bf16", Effect::Precision("pure")),
    ("fp16", Effect::Precision("fp16")),
    ("fp32", Effect::Precision("fp32")),
    ("mixed", Effect::Precision("mixed")),
    ("mixed precision", Effect::Precision("mixed")),
    ("adam", Effect::Optimizer(Optimizer::Adam)),
    ("adamw", Effect::Optimizer(Optimizer::Adam)),
    ("sgd", Effect::Optimizer(Optimizer::Sgd)),
    ("momentum", Effect::Optimizer(Optimizer::Momentum)),
    ("adafactor", Effect::Optimizer(Optimizer::Adafactor)),
    ("8 bit adam", Effect::Optimizer(Optimizer::Adam8bit)),
    ("opt in bwd", Effect::Technique("optimizer-in-backward")),
    ("mini sequence", Effect::Technique("mst")),
    ("4 bit base", Effect::Technique("nf4-base")),
    ("4 bit", Effect::Technique("nf4-base")),
    ("nf4", Effect::Technique("nf4-base")),
    ("8 bit base", Effect::Technique("int8-base")),
    ("qlora", Effect::Technique("lora+nf4-base")),
    ("8 bit galore", Effect::Technique("galore-8bit")),
    ("flash attention", Effect::Attention(Attention::Fused)),
    ("flashattention", Effect::Attention(Attention::Fused)),
    ("flashattn2", Effect::Attention(Attention::Fused)),
    ("unfused attention", Effect::Attention(Attention::Unfused)),
    ("eager attention", Effect::Attention(Attention::Unfused)),
    ("sp", Effect::SequenceParallel),
    ("sequence parallel", Effect::SequenceParallel),
    ("2tb host", Effect::Nothing),
    ("224x224", Effect::Nothing),
    ("a100", Effect::Chip("a100_80gb_sxm")),
    ("a100 80gb", Effect::Chip("a100_80gb_sxm")),
    ("a100 40gb", Effect::Chip("a100_40gb_sxm")),
    ("a100 pcie 40gb", Effect::Chip("a100_40gb_sxm")),
    ("a100 pcie 80gb", Effect::Chip("a100_80gb_pcie")),
    ("a800", Effect::Chip("a100_80gb_sxm")),
    ("a800 80gb", Effect::Chip("a100_80gb_sxm")),
    ("h100", Effect::Chip("h100_80gb_sxm")),
    ("h100 80gb", Effect::Chip("h100_80gb_sxm")),
    ("h200", Effect::Chip("h200")),
    ("v100", Effect::Chip("v100_32gb")),
    ("v100 32gb", Effect::Chip("v100_32gb")),
    ("v100 16gb", Effect::Chip("v100_16gb")),
    ("rtx 3090", Effect::Chip("rtx_3090")),
    ("rtx3090", Effect::Chip("rtx_3090")),
    ("rtx 4090", Effect::Chip("rtx_4090")),
    ("rtx4090", Effect::Chip("rtx_4090")),
    ("l40s", Effect::Chip("l40s")),
    ("selene", Effect::Fabric("selene_hdr200x8")),
];

/// Stores a number by its key. The key comes from `key=value`, `KEY N` or `N THINGS`. `None` if either is unknown.
fn set_number(read: &mut ReadSetting, key: &str, text: &str) -> Option<()> {
    if matches!(key, "r" | "rank" | "r/d") {
        // GaLore's table gives rank and width: `r/d=128/256`.
        let text = if key == "r/d" { text.split('/').next()? } else { text };
        // A fraction of the width: `r=n/8` is an eighth.
        let part = text.strip_prefix("n/").map(|part| part.parse::<u64>());
        read.rank = Some(match part {
            Some(part) => format!("{}", 1.0 / part.ok()?.max(1) as f64),
            None => scaled_number(text)?.to_string(),
        });
        return Some(());
    }
    let number = scaled_number(text)?;
    let narrow = u32::try_from(number).ok()?;
    let study = &mut read.study;
    match key {
        "s" | "seq" | "sequence" | "length" | "tokens" => study.sequence = Some(number),
        "b" | "bs" | "batch" => study.micro_batch = Some(number),
        "global" | "gbs" => study.global_batch = Some(number),
        "accumulation" | "accum" | "ga" => study.accumulate = Some(number),
        "tp" | "t" => study.tensor = Some(narrow),
        "pp" | "p" => study.pipeline = Some(narrow),
        "dp" | "d" => study.data = Some(narrow),
        "cp" | "c" => study.context = Some(narrow),
        "zero" => study.zero = Some(u8::try_from(number).ok().filter(|stage| *stage <= 3)?),
        "m" => read.slices = Some(number),
        "h" | "l" => read.shapes = vec![merged_shape(&read.shapes, key, number)],
        "devices" => read.devices = Some(narrow),
        _ => return None,
    }
    Some(())
}

/// Returns the first shape with one of its two numbers replaced, because a text gives them one after the other.
fn merged_shape(shapes: &[ModelShape], key: &str, number: u64) -> ModelShape {
    let shape = shapes.first().copied().unwrap_or_default();
    if key == "h" { ModelShape { width: number, ..shape } } else { ModelShape { layers: number, ..shape } }
}

/// Reads a whole number with an optional `k` or `m`, which are powers of two: `4k` is 4096.
pub(super) fn scaled_number(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let count: u64 = text[..digits].parse().ok()?;
    let unit = match &text[digits..] {
        "" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        _ => return None,
    };
    count.checked_mul(unit)
}

/// Removes the pairs after `(h,L)=` from a setting: `(h,L)=(8192,4),(12288,3)`. Returns the rest in lower case, and the
/// pairs.
fn take_shapes(text: &str) -> (String, Vec<ModelShape>) {
    let lower = text.to_lowercase();
    let Some((before, after)) = lower.split_once("(h,l)=") else { return (lower, Vec::new()) };
    let (mut rest, mut shapes) = (after, Vec::new());
    while let Some((pair, more)) = rest.trim_start_matches([',', ' ']).strip_prefix('(').and_then(|r| r.split_once(')'))
    {
        let shape_of = |(width, layers): (&str, &str)| {
            Some(ModelShape { width: width.trim().parse().ok()?, layers: layers.trim().parse().ok()? })
        };
        let Some(shape) = pair.split_once(',').and_then(shape_of) else { break };
        shapes.push(shape);
        rest = more;
    }
    (format!("{before} {rest}"), shapes)
}

/// Reads the words of `text` and adds them to `read`, which has the content of other cells.
///
/// # Errors
/// The unknown words.
pub(super) fn read_words(text: &str, system: &PaperSystem, mut read: ReadSetting) -> Result<ReadSetting, Vec<String>> {
    let (text, shapes) = take_shapes(text);
    if !shapes.is_empty() {
        read.shapes = shapes;
    }
    let plain = text.replace(['-', '_'], " ");
    let words: Vec<&str> =
        plain.split([' ', ',', ';', '+', '(', ')', ':']).filter(|word| !word.is_empty() && *word != "/").collect();
    let (mut at, mut unread) = (0, Vec::new());
    while at < words.len() {
        match read_phrase(&words[at..], system, &mut read) {
            Some(count) => at += count,
            None => {
                unread.push(words[at].to_owned());
                at += 1;
            }
        }
    }
    if unread.is_empty() { Ok(read) } else { Err(unread) }
}

/// Reads the longest known phrase at the start of `words`. Returns its number of words.
fn read_phrase(words: &[&str], system: &PaperSystem, read: &mut ReadSetting) -> Option<usize> {
    for count in (1..=words.len().min(4)).rev() {
        let phrase = words[..count].join(" ");
        if system.words.contains(&phrase) {
            return Some(count);
        }
        if let Some((_, effect)) = PHRASES.iter().find(|(known, _)| *known == phrase) {
            apply_effect(*effect, system, read);
            return Some(count);
        }
        let preset = phrase.replace(' ', "-");
        if Preset::built_in_names().contains(&preset) {
            add_technique(&preset, read);
            return Some(count);
        }
    }
    read_numbers(words, read)
}

/// Reads a number with its key at the start of `words`. Returns the number of words.
fn read_numbers(words: &[&str], read: &mut ReadSetting) -> Option<usize> {
    let word = words[0];
    if let Some((key, value)) = word.split_once('=') {
        let key = match key {
            "sequence" | "seq" | "s" => "s",
            "batch" | "micro" | "bs" | "b" => "b",
            other => other,
        };
        return set_number(read, key, value).map(|()| 1);
    }
    // The forms are `N THINGS`, `NxCHIP`, `batch size N`, `zero 3` and `tp2`.
    if let Some(number) = scaled_number(word) {
        return read_counted_thing(number, words, read);
    }
    if let Some((count, chip)) = word.split_once('x').filter(|(count, _)| count.parse::<u32>().is_ok()) {
        return read_counted_chips(count, chip, words, read);
    }
    let keyed = [("tp", "tp"), ("pp", "pp"), ("dp", "dp"), ("cp", "cp"), ("zero", "zero"), ("r", "r")];
    for (prefix, key) in keyed {
        if let Some(digits) =
            word.strip_prefix(prefix).filter(|digits| digits.starts_with(|c: char| c.is_ascii_digit()))
        {
            return set_number(read, key, digits).map(|()| 1);
        }
    }
    if let Some(part) = word.strip_prefix("n/") {
        return set_number(read, "r", &format!("n/{part}")).map(|()| 1);
    }
    let (key, skip) = match (word, words.get(1).copied()) {
        ("sequence" | "seq", Some("length")) => ("s", 2),
        ("sequence" | "seq" | "context", _) => ("s", 1),
        ("batch" | "micro", Some("size")) => ("b", 2),
        ("micro", Some("batch")) if words.get(2) == Some(&"size") => ("b", 3),
        ("micro", Some("batch")) => ("b", 2),
        ("global", Some("batch")) if words.get(2) == Some(&"size") => ("gbs", 3),
        ("global", Some("batch")) => ("gbs", 2),
        ("gradient" | "grad", Some("accumulation" | "accum")) => ("ga", 2),
        ("batch", _) => ("b", 1),
        ("accumulation", _) => ("ga", 1),
        ("zero" | "tp" | "pp" | "dp" | "cp" | "rank", _) => (word, 1),
        _ => return None,
    };
    set_number(read, key, words.get(skip)?).map(|()| skip + 1)
}

/// Reads a number before what it counts: `4k tokens`, `8 GPUs`, `8 A100`. `number` is the first of `words`.
fn read_counted_thing(number: u64, words: &[&str], read: &mut ReadSetting) -> Option<usize> {
    let names_chip = |next: &str| {
        PHRASES
            .iter()
            .any(|(phrase, effect)| matches!(effect, Effect::Chip(_)) && phrase.split(' ').next() == Some(next))
    };
    match words.get(1).copied()? {
        "tokens" | "token" => set_number(read, "s", words[0]).map(|()| 2),
        "gpus" | "devices" | "chips" | "gpu" | "x" => set_number(read, "devices", words[0]).map(|()| 2),
        "layer" | "layers" => set_number(read, "l", words[0]).map(|()| 2),
        // The number of chips comes before their name.
        next if names_chip(next) => {
            read.devices = u32::try_from(number).ok();
            Some(1)
        }
        _ => None,
    }
}

/// Reads a number of chips or of drives: `8xA100`, `8x A100`, `4xP5800X RAID0`. `count` and `chip` are the parts of the
/// first of `words`.
fn read_counted_chips(count: &str, chip: &str, words: &[&str], read: &mut ReadSetting) -> Option<usize> {
    if chip == "p5800x" {
        read.study.nvme_gb_per_s = Some(count.parse::<f64>().ok()? * P5800X_GB_PER_S);
        return Some(1 + usize::from(words.get(1) == Some(&"raid0")));
    }
    let own = usize::from(!chip.is_empty());
    let mut rest = if own == 1 { vec![chip] } else { Vec::new() };
    rest.extend(&words[1..words.len().min(4)]);
    let found = (1..=rest.len()).rev().find_map(|take| {
        let phrase = rest[..take].join(" ");
        let known = PHRASES.iter().find(|(known, _)| *known == phrase)?;
        matches!(known.1, Effect::Chip(_)).then_some((take, known.1))
    });
    let Some((take, Effect::Chip(name))) = found else { return None };
    read.study.chip = Some(name.to_owned());
    read.devices = count.parse().ok();
    Some(take + 1 - own)
}

fn add_technique(name: &str, read: &mut ReadSetting) {
    let named = read.techniques.get_or_insert_default();
    named.extend(name.split('+').map(str::to_owned).filter(|name| !named.contains(name)).collect::<Vec<_>>());
}

fn apply_effect(effect: PhraseEffect, system: &PaperSystem, read: &mut ReadSetting) {
    let study = &mut read.study;
    match effect {
        Effect::Nothing => {}
        Effect::Own => {
            for own in &system.techniques {
                add_technique(own, read);
            }
        }
        Effect::Baseline => {
            read.techniques.get_or_insert_default();
        }
        Effect::Recompute(policy) => study.recompute = Some(policy.to_owned()),
        Effect::Precision(name) => study.precision = Some(name.to_owned()),
        Effect::Optimizer(optimizer) => {
            study.optimizer = Some(optimizer);
            if system.replaces_optimizer {
                read.techniques.get_or_insert_default();
            }
        }
        Effect::Technique(name) => add_technique(name, read),
        Effect::Attention(attention) => study.attention = Some(attention),
        Effect::SequenceParallel => study.sequence_parallel = Some(true),
        Effect::Chip(name) => study.chip = Some(name.to_owned()),
        Effect::Fabric(name) => study.fabric = Some(name.to_owned()),
    }
}

impl ReadSetting {
    /// Returns the study. It has the system's techniques, unless the words name a method. Degrees that the number of
    /// devices leaves open become data parallelism.
    ///
    /// # Errors
    /// A number of devices that is no multiple of the degrees.
    pub(super) fn into_study(mut self, system: &PaperSystem) -> Result<PaperStudy, String> {
        // A recomputation policy without a technique, such as `activation recompute`, is a method of its own; numbers
        // are not.
        let alone = self.techniques.is_none() && self.study.recompute.as_deref().is_some_and(|policy| policy != "none");
        let named = self.techniques.take();
        let mut techniques = match named {
            Some(named) => named,
            None if alone && system.recomputes => Vec::new(),
            None => system.techniques.clone(),
        };
        if system.recomputes && techniques.iter().any(|technique| system.techniques.contains(technique)) {
            self.study.recompute = None;
            techniques.retain(|technique| technique != "optimizer-in-backward");
        }
        for technique in &mut techniques {
            let Ok(preset) = Preset::load(technique) else { continue };
            let keys: [(&str, Option<String>); 2] =
                [("rank", self.rank.clone()), ("head_slices", self.slices.map(|slices| slices.to_string()))];
            for (key, value) in keys.into_iter().filter_map(|(key, value)| Some((key, value?))) {
                if preset.parameters.contains_key(key) {
                    technique.push_str(&format!(",{key}={value}"));
                }
            }
        }
        self.study.techniques = Some(techniques);
        if let Some(devices) = self.devices.filter(|devices| *devices > 1) {
            let study = &mut self.study;
            let others = [study.tensor, study.pipeline, study.context].map(|degree| degree.unwrap_or(1));
            let others: u32 = others.iter().product();
            match study.data {
                None if devices.is_multiple_of(others) => study.data = Some(devices / others),
                Some(data) if data * others == devices => {}
                _ => {
                    return Err(format!(
                        "{devices} devices are no multiple of the degrees; name them (tp=, pp=, cp=, dp=)"
                    ));
                }
            }
        }
        Ok(self.study)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn system(techniques: &[&str], recomputes: bool) -> PaperSystem {
        PaperSystem {
            base: "mst".into(),
            techniques: techniques.iter().map(|t| (*t).to_owned()).collect(),
            recomputes,
            family: None,
            words: vec!["alpaca".into()],
            replaces_optimizer: techniques == ["lomo"],
            sizes: std::collections::BTreeMap::new(),
            refused: None,
        }
    }

    fn read(text: &str, system: &PaperSystem) -> PaperStudy {
        read_words(text, system, ReadSetting::default()).unwrap().into_study(system).unwrap()
    }

    #[test]
    fn every_word_counts() {
        let lomo = system(&["lomo"], false);
        let study = read("8x RTX3090, ZeRO-3, s=1024 b=2, gradient accumulation 4, AC, mixed, Alpaca", &lomo);
        assert_eq!(read("s=512 b=8 SGD", &lomo).techniques, Some(vec![]));
        assert_eq!((study.data, study.zero, study.accumulate), (Some(8), Some(3), Some(4)));
        assert_eq!((study.sequence, study.micro_batch), (Some(1024), Some(2)));
        assert_eq!((study.chip.as_deref(), study.recompute.as_deref()), (Some("rtx_3090"), Some("full")));
        assert_eq!((study.precision.as_deref(), study.techniques), (Some("mixed"), Some(vec!["lomo".to_owned()])));
        let study = read("8xA100-80GB tp2 vanilla sequence length 4K", &lomo);
        assert_eq!((study.tensor, study.data, study.sequence), (Some(2), Some(4), Some(4096)));
        assert_eq!(study.techniques, Some(vec![]));
        let unread = read_words("s=4K on a rainy day", &lomo, ReadSetting::default()).unwrap_err();
        assert_eq!(unread, ["on", "a", "rainy", "day"]);
    }

    #[test]
    fn a_method_is_named_or_the_systems_own() {
        let mst = system(&["mst"], true);
        assert_eq!(read("bf16, AR + optimizer-in-backward + MST", &mst).techniques, Some(vec!["mst".to_owned()]));
        let alone = read("activation recompute", &mst);
        assert_eq!((alone.recompute.as_deref(), alone.techniques), (Some("full"), Some(vec![])));
        let galore = system(&["galore"], false);
        assert_eq!(read("GaLore r128", &galore).techniques, Some(vec!["galore,rank=128".to_owned()]));
        assert_eq!(
            read("qlora r=64", &galore).techniques,
            Some(vec!["lora,rank=64".to_owned(), "nf4-base".to_owned()])
        );
    }
}
