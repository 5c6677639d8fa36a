//! Answers of commands as data: plans, steps, comparisons, and the evidence for them. `docs/json.md` describes them.

pub mod comparison;
pub mod comparison_summary;
pub mod decision;
pub mod evaluation;
pub mod evidence;
pub mod finite;
pub mod freedoms;
pub mod hindcast;
pub mod plan;
pub mod rank_mapping;
pub mod serving;
pub mod serving_beside;
pub mod serving_explanation;
pub mod serving_method;
pub mod step;
pub mod techniques;
pub mod timeline;
pub mod whole_training;
