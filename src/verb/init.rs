//! `coplace init`: writes a first study and the schema for its completion in an editor.

use crate::answer::{self, Format, Versioned};
use crate::call::Call;
use crate::failure::{self, Failure, OrOther, OrUnwritable};
use crate::written_path::WrittenPath;
use results::store::files;
use search::schema::{self, TEMPLATE, TITLE};
use search::study::Study;
use serde::Serialize;
use sim::files::FaultParts;
use std::path::Path;

/// File name of the schema, beside the study.
const SCHEMA: &str = "coplace-study.schema.json";

/// Write a first study with every key explained, and its JSON Schema for editors
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  coplace init mine.toml\n  coplace init mine.toml --study tpu\n\n\
    The study can be searched unchanged: coplace search llama3-8b --study mine.toml. Its first line names the\n\
    schema, coplace-study.schema.json beside it, for editors with a TOML language server (taplo; in VS Code:\n\
    Even Better TOML). An existing file is never overwritten.\n\
    JSON: format, study, schema.")]
pub struct InitArguments {
    /// File of the study
    #[arg(default_value = "study.toml")]
    file: WrittenPath,
    /// Start from a copy of a built-in study (coplace list studies)
    #[arg(long, value_name = "NAME")]
    study: Option<String>,
    /// Format of the answer
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// The files that were written.
#[derive(Serialize)]
struct InitAnswer {
    study: String,
    schema: String,
}

/// Runs the verb: writes the study and the schema.
pub fn run_init(arguments: &InitArguments, call: &Call) -> Result<(), Failure> {
    let file = &arguments.file;
    let refused = |why: &str| failure::file_failure(file.display(), why, "");
    if file.extension().is_none_or(|ending| ending != "toml") {
        return Err(refused("a study's name ends in .toml; give such a name"));
    }
    if file.symlink_metadata().is_ok() {
        return Err(refused("is there already; give another name, or remove it"));
    }
    let text = match &arguments.study {
        None => TEMPLATE,
        Some(name) => Study::text(name).ok_or_else(|| {
            let names = Study::names();
            let hint = sim::names::hint(name, &names.join(", "), "built in are");
            failure::structured_failure(
                format!("unknown study `{name}`: {hint}"),
                FaultParts::of_key("study", name, "is no built-in study", hint),
            )
        })?,
    };
    let schema = file.with_file_name(SCHEMA);
    if schema.symlink_metadata().is_ok() && !is_our_schema(&schema) {
        let cure = "give a study's name in another directory, or rename it";
        return Err(failure::file_failure(schema.display(), "is not coplace's schema of studies", cure));
    }
    let study = format!("#:schema ./{SCHEMA}\n{text}");
    let completed = serde_json::to_string_pretty(&schema::schema()).or_other()? + "\n";
    files::write_files(&[(schema.clone(), completed.into_bytes()), (file.to_path_buf(), study.into_bytes())])
        .or_unwritable()?;
    let written = InitAnswer { study: file.display().to_string(), schema: schema.display().to_string() };
    answer::write_answer(call, arguments.format, &Versioned::with_schema_one(&written), |_| {
        let InitAnswer { study, schema } = &written;
        format!("Written: {study}, and {schema} for editors\nSearch it: coplace search llama3-8b --study {study}\n")
    })
}

/// True if the file is a schema of studies, of any version. Such a file may be overwritten.
fn is_our_schema(file: &Path) -> bool {
    let text = sim::files::text::read_text(file).unwrap_or_default();
    let found: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    found.get("title").is_some_and(|title| title == TITLE)
}
