//! A plan in the words of the framework that will run it.

mod maxtext;
mod megatron;

pub use maxtext::maxtext;
pub use megatron::megatron;
