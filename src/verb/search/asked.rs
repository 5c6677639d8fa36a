//! Overrides of a study: limits, dimensions, the cluster, the objective.

use super::StudyOverrides;
use crate::failure::{self, Failure};
use search::ask::{AimSpec, Question};
use search::design::Aim;
use search::objective::{CostAxes, FrontAxis, MeasureMean, Objective, OperatingCost, PaidHardware};
use search::space::{ChipLimit, Chips, Dimension, EfficiencyChoice, Values};
use search::study::Study;
use sim::hardware::FieldValue;
use sim::units::Seconds;

/// Returns the name of a node in chip files: `n7` for n7, N7, 7nm and 7. Another text is left as it is.
fn name_of_node(text: &str) -> String {
    let text = text.to_lowercase();
    let number = text.trim_start_matches('n').trim_end_matches("nm").trim();
    match number.parse::<u32>() {
        Ok(number) => format!("n{number}"),
        Err(_) => text,
    }
}

impl StudyOverrides {
    /// True if there are no overrides.
    pub fn is_empty(&self) -> bool {
        // The time limit does not change the question.
        Self { time_limit: None, ..self.clone() } == Self::default()
    }

    /// Returns the first given flag that has no meaning for a sweep, with the cure. A sweep evaluates all designs of
    /// one model.
    pub fn flag_of_search_alone(&self) -> Option<(String, &'static str)> {
        let every = "a sweep evaluates every design; leave it out, or use search";
        let flags = [
            (
                self.time_limit.map(|seconds| format!("--time-limit {seconds}")),
                "stop a sweep with Ctrl-C and go on with --resume",
            ),
            (self.within.map(|within| format!("--within {within}")), every),
            (
                self.robust.then(|| "--robust".to_owned()),
                "a sweep has every design with its predicted step; leave it out, or use search",
            ),
            (self.over.map(|over| format!("--over {}", over.0)), "a sweep is of one model; leave it out"),
            (
                self.front.map(|axes| format!("--front {}", axes.0)),
                "a sweep has every design, and coplace pareto draws any front: coplace pareto DIR --x area, for \
                instance",
            ),
        ];
        flags.into_iter().find_map(|(flag, why)| Some((flag?, why)))
    }

    /// Replaces those values of the study's aim that flags give.
    pub(super) fn apply_to_aim(&self, aim: &mut AimSpec) {
        aim.objective = self.objective.map_or(aim.objective, |name| name.0);
        aim.over = self.over.map_or(aim.over, |name| name.0);
        aim.front = self.front.map(|name| name.0).or(aim.front);
        aim.max_step_s = self.max_step.or(aim.max_step_s);
        aim.robust |= self.robust;
    }

    /// Applies the overrides to the study.
    pub(super) fn apply_to_study(&self, name: &str, study: &mut Study) -> Result<(), Failure> {
        self.set_chip_limits(name, study)?;
        if let Some(NamedChoice(efficiency)) = self.efficiency {
            let Chips::Grid(spec) = &mut study.space.chips else {
                let cure = "leave it out: PHAZE's chips are ideal; or take another study (--study tpu)";
                return Err(failure::option_failure("--efficiency", efficiency.word(), cure, ""));
            };
            spec.efficiency = efficiency;
        }
        if let Some(within) = self.within {
            if !(0.0..=100.0).contains(&within) {
                return Err(failure::option_failure(
                    "--within",
                    within,
                    "must be from 0 to 100 percent",
                    "0 proves the best",
                ));
            }
            study.limits.within_percent = within;
        }
        let operation = &mut study.operation;
        for (given, figure) in [
            (self.years, &mut operation.years),
            (self.kwh_price, &mut operation.usd_per_kwh),
            (self.pue, &mut operation.pue),
            (self.utilisation, &mut operation.utilisation),
        ] {
            *figure = given.unwrap_or(*figure);
        }
        operation.dollars = self.dollars.map_or(operation.dollars, |name| name.0);
        self.check_operation(operation)?;
        if let Some(value) = self.max_step {
            parse_positive("--max-step", value)?;
        }
        if let Some(fabric) = &self.fabric {
            study.cluster.fabric.clone_from(fabric);
        }
        self.fix_dimensions(name, study)
    }

