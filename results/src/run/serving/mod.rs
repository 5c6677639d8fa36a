//! Runs of `coplace serve`: the record with the question and its answers, and every deployment as a row of a CSV file.

mod case;
mod directory;
mod point;
mod record;
mod verify;

pub use case::{ServedCase, format_or_dash};
pub use directory::{FILES, ServingRun, ServingRunError};
pub use point::{DEPLOYMENTS, ServedAxis, ServedFront, ServedPoint, fronts_of_points, plot_of_fronts};
pub use record::{SERVE, SERVING_FORMAT, ServingCases, ServingRecord};
