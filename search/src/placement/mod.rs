//! Placement: how the layers of a model are split into pipeline stages and laid out on the devices of a cluster.

pub mod plan;
