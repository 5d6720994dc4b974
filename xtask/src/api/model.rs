//! Converts the schemas of the document into language-neutral types. It supports only the part of JSON Schema
//! that the document uses. Anything else is an error.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value};

use super::type_name;

/// The JSON pointer to the named schemas.
const SCHEMAS: &str = "/components/schemas";

/// All named types, sorted by name.
#[derive(Debug)]
pub struct Model {
    pub types: Vec<NamedType>,
}

#[derive(Debug)]
pub struct NamedType {
    pub name: String,
    pub doc: String,
    pub shape: Shape,
}

/// The definition of a named type.
#[derive(Debug)]
pub enum Shape {
    Object(Vec<Field>),
    /// Another name for a type.
    Alias(Type),
}

#[derive(Debug, Clone)]
pub struct Field {
    pub name: String,
    pub doc: String,
    pub required: bool,
    pub kind: Type,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Type {
    Text,
    Integer,
    Number,
    Boolean,
    Null,
    Anything,
    /// One of these strings.
    Words(Vec<String>),
    Named(String),
    List(Box<Type>),
    /// An object with any keys.
    Map(Box<Type>),
    Union(Vec<Type>),
}

impl Model {
    pub fn read(document: &Value) -> Result<Self> {
        let schemas = document.pointer(SCHEMAS).and_then(Value::as_object);
        let schemas = schemas.with_context(|| format!("docs/openapi.json has no {SCHEMAS}"))?;
        let mut reader = Reader { schemas, types: BTreeMap::new() };
        for (name, schema) in schemas {
            reader
                .named(name, schema)
                .with_context(|| format!("cannot convert the schema {name}"))?;
        }
        let mut types = reader.types;
        if let Some(paths) = document.get("paths") {
            let wanted = reachable(&types, paths);
            types.retain(|name, _| wanted.contains(name));
        }
        Ok(Self { types: types.into_values().collect() })
    }
}

/// The names of the types that requests and answers use, directly or through other types. Types that occur
/// only as a part of a merged type are not among them.
fn reachable(types: &BTreeMap<String, NamedType>, paths: &Value) -> BTreeSet<String> {
    let mut waiting = Vec::new();
    names_in_document(paths, &mut waiting);
    let mut reached = BTreeSet::new();
    while let Some(name) = waiting.pop() {
        let Some(named) = types.get(&name).filter(|_| reached.insert(name)) else { continue };
        match &named.shape {
            Shape::Alias(kind) => names_in(kind, &mut waiting),
            Shape::Object(fields) => {
                fields.iter().for_each(|field| names_in(&field.kind, &mut waiting));
            }
        }
    }
    reached
}

fn names_in_document(value: &Value, names: &mut Vec<String>) {
    names.extend(reference(value).map(str::to_owned));
    match value {
        Value::Object(fields) => fields.values().for_each(|v| names_in_document(v, names)),
        Value::Array(items) => items.iter().for_each(|v| names_in_document(v, names)),
        _ => {}
    }
}

fn names_in(kind: &Type, names: &mut Vec<String>) {
    match kind {
        Type::Named(name) => names.push(name.clone()),
        Type::List(inner) | Type::Map(inner) => names_in(inner, names),
        Type::Union(kinds) => kinds.iter().for_each(|kind| names_in(kind, names)),
        _ => {}
    }
}

struct Reader<'a> {
    schemas: &'a Map<String, Value>,
    types: BTreeMap<String, NamedType>,
}

