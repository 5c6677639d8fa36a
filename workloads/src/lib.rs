//! coplace workloads.
