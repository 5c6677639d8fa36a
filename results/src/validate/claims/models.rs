//! The models that papers name, by name and size.

use crate::papers::named_model;
use workloads::Model;
use workloads::model::PositionEncoding;

/// Layers, width, heads, and width of the MLP.
type Size = (&'static str, [u64; 4]);

/// LLaMA (Touvron et al. 2023, table 2). The width of the MLP is that of the released checkpoints.
const LLAMA: [Size; 5] = [
    ("7b", [32, 4096, 32, 11_008]),
    ("13b", [40, 5120, 40, 13_824]),
    ("30b", [60, 6656, 52, 17_920]),
    ("33b", [60, 6656, 52, 17_920]),
    ("65b", [80, 8192, 64, 22_016]),
];
/// Models that GaLore and CompAct train from scratch (GaLore's repository, configs/llama_*.json).
const SMALL_LLAMA: [Size; 5] = [
    ("60m", [8, 512, 8, 1376]),
    ("130m", [12, 768, 12, 2048]),
    ("350m", [24, 1024, 16, 2736]),
    ("1b", [24, 2048, 32, 5461]),
    ("3b", [32, 2560, 32, 6848]),
];
/// GPTs of MEMO (Zhao et al. 2025, table 2).
const MEMO: [Size; 4] = [
    ("7b", [32, 4096, 32, 16_384]),
    ("13b", [40, 5120, 40, 20_480]),
    ("30b", [48, 7168, 56, 28_672]),
    ("65b", [80, 8192, 64, 32_768]),
];
/// GPTs of Korthikanti et al. 2022, table 3.
const MEGATRON: [Size; 4] = [
    ("22b", [48, 6144, 64, 24_576]),
    ("175b", [96, 12_288, 96, 49_152]),
    ("530b", [105, 20_480, 128, 81_920]),
    ("1t", [128, 25_600, 160, 102_400]),
];
/// Built-in models under the names in papers.
const BUILT_IN: [(&str, &str); 9] = [
    ("llama3-8b", "llama3-8b"),
    ("llama3-70b", "llama3-70b"),
    ("llama3.1-8b", "llama3.1-8b"),
    ("llama2-7b", "llama2-7b"),
    ("mistral-7b", "mistral-7b"),
    ("qwen2-7b", "qwen2.5-7b"),
    ("qwen2.5-7b", "qwen2.5-7b"),
    ("gemma2-9b", "gemma-2-9b"),
    ("gemma-2-9b", "gemma-2-9b"),
];

/// The size in a name, in lower case: `7b` for `GPT-7B`.
pub(super) fn size_of(name: &str) -> Option<String> {
    let is_size = |w: &&str| {
        let digits = w.trim_end_matches(['b', 'm', 't']);
        digits.len() + 1 == w.len() && digits.parse::<f64>().is_ok()
    };
    let name = name.to_lowercase();
    name.split(|c: char| !c.is_ascii_alphanumeric() && c != '.').find(is_size).map(str::to_owned)
}

/// The model with other dimensions.
fn resize_model(of: &Model, name: &str, [layers, hidden, heads, ffn]: [u64; 4]) -> Model {
    Model {
        name: name.to_owned(),
        layers,
        hidden,
        heads,
        kv_heads: heads,
        head_dim: hidden / heads.max(1),
        ffn,
        embedding_width: hidden,
        ..of.clone()
    }
}

fn llama_of_size(sizes: &[Size], base: &str, name: &str) -> Result<Model, String> {
    let size = size_of(name).ok_or_else(|| format!("{name}: names no size"))?;
    let known = || sizes.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let (_, dimensions) =
        sizes.iter().find(|(known, _)| *known == size).ok_or_else(|| format!("{name}: known sizes are {}", known()))?;
    Ok(resize_model(&named_model(base)?, name, *dimensions))
}

/// A model of any Llama family, for papers about fine-tuning.
pub(super) fn language_model(name: &str) -> Result<Model, String> {
    let plain = name.split_whitespace().next().unwrap_or_default().to_lowercase();
    if let Some((_, built_in)) = BUILT_IN.iter().find(|(known, _)| *known == plain) {
        return named_model(built_in);
    }
    match plain.split_once('-') {
        Some(("llama" | "llama2", size)) if LLAMA.iter().any(|(known, _)| *known == size) => {
            llama_of_size(&LLAMA, "llama2-7b", name)
        }
        Some(("llama", size)) if SMALL_LLAMA.iter().any(|(known, _)| *known == size) => small_llama(name, false),
        _ if ["deit", "swin", "vit", "pvt"].iter().any(|family| plain.starts_with(family)) => {
            Err(format!("{name}: of vision models DeiT-Ti and DeiT-S are built in, for Mesa and other presets"))
        }
        _ if plain.starts_with("t5") => Err(format!("{name}: an encoder with a decoder is not built in")),
        _ => Err(format!("{name}: no built-in model")),
    }
}

/// The study of a vision model, if there is one: DeiT on images of 224 x 224 (Touvron et al. 2021).
pub(super) fn vision_study(name: &str, setting: &str) -> Result<Option<&'static str>, String> {
    let study = match name.to_lowercase().as_str() {
        "deit-ti" | "deit-tiny" => "mesa_tiny",
        "deit-s" | "deit-small" => "mesa_small",
        _ => return Ok(None),
    };
    let is_size = |word: &&str| word.split_once('x').is_some_and(|(a, b)| a == b && a.parse::<u32>().is_ok());
    match setting.split([' ', ',', ';']).find(is_size) {
        Some(other) if other != "224x224" => Err(format!("{name}: images of {other}; built in is that of 224x224")),
        _ => Ok(Some(study)),
    }
}

