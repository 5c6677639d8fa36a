//! Hindcasts: the best chip under the constraints of one that was built.
//!
//! Process, number of dies, area, power, HBM, links, cluster and model are those of the real chip. The space of its
//! family (`search/studies/hindcast/`) leaves open the choices that its designers had inside the die.

use crate::ask::{ClusterSpec, Question, WorkloadSpec};
use crate::space::{ChipLimits, Chips, Dimension, Values};
use crate::study::Study;
use serde::Deserialize;
use sim::hardware::{Accelerator, ChipDocument, FieldValue, chip_area};

/// Fields of the real chip that its hindcast keeps, beside those of [`KEPT_TABLE`].
const KEPT: [&str; 14] = [
    "area.node",
    "energy.node",
    "area.dies",
    "area.die_to_die_tb_per_s",
    "area.hbm_stacks",
    "area.hbm_generation",
    "area.link",
    "area.links",
    "area.pcie_generation",
    "area.pcie_lanes",
    "area.other_blocks_fraction",
    "area.core_memory.local_buffer.ports",
    "memory.hbm.capacity_gib",
    "memory.hbm.capacity_gb",
];
/// A table of the real chip that its hindcast keeps: the rates of the number formats.
const KEPT_TABLE: &str = "tensor.macs_per_unit_per_cycle";

/// A built chip, a model of its year, and a cluster.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HindcastCase {
    /// The built-in chip.
    pub chip: String,
    /// The study of its family, in `search/studies/hindcast/`.
    pub family: String,
    /// The year in which it was deployed.
    pub year: u32,
    /// A built-in model.
    pub model: String,
    /// Tokens per sequence.
    pub sequence_length: u64,
    /// Chips of the cluster.
    pub devices: u32,
    /// The built-in fabric that joins them.
    pub fabric: String,
    /// Sequences per step.
    pub global_batch: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CasesFile {
    case: Vec<HindcastCase>,
}

/// A hindcast as a question.
#[derive(Debug, Clone)]
pub struct Hindcast {
    /// The question: the family's space under the real chip's constraints.
    pub question: Question,
    /// The limits on area and power.
    pub limits: ChipLimits,
    /// The real chip in the form of the space's chips: ideal, with modelled energies, and within its power limit.
    pub real: Accelerator,
}

impl HindcastCase {
    /// All built-in cases.
    ///
    /// # Errors
    /// A malformed table of cases.
    pub fn all() -> Result<Vec<Self>, String> {
        let text = Study::hindcast_text("cases").ok_or("the table of hindcasts is missing")?;
        toml::from_str::<CasesFile>(text).map(|file| file.case).map_err(|why| format!("hindcast/cases.toml: {why}"))
    }

    /// Turns the case into a question. The area limit is the modelled area of the real chip, because areas in the space
    /// are modelled too. The power limit is the published one, or else the modelled power of the real chip.
    ///
    /// # Errors
    /// A chip, a family or a field that does not exist.
    pub fn pose(&self) -> Result<Hindcast, String> {
        let place = format!("hindcast/{}", self.family);
        let text = Study::hindcast_text(&self.family).ok_or_else(|| format!("{place}: no such study"))?;
        let mut study = Study::parse(&place, text).map_err(|why| why.to_string())?;
        let published = Accelerator::built_in(&self.chip).map_err(|why| why.to_string())?.published;
        let document = ChipDocument::of_built_in_chip(&self.chip).map_err(|why| why.to_string())?.strip_measured(true);
        let bare = document.build_accelerator().map_err(|why| why.to_string())?;
        let area = chip_area(&bare).map_err(|why| why.to_string())?.total_area();
        let modelled = sim::hardware::sustained_power(&bare).peak_power();
        let power = published.tdp.unwrap_or(modelled);
        let limits = ChipLimits { max_area_mm2: Some(area.0), max_power_w: Some(power.0), ..ChipLimits::default() };
        study.space.limits = limits;
        let Chips::Grid(spec) = &mut study.space.chips else { return Err(format!("{place}: has no base chip")) };
        let is_kept =
            |key: &str| KEPT.contains(&key) || key.rsplit_once('.').is_some_and(|(table, _)| KEPT_TABLE.eq(table));
        let mut kept: Vec<(String, FieldValue)> =
            document.list_fields().into_iter().filter(|(key, _)| is_kept(key)).collect();
        kept.push(("hbm_gb_per_s".to_owned(), FieldValue::Number(bare.hbm.read_bandwidth.0 / 1e9)));
        for (key, value) in kept {
            spec.dimensions.retain(|dimension| dimension.key != key);
            spec.dimensions.push(Dimension { key, values: Values::Listed(vec![value]) });
        }
        spec.dimensions.sort_by(|a, b| a.key.cmp(&b.key));
        study.space.reference_chip.clone_from(&self.chip);
        study.workloads =
            vec![WorkloadSpec { sequence_length: Some(self.sequence_length), ..WorkloadSpec::of(&self.model) }];
        study.cluster = ClusterSpec {
            devices: self.devices,
            fabric: self.fabric.clone(),
            global_batch_sequences: self.global_batch,
        };
        let mut question = study.question(&format!("hindcast of {}", self.chip));
        question.aim.front = Some(crate::objective::CostAxes::single(crate::objective::FrontAxis::None));
        Ok(Hindcast { question, limits, real: limits.ideal_form(&bare) })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    /// Every case keeps the HBM bandwidth of its built chip, with one process node for area and energy. Its power limit
    /// covers the static power, and its real chip is clocked no higher than the built one.
    #[test]
    fn every_case_keeps_what_its_chip_had() {
        let cases = HindcastCase::all().unwrap();
        assert_eq!(cases.len(), 8);
        for case in cases {
            let posed = case.pose().unwrap();
            let built = Accelerator::built_in(&case.chip).unwrap();
            assert!(posed.limits.max_power_w.unwrap() >= posed.real.energy.static_power.0, "{}", case.chip);
            let Some(space) = posed.question.space() else { panic!("{} has no space", case.chip) };
            let Chips::Grid(spec) = &space.chips else { panic!("{} has no base chip", case.chip) };
            let fixed = |key: &str| match &spec.dimensions.iter().find(|dimension| dimension.key == key).unwrap().values
            {
                Values::Listed(values) => values.clone(),
                other => panic!("{}: {key} is {other:?}", case.chip),
            };
            assert_eq!(fixed("area.node"), fixed("energy.node"), "{}", case.chip);
            assert_eq!(fixed("hbm_gb_per_s"), [FieldValue::Number(built.hbm.read_bandwidth.0 / 1e9)], "{}", case.chip);
            assert!(posed.real.clock <= built.clock, "{}", case.chip);
        }
    }
}
