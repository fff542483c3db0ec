//! Section `AIE_PARTITION`: which columns an overlay needs, and its PDIs.
//!
//! A header of 184 bytes with offsets into the rest of the section: names, arrays, images.

use super::Pdi;
use crate::bytes::{Bytes, pad_to};
use crate::error::{Error, Format, Result};

const HEADER: usize = 184;
const NAME_AT: usize = 0x04;
const OPERATIONS_AT: usize = 0x08;
const INFERENCE_AT: usize = 0x10;
const PRE_POST_AT: usize = 0x18;
const WIDTH_AT: usize = 0x20;
const START_COLUMNS_AT: usize = 0x28;
const PDIS_AT: usize = 0x78;
const COMMIT_AT: usize = 0x80;
/// Bytes of a PDI's entry, and of a CDO group's.
const ENTRY: usize = 96;
const ALIGN: usize = 8;
/// Far more elements than any array of this section has, except images.
const MAX_ELEMENTS: usize = 4096;

/// The partition of an overlay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Name; usually empty.
    pub name: String,
    /// Commit of the kernel's source, where the file has a field for it.
    pub kernel_commit: Option<String>,
    /// Operations per cycle.
    pub operations_per_cycle: u32,
    /// Fingerprint of the inference function.
    pub inference_fingerprint: u64,
    /// Fingerprint of what runs before and after.
    pub pre_post_fingerprint: u64,
    /// Width in columns.
    pub columns: u16,
    /// Columns at which the partition may begin.
    pub start_columns: Vec<u16>,
    /// The PDIs.
    pub pdis: Vec<PdiEntry>,
}

/// One PDI of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PdiEntry {
    /// Identity.
    pub uuid: [u8; 16],
    /// The image that the firmware loads.
    pub image: Vec<u8>,
    /// Names of its CDOs for XRT.
    pub groups: Vec<CdoGroup>,
}

impl PdiEntry {
    /// The image, decoded.
    pub fn pdi(&self) -> Result<Pdi> {
        Pdi::decode(&self.image)
    }
}

/// What XRT knows about a CDO.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CdoGroup {
    /// Name.
    pub name: String,
    /// Kind: 1 is primary.
    pub kind: u8,
    /// Number of the PDI.
    pub pdi_id: u64,
    /// Kernels that use it.
    pub kernel_ids: Vec<u64>,
    /// Groups that are loaded before it.
    pub pre_groups: Vec<u32>,
}

/// The reference of an array: number of elements, and offset from the start of the section.
fn array(bytes: &Bytes<'_>, at: usize, most: usize) -> Result<(usize, usize)> {
    let (count, offset) = (bytes.u32(at)? as usize, bytes.u32(at + 4)? as usize);
    if count > most {
        return Err(Error::malformed(Format::Partition, at, format!("an array of {count} elements")));
    }
    Ok((count, offset))
}

impl Partition {
    /// A partition of `columns` columns, which may begin at the first one, with one image.
    pub fn new(columns: u16, image: Vec<u8>) -> Self {
        let group = CdoGroup {
            name: "DPU".to_owned(),
            kind: 1,
            pdi_id: 1,
            kernel_ids: vec![0x901],
            pre_groups: vec![0xc1],
        };
        Self {
            name: String::new(),
            kernel_commit: Some(String::new()),
            operations_per_cycle: crate::uapi::MAX_OPERATIONS_PER_CYCLE,
            inference_fingerprint: 0,
            pre_post_fingerprint: 0,
            columns,
            start_columns: vec![0],
            pdis: vec![PdiEntry { uuid: [0; 16], image, groups: vec![group] }],
        }
    }

    /// Reads a section.
    pub fn decode(section: &[u8]) -> Result<Self> {
        let bytes = Bytes::new(Format::Partition, section);
        bytes.slice(0, HEADER)?;
        let commit = bytes.u32(COMMIT_AT)? as usize;
        let (columns, first) = array(&bytes, START_COLUMNS_AT, MAX_ELEMENTS)?;
        let start_columns = (0..columns).map(|index| bytes.u16(first + 2 * index)).collect::<Result<_>>()?;
        let (pdis, first) = array(&bytes, PDIS_AT, MAX_ELEMENTS)?;
        // Images must not share bytes, so that a small section cannot ask for much memory.
        let mut room = section.len();
        let pdis = (0..pdis)
            .map(|index| decode_pdi(&bytes, first + ENTRY * index, &mut room))
            .collect::<Result<_>>()?;
        Ok(Self {
            name: bytes.text(bytes.u32(NAME_AT)? as usize)?,
            kernel_commit: if commit == 0 { None } else { Some(bytes.text(commit)?) },
            operations_per_cycle: bytes.u32(OPERATIONS_AT)?,
            inference_fingerprint: bytes.u64(INFERENCE_AT)?,
            pre_post_fingerprint: bytes.u64(PRE_POST_AT)?,
            columns: bytes.u16(WIDTH_AT)?,
            start_columns,
            pdis,
        })
    }

