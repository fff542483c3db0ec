//! The prefix cache on disk: KV pages of finished sequences in a folder of bounded size, so that they outlive their
//! eviction from GPU memory, their model and the process.
//!
//! ```text
//!  finished sequence ─▶ pages that the folder lacks ─▶ readback buffer ─▶ writer thread ─▶ temporary file ─▶ renamed
//!                   (one per round of the engine)   (a GPU copy)                                          │
//!  new prompt ─▶ longest stored prefix ─▶ reader threads ─▶ staging ring ─▶ pages of the prefix tree ◀─── folder
//!                beyond the one in memory   (checked)       (GPU copies)    (as if just finished)
//! ```
//!
//! **A file is a page**: the keys and values of all layers of one [`PageKind`](crate::pages::PageKind) for the tokens
//! of one page. Pages of sliding-window layers are files of their own, since only those in the window before a branch
//! point are worth storing; with Gemma 3 27B they are five times as large as those of full-attention layers. Only full
//! pages are stored; the rest of a text, less than a page, is prefilled again.
//!
//! **Key.** The name of a file is the SHA-256 of the [`Fingerprint`] and of all tokens up to the end of its page,
//! computed as a chain: the digest of a page is that of its parent's digest and its own tokens. The fingerprint covers
//! everything else that keys and values depend on: this version of Indrik and its kernels, the weights, the layout of a
//! page, the device. Texts are stored up to their first image only. The header of a file is a function of what is
//! looked for (fingerprint, digest of the parent, depth, kind, the page's token ids, length), so verifying it is a
//! comparison of bytes: a file with another version, model or text in it is not parsed but dropped.
//!
//! **Damage.** A CRC-32 over header and content ends the file. It detects any one or two flipped bits and any damage
//! within 32 bits, and misses one in four billion others. A file that fails is deleted and its page prefilled; one that
//! cannot be opened is only left aside.
//!
//! **Crashes.** A file is written under a temporary name and renamed when it is complete. Nothing is synced: a process
//! that is killed loses no write that the kernel has accepted, and after a power failure the checksum detects a renamed
//! file whose content never reached the disk. A lost page costs a prefill, and syncing each would cost the disk's time
//! while texts wait for it. Temporary files are deleted when the folder is opened; a lock on the folder ensures that
//! they are nobody else's.
//!
//! **Bound.** The least recently used files are deleted before a new one would exceed the limit; of a text, the last
//! pages first, without which the others are still of use. A file's modification time is when it was last written or
//! read, which gives the order after a restart. Pages of other versions and models count too, and are evicted like the others.
//!
//! **Failures** never fail a request: a page that cannot be read is prefilled, one that cannot be written is not
//! stored. On a full disk the limit becomes what is stored then. The log says once that reading or writing failed;
//! [`PrefixDiskStats`] counts each.
//!
//! | module | contents |
//! |---|---|
//! | `key` | fingerprints, digests of prefixes, names of files |
//! | `file` | the bytes of a file, written and verified |
//! | `index` | which pages are stored, in order of use; pure |
//! | `folder` | the folder: lock, reads, deletions, the writer thread |
//! | `reader` | threads that read the pages of a prefix ahead |
//!
//! `kv_cache/disk.rs` moves pages between here and the GPU.

mod file;
mod folder;
mod index;
mod key;
mod reader;

#[cfg(test)]
mod tests;

pub use folder::{PrefixDisk, PrefixDiskError, PrefixDiskStats};
pub use key::Fingerprint;

pub(crate) use file::PageLabel;
pub(crate) use folder::{PageContent, PageWrite, ReadError};
pub(crate) use key::{Digest, PageId, prefix_digests};
pub(crate) use reader::PageReader;
