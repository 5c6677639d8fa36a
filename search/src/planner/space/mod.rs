//! Lists the plans of a space: its open choices, its degree classes and its policies. It also explains why no plan is
//! left.

mod documented;
pub(crate) mod enumerate;
pub(crate) mod fault;
pub(crate) mod full;
pub(crate) mod groups;
mod narrow;
pub(crate) mod plan_space;
pub(crate) mod policies;