    /// The bytes of the section, in the order of XRT's tools.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut section = Section(vec![0; HEADER]);
        section.set(OPERATIONS_AT, &self.operations_per_cycle.to_le_bytes());
        section.set(INFERENCE_AT, &self.inference_fingerprint.to_le_bytes());
        section.set(PRE_POST_AT, &self.pre_post_fingerprint.to_le_bytes());
        section.set(WIDTH_AT, &self.columns.to_le_bytes());

        let name = section.text(&self.name)?;
        section.set(NAME_AT, &name.to_le_bytes());
        if let Some(commit) = &self.kernel_commit {
            let commit = section.text(commit)?;
            section.set(COMMIT_AT, &commit.to_le_bytes());
        }
        let columns: Vec<u8> = self.start_columns.iter().flat_map(|column| column.to_le_bytes()).collect();
        let columns = section.reference(self.start_columns.len(), &columns)?;
        section.set(START_COLUMNS_AT, &columns);

        let mut entries = Vec::new();
        for pdi in &self.pdis {
            entries.extend_from_slice(&pdi.uuid);
            entries.extend_from_slice(&section.reference(pdi.image.len(), &pdi.image)?);
            let mut groups = Vec::new();
            for group in &pdi.groups {
                groups.extend_from_slice(&section.text(&group.name)?.to_le_bytes());
                groups.extend_from_slice(&u32::from(group.kind).to_le_bytes());
                groups.extend_from_slice(&group.pdi_id.to_le_bytes());
                let kernels: Vec<u8> = group.kernel_ids.iter().flat_map(|id| id.to_le_bytes()).collect();
                groups.extend_from_slice(&section.reference(group.kernel_ids.len(), &kernels)?);
                let before: Vec<u8> = group.pre_groups.iter().flat_map(|id| id.to_le_bytes()).collect();
                groups.extend_from_slice(&section.reference(group.pre_groups.len(), &before)?);
                pad_to(&mut groups, ENTRY);
            }
            entries.extend_from_slice(&section.reference(pdi.groups.len(), &groups)?);
            pad_to(&mut entries, ENTRY);
        }
        let pdis = section.reference(self.pdis.len(), &entries)?;
        section.set(PDIS_AT, &pdis);
        Ok(section.0)
    }
}

fn decode_pdi(bytes: &Bytes<'_>, at: usize, room: &mut usize) -> Result<PdiEntry> {
    let (size, offset) = array(bytes, at + 16, bytes.len())?;
    let image = bytes.slice(offset, size)?.to_vec();
    let overlap = || Error::malformed(Format::Partition, at, "images overlap");
    *room = room.checked_sub(size).ok_or_else(overlap)?;
    let (groups, first) = array(bytes, at + 24, MAX_ELEMENTS)?;
    *room = room.checked_sub(groups * ENTRY).ok_or_else(overlap)?;
    let groups =
        (0..groups).map(|index| decode_group(bytes, first + ENTRY * index, room)).collect::<Result<_>>()?;
    Ok(PdiEntry { uuid: bytes.array(at)?, image, groups })
}

fn decode_group(bytes: &Bytes<'_>, at: usize, room: &mut usize) -> Result<CdoGroup> {
    let (kernels, first_kernel) = array(bytes, at + 16, MAX_ELEMENTS)?;
    let (before, first_before) = array(bytes, at + 24, MAX_ELEMENTS)?;
    let name = bytes.text(bytes.u32(at)? as usize)?;
    *room = room
        .checked_sub(8 * kernels + 4 * before + name.len())
        .ok_or_else(|| Error::malformed(Format::Partition, at, "arrays overlap"))?;
    Ok(CdoGroup {
        name,
        kind: bytes.u8(at + 4)?,
        pdi_id: bytes.u64(at + 8)?,
        kernel_ids: (0..kernels).map(|index| bytes.u64(first_kernel + 8 * index)).collect::<Result<_>>()?,
        pre_groups: (0..before).map(|index| bytes.u32(first_before + 4 * index)).collect::<Result<_>>()?,
    })
}

/// A section in the making.
struct Section(Vec<u8>);

impl Section {
    fn set(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Appends `bytes` and returns their offset.
    fn append(&mut self, bytes: &[u8]) -> Result<u32> {
        let offset = self.0.len();
        let end = offset.checked_add(bytes.len()).filter(|&end| u32::try_from(end).is_ok());
        if end.is_none() {
            return Err(Error::malformed(Format::Partition, offset, "a section of more than 4 GiB"));
        }
        self.0.extend_from_slice(bytes);
        pad_to(&mut self.0, ALIGN);
        Ok(offset as u32)
    }

    fn text(&mut self, text: &str) -> Result<u32> {
        if text.bytes().any(|byte| byte == 0) {
            return Err(Error::malformed(Format::Partition, self.0.len(), "a name with a zero in it"));
        }
        let mut bytes = text.as_bytes().to_vec();
        bytes.push(0);
        self.append(&bytes)
    }

    /// Appends an array and returns its reference.
    fn reference(&mut self, count: usize, bytes: &[u8]) -> Result<[u8; 8]> {
        let offset = self.append(bytes)?;
        let mut reference = [0; 8];
        // An array is never shorter than its number of elements, so the count fits as well.
        reference[..4].copy_from_slice(&(count as u32).to_le_bytes());
        reference[4..].copy_from_slice(&offset.to_le_bytes());
        Ok(reference)
    }
}
