//! Quantising a checkpoint to a native file in int8 or int4. Each thread holds only a few strips in memory at
//! a time.

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
    Checkpoint, Role, Span, Tensor,
    native::{self, HeaderEntry},
};
use tensor::{Encoding, GROUP, Layout, STRIP, Scheme, quant};

use crate::{
    blueprint::is_vector,
    error::{Error, Result},
    stream::Control,
};

/// Statistics of a quantisation.
#[derive(Clone, Debug)]
pub struct Report {
    /// Bytes of all tensors in the source.
    pub bytes_before: u64,
    /// Bytes of all tensors in the result.
    pub bytes_after: u64,
    /// Per role: the number of tensors, and their combined quantisation error.
    pub roles: BTreeMap<Role, (usize, quant::Rmse)>,
}

/// A tensor to quantise or copy.
struct TensorJob<'a> {
    role: Role,
    tensor: &'a Tensor,
    name: String,
    /// `None` for a vector.
    layout: Option<Layout>,
    /// Offsets of values and scales in the data of the file.
    values_at: u64,
    scales_at: u64,
}

/// Bytes of f32 that a thread processes at once (at least one strip); intermediate results take about four
/// times as much memory.
const SLICE_BYTES: usize = 4 << 20;
/// More threads would only wait for the disk, each holding its slice in memory.
const MAX_THREADS: usize = 16;

/// Strips per slice.
fn strips_per_slice(layout: &Layout) -> usize {
    (SLICE_BYTES / (layout.k * STRIP * size_of::<f32>())).max(1)
}

