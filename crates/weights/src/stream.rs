//! Streaming tensors from files into GPU memory, in one pass and within a fixed amount of host memory.
//!
//! Tensors are divided into chunks of whole rows, in file order. Reader threads take chunks, read each one
//! directly into a slot of a staging ring (memory that CPU and GPU both access) and submit the kernel that
//! transcodes it into its matrix. The tiles of native files are only copied. The ring bounds the bytes in
//! flight; pages that have been read are dropped from the page cache. The first error stops all readers.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use checkpoint::{Source, Span, Tensor};
use gpu::{Arena, Device, Lifetime, Memory, Recorder, StagingRing, StagingSlot, View};
use kernels::{
    Matrix, MatrixBlock,
    transcode::{ExternalScales, Rows, StripMap, Transcode},
};
use tensor::{Encoding, Layout, STRIP, quant};

use crate::error::{Error, Result};

/// A tensor and the matrix it is loaded into.
#[derive(Clone, Copy)]
pub struct Destination<'a> {
    /// The tensor in the file.
    pub tensor: &'a Tensor,
    /// The matrix on the GPU.
    pub matrix: &'a Matrix,
    /// The strips of the matrix that the tensor fills.
    pub strips: StripMap,
}

/// Streaming parameters.
#[derive(Clone, Debug)]
pub struct Options {
    /// Reader threads.
    pub threads: usize,
    /// Number of slots in the staging ring.
    pub slots: usize,
    /// Bytes per slot; enlarged if a single row needs more.
    pub slot_bytes: u64,
    /// Maximum GPU time per chunk.
    pub timeout: Duration,
    /// Drop pages from the page cache after reading them.
    pub drop_cache: bool,
    /// For tests: reading the byte at this position of the whole stream fails.
    pub fail_at: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(4, usize::from);
        // More than 8 threads do not read the page cache any faster. Two slots per thread let one be filled
        // while the GPU transcodes the other.
        let threads = cores.clamp(1, 8);
        Self {
            threads,
            slots: 2 * threads,
            slot_bytes: 16 << 20,
            timeout: Duration::from_secs(60),
            drop_cache: true,
            fail_at: None,
        }
    }
}

/// Progress and cancellation, shared with other threads.
#[derive(Debug, Default)]
pub struct Control {
    /// Bytes read so far.
    pub done: AtomicU64,
    /// Set to cancel.
    pub cancel: AtomicBool,
}

/// Statistics of a completed stream.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Stats {
    /// Bytes read from files.
    pub bytes: u64,
    /// Wall-clock time in seconds.
    pub seconds: f64,
}

/// A part of one tensor, contiguous in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chunk {
    destination: usize,
    data: ChunkData,
    span: Span,
    /// For encodings with a separate scale tensor: the scales of these rows, and the index of the first one.
    scales: Option<(Span, usize)>,
}

impl Chunk {
    /// Offset of the scales in a slot: after the rows, word-aligned.
    fn scales_at(&self) -> u64 {
        self.span.len.next_multiple_of(4) + 4
    }

    /// Bytes it needs in a slot.
    fn slot_bytes(&self) -> u64 {
        self.scales_at() + self.scales.map_or(0, |(span, _)| span.len)
    }
}

/// The content of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkData {
    /// Rows in the file's encoding, to be transcoded by the kernel.
    Rows { first: u64, count: u64 },
    /// Strips of tiles, to be copied.
    Values { first: u64, count: u64 },
    /// Strips of a scale plane, to be copied.
    Scales { first: u64, count: u64 },
}

/// Advice in errors about invalid values.
const DAMAGED: &str = "the file is damaged, download or convert it again";

/// Maximum bytes of all slots together.
const MAX_RING_BYTES: u64 = 256 << 20;

/// Extra bytes per slot: the shader reads whole words, past the end of the chunk.
const SLACK: u64 = 16;

