//! The front of a run: its quantities, designs, hypervolume and knee.

use crate::answer::comparison::ComparisonEntry;
use crate::run::record::{FrontRecord, StudyRecord};
use crate::store::design::{DesignRow, DesignStatus};
use search::objective::{FrontAxis, Objective, ObjectiveKind, OperatingCost, PaidHardware};
use search::pareto::{Front, FrontPoint, FrontScales};
use std::fmt;

/// A quantity on an axis of a front and of its figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrontQuantity {
    /// A cost of a design: area of all compute dies, power under the heaviest sustained load, cost of making a chip, or
    /// energy of a step over the whole cluster.
    Cost(FrontAxis),
    /// The value of an objective. The throughput of several models is the mean of their throughputs relative to the
    /// reference.
    Objective(Objective),
}

impl FrontQuantity {
    /// Area of all compute dies.
    pub const AREA: Self = Self::Cost(FrontAxis::Area);
    /// Throughput of the whole cluster.
    pub const THROUGHPUT: Self = Self::Objective(Objective::Throughput);

    /// Returns all quantities: the axes of fronts and the objectives.
    pub fn all() -> impl Iterator<Item = Self> {
        let costs = FrontAxis::NAMES.into_iter().map(|(_, axis)| axis).filter(|axis| *axis != FrontAxis::None);
        costs.map(Self::Cost).chain(Objective::NAMES.into_iter().map(|(_, objective)| Self::Objective(objective)))
    }

    /// Finds the quantity with this name; `None` if there is none.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::all().find(|quantity| quantity.to_string() == name)
    }

    /// True if larger values are better.
    #[must_use]
    pub fn more_is_better(self) -> bool {
        match self {
            Self::Cost(_) => false,
            Self::Objective(objective) => objective.more_is_better(),
        }
    }

    /// True if the value depends on the area of a chip.
    #[must_use]
    pub fn depends_on_area(self) -> bool {
        match self {
            Self::Cost(axis) => axis == FrontAxis::Area,
            Self::Objective(objective) => objective.kind() == ObjectiveKind::RatePer(FrontAxis::Area),
        }
    }

    /// Returns the name in plain words.
    #[must_use]
    pub fn plain_name(self) -> &'static str {
        match self {
            Self::Cost(axis) => FrontAxis::NAMES.iter().find(|(_, known)| *known == axis).map_or("", |(name, _)| name),
            Self::Objective(objective) => objective.row().plain_name,
        }
    }

    /// Returns the unit, for one model or for several relative to a reference.
    #[must_use]
    pub fn unit(self, several: bool) -> &'static str {
        match self {
            Self::Cost(FrontAxis::Area) => "mm²",
            Self::Cost(FrontAxis::Power) => "W",
            Self::Cost(FrontAxis::Cost) => "USD",
            Self::Cost(FrontAxis::Energy) if several => Objective::EnergyPerToken.row().ratio_axis_unit,
            Self::Cost(FrontAxis::Energy) => "kJ per step",
            Self::Cost(FrontAxis::None) => "",
            Self::Objective(objective) if several => objective.row().ratio_axis_unit,
            Self::Objective(objective) => match objective.kind() {
                ObjectiveKind::Rate => "thousand tokens/s",
                ObjectiveKind::Time => "s",
                ObjectiveKind::RatePer(_) => objective.row().unit,
                ObjectiveKind::Energy => "J",
            },
        }
    }

    /// Returns the head of a table's column, for one model or for several relative to a reference.
    #[must_use]
    pub fn column_head(self, several: bool) -> String {
        let kind = match self {
            Self::Cost(FrontAxis::Energy) => Some(ObjectiveKind::Energy),
            Self::Cost(_) => None,
            Self::Objective(objective) => Some(objective.kind()),
        };
        match kind {
            Some(ObjectiveKind::Rate) if several => "x reference".to_owned(),
            Some(ObjectiveKind::Energy) if several => format!("{} x reference", self.plain_name()),
            Some(ObjectiveKind::Rate | ObjectiveKind::RatePer(_)) => self.unit(several).to_owned(),
            Some(ObjectiveKind::Time | ObjectiveKind::Energy) | None => {
                format!("{} {}", self.plain_name(), self.unit(several))
            }
        }
    }

    /// Returns the label of an axis, without the unit.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Cost(FrontAxis::Area) => "die area",
            Self::Cost(FrontAxis::Power) => "power under the heaviest sustained load",
            Self::Cost(FrontAxis::Cost) => "cost of a chip to make",
            Self::Cost(FrontAxis::Energy) => "energy of a step",
            Self::Cost(FrontAxis::None) | Self::Objective(_) => self.plain_name(),
        }
    }

    /// Returns the value for a design, in the unit of the quantity. `None` if a figure is missing or the value is not
    /// finite.
    #[must_use]
    pub fn value_of(self, measured: &DesignMeasures, work: &StepScope) -> Option<f64> {
        let value = match self {
            Self::Cost(FrontAxis::Energy) if work.several => measured.energy_times_reference,
            Self::Cost(axis) => measured.cost_along(axis),
            Self::Objective(objective) => measured.value_of_kind(objective.kind(), work),
        };
        value.filter(|value| value.is_finite())
    }

    /// Returns the value, with its sign changed if larger values are better, so that less is better.
    fn minimised_value(self, value: f64) -> f64 {
        if self.more_is_better() { -value } else { value }
    }
}

