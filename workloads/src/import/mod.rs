//! Readers of model descriptions. A new format needs a file here and a line below.

pub mod hugging_face;
mod load;
