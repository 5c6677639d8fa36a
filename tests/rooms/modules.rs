//! The modules of one crate: what each defines, re-exports and mentions.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::Visit;

/// The segments of a module's or an item's path.
pub type Segments = Vec<String>;

/// One module: a file, or a `mod` with a body inside a file.
#[derive(Debug, Default)]
pub struct Module {
    /// The file that holds it, relative to the crate's source folder.
    pub file: PathBuf,
    /// Names of the items that it defines.
    pub items: BTreeSet<String>,
    /// Names that `use` brings into scope, with the path behind each.
    pub bindings: BTreeMap<String, Segments>,
    /// Modules whose names a `use path::*` brings into scope.
    pub globs: Vec<Segments>,
    /// Paths that its code mentions. A re-export (`pub use`) is no mention.
    pub mentions: BTreeSet<Segments>,
}

/// All modules of a crate by path; the root's path is empty.
pub type Modules = BTreeMap<Segments, Module>;

/// Reads the modules of the crate whose source folder is `source`, tests excluded.
pub fn read_modules(source: &Path) -> Modules {
    let mut files = Vec::new();
    collect_files(source, &mut files);
    let texts = files.iter().map(|file| {
        let text = fs::read_to_string(file).unwrap();
        (file.strip_prefix(source).unwrap().to_path_buf(), text)
    });
    modules_of(texts)
}

/// Returns the modules of files given as (path in the source folder, text).
pub fn modules_of(files: impl IntoIterator<Item = (PathBuf, String)>) -> Modules {
    let mut modules = Modules::new();
    for (file, text) in files {
        let path = module_path(&file);
        if !path.iter().any(|part| is_test_name(part)) {
            let parsed = syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
            add_module(&mut modules, &path, &file, &parsed.items);
        }
    }
    modules
}

fn is_test_name(part: &str) -> bool {
    part == "tests" || part.ends_with("_tests")
}

fn collect_files(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect_files(&path, files);
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
}

fn module_path(file: &Path) -> Segments {
    let mut parts: Segments = file.with_extension("").iter().map(|part| part.to_str().unwrap().to_owned()).collect();
    if matches!(parts.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        parts.pop();
    }
    parts
}

fn add_module(modules: &mut Modules, path: &Segments, file: &Path, items: &[syn::Item]) {
    let mut reader = Reader::default();
    for item in items.iter().filter(|item| !is_test(attributes(item))) {
        match item {
            syn::Item::Use(item) => reader.read_use(item),
            syn::Item::Mod(item) => {
                if let Some((_, items)) = &item.content {
                    let mut inner = path.clone();
                    inner.push(item.ident.to_string());
                    add_module(modules, &inner, file, items);
                }
            }
            item => {
                reader.module.items.extend(defined_name(item));
                reader.visit_item(item);
            }
        }
    }
    modules.insert(path.clone(), Module { file: file.to_path_buf(), ..reader.module });
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
        _ => false,
    })
}

fn defined_name(item: &syn::Item) -> Option<String> {
    let name = match item {
        syn::Item::Const(item) => &item.ident,
        syn::Item::Enum(item) => &item.ident,
        syn::Item::Fn(item) => &item.sig.ident,
        syn::Item::Macro(item) => item.ident.as_ref()?,
        syn::Item::Static(item) => &item.ident,
        syn::Item::Struct(item) => &item.ident,
        syn::Item::Trait(item) => &item.ident,
        syn::Item::Type(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

/// Collects what the code of one module mentions.
#[derive(Default)]
struct Reader {
    module: Module,
}

impl Reader {
    fn read_use(&mut self, item: &syn::ItemUse) {
        let mut leaves = Vec::new();
        use_leaves(&item.tree, &mut Vec::new(), &mut leaves);
        for (path, name) in leaves {
            match name {
                None => self.module.globs.push(path),
                Some(name) => {
                    if matches!(item.vis, syn::Visibility::Inherited) {
                        self.module.mentions.insert(path.clone());
                    }
                    self.module.bindings.insert(name, path);
                }
            }
        }
    }

    /// Adds every `a::b::c` among the tokens of a macro or an attribute.
    fn read_tokens(&mut self, tokens: &TokenStream) {
        let mut path = Segments::new();
        let mut colons = 0;
        for tree in tokens.clone() {
            match &tree {
                TokenTree::Ident(name) => {
                    if colons < 2 {
                        self.add_mention(std::mem::take(&mut path));
                    }
                    path.push(name.to_string());
                    colons = 0;
                    continue;
                }
                TokenTree::Punct(point) if point.as_char() == ':' => {
                    colons += 1;
                    continue;
                }
                TokenTree::Group(group) => self.read_tokens(&group.stream()),
                TokenTree::Literal(literal) => self.read_path_in_quotes(&literal.to_string()),
                TokenTree::Punct(_) => {}
            }
            self.add_mention(std::mem::take(&mut path));
            colons = 0;
        }
        self.add_mention(path);
    }

    /// Adds a path in quotes. serde names functions so: `with = "crate::units"`.
    fn read_path_in_quotes(&mut self, literal: &str) {
        let text = literal.trim_matches('"');
        let is_name = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if text.contains("::") && text.split("::").all(is_name) {
            self.add_mention(text.split("::").map(str::to_owned).collect());
        }
    }

    fn add_mention(&mut self, path: Segments) {
        if !path.is_empty() {
            self.module.mentions.insert(path);
        }
    }
}

impl<'a> Visit<'a> for Reader {
    fn visit_path(&mut self, path: &'a syn::Path) {
        self.add_mention(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        syn::visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'a syn::Macro) {
        self.visit_path(&call.path);
        self.read_tokens(&call.tokens);
    }

    fn visit_attribute(&mut self, attribute: &'a syn::Attribute) {
        if let syn::Meta::List(list) = &attribute.meta {
            self.read_tokens(&list.tokens);
        }
    }

    /// Reads a `use` inside a function.
    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        self.read_use(item);
    }
}

/// Collects the paths of a `use`, each with the name that it gets. A glob has no name.
fn use_leaves(tree: &syn::UseTree, path: &mut Segments, leaves: &mut Vec<(Segments, Option<String>)>) {
    let path_with = |path: &Segments, name: &syn::Ident| path.iter().cloned().chain([name.to_string()]).collect();
    match tree {
        syn::UseTree::Path(tree) => {
            path.push(tree.ident.to_string());
            use_leaves(&tree.tree, path, leaves);
            path.pop();
        }
        syn::UseTree::Name(tree) if tree.ident == "self" => {
            leaves.push((path.clone(), path.last().cloned()));
        }
        syn::UseTree::Name(tree) => leaves.push((path_with(path, &tree.ident), Some(tree.ident.to_string()))),
        syn::UseTree::Rename(tree) => leaves.push((path_with(path, &tree.ident), Some(tree.rename.to_string()))),
        syn::UseTree::Glob(_) => leaves.push((path.clone(), None)),
        syn::UseTree::Group(group) => group.items.iter().for_each(|tree| use_leaves(tree, path, leaves)),
    }
}
