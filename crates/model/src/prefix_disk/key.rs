//! What identifies a stored page.

use std::{
    fmt::Write,
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use gpu::AdapterInfo;
use sha2::{Digest as _, Sha256};

use crate::{Limits, Model, pages::PageKind};

/// Everything besides its tokens that the content of a page depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(pub(super) [u8; 32]);

/// Changes with what the host contributes to keys and values: their layout within a page, the order of operations.
const KV_FORMAT: u32 = 1;

/// Samples of a weight file that the fingerprint covers, evenly spaced. Reading whole files would take as long as
/// loading them.
const SAMPLES: u64 = 1024;

/// Bytes of a sample.
const SAMPLE_BYTES: u64 = 512;

impl Fingerprint {
    /// The fingerprint of a model whose weights come from these files. They are identified by path, size, time of
    /// change and samples of their content.
    pub fn of_files(files: &[PathBuf], model: &Model, limits: &Limits) -> io::Result<Self> {
        let mut hash = Sha256::new();
        for path in files {
            add_file(&mut hash, path)?;
        }
        Ok(Self::new(hash.finalize().as_slice(), model, limits))
    }

    /// The fingerprint of a model whose weights `weights` identifies.
    pub fn new(weights: &[u8], model: &Model, limits: &Limits) -> Self {
        let Limits { page_size, kv_scheme, .. } = limits;
        let AdapterInfo { name, driver, pipeline_cache_uuid, vendor_id, device_id, driver_version, .. } =
            model.device.info();
        // Kernels of another version, device or driver may round differently, and bitwise reproducible logits must not
        // depend on which of them filled the cache.
        let text = format!(
            "{} {KV_FORMAT} {} {:?} {page_size} {kv_scheme:?} {:?} {name} {driver} {pipeline_cache_uuid:?} {vendor_id} {device_id} \
             {driver_version}",
            env!("CARGO_PKG_VERSION"),
            // Two builds of one version may have different kernels.
            kernels::SHADER_FINGERPRINTS,
            model.config,
            model.is_reproducible(),
        );
        Self(Sha256::new().chain_update(weights).chain_update(text).finalize().into())
    }
}

fn add_file(hash: &mut Sha256, path: &Path) -> io::Result<()> {
    let mut file = File::open(path)?;
    let data = file.metadata()?;
    hash.update(path.canonicalize()?.as_os_str().as_encoded_bytes());
    hash.update(data.len().to_le_bytes());
    hash.update(data.mtime().to_le_bytes());
    hash.update(data.mtime_nsec().to_le_bytes());
    let step = (data.len() / SAMPLES).max(SAMPLE_BYTES);
    for start in (0..data.len()).step_by(step as usize) {
        file.seek(SeekFrom::Start(start))?;
        let mut sample = vec![];
        file.by_ref().take(SAMPLE_BYTES).read_to_end(&mut sample)?;
        hash.update(&sample);
    }
    Ok(())
}

/// Identifies all tokens up to the end of a page, and the fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digest(pub(super) [u8; 32]);

/// The digests before and after each full page of these tokens.
pub(crate) fn prefix_digests(
    fingerprint: Fingerprint,
    tokens: &[u32],
    page_size: usize,
) -> impl Iterator<Item = Digest> {
    let first = Digest(fingerprint.0);
    let next = |parent: &mut Digest, page: &[u32]| {
        let hash = Sha256::new().chain_update(parent.0).chain_update(bytemuck::cast_slice::<u32, u8>(page));
        *parent = Digest(hash.finalize().into());
        Some(*parent)
    };
    [first].into_iter().chain(tokens.chunks_exact(page_size).scan(first, next))
}

/// A page in the folder. Half of each hash is enough for a name: the header has all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PageId {
    /// The start of the fingerprint.
    pub model: [u8; 16],
    /// Pages before it.
    pub depth: u32,
    /// The start of the digest.
    pub digest: [u8; 16],
    pub kind: PageKind,
}

impl PageId {
    pub fn new(fingerprint: Fingerprint, digest: Digest, depth: u32, kind: PageKind) -> Self {
        Self { model: half(fingerprint.0), depth, digest: half(digest.0), kind }
    }

    /// What the pages of a model have in common.
    pub fn model_of(fingerprint: Fingerprint) -> [u8; 16] {
        half(fingerprint.0)
    }

    /// Its path relative to the folder.
    pub fn path(&self) -> PathBuf {
        let kind = match self.kind {
            PageKind::Full => "full",
            PageKind::Sliding => "sliding",
        };
        Path::new(&hex(&self.model)).join(format!("{:07}-{}.{kind}", self.depth, hex(&self.digest)))
    }

    /// Whether this is the name of a folder with the pages of a model.
    pub fn is_model(name: &str) -> bool {
        from_hex(name).is_some()
    }

    /// The page with this path; `None` for other files.
    pub fn from_path(model: &str, name: &str) -> Option<Self> {
        let (stem, kind) = name.split_once('.')?;
        let (depth, digest) = stem.split_once('-')?;
        let kind = match kind {
            "full" => PageKind::Full,
            "sliding" => PageKind::Sliding,
            _ => return None,
        };
        let id =
            Self { model: from_hex(model)?, depth: depth.parse().ok()?, digest: from_hex(digest)?, kind };
        (id.path() == Path::new(model).join(name)).then_some(id)
    }
}

fn half(hash: [u8; 32]) -> [u8; 16] {
    std::array::from_fn(|index| hash[index])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a String does not fail");
        text
    })
}

fn from_hex(text: &str) -> Option<[u8; 16]> {
    Some(u128::from_str_radix(text, 16).ok().filter(|_| text.len() == 32)?.to_be_bytes())
}
