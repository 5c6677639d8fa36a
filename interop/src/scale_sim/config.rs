//! Reads `*.cfg`: an INI file, as Python's `configparser` reads it.

use sim::files::FileError;
use sim::hardware::{Dataflow, FileFault};
use std::collections::BTreeMap;

/// The array of a SCALE-Sim configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScaleSimConfig {
    /// `run_name`: the folder to which SCALE-Sim writes its reports.
    pub run_name: String,
    /// `ArrayHeight`.
    pub rows: u64,
    /// `ArrayWidth`.
    pub columns: u64,
    /// `Dataflow`.
    pub dataflow: Dataflow,
    /// Settings beyond stall-free counts, as `key = value`. SCALE-Sim's own report then differs from coplace's.
    pub beyond: Vec<String>,
    /// Keys that SCALE-Sim does not know, as `[section] key`; they are ignored, as in SCALE-Sim.
    pub unknown: Vec<String>,
}

/// Sections and keys as in `configparser`: sections as written, keys in lower case.
type IniSections = BTreeMap<(String, String), String>;

const ARRAY: &str = "architecture_presets";

/// The sections and keys of SCALE-Sim's configurations (versions 2 and 3), in lower case. Version 2 has the layout's
/// keys in the array's section.
const KNOWN: [(&str, &[&str]); 5] = [
    ("general", &["run_name"]),
    (
        ARRAY,
        &[
            "arrayheight",
            "arraywidth",
            "ifmapsramszkb",
            "filtersramszkb",
            "ofmapsramszkb",
            "ifmapoffset",
            "filteroffset",
            "ofmapoffset",
            "bandwidth",
            "dataflow",
            "memorybanks",
            "readrequestbuffer",
            "writerequestbuffer",
        ],
    ),
    (
        "layout",
        &[
            "ifmapcustomlayout",
            "ifmapsrambankbandwidth",
            "ifmapsrambanknum",
            "ifmapsrambankport",
            "filtercustomlayout",
            "filtersrambankbandwidth",
            "filtersrambanknum",
            "filtersrambankport",
        ],
    ),
    ("sparsity", &["sparsitysupport", "sparserep", "optimizedmapping", "blocksize", "randomnumbergeneratorseed"]),
    ("run_presets", &["interfacebandwidth", "useramulatortrace"]),
];

fn is_known_key(section: &str, key: &str) -> bool {
    let of = |wanted: &str| KNOWN.iter().any(|(name, keys)| *name == wanted && keys.contains(&key));
    of(section) || (section == ARRAY && of("layout"))
}

impl ScaleSimConfig {
    /// Reads a configuration; `file` names it in errors. Keys that do not affect the counts (offsets, banks, request
    /// buffers) are ignored; unknown ones are listed.
    ///
    /// # Errors
    /// Lines that are neither a section nor a key, missing keys, or impossible values; all of them are listed.
    pub fn from_cfg_str(text: &str, file: &str) -> Result<Self, FileError> {
        let mut faults = Vec::new();
        let ini = parse_ini(text, &mut faults);
        let mut reader = ScaleSimConfigReader { ini: &ini, faults: &mut faults };
        let run_name = reader.value_of_key("general", "run_name").unwrap_or("scale_run").to_owned();
        let (rows, columns) = (reader.read_size("ArrayHeight"), reader.read_size("ArrayWidth"));
        let dataflow = reader.read_dataflow();
        for buffer in ["IfmapSramSzkB", "FilterSramSzkB", "OfmapSramSzkB"] {
            if reader.value_of_key(ARRAY, buffer).is_some() {
                reader.read_size(buffer);
            }
        }
        reader.read_rates();
        let mut beyond = Vec::new();
        reader.refuse_stalls(&mut beyond);
        let unknown = ini
            .keys()
            .filter(|(section, key)| !is_known_key(section, key))
            .map(|(s, key)| format!("[{s}] {key}"))
            .collect();
        if faults.is_empty() {
            Ok(Self { run_name, rows, columns, dataflow, beyond, unknown })
        } else {
            Err(FileError { file: file.to_owned(), faults })
        }
    }
}

