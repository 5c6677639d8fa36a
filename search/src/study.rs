//! Studies: what is searched, on which cluster, under which rules. One TOML file each; the built-in ones lie in
//! `search/studies/` and adding one is adding a file there.

use include_dir::{Dir, include_dir};
use serde::{Deserialize, Serialize};
use thiserror::Error;

static STUDIES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/studies");

/// What is wrong with a study.
#[derive(Debug, Error)]
pub enum StudyError {
    /// The name is neither built in nor a file.
    #[error("unknown study `{name}`: built in are {known}; or give the path of a study file (.toml)")]
    Unknown {
        /// The name given.
        name: String,
        /// The built-in names.
        known: String,
    },
    /// The file cannot be read.
    #[error("{file}: {why}; give the path of a readable study file")]
    Unreadable {
        /// The file.
        file: String,
        /// What the system said.
        why: String,
    },
    /// The file is not the TOML that a study needs.
    #[error("{file}: {why}\nA study has the tables and keys of search/studies/phaze.toml, all of them and no other")]
    Malformed {
        /// The file.
        file: String,
        /// What the parser said, with line and key.
        why: String,
    },
    /// A value is outside what makes sense.
    #[error("{file}: {key} = {value}: {limit}; {cure}")]
    Value {
        /// The file.
        file: String,
        /// The key, with its table.
        key: &'static str,
        /// The offending value.
        value: String,
        /// The rule broken.
        limit: &'static str,
        /// What to do.
        cure: &'static str,
    },
}

/// The grid of chips.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpaceSpec {
    /// Tensor cores per chip.
    pub tensor_cores: Vec<u32>,
    /// Vector cores per chip.
    pub vector_cores: Vec<u32>,
    /// Rows of each tensor core's array; also the lanes of each vector core (PHAZE's width).
    pub array_widths: Vec<u32>,
    /// Columns of each tensor core's array (PHAZE's depth).
    pub array_depths: Vec<u32>,
    /// Global buffer capacity in MiB.
    pub global_buffer_mib: Vec<u64>,
    /// HBM capacity in GiB.
    pub hbm_gib: Vec<f64>,
    /// The chip whose area is the upper limit.
    pub reference_chip: String,
    /// Lower area limit as a fraction of the reference chip's; chips with one tensor or one vector core are exempt.
    pub min_area_fraction: f64,
}

/// The machine the models run on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterSpec {
    /// Accelerators.
    pub devices: u32,
    /// The fabric that connects them, by name.
    pub fabric: String,
    /// Sequences per optimizer step, over the whole cluster.
    pub global_batch_sequences: u32,
}

/// How attention is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttentionChoice {
    /// Tiled, the scores never reach memory.
    Fused,
    /// Operator by operator.
    Unfused,
}

/// The optimizer, in mixed precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OptimizerChoice {
    /// Plain stochastic gradient descent.
    Sgd,
    /// With momentum.
    Momentum,
    /// Adam.
    Adam,
}

/// The plans that each chip is tried with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanSpec {
    /// Tensor-parallel widths; a width that the model's heads or its MLP do not divide by is left out.
    pub tensor_parallel: Vec<u32>,
    /// Sequences per micro-batch and data-parallel rank.
    pub micro_batch_sequences: Vec<u32>,
    /// Megatron sequence parallelism beside tensor parallelism.
    pub sequence_parallel: bool,
    /// How attention is executed.
    pub attention: AttentionChoice,
    /// The optimizer.
    pub optimizer: OptimizerChoice,
}

/// Where the search stops and reports its gap.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitSpec {
    /// Designs evaluated exactly.
    pub evaluations: usize,
}

/// A study.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Study {
    /// One line for `list studies`.
    pub description: String,
    /// Where its figures come from.
    pub source: String,
    /// The chips.
    pub space: SpaceSpec,
    /// The cluster.
    pub cluster: ClusterSpec,
    /// The plans.
    pub plan: PlanSpec,
    /// When to stop.
    pub limits: LimitSpec,
}

impl Study {
    /// The built-in studies' names, sorted.
    #[must_use]
    pub fn names() -> Vec<String> {
        let stem = |f: &include_dir::File<'_>| f.path().file_stem().map(|s| s.to_string_lossy().into_owned());
        let mut names: Vec<String> = STUDIES.files().filter_map(stem).collect();
        names.sort();
        names
    }

