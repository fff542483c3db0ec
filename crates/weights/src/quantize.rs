//! Any checkpoint to a file of our own, in int8 or int4, piece by piece: never more than a few strips in memory a thread.

use std::{
    collections::BTreeMap,
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use checkpoint::{
    Checkpoint, Config, Role, Span, Tensor,
    names::Naming,
    native::{CONFIG_KEY, MATRICES_KEY, Shape, TOKENIZER, VERSION, VERSION_KEY, scales_name},
};
use kernels::transcode;
use serde_json::json;
use tensor::{Encoding, GROUP, Layout, STRIP, Scheme, quant};

use crate::{Error, Result, stream::Control};

/// What quantising did.
#[derive(Clone, Debug)]
pub struct Report {
    /// Bytes of all tensors before.
    pub bytes_before: u64,
    /// Bytes of all tensors after.
    pub bytes_after: u64,
    /// For each role: tensors, and the error of all of them together relative to their size.
    pub roles: BTreeMap<Role, (usize, quant::Rmse)>,
}

/// One tensor on its way.
struct Job<'a> {
    role: Role,
    tensor: &'a Tensor,
    name: String,
    /// None for a vector.
    layout: Option<Layout>,
    /// Where its values and scales begin in the file's data.
    values_at: u64,
    scales_at: u64,
}

/// Bytes of f32 that a thread has in memory at once (or one strip); what becomes of them takes about four times as much.
const PIECE: usize = 4 << 20;
/// More threads than this wait for the disk, and would take memory for it.
const MOST_THREADS: usize = 16;

/// Strips that a thread works on at once.
fn strips_at_once(layout: &Layout) -> usize {
    (PIECE / (layout.k * STRIP * size_of::<f32>())).max(1)
}

/// Quantises every matrix and writes the file. It appears under its name only when it is whole.
pub fn quantize(checkpoint: &Checkpoint, out: &Path, scheme: Scheme, control: &Control) -> Result<Report> {
    let jobs = jobs(checkpoint, scheme)?;
    let tokenizer = checkpoint.tokenizer_data()?;
    let tokenizer = tokenizer.map_or(Ok(vec![]), |data| serde_json::to_vec(&data));
    let tokenizer = tokenizer.map_err(|error| Error::invalid(&checkpoint.path, error.to_string()))?;
    let header = header(checkpoint, &jobs, tokenizer.len() as u64)?;
    let data_start = 8 + header.len() as u64;
    let data_bytes = jobs.iter().map(Job::end).max().unwrap_or(0);

    let partial = Partial::create(out)?;
    let write = |at: u64, bytes: &[u8]| {
        partial.file.write_all_at(bytes, at).map_err(|error| Error::io(&partial.path, error))
    };
    write(0, &(header.len() as u64).to_le_bytes())?;
    write(8, &header)?;
    write(data_start + data_bytes, &tokenizer)?;
    let sources =
        checkpoint.source.files.iter().map(|path| File::open(path).map_err(|error| Error::io(path, error)));
    let sources = sources.collect::<Result<Vec<File>>>()?;

    let pieces: Vec<(usize, usize)> = jobs
        .iter()
        .enumerate()
        .flat_map(|(index, job)| {
            let (strips, step) =
                job.layout.map_or((1, 1), |layout| (layout.strips(), strips_at_once(&layout)));
            (0..strips).step_by(step).map(move |strip| (index, strip))
        })
        .collect();
    let roles: Mutex<BTreeMap<Role, quant::Rmse>> = Mutex::default();
    let failed: Mutex<Option<Error>> = Mutex::default();
    let next = AtomicUsize::new(0);
    let work = |(index, strip): (usize, usize)| -> Result<()> {
        if control.cancel.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        let job = &jobs[index];
        let piece = Piece::read(checkpoint, &sources, job, strip)?;
        let rmse = piece
            .write(job, strip, scheme, &checkpoint.source.files, |at, bytes| write(data_start + at, bytes))?;
        if let Some(rmse) = rmse {
            roles.lock().unwrap_or_else(PoisonError::into_inner).entry(job.role).or_default().merge(&rmse);
        }
        control.done.fetch_add(piece.source_bytes, Ordering::Relaxed);
        Ok(())
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(error) = work(*piece) {
                        next.store(pieces.len(), Ordering::Relaxed);
                        failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    }
                }
            });
        }
    });
    if let Some(error) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    partial.finish()?;

    let rmses = roles.into_inner().unwrap_or_else(PoisonError::into_inner);
    let count = |role: &Role| jobs.iter().filter(|job| job.role == *role).count();
    Ok(Report {
        bytes_before: jobs.iter().map(|job| job.tensor.file_bytes()).sum(),
        bytes_after: data_bytes,
        roles: rmses.into_iter().map(|(role, rmse)| (role, (count(&role), rmse))).collect(),
    })
}

