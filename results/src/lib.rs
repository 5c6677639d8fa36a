//! coplace results.