    /// Returns the flag of a limit, and its value if it is given.
    fn flag_of_limit(&self, limit: ChipLimit) -> (&'static str, Option<f64>) {
        match limit {
            ChipLimit::Area => ("--max-area", self.max_area),
            ChipLimit::Power => ("--max-power", self.max_power),
            ChipLimit::Cost => ("--max-cost", self.max_cost),
            ChipLimit::LeastHbm => ("--min-hbm-gib", self.min_hbm_gib),
            ChipLimit::MostHbm => ("--max-hbm-gib", self.max_hbm_gib),
            ChipLimit::HbmRate => ("--min-hbm-bandwidth", self.min_hbm_bandwidth),
        }
    }

    /// Returns the text before a limit's value in messages: the flag if it is given, otherwise the study's key with its
    /// line.
    pub(super) fn name_of_limit(&self, name: &str, limit: ChipLimit) -> String {
        let key = format!("space.{}", limit.key());
        match self.flag_of_limit(limit) {
            (flag, Some(_)) => format!("{flag} "),
            _ => format!("{}: {key} = ", Study::place(name, &key)),
        }
    }

    /// Overrides the limits of chips in the study.
    fn set_chip_limits(&self, name: &str, study: &mut Study) -> Result<(), Failure> {
        let limits = &mut study.space.limits;
        for limit in ChipLimit::ALL {
            if let (flag, Some(value)) = self.flag_of_limit(limit) {
                parse_positive(flag, value)?;
                limit.set_in(limits, value);
            }
        }
        limits.lift_build_limits |= self.no_build_limits;
        limits
            .find_contradiction(|limit| self.name_of_limit(name, limit))
            .map_or(Ok(()), |why| Err(failure::input_failure(why)))
    }

    /// Fails if the values for dollars, years and energy are out of range or have no effect.
    fn check_operation(&self, operation: &OperatingCost) -> Result<(), Failure> {
        let no_dollars = self.objective.is_none_or(|objective| !objective.0.pays_dollars());
        let needs_dollars = |flag: &str, value: String| {
            let cure = "add --objective per-dollar, or leave it out";
            failure::option_failure(flag, value, "needs an objective in dollars", cure)
        };
        if let Some(NamedChoice(dollars)) = self.dollars.filter(|_| no_dollars) {
            return Err(needs_dollars("--dollars", dollars.name().to_owned()));
        }
        let flags = [
            ("--years", self.years),
            ("--kwh-price", self.kwh_price),
            ("--pue", self.pue),
            ("--utilisation", self.utilisation),
        ];
        let Some((flag, value)) = flags.iter().find_map(|(flag, value)| Some((flag, (*value)?))) else { return Ok(()) };
        if let Some((key, value, limit)) = operation.first_invalid_figure() {
            let flag = flags.iter().find(|(flag, _)| flag.ends_with(if key == "usd_per_kwh" { "price" } else { key }));
            return Err(failure::option_failure(
                flag.map_or(key, |(flag, _)| flag),
                value,
                limit,
                "correct it, or leave it out",
            ));
        }
        if no_dollars {
            return Err(needs_dollars(flag, value.to_string()));
        }
        if operation.years == 0.0 {
            let other = flags[1..].iter().find_map(|(flag, value)| Some((flag, (*value)?)));
            let (flag, value) = other.unwrap_or((flag, value));
            return Err(failure::option_failure(
                flag,
                value,
                "has no effect without years of operation",
                "add --years, or leave it out",
            ));
        }
        Ok(())
    }

    /// Returns the fault of a dimension under the name of the flag that sets it; `None` if no flag sets it.
    pub(super) fn name_dimension_fault(&self, why: &str) -> Option<String> {
        let of = why.strip_prefix("space.dimensions.")?;
        let key = of.split([' ', ':']).next()?;
        let set = self.set.iter().find(|set| set.split_once('=').is_some_and(|(own, _)| own.trim() == key));
        let flag = set.map(|set| format!("--set {set}")).or_else(|| match (&self.node, self.hbm_stacks) {
            (Some(node), _) if matches!(key, "area.node" | "energy.node") => Some(format!("--node {node}")),
            (_, Some(stacks)) if key == "hbm_stacks" => Some(format!("--hbm-stacks {stacks}")),
            _ => None,
        })?;
        Some(format!("{flag}: {of}"))
    }

    /// Returns the flags `--set` as they were given; `None` without any.
    pub fn set_flags(&self) -> Option<String> {
        let flags: Vec<String> = self.set.iter().map(|set| format!("--set {set}")).collect();
        (!flags.is_empty()).then(|| flags.join(" "))
    }

