//! Parsing the JSON of a header directly into typed entries: no intermediate tree, no duplicate keys, bounded
//! lengths.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{Dtype, Entry, Header, MAX_ENTRIES};

/// Maximum bytes of a name.
const MAX_NAME: usize = 512;

/// Maximum dimensions of a tensor. Weights have one to four; the bound keeps a malicious shape short.
const MAX_DIMENSIONS: usize = 8;

/// Rejects a string without quoting it, unlike the default visitor: escaping megabytes takes longer than
/// reading them. The parser only lets a visitor reject values that it requests with `deserialize_any`.
macro_rules! no_text {
    () => {
        fn visit_str<E: serde::de::Error>(self, _: &str) -> Result<Self::Value, E> {
            Err(E::invalid_type(serde::de::Unexpected::Other("a string"), &self))
        }
    };
}
pub(crate) use no_text;

/// A parser's message, truncated: it may quote arbitrarily long input.
pub(crate) fn brief(error: serde_json::Error) -> String {
    let text = error.to_string();
    match text.char_indices().nth(200) {
        Some((end, _)) => format!("{}… at column {}", &text[..end], error.column()),
        None => text,
    }
}

/// The header object. While a tensor is being parsed, `current` holds its name for error messages.
pub(super) struct HeaderSeed<'a> {
    pub(super) current: &'a mut Option<String>,
}

impl<'de> DeserializeSeed<'de> for HeaderSeed<'_> {
    type Value = Header;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Header, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for HeaderSeed<'_> {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    no_text!();

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut metadata = None;
        let mut entries = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            check_name(&name)?;
            if name == "__metadata__" {
                if metadata.replace(map.next_value_seed(TextMap { what: "__metadata__" })?).is_some() {
                    return Err(A::Error::custom("duplicate __metadata__"));
                }
                continue;
            }
            if entries.len() == MAX_ENTRIES {
                return Err(A::Error::custom(format!("more than {MAX_ENTRIES} tensors")));
            }
            *self.current = Some(name.clone());
            entries.push(map.next_value_seed(EntrySeed { name })?);
            *self.current = None;
        }
        Ok(Header { metadata: metadata.unwrap_or_default(), entries })
    }
}

/// Names appear in messages, file names and tables, so names with unprintable characters are rejected here.
fn check_name<E: serde::de::Error>(name: &str) -> Result<(), E> {
    let shown = || name.chars().take(64).collect::<String>().escape_debug().to_string();
    if name.is_empty() {
        return Err(E::custom("empty name"));
    }
    if name.len() > MAX_NAME {
        let message = format!("name of {} bytes, but the limit is {MAX_NAME}: '{}…'", name.len(), shown());
        return Err(E::custom(message));
    }
    if name.chars().any(char::is_control) {
        return Err(E::custom(format!("name with control characters: '{}'", shown())));
    }
    Ok(())
}

/// An object of strings without duplicate keys.
pub(crate) struct TextMap {
    /// Name in messages.
    pub(crate) what: &'static str,
}

impl<'de> DeserializeSeed<'de> for TextMap {
    type Value = BTreeMap<String, String>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for TextMap {
    type Value = BTreeMap<String, String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, an object of strings", self.what)
    }

    no_text!();

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut strings = BTreeMap::new();
        while let Some(key) = map.next_key::<String>()? {
            check_name(&key)?;
            if strings.len() == MAX_ENTRIES {
                return Err(A::Error::custom(format!("{} has more than {MAX_ENTRIES} entries", self.what)));
            }
            let value = map.next_value::<String>()?;
            if let Some((key, _)) = strings.get_key_value(&key) {
                return Err(A::Error::custom(format!("{} has duplicate key '{key}'", self.what)));
            }
            strings.insert(key, value);
        }
        Ok(strings)
    }
}

/// The description of one tensor.
struct EntrySeed {
    name: String,
}

impl<'de> DeserializeSeed<'de> for EntrySeed {
    type Value = Entry;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Entry, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for EntrySeed {
    type Value = Entry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with dtype, shape and data_offsets")
    }

    no_text!();

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entry, A::Error> {
        let (mut dtype, mut shape, mut offsets) = (None, None, None);
        while let Some(key) = map.next_key::<String>()? {
            let duplicate = match key.as_str() {
                "dtype" => dtype.replace(map.next_value::<String>()?).is_some(),
                "shape" => shape.replace(map.next_value_seed(Numbers)?).is_some(),
                "data_offsets" => offsets.replace(map.next_value_seed(Numbers)?).is_some(),
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    false
                }
            };
            if duplicate {
                return Err(A::Error::custom(format!("duplicate {key}")));
            }
        }
        let dtype = dtype.ok_or_else(|| A::Error::missing_field("dtype"))?;
        check_name(&dtype)?;
        let shape = shape.ok_or_else(|| A::Error::missing_field("shape"))?;
        let offsets = offsets.ok_or_else(|| A::Error::missing_field("data_offsets"))?;
        let [begin, end] = offsets[..] else {
            return Err(A::Error::custom(format!("data_offsets has {} numbers, expected 2", offsets.len())));
        };
        Ok(Entry { name: self.name, dtype: Dtype::parse(&dtype), shape, begin, end })
    }
}

/// A short list of unsigned 64-bit integers.
struct Numbers;

impl<'de> DeserializeSeed<'de> for Numbers {
    type Value = Vec<u64>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Vec<u64>, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Numbers {
    type Value = Vec<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of unsigned 64-bit integers")
    }

    no_text!();

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<u64>, A::Error> {
        let mut numbers = Vec::new();
        while let Some(number) = list.next_element_seed(Number)? {
            if numbers.len() == MAX_DIMENSIONS {
                return Err(A::Error::custom(format!("list of more than {MAX_DIMENSIONS} numbers")));
            }
            numbers.push(number);
        }
        Ok(numbers)
    }
}

struct Number;

impl<'de> DeserializeSeed<'de> for Number {
    type Value = u64;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<u64, D::Error> {
        from.deserialize_any(self)
    }
}

impl Visitor<'_> for Number {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an unsigned 64-bit integer")
    }

    no_text!();

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<u64, E> {
        Ok(number)
    }
}