    /// A built-in study by name, or a study file by path (anything that ends in `.toml`).
    ///
    /// # Errors
    /// An unknown name, an unreadable or malformed file, a value outside its limits.
    pub fn load(name_or_path: &str) -> Result<Self, StudyError> {
        if let Some(file) = STUDIES.get_file(format!("{name_or_path}.toml")) {
            return Self::parse(name_or_path, file.contents_utf8().unwrap_or_default());
        }
        if !name_or_path.ends_with(".toml") {
            return Err(StudyError::Unknown { name: name_or_path.into(), known: Self::names().join(", ") });
        }
        let text = sim::files::text::read(name_or_path.as_ref())
            .map_err(|e| StudyError::Unreadable { file: name_or_path.into(), why: e.to_string() })?;
        Self::parse(name_or_path, &text)
    }

    /// Reads and checks a study's TOML; `file` names it in errors.
    ///
    /// # Errors
    /// Malformed TOML, a missing or unknown key, a value outside its limits.
    pub fn parse(file: &str, text: &str) -> Result<Self, StudyError> {
        let study: Self = toml::from_str(text)
            .map_err(|e| StudyError::Malformed { file: file.into(), why: e.to_string().trim_end().into() })?;
        study.check(file)?;
        Ok(study)
    }

    fn check(&self, file: &str) -> Result<(), StudyError> {
        let fail = |key, value: String, limit, cure| Err(StudyError::Value { file: file.into(), key, value, limit, cure });
        let s = &self.space;
        for (key, values, most) in [
            ("space.tensor_cores", &s.tensor_cores, 65_536),
            ("space.vector_cores", &s.vector_cores, 65_536),
            ("space.array_widths", &s.array_widths, 1024),
            ("space.array_depths", &s.array_depths, 1024),
            ("plan.tensor_parallel", &self.plan.tensor_parallel, 65_536),
            ("plan.micro_batch_sequences", &self.plan.micro_batch_sequences, 65_536),
        ] {
            if values.is_empty() {
                return fail(key, "[]".into(), "at least one value is needed", "list the values to try");
            }
            if let Some(v) = values.iter().find(|&&v| v == 0 || v > most) {
                let limit = if most == 1024 { "must be from 1 to 1024" } else { "must be from 1 to 65536" };
                return fail(key, v.to_string(), limit, "remove it");
            }
        }
        if s.global_buffer_mib.is_empty() || s.global_buffer_mib.iter().any(|&v| v == 0 || v > 1 << 20) {
            let value = format!("{:?}", s.global_buffer_mib);
            return fail("space.global_buffer_mib", value, "needs values from 1 to 1048576", "list capacities in MiB");
        }
        if s.hbm_gib.is_empty() || s.hbm_gib.iter().any(|v| !(*v > 0.0 && *v <= 1e6)) {
            return fail(
                "space.hbm_gib",
                format!("{:?}", s.hbm_gib),
                "needs values above 0 and at most 1e6",
                "list capacities in GiB",
            );
        }
        if !(0.0..=1.0).contains(&s.min_area_fraction) {
            let value = s.min_area_fraction.to_string();
            return fail("space.min_area_fraction", value, "must be from 0 to 1", "0 removes the lower limit");
        }
        let c = &self.cluster;
        if c.devices == 0 || c.devices > 1 << 20 {
            return fail(
                "cluster.devices",
                c.devices.to_string(),
                "must be from 1 to 1048576",
                "give the accelerators of the cluster",
            );
        }
        if c.global_batch_sequences == 0 || c.global_batch_sequences > 1 << 24 {
            let value = c.global_batch_sequences.to_string();
            return fail("cluster.global_batch_sequences", value, "must be from 1 to 16777216", "give the sequences of a step");
        }
        if self.limits.evaluations == 0 {
            return fail("limits.evaluations", "0".into(), "must be at least 1", "allow at least one evaluation");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_built_in_study_loads() {
        assert!(Study::names().contains(&"phaze".to_owned()));
        for name in Study::names() {
            Study::load(&name).unwrap();
        }
    }

    #[test]
    fn errors_name_the_key_the_value_and_the_cure() {
        let text = STUDIES.get_file("phaze.toml").unwrap().contents_utf8().unwrap();
        let zero = text.replace("devices = 1024", "devices = 0");
        assert_eq!(
            Study::parse("s.toml", &zero).unwrap_err().to_string(),
            "s.toml: cluster.devices = 0: must be from 1 to 1048576; give the accelerators of the cluster"
        );
        let nan = text.replace("min_area_fraction = 0.3", "min_area_fraction = nan");
        assert!(Study::parse("s.toml", &nan).unwrap_err().to_string().contains("min_area_fraction = NaN"));
        let typo = text.replace("devices =", "device =");
        assert!(Study::parse("s.toml", &typo).unwrap_err().to_string().contains("unknown field `device`"));
        assert!(Study::load("phase").unwrap_err().to_string().starts_with("unknown study `phase`: built in are phaze"));
    }
}
