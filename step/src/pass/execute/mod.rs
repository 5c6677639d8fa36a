//! How a device runs the kernels of a pass: in sequence, or by the operator schedule ([`scheduled`]). Both give the
//! same [`PassProfile`](crate::PassProfile).

pub(crate) mod detail;
pub(crate) mod scheduled;
mod shared_ports;
