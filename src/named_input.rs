//! A model, chip, fabric, stack or study as a value: its file's text with its facts, and changes of single keys.

use crate::failure::{CallFault, Failure, OrInput, OrOther, file_failure, input_failure, structured_failure};
use crate::input;
use crate::verb::list;
use crate::verb::search::chip_document;
use results::store::sums::short_digest;
use search::study::Study;
use serde_json::{Map, Value, json};
use sim::files::FaultParts;
use sim::files::carried::Files;
use sim::files::document;
use sim::hardware::{ChipDocument, ChipTemplate, FieldValue};
use sim::network::{Fabric, FabricDocument};
use std::path::Path;
use step::SoftwareStack;
use workloads::model::{self, Model};

/// The kinds of files that a question names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputKind {
    /// A model's Hugging Face `config.json`.
    Model,
    /// A chip's file.
    Chip,
    /// A fabric's file.
    Fabric,
    /// A software stack's file.
    Stack,
    /// A study's file.
    Study,
}

/// A built-in file, a file on the disk, or a changed one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedInput {
    kind: InputKind,
    /// The name or path that stands for the input on a command line.
    word: String,
    /// The text of an input that no file has; `None` for a built-in input or a file on the disk.
    own_text: Option<String>,
}

impl NamedInput {
    /// Loads a built-in input by name, or a file by path, as the options of the verbs do.
    ///
    /// # Errors
    /// An unknown name, or a file that cannot be read or used.
    pub fn load(kind: InputKind, name_or_path: &str) -> Result<Self, Box<CallFault>> {
        let input = Self { kind, word: name_or_path.to_owned(), own_text: None };
        input.check().map_err(|failure| Box::new(CallFault::of_failure(&failure)))?;
        Ok(input)
    }

    /// Makes an input from the text of a file. `name` is the stem of the file's name.
    ///
    /// # Errors
    /// A text that cannot be used.
    pub fn from_text(kind: InputKind, name: &str, text: String) -> Result<Self, Box<CallFault>> {
        let ending = if kind == InputKind::Model { "json" } else { "toml" };
        let input = Self { kind, word: format!("{name}.{ending}"), own_text: Some(text) };
        input.check().map_err(|failure| Box::new(CallFault::of_failure(&failure)))?;
        Ok(input)
    }

    /// Returns the kind of the input.
    #[must_use]
    pub fn kind(&self) -> InputKind {
        self.kind
    }

    /// Returns the name or path that stands for the input on a command line.
    #[must_use]
    pub fn word(&self) -> &str {
        &self.word
    }

    /// Returns the text that stands in for the file of [`Self::word`]; `None` if the word is a built-in name or a path.
    #[must_use]
    pub fn carried_text(&self) -> Option<&str> {
        self.own_text.as_deref()
    }

    /// Returns the input's name: its word without folders and ending.
    #[must_use]
    pub fn name(&self) -> String {
        let path = Path::new(&self.word);
        let named = if path.file_name().is_some_and(|file| file == "config.json") { path.parent() } else { Some(path) };
        let known = [".toml", ".json", ".yaml"].iter().any(|ending| self.word.ends_with(ending));
        let stem = named.and_then(|path| if known { path.file_stem() } else { path.file_name() });
        stem.map_or_else(|| self.word.clone(), |stem| stem.to_string_lossy().into_owned())
    }

    /// Returns the text of the input's file.
    ///
    /// # Errors
    /// A file that cannot be read, or of another tool's format.
    pub fn text(&self) -> Result<String, Box<CallFault>> {
        self.read_text().map_err(|failure| Box::new(CallFault::of_failure(&failure)))
    }

    /// Returns the input's facts, with the unit in each key: the columns of `coplace list`, and the keys of its file.
    ///
    /// # Errors
    /// As [`Self::text`].
    pub fn facts(&self) -> Result<Value, Box<CallFault>> {
        self.read_facts().map_err(|failure| Box::new(CallFault::of_failure(&failure)))
    }