    /// Returns the dimensions that flags set.
    fn fixed_dimensions(&self) -> Result<Vec<FixedDimension>, Failure> {
        let mut fixed: Vec<FixedDimension> = Vec::new();
        for text in &self.set {
            let wrong = || {
                failure::option_failure("--set", text, "is no KEY=VALUE", "write --set tensor.cores=4, for instance")
            };
            let (key, value) = text.split_once('=').ok_or_else(wrong)?;
            let (key, value) = (key.trim(), value.trim());
            if let Some(before) = fixed.iter().find(|known| known.key == key) {
                let limit = format!("{key} is given already ({})", before.flag);
                return Err(failure::option_failure("--set", text, limit, "give each key once"));
            }
            let setting = parse_setting(value);
            if value.is_empty() || setting.number().is_some_and(|number| !number.is_finite()) {
                let limit = if value.is_empty() { "has no value" } else { "must be finite" };
                return Err(failure::option_failure("--set", text, limit, format!("write --set {key}=VALUE")));
            }
            fixed.push(FixedDimension { flag: format!("--set {text}"), key: key.to_owned(), value: setting });
        }
        let given = |fixed: &[FixedDimension], key: &str, flag: &str, text: &str| match fixed
            .iter()
            .find(|known| known.key == key)
        {
            Some(before) if before.value.to_string() != text => {
                let limit = format!("{key} is given already ({})", before.flag);
                Err(failure::option_failure(flag, text, limit, "give it once"))
            }
            _ => Ok(()),
        };
        if let Some(node) = &self.node {
            let named = name_of_node(node);
            given(&fixed, "area.node", "--node", &named)?;
            given(&fixed, "energy.node", "--node", &named)?;
            let (flag, value) = (format!("--node {node}"), FieldValue::Word(named));
            fixed.extend(["area.node", "energy.node"].map(|key| FixedDimension {
                flag: flag.clone(),
                key: key.to_owned(),
                value: value.clone(),
            }));
        }
        if let Some(stacks) = self.hbm_stacks {
            given(&fixed, "hbm_stacks", "--hbm-stacks", &stacks.to_string())?;
            let (flag, value) = (format!("--hbm-stacks {stacks}"), FieldValue::Number(stacks.into()));
            fixed.push(FixedDimension { flag, key: "hbm_stacks".to_owned(), value });
        }
        Ok(fixed)
    }

    /// Fixes the dimensions that flags set.
    fn fix_dimensions(&self, name: &str, study: &mut Study) -> Result<(), Failure> {
        let fixed = self.fixed_dimensions()?;
        let spec = match &mut study.space.chips {
            Chips::Grid(spec) => spec,
            Chips::Phaze(_) => match fixed.first() {
                None => return Ok(()),
                Some(FixedDimension { flag, .. }) => {
                    let cure = "use a study with a base chip (--study tpu, --study gpu), or leave it out";
                    return Err(failure::option_failure(
                        flag,
                        "",
                        format!("study {name} has PHAZE's chips with a fixed node of 22 nm and one HBM"),
                        cure,
                    ));
                }
            },
        };
        for dimension in fixed {
            check_looked_up(&spec.dimensions, name, &dimension)?;
            let FixedDimension { flag, key, value } = dimension;
            let own = spec.dimensions.iter().position(|dimension| dimension.key == key);
            let dimension = Dimension { key: key.clone(), values: Values::Listed(vec![value]) };
            match own {
                Some(at) => spec.dimensions[at] = dimension,
                // The key is a field of the chip's file that the study does not vary.
                None if key.contains('.') || key == "clock_mhz" => spec.dimensions.push(dimension),
                None => {
                    let known: Vec<&str> = spec.dimensions.iter().map(|dimension| dimension.key.as_str()).collect();
                    let known = known.join(", ");
                    return Err(failure::option_failure(
                        &flag,
                        "",
                        format!("study {name} has no dimension {key}"),
                        format!("it has {known}"),
                    ));
                }
            }
        }
        spec.dimensions.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(())
    }
}

