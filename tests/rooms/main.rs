//! The files of a crate have no cyclic dependencies, nor have the rooms of a folder. So a reader can begin with those
//! that need nothing and go up.
//!
//! A room is a file, or a folder with all that stands in it. Re-exports are followed to the file that defines the
//! item, so a name taken from `lib.rs` or `mod.rs` counts as taken from where it is defined. An item that a macro
//! defines counts as defined in the module of its path. Tests do not count.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod modules;
mod needs;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::modules::{Modules, modules_of, read_modules};
use crate::needs::{Needs, circles, needs_of_files, needs_of_rooms};

/// The crates' folders; the program and its Python package are the last.
const CRATES: [&str; 10] =
    ["sim", "workloads", "step", "serving", "measured", "search", "interop", "results", ".", "python"];

#[test]
fn no_circle_stands_between_files_or_rooms() {
    let mut faults = Vec::new();
    for name in CRATES {
        let files = needs_of_files(&read_modules(&Path::new(env!("CARGO_MANIFEST_DIR")).join(name).join("src")));
        assert!(files.len() > 5, "{name}: only {} files found", files.len());
        for folder in folders(&files) {
            faults.extend(describe(&format!("{name}/src/{folder}"), &needs_of_rooms(&files, &folder)));
        }
        faults.extend(describe(&format!("{name}/src"), &files));
    }
    assert!(faults.is_empty(), "{} circles\n{}", faults.len(), faults.join("\n"));
}

/// Returns every folder with files, as a prefix of their paths. The prefix of the crate's folder is empty.
fn folders(files: &Needs) -> BTreeSet<String> {
    files
        .keys()
        .flat_map(|file| file.match_indices('/').map(|(at, _)| file[..=at].to_owned()).chain([String::new()]))
        .collect()
}

fn describe(place: &str, needs: &Needs) -> Vec<String> {
    let arrows = |circle: &[String]| -> Vec<String> {
        let others =
            |room: &String| needs[room].iter().filter(|other| circle.contains(other)).cloned().collect::<Vec<_>>();
        circle.iter().map(|room| format!("  {room} needs {}", others(room).join(", "))).collect()
    };
    circles(needs).iter().map(|circle| format!("{place}: {}\n{}", circle.len(), arrows(circle).join("\n"))).collect()
}

fn crate_of(files: &[(&str, &str)]) -> Modules {
    modules_of(files.iter().map(|(file, text)| (PathBuf::from(file), (*text).to_owned())))
}

#[test]
fn a_circle_through_a_re_export_is_found() {
    let root =
        "mod stack; mod framework; mod plan; pub use stack::Stack; pub use framework::Options; pub use plan::Plan;";
    let stack = "use super::Options; pub struct Stack { options: Options }";
    let plan = "use crate::Stack; pub struct Plan(Stack);";
    let open =
        crate_of(&[("lib.rs", root), ("stack.rs", stack), ("plan.rs", plan), ("framework.rs", "pub struct Options;")]);
    assert!(circles(&needs_of_files(&open)).is_empty());

    let framework = "use crate::{Plan as Wanted}; pub struct Options; fn check(plan: &Wanted) {}";
    let closed = crate_of(&[("lib.rs", root), ("stack.rs", stack), ("plan.rs", plan), ("framework.rs", framework)]);
    assert_eq!(circles(&needs_of_files(&closed)), [["framework.rs", "plan.rs", "stack.rs"]]);
}

#[test]
fn a_circle_through_an_item_of_a_macro_is_found() {
    let row =
        "macro_rules! row { ($name:ident) => { pub struct $name(crate::Cell); } } row!(Row); use crate::cell::width;";
    let cell = "use crate::row::Row; pub struct Cell; pub fn width(row: &Row) {}";
    let closed = crate_of(&[("lib.rs", "mod row; mod cell; pub use cell::Cell;"), ("row.rs", row), ("cell.rs", cell)]);
    assert_eq!(circles(&needs_of_files(&closed)), [["cell.rs", "row.rs"]]);
}