impl fmt::Display for FrontQuantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cost(axis) => axis.fmt(f),
            Self::Objective(objective) => objective.fmt(f),
        }
    }
}

/// The figures of a design that are known.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct DesignMeasures {
    area_mm2: Option<f64>,
    power_w: Option<f64>,
    cost_usd: Option<f64>,
    system_usd: Option<f64>,
    /// Sequences per second, or the mean over several models relative to the reference. For a design that was not
    /// evaluated, this is the upper bound.
    rate: Option<f64>,
    step_s: Option<f64>,
    energy_j: Option<f64>,
    energy_times_reference: Option<f64>,
    times_reference_per_usd: Option<f64>,
}

/// Means over several models on one chip, relative to the reference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeanRatios {
    /// Throughput.
    pub times_reference: f64,
    /// Energy per token: the inverse of the mean of tokens per joule. `None` if it is not known.
    pub energy_times_reference: Option<f64>,
    /// Throughput per USD of a chip and its energy over the years of use, if the objective includes the cost of energy.
    pub times_reference_per_usd: Option<f64>,
}

impl DesignMeasures {
    /// Returns the cost along an axis: mm², W, USD or kJ of a step.
    fn cost_along(&self, axis: FrontAxis) -> Option<f64> {
        match axis {
            FrontAxis::Area => self.area_mm2,
            FrontAxis::Power => self.power_w,
            FrontAxis::Cost => self.cost_usd,
            FrontAxis::Energy => self.energy_j.map(|joules| joules / 1e3),
            FrontAxis::None => None,
        }
    }

    /// Returns the value of an objective of this kind.
    fn value_of_kind(&self, kind: ObjectiveKind, work: &StepScope) -> Option<f64> {
        match kind {
            ObjectiveKind::Rate if work.several => self.rate,
            // Sequences of different lengths are different amounts of work; tokens are nearly the same amount.
            ObjectiveKind::Rate => self.rate.map(|rate| rate * work.sequence_tokens / 1e3),
            ObjectiveKind::Time => {
                let bound = self.rate.filter(|rate| *rate > 0.0 && !work.several).map(|rate| work.sequences / rate);
                self.step_s.or(bound)
            }
            ObjectiveKind::RatePer(FrontAxis::Cost) if work.usd_per_watt > 0.0 && work.several => {
                self.times_reference_per_usd
            }
            ObjectiveKind::RatePer(FrontAxis::Cost) if work.usd_per_watt > 0.0 => {
                self.rate_over(self.lifetime_usd(work), work)
            }
            ObjectiveKind::RatePer(FrontAxis::Cost) => self.rate_over(self.paid_usd(work), work),
            ObjectiveKind::RatePer(axis) => self.rate_over(self.cost_along(axis), work),
            ObjectiveKind::Energy if work.several => self.energy_times_reference,
            ObjectiveKind::Energy => self.energy_j.map(|joules| joules / work.sequences / work.sequence_tokens),
        }
    }

    /// Returns the throughput of one chip over a figure of it; for several models, of the cluster relative to the
    /// reference.
    fn rate_over(&self, figure: Option<f64>, work: &StepScope) -> Option<f64> {
        let rate = self.rate? * if work.several { 1.0 } else { work.sequence_tokens / work.devices };
        figure.filter(|figure| *figure > 0.0).map(|figure| rate / figure)
    }

    /// Returns the cost of a chip, and of the system around it if the objective pays for it, in USD.
    fn paid_usd(&self, work: &StepScope) -> Option<f64> {
        Some(self.cost_usd? + if work.pays_system { self.system_usd? } else { 0.0 })
    }

