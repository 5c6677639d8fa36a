//! Execution of a pass's kernels on a device: in sequence, or by the operator schedule ([`scheduled`]). Both give the
//! same [`PassProfile`](crate::PassProfile).

pub(crate) mod detail;
pub(crate) mod scheduled;
mod shared_ports;
