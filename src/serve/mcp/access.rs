//! The folders that an agent's calls may read and write.

use crate::arguments::{self, ArgumentValue, GivenArgument, argument_fault};
use crate::failure::{CallFault, Failure, OrOther, option_failure};
use clap::{Arg, Command};
use std::fs;
use std::path::{Component, Path, PathBuf};

/// The verbs that write a run directory without being told where.
const VERBS_WITH_RUNS: [&str; 2] = ["search", "sweep"];

/// The option that submits jobs to Slurm. Agents cannot give it.
pub const SUBMITTING: &str = "slurm";

/// The folders of a server.
#[derive(Debug, Clone)]
pub struct FolderAccess {
    /// Files are read here and below.
    read: Vec<PathBuf>,
    /// Files are written here and below, if anywhere.
    written: Option<PathBuf>,
    /// Answers that nobody asked to keep are written here.
    scratch: PathBuf,
}

impl FolderAccess {
    /// Creates the folder of `--allow-write`. Calls may read the current directory, that folder and `scratch`, and
    /// whatever lies below them.
    ///
    /// # Errors
    /// A folder that cannot be created.
    pub fn new(allow_write: Option<&Path>, scratch: &Path) -> Result<Self, Failure> {
        let written = allow_write.map(|folder| {
            fs::create_dir_all(folder).and_then(|()| folder.canonicalize()).map_err(|why| {
                option_failure("--allow-write", folder.display(), why, "give a directory that you may write to")
            })
        });
        let written = written.transpose()?;
        let scratch = scratch.canonicalize().or_other()?;
        let here = std::env::current_dir().and_then(|here| here.canonicalize()).or_other()?;
        let read = [Some(here), written.clone(), Some(scratch.clone())].into_iter().flatten().collect();
        Ok(Self { read, written, scratch })
    }

    /// True if calls write only into the scratch directory, which does not stay.
    pub fn is_read_only(&self) -> bool {
        self.written.is_none()
    }

