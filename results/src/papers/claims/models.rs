//! The models in claims of papers, by their names and sizes.

use crate::papers::study::named_model;
use workloads::Model;
use workloads::model::PositionEncoding;

/// A size, with layers, width, heads, and width of the MLP.
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
/// Built-in models, by their names in papers.
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

/// Models in the directory of the reference, by their names in papers.
const BESIDE: [(&str, &str); 9] = [
    ("deit-ti", "techniques/deit-tiny.json"),
    ("deit-tiny", "techniques/deit-tiny.json"),
    ("deit-s", "techniques/deit-small.json"),
    ("deit-small", "techniques/deit-small.json"),
    ("deit-b", "techniques/deit-base.json"),
    ("roberta-base", "techniques/roberta-base.json"),
    ("roberta-large", "techniques/roberta-large.json"),
    ("t5-base", "techniques/t5-base.json"),
    ("t5-large", "techniques/t5-large.json"),
];

/// Returns the size in a name, in lower case: `7b` for `GPT-7B`. `None` if there is none.
pub(super) fn size_of(name: &str) -> Option<String> {
    let is_size = |w: &&str| {
        let digits = w.trim_end_matches(['b', 'm', 't']);
        digits.len() + 1 == w.len() && digits.parse::<f64>().is_ok()
    };
    let name = name.to_lowercase();
    name.split(|c: char| !c.is_ascii_alphanumeric() && c != '.').find(is_size).map(str::to_owned)
}

/// Returns the model with other dimensions.
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

fn model_of_size(sizes: &[Size], base: &str, name: &str) -> Result<Model, String> {
    let size = size_of(name).ok_or_else(|| format!("{name}: names no size"))?;
    let known = || sizes.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let (_, dimensions) =
        sizes.iter().find(|(known, _)| *known == size).ok_or_else(|| format!("{name}: known sizes are {}", known()))?;
    Ok(resize_model(&named_model(base)?, name, *dimensions))
}

/// Returns a model that papers about fine-tuning name.
fn language_model(name: &str) -> Result<Model, String> {
    let plain = name.to_lowercase().replace([' ', '_'], "-");
    if let Some((_, built_in)) = BUILT_IN.iter().find(|(known, _)| *known == plain) {
        return named_model(built_in);
    }
    if let Some((_, file)) = BESIDE.iter().find(|(known, _)| *known == plain) {
        return named_model(file);
    }
    match plain.split_once('-') {
        Some(("llama" | "llama2", size)) if LLAMA.iter().any(|(known, _)| *known == size) => {
            model_of_size(&LLAMA, "llama2-7b", name)
        }
        Some(("llama", size)) if SMALL_LLAMA.iter().any(|(known, _)| *known == size) => small_llama(name, false),
        _ => named_model(&plain).map_err(|_| {
            let known = BESIDE.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
            format!("{name}: no such model; known are LLaMA by size, {known} and those of `coplace list models`")
        }),
    }
}

/// Returns a model of GaLore or CompAct. Sizes of LLaMA, such as 7B, give LLaMA's model.
fn small_llama(name: &str, tied_head: bool) -> Result<Model, String> {
    let large = size_of(name).is_some_and(|size| LLAMA.iter().any(|(known, _)| *known == size));
    let model = if large {
        model_of_size(&LLAMA, "llama2-7b", name)?
    } else {
        model_of_size(&SMALL_LLAMA, "techniques/llama-350m.json", name)?
    };
    Ok(Model { tied_head, ..model })
}

/// Returns a model of Korthikanti et al. GPT-3 has 175B parameters and MT-NLG has 530B.
fn megatron_model(name: &str) -> Result<Model, String> {
    let name = match name {
        "GPT-3" => "175B",
        "MT-NLG" => "530B",
        name => name,
    };
    let model = model_of_size(&MEGATRON, "techniques/megatron-22b.json", name)?;
    Ok(Model { max_sequence: 2048, ..model })
}