impl Reader<'_> {
    fn named(&mut self, name: &str, schema: &Value) -> Result<()> {
        let shape = if has_fields(schema) {
            Shape::Object(self.fields(name, schema)?)
        } else {
            Shape::Alias(self.kind(name, schema)?)
        };
        self.add(name, doc(schema), shape)
    }

    fn add(&mut self, name: &str, doc: String, shape: Shape) -> Result<()> {
        let named = NamedType { name: name.to_owned(), doc, shape };
        ensure!(
            self.types.insert(name.to_owned(), named).is_none(),
            "two types have the name {name}"
        );
        Ok(())
    }

    /// Converts a schema. `name` becomes the name of an object that has none.
    fn kind(&mut self, name: &str, schema: &Value) -> Result<Type> {
        if let Some(named) = reference(schema) {
            return Ok(Type::Named(named.to_owned()));
        }
        if let Some(words) = schema.get("enum").and_then(Value::as_array) {
            let words = words.iter().map(|word| word.as_str().map(str::to_owned));
            return words
                .collect::<Option<_>>()
                .map(Type::Words)
                .context("an enum value is not a string");
        }
        if let Some(choices) = schema.get("oneOf").and_then(Value::as_array) {
            let kinds = choices.iter().enumerate().map(|(at, choice)| {
                let name = format!("{name}{}", tag(choice).unwrap_or_else(|| (at + 1).to_string()));
                self.kind(&name, choice)
            });
            return Ok(union(kinds.collect::<Result<_>>()?));
        }
        if schema.get("allOf").is_some() {
            return self.merged(name, schema);
        }
        match schema.get("type") {
            None => Ok(Type::Anything),
            Some(Value::String(word)) => self.simple(name, word, schema),
            Some(Value::Array(words)) => {
                let words =
                    words.iter().map(|word| word.as_str().context("a type is not a string"));
                let kinds = words.map(|word| self.simple(name, word?, schema));
                Ok(union(kinds.collect::<Result<_>>()?))
            }
            Some(other) => bail!("the type {other} is not supported"),
        }
    }

    fn simple(&mut self, name: &str, word: &str, schema: &Value) -> Result<Type> {
        Ok(match word {
            "string" => Type::Text,
            "integer" => Type::Integer,
            "number" => Type::Number,
            "boolean" => Type::Boolean,
            "null" => Type::Null,
            "array" => {
                let items = schema.get("items").unwrap_or(&Value::Null);
                Type::List(Box::new(self.kind(&format!("{name}Item"), items)?))
            }
            "object" if has_fields(schema) => {
                let fields = self.fields(name, schema)?;
                self.add(name, doc(schema), Shape::Object(fields))?;
                Type::Named(name.to_owned())
            }
            "object" => match schema.get("additionalProperties") {
                Some(values) if values.is_object() => {
                    Type::Map(Box::new(self.kind(&format!("{name}Value"), values)?))
                }
                _ => Type::Map(Box::new(Type::Anything)),
            },
            other => bail!("the type {other:?} is not supported"),
        })
    }

    /// Converts `allOf`: one object with the fields of all parts, or one such object for each choice of a
    /// union.
    fn merged(&mut self, name: &str, schema: &Value) -> Result<Type> {
        let mut kinds = Vec::new();
        for object in self.distribute(schema)? {
            let tag = object.iter().find_map(|(field, _, schema)| {
                (*field == "kind").then(|| words_of(schema)).flatten()
            });
            let part = tag.unwrap_or_default();
            // A name that already ends with the tag, such as `EventKindConfined`, does not repeat it.
            let name =
                if name.ends_with(&part) { name.to_owned() } else { format!("{name}{part}") };
            let mut fields: Vec<Field> = Vec::new();
            for (field, required, schema) in object {
                let field = self.field(&name, field, required, schema)?;
                match fields.iter_mut().find(|known| known.name == field.name) {
                    Some(known) => known.required |= field.required,
                    None => fields.push(field),
                }
            }
            fields.sort_by(|a, b| a.name.cmp(&b.name));
            self.add(&name, String::new(), Shape::Object(fields))?;
            kinds.push(Type::Named(name));
        }
        Ok(union(kinds))
    }
}

/// A field before its conversion: its name, whether it is required, and its schema.
type RawField<'a> = (&'a str, bool, &'a Value);

