//! Text for people: numbers with units, aligned tables, key-value blocks.

mod number;
mod table;

pub use number::{
    area, bytes, count, gib, percent, power_of_ten_rate, rate, seconds, seconds_between, signed_percent, significant,
};
pub use table::{Align, Table, assumptions, fields, fit, fitting, folded, heading};
