//! A whole training of so many tokens under one plan.

use serde::{Deserialize, Serialize};

/// A step of a training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrainedStep {
    /// Its tokens.
    pub tokens: u64,
    /// Its time, s.
    pub seconds: f64,
    /// The ends of the time's 90 % interval, s, where it has one.
    pub interval_s: Option<[f64; 2]>,
    /// Its energy over all devices, J.
    pub energy_j: f64,
}

/// The time, energy and price of a whole training. Restarts, evaluation and checkpoints are not counted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WholeTraining {
    /// Tokens that are trained on.
    pub tokens: u64,
    /// Optimizer steps, the last one whole.
    pub steps: u64,
    /// Days of 24 hours.
    pub days: f64,
    /// The days at both ends of the step's 90 % interval, where the plan has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub days_interval: Option<[f64; 2]>,
    /// Hours summed over all devices.
    pub device_hours: f64,
    /// Energy of the chips and their memories, kWh, without hosts, network and cooling.
    pub chips_kwh: f64,
    /// The price of the device hours, USD, where one hour's is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usd: Option<f64>,
}

/// Seconds of a day.
const DAY_S: f64 = 86_400.0;
/// Joules of a kilowatt-hour.
const KWH_J: f64 = 3.6e6;

impl WholeTraining {
    /// The training of `tokens` on `devices`, of which a device hour costs `usd_per_device_hour`.
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
