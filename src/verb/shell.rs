//! Hidden verbs for packagers: shell completions and manual pages.

use crate::answer;
use crate::call::Call;
use crate::failure::{Failure, OrOther, write_failure};
use clap::Command;
use clap_complete::Shell;
use std::path::{Path, PathBuf};

/// Print completions for a shell
#[derive(clap::Args)]
pub struct CompletionArguments {
    /// Shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Write the manual pages, one per verb
#[derive(clap::Args)]
pub struct ManArguments {
    /// Directory of the pages, which is created if needed
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Prints the completions of the command for a shell.
pub fn print_completions(arguments: &CompletionArguments, mut command: Command, call: &Call) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "coplace", &mut script);
    answer::write_text(call, &String::from_utf8_lossy(&script))
}

/// Writes `coplace.1`, and `coplace-VERB.1` for every verb that is not hidden.
pub fn write_manual(arguments: &ManArguments, command: Command, call: &Call) -> Result<(), Failure> {
    let out = &arguments.out;
    let unwritten = |path: &Path, why: &std::io::Error| {
        write_failure(
            why,
            format!("--out {}: cannot be written: {why}; give a directory you may write to", path.display()),
        )
    };
    std::fs::create_dir_all(out).map_err(|why| unwritten(out, &why))?;
    let mut pages = vec![("coplace".to_owned(), command.clone())];
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set() && verb.get_name() != "help") {
        // clap needs names with a static lifetime. The process ends after these pages.
        let name: &'static str = format!("coplace-{}", verb.get_name()).leak();
        pages.push((name.to_owned(), verb.clone().name(name)));
    }
    let count = pages.len();
    for (name, command) in pages {
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page).or_other()?;
        let path = out.join(format!("{name}.1"));
        std::fs::write(&path, page).map_err(|why| unwritten(&path, &why))?;
    }
    answer::write_text(call, &format!("Written: {count} pages in {}\n", out.display()))
}
