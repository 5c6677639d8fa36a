//! Readers of model descriptions. A new format is a file here and a line below.

pub mod hugging_face;
mod load;