    /// Returns the directory of an answer that nobody asked to keep.
    pub fn scratch_of(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    /// Checks the paths of a call, and adds paths in `scratch` where the verb always writes and the call names none.
    ///
    /// # Errors
    /// A path outside the folders, or the option that starts jobs.
    pub fn check_call(
        &self,
        verb: &'static Command,
        named: &mut Vec<(String, GivenArgument)>,
        scratch: &Path,
    ) -> Result<(), Box<CallFault>> {
        for (name, given) in named.iter() {
            let argument = arguments::find_argument(verb, name);
            if argument.and_then(Arg::get_long) == Some(SUBMITTING) {
                let cure = "leave it out, and run the command yourself";
                return Err(argument_fault(name, &given.shown, "an agent submits no jobs", cure));
            }
            let is_written = argument.is_some_and(arguments::is_written);
            for word in words_of(&given.value) {
                if is_written { self.check_written(name, word)? } else { self.check_read(name, word)? }
            }
        }
        for argument in arguments::arguments_of(verb).filter(|argument| arguments::is_written(argument)) {
            let own = arguments::name_of_argument(argument);
            let is_given = named.iter().any(|(name, given)| {
                let same =
                    arguments::find_argument(verb, name).is_some_and(|known| known.get_id() == argument.get_id());
                same && given.value != ArgumentValue::Absent
            });
            let is_run = VERBS_WITH_RUNS.contains(&verb.get_name()) && own == "out";
            let usual = argument.get_default_values().first().map(PathBuf::from);
            if !is_given && (is_run || argument.is_required_set() || usual.is_some()) {
                let path = scratch.join(usual.unwrap_or_else(|| PathBuf::from(&own))).display().to_string();
                named.push((own, GivenArgument { value: ArgumentValue::Word(path.clone()), shown: path }));
            }
        }
        Ok(())
    }

    fn check_written(&self, name: &str, word: &str) -> Result<(), Box<CallFault>> {
        let Some(folder) = &self.written else {
            let cure = "leave it out, or start the server with --allow-write DIR";
            return Err(argument_fault(name, word, "this server writes nothing that stays", cure));
        };
        if lies_in(Path::new(word), std::slice::from_ref(folder)) {
            return Ok(());
        }
        let limit = format!("this server writes in {} only", folder.display());
        Err(argument_fault(name, word, &limit, "give a path in it"))
    }

    /// Checks the parts of a word that may be paths: an option may take several paths with commas, or a file followed
    /// by parameters.
    fn check_read(&self, name: &str, word: &str) -> Result<(), Box<CallFault>> {
        let parts = std::iter::once(word).chain(word.split([',', ';', '=']));
        for part in parts.filter(|part| !part.is_empty()) {
            if !lies_in(Path::new(part), &self.read) {
                let folders: Vec<String> = self.read.iter().map(|folder| folder.display().to_string()).collect();
                let limit = format!("this server reads files in {} only", folders.join(", "));
                let cure = "put the file there, or start the server where it is";
                return Err(argument_fault(name, part, &limit, cure));
            }
        }
        Ok(())
    }
}

/// Returns the words of a value.
fn words_of(value: &ArgumentValue) -> Vec<&str> {
    match value {
        ArgumentValue::Word(word) => vec![word],
        ArgumentValue::List(entries) => entries.iter().flat_map(words_of).collect(),
        ArgumentValue::Absent | ArgumentValue::Flag(_) | ArgumentValue::Other => Vec::new(),
    }
}

/// True if a path lies in one of the folders once links are followed. The existing part of the path decides; the rest
/// must not lead upwards.
fn lies_in(path: &Path, folders: &[PathBuf]) -> bool {
    let mut existing = match std::env::current_dir() {
        Ok(here) => here.join(path),
        Err(_) => return false,
    };
    let mut rest = Vec::new();
    let real = loop {
        match existing.canonicalize() {
            Ok(real) => break real,
            // A link to nothing is refused, because a write would follow it.
            Err(_) if existing.symlink_metadata().is_ok_and(|found| found.is_symlink()) => return false,
            Err(_) => match (existing.components().next_back(), existing.parent()) {
                (Some(Component::Normal(name)), Some(parent)) => {
                    rest.push(name.to_owned());
                    existing = parent.to_path_buf();
                }
                _ => return false,
            },
        }
    };
    let whole = rest.into_iter().rev().fold(real, |path, name| path.join(name));
    folders.iter().any(|folder| whole.starts_with(folder))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_path_lies_in_a_folder_with_its_links_followed() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().canonicalize().unwrap();
        let (inside, outside) = (root.join("in"), root.join("out"));
        fs::create_dir_all(inside.join("deep")).unwrap();
        fs::create_dir_all(&outside).unwrap();
        let folders = [inside.clone()];
        for good in ["", "new.txt", "deep/new/run", "deep/../new.txt"] {
            assert!(lies_in(&inside.join(good), &folders), "{good}");
        }
        for bad in ["..", "../out", "../out/new.txt", "new/../../out", "../inside"] {
            assert!(!lies_in(&inside.join(bad), &folders), "{bad}");
        }
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(&outside, inside.join("link")).unwrap();
            std::os::unix::fs::symlink(root.join("nothing"), inside.join("broken")).unwrap();
            assert!(!lies_in(&inside.join("link/new.txt"), &folders));
            assert!(!lies_in(&inside.join("broken"), &folders));
        }
    }

    #[test]
    fn paths_are_checked_by_what_their_argument_does() {
        let place = tempfile::tempdir().unwrap();
        let (scratch, written) = (place.path().join("scratch"), place.path().join("written"));
        fs::create_dir_all(&scratch).unwrap();
        let writes = FolderAccess::new(Some(&written), &scratch).unwrap();
        let reads = FolderAccess::new(None, &scratch).unwrap();
        let word = |text: &str| GivenArgument { value: ArgumentValue::Word(text.to_owned()), shown: text.to_owned() };
        let checked = |access: &FolderAccess, verb: &str, name: &str, value: &str| {
            let verb = arguments::find_verb(verb).unwrap();
            access.check_call(verb, &mut vec![(name.to_owned(), word(value))], &scratch.join("answer-1"))
        };
        let (inside, outside) = (written.join("run").display().to_string(), "/tmp/elsewhere");
        assert_eq!(checked(&writes, "search", "out", &inside), Ok(()));
        assert!(checked(&writes, "search", "out", outside).unwrap_err().message.contains("writes in"));
        assert!(checked(&reads, "search", "out", &inside).unwrap_err().message.contains("--allow-write"));
        assert!(checked(&reads, "plan", "chip", "/etc/hostname").unwrap_err().message.contains("reads files in"));
        assert!(checked(&reads, "plan", "technique", "/etc/hostname,rank=2").is_err());
        assert_eq!(checked(&reads, "plan", "chip", "h100"), Ok(()));
        assert!(checked(&writes, "search", "slurm", "--time=1:00").unwrap_err().message.contains("submits no jobs"));
        // A verb that always writes gets a path in the scratch directory, which does not stay, if the call names none.
        let mut named = Vec::new();
        reads.check_call(arguments::find_verb("search").unwrap(), &mut named, &scratch.join("answer-1")).unwrap();
        assert_eq!((named.len(), named[0].0.as_str()), (1, "out"));
        assert!(named[0].1.shown.starts_with(&scratch.display().to_string()));
    }
}
