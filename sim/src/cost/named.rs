//! Kernels by their names in measurements: `gemm`, `softmax`, `gelu`, ...

use crate::kernel::{
    Contraction, DataType, Direction, Elementwise, ElementwiseFunction, Epilogue, Kernel, Reduction, RowFunction,
};
use crate::units::Bytes;

/// The reason why a name and a shape do not form a kernel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Not one of [`KERNEL_NAMES`].
    #[error("unknown kernel {name:?}; known are: {}", KERNEL_NAMES.join(", "))]
    UnknownKernel {
        /// The name given.
        name: String,
    },
    /// An unknown data type.
    #[error(
        "unknown data type {name:?}; known are: fp32 (float32), bf16 (bfloat16), fp16 (float16), fp8, int8, mxfp8, nvfp4, mxfp4"
    )]
    UnknownType {
        /// The name given.
        name: String,
    },
    /// A dimension that the kernel needs is missing or zero.
    #[error("{kernel} needs {dimension}, which is missing or zero: give a positive {dimension}")]
    MissingDimension {
        /// The kernel's name.
        kernel: String,
        /// The dimension's column.
        dimension: &'static str,
    },
}

/// All names that [`kernel_from_name`] accepts.
pub const KERNEL_NAMES: [&str; 27] = [
    "gemm",
    "gemm_dgrad",
    "gemm_wgrad",
    "softmax",
    "layernorm",
    "rmsnorm",
    "softmax_backward",
    "layernorm_backward",
    "rmsnorm_backward",
    "adamw",
    "add",
    "mul",
    "indexed",
    "relu",
    "leaky_relu",
    "parametric_relu",
    "elu",
    "selu",
    "gelu",
    "silu",
    "sigmoid",
    "tanh",
    "exp",
    "linear",
    "binary_step",
    "hbm_copy",
    "hbm_copy_rw",
];

/// The shape columns of a measurement; zero if a column is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KernelShape {
    /// Rows.
    pub m: u64,
    /// Columns of the result; the length of a row.
    pub n: u64,
    /// The contracted dimension.
    pub k: u64,
    /// Independent products or matrices; zero counts as one.
    pub batch: u64,
    /// Total number of elements, for elementwise kernels.
    pub elements: u64,
}

/// Returns the data type of a name: canonical (`bf16`) or as frameworks print it (`bfloat16`).
///
/// [`NameError::UnknownType`] for any other name.
pub fn data_type_from_name(name: &str) -> Result<DataType, NameError> {
    match name.to_ascii_lowercase().as_str() {
        "fp32" | "float32" | "f32" => Ok(DataType::Fp32),
        "bf16" | "bfloat16" => Ok(DataType::Bf16),
        "fp16" | "float16" | "f16" | "half" => Ok(DataType::Fp16),
        "fp8" | "float8" | "e4m3" | "e5m2" => Ok(DataType::Fp8),
        "int8" | "s8" | "i8" => Ok(DataType::Int8),
        "mxfp8" => Ok(DataType::Mxfp8),
        "nvfp4" => Ok(DataType::Nvfp4),
        "mxfp4" => Ok(DataType::Mxfp4),
        _ => Err(NameError::UnknownType { name: name.to_owned() }),
    }
}

/// Row functions by name.
const ROW_FUNCTIONS: [(&str, RowFunction, Direction); 6] = [
    ("softmax", RowFunction::Softmax, Direction::Forward),
    ("layernorm", RowFunction::LayerNorm, Direction::Forward),
    ("rmsnorm", RowFunction::RmsNorm, Direction::Forward),
    ("softmax_backward", RowFunction::Softmax, Direction::Backward),
    ("layernorm_backward", RowFunction::LayerNorm, Direction::Backward),
    ("rmsnorm_backward", RowFunction::RmsNorm, Direction::Backward),
];

/// Elementwise functions by name, with the numbers that are read per element.
const ELEMENTWISE_FUNCTIONS: [(&str, ElementwiseFunction, u64); 20] = [
    ("adamw", ElementwiseFunction::Adam, 4),
    ("add", ElementwiseFunction::Add, 2),
    ("mul", ElementwiseFunction::Mul, 2),
    ("indexed", ElementwiseFunction::Indexed, 2),
    ("gather", ElementwiseFunction::Gather, 1),
    // Reads the addend, and the row to which it adds.
    ("scatter_add", ElementwiseFunction::ScatterAdd, 2),
    ("relu", ElementwiseFunction::Relu, 1),
    ("leaky_relu", ElementwiseFunction::LeakyRelu, 1),
    ("parametric_relu", ElementwiseFunction::ParametricRelu, 1),
    ("elu", ElementwiseFunction::Elu, 1),
    ("selu", ElementwiseFunction::Selu, 1),
    ("gelu", ElementwiseFunction::Gelu, 1),
    ("silu", ElementwiseFunction::Silu, 1),
    ("sigmoid", ElementwiseFunction::Sigmoid, 1),
    ("tanh", ElementwiseFunction::Tanh, 1),
    ("exp", ElementwiseFunction::Exp, 1),
    ("binary_step", ElementwiseFunction::BinaryStep, 1),
    ("linear", ElementwiseFunction::Copy, 1),
    ("hbm_copy", ElementwiseFunction::Copy, 1),
    ("hbm_copy_rw", ElementwiseFunction::Copy, 1),
];

