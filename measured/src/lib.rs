//! How far off predictions are: measured data, every row predicted, scalars fitted to rows, and the intervals that the
//! errors make. It never searches and never prints.

pub mod evidence;
pub mod validate;
