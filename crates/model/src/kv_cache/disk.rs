//! Pages between the GPU and the prefix cache on disk.
//!
//! Writing takes a page at a time: one submission copies it into a readback buffer, which a thread writes out. While
//! all buffers are being written, nothing more is copied. Reading takes as many pages as a time budget allows, through a
//! staging ring. Nothing is pinned between two calls: a page that was read is a page of the prefix tree like others, and
//! what is evicted before a sequence takes it is prefilled.

use std::{
    sync::mpsc,
    time::{Duration, Instant},
};

use gpu::{Arena, Buffer, Device, Lifetime, Memory, StagingRing, View};

use super::KvCache;
use crate::{
    Error, Result,
    pages::{FinishedSequence, PageAllocator, PageConfig, PageKind, text_before_images},
    prefix_disk::{
        Digest, Fingerprint, PageContent, PageId, PageLabel, PageReader, PageWrite, PrefixDisk, ReadError,
        prefix_digests,
    },
    state::TIMEOUT,
};

/// Readback buffers, of a page each: one is filled while others are written.
const READBACK_BUFFERS: usize = 3;

/// Minimum time to wait for a page: the caller, which has nothing else to do, would only ask again.
const MIN_WAIT: Duration = Duration::from_millis(10);

/// Slots of the staging ring, of a page each.
const STAGING_SLOTS: usize = 3;

/// What [`KvCache::write_behind`] leaves to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteBehind {
    /// Nothing.
    #[default]
    Done,
    /// More pages can be copied at once.
    More,
    /// More pages can be copied when earlier ones are written.
    Waiting,
}

/// The prefix cache on disk, for the pages of one model.
pub(super) struct DiskTier {
    disk: PrefixDisk,
    fingerprint: Fingerprint,
    /// Bytes of a page by kind; 0 for kinds without layers.
    page_bytes: [u64; 2],
    config: PageConfig,
    readback: ReadbackPool,
    /// `None` before the first use.
    ring: Option<StagingRing>,
    saving: Option<Saving>,
    restoring: Option<Restoring>,
}

/// A finished text whose pages are being copied.
struct Saving {
    text: FinishedSequence,
    digests: Vec<Digest>,
    /// By index and kind.
    pages: Vec<(usize, PageKind)>,
    next: usize,
    /// Time of use.
    used: u64,
}

/// A prompt whose prefix is being read.
struct Restoring {
    tokens: Vec<u32>,
    /// By index and kind.
    pages: Vec<(usize, PageKind)>,
    next: usize,
    reader: PageReader,
    /// Of the prefix tree: pages read before it was cleared must not reach it.
    epoch: u64,
    /// Tokens that need not be prefilled then.
    gained: usize,
}

/// How a call of [`KvCache::restore`] ended.
enum Restored {
    Complete,
    Pending,
    /// A page could not be read: a shorter prefix may still be stored.
    Incomplete,
    /// The prefix tree cannot take more.
    NoPages,
}

impl KvCache {
    /// Stores pages of texts on disk when they end, and reads them back for later prompts.
    pub fn attach_disk(&mut self, disk: PrefixDisk, fingerprint: Fingerprint) {
        let mut page_bytes = [0; 2];
        for (layer, kind) in self.layers.iter().zip(&self.kinds) {
            let page = layer.shape.page_range(0);
            page_bytes[*kind as usize] += 2 * (page.end - page.start);
        }
        let config = self.allocator.config();
        if config.prefix_cache {
            self.allocator.track_finished();
            let (readback, ring) = (ReadbackPool::default(), None);
            let (saving, restoring) = (None, None);
            self.disk =
                Some(DiskTier { disk, fingerprint, page_bytes, config, readback, ring, saving, restoring });
        }
    }

    /// Copies the next page of a finished sequence that is not on disk yet, to be written by another thread.
    pub fn write_behind(&mut self) -> Result<WriteBehind> {
        let Some(mut tier) = self.disk.take() else { return Ok(WriteBehind::Done) };
        let written = self.write_next(&mut tier);
        self.keep(tier, written, WriteBehind::Done)
    }

