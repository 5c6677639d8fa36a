//! The objective of a search over chips, and the axes of its front.
//!
//! Every objective is a step's time or energy, times a figure of the chip that does not depend on the work. An
//! objective in dollars may add the cost of the step's energy. All grow with the step's time, so a lower bound on the
//! time gives a lower bound on the objective.

use crate::pareto::FrontCosts;
use crate::space::ChipFigures;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The objective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Objective {
    /// Tokens per second of the whole cluster.
    #[default]
    Throughput,
    /// The time of a step: the same designs in the same order as throughput.
    StepTime,
    /// Tokens per second per mm² of die.
    #[serde(rename = "per-mm2")]
    PerArea,
    /// Tokens per second per W of supply and cooling: the power under the heaviest sustained load.
    PerWatt,
    /// Tokens per second per USD. The dollars pay for the chips, for the system around them if [`OperatingCost`] says
    /// so, and over its years for their energy.
    PerDollar,
    /// Energy per token, in J; less is better.
    EnergyPerToken,
}

/// An axis of a front.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FrontAxis {
    /// Die area in mm².
    #[default]
    Area,
    /// Power under the heaviest sustained load, in W.
    Power,
    /// The chip's manufacturing cost in USD.
    Cost,
    /// Energy of a step in J, or relative to the reference for several models.
    Energy,
    /// No axis: the search looks for the best design only.
    None,
}

/// How long chips run, and the cost of their energy. Missing values are those of [`OperatingCost::default`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OperatingCost {
    /// Years that the chips run. With 0 (default) energy is free.
    pub years: f64,
    /// Price of a kWh in USD. Default 0.08: the average price for industry in the United States in 2023 (EIA, Electric
    /// Power Monthly, table 5.3).
    pub usd_per_kwh: f64,
    /// Power usage effectiveness: energy of the whole site over that of its machines. Default 1.1: Google's fleet in
    /// 2023 (Environmental Report 2024).
    pub pue: f64,
    /// Fraction of the time in which steps run, 0 to 1. Default 0.9: effective training time of Llama 3 (Llama Team,
    /// The Llama 3 Herd of Models, 2024, 3.3.4).
    pub utilisation: f64,
    /// The hardware that the dollars buy: `chip` (default), or `system`: the chip and the system around it.
    #[serde(skip_serializing_if = "PaidHardware::is_default")]
    pub dollars: PaidHardware,
}

impl Default for OperatingCost {
    fn default() -> Self {
        Self { years: 0.0, usd_per_kwh: 0.08, pue: 1.1, utilisation: 0.9, dollars: PaidHardware::Chip }
    }
}

/// The hardware that an objective in dollars pays for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PaidHardware {
    /// The chips.
    #[default]
    Chip,
    /// The chips, and the system around them: hosts, network cards, switches, cables, optics.
    System,
}

impl PaidHardware {
    /// Every choice with its name.
    pub const NAMES: [(&'static str, Self); 2] = [(Self::Chip.name(), Self::Chip), (Self::System.name(), Self::System)];

    /// Its name in options and files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Chip => "chip",
            Self::System => "system",
        }
    }

    /// True for the default.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl OperatingCost {
    /// USD over all years for each W of a chip's average draw during steps. 0 if `years` is 0.
    #[must_use]
    pub fn usd_per_watt(&self) -> f64 {
        /// Hours of a year of 365.25 days, in thousands.
        const KWH: f64 = 365.25 * 24.0 / 1000.0;
        self.years * KWH * self.utilisation * self.pue * self.usd_per_kwh
    }

    /// The first invalid figure: its key, its value and its limit.
    #[must_use]
    pub fn first_invalid_figure(&self) -> Option<(&'static str, f64, &'static str)> {
        [
            ("years", self.years, (0.0, 100.0), "must be from 0 to 100"),
            ("usd_per_kwh", self.usd_per_kwh, (0.0, 100.0), "must be from 0 to 100"),
            ("pue", self.pue, (1.0, 10.0), "must be from 1 to 10"),
            ("utilisation", self.utilisation, (0.0, 1.0), "must be from 0 to 1"),
        ]
        .into_iter()
        .find(|(_, value, (least, most), _)| !(least..=most).contains(&value))
        .map(|(key, value, _, limit)| (key, value, limit))
    }
}

