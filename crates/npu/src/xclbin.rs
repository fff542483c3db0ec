//! Overlays: the xclbin container and what is in it.
//!
//! | level | type | holds |
//! |---|---|---|
//! | file | [`Xclbin`] | sections by kind |
//! | section 32 | [`Partition`] | width in columns, and PDIs |
//! | image | [`Pdi`] | headers with checksums, and one CDO |
//! | commands | [`Cdo`] | register writes that configure the tile array |
//!
//! Each level decodes and encodes. Decoding and encoding an unchanged file gives the same bytes; a changed one gets
//! new lengths, offsets and checksums.
//!
//! ```
//! use npu::xclbin::{Cdo, CdoCommand, Partition, Pdi, Xclbin};
//!
//! let cdo = Cdo::new(vec![CdoCommand::Write { address: 0x0021_f000, value: 2 }]);
//! let partition = Partition::new(4, Pdi::new(cdo).encode()?);
//! let file = Xclbin::new([7; 16], &partition)?.encode()?;
//! assert_eq!(Xclbin::decode(&file)?.partition()?.pdis[0].pdi()?.cdo.commands.len(), 1);
//! # Ok::<(), npu::Error>(())
//! ```

mod cdo;
mod partition;
mod pdi;

pub use cdo::{Cdo, CdoCommand};
pub use partition::{CdoGroup, Partition, PdiEntry};
pub use pdi::Pdi;

use crate::bytes::{Bytes, pad_to};
use crate::error::{Error, Format, Result};

const MAGIC: &[u8; 8] = b"xclbin2\0";
/// Bytes before the number of sections.
const PREFIX: usize = 0x1c0;
const LENGTH_AT: usize = 0x130;
const UUID_AT: usize = 0x1a0;
/// Start of the section table.
const TABLE: usize = 0x1c8;
const SECTION_HEADER: usize = 40;
/// Far more sections than any overlay has.
const MAX_SECTIONS: usize = 256;
/// Alignment of sections.
const ALIGN: usize = 8;

/// Kind of the section with the PDIs.
pub const AIE_PARTITION: u32 = 32;

/// One section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// Number of the kind.
    pub kind: u32,
    /// Name, filled with zeros.
    pub name: [u8; 16],
    /// Contents.
    pub data: Vec<u8>,
}

/// The container of an overlay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Xclbin {
    /// Identity, dates and versions, which the NPU does not need; kept as they are.
    prefix: Vec<u8>,
    sections: Vec<Section>,
    /// A copy of the headers as JSON, which XRT's tools append.
    mirror: Vec<u8>,
}

impl Xclbin {
    /// An overlay with one partition.
    pub fn new(uuid: [u8; 16], partition: &Partition) -> Result<Self> {
        let mut prefix = vec![0; PREFIX];
        prefix[..8].copy_from_slice(MAGIC);
        // No signature: its length and the key block are all ones.
        prefix[8..0x128].fill(0xff);
        prefix[UUID_AT..UUID_AT + 16].copy_from_slice(&uuid);
        let mut name = [0; 16];
        name[..13].copy_from_slice(b"aie_partition");
        let section = Section { kind: AIE_PARTITION, name, data: partition.encode()? };
        Ok(Self { prefix, sections: vec![section], mirror: Vec::new() })
    }

    /// Reads a file.
    pub fn decode(file: &[u8]) -> Result<Self> {
        let bytes = Bytes::new(Format::Xclbin, file);
        if bytes.slice(0, MAGIC.len())? != MAGIC {
            return Err(Error::malformed(Format::Xclbin, 0, "it does not begin with \"xclbin2\""));
        }
        let prefix = bytes.slice(0, PREFIX)?.to_vec();
        let length = bytes.u64(LENGTH_AT)?;
        if length != file.len() as u64 {
            let reason = format!("the header says {length} bytes, and the file has {}", file.len());
            return Err(Error::malformed(Format::Xclbin, LENGTH_AT, reason));
        }
        let count = bytes.u32(PREFIX)? as usize;
        if count > MAX_SECTIONS {
            return Err(Error::malformed(Format::Xclbin, PREFIX, format!("{count} sections")));
        }
        let mut sections = Vec::new();
        let mut end = TABLE + count * SECTION_HEADER;
        bytes.slice(0, end)?;
        for index in 0..count {
            let at = TABLE + index * SECTION_HEADER;
            let outside =
                || Error::malformed(Format::Xclbin, at, format!("section {index} is out of bounds"));
            let offset = usize::try_from(bytes.u64(at + 24)?).map_err(|_| outside())?;
            let size = usize::try_from(bytes.u64(at + 32)?).map_err(|_| outside())?;
            // Sections in order, without overlap: no byte is copied twice, so a small file cannot ask for much memory.
            if offset != end.next_multiple_of(ALIGN) {
                let reason = format!("section {index} is not where its predecessor ends");
                return Err(Error::malformed(Format::Xclbin, at, reason));
            }
            let data = bytes.slice(offset, size).map_err(|_| outside())?.to_vec();
            end = offset + size;
            sections.push(Section { kind: bytes.u32(at)?, name: bytes.array(at + 4)?, data });
        }
        let mirror = bytes.slice(end, file.len() - end)?.to_vec();
        Ok(Self { prefix, sections, mirror })
    }

    /// The bytes of the file.
    pub fn encode(&self) -> Result<Vec<u8>> {
        if self.sections.len() > MAX_SECTIONS {
            let reason = format!("{} sections", self.sections.len());
            return Err(Error::malformed(Format::Xclbin, PREFIX, reason));
        }
        let mut file = self.prefix.clone();
        file.extend_from_slice(&(self.sections.len() as u64).to_le_bytes());
        let mut offset = TABLE + self.sections.len() * SECTION_HEADER;
        for section in &self.sections {
            offset = offset.next_multiple_of(ALIGN);
            file.extend_from_slice(&section.kind.to_le_bytes());
            file.extend_from_slice(&section.name);
            file.extend_from_slice(&[0; 4]);
            file.extend_from_slice(&(offset as u64).to_le_bytes());
            file.extend_from_slice(&(section.data.len() as u64).to_le_bytes());
            offset += section.data.len();
        }
        for section in &self.sections {
            pad_to(&mut file, ALIGN);
            file.extend_from_slice(&section.data);
        }
        file.extend_from_slice(&self.mirror);
        let length = file.len() as u64;
        file[LENGTH_AT..LENGTH_AT + 8].copy_from_slice(&length.to_le_bytes());
        Ok(file)
    }

    /// The sections in their order.
    pub fn sections(&self) -> &[Section] {
        &self.sections
    }

    /// Identity of the overlay.
    pub fn uuid(&self) -> [u8; 16] {
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&self.prefix[UUID_AT..UUID_AT + 16]);
        uuid
    }

    /// The partition.
    pub fn partition(&self) -> Result<Partition> {
        match self.sections.iter().find(|section| section.kind == AIE_PARTITION) {
            Some(section) => Partition::decode(&section.data),
            None => Err(Error::unsupported(Format::Xclbin, "an overlay without an AIE_PARTITION section")),
        }
    }

    /// Replaces the partition. The JSON copy of the headers is dropped, since its offsets no longer hold.
    pub fn set_partition(&mut self, partition: &Partition) -> Result<()> {
        let data = partition.encode()?;
        match self.sections.iter_mut().find(|section| section.kind == AIE_PARTITION) {
            Some(section) => section.data = data,
            None => {
                return Err(Error::unsupported(
                    Format::Xclbin,
                    "an overlay without an AIE_PARTITION section",
                ));
            }
        }
        self.mirror.clear();
        Ok(())
    }
}
