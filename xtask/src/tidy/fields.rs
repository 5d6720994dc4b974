//! Fields: a struct with many named fields is more than one idea. Structs whose fields follow from a wire
//! format or a command line are recognized by their derives. Other exceptions are in `xtask/fields.txt`, as
//! `path:Struct reason`.

use anyhow::Result;
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Attribute, Fields, ItemStruct, Meta, Token};

use super::exceptions::{self, Exceptions};
use super::finding::Finding;
use super::rust::RustFile;

const LIST: &str = "xtask/fields.txt";

const FIELDS_MAX: usize = 12;

/// Derives of structs whose fields are those of a wire format or a command line.
const OUTSIDE_FORMATS: [&str; 4] = ["Serialize", "Deserialize", "Args", "Parser"];

pub fn check(files: &[RustFile]) -> Result<Vec<Finding>> {
    Ok(check_against(files, &exceptions::read(LIST)?))
}

fn check_against(files: &[RustFile], list: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let question = "why do all these fields belong together?";
    let mut allowed = Exceptions::parse(LIST, list, question, &mut findings);
    for file in files {
        let mut large = Large(Vec::new());
        large.visit_file(&file.syntax);
        for (name, line, count) in large.0 {
            if !allowed.allow(&format!("{}:{name}", file.path)) {
                findings.push(Finding::error(
                    &file.path,
                    line,
                    format!("struct {name} has {count} fields; a struct has at most {FIELDS_MAX}"),
                    format!("group the fields that change together, or give the reason in {LIST}"),
                ));
            }
        }
    }
    allowed.report_unused("is no struct with too many fields", &mut findings);
    findings
}

/// Name, line and number of fields of each struct that has too many.
struct Large(Vec<(String, usize, usize)>);

impl<'ast> Visit<'ast> for Large {
    fn visit_item_struct(&mut self, item: &'ast ItemStruct) {
        if let Fields::Named(fields) = &item.fields
            && fields.named.len() > FIELDS_MAX
            && !item.attrs.iter().any(derives_a_format)
        {
            let line = item.ident.span().start().line;
            self.0.push((item.ident.to_string(), line, fields.named.len()));
        }
        visit::visit_item_struct(self, item);
    }
}

fn derives_a_format(attribute: &Attribute) -> bool {
    let Meta::List(list) = &attribute.meta else { return false };
    if !list.path.is_ident("derive") {
        return false;
    }
    let derived = list.parse_args_with(Punctuated::<syn::Path, Token![,]>::parse_terminated);
    derived.is_ok_and(|paths| {
        let mut last = paths.iter().filter_map(|path| path.segments.last());
        last.any(|segment| OUTSIDE_FORMATS.iter().any(|name| segment.ident == name))
    })
}

#[cfg(test)]
mod tests {
    use super::super::rust::parsed;
    use super::*;

    fn check(before: &str, count: usize, list: &str) -> Vec<String> {
        let fields: String = (0..count).map(|n| format!("f{n}: u8, ")).collect();
        let text = format!("{before}\nstruct Large {{ {fields} }}");
        let findings = check_against(&parsed(&[("crates/x/src/a.rs", &text)]), list);
        findings.iter().map(|finding| format!("{}:{}", finding.path, finding.line)).collect()
    }

    #[test]
    fn a_struct_with_many_fields_is_an_error() {
        assert_eq!(check("", 12, ""), [""; 0]);
        assert_eq!(check("", 13, ""), ["crates/x/src/a.rs:2"]);
        assert_eq!(check("#[derive(Debug, Clone)]", 13, ""), ["crates/x/src/a.rs:2"]);
        for derive in ["Debug, Serialize", "serde::Deserialize", "clap::Args", "Parser"] {
            assert_eq!(check(&format!("#[derive({derive})]"), 13, ""), [""; 0], "{derive}");
        }
    }

    #[test]
    fn the_list_is_checked_both_ways() {
        let list = "crates/x/src/a.rs:Large one row of a table\n";
        assert_eq!(check("", 13, list), [""; 0]);
        assert_eq!(check("", 12, list), ["xtask/fields.txt:1"]);
        assert_eq!(
            check("", 13, "crates/x/src/a.rs:Large\n"),
            ["xtask/fields.txt:1", "crates/x/src/a.rs:2"]
        );
    }
}