/// How an objective's value follows from a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectiveKind {
    /// Tokens per second of the whole cluster.
    Rate,
    /// Seconds of a step.
    Time,
    /// Tokens per second of a chip, over the chip's figure along this axis.
    RatePer(FrontAxis),
    /// Joules of a token.
    Energy,
}

/// All that differs between objectives.
#[derive(Debug, Clone, Copy)]
pub struct ObjectiveRow {
    /// The objective.
    pub objective: Objective,
    /// The name in options and files.
    pub key: &'static str,
    /// How its value follows from a step.
    pub kind: ObjectiveKind,
    /// The unit of one model's value.
    pub unit: &'static str,
    /// The unit of several models' value, relative to the reference.
    pub ratio_unit: &'static str,
    /// The same unit at the axis of a front.
    pub ratio_axis_unit: &'static str,
    /// The quantity in plain words.
    pub plain_name: &'static str,
    /// The quantity that divides throughput; `None` for speed alone.
    pub divisor: Option<&'static str>,
}

/// The objectives, in the order of [`Objective`].
pub const OBJECTIVES: [ObjectiveRow; 6] = [
    ObjectiveRow {
        objective: Objective::Throughput,
        key: "throughput",
        kind: ObjectiveKind::Rate,
        unit: "tokens/s",
        ratio_unit: "times the reference's throughput",
        ratio_axis_unit: "times the reference's, mean over the models",
        plain_name: "throughput",
        divisor: None,
    },
    ObjectiveRow {
        objective: Objective::StepTime,
        key: "step-time",
        kind: ObjectiveKind::Time,
        unit: "s per step",
        ratio_unit: "times the reference's throughput",
        ratio_axis_unit: "s",
        plain_name: "step time",
        divisor: None,
    },
    ObjectiveRow {
        objective: Objective::PerArea,
        key: "per-mm2",
        kind: ObjectiveKind::RatePer(FrontAxis::Area),
        unit: "tokens/s per mm²",
        ratio_unit: "times the reference's throughput, per mm²",
        ratio_axis_unit: "times the reference's per mm²",
        plain_name: "throughput per mm²",
        divisor: Some("area"),
    },
    ObjectiveRow {
        objective: Objective::PerWatt,
        key: "per-watt",
        kind: ObjectiveKind::RatePer(FrontAxis::Power),
        unit: "tokens/s per W",
        ratio_unit: "times the reference's throughput, per W",
        ratio_axis_unit: "times the reference's per W",
        plain_name: "throughput per W",
        divisor: Some("power"),
    },
    ObjectiveRow {
        objective: Objective::PerDollar,
        key: "per-dollar",
        kind: ObjectiveKind::RatePer(FrontAxis::Cost),
        unit: "tokens/s per USD",
        ratio_unit: "times the reference's throughput, per USD",
        ratio_axis_unit: "times the reference's per USD",
        plain_name: "throughput per USD",
        divisor: Some("price"),
    },
    ObjectiveRow {
        objective: Objective::EnergyPerToken,
        key: "energy-per-token",
        kind: ObjectiveKind::Energy,
        unit: "J per token",
        ratio_unit: "times the reference's tokens per J",
        ratio_axis_unit: "times the reference's, mean over the models",
        plain_name: "energy per token",
        divisor: Some("energy of a second"),
    },
];

impl Objective {
    /// Every objective with its name.
    pub const NAMES: [(&'static str, Self); OBJECTIVES.len()] = {
        let mut names = [("", Self::Throughput); OBJECTIVES.len()];
        let mut at = 0;
        while at < OBJECTIVES.len() {
            names[at] = (OBJECTIVES[at].key, OBJECTIVES[at].objective);
            at += 1;
        }
        names
    };

    /// The objective's row of [`OBJECTIVES`].
    #[must_use]
    pub fn row(self) -> &'static ObjectiveRow {
        &OBJECTIVES[self as usize]
    }

    /// How the objective's value follows from a step.
    #[must_use]
    pub fn kind(self) -> ObjectiveKind {
        self.row().kind
    }

    /// True if the energy of a step is minimised instead of its time.
    #[must_use]
    pub fn minimises_energy(self) -> bool {
        self.kind() == ObjectiveKind::Energy
    }

    /// True if throughput is divided by the chip's price.
    #[must_use]
    pub fn pays_dollars(self) -> bool {
        self.kind() == ObjectiveKind::RatePer(FrontAxis::Cost)
    }

