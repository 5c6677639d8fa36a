//! Plans whose stages have policies of their own.

pub(crate) mod blocks;
pub(crate) mod layer_policies;
pub(crate) mod mixed;
pub(crate) mod stages;
