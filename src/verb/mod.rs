//! One file per verb, with its arguments, its calls and its output.

pub mod calculon;
pub mod calibrate;
pub mod compare;
pub mod doctor;
pub mod evaluate;
pub mod explain;
pub mod init;
pub mod job;
pub mod list;
pub mod merge;
pub mod pareto;
pub mod place;
pub mod plan;
pub mod report;
pub mod scalesim;
pub mod schedule;
pub mod search;
pub mod serve;
pub mod shell;
pub mod slurm;
mod stop;
pub mod sweep;
pub mod techniques;
pub mod validate;