/// Refuses a search by bad ends with a front, or with an objective of energy: only steps have bad ends.
pub(super) fn check_robust_objective(robust: bool, aim: &Aim) -> Result<(), Failure> {
    if !robust {
        return Ok(());
    }
    if aim.axes != CostAxes::single(FrontAxis::None) {
        return Err(failure::option_failure(
            "--robust --front",
            aim.axes.to_string(),
            "the best by its interval's bad end is looked for, and no front",
            "leave --front out, or search without --robust",
        ));
    }
    if !aim.counts_energy() {
        return Ok(());
    }
    let paid = if aim.pays_energy() { " with --years" } else { "" };
    let cure = "give --objective throughput, step-time, per-mm2, per-watt, or per-dollar without --years, or leave --robust out";
    Err(failure::option_failure(
        "--robust",
        "",
        format!(
            "the objective is {}{paid}, and intervals are known of a step's time, not of its energy",
            aim.objective
        ),
        cure,
    ))
}

/// Returns the aim of the search over chips. `study` holds its limits.
pub(super) fn aim_of(question: &Question, study: &Study) -> Aim {
    let AimSpec { objective, over, operation, front, max_step_s, robust } = question.aim;
    // A search by bad ends has no front, so its usual choice of axes is none.
    let usual = if robust { CostAxes::single(FrontAxis::None) } else { objective.usual_axes() };
    Aim {
        objective,
        over,
        axes: front.unwrap_or(usual),
        operation,
        max_step: max_step_s.map(Seconds),
        evaluations: study.limits.evaluations,
        gap: study.tolerances().designs,
    }
}

/// A dimension that a flag sets.
struct FixedDimension {
    /// The flag with its value.
    flag: String,
    key: String,
    value: FieldValue,
}

/// Refuses a value of a dimension if another dimension is looked up by it and has no entry for the value.
fn check_looked_up(dimensions: &[Dimension], study: &str, fixed: &FixedDimension) -> Result<(), Failure> {
    let FixedDimension { flag, key, value } = fixed;
    for of in dimensions {
        let Values::LookedUp(looked) = &of.values else { continue };
        if looked.by == *key && !looked.has_value_for(value) {
            let known: Vec<&str> = looked.values.iter().map(|(value, _)| value.as_str()).collect();
            let cure = format!("use one of these, or a study of your own (coplace init) with a value of {}", of.key);
            return Err(failure::option_failure(
                flag,
                "",
                format!("study {study} has {} for {} only", of.key, known.join(", ")),
                cure,
            ));
        }
    }
    Ok(())
}

fn parse_setting(text: &str) -> FieldValue {
    match (text.parse::<f64>(), text.parse::<bool>()) {
        (Ok(number), _) => FieldValue::Number(number),
        (_, Ok(flag)) => FieldValue::Flag(flag),
        _ => FieldValue::Word(text.to_owned()),
    }
}

fn parse_positive(flag: &str, value: f64) -> Result<(), Failure> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    Err(failure::option_failure(flag, value, "must be positive and finite", "give a limit, or leave it out"))
}

/// A choice that an option gives by name.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NamedChoice<T>(pub T);

impl std::str::FromStr for NamedChoice<Objective> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        find_choice(text, &Objective::NAMES)
    }
}

impl std::str::FromStr for NamedChoice<MeasureMean> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        find_choice(text, &MeasureMean::NAMES)
    }
}

impl std::str::FromStr for NamedChoice<PaidHardware> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        find_choice(text, &PaidHardware::NAMES)
    }
}

impl std::str::FromStr for NamedChoice<EfficiencyChoice> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        find_choice(text, &EfficiencyChoice::NAMES)
    }
}

impl std::str::FromStr for NamedChoice<CostAxes> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        CostAxes::parse_list(text).map(NamedChoice)
    }
}

fn find_choice<T: Copy>(text: &str, names: &[(&str, T)]) -> Result<NamedChoice<T>, String> {
    let found = names.iter().find(|(name, _)| *name == text);
    found.map(|(_, value)| NamedChoice(*value)).ok_or_else(|| {
        let known: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
        sim::names::hint(text, &known.join(", "), "use one of")
    })
}

#[cfg(test)]
mod tests {
    use super::name_of_node;

    #[test]
    fn a_node_may_be_named_as_in_the_chip_files_or_by_its_nanometres() {
        assert_eq!(["n7", "N7", "7nm", "7 nm", "7"].map(name_of_node), ["n7"; 5]);
        assert_eq!(["16NM", "seven", "nm"].map(name_of_node), ["n16", "seven", "nm"]);
    }
}
