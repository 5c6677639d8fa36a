//! Deployments as points: tokens per second and device against tokens per second and user, or against a time.

use super::case::{ServedCase, length_words};
use crate::answer::serving::ServingChoice;
use crate::figure::{AxisScale, DesignPoint, ParetoPlot, RunSeries};
use crate::store::design::DesignStatus;
use search::ask::DeploymentQuestion;
use serde::{Deserialize, Serialize};
use serving::best::ServingBound;

/// The file of all deployments.
pub const DEPLOYMENTS: &str = "deployments.csv";

/// Values that differ by less than this fraction count as equal. The search for the highest rate meets a limit only
/// within the tolerance of its bisection.
const SAME: f64 = 1e-6;

/// A deployment of a case: a row of `deployments.csv`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServedPoint {
    /// Place of the case in the record, from 0.
    pub case: u64,
    /// The lengths of requests in words.
    pub lengths: String,
    /// The limit on the mean time to the first token, in ms.
    pub ttft_limit_ms: Option<f64>,
    /// The limit on the mean time per output token, in ms.
    pub tpot_limit_ms: Option<f64>,
    /// The chips of the pools.
    pub chip: String,
    /// The plans of the pools.
    pub plan: String,
    /// Devices in use.
    pub devices: u32,
    /// Mean time to the first token, in ms.
    pub ttft_ms: f64,
    /// Mean time between two tokens, in ms.
    pub tpot_ms: f64,
    /// Output tokens per second that a user sees: one over the time between two tokens.
    pub tokens_per_s_per_user: f64,
    /// Output tokens per second and device in use.
    pub tokens_per_s_per_device: f64,
    /// Output tokens per second of the deployment.
    pub tokens_per_s: f64,
    /// The value of the objective, if it is known.
    pub value: Option<f64>,
    /// The limit that keeps the deployment from serving more.
    pub limited_by: ServingBound,
    /// True if no deployment on the same chip for the same lengths exceeds it in both rates.
    pub on_front: bool,
}

impl ServedPoint {
    /// Makes the point of a deployment. Its `on_front` is false at first.
    #[must_use]
    pub fn of_choice(place: usize, case: &ServedCase, choice: &ServingChoice) -> Self {
        Self {
            case: place as u64,
            lengths: length_words(&case.lengths),
            ttft_limit_ms: case.ttft_limit_ms,
            tpot_limit_ms: case.tpot_limit_ms,
            chip: choice.chip_words(),
            plan: choice.plan_words(),
            devices: choice.devices,
            ttft_ms: choice.ttft_ms,
            tpot_ms: choice.tpot_ms,
            tokens_per_s_per_user: choice.tokens_per_s_per_user(),
            tokens_per_s_per_device: choice.tokens_per_s_per_device,
            tokens_per_s: choice.tokens_per_s,
            value: choice.value,
            limited_by: choice.limited_by,
            on_front: false,
        }
    }
}

/// The quantity against which tokens per second and device are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ServedAxis {
    /// Output tokens per second of a user.
    #[default]
    PerUser,
    /// Mean time per output token, in ms.
    TimePerOutputToken,
    /// Mean time to the first token, in ms.
    TimeToFirstToken,
}

impl ServedAxis {
    /// Every axis with its name.
    pub const NAMES: [(&'static str, Self); 3] =
        [("per-user", Self::PerUser), ("tpot", Self::TimePerOutputToken), ("ttft", Self::TimeToFirstToken)];

    /// Finds the axis of this name; `None` if there is none.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.into_iter().find(|(known, _)| *known == name).map(|(_, axis)| axis)
    }

    /// Returns the value of a point along this axis.
    #[must_use]
    pub fn value_of(self, point: &ServedPoint) -> f64 {
        match self {
            Self::PerUser => point.tokens_per_s_per_user,
            Self::TimePerOutputToken => point.tpot_ms,
            Self::TimeToFirstToken => point.ttft_ms,
        }
    }

    /// Returns the label of the axis, with its unit.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::PerUser => "tokens/s per user",
            Self::TimePerOutputToken => "time per output token (ms)",
            Self::TimeToFirstToken => "time to the first token (ms)",
        }
    }

    fn more_is_better(self) -> bool {
        self == Self::PerUser
    }
}

/// The points of one chip and one distribution of lengths that no other such point exceeds along both axes, sorted by
/// falling tokens per second and device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServedFront {
    /// The chips of the pools.
    pub chip: String,
    /// The lengths of requests in words.
    pub lengths: String,
    /// The points.
    pub points: Vec<ServedPoint>,
}

