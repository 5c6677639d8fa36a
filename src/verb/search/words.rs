//! A search's or a sweep's question, read again from its arguments.

use crate::failure::{self, Failure};
use crate::verb::search::SearchRequest;
use clap::Parser;

/// The arguments of a sweep's question.
#[derive(Parser)]
struct QuestionWords {
    #[command(flatten)]
    posed: SearchRequest,
}

/// Parses the question from the arguments that a run got from `search` or `sweep`.
pub fn parse_request(words: &[String]) -> Result<SearchRequest, Failure> {
    let all = std::iter::once("coplace").chain(words.iter().map(String::as_str));
    QuestionWords::try_parse_from(all).map(|words| words.posed).map_err(|error| failure::input_failure(error.to_string()))
}
