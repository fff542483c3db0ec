//! Overlays for AMD's NPU, and streams for them: public files, known by commit and SHA-256, fetched from the repositories
//! of their authors.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use crate::{
    catalogue::Licence,
    client::Client,
    download::{IoContext, Request, Session, discard, file_len},
    error::{Error, Result},
    folder::data_folder,
    interrupt::interruptible,
    pull::{PullOptions, acquire_lock},
    sha256,
    task::{PullEvent, pull_event},
};

/// Where repositories serve single files.
const SOURCE: &str = "https://raw.githubusercontent.com";

/// A file of an overlay that can be pulled: its xclbin, or a stream for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverlayFile {
    /// Name of the overlay, and of its xclbin without the extension.
    pub name: &'static str,
    /// What it is for.
    pub title: &'static str,
    /// Owner and name of the repository.
    pub repository: &'static str,
    /// The commit.
    pub commit: &'static str,
    /// Path in the repository.
    pub path: &'static str,
    /// Size.
    pub bytes: u64,
    /// SHA-256 in hexadecimal digits.
    pub sha256: &'static str,
    /// Its licence.
    pub licence: Licence,
}

const TIBREZUS: (&str, &str) = ("tibrezus/xdna-npu-toolkit", "de0ea1aae7682b0197b8b36345d4f53a6101b5b7");
const TIBREZUS_LICENCE: Licence = Licence {
    name: "MIT; the cores' programs, of mlir-aie, are Apache-2.0 WITH LLVM-exception",
    url: "https://github.com/tibrezus/xdna-npu-toolkit/blob/de0ea1aae7682b0197b8b36345d4f53a6101b5b7/LICENSE",
};

const AMD: (&str, &str) = ("amd/RyzenAI-SW", "2a3c4afe88a7deabd06c7eecd2ad273091e0ce2e");
const AMD_LICENCE: Licence = Licence {
    name: "MIT",
    url: "https://github.com/amd/RyzenAI-SW/blob/2a3c4afe88a7deabd06c7eecd2ad273091e0ce2e/LICENSE.txt",
};

/// The files that can be pulled. The first overlay that is there is what commands use by default.
pub const OVERLAYS: [OverlayFile; 4] = [
    OverlayFile {
        name: "gemm-512-4col",
        title: "matrix products of int16 on 16 cores",
        repository: TIBREZUS.0,
        commit: TIBREZUS.1,
        path: "iron/builds/gemm-512-4col.xclbin",
        bytes: 66_362,
        sha256: "95fa77b60a42e63ead0519a96c1121cb67a43a38b5969916af455cd3e3f032d8",
        licence: TIBREZUS_LICENCE,
    },
    OverlayFile {
        name: "gemm-256-1col",
        title: "matrix products of int16 on one core",
        repository: TIBREZUS.0,
        commit: TIBREZUS.1,
        path: "iron/builds/gemm-256-1col.xclbin",
        bytes: 11_146,
        sha256: "29fa6a26b1cfb298411d5ac2fc7b716d089b9a4d8599cc0031a4aa7de9ab7102",
        licence: TIBREZUS_LICENCE,
    },
    OverlayFile {
        name: "mladf_gemm_4x4_a8w8acc32",
        title: "AMD's matrix products of int8 on 16 cores",
        repository: AMD.0,
        commit: AMD.1,
        path: "example/transformers/xclbin/phx/mladf_gemm_4x4_a8w8acc32.xclbin",
        bytes: 264_215,
        sha256: "b01a231ca46357925638e0f08203bd5e2b7c4b26327e43bbd87bb980eb1b4b76",
        licence: AMD_LICENCE,
    },
    OverlayFile {
        name: "mladf_gemm_4x4_a8w8acc32",
        title: "AMD's stream for 32 × 2048 × 2048",
        repository: AMD.0,
        commit: AMD.1,
        path: "example/transformers/dll/phx/qlinear_2/mladf_a8w8acc32_32_2048_2048.bin",
        bytes: 26_032,
        sha256: "698b8402ae318bb443f62fe2a5d18c1b4ff41e814ec9d72080771fd44e92f800",
        licence: AMD_LICENCE,
    },
];