/// Returns the front of every chip and distribution of lengths, in the order in which the points have them.
#[must_use]
pub fn fronts_of_points(points: &[ServedPoint], axis: ServedAxis) -> Vec<ServedFront> {
    let mut fronts: Vec<ServedFront> = Vec::new();
    for point in points {
        let front = fronts.iter_mut().find(|front| front.chip == point.chip && front.lengths == point.lengths);
        match front {
            Some(front) => front.points.push(point.clone()),
            None => fronts.push(ServedFront {
                chip: point.chip.clone(),
                lengths: point.lengths.clone(),
                points: vec![point.clone()],
            }),
        }
    }
    let cost = |point: &ServedPoint| {
        let value = axis.value_of(point);
        if axis.more_is_better() { -value } else { value }
    };
    for front in &mut fronts {
        front.points.sort_by(|a, b| {
            b.tokens_per_s_per_device.total_cmp(&a.tokens_per_s_per_device).then(cost(a).total_cmp(&cost(b)))
        });
        let mut least: Option<f64> = None;
        front.points.retain(|point| {
            let better = least.is_none_or(|least| cost(point) < least - SAME * least.abs());
            if better {
                least = Some(cost(point));
            }
            better
        });
        front.points.iter_mut().for_each(|point| point.on_front = true);
    }
    fronts
}

/// Rounds a value to the digits that [`SAME`] tells apart.
fn rounded(value: f64) -> f64 {
    let digit = SAME * 10_f64.powf(value.abs().max(f64::MIN_POSITIVE).log10().ceil());
    (value / digit).round() * digit
}

/// Returns the plot of the points of runs, each run with its name. Every chip and distribution of lengths is a series.
#[must_use]
pub fn plot_of_fronts(runs: &[(&str, &DeploymentQuestion, &[ServedPoint])], axis: ServedAxis) -> ParetoPlot {
    let mut series = Vec::new();
    for (name, _, points) in runs {
        let fronts = fronts_of_points(points, axis);
        let several_lengths = fronts.iter().any(|front| front.lengths != fronts[0].lengths);
        for front in &fronts {
            let mut words = vec![front.chip.clone()];
            words.extend(several_lengths.then(|| front.lengths.clone()));
            words.extend((runs.len() > 1).then(|| (*name).to_owned()));
            let own = points.iter().filter(|point| point.chip == front.chip && point.lengths == front.lengths);
            let of = |point: &ServedPoint| DesignPoint {
                x: rounded(axis.value_of(point)),
                outcome: DesignStatus::Evaluated,
                y: Some(point.tokens_per_s_per_device),
            };
            let points = own.map(of).collect();
            let front = "Pareto front".to_owned();
            series.push(RunSeries { name: words.join(", "), points, front, largest_x: None, third: None });
        }
    }
    let models: Vec<&str> = runs.iter().map(|(_, asked, _)| asked.model.as_str()).collect();
    let same = models.iter().all(|model| Some(model) == models.first());
    let model = models.first().filter(|_| same).copied().unwrap_or("several models");
    let setting = runs.first().map_or_else(String::new, |(_, asked, points)| {
        let lengths = points.first().map_or_else(String::new, |point| format!(", {}", point.lengths));
        let one = points.iter().all(|point| Some(&point.lengths) == points.first().map(|first| &first.lengths));
        format!("{} devices, {}{}", asked.devices, asked.engine, if one { lengths.as_str() } else { "" })
    });
    ParetoPlot {
        noun: "deployment",
        title: format!("{model}: tokens/s per device against {}", axis.label()),
        subtitle: if runs.len() > 1 { "each run with its own question".to_owned() } else { setting },
        x: AxisScale { label: axis.label().to_owned(), more_is_better: axis.more_is_better() },
        y: AxisScale { label: "tokens/s per device".to_owned(), more_is_better: true },
        series,
        references: Vec::new(),
        left_out: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(chip: &str, per_device: f64, tpot_ms: f64) -> ServedPoint {
        ServedPoint {
            case: 0,
            lengths: "1024 + 256 tokens".to_owned(),
            ttft_limit_ms: None,
            tpot_limit_ms: None,
            chip: chip.to_owned(),
            plan: "1 x tp 8".to_owned(),
            devices: 8,
            ttft_ms: 100.0,
            tpot_ms,
            tokens_per_s_per_user: 1e3 / tpot_ms,
            tokens_per_s_per_device: per_device,
            tokens_per_s: 8.0 * per_device,
            value: None,
            limited_by: ServingBound::Load,
            on_front: false,
        }
    }

    /// Points are (tokens/s per device, ms per token). (70, 8) is worse than (80, 5) in both, and (100, 12) is slower
    /// than (100, 10). (90, 10 - 1e-8) is as fast as (100, 10) up to rounding, with fewer tokens/s. The front has the
    /// other three.
    #[test]
    fn a_front_holds_what_nothing_exceeds_for_each_chip() {
        let own = [(100.0, 10.0), (80.0, 5.0), (70.0, 8.0), (100.0, 12.0), (60.0, 4.0), (90.0, 10.0 - 1e-8)];
        let mut points: Vec<ServedPoint> = own.iter().map(|(rate, ms)| point("a", *rate, *ms)).collect();
        points.push(point("b", 10.0, 20.0));
        for axis in [ServedAxis::PerUser, ServedAxis::TimePerOutputToken] {
            let fronts = fronts_of_points(&points, axis);
            let rates: Vec<f64> = fronts[0].points.iter().map(|point| point.tokens_per_s_per_device).collect();
            assert_eq!((fronts.len(), rates), (2, vec![100.0, 80.0, 60.0]));
            assert!(fronts.iter().flat_map(|front| &front.points).all(|point| point.on_front));
        }
    }
}
