//! Reports for people, built from [`crate::text`]. The functions are pure: nothing here prints.

mod coverage;
mod evaluated;
mod evidence;
mod held_out;
mod mapped;
mod papers;
mod planned;
mod run;
mod techniques;
mod validation;

pub use coverage::coverage_report;
pub use evaluated::{KernelDetailLevel, evaluated_report};
pub use held_out::{alone_report, coverage_of_alone, few_runs_report, held_out_report};
pub use papers::papers_report;
pub use planned::{memory_text, planned_report, time_parts_text};
pub use run::{certificate_text, run_report};
pub use techniques::techniques_report;

pub use validation::validation_report;

pub use crate::text::{
    ColumnAlign, TextTable, fold_line, fold_lines, format_area, format_assumptions, format_bytes, format_count, format_fields,
    format_gib, format_heading, format_percent, format_rate, format_seconds, format_signed_percent, format_significant,
    power_of_ten_rate, set_screen_width,
};