/// Returns the kernel that a measurement names:
/// - `gemm` is (m, k) x (k, n) with the result in the operands' type; `gemm_dgrad` (a gradient of inputs) is the same.
/// - `gemm_wgrad` adds its result to an fp32 sum.
/// - Row functions take m rows of n. `softmax_backward` and the norms' gradients with respect to their rows read two
///   such matrices and write one.
/// - `adamw` updates `elements` weights that have the type of their gradients and moments: four numbers read and three
///   written per weight (PyTorch's fused AdamW).
/// - Elementwise kernels take `elements`, or batch x m x n if `elements` is zero.
/// - `hbm_copy` reads its elements from the device's memory and leaves them on chip; `hbm_copy_rw` also writes them
///   back.
///
/// # Errors
/// [`NameError`] for an unknown name, and for a missing or zero dimension that the kernel needs.
pub fn kernel_from_name(name: &str, shape: KernelShape, data_type: DataType) -> Result<Kernel, NameError> {
    let need = |value: u64, dimension: &'static str| {
        if value == 0 { Err(NameError::MissingDimension { kernel: name.to_owned(), dimension }) } else { Ok(value) }
    };
    let batch = shape.batch.max(1);
    match name {
        "gemm" => {
            let (m, n, k) = (need(shape.m, "m")?, need(shape.n, "n")?, need(shape.k, "k")?);
            return Ok(Kernel::Contraction(Contraction { batch, m, n, k, operand: data_type, result: data_type }));
        }
        "gemm_dgrad" => return kernel_from_name("gemm", shape, data_type),
        "gemm_wgrad" => return weight_gradient(shape, data_type, need),
        _ => {}
    }
    let size = Bytes(data_type.bytes());
    if let Some((_, function, direction)) = ROW_FUNCTIONS.into_iter().find(|(known, ..)| *known == name) {
        let (rows, columns) = (need(shape.m, "m")?.saturating_mul(batch), need(shape.n, "n")?);
        let bytes = size * rows * columns;
        return Ok(Kernel::Reduction(Reduction {
            function,
            direction,
            rows,
            columns,
            read: if direction == Direction::Backward { bytes * 2 } else { bytes },
            written: bytes,
        }));
    }
    let Some((_, function, operands)) = ELEMENTWISE_FUNCTIONS.into_iter().find(|(known, ..)| *known == name) else {
        return Err(NameError::UnknownKernel { name: name.to_owned() });
    };
    let rows_by_columns = batch.saturating_mul(shape.m).saturating_mul(shape.n);
    let elements = need(if shape.elements > 0 { shape.elements } else { rows_by_columns }, "elements")?;
    let written = match name {
        "hbm_copy" => Bytes::ZERO,
        "adamw" => size * elements * 3,
        _ => size * elements,
    };
    Ok(Kernel::Elementwise(Elementwise {
        function,
        direction: Direction::Forward,
        elements,
        read: size * elements * operands,
        written,
    }))
}

/// Returns the gradient of a weight. The product's epilogue adds it to the fp32 sum over micro-batches.
fn weight_gradient(
    shape: KernelShape,
    data_type: DataType,
    need: impl Fn(u64, &'static str) -> Result<u64, NameError>,
) -> Result<Kernel, NameError> {
    let (batch, m, n, k) = (shape.batch.max(1), need(shape.m, "m")?, need(shape.n, "n")?, need(shape.k, "k")?);
    let elements = batch.saturating_mul(m).saturating_mul(n);
    let contraction = Contraction { batch, m, n, k, operand: data_type, result: DataType::Fp32 };
    let elementwise = Elementwise {
        function: ElementwiseFunction::Add,
        direction: Direction::Backward,
        elements,
        read: Bytes(DataType::Fp32.bytes()) * elements,
        written: Bytes::ZERO,
    };
    Ok(Kernel::Epilogue(Epilogue { contraction, elementwise, summed: 1 }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn every_listed_name_is_a_kernel() {
        let shape = KernelShape { m: 4, n: 8, k: 16, batch: 1, elements: 32 };
        for name in KERNEL_NAMES {
            let kernel = kernel_from_name(name, shape, DataType::Bf16).expect(name);
            assert!(kernel.compulsory_bytes() > Bytes::ZERO, "{name}");
        }
    }

    #[test]
    fn an_error_names_the_cure() {
        let shape = KernelShape { m: 4, n: 8, ..KernelShape::default() };
        let unknown = kernel_from_name("gem", shape, DataType::Bf16).unwrap_err().to_string();
        assert!(unknown.starts_with("unknown kernel \"gem\"; known are: gemm, gemm_dgrad, gemm_wgrad"), "{unknown}");
        let missing = kernel_from_name("gemm", shape, DataType::Bf16).unwrap_err().to_string();
        assert_eq!(missing, "gemm needs k, which is missing or zero: give a positive k");
        assert!(data_type_from_name("fp17").is_err());
    }

    #[test]
    fn gradients_of_rows_and_updates_read_all_that_they_need() {
        let shape = KernelShape { m: 8, n: 16, elements: 128, ..KernelShape::default() };
        let bytes = |name: &str, data_type| kernel_from_name(name, shape, data_type).unwrap().compulsory_bytes();
        // dY and X in, dX out: three matrices of 128 numbers.
        assert_eq!(bytes("rmsnorm_backward", DataType::Bf16), Bytes(3 * 128 * 2));
        // Weight, gradient and two moments in; weight and moments out.
        assert_eq!(bytes("adamw", DataType::Fp32), Bytes(7 * 128 * 4));
    }

    #[test]
    fn a_read_only_copy_writes_nothing() {
        let shape = KernelShape { elements: 100, ..KernelShape::default() };
        let kernel = kernel_from_name("hbm_copy", shape, DataType::Fp16).unwrap();
        assert_eq!(kernel.compulsory_bytes(), Bytes(200));
        assert_eq!(kernel_from_name("hbm_copy_rw", shape, DataType::Fp16).unwrap().compulsory_bytes(), Bytes(400));
    }
}
