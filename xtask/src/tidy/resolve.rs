//! Finds the file that a Rust path refers to, within one crate. Resolution is by name: modules, items and
//! imports (`use`) of each module, inline modules included. Imports are followed to the module that defines
//! the item. A glob import is followed if its module defines the name.
//!
//! Names that macros or function bodies define are not known.

use std::collections::{BTreeMap, HashMap, HashSet};

use syn::{Item, UseTree};

use super::rust::{RustFile, below};

/// The longest chain of imports. A longer chain is a loop.
const IMPORTS_MAX: usize = 16;

pub type ModulePath = Vec<String>;

/// The files of one crate and the names in each of its modules.
pub struct Crate<'a> {
    pub files: Vec<&'a RustFile>,
    scopes: HashMap<ModulePath, Scope>,
}

/// One module, in a file of its own or inline.
struct Scope {
    file: usize,
    items: HashSet<String>,
    children: HashSet<String>,
    imports: HashMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
}

/// The target of a path: the module, its file, and the rest of the path inside the module.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Target {
    pub file: usize,
    pub module: ModulePath,
    pub rest: Vec<String>,
}

/// One name of a `use` declaration: `use a::b as c` has the path `a::b` and the name `c`.
pub struct Import {
    pub path: Vec<String>,
    pub name: String,
    pub is_glob: bool,
    pub line: usize,
}

/// The files of each crate, by its directory.
pub fn crates(files: &[RustFile]) -> BTreeMap<&str, Crate<'_>> {
    let mut crates: BTreeMap<&str, Crate<'_>> = BTreeMap::new();
    for file in files {
        let krate = crates
            .entry(&file.package)
            .or_insert_with(|| Crate { files: Vec::new(), scopes: HashMap::new() });
        let index = krate.files.len();
        krate.files.push(file);
        add_scope(&mut krate.scopes, index, &file.module, &file.syntax.items);
    }
    crates
}

fn add_scope(
    scopes: &mut HashMap<ModulePath, Scope>,
    file: usize,
    module: &[String],
    items: &[Item],
) {
    let mut scope = Scope {
        file,
        items: HashSet::new(),
        children: HashSet::new(),
        imports: HashMap::new(),
        globs: Vec::new(),
    };
    for item in items {
        if let Item::Mod(child) = item {
            scope.children.insert(child.ident.to_string());
            if let Some((_, items)) = &child.content {
                add_scope(scopes, file, &below(module, &child.ident), items);
            }
        }
        if let Item::Use(declaration) = item {
            for import in imports(&declaration.tree) {
                if import.is_glob {
                    scope.globs.push(import.path);
                } else {
                    scope.imports.insert(import.name, import.path);
                }
            }
        }
        scope.items.extend(name_of(item));
    }
    scopes.insert(module.to_vec(), scope);
}

/// The name that an item defines in its module, modules and imports aside.
fn name_of(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

/// All names that a `use` declaration imports.
pub fn imports(tree: &UseTree) -> Vec<Import> {
    let mut found = Vec::new();
    flatten(tree, &mut Vec::new(), &mut found);
    found
}

fn flatten(tree: &UseTree, prefix: &mut Vec<String>, found: &mut Vec<Import>) {
    let mut leaf = |ident: &syn::Ident, name: String| {
        let mut path = prefix.clone();
        // `use a::{self}` imports `a`.
        if ident != "self" {
            path.push(ident.to_string());
        }
        let name = if name == "self" { path.last().cloned().unwrap_or_default() } else { name };
        found.push(Import { path, name, is_glob: false, line: ident.span().start().line });
    };
    match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            flatten(&path.tree, prefix, found);
            prefix.pop();
        }
        UseTree::Name(name) => leaf(&name.ident, name.ident.to_string()),
        UseTree::Rename(name) => leaf(&name.ident, name.rename.to_string()),
        UseTree::Glob(glob) => found.push(Import {
            path: prefix.clone(),
            name: String::new(),
            is_glob: true,
            line: glob.star_token.spans[0].start().line,
        }),
        UseTree::Group(group) => {
            for tree in &group.items {
                flatten(tree, prefix, found);
            }
        }
    }
}

