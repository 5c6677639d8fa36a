//! The sliders of a page: factors on fields of the chip's and the fabric's file, the size of the cluster and of its
//! work, and decisions of a plan from the table of decisions.

use search::ask::{DECISIONS, Decision, DecisionValues, PlanSpace};
use serde::Serialize;
use sim::hardware::FieldValue;
use step::TrainingPlan;

/// The factors of a field, around the value that the file has.
const FACTORS: [f64; 9] = [0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0];

/// The decisions of a plan that have a slider, by their options.
const DECIDED: [&str; 6] = ["tensor", "pipeline", "context", "zero", "micro-batch", "recompute"];

/// The largest degree that a slider has.
const LARGEST: u32 = 4096;

/// The part of a job that a slider changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlGroup {
    /// A field of the chip's file.
    Chip,
    /// A field of the fabric's file.
    Fabric,
    /// The cluster's size or its work.
    Cluster,
    /// A decision of the plan.
    Plan,
}

/// A slider: its values in order.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Control {
    pub group: ControlGroup,
    /// The key of a field, or the option of a decision.
    pub key: String,
    /// Its name on the page.
    pub label: String,
    /// The values in words.
    pub values: Vec<String>,
    /// The place of the value at the start.
    pub at: usize,
    /// Fields that change by the same factor.
    #[serde(skip)]
    pub also: Vec<String>,
}

impl Control {
    /// Returns the value of a field at a place of its slider; `None` beyond the last place. If the file's value `base`
    /// is a whole number below 1000, the result is a whole number of at least 1.
    pub fn number_at(base: f64, place: usize) -> Option<f64> {
        let value = base * FACTORS.get(place)?;
        let is_whole = base.fract() == 0.0 && base < 1000.0;
        Some(if is_whole { value.round().max(1.0) } else { value })
    }
}

/// Makes the slider of a field.
fn field_control(group: ControlGroup, key: &str, label: &str, base: f64, also: &[String]) -> Control {
    let shown = |place| Control::number_at(base, place).map(significant);
    Control {
        group,
        key: key.to_owned(),
        label: label.to_owned(),
        values: (0..FACTORS.len()).filter_map(shown).collect(),
        at: FACTORS.len() / 2,
        also: also.to_vec(),
    }
}

/// Formats a number with no decimals from 1000 on, at most one from 10 on, and at most three below.
fn significant(value: f64) -> String {
    let places = if value >= 1000.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        3
    };
    let text = format!("{value:.places$}");
    if places == 0 { text } else { text.trim_end_matches('0').trim_end_matches('.').to_owned() }
}

/// Returns the sliders of a chip: clock, cores, and the capacity and bandwidth of its device memory.
pub fn chip_controls(fields: &[(String, FieldValue)]) -> Vec<Control> {
    let number = |key: &str| fields.iter().find(|(known, _)| known == key).and_then(|(_, value)| value.number());
    // The levels stand from the cores outwards; device memory is the last one.
    let device = fields.iter().filter_map(|(key, _)| key.strip_prefix("memory.")?.split_once('.')).next_back();
    let level = device.map(|(level, _)| level.to_owned()).unwrap_or_default();
    let of_level = |field: &str| format!("memory.{level}.{field}");
    let cores = ["vector.cores".to_owned()];
    let same_cores = number("vector.cores") == number("tensor.cores");
    let listed = [
        ("clock_mhz".to_owned(), "clock, MHz", Vec::new()),
        ("tensor.cores".to_owned(), "cores", if same_cores { cores.to_vec() } else { Vec::new() }),
        (of_level("read_gb_per_s"), "memory bandwidth, GB/s", vec![of_level("write_gb_per_s")]),
        (of_level("capacity_gib"), "memory, GiB", Vec::new()),
    ];
    let control = |(key, label, also): &(String, &str, Vec<String>)| {
        Some(field_control(ControlGroup::Chip, key, label, number(key)?, also))
    };
    listed.iter().filter_map(control).collect()
}

/// Returns the sliders of a fabric: the bandwidth of every tier.
pub fn fabric_controls(fields: &[(String, FieldValue)]) -> Vec<Control> {
    let control = |(key, value): &(String, FieldValue)| {
        let tier = key.strip_prefix("tier.")?.strip_suffix(".bandwidth_gb_per_s")?;
        Some(field_control(ControlGroup::Fabric, key, &format!("{tier}, GB/s"), value.number()?, &[]))
    };
    fields.iter().filter_map(control).collect()
}