    /// Returns [`Self::paid_usd`] with the energy over the years of use, in USD.
    fn lifetime_usd(&self, work: &StepScope) -> Option<f64> {
        Some(self.paid_usd(work)? + work.usd_per_watt * self.energy_j? / self.step_s? / work.devices)
    }

    /// Replaces the rates with means over several models. Step time and energy of a single model are removed.
    #[must_use]
    pub fn with_means(self, means: &MeanRatios) -> Self {
        let MeanRatios { times_reference, energy_times_reference, times_reference_per_usd } = *means;
        Self {
            rate: Some(times_reference),
            step_s: None,
            energy_j: None,
            energy_times_reference,
            times_reference_per_usd,
            ..self
        }
    }
}

impl From<&DesignRow> for DesignMeasures {
    fn from(row: &DesignRow) -> Self {
        let rate = match row.outcome {
            DesignStatus::Evaluated => row.throughput_sequences_per_s.or(row.times_reference),
            _ => row.bound_sequences_per_s,
        };
        let (area_mm2, power_w, cost_usd) = (Some(row.area_mm2), row.peak_power_w, row.cost_usd);
        Self {
            area_mm2,
            power_w,
            cost_usd,
            system_usd: row.system_usd,
            rate,
            step_s: row.step_time_s,
            energy_j: row.energy_per_step_j,
            energy_times_reference: row.energy_times_reference,
            times_reference_per_usd: row.times_reference_per_usd,
        }
    }
}

impl From<&ComparisonEntry> for DesignMeasures {
    fn from(entry: &ComparisonEntry) -> Self {
        Self {
            area_mm2: entry.area_mm2,
            power_w: entry.peak_power_w,
            cost_usd: entry.cost_usd,
            system_usd: entry.system_usd,
            rate: entry.throughput_sequences_per_s,
            step_s: entry.step_time_s,
            energy_j: entry.energy_per_step_j,
            ..Self::default()
        }
    }
}

/// The work of a step, which converts rates between units.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepScope {
    sequences: f64,
    sequence_tokens: f64,
    devices: f64,
    /// USD of energy over the years of use, per W that a chip draws; 0 if the cost of energy is not included.
    usd_per_watt: f64,
    /// True if an objective in dollars pays for the system around the chips.
    pays_system: bool,
    /// True if rates are means over several models.
    pub several: bool,
}

impl StepScope {
    /// Returns the work of a step in a study.
    #[must_use]
    pub fn of_study(study: &StudyRecord, several: bool) -> Self {
        let (sequences, sequence_tokens) = (study.global_batch_sequences as f64, study.sequence_tokens as f64);
        let figure = |key: &str| study.options.get(key).and_then(|text| text.parse::<f64>().ok());
        let operation = OperatingCost {
            years: figure("years").unwrap_or_default(),
            usd_per_kwh: figure("usd_per_kwh").unwrap_or_default(),
            pue: figure("pue").unwrap_or_default(),
            utilisation: figure("utilisation").unwrap_or_default(),
            ..OperatingCost::default()
        };
        let pays_system = study.options.get("dollars").is_some_and(|paid| paid == PaidHardware::System.name());
        let (devices, usd_per_watt) = (study.devices as f64, operation.usd_per_watt());
        Self { sequences, sequence_tokens, devices, usd_per_watt, pays_system, several }
    }

    /// Returns what an objective in dollars pays for a chip of an entry besides energy, in USD.
    pub(crate) fn paid_usd(&self, entry: &ComparisonEntry) -> Option<f64> {
        DesignMeasures::from(entry).paid_usd(self)
    }

    /// Returns the USD of energy of one device, per W that its cluster of `devices` draws. `None` if the cost of energy
    /// is not included.
    pub(crate) fn usd_per_cluster_watt(&self, devices: u64) -> Option<f64> {
        (self.usd_per_watt > 0.0).then(|| self.usd_per_watt / devices as f64)
    }
}

/// The axes of a front: the horizontal and the vertical one, and a third quantity if there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrontAxes {
    /// The quantity on the horizontal axis.
    pub x: FrontQuantity,
    /// The quantity on the vertical axis.
    pub y: FrontQuantity,
    /// A third quantity, which is not drawn. It can put further designs on the front.
    pub z: Option<FrontQuantity>,
}

