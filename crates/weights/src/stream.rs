//! From files into GPU memory, in one pass and within a fixed amount of extra memory.
//!
//! Tensors are cut into chunks of whole rows, in the order of the files. Reader threads take chunks, read each straight into
//! a slot of a staging ring (memory that both sides see) and submit the kernel that carries it into its matrix; tiles of our
//! own files are only copied. The ring
//! bounds what is under way; what has been read is dropped from the page cache behind the readers. The first error stops
//! all of them.

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
    transcode::{self, ExternalScales, Rows, StripMap, Transcode},
};
use tensor::{Encoding, Layout, STRIP};

use crate::{Error, Result};

/// A tensor and the matrix it goes to.
#[derive(Clone, Copy)]
pub struct Destination<'a> {
    /// What is read.
    pub tensor: &'a Tensor,
    /// Where it goes.
    pub matrix: &'a Matrix,
    /// Which strips of the matrix are its own.
    pub placement: StripMap,
}

/// How to stream.
#[derive(Clone, Debug)]
pub struct Options {
    /// Reader threads.
    pub threads: usize,
    /// Slots of the staging ring.
    pub slots: usize,
    /// Bytes of a slot; larger where one row needs more.
    pub slot_bytes: u64,
    /// How long the GPU may take for one chunk.
    pub timeout: Duration,
    /// Drop what was read from the page cache.
    pub drop_cache: bool,
    /// For tests: reading the byte at this position of all bytes to be read fails.
    pub fail_at: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(4, usize::from);
        // Beyond 8 threads the page cache gives no more; two slots a thread let one be read while the other is carried.
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

/// Watched and stopped from other threads.
#[derive(Debug, Default)]
pub struct Control {
    /// Bytes read so far.
    pub done: AtomicU64,
    /// Set to stop.
    pub cancel: AtomicBool,
}

/// What a stream did.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Stats {
    /// Bytes read from files.
    pub bytes: u64,
    /// Wall clock.
    pub seconds: f64,
}

/// A run of one tensor, contiguous in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chunk {
    destination: usize,
    run: Run,
    span: Span,
    /// The scales of its rows, where they stand in a tensor of their own, and which of that tensor's the first is.
    scales: Option<(Span, usize)>,
}

impl Chunk {
    /// Where its scales stand in a slot: behind its rows, on whole words.
    fn scales_at(&self) -> u64 {
        self.span.len.next_multiple_of(4) + 4
    }

    /// Bytes of a slot that it takes.
    fn slot_bytes(&self) -> u64 {
        self.scales_at() + self.scales.map_or(0, |(span, _)| span.len)
    }
}

/// What a chunk holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Run {
    /// Whole rows in the file's own encoding, for the kernel.
    Rows { first: u64, count: u64 },
    /// Whole strips of tiles, to be copied.
    Values { first: u64, count: u64 },
    /// Whole strips of a scale plane, to be copied.
    Scales { first: u64, count: u64 },
}

/// What to do about numbers that cannot be.
const DAMAGED: &str = "the file is damaged, download or convert it again";

/// The most that all slots together take.
const RING: u64 = 256 << 20;

/// The shader reads whole words: a slot has a few bytes more than it is given.
const SLACK: u64 = 16;

