//! Import cycles: files of one crate that need each other, directly or through others. A component of
//! more than [`FILES_MAX`] files that all reach each other is an error.
//!
//! The nodes are the files of a crate, without tests. File A has an edge to file B when code in A
//! names something that B defines:
//!
//! - an import (`use crate::b::X`, `use super::X`), also inside a function;
//! - a path in code or in the arguments of a macro (`crate::b::f()`, `super::X`, `b::f()` where `b` was
//!   imported);
//! - a bare name (`X`, `f()`) that A imports or re-exports from B.
//!
//! The spelling of a path does not matter: [`super::resolve`] finds the file of the longest module path,
//! and follows imports and re-exports to the file that defines the name. So a child that uses an item
//! of its parent has an edge to its parent.
//!
//! These make no edge:
//!
//! - what a module uses of the modules below itself, because a module contains them;
//! - visibilities (`pub(in crate::a)`), attributes and doc comments;
//! - method calls, because the types are not known here.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::finding::Finding;
use super::graph::{self, Edges};
use super::resolve::{self, Crate, ModulePath};
use super::rust::{RustFile, below};

/// A parent and a few children may import each other. A larger cycle is an error.
const FILES_MAX: usize = 5;

pub fn check(files: &[RustFile]) -> Vec<Finding> {
    let crates = resolve::crates(files);
    crates.iter().flat_map(|(package, krate)| check_crate(package, krate)).collect()
}

fn check_crate(package: &str, krate: &Crate<'_>) -> Vec<Finding> {
    let lines: Vec<BTreeMap<usize, usize>> =
        (0..krate.files.len()).map(|file| edges_of(krate, file)).collect();
    let edges: Edges = lines.iter().map(|targets| targets.keys().copied().collect()).collect();
    let tangles = graph::components(&edges).into_iter().filter(|found| found.len() > FILES_MAX);
    tangles.filter_map(|tangle| describe(package, krate, &lines, &edges, &tangle)).collect()
}

fn describe(
    package: &str,
    krate: &Crate<'_>,
    lines: &[BTreeMap<usize, usize>],
    edges: &Edges,
    tangle: &BTreeSet<usize>,
) -> Option<Finding> {
    let cycle = graph::shortest_cycle(edges, tangle);
    let first = *cycle.first()?;
    let path = |file: usize| krate.files[file].path.as_str();
    let after = cycle.iter().skip(1).chain([&first]);
    let steps: Vec<String> = cycle
        .iter()
        .zip(after)
        .map(|(from, to)| format!("{}:{} uses {}", path(*from), lines[*from][to], path(*to)))
        .collect();
    let names: Vec<&str> = tangle.iter().map(|file| path(*file)).collect();
    let what = format!(
        "{} files of {package} import each other in cycles, at most {FILES_MAX} may: {}; a shortest cycle: {}",
        tangle.len(),
        names.join(", "),
        steps.join(", "),
    );
    let line = lines[first].get(cycle.get(1).unwrap_or(&first)).copied().unwrap_or(1);
    let remedy = "move what both sides need into a new module that imports neither";
    Some(Finding::error(path(first), line, what, remedy))
}

/// The files that a file needs, each with the first line that needs it.
fn edges_of(krate: &Crate<'_>, file: usize) -> BTreeMap<usize, usize> {
    let module = krate.files[file].module.clone();
    let mut names = Names { krate, file, module, edges: BTreeMap::new() };
    names.visit_file(&krate.files[file].syntax);
    names.edges
}

/// Collects the edges of one file.
struct Names<'a> {
    krate: &'a Crate<'a>,
    file: usize,
    /// The module that is being read: the file's, or an inline one.
    module: ModulePath,
    edges: BTreeMap<usize, usize>,
}

impl Names<'_> {
    fn add(&mut self, path: &[String], line: usize) {
        let target = self.krate.target(&self.module, path);
        let own = &self.krate.files[self.file].module;
        let is_outside = |module: &ModulePath| !module.starts_with(own);
        if let Some(target) = target.filter(|target| is_outside(&target.module)) {
            self.edges.entry(target.file).or_insert(line);
        }
    }

    /// A bare lowercase name may be a variable: it counts only where it is called.
    fn add_path(&mut self, path: &[String], line: usize) {
        let is_type_or_constant = |name: &String| name.starts_with(char::is_uppercase);
        if path.len() > 1 || path.first().is_some_and(is_type_or_constant) {
            self.add(path, line);
        }
    }

    /// Paths among the arguments of a macro, which are not parsed.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let is = |at: usize, mark: char| match tokens.get(at) {
            Some(TokenTree::Punct(found)) => found.as_char() == mark,
            _ => false,
        };
        // After one dot it is a field or a method; two dots are a range.
        let is_member = |at: usize| at > 0 && is(at - 1, '.') && (at < 2 || !is(at - 2, '.'));
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            match token {
                TokenTree::Group(group) => self.add_tokens(group.stream()),
                TokenTree::Ident(first) if !is_member(at) => {
                    let mut path = vec![first.to_string()];
                    while is(at + 1, ':')
                        && is(at + 2, ':')
                        && let Some(TokenTree::Ident(next)) = tokens.get(at + 3)
                    {
                        path.push(next.to_string());
                        at += 3;
                    }
                    let line = first.span().start().line;
                    let is_called = match tokens.get(at + 1) {
                        Some(TokenTree::Group(next)) => next.delimiter() == Delimiter::Parenthesis,
                        _ => false,
                    };
                    if is_called { self.add(&path, line) } else { self.add_path(&path, line) }
                }
                _ => {}
            }
            at += 1;
        }
    }
}

fn segments(path: &syn::Path) -> Vec<String> {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect()
}

