//! Which plans there are: the choices that a space leaves open, its families of plans, its policies, and why none is left.

pub(crate) mod fault;
pub(crate) mod full;
pub(crate) mod groups;
pub(crate) mod plan_space;
pub(crate) mod policies;
pub(crate) mod walk;