/// A model of GaLore and CompAct. The 7B model is LLaMA's.
pub(super) fn small_llama(name: &str, tied_head: bool) -> Result<Model, String> {
    let large = size_of(name).is_some_and(|size| LLAMA.iter().any(|(known, _)| *known == size));
    let model = if large {
        llama_of_size(&LLAMA, "llama2-7b", name)?
    } else {
        llama_of_size(&SMALL_LLAMA, "techniques/llama-350m.json", name)?
    };
    Ok(Model { tied_head, ..model })
}

/// A model of MEMO.
pub(super) fn memo_model(name: &str) -> Result<Model, String> {
    llama_of_size(&MEMO, "techniques/memo-gpt-7b.json", name)
}

/// A model of Korthikanti et al. GPT-3 and MT-NLG have 175B and 530B parameters.
pub(super) fn megatron_model(name: &str) -> Result<Model, String> {
    let name = match name {
        "GPT-3" => "175B",
        "MT-NLG" => "530B",
        name => name,
    };
    let model = llama_of_size(&MEGATRON, "techniques/megatron-22b.json", name)?;
    Ok(Model { max_sequence: 2048, ..model })
}

/// A transformer of SSDTrain, by family, width and layers. Heads are 128 wide, as in the paper's BERT.
pub(super) fn ssdtrain_model(family: &str, hidden: u64, layers: u64) -> Result<Model, String> {
    let family = family.trim().to_lowercase();
    let bert = named_model("techniques/ssdtrain-bert-8192.json")?;
    let heads = (hidden / 128).max(1);
    let name = format!("{family} {hidden}x{layers}");
    match family.as_str() {
        "bert" => Ok(resize_model(&bert, &name, [layers, hidden, heads, 4 * hidden])),
        "gpt" => {
            let gpt = named_model("techniques/megatron-22b.json")?;
            let learned = PositionEncoding::Learned { rows: 1024 };
            let gpt = Model { max_sequence: 1024, position: learned, ..gpt };
            Ok(resize_model(&gpt, &name, [layers, hidden, heads, 4 * hidden]))
        }
        // Llama's MLP is 8/3 times as wide, rounded up to a multiple of 256 (Touvron et al. 2023, section 2.2).
        "llama" => Ok(resize_model(
            &named_model("llama2-7b")?,
            &name,
            [layers, hidden, heads, (8 * hidden).div_ceil(3).next_multiple_of(256)],
        )),
        "t5" => Err("T5: an encoder with a decoder is not built in".to_owned()),
        other => Err(format!("{other}: known families are BERT, GPT and Llama")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_give_models_of_their_size() {
        let billions = |model: Model| (model.parameters() as f64 / 1e9 * 100.0).round() / 100.0;
        // Touvron et al. 2023, table 2: 6.7, 13.0, 32.5 and 65.2 billion.
        assert_eq!(
            ["7B", "13B", "30B", "65B"].map(|s| billions(language_model(&format!("LLaMA-{s}")).unwrap())),
            [6.74, 13.02, 32.53, 65.29]
        );
        assert_eq!(["60M", "350M"].map(|s| billions(small_llama(&format!("LLaMA-{s}"), false).unwrap())), [0.06, 0.37]);
        assert!((billions(megatron_model("1T").unwrap()) - 1008.0).abs() < 4.0);
        assert_eq!(memo_model("GPT-13B").unwrap().layers, 40);
        assert!(memo_model("7B/13B").is_ok() && memo_model("GPT-8B").unwrap_err().contains("7b, 13b, 30b, 65b"));
        assert_eq!(language_model("Llama3-8B LM-head").unwrap().name, "llama3-8b");
        assert!(language_model("DeiT-S").unwrap_err().contains("vision"));
        assert_eq!(size_of("GPT-7B").as_deref(), Some("7b"));
        assert_eq!(size_of("Llama3"), None);
    }
}
