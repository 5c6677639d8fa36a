//! The physical scalars of a chip that are fitted to measurements. They are few, named and bounded; the defaults are
//! ideal.

use super::PerDataType;
use crate::kernel::DataType;
use crate::units::Seconds;
use serde::{Deserialize, Serialize};

/// The measured properties of a chip beyond its data sheet. The default is the ideal chip: no overhead, no latency
/// beyond the memories' own, every peak reached. There are at most eight scalars and a rate per number format. None of
/// them depends on a kernel's shape.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Time to start a kernel on the device; every measurement contains it.
    pub launch_overhead: Seconds,
    /// Time that the host adds to a native library call (a contraction, a softmax, a copy) timed from the host.
    pub host_overhead: Seconds,
    /// The least time of a composed operation (a normalisation, an activation written in the framework's language)
    /// timed from the host. The host is busy that long; the device starts `host_overhead` before the host is done.
    pub host_dispatch: Seconds,
    /// Fraction of the HBM's peak bandwidth that a long stream reaches.
    pub hbm_achieved_fraction: f64,
    /// Fraction of the arrays' peak that a large contraction reaches.
    pub tensor_achieved_fraction: f64,
    /// Fraction of the lanes' peak that a long elementwise stream reaches.
    pub vector_achieved_fraction: f64,
    /// Fraction of computing and of each shared memory's traffic that is hidden behind the longest of them in a
    /// contraction. It is 1 with perfect double buffering, and 0 where the software stack loads, computes and stores in
    /// turn. It applies only to kernels measured alone: in a compiled step the next kernel's data moves meanwhile.
    pub overlap_fraction: f64,
    /// Fraction of a row function's elementary passes (mean, centring, variance, scaling, ...) that the software stack
    /// runs as separate kernels instead of fused; 0 with hand-written kernels. It applies only to kernels measured
    /// alone: a compiled step fuses them.
    pub unfused_fraction: f64,
    /// Fraction of the arrays' peak for a number format whose products were measured: the energy of the format's
    /// products makes power hold the clock down. A format without a value takes `tensor_achieved_fraction`.
    #[serde(default, skip_serializing_if = "PerDataType::is_empty")]
    pub achieved_by_format: PerDataType<f64>,
}

impl Default for Calibration {
    fn default() -> Self {
        Self {
            launch_overhead: Seconds::ZERO,
            host_overhead: Seconds::ZERO,
            host_dispatch: Seconds::ZERO,
            hbm_achieved_fraction: 1.0,
            tensor_achieved_fraction: 1.0,
            vector_achieved_fraction: 1.0,
            overlap_fraction: 1.0,
            unfused_fraction: 0.0,
            achieved_by_format: PerDataType::default(),
        }
    }
}

/// One scalar of [`Calibration`] for fitting: its key in the chip's file, and the range of a fit.
#[derive(Debug, Clone, Copy)]
pub struct CalibrationParameter {
    /// The key in the `[calibration]` table of a chip's file.
    pub key: &'static str,
    /// The value of an ideal chip, in the key's unit.
    pub ideal: f64,
    /// The smallest physical value, in the key's unit.
    pub min: f64,
    /// The largest plausible value, in the key's unit.
    pub max: f64,
    /// Reads it, in the key's unit.
    pub get: fn(&Calibration) -> f64,
    /// Sets it, in the key's unit.
    pub set: fn(&mut Calibration, f64),
}

impl Calibration {
    /// All scalars.
    pub const PARAMETERS: [CalibrationParameter; 8] = [
        CalibrationParameter {
            key: "launch_overhead_us",
            ideal: 0.0,
            min: 0.0,
            max: 1000.0,
            get: |c| c.launch_overhead.micros(),
            set: |c, v| c.launch_overhead = Seconds::from_micros(v),
        },
        CalibrationParameter {
            key: "host_overhead_us",
            ideal: 0.0,
            min: 0.0,
            max: 10_000.0,
            get: |c| c.host_overhead.micros(),
            set: |c, v| c.host_overhead = Seconds::from_micros(v),
        },
        CalibrationParameter {
            key: "host_dispatch_us",
            ideal: 0.0,
            min: 0.0,
            max: 10_000.0,
            get: |c| c.host_dispatch.micros(),
            set: |c, v| c.host_dispatch = Seconds::from_micros(v),
        },
        CalibrationParameter {
            key: "hbm_achieved_fraction",
            ideal: 1.0,
            min: 0.01,
            max: 1.0,
            get: |c| c.hbm_achieved_fraction,
            set: |c, v| c.hbm_achieved_fraction = v,
        },
        CalibrationParameter {
            key: "tensor_achieved_fraction",
            ideal: 1.0,
            min: 0.01,
            max: 1.0,
            get: |c| c.tensor_achieved_fraction,
            set: |c, v| c.tensor_achieved_fraction = v,
        },
        CalibrationParameter {
            key: "vector_achieved_fraction",
            ideal: 1.0,
            min: 0.01,
            max: 1.0,
            get: |c| c.vector_achieved_fraction,
            set: |c, v| c.vector_achieved_fraction = v,
        },
        CalibrationParameter {
            key: "overlap_fraction",
            ideal: 1.0,
            min: 0.0,
            max: 1.0,
            get: |c| c.overlap_fraction,
            set: |c, v| c.overlap_fraction = v,
        },
        CalibrationParameter {
            key: "unfused_fraction",
            ideal: 0.0,
            min: 0.0,
            max: 1.0,
            get: |c| c.unfused_fraction,
            set: |c, v| c.unfused_fraction = v,
        },
    ];

    /// The key of the rates per number format.
    pub const BY_FORMAT: &'static str = "achieved_by_format";
    /// The valid values of [`Self::achieved_by_format`].
    pub const FORMAT_FRACTIONS: std::ops::RangeInclusive<f64> = 0.01..=1.0;

    /// Returns the fraction of the arrays' peak that a large product of this format reaches.
    #[must_use]
    pub fn achieved_fraction_of(&self, format: DataType) -> f64 {
        self.achieved_by_format.get(format).unwrap_or(self.tensor_achieved_fraction)
    }

    /// Returns the same scalars with the rates of all formats scaled, as a lower clock would scale them.
    #[must_use]
    pub fn scale_tensor_rates(self, factor: f64) -> Self {
        let achieved_by_format = self.achieved_by_format.map_values(|fraction| fraction * factor);
        Self { tensor_achieved_fraction: self.tensor_achieved_fraction * factor, achieved_by_format, ..self }
    }

    /// Returns the scalar with this key, if there is one.
    #[must_use]
    pub fn find_parameter(key: &str) -> Option<&'static CalibrationParameter> {
        const { &Self::PARAMETERS }.iter().find(|parameter| parameter.key == key)
    }
}
