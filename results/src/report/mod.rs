//! Text for people: numbers with units, aligned tables, key-value blocks. Pure functions; nothing here prints.

mod calculon;
mod evaluated;
mod mapped;
mod number;
mod papers;
mod planned;
mod run;
mod table;
mod techniques;

pub use calculon::calculon;
pub use evaluated::{Kernels, evaluated};
pub use number::{area, bytes, count, gib, percent, power_of_ten_rate, rate, seconds, signed_percent, significant};
pub use papers::papers;
pub use planned::planned;
pub use run::{best_design, certificate, run};
pub use table::{Align, Table, assumptions, fields, folded, heading};
pub use techniques::techniques;
