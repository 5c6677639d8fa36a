//! The dependencies between files. A mention is followed through `use` and `pub use` to the file that defines the item.

use std::collections::{BTreeMap, BTreeSet};

use crate::modules::{Module, Modules, Segments};

/// The needs of each node.
pub type Needs = BTreeMap<String, BTreeSet<String>>;

/// Returns the files of a crate, each with the files that define what its code mentions. Mentions of what an enclosing
/// module defines do not count.
pub fn needs_of_files(modules: &Modules) -> Needs {
    let name = |module: &Module| module.file.to_str().unwrap().to_owned();
    let mut needs: Needs = modules.values().map(|module| (name(module), BTreeSet::new())).collect();
    for (path, module) in modules {
        for mention in &module.mentions {
            if let Some(definer) = defining_module(modules, path, mention) {
                let other = name(&modules[&definer]);
                if other != name(module) && !path.starts_with(&definer) {
                    needs.get_mut(&name(module)).unwrap().insert(other);
                }
            }
        }
    }
    needs
}

/// Returns the module that defines the item behind a path mentioned in module `from`. `None` for a module, and for an
/// item of another crate or of a function's body.
pub fn defining_module(modules: &Modules, from: &Segments, mention: &Segments) -> Option<Segments> {
    match resolve(modules, from, mention, &mut BTreeSet::new())? {
        Target::Item(module) => Some(module),
        Target::Module(_) => None,
    }
}

enum Target {
    Item(Segments),
    Module(Segments),
}

/// Returns the module or the module's item behind a path. `seen` stops cycles of globs and re-exports.
fn resolve(
    modules: &Modules,
    from: &Segments,
    path: &[String],
    seen: &mut BTreeSet<(Segments, String)>,
) -> Option<Target> {
    let mut at = from.clone();
    let mut rest = path;
    if rest.first().is_some_and(|first| first == "crate") {
        at.clear();
        rest = &rest[1..];
    }
    while let Some(first) = rest.first() {
        match first.as_str() {
            "self" => {}
            "super" => {
                at.pop()?;
            }
            _ => break,
        }
        rest = &rest[1..];
    }
    let is_absolute = rest.len() < path.len();
    for name in rest {
        match look_up(modules, &at, name, seen) {
            Some(Target::Module(module)) => at = module,
            Some(item) => return Some(item),
            // An item that is not found counts as defined by a macro of the module.
            None if is_absolute => return Some(Target::Item(at)),
            None => return None,
        }
    }
    Some(Target::Module(at))
}

/// Returns the target of a name in a module.
fn look_up(modules: &Modules, at: &Segments, name: &str, seen: &mut BTreeSet<(Segments, String)>) -> Option<Target> {
    let module = &modules[at];
    if module.items.contains(name) {
        return Some(Target::Item(at.clone()));
    }
    if let Some(path) = module.bindings.get(name)
        && seen.insert((at.clone(), name.to_owned()))
        && let Some(target) = resolve(modules, at, path, seen)
    {
        return Some(target);
    }
    let child: Segments = at.iter().cloned().chain([name.to_owned()]).collect();
    if modules.contains_key(&child) {
        return Some(Target::Module(child));
    }
    module.globs.iter().find_map(|glob| {
        let key = (at.clone(), format!("{name} in {}", glob.join("::")));
        if !seen.insert(key) {
            return None;
        }
        match resolve(modules, at, glob, seen)? {
            Target::Module(globbed) if globbed != *at => look_up(modules, &globbed, name, seen),
            _ => None,
        }
    })
}

/// Returns the rooms of `folder` (its files, and the folders inside it), each with the other rooms that it needs. A
/// folder stands for all files in it.
pub fn needs_of_rooms(files: &Needs, folder: &str) -> Needs {
    let room = |file: &str| -> Option<String> {
        let inside = file.strip_prefix(folder)?;
        Some(inside.split('/').next().unwrap().trim_end_matches(".rs").to_owned())
    };
    let mut needs = Needs::new();
    for (file, others) in files {
        let Some(from) = room(file) else { continue };
        let others = others.iter().filter_map(|other| room(other)).filter(|other| *other != from);
        needs.entry(from.clone()).or_default().extend(others);
    }
    needs
}

/// Returns the nodes that depend on themselves through others, grouped by cycle.
pub fn circles(needs: &Needs) -> Vec<Vec<String>> {
    let reached: BTreeMap<&String, BTreeSet<String>> = needs.keys().map(|from| (from, reach(needs, from))).collect();
    let mut circles = BTreeSet::new();
    for (from, reached_of_from) in &reached {
        if reached_of_from.contains(*from) {
            let circle: Vec<String> =
                reached_of_from.iter().filter(|other| reached[*other].contains(*from)).cloned().collect();
            circles.insert(circle);
        }
    }
    circles.into_iter().collect()
}

fn reach(needs: &Needs, from: &String) -> BTreeSet<String> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(node) = next.pop() {
        next.extend(needs[node].iter().filter(|other| seen.insert((*other).clone())));
    }
    seen
}