impl FrontAxes {
    /// Returns the axes of a search: the objective against the requested quantities. Quantities that no evaluated
    /// design has are replaced by throughput and area.
    #[must_use]
    pub fn of_search(designs: &[DesignRow], study: &StudyRecord, objective: &str, several: bool) -> Self {
        let work = StepScope::of_study(study, several);
        let mut evaluated = designs.iter().filter(|row| row.outcome == DesignStatus::Evaluated).peekable();
        let nothing = evaluated.peek().is_none();
        let rows: Vec<DesignMeasures> = evaluated.map(DesignMeasures::from).collect();
        let known =
            |quantity: &FrontQuantity| nothing || rows.iter().any(|row| quantity.value_of(row, &work).is_some());
        let y = FrontQuantity::from_name(objective).filter(known).unwrap_or(FrontQuantity::THROUGHPUT);
        let asked = study.options.get("front").map_or("", String::as_str);
        let mut axes =
            asked.split(',').filter_map(FrontQuantity::from_name).filter(known).filter(|quantity| *quantity != y);
        Self { x: axes.next().unwrap_or(FrontQuantity::AREA), y, z: axes.next() }
    }

    /// Returns all quantities, the vertical one first.
    pub fn all_quantities(self) -> impl Iterator<Item = FrontQuantity> {
        [Some(self.y), Some(self.x), self.z].into_iter().flatten()
    }

    /// Describes the axes: `throughput against area and power`.
    #[must_use]
    pub fn describe_axes(self) -> String {
        let third = self.z.map_or_else(String::new, |z| format!(" and {}", z.plain_name()));
        format!("{} against {}{third}", self.y.plain_name(), self.x.plain_name())
    }

    /// Returns the designs on the front, the best along `x` first. Among designs with equal values, the one with the
    /// least HBM stays.
    #[must_use]
    pub fn front_designs<'a>(self, designs: &'a [DesignRow], work: &StepScope) -> Vec<&'a DesignRow> {
        let mut front = Front::default();
        let mut evaluated: Vec<(usize, &DesignRow)> =
            designs.iter().enumerate().filter(|(_, row)| row.outcome == DesignStatus::Evaluated).collect();
        evaluated.sort_by(|a, b| a.1.hbm_gib.total_cmp(&b.1.hbm_gib));
        for (id, row) in evaluated {
            let Some(point) = self.minimised_point(row, work) else { continue };
            front.insert(FrontPoint { costs: [point[1], point.get(2).copied().unwrap_or(0.0)], value: point[0], id });
        }
        front.points().iter().filter_map(|point| designs.get(point.id)).collect()
    }

    /// Returns the values of a design along the axes, so that less is better. `None` if a value is missing.
    fn minimised_point(self, row: &DesignRow, work: &StepScope) -> Option<Vec<f64>> {
        let measured = DesignMeasures::from(row);
        self.all_quantities()
            .map(|quantity| Some(quantity.minimised_value(quantity.value_of(&measured, work)?)))
            .collect()
    }

    /// Returns the designs of a front as points, so that less is better.
    #[must_use]
    pub fn minimised_points(self, front: &[&DesignRow], work: &StepScope) -> Vec<Vec<f64>> {
        front.iter().filter_map(|row| self.minimised_point(row, work)).collect()
    }
}

impl FrontRecord {
    /// Makes the record of a search's front. `None` if no design is on it.
    #[must_use]
    pub fn from_designs(axes: FrontAxes, designs: &[DesignRow], work: &StepScope) -> Option<Self> {
        let front = axes.front_designs(designs, work);
        let points = axes.minimised_points(&front, work);
        Self::from_points(axes, &front, &points, &FrontScales::of_fronts(&points)?)
    }