    /// Reads pages of the longest stored prefix of these tokens into the prefix cache, as far as it is longer than the
    /// one in memory, for about as long as `budget`. With `wait` also waits for pages that are not read yet, as long. Returns whether
    /// it is done; if not, the next call with the same tokens continues.
    pub fn restore(&mut self, tokens: &[u32], budget: Duration, wait: bool) -> Result<bool> {
        let Some(mut tier) = self.disk.take() else { return Ok(true) };
        let deadline = Instant::now() + if wait { budget.max(MIN_WAIT) } else { budget };
        let restored = self.restore_until(&mut tier, tokens, deadline, wait);
        self.keep(tier, restored, true)
    }

    /// Gives up what [`KvCache::restore`] would continue.
    pub fn forget_restore(&mut self) {
        self.disk.iter_mut().for_each(|tier| tier.restoring = None);
    }

    /// Deletes this model's pages.
    pub(super) fn clear_disk(&self) {
        self.disk.iter().for_each(|tier| tier.disk.clear(tier.fingerprint));
    }

    /// Goes on without the disk after an error, unless the device is lost: then the cache is too.
    fn keep<T>(&mut self, tier: DiskTier, result: Result<T>, otherwise: T) -> Result<T> {
        match result {
            Ok(result) => {
                self.disk = Some(tier);
                Ok(result)
            }
            Err(error @ Error::Gpu(gpu::Error::DeviceLost { .. } | gpu::Error::Timeout { .. })) => Err(error),
            Err(error) => {
                tracing::warn!("the prefix cache on disk is off until the model is loaded again: {error}");
                Ok(otherwise)
            }
        }
    }

    fn write_next(&self, tier: &mut DiskTier) -> Result<WriteBehind> {
        loop {
            let Some(mut saving) = tier.saving.take().or_else(|| tier.next_saving(&self.allocator)) else {
                return Ok(WriteBehind::Done);
            };
            while let Some((index, kind)) = saving.pages.get(saving.next).copied() {
                let id = PageId::new(tier.fingerprint, saving.digests[index + 1], index as u32, kind);
                if tier.disk.touch(&id, saving.used) {
                    saving.next += 1;
                    continue;
                }
                let Some(buffer) = tier.readback.acquire(&self.device, tier.max_page_bytes())? else {
                    tier.saving = Some(saving);
                    return Ok(WriteBehind::Waiting);
                };
                let prefix = &saving.text.tokens[..(index + 1) * tier.config.page_size as usize];
                let copy = |page| self.read_page(kind, page, &buffer.view());
                let copied = self.allocator.read_known(prefix, kind, copy);
                saving.next += 1;
                match copied {
                    Some(copied) => {
                        copied?;
                        let label = tier.label(prefix, index, kind, &saving.digests);
                        let content = Box::new(tier.readback.content(buffer));
                        tier.disk.write(PageWrite { id, label, content, used: saving.used });
                        tier.saving = Some(saving);
                        return Ok(WriteBehind::More);
                    }
                    None => tier.readback.release(buffer),
                }
                if kind == PageKind::Full {
                    // Evicted, and so are all that follow.
                    break;
                }
            }
        }
    }

    fn restore_until(
        &self,
        tier: &mut DiskTier,
        tokens: &[u32],
        deadline: Instant,
        wait: bool,
    ) -> Result<bool> {
        loop {
            let epoch = self.allocator.epoch();
            let is_current = |restoring: &Restoring| restoring.tokens == tokens && restoring.epoch == epoch;
            let current = tier.restoring.take().filter(is_current);
            let planned = current.or_else(|| tier.plan_restore(&self.allocator, tokens));
            let Some(mut restoring) = planned else { return Ok(true) };
            let restored = self.restore_pages(tier, &mut restoring, deadline, wait)?;
            if let Some(ring) = &tier.ring {
                ring.finish()?;
            }
            match restored {
                Restored::Complete => {
                    tier.disk.count_restored(restoring.gained as u64);
                    return Ok(true);
                }
                Restored::Pending => {
                    tier.restoring = Some(restoring);
                    return Ok(false);
                }
                // Each time, fewer pages are stored.
                Restored::Incomplete => {}
                Restored::NoPages => return Ok(true),
            }
        }
    }

