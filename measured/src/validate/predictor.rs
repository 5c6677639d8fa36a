//! The predictor of each data set.

use super::dataset::Dataset;
use super::predict::{self, PreparedInputs};
use super::row::{MeasuredRow, RowFailure};

/// A function that predicts the target columns of a row. It returns pairs of a column and a value in the column's unit.
pub(super) type RowPredictor =
    fn(&mut PreparedInputs, &MeasuredRow<'_>) -> Result<Vec<(&'static str, f64)>, RowFailure>;

impl Dataset {
    /// Returns the predictor of the data set.
    pub(super) fn predictor(self) -> RowPredictor {
        match self {
            Self::StreamContention => predict::streams::predict_streams,
            Self::SystolicCycles => predict::systolic::predict_systolic,
            Self::Collectives => predict::collectives::predict_collective,
            Self::Kernels => predict::kernels::predict_kernel,
            Self::KernelEnergy => predict::energy::predict_energy,
            Self::DecodePasses => predict::decode::predict_decode,
            Self::DieArea => predict::die_area::predict_area,
            Self::TrainingRuns => predict::training::predict_training,
            Self::MemoryPeaks => predict::memory::predict_memory,
            Self::FinetuningPeaks => predict::finetuning::predict_peak,
            Self::Serving => predict::serving::predict_serving,
        }
    }
}
