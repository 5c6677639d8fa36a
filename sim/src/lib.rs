//! coplace sim.