    /// True if a lower clock may improve the value, because it saves power or energy.
    #[must_use]
    pub fn saves_power(self) -> bool {
        self.minimises_energy() || self.kind() == ObjectiveKind::RatePer(FrontAxis::Power)
    }

    /// True if a larger shown value is better.
    #[must_use]
    pub fn more_is_better(self) -> bool {
        matches!(self.kind(), ObjectiveKind::Rate | ObjectiveKind::RatePer(_))
    }

    /// The factor by which the shown value `first` is better than `other`.
    #[must_use]
    pub fn lead(self, first: f64, other: f64) -> f64 {
        if self.more_is_better() { first / other } else { other / first }
    }

    /// The factor from a step's seconds to the minimised value, for a chip. `None` if the chip has no such figure.
    /// Energy per token has the factor 1: the step's energy is minimised instead of its seconds.
    #[must_use]
    pub fn factor_of_chip(self, figures: &ChipFigures) -> Option<f64> {
        match self.kind() {
            ObjectiveKind::RatePer(FrontAxis::Cost) => figures.paid_usd(),
            ObjectiveKind::RatePer(axis) => axis.figure_of_chip(figures),
            ObjectiveKind::Rate | ObjectiveKind::Time | ObjectiveKind::Energy => Some(1.0),
        }
    }

    /// The name of the quantity that divides throughput; `None` for speed alone.
    #[must_use]
    pub fn divisor(self) -> Option<&'static str> {
        self.row().divisor
    }

    /// A minimised value in the unit that reports show, with the name of that unit.
    #[must_use]
    pub fn display_value(self, value: f64, scale: ValueScale) -> (f64, &'static str) {
        let row = self.row();
        let ValueScale::Alone { devices, tokens } = scale else { return (1.0 / value, row.ratio_unit) };
        let shown = match row.kind {
            ObjectiveKind::Rate => tokens / value,
            ObjectiveKind::Time => value,
            ObjectiveKind::RatePer(_) => tokens / value / devices,
            ObjectiveKind::Energy => value / tokens,
        };
        (shown, row.unit)
    }

    /// The default axes of the front. For speed the main answer is the front against area; for another objective it is
    /// the best design.
    #[must_use]
    pub fn usual_axes(self) -> CostAxes {
        if matches!(self.kind(), ObjectiveKind::Rate | ObjectiveKind::Time) {
            CostAxes::single(FrontAxis::Area)
        } else {
            CostAxes::single(FrontAxis::None)
        }
    }
}

/// The scale of a reported value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ValueScale {
    /// One model alone.
    Alone {
        /// Devices of the cluster.
        devices: f64,
        /// Tokens of a step.
        tokens: f64,
    },
    /// Several models: rates relative to the reference.
    Reference,
}

/// How the measures of several models make one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MeasureMean {
    /// The weighted geometric mean of their rates relative to the reference.
    #[default]
    Geomean,
    /// The weighted arithmetic mean of the same rates.
    Mean,
}

impl MeasureMean {
    /// Every mean with its name.
    pub const NAMES: [(&'static str, Self); 2] = [("geomean", Self::Geomean), ("mean", Self::Mean)];
}

impl fmt::Display for MeasureMean {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, over)| over == self).map_or("geomean", |(name, _)| name);
        f.write_str(name)
    }
}

/// One model's weight and the reference for its measure (a step's seconds or joules).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Term {
    /// Its share among the models; all shares add up to one.
    pub share: f64,
    /// The reference's measure.
    pub reference: f64,
}

impl MeasureMean {
    /// The minimised value: one over the mean of the rates relative to the reference. It grows with every measure.
    ///
    /// With shares w, measures s and reference measures r, it is the product of (s / r)^w for the geometric mean, and 1
    /// / (sum of w r / s) for the arithmetic mean.
    #[must_use]
    pub fn combine_measures(self, terms: &[Term], measures: &[f64]) -> f64 {
        let pairs = terms.iter().zip(measures);
        match self {
            Self::Geomean => {
                pairs.map(|(term, measure)| term.share * (measure / term.reference).ln()).sum::<f64>().exp()
            }
            Self::Mean => 1.0 / pairs.map(|(term, measure)| term.share * term.reference / measure).sum::<f64>(),
        }
    }

