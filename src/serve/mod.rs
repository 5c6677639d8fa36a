//! The verbs that serve an agent or a browser until they are stopped. Other programs cannot call them.

pub mod mcp;
pub mod page;