/// Fills the matrices. After an error their contents are undefined, and the caller must drop them.
pub fn stream(
    device: &Device,
    source: &Source,
    destinations: &[Destination<'_>],
    options: &Options,
    control: &Control,
) -> Result<Stats> {
    let start = Instant::now();
    let chunks = chunks(source, destinations, options.slot_bytes.saturating_sub(SLACK))?;
    let largest = chunks.iter().map(Chunk::slot_bytes).max().unwrap_or(0);
    let slot_bytes = options.slot_bytes.max(largest + SLACK);
    if slot_bytes > MAX_RING_BYTES {
        let reason = format!(
            "a row or strip of {largest} bytes exceeds the staging limit of {}",
            gpu::format_bytes(MAX_RING_BYTES)
        );
        return Err(Error::invalid(&source.files[0], reason));
    }
    let slots = options.slots.clamp(1, (MAX_RING_BYTES / slot_bytes) as usize);
    let files = open(&source.files)?;
    let reader = Reader {
        source,
        destinations,
        files,
        kernels: compile(device, destinations)?,
        ring: StagingRing::new(device, slots, slot_bytes, options.timeout)?,
        damage: Arena::new(device, Lifetime::Staging, Memory::Readback)
            .with_block_size(4096)
            .buffer_from("damage", &vec![u32::MAX; destinations.len().max(1)])?,
        options,
        control,
        requested: AtomicU64::new(0),
    };

    let next = AtomicUsize::new(0);
    let failed: Mutex<Option<Error>> = Mutex::new(None);
    clear_padding(device, destinations, options.timeout)?;
    std::thread::scope(|scope| {
        // More threads than slots would only wait.
        for _ in 0..options.threads.clamp(1, slots) {
            scope.spawn(|| {
                while let Some(chunk) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(error) = reader.process(chunk) {
                        // The other threads stop at their next chunk. Only the first error is reported.
                        next.store(chunks.len(), Ordering::Relaxed);
                        failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    }
                }
            });
        }
    });
    let finished = reader.ring.finish();
    if let Some(error) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    finished?;
    reader.check_damage()?;
    Ok(Stats {
        bytes: chunks.iter().map(|chunk| chunk.span.len).sum(),
        seconds: start.elapsed().as_secs_f64(),
    })
}

struct Reader<'a> {
    source: &'a Source,
    destinations: &'a [Destination<'a>],
    files: Vec<File>,
    kernels: Vec<(Encoding, Transcode)>,
    ring: StagingRing,
    /// One word per destination: the first row with a scale that is not finite.
    damage: gpu::Buffer,
    options: &'a Options,
    control: &'a Control,
    /// Bytes requested so far, for [`Options::fail_at`].
    requested: AtomicU64,
}

