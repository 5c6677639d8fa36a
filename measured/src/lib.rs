//! Compares predictions with measurements. This crate reads measured rows, predicts each of them, fits scalars to rows,
//! and derives intervals from the errors. It never searches and never prints.

pub mod evidence;
pub mod validate;
