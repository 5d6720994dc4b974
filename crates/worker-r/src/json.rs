//! Converts between R values and JSON. Knows nothing about tools.
//!
//! | R | JSON |
//! |---|---|
//! | `NULL`, `NA`, `NaN`, `Inf` | `null` |
//! | vector of length 1 without names | a scalar; `I(x)` stays a list |
//! | vector of any other length | a list |
//! | vector or list with names | an object |
//! | data frame | a list of objects, one for each row |
//! | raw vector | base64 text |
//!
//! Back: a list of scalars of one type becomes a vector, in which `null` is `NA`. A list of objects whose members
//! are scalars becomes a data frame. Any other list becomes a list, and `null` outside of vectors is `NULL`.
//!
//! An R allocation that fails unwinds with `longjmp` and leaks the Rust values of the conversion. That happens only
//! when memory is exhausted.

use std::ffi::c_int;

use base64::Engine;
use serde_json::{Map, Number, Value};

use crate::libr::{self, NA_INTEGER, NA_REAL_BITS, Sexp, kind};

/// Maximum depth of nested values.
const DEPTH_MAX: usize = 100;

/// Why a value has no form in JSON.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum JsonError {
    #[error("a value of type {0} has no form in JSON")]
    Type(&'static str),
    #[error("the value is nested deeper than {DEPTH_MAX} levels")]
    Deep,
}

/// The JSON form of an R value.
pub fn to_json(value: Sexp) -> Result<Value, JsonError> {
    encode(value, 0)
}

/// The JSON object of an R list with names.
pub fn to_object(value: Sexp) -> Result<Value, JsonError> {
    match encode(value, 0)? {
        Value::Array(list) if list.is_empty() => Ok(Value::Object(Map::new())),
        other => Ok(other),
    }
}

fn type_of(value: Sexp) -> u32 {
    // SAFETY: reads the header of a live object.
    unsafe { libr::type_of(value) }.cast_unsigned()
}

fn length(value: Sexp) -> usize {
    // SAFETY: reads the header of a live object.
    usize::try_from(unsafe { libr::length(value) }).unwrap_or_default()
}

fn has_class(value: Sexp, class: &std::ffi::CStr) -> bool {
    // SAFETY: the class ends with NUL.
    unsafe { libr::inherits(value, class.as_ptr()) != 0 }
}

/// The text of one element of a character vector; `None` for `NA`.
pub fn text_of(element: Sexp) -> Option<String> {
    if element == libr::na_string() {
        return None;
    }
    // SAFETY: the bytes of the element end with NUL and live as long as the element.
    let bytes = unsafe { std::ffi::CStr::from_ptr(libr::char_bytes(element)) };
    Some(String::from_utf8_lossy(bytes.to_bytes()).into_owned())
}

/// The first text of a character vector.
pub fn first_text(vector: Sexp) -> Option<String> {
    if type_of(vector) != kind::STRING || length(vector) == 0 {
        return None;
    }
    // SAFETY: the vector has an element.
    text_of(unsafe { libr::string_at(vector, 0) })
}

/// All texts of a character vector, without `NA`.
pub fn texts(vector: Sexp) -> Vec<String> {
    if type_of(vector) != kind::STRING {
        return Vec::new();
    }
    // SAFETY: the index is in the vector.
    (0..length(vector))
        .filter_map(|at| text_of(unsafe { libr::string_at(vector, at.cast_signed()) }))
        .collect()
}

fn names_of(value: Sexp) -> Option<Vec<String>> {
    // SAFETY: reads an attribute of a live object.
    let names = unsafe { libr::get_attribute(value, libr::names_symbol()) };
    if type_of(names) != kind::STRING {
        return None;
    }
    let all = (0..length(names)).map(|index| {
        // SAFETY: the index is in the vector.
        text_of(unsafe { libr::string_at(names, index.cast_signed()) }).unwrap_or_default()
    });
    Some(all.collect())
}

fn encode(value: Sexp, depth: usize) -> Result<Value, JsonError> {
    if depth > DEPTH_MAX {
        return Err(JsonError::Deep);
    }
    match type_of(value) {
        kind::NIL => return Ok(Value::Null),
        kind::RAW => {
            // SAFETY: a raw vector has this many bytes.
            let bytes =
                unsafe { std::slice::from_raw_parts(libr::raw_bytes(value), length(value)) };
            return Ok(base64::engine::general_purpose::STANDARD.encode(bytes).into());
        }
        kind::LIST if has_class(value, c"data.frame") => return rows(value, depth),
        kind::LIST | kind::LOGICAL | kind::INTEGER | kind::REAL | kind::STRING => {}
        kind::SYMBOL => return Err(JsonError::Type("symbol")),
        3 => return Err(JsonError::Type("function")),
        4 => return Err(JsonError::Type("environment")),
        6 => return Err(JsonError::Type("call")),
        25 => return Err(JsonError::Type("S4 object")),
        _ => return Err(JsonError::Type("this kind")),
    }
    let count = length(value);
    if let Some(names) = names_of(value) {
        let members = names.into_iter().enumerate();
        return members
            .map(|(index, name)| Ok((name, element(value, index, depth)?)))
            .collect::<Result<Map<_, _>, _>>()
            .map(Value::Object);
    }
    let scalar = count == 1 && type_of(value) != kind::LIST && !has_class(value, c"AsIs");
    if scalar {
        return element(value, 0, depth);
    }
    (0..count)
        .map(|index| element(value, index, depth))
        .collect::<Result<Vec<_>, _>>()
        .map(Value::Array)
}