/// The folder of overlays: `INDRIK_OVERLAYS_DIR`, or `indrik/overlays` in the user's data folder.
pub fn overlay_folder() -> Result<PathBuf> {
    data_folder("INDRIK_OVERLAYS_DIR", "overlays", |name| std::env::var_os(name))
        .ok_or(Error::NoOverlayFolder)
}

/// The server of `raw` files: `INDRIK_OVERLAY_SOURCE`, or GitHub's.
pub fn overlay_source() -> String {
    let configured = std::env::var("INDRIK_OVERLAY_SOURCE").ok().filter(|source| !source.is_empty());
    configured.unwrap_or_else(|| SOURCE.to_string()).trim_end_matches('/').to_string()
}

impl OverlayFile {
    /// Whether it is an overlay's xclbin, and not a stream.
    pub fn is_xclbin(&self) -> bool {
        self.path.ends_with(".xclbin")
    }

    /// Its file in a folder of overlays. It has the same name as in its repository.
    pub fn file(&self, folder: &Path) -> PathBuf {
        folder.join(self.path.rsplit('/').next().unwrap_or(self.path))
    }

    /// Whether the folder has it. Its content is compared when it is used.
    pub fn is_present(&self, folder: &Path) -> bool {
        file_len(&self.file(folder)) == self.bytes
    }

    /// Its address on a server of `raw` files.
    pub fn url(&self, source: &str) -> String {
        format!("{source}/{}/{}/{}", self.repository, self.commit, self.path)
    }

    /// Downloads it into a folder, unless it is there with the right content; whether it was downloaded.
    pub fn pull(
        &self,
        folder: &Path,
        source: &str,
        options: &PullOptions,
        report: &mut dyn FnMut(PullEvent),
    ) -> Result<bool> {
        let path = self.file(folder);
        fs::create_dir_all(folder).with_path(folder)?;
        let _lock = acquire_lock(&path.with_extension("lock"), options.cancel, report)?;
        if path.exists() {
            if sha256::hash_file(&path, options.cancel)? == self.sha256 {
                return Ok(false);
            }
            report(PullEvent::Damaged { path: path.clone() });
        }
        let (name, url) = (self.licence.name.to_string(), Some(self.licence.url.to_string()));
        report(PullEvent::Licence { name, url });
        let url = self.url(source);
        report(PullEvent::TryingSource(url.clone()));
        let client = Client::new(options.settings)?;
        interruptible(&client, options.cancel, || {
            let session = Session { client: &client, settings: options.settings, cancel: options.cancel };
            let part = path.with_extension("part");
            self.fetch(&session, &url, &part, report)?;
            fs::rename(&part, &path).with_path(&path)?;
            discard(&part)?;
            Ok(true)
        })
    }

    /// Downloads and verifies the file. One with the wrong content is downloaded once more.
    fn fetch(
        &self,
        session: &Session,
        url: &str,
        part: &Path,
        report: &mut dyn FnMut(PullEvent),
    ) -> Result<()> {
        let mut may_retry = true;
        loop {
            let request = Request { url, headers: &[], path: part, size: Some(self.bytes) };
            session.download(&request, &mut |event| report(pull_event(event, 0, self.bytes)))?;
            report(PullEvent::Verifying);
            let found = sha256::hash_file(part, session.cancel)?;
            if found == self.sha256 {
                return File::open(part).and_then(|file| file.sync_all()).with_path(part);
            }
            discard(part)?;
            let expected = self.sha256.to_string();
            let error = Error::Checksum { what: url.to_string(), expected, found };
            if !std::mem::take(&mut may_retry) {
                return Err(error);
            }
            report(PullEvent::Discarded { reason: error.to_string() });
        }
    }
}
