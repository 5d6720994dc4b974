//! The parsed Rust files of the workspace: `crates/*/src` and `xtask/src`. Each file is parsed once;
//! the checks of structure read the trees. Code that only tests compile is removed from the trees:
//! items and methods under `#[cfg(test)]` or `#[test]`, and the files of modules declared so.

use proc_macro2::{TokenStream, TokenTree};
use syn::{Attribute, ImplItem, Item, Meta};

use super::finding::Finding;
use crate::workspace::SourceFile;

/// One file of a crate, without its tests.
pub struct RustFile {
    /// Relative to the root, with `/`.
    pub path: String,
    /// The directory of the crate: `crates/node`.
    pub package: String,
    /// The module that the file defines, from the crate's root, which is empty.
    pub module: Vec<String>,
    pub syntax: syn::File,
}

impl RustFile {
    pub fn is_of_crates(&self) -> bool {
        self.package.starts_with("crates/")
    }
}

/// All files in the order of `sources`, and a finding for each file that cannot be parsed.
pub fn parse(sources: &[SourceFile]) -> (Vec<RustFile>, Vec<Finding>) {
    let (mut files, mut findings) = (Vec::new(), Vec::new());
    let mut tests = Vec::new();
    for source in sources {
        let Some((package, module)) = module_of(&source.path) else { continue };
        match syn::parse_file(&source.text) {
            Ok(mut syntax) => {
                let mut declared = Vec::new();
                remove_tests(&mut syntax.items, &module, &mut declared);
                tests.extend(declared.into_iter().map(|module| (package.clone(), module)));
                files.push(RustFile { path: source.path.clone(), package, module, syntax });
            }
            Err(error) => findings.push(Finding::error(
                &source.path,
                error.span().start().line,
                format!("cannot be parsed: {error}"),
                "fix the syntax, or update the library syn if rustc accepts the file",
            )),
        }
    }
    files.retain(|file| {
        let is_below = |(package, module): &(String, Vec<String>)| {
            *package == file.package && file.module.starts_with(module)
        };
        !tests.iter().any(is_below)
    });
    (files, findings)
}

/// The crate's directory and the module of a file, if it belongs to a crate's `src`.
fn module_of(path: &str) -> Option<(String, Vec<String>)> {
    let path = path.strip_suffix(".rs")?;
    let (package, inner) = path.split_once("/src/")?;
    let name = package.strip_prefix("crates/").unwrap_or(package);
    if name.contains('/') || (name == package && name != "xtask") {
        return None;
    }
    let mut module: Vec<String> = inner.split('/').map(str::to_owned).collect();
    if inner == "lib" || inner == "main" || inner.ends_with("/mod") {
        module.pop();
    }
    Some((package.to_owned(), module))
}

/// Removes what only tests compile. `declared` gets the modules whose files are tests.
fn remove_tests(items: &mut Vec<Item>, module: &[String], declared: &mut Vec<Vec<String>>) {
    items.retain(|item| {
        let is_test = attributes(item).iter().any(is_for_tests);
        if let Item::Mod(child) = item
            && is_test
        {
            declared.push(below(module, &child.ident));
        }
        !is_test
    });
    for item in items {
        match item {
            Item::Mod(child) => {
                let inner = below(module, &child.ident);
                if let Some((_, items)) = &mut child.content {
                    remove_tests(items, &inner, declared);
                }
            }
            Item::Impl(block) => block.items.retain(|item| match item {
                ImplItem::Fn(method) => !method.attrs.iter().any(is_for_tests),
                ImplItem::Const(constant) => !constant.attrs.iter().any(is_for_tests),
                _ => true,
            }),
            _ => {}
        }
    }
}

/// The path of a child module.
pub fn below(module: &[String], child: &syn::Ident) -> Vec<String> {
    let mut path = module.to_vec();
    path.push(child.to_string());
    path
}

pub fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// `#[test]`, `#[tokio::test]`, `#[cfg(test)]` and `#[cfg(all(test, ..))]`. Code under
/// `#[cfg(any(test, ..))]` or `#[cfg(not(test))]` may ship.
fn is_for_tests(attribute: &Attribute) -> bool {
    let last = attribute.path().segments.last();
    if last.is_some_and(|segment| segment.ident == "test") {
        return true;
    }
    let Meta::List(list) = &attribute.meta else { return false };
    list.path.is_ident("cfg") && needs_test(list.tokens.clone())
}

fn needs_test(condition: TokenStream) -> bool {
    let tokens: Vec<TokenTree> = condition.into_iter().collect();
    match &tokens[..] {
        [TokenTree::Ident(name)] => name == "test",
        [TokenTree::Ident(name), TokenTree::Group(group)] if name == "all" => {
            let parts: Vec<TokenTree> = group.stream().into_iter().collect();
            let is_comma = |token: &TokenTree| match token {
                TokenTree::Punct(punct) => punct.as_char() == ',',
                _ => false,
            };
            parts.split(is_comma).any(|part| needs_test(part.iter().cloned().collect()))
        }
        _ => false,
    }
}

/// Files as a test gives them: path and text.
#[cfg(test)]
pub fn parsed(files: &[(&str, &str)]) -> Vec<RustFile> {
    let source = |(path, text): &(&str, &str)| SourceFile {
        path: (*path).to_owned(),
        text: (*text).to_owned(),
    };
    let sources: Vec<SourceFile> = files.iter().map(source).collect();
    let (files, findings) = parse(&sources);
    assert_eq!(findings, []);
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_its_module_path() {
        for (path, package, module) in [
            ("crates/node/src/lib.rs", "crates/node", ""),
            ("crates/node/src/a.rs", "crates/node", "a"),
            ("crates/node/src/a/b.rs", "crates/node", "a::b"),
            ("xtask/src/tidy/mod.rs", "xtask", "tidy"),
        ] {
            let found = module_of(path).map(|(package, module)| (package, module.join("::")));
            assert_eq!(found, Some((package.to_owned(), module.to_owned())));
        }
        for path in ["crates/node/tests/a.rs", "crates/node/build.rs", "fuzz/src/lib.rs", "a.md"] {
            assert_eq!(module_of(path), None, "{path}");
        }
    }

    #[test]
    fn tests_are_removed() {
        let files = parsed(&[
            (
                "crates/node/src/a.rs",
                "#[cfg(test)] mod tests; #[cfg(all(unix, test))] fn a() {} #[test] fn b() {}
                 #[cfg(any(test, unix))] fn c() {} #[cfg(not(test))] fn d() {}
                 impl X { #[cfg(test)] fn e() {} fn f() {} }
                 mod inner { #[cfg(test)] mod cases; fn g() {} }",
            ),
            ("crates/node/src/a/tests.rs", ""),
            ("crates/node/src/a/tests/deep.rs", ""),
            ("crates/node/src/a/inner/cases.rs", ""),
            ("crates/node/src/tests.rs", ""),
        ]);
        let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["crates/node/src/a.rs", "crates/node/src/tests.rs"]);
        let items = &files[0].syntax.items;
        assert_eq!(items.len(), 4);
        assert!(matches!(&items[2], Item::Impl(block) if block.items.len() == 1));
        assert!(
            matches!(&items[3], Item::Mod(inner) if inner.content.as_ref().unwrap().1.len() == 1)
        );
    }

    #[test]
    fn a_file_that_cannot_be_parsed_is_an_error() {
        let path = "crates/node/src/a.rs".to_owned();
        let (files, findings) = parse(&[SourceFile { path, text: "\nfn (".to_owned() }]);
        assert_eq!((files.len(), findings.len()), (0, 1));
        assert_eq!(findings[0].line, 2);
    }
}