impl<'a> Reader<'a> {
    /// All objects that match the schema, each with its fields.
    fn distribute(&self, schema: &'a Value) -> Result<Vec<Vec<RawField<'a>>>> {
        if let Some(named) = reference(schema) {
            let schema = self
                .schemas
                .get(named)
                .with_context(|| format!("docs/openapi.json has no schema {named}"))?;
            return self.distribute(schema);
        }
        if let Some(choices) = schema.get("oneOf").and_then(Value::as_array) {
            let choices = choices.iter().map(|choice| self.distribute(choice));
            return Ok(choices.collect::<Result<Vec<_>>>()?.concat());
        }
        let Some(parts) = schema.get("allOf").and_then(Value::as_array) else {
            ensure!(has_fields(schema), "allOf has a part that is not an object");
            return Ok(vec![raw_fields(schema)]);
        };
        let mut whole: Vec<Vec<RawField<'a>>> = vec![Vec::new()];
        for part in parts {
            let part = self.distribute(part)?;
            whole = whole
                .iter()
                .flat_map(|before| part.iter().map(|after| [&before[..], after].concat()))
                .collect();
        }
        Ok(whole)
    }
}

impl Reader<'_> {
    fn fields(&mut self, name: &str, schema: &Value) -> Result<Vec<Field>> {
        let fields = raw_fields(schema).into_iter();
        let fields =
            fields.map(|(field, required, schema)| self.field(name, field, required, schema));
        let mut fields = fields.collect::<Result<Vec<_>>>()?;
        fields.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(fields)
    }

    fn field(&mut self, of: &str, name: &str, required: bool, schema: &Value) -> Result<Field> {
        let kind = self.kind(&format!("{of}{}", type_name(name)), schema)?;
        // The description of an optional reference is beside the `$ref`, inside the `oneOf` with null.
        let choices = schema.get("oneOf").and_then(Value::as_array).into_iter().flatten();
        let inside = choices.map(doc).find(|doc| !doc.is_empty()).unwrap_or_default();
        let doc = Some(doc(schema)).filter(|doc| !doc.is_empty()).unwrap_or(inside);
        Ok(Field { name: name.to_owned(), doc, required, kind })
    }
}

fn raw_fields(schema: &Value) -> Vec<RawField<'_>> {
    let required = schema.get("required").and_then(Value::as_array);
    let is_required = |name: &str| required.is_some_and(|names| names.iter().any(|n| n == name));
    let fields = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
    fields.map(|(name, schema)| (name.as_str(), is_required(name), schema)).collect()
}

fn has_fields(schema: &Value) -> bool {
    schema.get("properties").is_some()
}

fn doc(schema: &Value) -> String {
    let text = schema.get("description").and_then(Value::as_str).unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The name behind `#/components/schemas/NAME`.
fn reference(schema: &Value) -> Option<&str> {
    schema.get("$ref")?.as_str()?.strip_prefix("#/components/schemas/")
}

/// What distinguishes a choice from the others: the value of its `kind`, or its only field.
fn tag(choice: &Value) -> Option<String> {
    if let Some(parts) = choice.get("allOf").and_then(Value::as_array) {
        return parts.iter().find_map(tag);
    }
    let fields = choice.get("properties")?.as_object()?;
    match fields.get("kind") {
        Some(kind) => words_of(kind),
        None if fields.len() == 1 => fields.keys().next().map(|name| type_name(name)),
        None => None,
    }
}

/// The only value of a tag, as part of a type name.
fn words_of(schema: &Value) -> Option<String> {
    match schema.get("enum")?.as_array()?.as_slice() {
        [Value::String(word)] => Some(type_name(word)),
        _ => None,
    }
}

/// A union of types. Nested unions are flattened and lists of strings are joined.
fn union(kinds: Vec<Type>) -> Type {
    let mut flat: Vec<Type> = Vec::new();
    for kind in kinds {
        match (kind, flat.iter_mut().find_map(words_in)) {
            (Type::Words(more), Some(words)) => words.extend(more),
            (Type::Union(inner), _) => flat.extend(inner),
            (kind, _) => flat.push(kind),
        }
    }
    if flat.len() == 1 { flat.remove(0) } else { Type::Union(flat) }
}

fn words_in(kind: &mut Type) -> Option<&mut Vec<String>> {
    match kind {
        Type::Words(words) => Some(words),
        _ => None,
    }
}
