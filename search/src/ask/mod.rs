//! Questions as values, and the table of the decisions that a plan makes.
//!
//! The command line, study files, JSON, records and error messages read [`DECISIONS`]. Nothing else lists the decisions
//! of a plan.

mod by_table;
mod choices;
mod decision;
mod deployment;
mod layout_filter;
mod parts;
mod question;
mod spelling;

pub(crate) use by_table::{OfKey, Words};
pub use choices::{PlanSpace, Splits};
pub use decision::{Access, DECISIONS, Decision, DecisionValues, Degree, schedule_of};
pub use deployment::{DeploymentCase, DeploymentQuestion, DeploymentSpec, MethodSpec, ServedPools};
pub use layout_filter::{LayoutFilter, PlanFamily};
pub use parts::{ClusterSpec, LimitSpec, Tolerances, WorkloadSpec};
pub use question::{AimSpec, ChipChoice, Question, QuestionDifference, Software};
