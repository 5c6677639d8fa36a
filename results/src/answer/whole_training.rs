//! Time, energy and price of a whole training under one plan.

use serde::{Deserialize, Serialize};

/// A step of a training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrainedStep {
    /// The tokens of the step.
    pub tokens: u64,
    /// The time of the step, in seconds.
    pub seconds: f64,
    /// The 90 % interval of the time, in seconds; `None` if it is not known.
    pub interval_s: Option<[f64; 2]>,
    /// The energy of the step over all devices, in joules.
    pub energy_j: f64,
}

/// The time, energy and price of a whole training. Restarts, evaluation and checkpoints are not counted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WholeTraining {
    /// Tokens that are trained on.
    pub tokens: u64,
    /// Optimizer steps; the last one is counted as a full step.
    pub steps: u64,
    /// Days of 24 hours.
    pub days: f64,
    /// The days at both ends of the step's 90 % interval; `None` if the plan has no interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub days_interval: Option<[f64; 2]>,
    /// Hours summed over all devices.
    pub device_hours: f64,
    /// Energy of the chips and their memories in kWh, without hosts, network and cooling.
    pub chips_kwh: f64,
    /// The price of the device hours in USD, if the price of one hour is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usd: Option<f64>,
}

/// Seconds of a day.
const DAY_S: f64 = 86_400.0;
/// Joules of a kilowatt-hour.
const KWH_J: f64 = 3.6e6;

impl WholeTraining {
    /// Returns the figures of a training on `tokens` with `devices`. `usd_per_device_hour` is the price of one device
    /// for an hour.
    #[must_use]
    pub fn of_steps(step: &TrainedStep, tokens: u64, devices: u32, usd_per_device_hour: Option<f64>) -> Self {
        let steps = tokens.div_ceil(step.tokens.max(1));
        let days_of = |step_s: f64| steps as f64 * step_s / DAY_S;
        let device_hours = days_of(step.seconds) * 24.0 * f64::from(devices);
        Self {
            tokens,
            steps,
            days: days_of(step.seconds),
            days_interval: step.interval_s.map(|ends| ends.map(days_of)),
            device_hours,
            chips_kwh: steps as f64 * step.energy_j / KWH_J,
            usd: usd_per_device_hour.map(|price| price * device_hours),
        }
    }
}
