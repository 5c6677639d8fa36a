//! Calculon (Isaev et al., SC 2023): reads its three files, and runs a row of them under the models of this project.

pub mod job;
pub mod row;
pub mod system;