    /// Returns a copy of the input with one key of its file changed. A chip's, fabric's or study's key may be the end
    /// of its full key, if no other key ends so: `hbm_stacks` or `area.hbm_stacks`. Keys that follow from the changed
    /// one in another way keep their values. A changed chip whose published figures no longer hold loses them. `chip`
    /// selects the figures that a fabric has for one chip.
    ///
    /// # Errors
    /// An unknown key, or a value that the file's reader refuses.
    pub fn with_value(&self, key: &str, value: &Value, chip: Option<&str>) -> Result<Self, Box<CallFault>> {
        let changed = self.changed_text(key, value, chip).and_then(|text| {
            let base = self.name();
            let base = base.split("-changed-").next().unwrap_or(&base);
            let name = format!("{base}-changed-{}", short_digest(&text));
            let ending = if self.kind == InputKind::Model { "json" } else { "toml" };
            let input = Self { kind: self.kind, word: format!("{name}.{ending}"), own_text: Some(text) };
            input.check().map(|()| input)
        });
        changed.map_err(|failure| {
            let fault = CallFault::of_failure(&failure);
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let message = match fault.message.contains(key) {
                true => fault.message,
                false => format!("{key} = {value}: {}", fault.message),
            };
            let (key, value) = (fault.key.or_else(|| Some(key.to_owned())), fault.value.or(Some(value)));
            Box::new(CallFault { message, key, value, ..fault })
        })
    }

    fn files(&self) -> Files {
        let mut files = Files::default();
        if let Some(text) = &self.own_text {
            files.insert(Path::new(&self.word), text.clone());
        }
        files
    }

    /// Checks that a verb can read the input.
    fn check(&self) -> Result<(), Failure> {
        let (word, files) = (self.word.as_str(), self.files());
        match self.kind {
            InputKind::Model => Model::load_assuming(word, &files, &[]).map(drop).or_input(),
            InputKind::Chip => input::read_chip(word, &files).map(drop),
            InputKind::Fabric => self.fabric(&files).map(drop),
            InputKind::Stack => SoftwareStack::load_from(word, &files).map(drop).or_input(),
            InputKind::Study => Study::load_from(word, &files).map(drop).or_input(),
        }
    }

    fn fabric(&self, files: &Files) -> Result<Fabric, Failure> {
        if self.word.ends_with(".toml") {
            let text = input::read_text_from(Path::new(&self.word), "a fabric file (.toml)", files)?;
            return Fabric::from_toml_str(&self.word, &text).or_input();
        }
        Fabric::built_in(&self.word).or_input()
    }

    fn read_text(&self) -> Result<String, Failure> {
        if let Some(text) = &self.own_text {
            return Ok(text.clone());
        }
        let word = self.word.as_str();
        let unknown = || file_failure(word, "has no file in this tool's format", "give a built-in name or one");
        match self.kind {
            InputKind::Model => model::config_text(word, &Files::default()).ok_or_else(unknown),
            InputKind::Chip => chip_document(word, &Files::default())?.to_text(&[], "").or_other(),
            InputKind::Fabric if !word.ends_with(".toml") => Fabric::built_in_text(word).map(str::to_owned).or_input(),
            InputKind::Stack => SoftwareStack::load(word).or_input()?.to_toml_string().or_other(),
            InputKind::Study if !word.ends_with(".toml") => Study::text(word).map(str::to_owned).ok_or_else(unknown),
            InputKind::Fabric | InputKind::Study => input::read_text(Path::new(word), "a file (.toml)"),
        }
    }

    fn read_facts(&self) -> Result<Value, Failure> {
        let (word, files) = (self.word.as_str(), self.files());
        let name = self.name();
        let listed = match self.kind {
            InputKind::Model => list::entry_of_model(&name, &Model::load_assuming(word, &files, &[]).or_input()?)?,
            InputKind::Chip => {
                let template: ChipTemplate = input::read_chip(word, &files)?;
                list::entry_of_chip(&name, &template.accelerator)
            }
            InputKind::Fabric => list::entry_of_fabric(&name, &self.fabric(&files)?),
            InputKind::Stack => json!({ "name": name }),
            InputKind::Study => list::entry_of_study(&name, &Study::load_from(word, &files).or_input()?),
        };
        let text = self.read_text()?;
        let of_file = match self.kind {
            InputKind::Model => serde_json::from_str(&text).or_input()?,
            _ => serde_json::to_value(table_of_text(word, &text)?).or_other()?,
        };
        let mut facts = match of_file {
            Value::Object(keys) => keys,
            _ => Map::new(),
        };
        if let Value::Object(listed) = listed {
            facts.extend(listed);
        }
        Ok(Value::Object(facts))
    }

