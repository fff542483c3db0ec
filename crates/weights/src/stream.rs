//! From files into GPU memory, in one pass and within a fixed amount of extra memory.
//!
//! Tensors are cut into chunks of whole rows, in the order of the files. Reader threads take chunks, read each straight into
//! a slot of a staging ring (memory that both sides see) and submit the kernel that carries it into its matrix. The ring
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

use gpu::{Arena, Device, Lifetime, Memory, StagingRing};
use kernels::{
    Encoding, Matrix,
    transcode::{Placement, Rows, Transcode},
};

use crate::{Error, Result, Source, Tensor};

/// A tensor and the matrix it goes to.
#[derive(Clone, Copy)]
pub struct Destination<'a> {
    /// What is read.
    pub tensor: &'a Tensor,
    /// Where it goes.
    pub matrix: &'a Matrix,
    /// Which strips of the matrix are its own.
    pub placement: Placement,
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

/// Whole rows of one tensor, contiguous in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chunk {
    destination: usize,
    first_row: u64,
    rows: u64,
    file: usize,
    offset: u64,
    bytes: u64,
}

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
    let row_bytes = |tensor: &Tensor| tensor.encoding.bytes(&tensor.shape[tensor.shape.len().min(1)..]);
    let largest_row = destinations.iter().filter_map(|d| row_bytes(d.tensor)).max().unwrap_or(0);
    let slot_bytes = options.slot_bytes.max(largest_row + SLACK);
    let chunks = chunks(source, destinations, slot_bytes - SLACK)?;
    let files = open(&source.files)?;
    let reader = Reader {
        source,
        destinations,
        scales: read_scales(device, source, &files, destinations)?,
        files,
        kernels: compile(device, destinations)?,
        ring: StagingRing::new(device, options.slots, slot_bytes, options.timeout)?,
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
        for _ in 0..options.threads.clamp(1, chunks.len().max(1)) {
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
    Ok(Stats { bytes: chunks.iter().map(|chunk| chunk.bytes).sum(), seconds: start.elapsed().as_secs_f64() })
}

struct Reader<'a> {
    source: &'a Source,
    destinations: &'a [Destination<'a>],
    files: Vec<File>,
    kernels: Vec<(Encoding, Transcode)>,
    ring: StagingRing,
    /// Scales of the destinations that have them in a tensor of their own.
    scales: Vec<Option<gpu::Buffer>>,
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
        let mut slot = self.ring.acquire()?;
        // A slot that fails to be filled is freed with the ring: the stream is over then.
        let bytes = &mut slot.bytes_mut()?[..chunk.bytes as usize];
        let path = &self.source.files[chunk.file];
        self.read(chunk, bytes).map_err(|source| Error::Read {
            path: path.clone(),
            tensor: self.destinations[chunk.destination].tensor.name.clone(),
            offset: chunk.offset,
            source,
        })?;
        self.control.done.fetch_add(chunk.bytes, Ordering::Relaxed);
        let destination = &self.destinations[chunk.destination];
        let encoding = destination.tensor.encoding;
        let (_, kernel) =
            self.kernels.iter().find(|(known, _)| *known == encoding).expect("compiled for all");
        let word = chunk.destination as u64 * 4;
        let damage = self.damage.slice(word..word + 4)?;
        self.ring.send(slot, |recorder, source| {
            let rows = Rows {
                source: source.clone(),
                first_byte: 0,
                count: chunk.rows as usize,
                first_row: chunk.first_row as usize,
                scales: self.scales[chunk.destination].as_ref().map(gpu::Buffer::view),
            };
            let (matrix, placement) = (destination.matrix, destination.placement);
            kernel.record(recorder, &destination.tensor.name, &rows, matrix, placement, &damage)
        })?;
        Ok(())
    }

    fn read(&self, chunk: &Chunk, bytes: &mut [u8]) -> std::io::Result<()> {
        let before = self.read_before.fetch_add(chunk.bytes, Ordering::Relaxed);
        if self.options.fail_at.is_some_and(|at| (before..before + chunk.bytes).contains(&at)) {
            return Err(std::io::Error::other("injected read error"));
        }
        let file = &self.files[chunk.file];
        file.read_exact_at(bytes, chunk.offset)?;
        if self.options.drop_cache {
            let length = std::num::NonZeroU64::new(chunk.bytes);
            // Only advice: a file system that cannot take it loses nothing but memory.
            let _ = rustix::fs::fadvise(file, chunk.offset, length, rustix::fs::Advice::DontNeed);
        }
        Ok(())
    }

    fn check_damage(&self) -> Result<()> {
        let rows: Vec<u32> = self.damage.read_vec()?;
        match rows.iter().zip(self.destinations).find(|(row, _)| **row != u32::MAX) {
            None => Ok(()),
            Some((row, destination)) => {
                let tensor = destination.tensor;
                let reason = format!(
                    "row {row} has a scale that is not a finite number or a value out of its range: the file is damaged, \
                     download or convert it again"
                );
                Err(Error::tensor(&self.source.files[tensor.data.file], &tensor.name, reason))
            }
        }
    }
}