impl<'ast> Visit<'ast> for Names<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let inner = below(&self.module, &item.ident);
        let outer = std::mem::replace(&mut self.module, inner);
        visit::visit_item_mod(self, item);
        self.module = outer;
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        for import in resolve::imports(&item.tree) {
            self.add(&import.path, import.line);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.add_path(&segments(path), path.span().start().line);
        visit::visit_path(self, path);
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        if let syn::Expr::Path(function) = &*call.func {
            self.add(&segments(&function.path), function.span().start().line);
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.add(&segments(&call.path), call.path.span().start().line);
        self.add_tokens(call.tokens.clone());
    }

    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}
}

#[cfg(test)]
mod tests {
    use super::super::rust::parsed;
    use super::*;

    /// The edges of a crate with the modules `a`, `a::child`, `a::other` and `b`, where `file` has
    /// this text.
    fn edges(file: &str, text: &str) -> Vec<String> {
        let mut texts = BTreeMap::from([
            ("crates/x/src/a.rs", "pub mod child; pub mod other; pub struct A;"),
            ("crates/x/src/a/child.rs", "pub struct Child; pub fn make() {}"),
            ("crates/x/src/a/other.rs", "pub struct Other;"),
            ("crates/x/src/b.rs", "pub struct B; pub fn run() {}"),
            ("crates/x/src/lib.rs", "mod a; mod b; pub use b::B; pub struct Root;"),
        ]);
        texts.insert(file, text);
        let texts: Vec<(&str, &str)> = texts.into_iter().collect();
        let files = parsed(&texts);
        let crates = resolve::crates(&files);
        let krate = &crates["crates/x"];
        let index = krate.files.iter().position(|found| found.path == file).unwrap();
        let edges = edges_of(krate, index);
        let shown = |(to, line): (&usize, &usize)| {
            format!("{}:{line}", krate.files[*to].path.trim_start_matches("crates/x/src/"))
        };
        edges.iter().map(shown).collect()
    }

    #[test]
    fn what_a_file_names_is_an_edge() {
        for (code, expected) in [
            ("use crate::b::B;", "b.rs:1"),
            ("\nuse crate::{b};", "b.rs:2"),
            ("use super::A;", "a.rs:1"),
            ("use super::*;", "a.rs:1"),
            ("use super::other::Other;", "a/other.rs:1"),
            ("use crate::B;", "b.rs:1"),
            ("use crate::Root;", "lib.rs:1"),
            ("fn f() { use crate::b::run; }", "b.rs:1"),
            ("fn f() {\n crate::b::run(); }", "b.rs:2"),
            ("fn f(x: &super::A) {}", "a.rs:1"),
            ("impl super::A { fn f() {} }", "a.rs:1"),
            ("fn f() { println!(\"{}\", g(crate::b::run())); }", "b.rs:1"),
            ("fn f() { matches!(x, 0..crate::b::B) }", "b.rs:1"),
            ("fn f() { g::<Vec<super::A>>() }", "a.rs:1"),
            ("mod inner { use super::super::A; }", "a.rs:1"),
        ] {
            assert_eq!(edges("crates/x/src/a/child.rs", code), [expected], "{code}");
        }
        for code in [
            "//! crate::b::B\n/// [`crate::b::B`]\nfn f() {}",
            "pub(in crate::a) fn f() {}",
            "pub(super) struct X;",
            "#[cfg(test)] mod tests { use crate::b::B; }",
            "mod inner { use super::X; } struct X;",
            "use std::fmt; fn f() { x.b.run(); }",
            "mod made { pub fn run() {} } fn f() { g!(x.B, y.run()) }",
            "fn f() { let b = 1; let run = b; println!(\"{}\", b); }",
        ] {
            assert_eq!(edges("crates/x/src/a/child.rs", code), [""; 0], "{code}");
        }
    }

    #[test]
    fn a_parent_may_use_its_children() {
        let parent = |code: &str| {
            edges("crates/x/src/a.rs", &format!("pub mod child; pub mod other; {code}"))
        };
        for code in [
            "",
            "pub use child::Child;",
            "pub(crate) use self::child::{Child, make};",
            "pub use child::make; fn f() { let make = 1; g(make) }",
            "use child::Child;",
            "use self::child::Child;",
            "fn f() { child::make() }",
            "pub use child::Child; fn f() -> Child {}",
            "pub use child::make; fn f() { make() }",
            "use crate::a::child::Child;",
        ] {
            assert_eq!(parent(code), [""; 0], "{code}");
        }
        assert_eq!(parent("pub use crate::b::B;"), ["b.rs:1"]);
    }

    /// Files `m0` to `m<count - 1>`, each of which uses the next one, and the last one the first.
    fn ring(count: usize) -> Vec<Finding> {
        let names: Vec<String> = (0..count).map(|n| format!("crates/x/src/m{n}.rs")).collect();
        let text = |n: usize| format!("\nuse crate::m{}::X; pub struct X;", (n + 1) % count);
        let texts: Vec<String> = (0..count).map(text).collect();
        let files = names.iter().zip(&texts).map(|(name, text)| (name.as_str(), text.as_str()));
        check(&parsed(&files.collect::<Vec<_>>()))
    }

    #[test]
    fn a_ring_of_more_than_five_files_is_an_error() {
        assert_eq!(ring(5), []);
        let [finding] = &ring(6)[..] else { panic!("one finding") };
        assert_eq!((finding.path.as_str(), finding.line), ("crates/x/src/m0.rs", 2));
        assert!(finding.what.starts_with("6 files of crates/x "), "{}", finding.what);
        assert!(finding.what.ends_with("m5.rs:2 uses crates/x/src/m0.rs"), "{}", finding.what);
    }
}