    fn changed_text(&self, key: &str, value: &Value, chip: Option<&str>) -> Result<String, Failure> {
        let (word, files) = (self.word.as_str(), self.files());
        let refused = |why: &str| {
            structured_failure(format!("{key} = {value}: {why}"), FaultParts::of_key(key, value.to_string(), why, ""))
        };
        match self.kind {
            InputKind::Model => {
                let mut config: Map<String, Value> = serde_json::from_str(&self.read_text()?).or_input()?;
                if !config.contains_key(key) {
                    let keys: Vec<&str> = config.keys().map(String::as_str).collect();
                    let hint = sim::names::hint(key, &keys.join(", "), "it has");
                    return Err(refused(&format!("{} has no such key; {hint}", self.name())));
                }
                config.insert(key.to_owned(), value.clone());
                serde_json::to_string_pretty(&config).or_other()
            }
            InputKind::Stack => {
                let words = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                let stack = SoftwareStack::load_from(word, &files).or_input()?;
                stack.with_option(&format!("{key}={words}")).or_input()?.to_toml_string().or_other()
            }
            InputKind::Chip => {
                let document = chip_document(word, &files)?;
                let key = full_key(key, document.list_fields())?;
                changed_chip(document, &key, &field_value(value).map_err(|why| refused(&why))?)
            }
            InputKind::Fabric => {
                let joined = self.fabric(&files)?.joins.first().cloned();
                let chip = chip.map(str::to_owned).or(joined).unwrap_or_default();
                let mut document = FabricDocument::load_from(word, &chip, &files).or_input()?;
                let key = full_key(key, document.list_fields())?;
                document.set_field(&key, &field_value(value).map_err(|why| refused(&why))?).map_err(input_failure)?;
                document.set_source("changed by the user");
                document.to_text().or_other()
            }
            InputKind::Study => {
                let table = table_of_text(word, &self.read_text()?)?;
                match value.is_array() || value.is_object() {
                    true => changed_whole_key(table, key, value),
                    false => changed_study(table, key, &field_value(value).map_err(|why| refused(&why))?, word),
                }
            }
        }
    }
}

/// Returns a chip's file with one field changed.
fn changed_chip(as_published: ChipDocument, key: &str, value: &FieldValue) -> Result<String, Failure> {
    let changed = |mut document: ChipDocument| {
        document.set_field(key, value).map_err(input_failure)?;
        Ok::<_, Failure>(document)
    };
    let mut document = changed(as_published.clone())?;
    // With another clock or number of cores, a chip does not reach the peaks that were published for it.
    if document.build_accelerator().is_err() {
        let unbuilt = changed(as_published.strip_measured(false))?;
        document = if unbuilt.build_accelerator().is_ok() { unbuilt } else { document };
    }
    document.to_text(&[key.to_owned()], "changed by the user").or_other()
}

/// Returns a study's file with one field changed.
fn changed_study(mut table: toml::Table, key: &str, value: &FieldValue, file: &str) -> Result<String, Failure> {
    let key = full_key(key, document::list_fields(&table))?;
    document::set_field(&mut table, &key, value, file).map_err(input_failure)?;
    toml::to_string(&table).or_other()
}

/// Returns a study's file with a list or a table replaced.
fn changed_whole_key(mut table: toml::Table, key: &str, value: &Value) -> Result<String, Failure> {
    let value = toml::Value::try_from(value).or_other()?;
    if !replace_entry(&mut table, key, &value) {
        return Err(file_failure(key, "is no key of the file", "give the whole key of a list or a table"));
    }
    toml::to_string(&table).or_other()
}

fn table_of_text(file: &str, text: &str) -> Result<toml::Table, Failure> {
    toml::from_str(text).map_err(|why| file_failure(file, why, ""))
}

/// Replaces the value of a full key, whose parts may contain dots themselves. Returns false if there is no such key.
fn replace_entry(table: &mut toml::Table, key: &str, value: &toml::Value) -> bool {
    if let Some(entry) = table.get_mut(key) {
        *entry = value.clone();
        return true;
    }
    table.iter_mut().any(|(name, inner)| {
        let rest = key.strip_prefix(name.as_str()).and_then(|rest| rest.strip_prefix('.'));
        rest.zip(inner.as_table_mut()).is_some_and(|(rest, inner)| replace_entry(inner, rest, value))
    })
}

fn field_value(value: &Value) -> Result<FieldValue, String> {
    match value {
        Value::Number(number) => number.as_f64().map(FieldValue::Number).ok_or_else(|| "is too large".to_owned()),
        Value::String(word) => Ok(FieldValue::Word(word.clone())),
        Value::Bool(flag) => Ok(FieldValue::Flag(*flag)),
        _ => Err("must be a number, a word or a truth value; change one key at a time".to_owned()),
    }
}