    /// The least measure of model `of` at which the combined value reaches `value`. The other models have at least the
    /// given measures. Infinite if no measure reaches it.
    #[must_use]
    pub fn measure_reaching(self, terms: &[Term], measures: &[f64], of: usize, value: f64) -> f64 {
        let others = || terms.iter().zip(measures).enumerate().filter(|(at, _)| *at != of).map(|(_, pair)| pair);
        let own = terms[of];
        match self {
            Self::Geomean => {
                let rest: f64 = others().map(|(term, measure)| term.share * (measure / term.reference).ln()).sum();
                own.reference * ((value.ln() - rest) / own.share).exp()
            }
            Self::Mean => {
                let rest: f64 = others().map(|(term, measure)| term.share * term.reference / measure).sum();
                let left = 1.0 / value - rest;
                if left > 0.0 { own.share * own.reference / left } else { f64::INFINITY }
            }
        }
    }
}

impl fmt::Display for Objective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().key)
    }
}

impl FrontAxis {
    /// Every axis with its name.
    pub const NAMES: [(&'static str, Self); 5] = [
        ("area", Self::Area),
        ("power", Self::Power),
        ("cost", Self::Cost),
        ("energy", Self::Energy),
        ("none", Self::None),
    ];

    /// A chip's figure along the axis, in mm², W or USD. `None` for a chip without a price, for energy, which depends
    /// on the plan, and for [`FrontAxis::None`].
    #[must_use]
    pub fn figure_of_chip(self, figures: &ChipFigures) -> Option<f64> {
        match self {
            Self::Area => Some(figures.area.0),
            Self::Power => Some(figures.peak_power.0),
            Self::Cost => figures.cost_usd,
            Self::Energy | Self::None => None,
        }
    }

    /// A chip's cost along the axis, as [`Self::figure_of_chip`]. A chip without a price has an infinite cost in USD.
    #[must_use]
    pub fn cost_along(self, figures: &ChipFigures) -> Option<f64> {
        let unknown = (self == Self::Cost).then_some(f64::INFINITY);
        self.figure_of_chip(figures).or(unknown)
    }
}

/// The cost axes of a front: one, two different ones, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct CostAxes(FrontAxis, Option<FrontAxis>);

impl From<CostAxes> for String {
    fn from(axes: CostAxes) -> Self {
        axes.to_string()
    }
}

impl TryFrom<String> for CostAxes {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse_list(&text)
    }
}

impl CostAxes {
    /// One axis.
    #[must_use]
    pub fn single(axis: FrontAxis) -> Self {
        Self(axis, None)
    }

    /// Parses axes by name, separated by commas: `area`, `area,power`, `none`.
    ///
    /// # Errors
    /// An unknown name, more than two axes, a repeated axis, or `none` with another axis.
    pub fn parse_list(text: &str) -> Result<Self, String> {
        let known = || FrontAxis::NAMES.map(|(name, _)| name).join(", ");
        let named = |name: &str| {
            let found = FrontAxis::NAMES.iter().find(|(known, _)| *known == name).map(|(_, axis)| *axis);
            found.ok_or_else(|| sim::names::hint(name, &known(), "use one or two of"))
        };
        match text.split(',').map(|name| named(name.trim())).collect::<Result<Vec<_>, _>>()?[..] {
            [axis] => Ok(Self(axis, None)),
            [FrontAxis::None, _] | [_, FrontAxis::None] => {
                Err("`none` cannot be combined with another axis; leave one of them out".to_owned())
            }
            [one, other] if one == other => Err(format!("{one} is given twice; give it once, or another axis")),
            [one, other] => Ok(Self(one, Some(other))),
            _ => Err(format!("a front has at most two axes besides the objective; use one or two of {}", known())),
        }
    }

    /// The axes in order; empty if there is no front.
    pub fn named_axes(self) -> impl Iterator<Item = FrontAxis> {
        [Some(self.0), self.1].into_iter().flatten().filter(|axis| *axis != FrontAxis::None)
    }

    /// True if `axis` is one of them.
    #[must_use]
    pub fn contains(self, axis: FrontAxis) -> bool {
        self.named_axes().any(|one| one == axis)
    }

    /// The costs along the axes, in their order. Missing axes have cost 0.
    #[must_use]
    pub fn costs_along(self, mut along: impl FnMut(FrontAxis) -> f64) -> FrontCosts {
        let mut costs = [0.0; 2];
        costs.iter_mut().zip(self.named_axes()).for_each(|(cost, axis)| *cost = along(axis));
        costs
    }
}

impl fmt::Display for CostAxes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        self.1.map_or(Ok(()), |other| write!(f, ",{other}"))
    }
}

