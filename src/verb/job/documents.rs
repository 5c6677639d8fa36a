//! `--documents`: the lengths of the documents that sequences are packed from.

use crate::failure::{Failure, OrInput, option_failure};
use crate::numbers::parse_token_count;
use sim::files::carried::Files;
use std::path::Path;
use workloads::{DocumentLength, Model};

/// The name of the option.
const FLAG: &str = "--documents";
/// The columns of a file: tokens of a document, and the number of documents of that length.
const COLUMNS: [&str; 2] = ["tokens", "documents"];

/// Packed documents.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct DocumentArguments {
    /// Documents that sequences are packed from, if attention stays within a document and its kernel skips all other
    /// scores: their tokens (2048), tokens with relative numbers (512:30,4096:5), or a file (.csv) with the columns
    /// tokens and documents. Longer documents than a sequence are cut [default: attention covers whole sequences]
    #[arg(long, value_name = "TOKENS[:NUMBER],...|FILE", value_delimiter = ',', action = clap::ArgAction::Set)]
    documents: Option<Vec<String>>,
}

impl DocumentArguments {
    /// Returns the lengths with their numbers, as a question keeps them; `None` if none are given.
    ///
    /// # Errors
    /// A text that is no length; a file that cannot be read.
    pub fn lengths(&self, files: &Files) -> Result<Option<Vec<[u64; 2]>>, Failure> {
        let Some(words) = &self.documents else { return Ok(None) };
        let mut lengths = Vec::new();
        for word in words {
            match word.ends_with(".csv") {
                true => lengths.extend(read_file(word, files)?),
                false => lengths.push(parse_length(word)?),
            }
        }
        Ok(Some(lengths))
    }
}

/// Returns the model with the documents of a question.
///
/// # Errors
/// Those of [`Model::with_documents`].
pub fn with_documents(model: Model, lengths: &[[u64; 2]]) -> Result<Model, Failure> {
    let documents = lengths.iter().map(|&[tokens, documents]| DocumentLength { tokens, documents }).collect();
    model.with_documents(documents).or_input()
}

/// Parses `TOKENS` or `TOKENS:NUMBER` into a length and a number of documents, which is 1 by default.
fn parse_length(word: &str) -> Result<[u64; 2], Failure> {
    let (tokens, number) = word.split_once(':').unwrap_or((word, "1"));
    let parsed = |text: &str| parse_token_count(text.trim()).filter(|number| *number > 0);
    parsed(tokens).zip(parsed(number)).map(|(tokens, number)| [tokens, number]).ok_or_else(|| {
        let limit = "must be whole numbers above 0: tokens, or tokens:number";
        option_failure(FLAG, word, limit, "write 2048, 512:30,4096:5, or a file's name with .csv")
    })
}

/// Reads the lengths of a file. Fails if it cannot be read or lacks the column `tokens`.
fn read_file(name: &str, files: &Files) -> Result<Vec<[u64; 2]>, Failure> {
    let fault = |limit: String, cure: &str| option_failure(FLAG, name, limit, cure);
    let text = files.read(Path::new(name)).map_err(|error| fault(format!("cannot be read: {error}"), "give a file"))?;
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let header: Vec<&str> = lines.next().map_or_else(Vec::new, |(_, line)| line.split(',').map(str::trim).collect());
    let [tokens, documents] = COLUMNS.map(|column| header.iter().position(|known| *known == column));
    let Some(tokens) = tokens else {
        return Err(fault(
            "has no column `tokens`".to_owned(),
            "begin it with the line `tokens,documents`; `documents` may be left out",
        ));
    };
    if let Some(unknown) = header.iter().find(|known| !COLUMNS.contains(known)) {
        return Err(fault(
            format!("has a column `{unknown}`, which is not known"),
            "name the columns `tokens` and `documents`, and leave others out",
        ));
    }
    let row = |(at, line): (usize, &str)| {
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        let cell = |column: usize| cells.get(column)?.parse::<u64>().ok();
        cell(tokens).zip(documents.map_or(Some(1), cell)).map(|(tokens, number)| [tokens, number]).ok_or_else(|| {
            fault(format!("line {}: `{line}` has no whole number in a column", at + 1), "correct the line")
        })
    };
    let lengths: Vec<[u64; 2]> = lines.map(row).filter(|row| !matches!(row, Ok([_, 0]))).collect::<Result<_, _>>()?;
    if lengths.is_empty() {
        let cure = "write a line with a length and a number for every length, or leave the option out";
        return Err(fault(
            "has no documents: must have at least one, and one whose number is above 0".to_owned(),
            cure,
        ));
    }
    Ok(lengths)
}
