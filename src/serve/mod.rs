//! The verbs that serve until they are stopped: an agent, or a browser. They belong to the program alone.

pub mod mcp;
pub mod page;