impl Job<'_> {
    fn end(&self) -> u64 {
        match self.layout {
            Some(layout) => (self.values_at + layout.value_bytes() as u64)
                .max(self.scales_at + layout.scale_bytes() as u64),
            None => self.values_at + self.tensor.values().unwrap_or(0) * 4,
        }
    }
}

/// Every tensor with its place in the file: matrices first, whose bytes are multiples of 128, then vectors.
fn jobs(checkpoint: &Checkpoint, scheme: Scheme) -> Result<Vec<Job<'_>>> {
    let mut jobs = Vec::new();
    for (slot, tensor) in checkpoint.inventory.iter() {
        let path = &checkpoint.source.files[tensor.data.file];
        if matches!(tensor.encoding, Encoding::Tiled(_)) {
            let fix = "quantize from the model it was made from".into();
            return Err(checkpoint::Error::Unsupported {
                path: path.clone(),
                what: "quantising twice".into(),
                fix,
            }
            .into());
        }
        let layout = match tensor.shape[..] {
            [rows, k] => Some(Layout::new(scheme, rows as usize, k as usize).ok_or_else(|| {
                Error::tensor(
                    path,
                    &tensor.name,
                    format!("rows of {k} values do not divide into groups of {GROUP}"),
                )
            })?),
            _ => None,
        };
        let name =
            slot.name(checkpoint.config.architecture, Naming::HfText).unwrap_or_else(|| tensor.name.clone());
        jobs.push(Job { role: slot.role, tensor, name, layout, values_at: 0, scales_at: 0 });
    }
    jobs.sort_by_key(|job| job.layout.is_none());
    let mut at = 0;
    for job in &mut jobs {
        job.values_at = at;
        job.scales_at = at + job.layout.map_or(0, |layout| layout.value_bytes() as u64);
        at = job.end();
    }
    Ok(jobs)
}

