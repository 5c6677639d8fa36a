//! The command from the outside: every verb, with exit codes and error texts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod away;
mod bad_input;
mod book;
mod constants;
mod enough;
mod experts;
mod explain;
mod framework_files;
mod golden;
mod help;
mod hostile;
mod init;
mod instances;
mod interchange;
mod like_with_like;
mod links;
mod lists;
mod logs;
mod manners;
mod measured;
mod plan;
mod power;
mod report;
mod robust;
mod search;
mod search_parts;
mod several;
mod slurm;
mod space_errors;
mod support;
mod sweep;
mod techniques;
mod widths;
mod within;
