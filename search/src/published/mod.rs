//! Others' problem formats, each solved or run under its own rules: they stand apart from the main way.

pub mod calculon;
pub mod phaze;
pub mod piper;