impl Crate<'_> {
    /// The target of a path that is written in `module`. `None` for other crates and for unknown names.
    pub fn target(&self, module: &[String], path: &[String]) -> Option<Target> {
        let named = self.absolute(module, path, IMPORTS_MAX);
        let path = named.or_else(|| {
            let glob = self.glob_that_has(module, path.first()?)?;
            Some([&glob[..], path].concat())
        })?;
        self.locate(&path, IMPORTS_MAX)
    }

    /// The path from the crate's root. Glob imports are ignored.
    fn absolute(&self, module: &[String], path: &[String], left: usize) -> Option<Vec<String>> {
        let left = left.checked_sub(1)?;
        let (first, rest) = path.split_first()?;
        let join = |start: &[String], rest: &[String]| [start, rest].concat();
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => Some(join(module, rest)),
            "super" => {
                let mut module = module.to_vec();
                module.pop()?;
                let mut rest = rest;
                while let Some((first, after)) = rest.split_first()
                    && first == "super"
                {
                    module.pop()?;
                    rest = after;
                }
                Some(join(&module, rest))
            }
            name => {
                let scope = self.scopes.get(module)?;
                if scope.items.contains(name) || scope.children.contains(name) {
                    return Some(join(module, path));
                }
                let import = scope.imports.get(name)?;
                Some(join(&self.absolute(module, import, left)?, rest))
            }
        }
    }

    /// The module of the longest part of the path that names one, after following imports.
    fn locate(&self, path: &[String], left: usize) -> Option<Target> {
        let left = left.checked_sub(1)?;
        let known = (0..=path.len()).rev().find(|end| self.scopes.contains_key(&path[..*end]))?;
        let (module, rest) = path.split_at(known);
        let scope = &self.scopes[module];
        let here = Target { file: scope.file, module: module.to_vec(), rest: rest.to_vec() };
        let Some((name, after)) = rest.split_first() else { return Some(here) };
        if scope.items.contains(name) {
            return Some(here);
        }
        let followed = if let Some(import) = scope.imports.get(name) {
            self.absolute(module, import, left).map(|start| [&start[..], after].concat())
        } else {
            self.glob_that_has(module, name).map(|start| [&start[..], rest].concat())
        };
        let followed = followed.and_then(|path| self.locate(&path, left));
        Some(followed.unwrap_or(here))
    }

    /// The module of a glob import in `module` that has the name.
    fn glob_that_has(&self, module: &[String], name: &str) -> Option<ModulePath> {
        let globs = self.scopes.get(module)?.globs.iter();
        let mut globs = globs.filter_map(|glob| self.absolute(module, glob, IMPORTS_MAX));
        globs.find(|glob| {
            self.scopes.get(glob).is_some_and(|scope| {
                scope.items.contains(name)
                    || scope.children.contains(name)
                    || scope.imports.contains_key(name)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::rust::parsed;
    use super::*;

    #[test]
    fn a_path_leads_to_the_file_that_defines_its_item() {
        let files = parsed(&[
            ("crates/a/src/lib.rs", "mod one; mod two; pub use two::deep::Thing; use std::fmt;"),
            ("crates/a/src/one.rs", "use crate::two; use super::two::deep as d; use d::*;"),
            ("crates/a/src/two.rs", "pub mod deep; pub use self::deep::*; fn own() {}"),
            (
                "crates/a/src/two/deep.rs",
                "pub struct Thing; mod inline { pub struct Inner; } use round::round;",
            ),
        ]);
        let crates = crates(&files);
        let krate = &crates["crates/a"];
        for (module, path, expected) in [
            ("one", "crate::two::own", "src/two.rs own"),
            ("one", "crate::two::deep::Thing", "src/two/deep.rs Thing"),
            ("one", "crate::Thing::new", "src/two/deep.rs Thing::new"),
            ("one", "super::Thing", "src/two/deep.rs Thing"),
            ("one", "crate::two::Thing", "src/two/deep.rs Thing"),
            ("one", "two::own", "src/two.rs own"),
            ("one", "d::Thing", "src/two/deep.rs Thing"),
            ("one", "Thing", "src/two/deep.rs Thing"),
            ("two", "deep::inline::Inner", "src/two/deep.rs Inner"),
            ("two::deep", "super::super::one", "src/one.rs "),
            ("two::deep", "super::own", "src/two.rs own"),
            ("two::deep", "self::Thing", "src/two/deep.rs Thing"),
            ("one", "crate::fmt::Debug", "src/lib.rs fmt::Debug"),
            ("one", "std::fmt", "-"),
            ("one", "super::super::one", "-"),
            ("two::deep", "round", "-"),
        ] {
            let split = |text: &str| text.split("::").map(str::to_owned).collect::<Vec<_>>();
            let target = krate.target(&split(module), &split(path));
            let shown = target.map_or("-".to_owned(), |target| {
                let path = krate.files[target.file].path.trim_start_matches("crates/a/");
                format!("{path} {}", target.rest.join("::"))
            });
            assert_eq!(shown, expected, "{path} in {module}");
        }
    }
}