    fn restore_pages(
        &self,
        tier: &mut DiskTier,
        restoring: &mut Restoring,
        deadline: Instant,
        wait: bool,
    ) -> Result<Restored> {
        let slot_bytes = tier.max_page_bytes();
        let ring = match tier.ring.take() {
            Some(ring) => tier.ring.insert(ring),
            None => tier.ring.insert(StagingRing::new(&self.device, STAGING_SLOTS, slot_bytes, TIMEOUT)?),
        };
        while let Some((index, kind)) = restoring.pages.get(restoring.next).copied() {
            let prefix = &restoring.tokens[..(index + 1) * tier.config.page_size as usize];
            let restored = if tier.page_bytes[kind as usize] == 0 {
                self.allocator.restore(prefix, kind, |_| Ok::<_, Error>(()))?
            } else {
                let content = match restoring.reader.take(wait.then_some(deadline)) {
                    None => return Ok(Restored::Pending),
                    Some(Err(ReadError::Gone | ReadError::Failed)) => return Ok(Restored::Incomplete),
                    Some(Ok(content)) => content,
                };
                let restored = self.allocator.restore(prefix, kind, |page| {
                    let mut slot = ring.acquire()?;
                    slot.bytes_mut()?[..content.len()].copy_from_slice(&content);
                    ring.send(slot, |recorder, staged| {
                        for (part, view) in self.page_parts(kind, page, staged)? {
                            recorder.copy("stored KV page", part, view)?;
                        }
                        Ok(())
                    })?;
                    Ok::<_, Error>(())
                })?;
                restoring.reader.recycle(content);
                restored
            };
            if !restored {
                return Ok(Restored::NoPages);
            }
            restoring.next += 1;
            if Instant::now() >= deadline && restoring.next < restoring.pages.len() {
                return Ok(Restored::Pending);
            }
        }
        Ok(Restored::Complete)
    }

    /// Copies a page of all layers of a kind into a buffer.
    fn read_page(&self, kind: PageKind, page: u32, into: &View) -> Result<()> {
        let mut recorder = self.device.recorder()?;
        for (part, view) in self.page_parts(kind, page, into)? {
            recorder.copy("stored KV page", view, part)?;
        }
        Ok(recorder.seal()?.run(TIMEOUT)?)
    }

    /// Keys and values of a page in each layer of its kind, each with its part of a buffer.
    fn page_parts(&self, kind: PageKind, page: u32, buffer: &View) -> gpu::Result<Vec<(View, View)>> {
        let layers = self.layers.iter().zip(&self.kinds).filter(|(_, layer_kind)| **layer_kind == kind);
        let mut end = 0;
        let mut part = |layer: &Buffer, range: std::ops::Range<u64>| {
            let start = end;
            end += range.end - range.start;
            Ok((buffer.slice(start..end)?, layer.slice(range)?))
        };
        let parts = layers.flat_map(|(layer, _)| {
            let range = layer.shape.page_range(page);
            [part(&layer.k, range.clone()), part(&layer.v, range)]
        });
        parts.collect()
    }
}

impl DiskTier {
    fn max_page_bytes(&self) -> u64 {
        self.page_bytes[0].max(self.page_bytes[1])
    }

    /// `prefix` ends with the page.
    fn label(&self, prefix: &[u32], index: usize, kind: PageKind, digests: &[Digest]) -> PageLabel {
        PageLabel {
            fingerprint: self.fingerprint,
            parent: digests[index],
            depth: index as u32,
            kind,
            tokens: prefix[index * self.config.page_size as usize..].to_vec(),
            bytes: self.page_bytes[kind as usize],
        }
    }

    /// The next text to store.
    fn next_saving(&self, allocator: &PageAllocator) -> Option<Saving> {
        let text = allocator.next_finished()?;
        let page_size = self.config.page_size as usize;
        let digests = prefix_digests(self.fingerprint, &text.tokens, page_size).collect();
        let windows = text.branch_points.map(|point| self.config.window_before(point));
        let is_wanted = |index: usize, kind: PageKind| match kind {
            PageKind::Full => true,
            PageKind::Sliding => windows.iter().any(|window| window.contains(&(index as u32))),
        };
        let all = (0..text.tokens.len() / page_size)
            .flat_map(|index| PageKind::ALL.map(|kind| (index, kind)))
            .filter(|(index, kind)| self.page_bytes[*kind as usize] > 0 && is_wanted(*index, *kind));
        let pages = all.collect();
        Some(Saving { text, digests, pages, next: 0, used: self.disk.now() })
    }