/// Returns the sliders of a cluster of `devices` with `batch` sequences per step.
pub fn cluster_controls(devices: u32, batch: u64) -> Vec<Control> {
    let control = |key: &str, label: &str, base: u64| {
        let mut values: Vec<u64> = [1, 2, 4, 8].iter().rev().map(|by| base / by).collect();
        values.extend([2, 4, 8].map(|by| base.saturating_mul(by)));
        values.retain(|value| *value > 0);
        values.dedup();
        let at = values.iter().position(|value| *value == base).unwrap_or_default();
        let values = values.iter().map(u64::to_string).collect();
        let group = ControlGroup::Cluster;
        Control { group, key: key.to_owned(), label: label.to_owned(), values, at, also: Vec::new() }
    };
    vec![control("devices", "devices", devices.into()), control("global_batch", "sequences per step", batch)]
}

/// Returns the sliders of a plan, each set to the plan's value.
pub fn plan_controls(plan: &TrainingPlan, devices: u32) -> Vec<Control> {
    let of_flag = |flag: &&str| DECISIONS.iter().find(|decision| decision.flag == *flag);
    DECIDED.iter().filter_map(of_flag).filter_map(|decision| plan_control(decision, plan, devices)).collect()
}

/// Returns the words of a decision in a plan, as the command takes them; `None` if the plan has no single value for the
/// decision.
pub fn words_of_decision(decision: &Decision, plan: &TrainingPlan) -> Option<Vec<String>> {
    let mut space = PlanSpace::default();
    (decision.access.fix)(&mut space, plan);
    (decision.access.get)(&space)
}

fn plan_control(decision: &'static Decision, plan: &TrainingPlan, devices: u32) -> Option<Control> {
    let own = words_of_decision(decision, plan)?.join(",");
    let mut values: Vec<String> = match decision.values {
        DecisionValues::Numbers(least, most) if most < 8 => (least..=most).map(|value| value.to_string()).collect(),
        DecisionValues::Numbers(least, most) => {
            let most = most.min(LARGEST).min(devices.saturating_mul(8).max(8));
            let powers = std::iter::successors(Some(least.max(1)), |value| value.checked_mul(2));
            powers.take_while(|value| *value <= most).map(|value| value.to_string()).collect()
        }
        DecisionValues::Words(words) => words().iter().map(|(name, _)| (*name).to_owned()).collect(),
        DecisionValues::Switch => ["false", "true"].map(str::to_owned).to_vec(),
        // The policies that need no names of tensors.
        DecisionValues::Texts(_) => ["none", "selective", "full"].map(str::to_owned).to_vec(),
    };
    if !values.contains(&own) {
        let number = own.parse::<u64>().ok();
        let before = |value: &String| number.zip(value.parse::<u64>().ok()).is_some_and(|(own, value)| value < own);
        values.insert(values.iter().filter(|value| before(value)).count(), own.clone());
    }
    let at = values.iter().position(|value| *value == own)?;
    let (key, label) = (decision.flag.to_owned(), decision.name.to_owned());
    Some(Control { group: ControlGroup::Plan, key, label, values, at, also: Vec::new() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use sim::files::carried::Files;

    #[test]
    fn sliders_of_every_built_in_chip_begin_at_its_own_figures() {
        for chip in ["h100_80gb_sxm", "tpu_v4", "gaudi2", "mi300x"] {
            let Ok(document) = crate::verb::search::chip_document(chip, &Files::default()) else { continue };
            let controls = chip_controls(&document.list_fields());
            assert!(controls.len() >= 3, "{chip}: {controls:?}");
            for control in &controls {
                let own = document.field_value(&control.key).and_then(|value| value.number()).unwrap();
                let shown: f64 = control.values[control.at].parse().unwrap();
                assert!((shown / own - 1.0).abs() < 1e-3, "{chip} {}: {shown} {own}", control.key);
            }
            assert!(controls.iter().any(|control| control.key.ends_with("read_gb_per_s")), "{chip}");
        }
        assert_eq!(Control::number_at(132.0, 0), Some(33.0));
        let cluster = cluster_controls(8, 64);
        assert_eq!(cluster[0].values, ["1", "2", "4", "8", "16", "32", "64"]);
        assert_eq!(cluster[0].at, 3);
    }
}
