//! Calculon's three files (Isaev et al., SC 2023) and a row of them run here.

pub mod job;
pub mod row;
pub mod system;