fn parse_ini(text: &str, faults: &mut Vec<FileFault>) -> IniSections {
    let mut ini = IniSections::new();
    let mut section = String::new();
    for (index, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name.trim().to_owned();
            continue;
        }
        let at = format!("line {}", index + 1);
        match line.split_once(['=', ':']) {
            Some((key, value)) if !section.is_empty() => {
                let key = (section.clone(), key.trim().to_lowercase());
                let name = key.1.clone();
                if ini.insert(key, value.trim().to_owned()).is_some() {
                    faults.push(FileFault::new(at, name, "is given twice in its section", "keep one of them"));
                }
            }
            Some(_) => faults.push(FileFault::new(at, line, "a key belongs to a section", "begin with [general]")),
            None => faults.push(FileFault::new(
                at,
                line,
                "must be `[section]`, `key = value` or `key: value`",
                "correct it",
            )),
        }
    }
    ini
}

struct ScaleSimConfigReader<'a> {
    ini: &'a IniSections,
    faults: &'a mut Vec<FileFault>,
}

impl<'a> ScaleSimConfigReader<'a> {
    fn value_of_key(&self, section: &str, key: &str) -> Option<&'a str> {
        self.ini.get(&(section.to_owned(), key.to_lowercase())).map(String::as_str)
    }

    /// Reads a size from the array's section as a whole number; adds a fault if it is missing or impossible.
    fn read_size(&mut self, key: &str) -> u64 {
        let path = format!("[{ARRAY}] {key}");
        let Some(text) = self.value_of_key(ARRAY, key) else {
            self.faults.push(FileFault::new(
                path,
                "nothing",
                "this figure is needed",
                format!("add `{key}: 32`, for instance"),
            ));
            return 1;
        };
        match text.parse::<u64>() {
            Ok(size) if (1..=u64::from(u32::MAX)).contains(&size) => size,
            _ => {
                self.faults.push(FileFault::new(
                    path,
                    text,
                    "must be a whole number from 1 to 4294967295",
                    "correct it",
                ));
                1
            }
        }
    }

    fn read_dataflow(&mut self) -> Dataflow {
        let path = format!("[{ARRAY}] Dataflow");
        match self.value_of_key(ARRAY, "Dataflow") {
            Some("os") => return Dataflow::OutputStationary,
            Some("ws") => return Dataflow::WeightStationary,
            Some("is") => return Dataflow::InputStationary,
            Some(other) => self.faults.push(FileFault::new(path, other, "must be os, ws or is", "correct it")),
            None => self.faults.push(FileFault::new(
                path,
                "nothing",
                "must be os, ws or is",
                "add `Dataflow: ws`, for instance",
            )),
        }
        Dataflow::default()
    }

    /// Checks the words per cycle: one rate for all memories, or one for each.
    fn read_rates(&mut self) {
        let Some(text) = self.value_of_key(ARRAY, "Bandwidth") else { return };
        let sound = |rate: &str| rate.trim().parse::<f64>().is_ok_and(|rate| rate.is_finite() && rate > 0.0);
        if !text.split(',').all(sound) {
            let limit = "must be words per cycle above 0, several with commas between";
            self.faults.push(FileFault::new(format!("[{ARRAY}] Bandwidth"), text, limit, "write 10, for instance"));
        }
    }

    /// Collects the settings under which SCALE-Sim's arrays stall or skip work.
    fn refuse_stalls(&mut self, beyond: &mut Vec<String>) {
        let path = "[run_presets] InterfaceBandwidth";
        match self.value_of_key("run_presets", "InterfaceBandwidth") {
            Some("CALC") => {}
            Some("USER") => beyond.push("InterfaceBandwidth = USER".to_owned()),
            Some(other) => self.faults.push(FileFault::new(path, other, "must be CALC or USER", "correct it")),
            None => self.faults.push(FileFault::new(
                path,
                "nothing",
                "must be CALC or USER",
                "add `InterfaceBandwidth: CALC`",
            )),
        }
        // Version 2 lacks these sections, or has the layout's keys in the array's section.
        let switches = [
            ("sparsity", "SparsitySupport"),
            ("run_presets", "UseRamulatorTrace"),
            ("layout", "IfmapCustomLayout"),
            ("layout", "FilterCustomLayout"),
            (ARRAY, "IfmapCustomLayout"),
            (ARRAY, "FilterCustomLayout"),
        ];
        for (section, key) in switches {
            match self.value_of_key(section, key) {
                Some(value) if value.eq_ignore_ascii_case("true") => beyond.push(format!("{key} = {value}")),
                Some(value) if !value.eq_ignore_ascii_case("false") => {
                    self.faults.push(FileFault::new(
                        format!("[{section}] {key}"),
                        value,
                        "must be True or False",
                        "correct it",
                    ));
                }
                _ => {}
            }
        }
    }
}
