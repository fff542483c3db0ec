//! The engine's backend, shared with direct users of the runner.
//!
//! The engine's thread runs the steps. [`Model::logits`](crate::Model::logits) and the measurements of a
//! generation use the same runner between two steps, so the backend is behind a lock.

use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use engine::{
    Backend, BackendError, Capacity, DecodeRow, DraftInput, GpuBackend, MixedOutput, PrefillChunk, Sampled,
    VerifyRows, WriteBehind,
};
use model::{DraftSequence, Image, Sequence};

/// A [`GpuBackend`] behind a fair lock. Clones share it.
#[derive(Clone)]
pub(crate) struct SharedBackend(Arc<Inner>);

struct Inner {
    /// Taken by direct users while they wait for the backend. The engine passes through it before each call,
    /// so that back-to-back steps cannot starve them.
    turnstile: Mutex<()>,
    backend: Mutex<GpuBackend>,
    capacity: Capacity,
    heaps: HeapProbe,
}

/// Reads the heaps of the GPU that runs a model, without waiting for a step. Clones share it.
///
/// It follows the device when that is lost and reopened: an adapter of the lost device would keep its driver's
/// threads, memory and files.
#[derive(Clone)]
pub struct HeapProbe(Arc<Mutex<Option<gpu::Adapter>>>);

impl HeapProbe {
    fn new(backend: &mut GpuBackend) -> Self {
        Self(Arc::new(Mutex::new(adapter(backend))))
    }

    /// The heaps with their current budgets; none while a lost device is being reopened.
    pub fn heaps(&self) -> Vec<gpu::Heap> {
        lock(&self.0).as_ref().map_or(vec![], gpu::Adapter::heaps)
    }
}

fn adapter(backend: &mut GpuBackend) -> Option<gpu::Adapter> {
    Some(backend.runner().ok()?.model().device.adapter().clone())
}

/// The backend between two steps of the engine.
pub(crate) struct Exclusive<'a> {
    backend: MutexGuard<'a, GpuBackend>,
    _turnstile: MutexGuard<'a, ()>,
}

impl Deref for Exclusive<'_> {
    type Target = GpuBackend;
    fn deref(&self) -> &GpuBackend {
        &self.backend
    }
}

impl DerefMut for Exclusive<'_> {
    fn deref_mut(&mut self) -> &mut GpuBackend {
        &mut self.backend
    }
}

impl SharedBackend {
    pub fn new(mut backend: GpuBackend) -> Self {
        let (capacity, heaps) = (backend.capacity(), HeapProbe::new(&mut backend));
        Self(Arc::new(Inner { turnstile: Mutex::new(()), backend: Mutex::new(backend), capacity, heaps }))
    }

    pub fn heap_probe(&self) -> &HeapProbe {
        &self.0.heaps
    }

    /// Waits for the current step and delays the next one until the guard is dropped.
    pub fn exclusive(&self) -> Exclusive<'_> {
        let turnstile = lock(&self.0.turnstile);
        Exclusive { backend: lock(&self.0.backend), _turnstile: turnstile }
    }

    fn for_step(&self) -> MutexGuard<'_, GpuBackend> {
        drop(lock(&self.0.turnstile));
        lock(&self.0.backend)
    }
}

