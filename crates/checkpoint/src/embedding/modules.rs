//! Folders of sentence-transformers: `modules.json` names the modules that a text passes through, each with a folder.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{Bert, EmbeddingCheckpoint, Heading, Opened, Pooling, Prompts, bert};
use crate::{
    config::{Config, Keys, MetaValue},
    error::{Error, Result},
    folder, safetensors,
    source::{Source, Tensor},
};

const MODULES: &str = "modules.json";

/// Maximum modules of a model.
const MAX_MODULES: usize = 16;

/// A module: its kind and its folder.
struct Module {
    kind: String,
    path: PathBuf,
}

/// The modules of a folder, in order; `None` without `modules.json`.
fn modules(folder: &Path) -> Result<Option<Vec<Module>>> {
    let path = folder.join(MODULES);
    if !path.is_file() {
        return Ok(None);
    }
    let json = folder::read_config(&path)?;
    let list = json.as_array().filter(|list| list.len() <= MAX_MODULES);
    let list =
        list.ok_or_else(|| Error::invalid(&path, format!("is not a list of at most {MAX_MODULES} modules")))?;
    let module = |entry: &Value| {
        let text = |key: &str| entry.get(key).and_then(Value::as_str);
        let (Some(kind), Some(name)) = (text("type"), text("path")) else {
            return Err(Error::invalid(&path, "has a module without type or path"));
        };
        // Its folder must be inside the model's.
        if name.contains(['/', '\\']) || name.contains("..") {
            let name: String = name.chars().take(64).collect();
            return Err(Error::invalid(&path, format!("has a module in '{}'", name.escape_debug())));
        }
        let kind = kind.rsplit('.').next().unwrap_or(kind).to_string();
        Ok(Module { kind, path: folder.join(name) })
    };
    list.iter().map(module).collect::<Result<Vec<_>>>().map(Some)
}

/// Whether the modules of a folder make an embedding.
pub(super) fn have_pooling(folder: &Path) -> Result<bool> {
    Ok(modules(folder)?.is_some_and(|modules| modules.iter().any(|module| module.kind == "Pooling")))
}

/// Opens a folder.
pub(super) fn open(path: &Path) -> Result<EmbeddingCheckpoint> {
    let folder = folder::open(path)?;
    let (config_path, mut source) = (folder.config_path(), folder.source);
    let Some(top) = folder.config.as_object() else {
        return Err(Error::invalid(&config_path, "is not a JSON object"));
    };
    let get = |key: &str| top.get(key).map(MetaValue::from_json);
    let keys = Keys { path: &config_path, prefix: "", get: &get };
    let bidirectional = keys.flag("use_bidirectional_attention")? == Some(true);
    let (pooling, normalize, pooled) = heads(path, &mut source)?;
    let max_tokens = max_tokens(path)?;
    let heading = Heading { pooling, normalize, bidirectional, max_tokens };
    let opened = |source| {
        Ok::<_, Error>(Opened { path: path.to_path_buf(), source, heading, prompts: prompts(path)? })
    };
    if keys.text("model_type")? == Some(bert::MODEL_TYPE) {
        let bert = Bert::from_hf(&keys)?;
        return EmbeddingCheckpoint::bert(opened(source)?, bert, pooled);
    }
    // The family rejects what a model that generates cannot have.
    let mut json = folder.config.clone();
    if let Some(members) = json.as_object_mut() {
        members.remove("use_bidirectional_attention");
    }
    let config = Config::from_hf(&config_path, &json)?;
    name_as_causal(&mut source);
    EmbeddingCheckpoint::decoder(opened(source)?, config, pooled)
}

/// Names the tensors of a model without a head, whose files have no prefix, like those of one with a head.
fn name_as_causal(source: &mut Source) {
    let bare = ["embed_tokens.", "layers.", "norm."];
    for tensor in
        source.tensors.iter_mut().filter(|tensor| bare.iter().any(|bare| tensor.name.starts_with(bare)))
    {
        tensor.name.insert_str(0, "model.");
    }
}

/// What follows the layers: pooling, whether vectors are normalised, and the dense layers.
fn heads(path: &Path, source: &mut Source) -> Result<(Pooling, bool, Vec<Tensor>)> {
    let Some(modules) = modules(path)? else {
        // As sentence-transformers does with the folder of an encoder alone.
        return Ok((Pooling::Mean, true, vec![]));
    };
    let (mut pooling, mut normalize, mut dense) = (None, false, vec![]);
    for (index, module) in modules.iter().enumerate() {
        match module.kind.as_str() {
            "Transformer" if index == 0 && module.path.join(folder::CONFIG) == path.join(folder::CONFIG) => {}
            "Pooling" if index == 1 => pooling = Some(read_pooling(&module.path)?),
            "Dense" if pooling.is_some() && !normalize => dense.push(read_dense(&module.path, source)?),
            "Normalize" if pooling.is_some() => normalize = true,
            other => {
                let other: String = other.chars().take(64).collect();
                return Err(Error::Unsupported {
                    path: path.join(MODULES),
                    what: format!("module {index}, a '{}' at this place,", other.escape_debug()),
                    fix: "use a model of a transformer, pooling, dense layers and normalisation".to_string(),
                });
            }
        }
    }
    let pooling = pooling.ok_or_else(|| Error::invalid(&path.join(MODULES), "has no pooling module"))?;
    Ok((pooling, normalize, dense))
}

