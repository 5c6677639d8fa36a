//! Problem formats of other projects, each solved or run under its own rules. They are separate from this project's own
//! model.

pub mod calculon;
pub mod phaze;
pub mod piper;
