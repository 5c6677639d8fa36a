//! Files on disk: rows of designs and their Parquet file, atomic writes, digests and checksums.

pub mod design;
pub mod design_file;
pub mod files;
pub(crate) mod limits;
pub(crate) mod seal;
pub mod sums;
