//! Which plans there are: the choices that a space leaves open, its families of plans, its policies, and why none is left.

mod documented;
pub(crate) mod enumerate;
pub(crate) mod fault;
pub(crate) mod full;
pub(crate) mod groups;
mod narrow;
pub(crate) mod plan_space;
pub(crate) mod policies;
