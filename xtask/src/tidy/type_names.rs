//! Type names: a struct, enum, union, trait or type alias has a name that no other type of
//! `crates/*/src` has. Names that mean the same idea at two layers are in `xtask/type_names.txt`, as
//! `Name reason`; the list is checked both ways.
//!
//! These do not count: associated types, type aliases in function bodies, types that macros define, and
//! alternatives in one file of which `#[cfg(..)]` selects one.

use std::collections::BTreeMap;

use anyhow::Result;
use syn::visit::{self, Visit};
use syn::{Attribute, Ident};

use super::exceptions::{self, Exceptions};
use super::finding::Finding;
use super::rust::RustFile;

const LIST: &str = "xtask/type_names.txt";

/// The arguments of a command. Each file of a command has a type with this name.
const PER_COMMAND: &str = "Args";

pub fn check(files: &[RustFile]) -> Result<Vec<Finding>> {
    Ok(check_against(files, &exceptions::read(LIST)?))
}

fn check_against(files: &[RustFile], list: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let question = "which one idea do the types with this name stand for?";
    let mut allowed = Exceptions::parse(LIST, list, question, &mut findings);
    let mut names: BTreeMap<String, Vec<(&str, usize)>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.is_of_crates()) {
        for (name, line) in types_of(file) {
            names.entry(name).or_default().push((&file.path, line));
        }
    }
    names.remove(PER_COMMAND);
    for (name, places) in names.iter().filter(|(_, places)| places.len() > 1) {
        if allowed.allow(name) {
            continue;
        }
        let shown: Vec<String> =
            places.iter().map(|(path, line)| format!("{path}:{line}")).collect();
        findings.push(Finding::error(
            places[0].0,
            places[0].1,
            format!("{} types have the name {name}: {}", places.len(), shown.join(", ")),
            format!("name each type for what it is, or give the reason in {LIST}"),
        ));
    }
    allowed.report_unused("is the name of one type at most", &mut findings);
    findings
}

fn types_of(file: &RustFile) -> Vec<(String, usize)> {
    let mut types = Types { is_conditional: false, is_in_function: false, found: Vec::new() };
    types.visit_file(&file.syntax);
    let mut found: Vec<(String, usize)> = Vec::new();
    let mut alternatives: Vec<String> = Vec::new();
    for Definition { name, line, is_conditional } in types.found {
        if is_conditional {
            if alternatives.contains(&name) {
                continue;
            }
            alternatives.push(name.clone());
        }
        found.push((name, line));
    }
    found
}

struct Definition {
    name: String,
    line: usize,
    /// Whether the type, or a module around it, has a `#[cfg(..)]`.
    is_conditional: bool,
}

struct Types {
    is_conditional: bool,
    is_in_function: bool,
    found: Vec<Definition>,
}

impl Types {
    fn add(&mut self, name: &Ident, attributes: &[Attribute]) {
        self.found.push(Definition {
            name: name.to_string(),
            line: name.span().start().line,
            is_conditional: self.is_conditional || has_condition(attributes),
        });
    }
}

fn has_condition(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| attribute.path().is_ident("cfg"))
}

impl<'ast> Visit<'ast> for Types {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let outer = self.is_conditional;
        self.is_conditional |= has_condition(&item.attrs);
        visit::visit_item_mod(self, item);
        self.is_conditional = outer;
    }

    fn visit_block(&mut self, block: &'ast syn::Block) {
        let outer = std::mem::replace(&mut self.is_in_function, true);
        visit::visit_block(self, block);
        self.is_in_function = outer;
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.add(&item.ident, &item.attrs);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.add(&item.ident, &item.attrs);
    }

    fn visit_item_union(&mut self, item: &'ast syn::ItemUnion) {
        self.add(&item.ident, &item.attrs);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.add(&item.ident, &item.attrs);
        visit::visit_item_trait(self, item);
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        if !self.is_in_function {
            self.add(&item.ident, &item.attrs);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::rust::parsed;
    use super::*;

    /// Findings where one file defines `struct Doubled` and another has this text.
    fn check(path: &str, text: &str, list: &str) -> Vec<String> {
        let first = ("crates/a/src/lib.rs", "struct Doubled; struct Args;");
        let findings = check_against(&parsed(&[first, (path, text)]), list);
        findings.iter().map(|finding| format!("{}:{}", finding.path, finding.line)).collect()
    }

    #[test]
    fn a_name_of_two_types_is_an_error() {
        let other = "crates/b/src/lib.rs";
        for text in [
            "struct Doubled;",
            "enum Doubled {}",
            "trait Doubled {}",
            "type Doubled = u8;",
            "mod inner { pub union Doubled { a: u8 } }",
            "fn f() { struct Doubled; }",
        ] {
            assert_eq!(check(other, text, ""), ["crates/a/src/lib.rs:1"], "{text}");
            assert_eq!(check(other, text, "Doubled  the same idea\n"), [""; 0], "{text}");
            assert_eq!(check("xtask/src/main.rs", text, ""), [""; 0], "{text}");
            assert_eq!(check("crates/b/tests/a.rs", text, ""), [""; 0], "{text}");
        }
        for text in [
            "struct Args; struct Single;",
            "#[cfg(test)] mod tests { struct Doubled; }",
            "fn f() { type Doubled = u8; }",
            "impl Iterator for X { type Doubled = u8; } trait Y { type Doubled; }",
            "#[cfg(unix)] struct Either; #[cfg(not(unix))] struct Either;",
            "#[cfg(unix)] mod a { struct Either; } #[cfg(not(unix))] mod a { struct Either; }",
        ] {
            assert_eq!(check(other, text, ""), [""; 0], "{text}");
        }
        assert_eq!(check(other, "\nmod a { struct X; }\nmod b { struct X; }", "").len(), 1);
    }

    #[test]
    fn the_list_is_checked_both_ways() {
        let check = |list: &str| check("crates/b/src/lib.rs", "struct Single;", list);
        assert_eq!(check("Single  once there were two\n"), ["xtask/type_names.txt:1"]);
        assert_eq!(check("# none\nGone  it was renamed\n"), ["xtask/type_names.txt:2"]);
        assert_eq!(check("Doubled\n"), ["xtask/type_names.txt:1"]);
    }
}
