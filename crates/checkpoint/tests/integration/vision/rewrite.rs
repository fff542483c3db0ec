//! Model files with other keys, names or shapes than those of a fixture.

use std::{fs, path::Path};

use checkpoint::gguf::{self, Array, Value};
use serde_json::{Map, Value as Json, json};
use tensor::Encoding;

/// A GGUF file in memory, to be changed and written again.
pub struct GgufFile {
    pub keys: Vec<(String, Value)>,
    pub tensors: Vec<StoredTensor>,
}

pub struct StoredTensor {
    pub name: String,
    /// Outermost dimension first.
    pub shape: Vec<u64>,
    encoding: Encoding,
    pub data: Vec<u8>,
}

impl GgufFile {
    pub fn read(path: &Path) -> Self {
        let (gguf, bytes) = (gguf::open(path).unwrap(), fs::read(path).unwrap());
        let keys = gguf.metadata.iter().map(|(key, value)| (key.to_owned(), value.clone())).collect();
        let tensors = gguf.source.tensors.into_iter().map(|tensor| StoredTensor {
            data: bytes[tensor.data.offset as usize..][..tensor.data.len as usize].to_vec(),
            name: tensor.name,
            shape: tensor.shape,
            encoding: tensor.encoding,
        });
        Self { keys, tensors: tensors.collect() }
    }

    pub fn set(&mut self, key: &str, value: Value) {
        self.remove(key);
        self.keys.push((key.to_owned(), value));
    }

    pub fn remove(&mut self, key: &str) {
        self.keys.retain(|(other, _)| other != key);
    }

    pub fn tensor(&mut self, name: &str) -> &mut StoredTensor {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap()
    }

    pub fn rename(&mut self, change: impl Fn(&str) -> String) {
        self.tensors.iter_mut().for_each(|tensor| tensor.name = change(&tensor.name));
    }

    pub fn write(&self, path: &Path) {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3_u32.to_le_bytes());
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            bytes.extend(text(key));
            bytes.extend(metadata_value(value));
        }
        let mut data = Vec::new();
        for tensor in &self.tensors {
            bytes.extend(text(&tensor.name));
            bytes.extend((tensor.shape.len() as u32).to_le_bytes());
            bytes.extend(tensor.shape.iter().rev().flat_map(|dimension| dimension.to_le_bytes()));
            bytes.extend(tensor_type(tensor.encoding).to_le_bytes());
            bytes.extend((data.len() as u64).to_le_bytes());
            data.extend(&tensor.data);
            data.resize(data.len().next_multiple_of(32), 0);
        }
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        fs::write(path, [bytes, data].concat()).unwrap();
    }
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

/// Type and value, for the types in the fixtures.
fn metadata_value(value: &Value) -> Vec<u8> {
    let (kind, bytes): (u32, Vec<u8>) = match value {
        Value::U32(value) => (4, value.to_le_bytes().into()),
        Value::F32(value) => (6, value.to_le_bytes().into()),
        Value::Bool(value) => (7, vec![u8::from(*value)]),
        Value::String(value) => (8, text(value)),
        Value::Array(values) => {
            let (kind, elements): (u32, Vec<u8>) = match values {
                Array::I32(values) => (5, values.iter().flat_map(|value| value.to_le_bytes()).collect()),
                Array::F32(values) => (6, values.iter().flat_map(|value| value.to_le_bytes()).collect()),
                Array::String(values) => (8, values.iter().flat_map(text).collect()),
                other => panic!("{other:?}"),
            };
            (9, [&kind.to_le_bytes()[..], &(values.len() as u64).to_le_bytes(), &elements].concat())
        }
        other => panic!("{other:?}"),
    };
    [&kind.to_le_bytes()[..], &bytes].concat()
}

fn tensor_type(encoding: Encoding) -> u32 {
    match encoding {
        Encoding::F32 => 0,
        Encoding::F16 => 1,
        Encoding::Q8_0 => 8,
        other => panic!("{other}"),
    }
}

/// Renames tensors of a safetensors file; those for which `name` returns `None` are removed.
pub fn rename_safetensors(path: &Path, name: impl Fn(&str) -> Option<String>) {
    edit_safetensors(path, |old, _, _| name(old));
}

/// Changes names, shapes or data of the tensors of a safetensors file, whose header has them as JSON; those for which
/// `edit` returns no name are removed.
pub fn edit_safetensors(path: &Path, edit: impl Fn(&str, &mut Json, &mut Vec<u8>) -> Option<String>) {
    let bytes = fs::read(path).unwrap();
    let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: Map<String, Json> = serde_json::from_slice(header).unwrap();
    let (mut new_header, mut new_data) = (Map::new(), Vec::new());
    for (old, mut entry) in header.into_iter().filter(|(name, _)| name != "__metadata__") {
        let [begin, end] = [0, 1].map(|index| entry["data_offsets"][index].as_u64().unwrap() as usize);
        let mut bytes = data[begin..end].to_vec();
        let Some(new) = edit(&old, &mut entry, &mut bytes) else { continue };
        let begins = new_data.len();
        new_data.extend(bytes);
        entry["data_offsets"] = json!([begins, new_data.len()]);
        new_header.insert(new, entry);
    }
    let header = serde_json::to_vec(&new_header).unwrap();
    fs::write(path, [&(header.len() as u64).to_le_bytes()[..], &header, &new_data].concat()).unwrap();
}
