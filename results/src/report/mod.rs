//! Reports for people, of [`crate::text`]. Pure functions; nothing here prints.

mod calculon;
mod claims;
mod coverage;
mod evaluated;
mod evidence;
mod mapped;
mod papers;
mod planned;
mod run;
mod techniques;

pub use calculon::calculon;
pub use claims::claims;
pub use coverage::coverage;
pub use evaluated::{Kernels, evaluated};
pub use papers::papers;
pub use planned::planned;
pub use run::{certificate, run};
pub use techniques::techniques;

pub use crate::text::{
    Align, Table, area, assumptions, bytes, count, fields, fit, fitting, folded, gib, heading, percent, power_of_ten_rate, rate,
    seconds, signed_percent, significant,
};