/// Quantises every matrix and writes the file, which gets its final name only once it is complete.
pub fn quantize(checkpoint: &Checkpoint, out: &Path, scheme: Scheme, control: &Control) -> Result<Report> {
    let jobs = jobs(checkpoint, scheme)?;
    let tokenizer = checkpoint.tokenizer_data()?;
    let tokenizer = tokenizer.map_or(Ok(vec![]), |data| serde_json::to_vec(&data));
    let tokenizer = tokenizer.map_err(|error| Error::invalid(&checkpoint.path, error.to_string()))?;
    let header = header(checkpoint, &jobs, tokenizer.len() as u64)?;
    let data_start = header.len() as u64;
    let data_bytes = jobs.iter().map(TensorJob::end).max().unwrap_or(0);

    let partial = PartialFile::create(out)?;
    let write = |at: u64, bytes: &[u8]| {
        partial.file.write_all_at(bytes, at).map_err(|error| Error::io(&partial.path, error))
    };
    write(0, &header)?;
    write(data_start + data_bytes, &tokenizer)?;
    let sources =
        checkpoint.source.files.iter().map(|path| File::open(path).map_err(|error| Error::io(path, error)));
    let sources = sources.collect::<Result<Vec<File>>>()?;

    let slices: Vec<(usize, usize)> = jobs
        .iter()
        .enumerate()
        .flat_map(|(index, job)| {
            let (strips, step) =
                job.layout.map_or((1, 1), |layout| (layout.strips(), strips_per_slice(&layout)));
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
        let slice = Slice::read(checkpoint, &sources, job, strip)?;
        let rmse = slice
            .write(job, strip, scheme, &checkpoint.source.files, |at, bytes| write(data_start + at, bytes))?;
        if let Some(rmse) = rmse {
            roles.lock().unwrap_or_else(PoisonError::into_inner).entry(job.role).or_default().merge(&rmse);
        }
        control.done.fetch_add(slice.source_bytes, Ordering::Relaxed);
        Ok(())
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(slice) = slices.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(error) = work(*slice) {
                        next.store(slices.len(), Ordering::Relaxed);
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

impl TensorJob<'_> {
    fn end(&self) -> u64 {
        match self.layout {
            Some(layout) => (self.values_at + layout.value_bytes() as u64)
                .max(self.scales_at + layout.scale_bytes() as u64),
            None => self.values_at + self.tensor.values().unwrap_or(0) * 4,
        }
    }
}

/// Every tensor with its offsets in the file: matrices first, whose sizes are multiples of 128 bytes, then
/// vectors.
fn jobs(checkpoint: &Checkpoint, scheme: Scheme) -> Result<Vec<TensorJob<'_>>> {
    let mut jobs = Vec::new();
    for (slot, tensor) in checkpoint.inventory.iter() {
        let path = &checkpoint.source.files[tensor.data.file];
        if matches!(tensor.encoding, Encoding::Tiled(_)) {
            let fix = "quantize the original model".into();
            return Err(checkpoint::Error::Unsupported {
                path: path.clone(),
                what: "quantising a quantised model".into(),
                fix,
            }
            .into());
        }
        let layout = match tensor.shape[..] {
            _ if is_vector(slot, tensor) => None,
            [rows, k] => Some(Layout::new(scheme, rows as usize, k as usize).ok_or_else(|| {
                Error::tensor(
                    path,
                    &tensor.name,
                    format!("rows of {k} values do not divide into groups of {GROUP}"),
                )
            })?),
            _ => None,
        };
        let name = slot.native_name(checkpoint.config.architecture).unwrap_or_else(|| tensor.name.clone());
        jobs.push(TensorJob { role: slot.role, tensor, name, layout, values_at: 0, scales_at: 0 });
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

/// The start of the file, including the length of the header.
fn header(checkpoint: &Checkpoint, jobs: &[TensorJob<'_>], tokenizer_bytes: u64) -> Result<Vec<u8>> {
    // The config of a GGUF file always counts as tied; the inventory shows whether it is.
    let mut config = checkpoint.config.clone();
    config.tie_embeddings = checkpoint.inventory.get(None, Role::Head).is_none();
    let entry = |job: &TensorJob<'_>| match job.layout {
        None => HeaderEntry::Vector {
            name: job.name.clone(),
            len: job.tensor.values().unwrap_or(0),
            at: job.values_at,
        },
        Some(layout) => HeaderEntry::Matrix {
            name: job.name.clone(),
            layout,
            values_at: job.values_at,
            scales_at: job.scales_at,
        },
    };
    let entries: Vec<HeaderEntry> = jobs.iter().map(entry).collect();
    let end = jobs.iter().map(TensorJob::end).max().unwrap_or(0);
    let tokenizer = (tokenizer_bytes > 0).then_some(end..end + tokenizer_bytes);
    native::header(&config, &entries, tokenizer)
        .map_err(|error| Error::invalid(&checkpoint.path, error.to_string()))
}

/// Some strips of a matrix, or a whole vector, as f32.
struct Slice {
    values: Vec<f32>,
    source_bytes: u64,
}

impl Slice {
    fn read(checkpoint: &Checkpoint, sources: &[File], job: &TensorJob<'_>, strip: usize) -> Result<Self> {
        let tensor = job.tensor;
        let path = &checkpoint.source.files[tensor.data.file];
        let Some(layout) = job.layout else {
            let mut values = checkpoint.read_vector(tensor)?;
            if checkpoint.norms_need_plus_one() && job.role != Role::Router {
                values.iter_mut().for_each(|value| *value += 1.0);
            }
            return Ok(Self { values, source_bytes: tensor.data.len });
        };
        let first_row = strip * STRIP;
        let rows = (layout.rows - first_row).min(strips_per_slice(&layout) * STRIP);
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
                let own = quant::layerwise_scales(tensor.encoding, layout.k, first_row, rows).unwrap_or(0..0);
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

    /// Quantises and writes the slice; returns the error of a matrix slice.
    fn write(
        &self,
        job: &TensorJob<'_>,
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
        let layout_of_slice = Layout { rows: self.values.len() / layout.k, ..layout };
        let scales = layout_of_slice.pack_scales(&groups.scales, &[]);
        let scales: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        let at = |base: u64, strip_bytes: usize| base + (strip * strip_bytes) as u64;
        write(at(job.values_at, layout.strip_value_bytes()), &layout_of_slice.pack_values(&groups.q))?;
        write(at(job.scales_at, layout.strip_scale_bytes()), &scales)?;
        let mut rmse = quant::Rmse::default();
        rmse.add(&self.values, &groups.dequantize());
        Ok(Some(rmse))
    }
}

/// A file under a temporary name until it is complete; removed if dropped earlier.
struct PartialFile {
    file: File,
    path: PathBuf,
    out: PathBuf,
    complete: bool,
}

impl PartialFile {
    fn create(out: &Path) -> Result<Self> {
        let mut name = out.file_name().unwrap_or_default().to_os_string();
        // The process id keeps two concurrent runs from writing to the same file.
        name.push(format!(".{}.partial", std::process::id()));
        let path = out.with_file_name(name);
        let file = File::create(&path).map_err(|error| Error::io(&path, error))?;
        Ok(Self { file, path, out: out.to_path_buf(), complete: false })
    }

    fn finish(mut self) -> Result<()> {
        let done = self.file.sync_all().and_then(|()| std::fs::rename(&self.path, &self.out));
        done.map_err(|error| Error::io(&self.out, error))?;
        self.complete = true;
        Ok(())
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if !self.complete {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
