//! The number format of a run, by name.

use crate::failure::{self, Failure};
use clap::ValueEnum;
use sim::hardware::Accelerator;
use sim::kernel::DataType;
use workloads::footprint::Precision;

/// The format of the matrix products.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum ProductFormat {
    /// bf16 throughout
    Bf16,
    /// fp16 throughout
    Fp16,
    /// Matrix products in fp8, the rest in bf16
    Fp8,
    /// Matrix products in int8, the rest in bf16
    Int8,
    /// Matrix products in MXFP8 (blocks of 32 with a scale), the rest in bf16
    Mxfp8,
    /// Matrix products in NVFP4 (4 bits, blocks of 16 with a scale), the rest in bf16
    Nvfp4,
    /// Matrix products in MXFP4 (4 bits, blocks of 32 with a scale), the rest in bf16
    Mxfp4,
}

/// Returns the number formats for the requested products, or for the chip's default: bf16, or fp16 on chips without it.
///
/// # Errors
/// A format in which the chip has no matrix products.
pub fn training_precision(products: Option<ProductFormat>, chip: &Accelerator) -> Result<Precision, Failure> {
    let Some(products) = products else {
        let default = if chip.peak_flops(DataType::Bf16).is_none() { ProductFormat::Fp16 } else { ProductFormat::Bf16 };
        return training_precision(Some(default), chip);
    };
    let precision = match products {
        ProductFormat::Bf16 => Precision::MIXED_BF16,
        ProductFormat::Fp16 => Precision { operand: DataType::Fp16, gradient: DataType::Fp16, ..Precision::MIXED_BF16 },
        ProductFormat::Fp8 => Precision::MIXED_BF16.with_product_type(DataType::Fp8),
        ProductFormat::Int8 => Precision::MIXED_BF16.with_product_type(DataType::Int8),
        ProductFormat::Mxfp8 => Precision::MIXED_BF16.with_product_type(DataType::Mxfp8),
        ProductFormat::Nvfp4 => Precision::MIXED_BF16.with_product_type(DataType::Nvfp4),
        ProductFormat::Mxfp4 => Precision::MIXED_BF16.with_product_type(DataType::Mxfp4),
    };
    if chip.peak_flops(precision.product.unwrap_or(precision.operand)).is_some() {
        return Ok(precision);
    }
    let types = DataType::ALL.into_iter().filter(|t| *t != DataType::Fp32 && chip.peak_flops(*t).is_some());
    let has: Vec<String> = types.map(|t| t.to_string()).collect();
    let asked = products.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned());
    Err(failure::option_failure(
        "--precision",
        asked,
        format!("{} has no matrix products of that type", chip.name),
        format!("use {}", has.join(" or ")),
    ))
}
