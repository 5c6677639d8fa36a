//! The script that measures a machine with PyTorch.

use crate::answer::{self, Format, Versioned};
use crate::call::Call;
use crate::failure::{Failure, OrUnwritable};
use serde::Serialize;
use std::path::Path;

/// The script. It needs PyTorch and nothing else.
const SCRIPT: &str = include_str!("../../../tools/measure_gpu.py");

#[derive(Serialize)]
struct WrittenScript {
    script: String,
    lines: usize,
}

/// Writes the script. Prints how to run it, and the commands that read its rows.
pub fn write_script(path: &Path, format: Format, call: &Call) -> Result<(), Failure> {
    results::store::files::write_file(path, SCRIPT.as_bytes()).or_unwritable()?;
    let answer = WrittenScript { script: path.display().to_string(), lines: SCRIPT.lines().count() };
    answer::write_answer(call, format, &Versioned::with_schema_one(&answer), |_| text_of_answer(&answer.script))
}

fn text_of_answer(script: &str) -> String {
    format!(
        "Written: {script}. On the machine to measure, with PyTorch:\n\n  \
        python3 {script} --chip CHIP --out measured\n\n\
        CHIP is the chip's name (coplace list chips) or that of a chip file of your own. Then:\n\n  \
        coplace validate measured/*.csv\n  \
        coplace calibrate CHIP measured/kernels.csv --out my_chip.toml\n  \
        coplace calibrate huggingface measured/training_runs.csv --out my_stack.toml\n"
    )
}
