//! Text for people: numbers with units, aligned tables, key-value blocks.

mod number;
mod shell;
mod table;

pub use number::{
    format_apart, format_area, format_bytes, format_count, format_gib, format_percent, format_rate, format_seconds,
    format_seconds_between, format_significant, power_of_ten_rate,
};
pub use shell::quote_shell_word;
pub use table::{
    ColumnAlign, TextTable, escape_controls, fold_line, fold_lines, format_assumptions, format_fields, format_heading,
    set_screen_width,
};