    /// The pages to read for a prompt; `None` if none of its prefixes on disk is longer than that in memory.
    fn plan_restore(&self, allocator: &PageAllocator, tokens: &[u32]) -> Option<Restoring> {
        let page_size = self.config.page_size as usize;
        // The last token is always computed.
        let text = text_before_images(&tokens[..tokens.len().saturating_sub(1)]);
        let cached = allocator.cached_len(tokens);
        if cached + page_size > text.len() {
            return None;
        }
        let known = allocator.known_pages(text);
        let digests: Vec<Digest> = prefix_digests(self.fingerprint, text, page_size).collect();
        let id = |index: usize, kind| PageId::new(self.fingerprint, digests[index + 1], index as u32, kind);
        let is_known =
            |index: usize, kind: PageKind| known.get(index).is_some_and(|page| page[kind as usize]);
        let is_available = |index: usize, kind: PageKind| {
            is_known(index, kind)
                || self.page_bytes[kind as usize] == 0
                || self.disk.contains(&id(index, kind))
        };
        let full =
            (0..text.len() / page_size).take_while(|index| is_available(*index, PageKind::Full)).count();
        let window = |pages: usize| {
            let window = self.config.window_before(pages as u32);
            window.start as usize..window.end as usize
        };
        let has_window = |pages: &usize| window(*pages).all(|index| is_available(index, PageKind::Sliding));
        let end = (1..=full).rev().find(has_window).filter(|pages| pages * page_size > cached)?;
        let all = (0..end).flat_map(|index| PageKind::ALL.map(|kind| (index, kind)));
        let is_needed = |(index, kind): &(usize, PageKind)| {
            !is_known(*index, *kind) && (*kind == PageKind::Full || window(end).contains(index))
        };
        let pages: Vec<(usize, PageKind)> = all.filter(is_needed).collect();
        let read = pages.iter().filter(|(_, kind)| self.page_bytes[*kind as usize] > 0);
        let labelled = |(index, kind): &(usize, PageKind)| {
            let label = self.label(&text[..(index + 1) * page_size], *index, *kind, &digests);
            (id(*index, *kind), label)
        };
        let reader = PageReader::start(&self.disk, read.map(labelled).collect())?;
        let gained = end * page_size - cached;
        Some(Restoring { tokens: tokens.to_vec(), pages, next: 0, reader, epoch: allocator.epoch(), gained })
    }
}

/// Buffers that pages are copied into, to be written.
struct ReadbackPool {
    allocated: usize,
    free: Vec<Buffer>,
    /// Buffers that were written.
    returned: (mpsc::Sender<Buffer>, mpsc::Receiver<Buffer>),
}

impl Default for ReadbackPool {
    fn default() -> Self {
        Self { allocated: 0, free: vec![], returned: mpsc::channel() }
    }
}

impl ReadbackPool {
    /// A buffer of `bytes` bytes; `None` while all are being written.
    fn acquire(&mut self, device: &Device, bytes: u64) -> Result<Option<Buffer>> {
        self.free.extend(self.returned.1.try_iter());
        if self.free.is_empty() && self.allocated < READBACK_BUFFERS {
            // In blocks of their own: a block that is being copied into cannot be read.
            let mut arena = Arena::new(device, Lifetime::Staging, Memory::Readback).with_block_size(bytes);
            self.free.push(arena.buffer("readback of KV pages", bytes)?);
            self.allocated += 1;
        }
        Ok(self.free.pop())
    }

    fn release(&mut self, buffer: Buffer) {
        self.free.push(buffer);
    }

    /// A filled buffer, which comes back when it was written.
    fn content(&self, buffer: Buffer) -> Readback {
        Readback { buffer: Some(buffer), returned: self.returned.0.clone() }
    }
}

/// A page in a readback buffer.
struct Readback {
    /// `None` only while it is being dropped.
    buffer: Option<Buffer>,
    returned: mpsc::Sender<Buffer>,
}

impl PageContent for Readback {
    fn is_lost(&self) -> bool {
        let read = |buffer: &Buffer| buffer.read(0, &mut []);
        self.buffer.as_ref().is_some_and(|buffer| matches!(read(buffer), Err(gpu::Error::DeviceLost { .. })))
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> std::result::Result<(), String> {
        self.buffer
            .as_ref()
            .map_or(Ok(()), |buffer| buffer.read(offset, into))
            .map_err(|error| error.to_string())
    }
}

impl Drop for Readback {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            // The pool may be gone.
            let _ = self.returned.send(buffer);
        }
    }
}
