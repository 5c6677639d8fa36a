//! coplace search.
