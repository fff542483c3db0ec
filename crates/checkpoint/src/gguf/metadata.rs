//! Metadata keys with typed access.

use std::borrow::Cow;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::header::{DAMAGED, Header, Subject, shown};
use super::value::{Array, Strings, Value};
use crate::error::{Error, Result};

/// Metadata in file order. The typed getters report the key, the expected type and the actual type. Integers
/// convert between widths if the value fits, and floats between f32 and f64.
#[derive(Clone, Debug)]
pub struct Metadata {
    /// The file, for errors.
    path: PathBuf,
    entries: Vec<(String, Value)>,
    /// Indices of `entries`, sorted by key.
    by_key: Vec<usize>,
}

impl Metadata {
    pub(super) fn read<R: Read>(header: &mut Header<R>, count: usize) -> Result<Metadata> {
        let mut entries = Vec::with_capacity(count);
        for index in 0..count {
            let key = header.string(Subject::Key { index, count })?;
            let value = Value::read(header, &key)?;
            entries.push((key, value));
        }
        Metadata::new(header.path(), entries)
    }

    /// Reads keys until `last`, an array, of which only the length is read. Returns that length.
    pub(super) fn read_until<R: Read>(
        header: &mut Header<R>,
        count: usize,
        last: &str,
    ) -> Result<(Metadata, Option<u64>)> {
        let mut entries = Vec::new();
        for index in 0..count {
            let key = header.string(Subject::Key { index, count })?;
            if key == last {
                let len = Array::read_len(header, &key)?;
                return Ok((Metadata::new(header.path(), entries)?, Some(len)));
            }
            let value = Value::read(header, &key)?;
            entries.push((key, value));
        }
        Ok((Metadata::new(header.path(), entries)?, None))
    }

    fn new(path: &Path, entries: Vec<(String, Value)>) -> Result<Metadata> {
        let mut by_key: Vec<usize> = (0..entries.len()).collect();
        by_key.sort_unstable_by(|a, b| entries[*a].0.cmp(&entries[*b].0));
        if let Some(pair) = by_key.windows(2).find(|pair| entries[pair[0]].0 == entries[pair[1]].0) {
            let key = shown(&entries[pair[0]].0);
            return Err(Error::invalid(path, format!("duplicate metadata key '{key}': {DAMAGED}")));
        }
        Ok(Metadata { path: path.to_path_buf(), entries, by_key })
    }

    /// The keys with their values, in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value of `key`, of any type.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let found = self.by_key.binary_search_by(|index| self.entries[*index].0.as_str().cmp(key)).ok()?;
        Some(&self.entries[self.by_key[found]].1)
    }

    /// Applies `getter` to `key` if the key exists: `metadata.optional("a.b", Metadata::u32)`.
    pub fn optional<'a, T>(
        &'a self,
        key: &str,
        getter: impl FnOnce(&'a Metadata, &str) -> Result<T>,
    ) -> Result<Option<T>> {
        self.get(key).map(|_| getter(self, key)).transpose()
    }

    /// An unsigned 32-bit integer.
    pub fn u32(&self, key: &str) -> Result<u32> {
        self.integer(key, "u32")
    }

    /// An unsigned 64-bit integer.
    pub fn u64(&self, key: &str) -> Result<u64> {
        self.integer(key, "u64")
    }

    /// A signed 32-bit integer.
    pub fn i32(&self, key: &str) -> Result<i32> {
        self.integer(key, "i32")
    }

    /// A signed 64-bit integer.
    pub fn i64(&self, key: &str) -> Result<i64> {
        self.integer(key, "i64")
    }

    /// A float; an f64 is rounded.
    pub fn f32(&self, key: &str) -> Result<f32> {
        match self.get(key) {
            Some(Value::F32(value)) => Ok(*value),
            Some(Value::F64(value)) => Ok(*value as f32),
            other => Err(self.wrong(key, "f32", other)),
        }
    }

    /// A float.
    pub fn f64(&self, key: &str) -> Result<f64> {
        match self.get(key) {
            Some(Value::F32(value)) => Ok((*value).into()),
            Some(Value::F64(value)) => Ok(*value),
            other => Err(self.wrong(key, "f64", other)),
        }
    }

    /// A boolean.
    pub fn bool(&self, key: &str) -> Result<bool> {
        match self.get(key) {
            Some(Value::Bool(value)) => Ok(*value),
            other => Err(self.wrong(key, "bool", other)),
        }
    }

    /// A string.
    pub fn str(&self, key: &str) -> Result<&str> {
        match self.get(key) {
            Some(Value::String(value)) => Ok(value),
            other => Err(self.wrong(key, "string", other)),
        }
    }

    /// An array of any element type.
    pub fn array(&self, key: &str) -> Result<&Array> {
        match self.get(key) {
            Some(Value::Array(array)) => Ok(array),
            other => Err(self.wrong(key, "array", other)),
        }
    }

    /// An array of strings.
    pub fn array_str(&self, key: &str) -> Result<&Strings> {
        match self.get(key) {
            Some(Value::Array(Array::String(values))) => Ok(values),
            other => Err(self.wrong(key, "array of string", other)),
        }
    }

    /// An array of booleans.
    pub fn array_bool(&self, key: &str) -> Result<&[bool]> {
        match self.get(key) {
            Some(Value::Array(Array::Bool(values))) => Ok(values),
            other => Err(self.wrong(key, "array of bool", other)),
        }
    }

    /// An array of floats; f64 values are rounded.
    pub fn array_f32(&self, key: &str) -> Result<Cow<'_, [f32]>> {
        match self.get(key) {
            Some(Value::Array(Array::F32(values))) => Ok(values.into()),
            Some(Value::Array(Array::F64(values))) => Ok(values.iter().map(|value| *value as f32).collect()),
            other => Err(self.wrong(key, "array of f32", other)),
        }
    }

    /// An array of signed 32-bit integers.
    pub fn array_i32(&self, key: &str) -> Result<Cow<'_, [i32]>> {
        match self.get(key) {
            Some(Value::Array(Array::I32(values))) => Ok(values.into()),
            _ => self.integers(key, "array of i32").map(Cow::Owned),
        }
    }

    /// An array of unsigned 32-bit integers.
    pub fn array_u32(&self, key: &str) -> Result<Cow<'_, [u32]>> {
        match self.get(key) {
            Some(Value::Array(Array::U32(values))) => Ok(values.into()),
            _ => self.integers(key, "array of u32").map(Cow::Owned),
        }
    }

    fn integer<T: TryFrom<i128>>(&self, key: &str, expected: &str) -> Result<T> {
        let value = self.get(key);
        let integer = value.and_then(Value::integer).and_then(|integer| T::try_from(integer).ok());
        integer.ok_or_else(|| self.wrong(key, expected, value))
    }

    fn integers<T: TryFrom<i128>>(&self, key: &str, expected: &str) -> Result<Vec<T>> {
        let found = self.get(key);
        let Some(Value::Array(array)) = found else { return Err(self.wrong(key, expected, found)) };
        let Some(integers) = array.integers() else { return Err(self.wrong(key, expected, found)) };
        let convert = |(index, integer)| {
            T::try_from(integer).map_err(|_| {
                let reason =
                    format!("metadata key '{key}': {expected} expected, but element {index} is {integer}");
                Error::invalid(&self.path, reason)
            })
        };
        integers.enumerate().map(convert).collect()
    }

    fn wrong(&self, key: &str, expected: &str, found: Option<&Value>) -> Error {
        let found = found.map_or("no such key".to_string(), Value::describe);
        Error::invalid(&self.path, format!("metadata key '{key}': {expected} expected, found {found}"))
    }
}