fn read_pooling(module: &Path) -> Result<Pooling> {
    let path = module.join(folder::CONFIG);
    let json = folder::read_config(&path)?;
    let unsupported = |what: &str| Error::Unsupported {
        path: path.clone(),
        what: what.to_string(),
        fix: "use a model that pools by the mean, the first or the last token".to_string(),
    };
    if json.get("include_prompt") == Some(&Value::Bool(false)) {
        return Err(unsupported("pooling without the prompt"));
    }
    let set = |key: &str| json.get(key) == Some(&Value::Bool(true));
    let known = [
        ("mean", "pooling_mode_mean_tokens", Pooling::Mean),
        ("cls", "pooling_mode_cls_token", Pooling::Cls),
        ("lasttoken", "pooling_mode_lasttoken", Pooling::Last),
    ];
    let named = json.get("pooling_mode").and_then(Value::as_str);
    let others =
        ["pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens"];
    let found: Vec<Pooling> = known
        .iter()
        .filter(|(name, key, _)| named.map_or(set(key), |named| named == *name))
        .map(|(.., pooling)| *pooling)
        .collect();
    match found[..] {
        [pooling] if named.is_some() || !others.iter().any(|key| set(key)) => Ok(pooling),
        _ => Err(unsupported("its combination of pooling modes")),
    }
}

/// The matrix of a dense layer, whose file becomes one of the source's.
fn read_dense(module: &Path, source: &mut Source) -> Result<Tensor> {
    let path = module.join(folder::CONFIG);
    let json = folder::read_config(&path)?;
    let unsupported = |what: String| Error::Unsupported {
        path: path.clone(),
        what,
        fix: "use a model whose dense layers have neither".to_string(),
    };
    if json.get("bias") != Some(&Value::Bool(false)) {
        return Err(unsupported("a bias".to_string()));
    }
    let activation = json.get("activation_function").and_then(Value::as_str).unwrap_or_default();
    if activation.rsplit('.').next() != Some("Identity") {
        let activation: String = activation.chars().take(64).collect();
        return Err(unsupported(format!("the activation '{}'", activation.escape_debug())));
    }
    let weights = module.join("model.safetensors");
    if !weights.is_file() && module.join("pytorch_model.bin").is_file() {
        return Err(Error::Unsupported {
            path: module.to_path_buf(),
            what: "a dense layer saved with pickle".to_string(),
            fix: "save it as safetensors, for example with save_pretrained".to_string(),
        });
    }
    let file = safetensors::open(&weights)?;
    let entry = file.header.entries.iter().find(|entry| entry.name == "linear.weight");
    let entry = entry.ok_or_else(|| Error::invalid(&weights, "has no tensor linear.weight"))?;
    let number = source.files.len();
    let tensor = folder::plain_tensor(&file, number, entry)?;
    let tensor = tensor.ok_or_else(|| Error::tensor(&weights, &entry.name, "is not F32, F16 or BF16"))?;
    source.files.push(file.path.clone());
    Ok(tensor)
}

/// `max_seq_length` of `sentence_bert_config.json`.
fn max_tokens(folder: &Path) -> Result<Option<u32>> {
    let path = folder.join("sentence_bert_config.json");
    if !path.is_file() {
        return Ok(None);
    }
    let json = folder::read_config(&path)?;
    let get = |key: &str| json.get(key).map(MetaValue::from_json);
    let keys = Keys { path: &path, prefix: "", get: &get };
    match keys.has("max_seq_length") {
        true => keys.size("max_seq_length", u32::MAX, None).map(Some),
        false => Ok(None),
    }
}

/// `prompts` and `default_prompt_name` of `config_sentence_transformers.json`.
fn prompts(folder: &Path) -> Result<Prompts> {
    let path = folder.join("config_sentence_transformers.json");
    if !path.is_file() {
        return Ok(Prompts::default());
    }
    let json = folder::read_config(&path)?;
    let prompts = json.get("prompts").and_then(Value::as_object);
    let by_name: BTreeMap<String, String> = prompts
        .into_iter()
        .flatten()
        .filter_map(|(name, text)| Some((name.clone(), text.as_str()?.to_string())))
        .collect();
    let default = json.get("default_prompt_name").and_then(Value::as_str).map(str::to_string);
    if let Some(name) = default.as_ref().filter(|name| !by_name.contains_key(*name)) {
        let name: String = name.chars().take(64).collect();
        let reason =
            format!("default_prompt_name is '{}', which is not among its prompts", name.escape_debug());
        return Err(Error::invalid(&path, reason));
    }
    Ok(Prompts { by_name, default })
}
