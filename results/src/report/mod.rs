//! Reports for people, built with [`crate::text`]. The functions return texts; nothing here prints.

mod claims;
mod coverage;
mod evaluation;
mod evaluation_summary;
mod evidence;
mod held_out;
mod papers;
mod plan;
mod plan_cells;
mod plan_families;
mod plan_summary;
mod rank_mapping;
mod run;
mod serving;
mod serving_beside;
mod serving_cases;
mod serving_explanation;
mod summary;
mod techniques;
mod validation;

pub use claims::claims_report;
pub use coverage::{coverage_report, ratio_coverage_report};
pub use evaluation::{KernelDetailLevel, evaluation_report};
pub use evaluation_summary::evaluation_summary;
pub use evidence::format_chance;
pub use held_out::{alone_report, coverage_of_alone, few_runs_report, held_out_models_report, held_out_report};
pub use papers::papers_report;
pub use plan::{memory_text, plan_report, time_parts_text};
pub use plan_summary::plan_summary;
pub use run::run_report;
pub use serving::serving_report;
pub use serving_cases::{fronts_text, serving_cases};
pub use serving_explanation::serving_explanation;
pub use summary::{best_design_summary, run_summary};
pub use techniques::techniques_report;
pub use validation::validation_report;