impl Reader<'_> {
    fn process(&self, chunk: &Chunk) -> Result<()> {
        if self.control.cancel.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        let destination = &self.destinations[chunk.destination];
        let mut slot = self.ring.acquire()?;
        if let Err(error) = self.fill(chunk, &mut slot) {
            // Other threads may be waiting for a slot.
            self.ring.release(slot);
            return Err(error);
        }
        self.control.done.fetch_add(chunk.span.len, Ordering::Relaxed);
        self.ring.send(slot, |recorder, source| match chunk.data {
            ChunkData::Rows { first, count } => self.transcode(recorder, source, chunk, first, count),
            ChunkData::Values { first, count } => {
                copy_strips(recorder, source, destination, first, count, |block| {
                    Some((&block.values, block.layout.strip_value_bytes()))
                })
            }
            ChunkData::Scales { first, count } => {
                copy_strips(recorder, source, destination, first, count, |block| {
                    Some((block.scales.as_ref()?, block.layout.strip_scale_bytes()))
                })
            }
        })?;
        Ok(())
    }

    fn fill(&self, chunk: &Chunk, slot: &mut StagingSlot) -> Result<()> {
        let tensor = self.destinations[chunk.destination].tensor;
        let path = &self.source.files[chunk.span.file];
        let slot = slot.bytes_mut()?;
        let read = |span: Span, bytes: &mut [u8]| {
            self.read(span, bytes).map_err(|source| checkpoint::Error::Read {
                path: self.source.files[span.file].clone(),
                tensor: tensor.name.clone(),
                offset: span.offset,
                source,
            })
        };
        if let Some((span, _)) = chunk.scales {
            read(span, &mut slot[chunk.scales_at() as usize..][..span.len as usize])?;
        }
        let bytes = &mut slot[..chunk.span.len as usize];
        read(chunk.span, bytes)?;
        // Scale planes are copied without a kernel that would check them. An f16 that is not finite has an
        // exponent of all ones.
        let not_finite = |bytes: &[u8; 2]| u16::from_le_bytes(*bytes) & 0x7c00 == 0x7c00;
        match chunk.data {
            ChunkData::Scales { first, .. } if bytes.as_chunks().0.iter().any(not_finite) => {
                let reason =
                    format!("a scale at or after row {} is not finite: {DAMAGED}", first * STRIP as u64);
                Err(Error::tensor(path, &tensor.name, reason))
            }
            _ => Ok(()),
        }
    }

    fn transcode(
        &self,
        recorder: &mut Recorder,
        source: &View,
        chunk: &Chunk,
        first: u64,
        count: u64,
    ) -> gpu::Result<()> {
        let index = chunk.destination;
        let destination = &self.destinations[index];
        let encoding = destination.tensor.encoding;
        let (_, kernel) =
            self.kernels.iter().find(|(known, _)| *known == encoding).expect("every encoding has a kernel");
        let word = index as u64 * 4;
        let damage = self.damage.slice(word..word + 4)?;
        let rows = Rows {
            source: source.clone(),
            first_byte: 0,
            count: count as usize,
            first_row: first as usize,
            scales: match chunk.scales {
                None => None,
                Some((span, first)) => {
                    let at = chunk.scales_at();
                    Some(ExternalScales { view: source.slice(at..at + span.len)?, first })
                }
            },
        };
        let (matrix, strips) = (destination.matrix, destination.strips);
        kernel.record(recorder, &destination.tensor.name, &rows, matrix, strips, &damage)
    }

    fn read(&self, span: Span, bytes: &mut [u8]) -> std::io::Result<()> {
        let before = self.requested.fetch_add(span.len, Ordering::Relaxed);
        if self.options.fail_at.is_some_and(|at| (before..before + span.len).contains(&at)) {
            return Err(std::io::Error::other("injected read error"));
        }
        let file = &self.files[span.file];
        file.read_exact_at(bytes, span.offset)?;
        if self.options.drop_cache {
            let length = std::num::NonZeroU64::new(span.len);
            // Only a hint: without it, the page cache keeps the data a little longer.
            let _ = rustix::fs::fadvise(file, span.offset, length, rustix::fs::Advice::DontNeed);
        }
        Ok(())
    }

    fn check_damage(&self) -> Result<()> {
        let rows: Vec<u32> = self.damage.read_vec()?;
        match rows.iter().zip(self.destinations).find(|(row, _)| **row != u32::MAX) {
            None => Ok(()),
            Some((row, destination)) => {
                let tensor = destination.tensor;
                let reason = format!("row {row} has a value that is not finite or out of range: {DAMAGED}");
                Err(Error::tensor(&self.source.files[tensor.data.file], &tensor.name, reason))
            }
        }
    }
}

fn open(files: &[PathBuf]) -> Result<Vec<File>> {
    files.iter().map(|path| File::open(path).map_err(|error| Error::io(path, error))).collect()
}