impl fmt::Display for FrontAxis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, axis)| axis == self).map_or("none", |(name, _)| name);
        f.write_str(name)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_value_is_reached_where_it_is_said_to_be(
            shares in prop::collection::vec(0.1..1.0_f64, 1..4), references in prop::collection::vec(0.1..10.0_f64, 4),
            measures in prop::collection::vec(0.01..100.0_f64, 4), of in 0..3_usize, times in 0.2..5.0_f64,
        ) {
            let (all, of) = (shares.iter().sum::<f64>(), of % shares.len());
            let terms: Vec<Term> = shares.iter().zip(&references).map(|(share, &reference)| Term { share: share / all, reference }).collect();
            let measures = &measures[..terms.len()];
            for over in [MeasureMean::Geomean, MeasureMean::Mean] {
                let value = over.combine_measures(&terms, measures);
                let wanted = value * times;
                let reached = over.measure_reaching(&terms, measures, of, wanted);
                let mut there = measures.to_vec();
                there[of] = reached;
                if reached.is_finite() {
                    prop_assert!((over.combine_measures(&terms, &there) / wanted - 1.0).abs() < 1e-9);
                } else {
                    // However slow this model is, the others keep the mean of the rates up.
                    there[of] = 1e300;
                    prop_assert!(over.combine_measures(&terms, &there) <= wanted * (1.0 + 1e-9));
                }
                let mut slower = measures.to_vec();
                slower[of] *= 1.5;
                prop_assert!(over.combine_measures(&terms, &slower) > value);
            }
        }
    }

    #[test]
    fn a_watt_of_four_years_costs_its_kilowatt_hours() {
        // 4 years are 35.064 thousand hours.
        let operation =
            OperatingCost { years: 4.0, usd_per_kwh: 0.1, pue: 1.2, utilisation: 0.5, ..OperatingCost::default() };
        assert!((operation.usd_per_watt() - 35.064 * 0.1 * 1.2 * 0.5).abs() < 1e-12);
        assert_eq!((OperatingCost::default().usd_per_watt(), operation.first_invalid_figure()), (0.0, None));
        for wrong in [OperatingCost { pue: 0.9, ..operation }, OperatingCost { utilisation: f64::NAN, ..operation }] {
            assert!(wrong.first_invalid_figure().is_some());
        }
    }

    #[test]
    fn every_objective_has_its_own_row() {
        for row in OBJECTIVES {
            assert_eq!((row.objective.row().key, row.objective.to_string()), (row.key, row.key.to_owned()));
            assert_eq!(serde_json::to_value(row.objective).unwrap(), row.key);
        }
    }

    #[test]
    fn axes_read_back_and_faults_are_named() {
        for text in ["area", "area,power", "energy,cost", "none"] {
            assert_eq!(CostAxes::parse_list(text).unwrap().to_string(), text);
        }
        assert_eq!(
            CostAxes::parse_list("power, area").unwrap().costs_along(|axis| if axis == FrontAxis::Area {
                2.0
            } else {
                1.0
            }),
            [1.0, 2.0]
        );
        assert_eq!(CostAxes::parse_list("none").unwrap().named_axes().count(), 0);
        for (text, why) in
            [("aera", "area"), ("none,area", "combined"), ("area,area", "twice"), ("area,power,cost", "at most two")]
        {
            assert!(CostAxes::parse_list(text).unwrap_err().contains(why), "{text}");
        }
    }

    #[test]
    fn equal_to_the_reference_is_one_and_twice_as_fast_a_half() {
        let terms = [Term { share: 0.25, reference: 3.0 }, Term { share: 0.75, reference: 8.0 }];
        for over in [MeasureMean::Geomean, MeasureMean::Mean] {
            assert!((over.combine_measures(&terms, &[3.0, 8.0]) - 1.0).abs() < 1e-12);
            assert!((over.combine_measures(&terms, &[1.5, 4.0]) - 0.5).abs() < 1e-12);
        }
        // The model with weight 0.25 is four times as fast. The means of the rates are 4^0.25 and 0.25 x 4 + 0.75.
        assert!((MeasureMean::Geomean.combine_measures(&terms, &[0.75, 8.0]) - 1.0 / 2.0_f64.sqrt()).abs() < 1e-12);
        assert!((MeasureMean::Mean.combine_measures(&terms, &[0.75, 8.0]) - 1.0 / 1.75).abs() < 1e-12);
    }
}