/// Fills the matrices. On an error nothing of what was written counts; the caller drops the matrices.
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
    if slot_bytes > RING {
        let reason = format!(
            "a row or strip of {largest} bytes is larger than {} of staging",
            gpu::format_bytes(RING)
        );
        return Err(Error::invalid(&source.files[0], reason));
    }
    let slots = options.slots.clamp(1, (RING / slot_bytes) as usize);
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
        read_before: AtomicU64::new(0),
    };

    let next = AtomicUsize::new(0);
    let failed: Mutex<Option<Error>> = Mutex::new(None);
    pad(device, destinations, options.timeout)?;
    std::thread::scope(|scope| {
        // A thread without a slot of its own could only wait.
        for _ in 0..options.threads.clamp(1, slots) {
            scope.spawn(|| {
                while let Some(chunk) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(error) = reader.carry(chunk) {
                        // The others stop at their next chunk; the first error is the one that is told.
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
    /// One word a destination: its first row with a scale that is not finite.
    damage: gpu::Buffer,
    options: &'a Options,
    control: &'a Control,
    /// Bytes whose reading has begun, for the injected failure.
    read_before: AtomicU64,
}

impl Reader<'_> {
    fn carry(&self, chunk: &Chunk) -> Result<()> {
        if self.control.cancel.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        let destination = &self.destinations[chunk.destination];
        let mut slot = self.ring.acquire()?;
        if let Err(error) = self.fill(chunk, &mut slot) {
            // Others may be waiting for it.
            self.ring.release(slot);
            return Err(error);
        }
        self.control.done.fetch_add(chunk.span.len, Ordering::Relaxed);
        self.ring.send(slot, |recorder, source| match chunk.run {
            Run::Rows { first, count } => self.transcode(recorder, source, chunk, first, count),
            Run::Values { first, count } => {
                copy_strips(recorder, source, destination, first, count, |part| {
                    Some((&part.values, part.layout.strip_value_bytes()))
                })
            }
            Run::Scales { first, count } => {
                copy_strips(recorder, source, destination, first, count, |part| {
                    Some((part.scales.as_ref()?, part.layout.strip_scale_bytes()))
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
        // Scales in tiles pass no kernel that would look at them. The exponent of what is not finite is all ones.
        let not_finite = |bytes: &[u8; 2]| u16::from_le_bytes(*bytes) & 0x7c00 == 0x7c00;
        match chunk.run {
            Run::Scales { first, .. } if bytes.as_chunks().0.iter().any(not_finite) => {
                let reason =
                    format!("a scale from row {} on is not a finite number: {DAMAGED}", first * STRIP as u64);
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
            self.kernels.iter().find(|(known, _)| *known == encoding).expect("compiled for all");
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
        let (matrix, placement) = (destination.matrix, destination.placement);
        kernel.record(recorder, &destination.tensor.name, &rows, matrix, placement, &damage)
    }

    fn read(&self, span: Span, bytes: &mut [u8]) -> std::io::Result<()> {
        let before = self.read_before.fetch_add(span.len, Ordering::Relaxed);
        if self.options.fail_at.is_some_and(|at| (before..before + span.len).contains(&at)) {
            return Err(std::io::Error::other("injected read error"));
        }
        let file = &self.files[span.file];
        file.read_exact_at(bytes, span.offset)?;
        if self.options.drop_cache {
            let length = std::num::NonZeroU64::new(span.len);
            // Only advice: a file system that cannot take it loses nothing but memory.
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
                let reason =
                    format!("row {row} has a number that is not finite or out of its range: {DAMAGED}");
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
    // Tiles need no kernel.
    for encoding in encodings.filter(|encoding| !matches!(encoding, Encoding::Tiled(_))) {
        if !kernels.iter().any(|(known, _)| *known == encoding) {
            kernels.push((encoding, Transcode::new(device, encoding)?));
        }
    }
    Ok(kernels)
}

/// Zeros where no tensor reaches, before anything else is written.
fn pad(device: &Device, destinations: &[Destination<'_>], timeout: Duration) -> Result<()> {
    let mut recorder = device.recorder()?;
    for destination in destinations {
        destination.matrix.record_padding(&mut recorder, &destination.tensor.name)?;
    }
    Ok(recorder.seal()?.run(timeout)?)
}

/// Records copies of whole strips of a plane, each to its place in the matrix.
fn copy_strips<'a>(
    recorder: &mut Recorder,
    source: &View,
    destination: &Destination<'a>,
    first: u64,
    count: u64,
    plane: impl Fn(&'a MatrixBlock) -> Option<(&'a gpu::Buffer, usize)>,
) -> gpu::Result<()> {
    let StripMap { first_strip, step } = destination.placement;
    let mut strip = first;
    while strip < first + count {
        let at = first_strip as u64 + strip * step as u64;
        let holds = |part: &&MatrixBlock| {
            let start = part.first_row as u64 / STRIP as u64;
            (start..start + part.layout.strips() as u64).contains(&at)
        };
        let part = destination.matrix.blocks().iter().find(holds);
        let Some((part, (buffer, strip_bytes))) = part.and_then(|part| Some((part, plane(part)?))) else {
            let reason = format!("strip {at} lies past the end of the matrix");
            return Err(gpu::Error::InvalidUse { what: destination.tensor.name.clone(), reason });
        };
        let within = at - part.first_row as u64 / STRIP as u64;
        // Strips that follow each other in the matrix too go as one.
        let left_in_part = part.layout.strips() as u64 - within;
        let run = if step == 1 { (first + count - strip).min(left_in_part) } else { 1 };
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

/// The part of a tensor's own scales that some of its rows need.
fn own_scales(tensor: &Tensor, run: Run) -> Option<(Span, usize)> {
    let (Run::Rows { first, count }, Some(span)) = (run, tensor.scales) else { return None };
    let k = tensor.shape[1] as usize;
    let range = transcode::external_scales(tensor.encoding, k, first as usize, count as usize)?;
    let (offset, len) = (span.offset + range.start as u64 * 4, range.len() as u64 * 4);
    Some((Span { offset, len: len.min(span.len), ..span }, range.start))
}

/// Every tensor in runs of at most `most` bytes (or one row or strip), in the order of the files.
fn chunks(source: &Source, destinations: &[Destination<'_>], most: u64) -> Result<Vec<Chunk>> {
    let mut list = Vec::new();
    for (index, destination) in destinations.iter().enumerate() {
        let tensor = destination.tensor;
        let wrong = |reason: String| Error::tensor(&source.files[tensor.data.file], &tensor.name, reason);
        let [rows, k] = tensor.shape[..] else {
            return Err(wrong(format!("a matrix has two dimensions, this has {:?}", tensor.shape)));
        };
        let mut cut = |span: Span, units: u64, unit_bytes: u64, run: fn(u64, u64) -> Run| {
            let mut first = 0;
            while first < units {
                let count = (most / unit_bytes).clamp(1, units - first);
                let span = Span { offset: span.offset + first * unit_bytes, len: count * unit_bytes, ..span };
                let run = run(first, count);
                list.push(Chunk { destination: index, run, span, scales: own_scales(tensor, run) });
                first += count;
            }
        };
        if let Encoding::Tiled(scheme) = tensor.encoding {
            let layout = Layout::new(scheme, rows as usize, k as usize)
                .ok_or_else(|| wrong(format!("{rows} × {k} is no matrix of {scheme}")))?;
            let strips = layout.strips() as u64;
            let values = |first, count| Run::Values { first, count };
            cut(tensor.data, strips, layout.strip_value_bytes() as u64, values);
            if let Some(span) = tensor.scales {
                let scales = |first, count| Run::Scales { first, count };
                cut(span, strips, layout.strip_scale_bytes() as u64, scales);
            }
        } else {
            let row_bytes = tensor.encoding.bytes(&[k]).filter(|bytes| *bytes > 0).ok_or_else(|| {
                wrong(format!("rows of {k} values are not whole blocks of {:?}", tensor.encoding))
            })?;
            cut(tensor.data, rows, row_bytes, |first, count| Run::Rows { first, count });
        }
    }
    list.sort_by_key(|chunk| (chunk.span.file, chunk.span.offset));
    Ok(list)
}