fn open(files: &[PathBuf]) -> Result<Vec<File>> {
    files.iter().map(|path| File::open(path).map_err(|error| Error::io(path, error))).collect()
}

/// Reads scales that stand apart from their values: small beside them.
fn read_scales(
    device: &Device,
    source: &Source,
    files: &[File],
    destinations: &[Destination<'_>],
) -> Result<Vec<Option<gpu::Buffer>>> {
    let mut arena = Arena::new(device, Lifetime::Staging, Memory::Upload).with_block_size(1 << 20);
    let read = |destination: &Destination<'_>| {
        let Some(span) = destination.tensor.scales else { return Ok(None) };
        let mut buffer = arena.buffer(&destination.tensor.name, span.len)?;
        files[span.file].read_exact_at(buffer.bytes_mut()?, span.offset).map_err(|error| Error::Read {
            path: source.files[span.file].clone(),
            tensor: destination.tensor.name.clone(),
            offset: span.offset,
            source: error,
        })?;
        Ok(Some(buffer))
    };
    destinations.iter().map(read).collect()
}

fn compile(device: &Device, destinations: &[Destination<'_>]) -> Result<Vec<(Encoding, Transcode)>> {
    let mut kernels: Vec<(Encoding, Transcode)> = Vec::new();
    for encoding in destinations.iter().map(|destination| destination.tensor.encoding) {
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

/// Every tensor in runs of whole rows of at most `most` bytes, in the order of the files.
fn chunks(source: &Source, destinations: &[Destination<'_>], most: u64) -> Result<Vec<Chunk>> {
    let mut list = Vec::new();
    for (index, destination) in destinations.iter().enumerate() {
        let tensor = destination.tensor;
        let wrong = |reason: String| Error::tensor(&source.files[tensor.data.file], &tensor.name, reason);
        let [rows, k] = tensor.shape[..] else {
            return Err(wrong(format!("a matrix has two dimensions, this has {:?}", tensor.shape)));
        };
        let row_bytes = tensor.encoding.bytes(&[k]).filter(|bytes| *bytes > 0).ok_or_else(|| {
            wrong(format!("rows of {k} values are not whole blocks of {:?}", tensor.encoding))
        })?;
        let mut first_row = 0;
        while first_row < rows {
            let count = (most / row_bytes).clamp(1, rows - first_row);
            list.push(Chunk {
                destination: index,
                first_row,
                rows: count,
                file: tensor.data.file,
                offset: tensor.data.offset + first_row * row_bytes,
                bytes: count * row_bytes,
            });
            first_row += count;
        }
    }
    list.sort_by_key(|chunk| (chunk.file, chunk.offset));
    Ok(list)
}
