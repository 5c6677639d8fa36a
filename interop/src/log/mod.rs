//! Turns logs and traces of measuring tools into rows of measured data. The output of nccl-tests becomes collectives,
//! and a trace of PyTorch's profiler becomes kernels. `measured/README.md` describes the columns of both.

mod kineto;
mod nccl_tests;

use serde::Serialize;
use sim::files::{FileError, FileFault};
use sim::hardware::ChipTemplate;
use std::path::Path;

/// Facts that a log may not state.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogContext<'a> {
    /// The chip, for a log whose device is no built-in chip.
    pub chip: Option<&'a str>,
    /// The fabric; `None` means the chip's usual one.
    pub fabric: Option<&'a str>,
}

/// Returns the rows of a log or trace as a CSV file of measured data; `None` if the text is neither.
///
/// # Errors
/// A log that states too little for rows, that contradicts itself, or that is compressed or otherwise unreadable.
pub fn rows_of_log(file: &Path, text: &[u8], context: LogContext<'_>) -> Result<Option<Vec<u8>>, FileError> {
    let name = file.display().to_string();
    let wrong = |fault: FileFault| FileError { file: name.clone(), faults: vec![fault] };
    if text.starts_with(&[0x1f, 0x8b]) {
        let cure = "unpack it (gunzip) and give the text";
        return Err(wrong(FileFault::new("file", "compressed by gzip", "must be text", cure)));
    }
    let Ok(text) = std::str::from_utf8(text) else { return Ok(None) };
    let rows = if text.trim_start().starts_with(['{', '[']) {
        kineto::read_trace(text, context).map(Some)
    } else if nccl_tests::is_log(text) {
        nccl_tests::read_log(text, &name, context).map(Some)
    } else {
        Ok(None)
    };
    rows.map_err(wrong)
}

/// Returns the chip that a tool calls `device`: the built-in chip of this name, else the chip of the context, else the
/// device's own name.
fn chip_of_device(device: &str, context: LogContext<'_>) -> String {
    let known = ChipTemplate::find_built_in(device).ok().map(|chip| chip.name.clone());
    known.or_else(|| context.chip.map(str::to_owned)).unwrap_or_else(|| device.to_owned())
}

/// Writes rows under a header line. A row with a line number is written at that line, after empty lines, so that a
/// fault of the row names the line of the log.
fn write_rows<R: Serialize>(header: &str, rows: impl IntoIterator<Item = (Option<usize>, R)>) -> Vec<u8> {
    let mut text = format!("{header}\n").into_bytes();
    let mut at = 2;
    for (line, row) in rows {
        let mut writer = csv::WriterBuilder::new().has_headers(false).from_writer(Vec::new());
        // Writing texts and numbers into memory cannot fail.
        let cells = writer.serialize(row).ok().and_then(|()| writer.into_inner().ok()).unwrap_or_default();
        while line.is_some_and(|line| at < line) {
            text.push(b'\n');
            at += 1;
        }
        text.extend(cells);
        at += 1;
    }
    text
}