fn header(checkpoint: &Checkpoint, jobs: &[Job<'_>], tokenizer_bytes: u64) -> Result<Vec<u8>> {
    let bad = |error: serde_json::Error| Error::invalid(&checkpoint.path, error.to_string());
    // A GGUF counts as tied whatever it holds; here it is known.
    let tie_embeddings = checkpoint.inventory.get(None, Role::Head).is_none();
    let config = Config { tie_embeddings, ..checkpoint.config.clone() };
    // In the order of names, which the library's own map need not have: one file, one header.
    let mut entries: BTreeMap<String, serde_json::Value> = BTreeMap::new();
    let mut shapes = BTreeMap::new();
    let entry = |dtype: &str, len: u64, begin: u64, end: u64| json!({ "dtype": dtype, "shape": [len], "data_offsets": [begin, end] });
    if tokenizer_bytes > 0 {
        let at = jobs.iter().map(Job::end).max().unwrap_or(0);
        entries.insert(TOKENIZER.into(), entry("U8", tokenizer_bytes, at, at + tokenizer_bytes));
    }
    for job in jobs {
        match job.layout {
            None => {
                let values = job.tensor.values().unwrap_or(0);
                entries.insert(
                    job.name.clone(),
                    entry("F32", values, job.values_at, job.values_at + values * 4),
                );
            }
            Some(layout) => {
                let (values, scales) = (layout.value_bytes() as u64, layout.scale_bytes() as u64);
                entries.insert(job.name.clone(), entry("U8", values, job.values_at, job.values_at + values));
                entries.insert(
                    scales_name(&job.name),
                    entry("U8", scales, job.scales_at, job.scales_at + scales),
                );
                let shape = Shape { rows: layout.rows as u64, k: layout.k as u64, scheme: layout.scheme };
                shapes.insert(job.name.clone(), shape);
            }
        }
    }
    entries.insert(
        "__metadata__".into(),
        json!({
            VERSION_KEY: VERSION,
            CONFIG_KEY: serde_json::to_string(&config).map_err(bad)?,
            MATRICES_KEY: serde_json::to_string(&shapes).map_err(bad)?,
        }),
    );
    let mut header = serde_json::to_vec(&entries).map_err(bad)?;
    // Data starts at a multiple of 4096: a chunk of tiles then lies on pages.
    let padded = (header.len() + 8).next_multiple_of(4096) - 8;
    header.resize(padded, b' ');
    Ok(header)
}

/// Some strips of a matrix, or a whole vector, as f32.
struct Piece {
    values: Vec<f32>,
    source_bytes: u64,
}

impl Piece {
    fn read(checkpoint: &Checkpoint, sources: &[File], job: &Job<'_>, strip: usize) -> Result<Self> {
        let tensor = job.tensor;
        let path = &checkpoint.source.files[tensor.data.file];
        let Some(layout) = job.layout else {
            let mut values = checkpoint.read_vector(tensor)?;
            if checkpoint.norms_less_one() {
                values.iter_mut().for_each(|value| *value += 1.0);
            }
            return Ok(Self { values, source_bytes: tensor.data.len });
        };
        let first_row = strip * STRIP;
        let rows = (layout.rows - first_row).min(strips_at_once(&layout) * STRIP);
        let row_bytes = tensor.encoding.bytes(&[layout.k as u64]).unwrap_or(0);
        let span = Span {
            offset: tensor.data.offset + first_row as u64 * row_bytes,
            len: rows as u64 * row_bytes,
            ..tensor.data
        };
        let read = |span: Span| {
            let mut bytes = vec![0; span.len as usize];
            sources[span.file].read_exact_at(&mut bytes, span.offset).map_err(|source| {
                checkpoint::Error::Read {
                    path: checkpoint.source.files[span.file].clone(),
                    tensor: tensor.name.clone(),
                    offset: span.offset,
                    source,
                }
            })?;
            Ok::<_, Error>(bytes)
        };
        let bytes = read(span)?;
        let mut values = vec![0.0; rows * layout.k];
        match tensor.scales {
            None => quant::dequantize(tensor.encoding, &bytes, &mut values),
            Some(all) => {
                let own =
                    transcode::external_scales(tensor.encoding, layout.k, first_row, rows).unwrap_or(0..0);
                let (offset, len) = (all.offset + own.start as u64 * 4, (own.len() as u64 * 4).min(all.len));
                let scales = read(Span { offset, len, ..all })?;
                let scales: Vec<f32> =
                    scales.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
                quant::dequantize_layerwise(tensor.encoding, &bytes, &scales, &mut values)
            }
        }
        .map_err(|error| Error::tensor(path, &tensor.name, format!("from row {first_row}: {error}")))?;
        Ok(Self { values, source_bytes: span.len })
    }

    /// Writes it; for a matrix its error comes back.
    fn write(
        &self,
        job: &Job<'_>,
        strip: usize,
        scheme: Scheme,
        files: &[PathBuf],
        write: impl Fn(u64, &[u8]) -> Result<()>,
    ) -> Result<Option<quant::Rmse>> {
        let Some(layout) = job.layout else {
            let bytes: Vec<u8> = self.values.iter().flat_map(|value| value.to_le_bytes()).collect();
            write(job.values_at, &bytes)?;
            return Ok(None);
        };
        let groups = quant::quantize(&self.values, scheme).map_err(|error| {
            let path = &files[job.tensor.data.file];
            Error::tensor(path, &job.tensor.name, format!("from row {}: {error}", strip * STRIP))
        })?;
        let piece = Layout { rows: self.values.len() / layout.k, ..layout };
        let scales = piece.pack_scales(&groups.scales, &[]);
        let scales: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        let at = |base: u64, strip_bytes: usize| base + (strip * strip_bytes) as u64;
        write(at(job.values_at, layout.strip_value_bytes()), &piece.pack_values(&groups.q))?;
        write(at(job.scales_at, layout.strip_scale_bytes()), &scales)?;
        let mut rmse = quant::Rmse::default();
        rmse.add(&self.values, &groups.dequantize());
        Ok(Some(rmse))
    }
}

/// A file that has its name only when it is whole; removed when dropped before.
struct Partial {
    file: File,
    path: PathBuf,
    out: PathBuf,
    whole: bool,
}

impl Partial {
    fn create(out: &Path) -> Result<Self> {
        let mut name = out.file_name().unwrap_or_default().to_os_string();
        // The process in the name: two at once do not write into each other's file.
        name.push(format!(".{}.partial", std::process::id()));
        let path = out.with_file_name(name);
        let file = File::create(&path).map_err(|error| Error::io(&path, error))?;
        Ok(Self { file, path, out: out.to_path_buf(), whole: false })
    }

    fn finish(mut self) -> Result<()> {
        let done = self.file.sync_all().and_then(|()| std::fs::rename(&self.path, &self.out));
        done.map_err(|error| Error::io(&self.out, error))?;
        self.whole = true;
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.whole {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