/// Returns the full key that `key` names among fields: `key` itself, or the only field whose key ends with it. `_` may
/// stand for a dot. A `key` with a dot is returned unchanged.
fn full_key(key: &str, fields: Vec<(String, FieldValue)>) -> Result<String, Failure> {
    let keys: Vec<String> = fields.into_iter().map(|(key, _)| key).collect();
    if keys.iter().any(|known| known == key) || key.contains('.') {
        return Ok(key.to_owned());
    }
    let ending = format!("_{key}");
    let found: Vec<&String> = keys
        .iter()
        .filter(|known| known.replace('.', "_") == key || known.replace('.', "_").ends_with(&ending))
        .collect();
    match found[..] {
        [one] => Ok(one.clone()),
        [] => Err(file_failure(key, "is no key of the file", sim::names::hint(key, &keys.join(", "), "it has"))),
        _ => {
            let all: Vec<&str> = found.iter().map(|key| key.as_str()).collect();
            Err(file_failure(key, format!("may be {}", all.join(" or ")), "give one of them"))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_key_of_every_kind_can_be_changed_and_is_read_back() {
        let chip = NamedInput::load(InputKind::Chip, "h100").unwrap();
        assert_eq!((chip.name().as_str(), chip.carried_text()), ("h100", None));
        let faster = chip.with_value("ports", &json!(2), None).unwrap_err();
        assert!(faster.message.contains("may be"), "{}", faster.message);
        let faster = chip.with_value("memory.hbm.read_gb_per_s", &json!(4800), None).unwrap();
        assert_eq!(faster.facts().unwrap()["hbm_gb_per_s"], json!(4800.0));
        assert!(faster.word().starts_with("h100-changed-"), "{}", faster.word());
        // The published peaks do not hold at this clock, so the changed chip loses them.
        let slower = chip.with_value("clock_mhz", &json!(1281.0), None).unwrap();
        assert_eq!(slower.facts().unwrap()["clock_mhz"], json!(1281.0));
        let again = NamedInput::from_text(InputKind::Chip, "mine", faster.text().unwrap()).unwrap();
        assert_eq!((again.word(), &again.facts().unwrap()["hbm_gb_per_s"]), ("mine.toml", &json!(4800.0)));
        let model = NamedInput::load(InputKind::Model, "llama2-7b").unwrap();
        let deeper = model.with_value("num_hidden_layers", &json!(40), None).unwrap();
        assert_eq!(deeper.facts().unwrap()["layers"], json!(40));
        let fabric = NamedInput::load(InputKind::Fabric, "nvlink4_node").unwrap();
        let key = fabric.facts().unwrap();
        assert_eq!(key["name"], json!("nvlink4_node"));
        let stack = NamedInput::load(InputKind::Stack, "megatron").unwrap();
        let hidden = stack.with_value("overlap.tensor", &json!(0.5), None).unwrap();
        assert_eq!(hidden.facts().unwrap()["overlap"]["tensor"], json!(0.5));
        let study = NamedInput::load(InputKind::Study, "smoke").unwrap();
        let wide = study.with_value("cluster.devices", &json!(128), None).unwrap();
        let one = study.with_value("space.tensor_cores", &json!([16]), None).unwrap();
        assert!(one.text().unwrap().contains("tensor_cores = [16]"), "{}", one.text().unwrap());
        let tpu = NamedInput::load(InputKind::Study, "tpu").unwrap();
        let one = tpu.with_value("space.dimensions.tensor.cores", &json!([2]), None).unwrap();
        assert!(one.text().unwrap().contains("\"tensor.cores\" = [2]"), "{}", one.text().unwrap());
        let none = tpu.with_value("space.dimensions.tensor.core", &json!([2]), None).unwrap_err();
        assert!(none.message.contains("is no key of the file"), "{}", none.message);
        assert_eq!(wide.facts().unwrap()["devices"], json!(128));
    }

    #[test]
    fn a_wrong_key_or_value_is_named_with_its_cure() {
        let chip = NamedInput::load(InputKind::Chip, "h100").unwrap();
        let wrong = chip.with_value("hbm_stcks", &json!(8), None).unwrap_err();
        assert_eq!((wrong.key.as_deref(), wrong.value.as_deref()), (Some("hbm_stcks"), Some("8")));
        let wrong = chip.with_value("area.hbm_stacks", &json!("many"), None).unwrap_err();
        assert!(wrong.message.contains("hbm_stacks"), "{}", wrong.message);
        let model = NamedInput::load(InputKind::Model, "llama2-7b").unwrap();
        let wrong = model.with_value("num_hiden_layers", &json!(8), None).unwrap_err();
        assert!(wrong.message.contains("did you mean `num_hidden_layers`"), "{}", wrong.message);
        assert!(NamedInput::load(InputKind::Study, "nowhere").unwrap_err().message.contains("nowhere"));
    }
}