    /// Makes the record of a front that is measured with given scales. The scales may cover other fronts too. `None` if
    /// the front is empty.
    #[must_use]
    pub fn from_points(
        axes: FrontAxes,
        front: &[&DesignRow],
        points: &[Vec<f64>],
        scales: &FrontScales,
    ) -> Option<Self> {
        Some(Self {
            quantities: axes.all_quantities().map(|quantity| quantity.to_string()).collect(),
            designs: front.iter().map(|row| row.index).collect(),
            hypervolume: scales.hypervolume(points),
            knee: DesignRow::clone(front.get(scales.find_knee(points)?)?),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn designs(values: &[(f64, f64, f64)]) -> Vec<DesignRow> {
        let design = crate::run::record::example().best.unwrap().design;
        let row = |(index, &(area_mm2, power, rate)): (usize, &(f64, f64, f64))| DesignRow {
            index: index as i64,
            area_mm2,
            peak_power_w: Some(power),
            throughput_sequences_per_s: Some(rate),
            step_time_s: Some(4096.0 / rate),
            ..design.clone()
        };
        values.iter().enumerate().map(row).collect()
    }

    fn work() -> StepScope {
        StepScope::of_study(&crate::run::record::example().study, false)
    }

    #[test]
    fn a_front_of_three_has_what_each_of_two_leaves_out() {
        let designs = designs(&[(100.0, 50.0, 1.0), (100.0, 80.0, 2.0), (200.0, 40.0, 2.0), (200.0, 90.0, 2.0)]);
        let indices =
            |axes: FrontAxes| axes.front_designs(&designs, &work()).iter().map(|row| row.index).collect::<Vec<_>>();
        let area = FrontAxes { x: FrontQuantity::AREA, y: FrontQuantity::THROUGHPUT, z: None };
        assert_eq!(indices(area), [1]);
        assert_eq!(indices(FrontAxes { z: Some(FrontQuantity::Cost(FrontAxis::Power)), ..area }), [0, 1, 2]);
        assert_eq!(indices(FrontAxes { x: FrontQuantity::Cost(FrontAxis::Power), ..area }), [2]);
        // More throughput and less step time are equivalent.
        assert_eq!(indices(FrontAxes { y: FrontQuantity::Objective(Objective::StepTime), ..area }), [1]);
        assert_eq!(indices(FrontAxes { x: FrontQuantity::THROUGHPUT, y: FrontQuantity::AREA, z: None }), [1]);
    }

    #[test]
    fn quantities_have_their_units() {
        let mut row = designs(&[(200.0, 50.0, 4.0)]).remove(0);
        (row.cost_usd, row.energy_per_step_j) = (Some(8.0), Some(4096.0 * 4096.0 * 2.0));
        let of = |quantity: FrontQuantity| quantity.value_of(&DesignMeasures::from(&row), &work()).unwrap();
        // 4 sequences/s of 4096 tokens on 1024 devices are 16 tokens/s per device.
        assert_eq!(
            (
                of(FrontQuantity::Objective(Objective::PerArea)),
                of(FrontQuantity::Objective(Objective::PerWatt)),
                of(FrontQuantity::Objective(Objective::PerDollar))
            ),
            (0.08, 0.32, 2.0)
        );
        assert_eq!(
            (
                of(FrontQuantity::Objective(Objective::EnergyPerToken)),
                of(FrontQuantity::Objective(Objective::StepTime))
            ),
            (2.0, 1024.0)
        );
        // One W over four years at 0.1 USD/kWh costs 35.064 x 0.1 USD; a chip draws 32 W.
        let mut study = crate::run::record::example().study;
        let paid = [("years", "4"), ("usd_per_kwh", "0.1"), ("pue", "1"), ("utilisation", "1")];
        study.options.extend(paid.map(|(key, value)| (key.to_owned(), value.to_owned())));
        let with_energy = FrontQuantity::Objective(Objective::PerDollar)
            .value_of(&DesignMeasures::from(&row), &StepScope::of_study(&study, false))
            .unwrap();
        let watts = 4096.0 * 4096.0 * 2.0 / 1024.0 / 1024.0;
        assert!((with_energy - 16.0 / (8.0 + 3.5064 * watts)).abs() < 1e-12, "{with_energy}");
        for quantity in FrontQuantity::all() {
            assert_eq!(FrontQuantity::from_name(&quantity.to_string()), Some(quantity));
        }
    }

    #[test]
    fn the_record_of_a_front_names_its_knee() {
        let designs = designs(&[(100.0, 50.0, 1.0), (120.0, 50.0, 4.0), (200.0, 50.0, 5.0), (201.0, 50.0, 4.0)]);
        let axes = FrontAxes { x: FrontQuantity::AREA, y: FrontQuantity::THROUGHPUT, z: None };
        let record = FrontRecord::from_designs(axes, &designs, &work()).unwrap();
        assert_eq!((record.designs, record.knee.index), (vec![0, 1, 2], 1));
        assert_eq!(record.quantities, ["throughput", "area"]);
        // Throughput 5 to 1 and area 100 to 200 mm² are scaled to 0 (best) to 1 (worst). The front is (1, 0), (1/4,
        // 1/5) and (0, 1), and the reference point (1.1, 1.1).
        let covered = 0.1 * 0.2 + 0.85 * 0.8 + 1.1 * 0.1;
        assert!((record.hypervolume - covered / 1.21).abs() < 1e-12);
        assert_eq!(FrontRecord::from_designs(axes, &[], &work()), None);
    }
}
