//! Canonical spelling of the things that a question names. A built-in thing has several names, and a copy of its file
//! has a path. Two questions are equal if they name the same things.

use crate::study_files;
use serving::ServingEngine;
use sim::files::carried::Files;
use sim::hardware::{ChipTemplate, template_names};
use sim::network::Fabric;
use std::path::Path;
use step::SoftwareStack;
use workloads::model;

/// A kind of thing that a question names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SpelledPart {
    Model,
    Chip,
    Fabric,
    Stack,
    Engine,
    Study,
}

impl SpelledPart {
    /// Returns the canonical name of the built-in thing that `given` means, by any of its names or by a file with the
    /// same contents. Returns `None` for a user's own thing.
    fn own_name(self, given: &str, files: &Files) -> Option<String> {
        let read = |name: &str| files.read(Path::new(name)).ok();
        let is_file = Path::new(given).extension().is_some_and(|end| end == "toml");
        match self {
            Self::Model => {
                let text = |name: &str| model::config_text(name, files).map(|text| settle_json(&text).unwrap_or(text));
                same_as(text(given), model::built_in_names().map(str::to_owned), text)
            }
            Self::Chip if is_file => {
                let of = |template: &ChipTemplate| (template.accelerator.clone(), template.fitted_on.clone());
                let own = ChipTemplate::from_toml_str(&read(given)?, given).ok();
                let built_in = |name: &str| ChipTemplate::find_built_in(name).ok().map(of);
                same_as(own.as_ref().map(of), template_names().into_iter().map(str::to_owned), built_in)
            }
            Self::Chip => ChipTemplate::find_built_in(given).ok().map(|template| template.name.clone()),
            Self::Fabric => {
                let text = |name: &str| Fabric::built_in_text(name).map(str::to_owned).ok();
                let own = if is_file { read(given) } else { text(given) };
                same_as(own, Fabric::names().into_iter().map(str::to_owned), text)
            }
            Self::Stack => {
                let load = |name: &str| SoftwareStack::load_from(name, files).ok();
                same_as(load(given), SoftwareStack::built_in_names().into_iter(), load)
            }
            Self::Engine => {
                let load = |name: &str| ServingEngine::load_from(name, files).ok();
                same_as(load(given), ServingEngine::built_in_names().into_iter(), load)
            }
            Self::Study => {
                let text = |name: &str| study_files::find(name).map(|(_, text)| text.to_owned());
                same_as(text(given).or_else(|| read(given)), study_files::names().into_iter(), text)
            }
        }
    }

    /// Replaces a name by its canonical spelling: a built-in thing's own name. A user's own file keeps its path.
    pub(super) fn settle(self, name: &mut String, files: &Files) {
        if let Some(own) = self.own_name(name, files) {
            *name = own;
        }
    }
}

/// Writes numbers that are separated by colons in a canonical form: `6.40:1600` as `6.4:1600`. Any other text is
/// unchanged.
pub(super) fn settle_numbers(text: &mut String) {
    let numbers: Option<Vec<String>> =
        text.split(':').map(|part| Some(part.trim().parse::<f64>().ok()?.to_string())).collect();
    if let Some(numbers) = numbers {
        *text = numbers.join(":");
    }
}

/// Returns a JSON text with sorted keys and standard spacing; `None` if the text is not JSON.
pub(super) fn settle_json(text: &str) -> Option<String> {
    let mut value: serde_json::Value = serde_json::from_str(text).ok()?;
    value.sort_all_objects();
    serde_json::to_string_pretty(&value).ok()
}