fn element(vector: Sexp, index: usize, depth: usize) -> Result<Value, JsonError> {
    let at = index.cast_signed();
    // SAFETY: the callers stay within the vector, and each accessor fits the type.
    unsafe {
        Ok(match type_of(vector) {
            kind::LIST => return encode(libr::element_at(vector, at), depth + 1),
            kind::STRING => text_of(libr::string_at(vector, at)).map_or(Value::Null, Value::String),
            kind::LOGICAL => match *libr::logicals(vector).add(index) {
                NA_INTEGER => Value::Null,
                word => (word != 0).into(),
            },
            kind::INTEGER => match *libr::integers(vector).add(index) {
                NA_INTEGER => Value::Null,
                number => number.into(),
            },
            kind::REAL => number(*libr::reals(vector).add(index)),
            kind::RAW => (*libr::raw_bytes(vector).add(index)).into(),
            _ => return Err(JsonError::Type("this kind")),
        })
    }
}

/// A whole number that a double holds exactly is written without a fraction.
fn number(real: f64) -> Value {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if real.fract() == 0.0 && real.abs() <= EXACT {
        #[expect(clippy::cast_possible_truncation, reason = "the number is whole and in range")]
        return Value::Number((real as i64).into());
    }
    Number::from_f64(real).map_or(Value::Null, Value::Number)
}

fn rows(frame: Sexp, depth: usize) -> Result<Value, JsonError> {
    let names = names_of(frame).unwrap_or_default();
    // SAFETY: a data frame is a list of columns.
    let columns: Vec<Sexp> = (0..length(frame))
        .map(|index| unsafe { libr::element_at(frame, index.cast_signed()) })
        .collect();
    let count = columns.iter().map(|column| length(*column)).min().unwrap_or_default();
    let row = |at: usize| {
        let members = names.iter().zip(&columns);
        members
            .map(|(name, column)| Ok((name.clone(), element(*column, at, depth + 1)?)))
            .collect::<Result<Map<_, _>, _>>()
            .map(Value::Object)
    };
    (0..count).map(row).collect::<Result<Vec<_>, _>>().map(Value::Array)
}

/// The R form of a JSON value. The result is not protected.
pub fn from_json(value: &Value) -> Sexp {
    match value {
        Value::Null => libr::nil(),
        Value::Array(list) => from_list(list),
        Value::Object(object) => from_object(object),
        scalar => vector_of(std::slice::from_ref(&scalar)).unwrap_or_else(libr::nil),
    }
}

/// A character vector of one text.
pub fn text(text: &str) -> Sexp {
    // SAFETY: the vector is protected while its element is allocated.
    unsafe {
        let vector = libr::protect(libr::allocate(kind::STRING, 1));
        libr::set_string(vector, 0, make_char(text));
        libr::unprotect(1);
        vector
    }
}

/// An element of a character vector. R has no NUL in texts, so the text is cut at the first one.
fn make_char(text: &str) -> Sexp {
    let cut = text.find('\0').map_or(text, |at| &text[..at]);
    let bytes = c_int::try_from(cut.len()).unwrap_or(c_int::MAX);
    // SAFETY: the pointer and the length are of one text.
    unsafe { libr::make_char(cut.as_ptr().cast(), bytes, libr::UTF8) }
}

fn names(names: &[&str]) -> Sexp {
    // SAFETY: the vector is protected while its elements are allocated.
    unsafe {
        let vector = libr::protect(libr::allocate(kind::STRING, names.len().cast_signed()));
        for (index, name) in names.iter().enumerate() {
            libr::set_string(vector, index.cast_signed(), make_char(name));
        }
        libr::unprotect(1);
        vector
    }
}

fn from_list(values: &[Value]) -> Sexp {
    let all: Vec<&Value> = values.iter().collect();
    if let Some(vector) = vector_of(&all) {
        return vector;
    }
    if let Some(frame) = data_frame(values) {
        return frame;
    }
    list(values.len(), values.iter())
}