/// Returns a transformer of SSDTrain, by family, width and layers. Heads are 128 wide, as in the paper's BERT.
fn ssdtrain_model(family: &str, hidden: u64, layers: u64) -> Result<Model, String> {
    let family = family.trim().to_lowercase();
    let heads = (hidden / 128).max(1);
    let name = format!("{family} {hidden}x{layers}");
    let model = match family.as_str() {
        "bert" => named_model("techniques/ssdtrain-bert-8192.json")?,
        "gpt" => {
            let learned = PositionEncoding::Learned { rows: 1024 };
            Model { max_sequence: 1024, position: learned, ..named_model("techniques/megatron-22b.json")? }
        }
        // Llama's MLP is 8/3 times as wide as the model, rounded up to a multiple of 256 (Touvron et al. 2023, section
        // 2.2).
        "llama" => {
            let ffn = (8 * hidden).div_ceil(3).next_multiple_of(256);
            return Ok(resize_model(&named_model("llama2-7b")?, &name, [layers, hidden, heads, ffn]));
        }
        other => return Err(format!("{other}: known families are BERT, GPT and Llama")),
    };
    Ok(resize_model(&model, &name, [layers, hidden, heads, 4 * hidden]))
}

/// The size of a model: its hidden width and its layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ModelShape {
    pub width: u64,
    pub layers: u64,
}

/// The models in SSDTrain's figure 6.
const SHAPES: [ModelShape; 3] = [
    ModelShape { width: 8192, layers: 4 },
    ModelShape { width: 12_288, layers: 3 },
    ModelShape { width: 16_384, layers: 2 },
];

/// Returns the models of a claim. There are several if it lists families or shapes.
pub(super) fn models_of_claim(family: Option<&str>, name: &str, shapes: &[ModelShape]) -> Result<Vec<Model>, String> {
    let one = |model: Result<Model, String>| model.map(|model| vec![model]);
    match family {
        Some("ssdtrain") => {
            let shapes = if shapes.is_empty() { &SHAPES[..] } else { shapes };
            let families: Vec<&str> = name.split('/').map(str::trim).collect();
            families
                .iter()
                .flat_map(|f| shapes.iter().map(|shape| ssdtrain_model(f, shape.width, shape.layers)))
                .collect()
        }
        Some("memo") => one(model_of_size(&MEMO, "techniques/memo-gpt-7b.json", name)),
        Some("megatron") => one(megatron_model(name)),
        Some("small") => one(small_llama(name, false)),
        Some("small-tied") => one(small_llama(name, true)),
        _ => one(language_model(name)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_give_models_of_their_size() {
        let billions = |model: &Model| (model.parameters() as f64 / 1e9 * 100.0).round() / 100.0;
        let named = |family, name: &str| models_of_claim(family, name, &[]).map(|models| billions(&models[0]));
        // Parameters by Touvron et al. 2023, table 2: 6.7, 13.0, 32.5 and 65.2 billion.
        assert_eq!(
            ["7B", "13B", "30B", "65B"].map(|size| named(None, &format!("LLaMA-{size}")).unwrap()),
            [6.74, 13.02, 32.53, 65.29]
        );
        assert_eq!(["60M", "350M"].map(|s| named(Some("small"), &format!("LLaMA-{s}")).unwrap()), [0.06, 0.37]);
        assert!((named(Some("megatron"), "1T").unwrap() - 1008.0).abs() < 4.0);
        assert!(named(Some("memo"), "GPT-8B").unwrap_err().contains("7b, 13b, 30b, 65b"));
        // Liu et al. 2019: 125M and 355M parameters.
        assert_eq!(["RoBERTa-base", "RoBERTa-large"].map(|n| named(None, n).unwrap()), [0.12, 0.36]);
        assert_eq!(named(None, "DeiT-B").unwrap(), 0.09);
        assert_eq!(models_of_claim(Some("ssdtrain"), "BERT/GPT", &[]).unwrap().len(), 6);
        assert!(named(None, "Banana-7B").unwrap_err().contains("coplace list models"));
        assert_eq!((size_of("GPT-7B").as_deref(), size_of("Llama3")), (Some("7b"), None));
    }
}