/// Returns the first of `names` whose thing equals `given`; `None` if there is none.
fn same_as<T: PartialEq>(
    given: Option<T>,
    mut names: impl Iterator<Item = String>,
    read: impl Fn(&str) -> Option<T>,
) -> Option<String> {
    let given = given?;
    names.find(|name| read(name).as_ref() == Some(&given))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn settled(kind: SpelledPart, name: &str, files: &Files) -> String {
        let mut name = name.to_owned();
        kind.settle(&mut name, files);
        name
    }

    #[test]
    fn every_spelling_of_a_built_in_thing_is_its_own_name() {
        let none = Files::default();
        for (kind, name, own) in [
            (SpelledPart::Model, "moonshotai/Kimi-K2-Instruct", "kimi-k2"),
            (SpelledPart::Model, "Kimi_K2", "kimi-k2"),
            (SpelledPart::Chip, "h100", "h100_80gb_sxm"),
            (SpelledPart::Chip, "H100-80GB-SXM", "h100_80gb_sxm"),
            (SpelledPart::Fabric, "NVLink4-Node", "nvlink4_node"),
            (SpelledPart::Stack, "Megatron-Core", "megatron_core"),
            (SpelledPart::Engine, "TensorRT-LLM", "tensorrt_llm"),
            (SpelledPart::Study, "Train-And-Serve", "train_and_serve"),
            (SpelledPart::Chip, "mine.toml", "mine.toml"),
        ] {
            assert_eq!(settled(kind, name, &none), own);
        }
    }

    #[test]
    fn the_order_of_keys_in_json_changes_nothing() {
        let settled = settle_json("{\"b\": [2, 1], \"a\": {\"d\": 1, \"c\": 2}}").unwrap();
        assert_eq!(settle_json("{\"a\":{\"c\":2,\"d\":1},\n\"b\":[2,1]}").unwrap(), settled);
        assert_ne!(settle_json("{\"a\":{\"c\":2,\"d\":1},\"b\":[1,2]}").unwrap(), settled);
        assert_eq!(settle_json("name = 1"), None);
        let text = model::config_text("kimi-k2", &Files::default()).unwrap();
        let mut files = Files::default();
        files.insert(Path::new("k/config.json"), settle_json(&text).unwrap());
        assert_eq!(self::settled(SpelledPart::Model, "k/config.json", &files), "kimi-k2");
    }

    #[test]
    fn numbers_have_one_spelling() {
        for (given, settled) in [("6.40: 1600", "6.4:1600"), ("6.4:1.6e3", "6.4:1600"), ("fast", "fast")] {
            let mut text = given.to_owned();
            settle_numbers(&mut text);
            assert_eq!(text, settled);
        }
    }

    #[test]
    fn a_copy_of_a_built_in_file_is_the_built_in_thing_and_a_changed_one_is_not() {
        let model = model::config_text("kimi-k2", &Files::default()).unwrap();
        let fabric = Fabric::built_in_text("nvlink4_node").unwrap().to_owned();
        let study = study_files::find("serve").unwrap().1.to_owned();
        for (kind, path, text, own) in [
            (SpelledPart::Model, "k/config.json", model, "kimi-k2"),
            (SpelledPart::Fabric, "f.toml", fabric, "nvlink4_node"),
            (SpelledPart::Study, "s.toml", study, "serve"),
        ] {
            let mut files = Files::default();
            files.insert(Path::new(path), text.clone());
            assert_eq!(settled(kind, path, &files), own);
            files.insert(Path::new(path), text.replacen('1', "2", 1));
            assert_eq!(settled(kind, path, &files), path, "{own}");
        }
    }

    /// The files of chips, stacks and engines are compared as they are read: a comment changes nothing.
    #[test]
    fn a_comment_in_a_copy_changes_nothing() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for (kind, file, own) in [
            (SpelledPart::Chip, "sim/templates/chips/h100_80gb_sxm.toml", "h100_80gb_sxm"),
            (SpelledPart::Stack, "step/stacks/megatron_core.toml", "megatron_core"),
            (SpelledPart::Engine, "serving/engines/vllm.toml", "vllm"),
        ] {
            let text = std::fs::read_to_string(root.join(file)).unwrap();
            let mut files = Files::default();
            files.insert(Path::new("copy.toml"), format!("# Copied.\n{text}"));
            assert_eq!(settled(kind, "copy.toml", &files), own);
            let value = text.lines().rfind(|line| line.contains(" = 0.")).unwrap();
            files.insert(Path::new("copy.toml"), text.replacen(value, &format!("{value}1"), 1));
            assert_eq!(settled(kind, "copy.toml", &files), "copy.toml", "{value}");
        }
    }
}
