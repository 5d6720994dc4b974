//! Inherent impls: the methods of one type are in few files. A type whose `impl X` blocks are in more
//! than [`FILES_MAX`] files of its crate is more than one idea. Impls of traits do not count.

use std::collections::{BTreeMap, BTreeSet};

use syn::Type;
use syn::visit::{self, Visit};

use super::finding::Finding;
use super::resolve::{self, Crate, ModulePath};
use super::rust::{RustFile, below};

const FILES_MAX: usize = 4;

pub fn check(files: &[RustFile]) -> Vec<Finding> {
    resolve::crates(files).values().flat_map(check_crate).collect()
}

fn check_crate(krate: &Crate<'_>) -> Vec<Finding> {
    // For each type, by its module and name, the files with impls and the first line in each.
    let mut types: BTreeMap<(ModulePath, String), BTreeMap<usize, usize>> = BTreeMap::new();
    for (index, file) in krate.files.iter().enumerate() {
        let mut impls = Impls { module: file.module.clone(), found: Vec::new() };
        impls.visit_file(&file.syntax);
        for (module, path, line) in impls.found {
            let name = path.last().cloned().unwrap_or_default();
            let key = krate
                .target(&module, &path)
                .map_or((module, name), |target| (target.module, target.rest.join("::")));
            types.entry(key).or_default().entry(index).or_insert(line);
        }
    }
    let spread = types.iter().filter(|(_, files)| files.len() > FILES_MAX);
    spread.map(|((module, name), files)| describe(krate, module, name, files)).collect()
}

fn describe(
    krate: &Crate<'_>,
    module: &ModulePath,
    name: &str,
    files: &BTreeMap<usize, usize>,
) -> Finding {
    let home = files.iter().find(|(file, _)| krate.files[**file].module == *module);
    let (path, line) = home
        .or(files.first_key_value())
        .map_or(("", 1), |(file, line)| (krate.files[*file].path.as_str(), *line));
    let paths: BTreeSet<&str> = files.keys().map(|file| krate.files[*file].path.as_str()).collect();
    let paths: Vec<&str> = paths.into_iter().collect();
    Finding::error(
        path,
        line,
        format!(
            "impl {name} is in {} files; at most {FILES_MAX} files may have one: {}",
            files.len(),
            paths.join(", ")
        ),
        "give each group of methods its own type with the fields that it uses",
    )
}

/// The types of inherent impls: the module they are in, the path as written, and the line.
struct Impls {
    module: ModulePath,
    found: Vec<(ModulePath, Vec<String>, usize)>,
}

impl<'ast> Visit<'ast> for Impls {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let inner = below(&self.module, &item.ident);
        let outer = std::mem::replace(&mut self.module, inner);
        visit::visit_item_mod(self, item);
        self.module = outer;
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if item.trait_.is_none()
            && let Type::Path(of) = &*item.self_ty
        {
            let path = of.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            let line = item.impl_token.span.start().line;
            self.found.push((self.module.clone(), path, line));
        }
        visit::visit_item_impl(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::super::rust::parsed;
    use super::*;

    /// The findings of a crate that defines `Wide` in `home`, with five files that have this text.
    fn check_five(text: &str) -> Vec<String> {
        let names: Vec<String> = (0..5).map(|n| format!("crates/x/src/home/m{n}.rs")).collect();
        let home = "mod m0; pub struct Wide; pub trait Trait {}";
        let mut files = vec![("crates/x/src/home.rs", home)];
        files.extend(names.iter().map(|name| (name.as_str(), text)));
        let findings = check(&parsed(&files));
        findings.iter().map(|finding| format!("{}:{}", finding.path, finding.line)).collect()
    }

    #[test]
    fn methods_in_many_files_are_an_error() {
        for text in [
            "\nimpl super::Wide { fn f() {} }",
            "use super::Wide;\nimpl Wide {}",
            "use crate::home as h;\nimpl<T> h::Wide<T> {} impl h::Wide<u8> {}",
        ] {
            assert_eq!(check_five(text), ["crates/x/src/home/m0.rs:2"], "{text}");
        }
        for text in [
            "use super::{Trait, Wide}; impl Trait for Wide {}",
            "struct Wide; impl Wide {}",
            "#[cfg(test)] mod tests { impl super::super::Wide {} }",
        ] {
            assert_eq!(check_five(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn four_files_are_allowed() {
        let names: Vec<String> = (0..4).map(|n| format!("crates/x/src/m{n}.rs")).collect();
        let mut files = vec![("crates/x/src/lib.rs", "pub struct Wide;")];
        files.extend(names.iter().map(|name| (name.as_str(), "impl crate::Wide {}")));
        assert_eq!(check(&parsed(&files)), []);
        files[0].1 = "pub struct Wide; impl Wide {}";
        let findings = check(&parsed(&files));
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].path, "crates/x/src/lib.rs");
    }
}