fn list<'a>(count: usize, values: impl Iterator<Item = &'a Value>) -> Sexp {
    // SAFETY: the list is protected while its elements are allocated.
    unsafe {
        let list = libr::protect(libr::allocate(kind::LIST, count.cast_signed()));
        for (index, value) in values.enumerate() {
            libr::set_element(list, index.cast_signed(), from_json(value));
        }
        libr::unprotect(1);
        list
    }
}

fn from_object(object: &Map<String, Value>) -> Sexp {
    let keys: Vec<&str> = object.keys().map(String::as_str).collect();
    // SAFETY: the list is protected while its names are allocated.
    unsafe {
        let list = libr::protect(list(object.len(), object.values()));
        libr::set_attribute(list, libr::names_symbol(), names(&keys));
        libr::unprotect(1);
        list
    }
}

/// The type of vector that holds all of these values. `None` if one is no scalar, or if none says a type.
fn vector_kind(values: &[&Value]) -> Option<u32> {
    let mut found = None;
    for value in values {
        let kind = match value {
            Value::Null => continue,
            Value::Bool(_) => kind::LOGICAL,
            Value::Number(number) => match number.as_i64().and_then(|n| i32::try_from(n).ok()) {
                Some(NA_INTEGER) | None => kind::REAL,
                Some(_) => kind::INTEGER,
            },
            Value::String(_) => kind::STRING,
            Value::Array(_) | Value::Object(_) => return None,
        };
        found = match found {
            None => Some(kind),
            Some(same) if same == kind => found,
            Some(kind::INTEGER | kind::REAL) if matches!(kind, kind::INTEGER | kind::REAL) => {
                Some(kind::REAL)
            }
            Some(_) => return None,
        };
    }
    found
}

fn vector_of(values: &[&Value]) -> Option<Sexp> {
    let kind = vector_kind(values)?;
    // SAFETY: the vector is protected while its elements are allocated, and the index is within it.
    unsafe {
        let vector = libr::protect(libr::allocate(kind, values.len().cast_signed()));
        for (index, value) in values.iter().enumerate() {
            match kind {
                kind::LOGICAL => {
                    let word = value.as_bool().map_or(NA_INTEGER, i32::from);
                    *libr::logicals(vector).add(index) = word;
                }
                kind::INTEGER => {
                    let number = value.as_i64().and_then(|n| i32::try_from(n).ok());
                    *libr::integers(vector).add(index) = number.unwrap_or(NA_INTEGER);
                }
                kind::REAL => {
                    let real = value.as_f64().unwrap_or(f64::from_bits(NA_REAL_BITS));
                    *libr::reals(vector).add(index) = real;
                }
                _ => {
                    let element = value.as_str().map_or_else(libr::na_string, make_char);
                    libr::set_string(vector, index.cast_signed(), element);
                }
            }
        }
        libr::unprotect(1);
        Some(vector)
    }
}

/// A data frame of objects whose members are scalars. A member that an object lacks is `NA`.
fn data_frame(values: &[Value]) -> Option<Sexp> {
    let mut keys: Vec<&str> = Vec::new();
    for value in values {
        for (key, member) in value.as_object()? {
            if member.is_array() || member.is_object() {
                return None;
            }
            if !keys.contains(&key.as_str()) {
                keys.push(key);
            }
        }
    }
    if keys.is_empty() {
        return None;
    }
    // SAFETY: the list is protected while its columns and attributes are allocated.
    unsafe {
        let frame = libr::protect(libr::allocate(kind::LIST, keys.len().cast_signed()));
        for (index, key) in keys.iter().enumerate() {
            let column: Vec<&Value> =
                values.iter().map(|row| row.get(key).unwrap_or(&Value::Null)).collect();
            let vector = vector_of(&column).unwrap_or_else(|| mixed_column(&column));
            libr::set_element(frame, index.cast_signed(), vector);
        }
        libr::set_attribute(frame, libr::names_symbol(), names(&keys));
        let row_names = libr::protect(libr::allocate(kind::INTEGER, 2));
        *libr::integers(row_names) = NA_INTEGER;
        *libr::integers(row_names).add(1) = -c_int::try_from(values.len()).unwrap_or(c_int::MAX);
        libr::set_attribute(frame, libr::row_names_symbol(), row_names);
        libr::set_attribute(frame, libr::class_symbol(), text("data.frame"));
        libr::unprotect(2);
        Some(frame)
    }
}

/// A column without one type: all `NA`, or a list.
fn mixed_column(values: &[&Value]) -> Sexp {
    if values.iter().any(|value| !value.is_null()) {
        return list(values.len(), values.iter().copied());
    }
    // SAFETY: the vector has this many elements, and nothing is allocated after it.
    unsafe {
        let vector = libr::allocate(kind::LOGICAL, values.len().cast_signed());
        for index in 0..values.len() {
            *libr::logicals(vector).add(index) = NA_INTEGER;
        }
        vector
    }
}