/// Ignores poisoning: a panic under the lock ends one step or one direct use, and the next call checks the
/// backend's state.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Backend for SharedBackend {
    type Sequence = Sequence;
    type DraftSequence = DraftSequence;

    fn capacity(&self) -> Capacity {
        self.0.capacity
    }

    fn free_pages(&self) -> u32 {
        self.for_step().free_pages()
    }

    fn cached_pages(&self) -> u32 {
        self.for_step().cached_pages()
    }

    fn shared_pages(&self, tokens: &[u32]) -> u32 {
        self.for_step().shared_pages(tokens)
    }

    fn restore(&mut self, tokens: &[u32], budget: Duration, wait: bool) -> Result<bool, BackendError> {
        self.for_step().restore(tokens, budget, wait)
    }

    fn forget_restore(&mut self) {
        self.for_step().forget_restore();
    }

    fn write_behind(&mut self) -> Result<WriteBehind, BackendError> {
        self.for_step().write_behind()
    }

    fn start_empty(&mut self) -> Result<Sequence, BackendError> {
        self.for_step().start_empty()
    }

    fn start(&mut self, tokens: &[u32]) -> Result<(Sequence, usize), BackendError> {
        self.for_step().start(tokens)
    }

    fn max_prefill_tokens(&self, decode_rows: usize, depth: u32, budget: Duration) -> usize {
        let mut backend = self.for_step();
        match backend.runner() {
            // No other sequence waits for this step, so the longest chunk is the fastest.
            Ok(runner) if self.0.capacity.max_sequences == 1 => {
                runner.chunk_rows(depth, runner.cache().limits().prefill_chunk as usize)
            }
            _ => backend.max_prefill_tokens(decode_rows, depth, budget),
        }
    }

    fn decode_batch_size(&self, decoding: usize) -> usize {
        self.for_step().decode_batch_size(decoding)
    }

    fn decode_run_steps(&self, rows: usize) -> usize {
        self.for_step().decode_run_steps(rows)
    }

    fn step_bytes(&self, depths: &[u32]) -> Option<u64> {
        self.for_step().step_bytes(depths)
    }

    fn encode(&mut self, images: &[Image], budget: Duration) -> Result<bool, BackendError> {
        self.for_step().encode(images, budget)
    }

    fn mixed(
        &mut self,
        decoding: &mut [DecodeRow<'_, Sequence>],
        chunks: &mut [PrefillChunk<'_, Sequence>],
    ) -> Result<MixedOutput, BackendError> {
        self.for_step().mixed(decoding, chunks)
    }

    fn max_scored_tokens(&self) -> usize {
        self.for_step().max_scored_tokens()
    }

    fn score(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        following: &[u32],
        top: u32,
    ) -> Result<Vec<Sampled>, BackendError> {
        self.for_step().score(sequence, tokens, following, top)
    }

    fn decode(
        &mut self,
        batch: &mut [DecodeRow<'_, Sequence>],
        max_steps: usize,
    ) -> Result<Vec<Vec<Sampled>>, BackendError> {
        self.for_step().decode(batch, max_steps)
    }

    fn verify(&mut self, batch: &mut [VerifyRows<'_, Sequence>]) -> Result<Vec<Vec<Sampled>>, BackendError> {
        self.for_step().verify(batch)
    }

    fn draft(&mut self, batch: &mut [DraftInput<'_, DraftSequence>]) -> Result<Vec<Vec<u32>>, BackendError> {
        self.for_step().draft(batch)
    }

    fn draft_prefill_time(&self, sequence: &DraftSequence, tokens: usize) -> Duration {
        self.for_step().draft_prefill_time(sequence, tokens)
    }

    fn draft_step_time(&self, sequences: usize) -> Option<Duration> {
        self.for_step().draft_step_time(sequences)
    }

    fn step_time(&self, rows: usize) -> Option<Duration> {
        self.for_step().step_time(rows)
    }

    fn reset_token_counts(
        &mut self,
        sequence: &mut Sequence,
        prompt: &[u32],
        generated: &[u32],
    ) -> Result<(), BackendError> {
        self.for_step().reset_token_counts(sequence, prompt, generated)
    }

    fn probe(&mut self) -> Result<(), BackendError> {
        self.for_step().probe()
    }

    fn recover(&mut self) -> Result<(), BackendError> {
        *lock(&self.0.heaps.0) = None;
        let mut backend = self.for_step();
        backend.recover()?;
        *lock(&self.0.heaps.0) = adapter(&mut backend);
        Ok(())
    }
}