fn compile(device: &Device, destinations: &[Destination<'_>]) -> Result<Vec<(Encoding, Transcode)>> {
    let mut kernels: Vec<(Encoding, Transcode)> = Vec::new();
    let encodings = destinations.iter().map(|destination| destination.tensor.encoding);
    // Tiles are copied without a kernel.
    for encoding in encodings.filter(|encoding| !matches!(encoding, Encoding::Tiled(_))) {
        if !kernels.iter().any(|(known, _)| *known == encoding) {
            kernels.push((encoding, Transcode::new(device, encoding)?));
        }
    }
    Ok(kernels)
}

/// Clears the padding of all matrices before anything else is written.
fn clear_padding(device: &Device, destinations: &[Destination<'_>], timeout: Duration) -> Result<()> {
    let mut recorder = device.recorder()?;
    for destination in destinations {
        destination.matrix.record_padding(&mut recorder, &destination.tensor.name)?;
    }
    Ok(recorder.seal()?.run(timeout)?)
}

/// Records copies of whole strips of a plane to their positions in the matrix.
fn copy_strips<'a>(
    recorder: &mut Recorder,
    source: &View,
    destination: &Destination<'a>,
    first: u64,
    count: u64,
    plane: impl Fn(&'a MatrixBlock) -> Option<(&'a gpu::Buffer, usize)>,
) -> gpu::Result<()> {
    let StripMap { first_strip, step } = destination.strips;
    let mut strip = first;
    while strip < first + count {
        let at = first_strip as u64 + strip * step as u64;
        let contains = |block: &&MatrixBlock| {
            let start = block.first_row as u64 / STRIP as u64;
            (start..start + block.layout.strips() as u64).contains(&at)
        };
        let block = destination.matrix.blocks().iter().find(contains);
        let Some((block, (buffer, strip_bytes))) = block.and_then(|block| Some((block, plane(block)?)))
        else {
            let reason = format!("strip {at} is past the end of the matrix");
            return Err(gpu::Error::InvalidUse { what: destination.tensor.name.clone(), reason });
        };
        let within = at - block.first_row as u64 / STRIP as u64;
        // Strips that are also contiguous in the matrix are copied at once.
        let left_in_block = block.layout.strips() as u64 - within;
        let run = if step == 1 { (first + count - strip).min(left_in_block) } else { 1 };
        let bytes = strip_bytes as u64;
        let from = source.slice((strip - first) * bytes..(strip - first + run) * bytes)?;
        recorder.copy(
            &destination.tensor.name,
            from,
            buffer.slice(within * bytes..(within + run) * bytes)?,
        )?;
        strip += run;
    }
    Ok(())
}

/// The scales of a chunk's rows, for encodings with a separate scale tensor.
fn chunk_scales(tensor: &Tensor, data: ChunkData) -> Option<(Span, usize)> {
    let (ChunkData::Rows { first, count }, Some(span)) = (data, tensor.scales) else { return None };
    let k = tensor.shape[1] as usize;
    let range = quant::layerwise_scales(tensor.encoding, k, first as usize, count as usize)?;
    let (offset, len) = (span.offset + range.start as u64 * 4, range.len() as u64 * 4);
    Some((Span { offset, len: len.min(span.len), ..span }, range.start))
}

/// Divides every tensor into chunks of at most `max_bytes` (but at least one row or strip), in file order.
fn chunks(source: &Source, destinations: &[Destination<'_>], max_bytes: u64) -> Result<Vec<Chunk>> {
    let mut list = Vec::new();
    for (index, destination) in destinations.iter().enumerate() {
        let tensor = destination.tensor;
        let wrong = |reason: String| Error::tensor(&source.files[tensor.data.file], &tensor.name, reason);
        let [rows, k] = tensor.shape[..] else {
            return Err(wrong(format!("expected a matrix, found shape {:?}", tensor.shape)));
        };
        let mut cut = |span: Span, units: u64, unit_bytes: u64, data: fn(u64, u64) -> ChunkData| {
            let mut first = 0;
            while first < units {
                let count = (max_bytes / unit_bytes).clamp(1, units - first);
                let span = Span { offset: span.offset + first * unit_bytes, len: count * unit_bytes, ..span };
                let data = data(first, count);
                list.push(Chunk { destination: index, data, span, scales: chunk_scales(tensor, data) });
                first += count;
            }
        };
        if let Encoding::Tiled(scheme) = tensor.encoding {
            let layout = Layout::new(scheme, rows as usize, k as usize)
                .ok_or_else(|| wrong(format!("{rows} × {k} is not a valid shape for {scheme}")))?;
            let strips = layout.strips() as u64;
            let values = |first, count| ChunkData::Values { first, count };
            cut(tensor.data, strips, layout.strip_value_bytes() as u64, values);
            if let Some(span) = tensor.scales {
                let scales = |first, count| ChunkData::Scales { first, count };
                cut(span, strips, layout.strip_scale_bytes() as u64, scales);
            }
        } else {
            let row_bytes = tensor.encoding.bytes(&[k]).filter(|bytes| *bytes > 0).ok_or_else(|| {
                wrong(format!("rows of {k} values do not divide into blocks of {}", tensor.encoding))
            })?;
            cut(tensor.data, rows, row_bytes, |first, count| ChunkData::Rows { first, count });
        }
    }
    list.sort_by_key(|chunk| (chunk.span.file, chunk.span.offset));
    Ok(list)
}
