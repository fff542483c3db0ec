//! Programmable device images with one CDO.
//!
//! | offset | size | |
//! |---|---|---|
//! | 0x000 | 16 | width pattern |
//! | 0x010 | 128 | table of images |
//! | 0x090 | 64 | the image: name, id |
//! | 0x0d0 | 128 | its partition: lengths and offset of the data in words |
//! | 0x150 | | the CDO, padded to 16 bytes |
//!
//! The last word of each header is the complement of the sum of the others.

use super::Cdo;
use crate::bytes::{Bytes, pad_to, put_words};
use crate::error::{Error, Format, Result};

const WIDTH_PATTERN: [u32; 4] = [0x0000_00dd, 0x1122_3344, 0x5566_7788, 0x99aa_bbcc];
const TABLE_AT: usize = 0x10;
const IMAGE_AT: usize = 0x90;
const PARTITION_AT: usize = 0xd0;
const DATA_AT: usize = 0x150;
const ALIGN: usize = 16;

const VERSION: u32 = 0x0004_0000;
/// "IDPP", a marker in the table of images.
const MARKER: u32 = 0x5050_4449;

/// An image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pdi {
    table: [u32; 32],
    image: [u32; 16],
    partition: [u32; 32],
    /// Its register writes.
    pub cdo: Cdo,
}

/// The complement of the sum of all words but the last.
fn checksum(words: &[u32]) -> u32 {
    let words = words.split_last().map_or(&[][..], |(_, words)| words);
    !words.iter().fold(0, |sum: u32, &word| sum.wrapping_add(word))
}

impl Pdi {
    /// An image with `cdo`.
    pub fn new(cdo: Cdo) -> Self {
        let mut table = [0; 32];
        let fields = [VERSION, 1, (IMAGE_AT / 4) as u32, 1, (PARTITION_AT / 4) as u32, 0, 0x14ca_8093];
        table[..fields.len()].copy_from_slice(&fields);
        // Marker; version and size of what follows, as the tools write them.
        table[10..13].copy_from_slice(&[MARKER, 0x0020_1020, 0x30]);
        table[17] = 1;
        let mut image = [0; 16];
        image[..2].copy_from_slice(&[(PARTITION_AT / 4) as u32, 1]);
        // "aie_image"
        image[4..7].copy_from_slice(&[0x5f65_6961, 0x6761_6d69, 0x65]);
        image[8] = 0x1c00_0000;
        let mut partition = [0; 32];
        partition[6] = u32::MAX;
        partition[7] = u32::MAX;
        partition[8] = (DATA_AT / 4) as u32;
        partition[9] = 0x0200_0006;
        partition[10] = 1;
        Self { table, image, partition, cdo }
    }

    /// Reads an image.
    pub fn decode(data: &[u8]) -> Result<Self> {
        let bytes = Bytes::new(Format::Pdi, data);
        if bytes.words(0, 4)? != WIDTH_PATTERN {
            return Err(Error::malformed(Format::Pdi, 0, "the width pattern is missing"));
        }
        let table = header::<32>(&bytes, TABLE_AT)?;
        let image = header::<16>(&bytes, IMAGE_AT)?;
        let partition = header::<32>(&bytes, PARTITION_AT)?;
        let places = [table[2], table[4], partition[8]].map(|words| words as usize * 4);
        if [table[1], table[3]] != [1, 1] || places != [IMAGE_AT, PARTITION_AT, DATA_AT] {
            return Err(Error::unsupported(Format::Pdi, "a PDI with more than one image or partition"));
        }
        let cdo = Cdo::decode(bytes.slice(DATA_AT, (partition[1] as usize).saturating_mul(4))?)?;
        let mut pdi = Self { table, image, partition, cdo };
        // Lengths and checksums are those of the CDO that is encoded.
        pdi.partition[..3].fill(0);
        (pdi.table[31], pdi.image[15], pdi.partition[31]) = (0, 0, 0);
        // This also checks the lengths and the padding of `data`.
        if pdi.encode()? != data {
            return Err(Error::malformed(Format::Pdi, PARTITION_AT, "lengths that do not fit the CDO"));
        }
        Ok(pdi)
    }

    /// The bytes of the image.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let cdo = self.cdo.encode()?;
        let words = cdo.len() / 4;
        let padded = cdo.len().next_multiple_of(ALIGN) / 4;
        let too_long = || Error::malformed(Format::Pdi, PARTITION_AT, "a CDO of more than 4 GiB");
        let (words, padded) = match (u32::try_from(words), u32::try_from(padded)) {
            (Ok(words), Ok(padded)) => (words, padded),
            _ => return Err(too_long()),
        };
        let (mut table, mut image, mut partition) = (self.table, self.image, self.partition);
        partition[..3].copy_from_slice(&[padded, words, padded]);
        table[31] = checksum(&table);
        image[15] = checksum(&image);
        partition[31] = checksum(&partition);

        let mut out = Vec::with_capacity(DATA_AT + cdo.len() + ALIGN);
        put_words(&mut out, &WIDTH_PATTERN);
        put_words(&mut out, &table);
        put_words(&mut out, &image);
        put_words(&mut out, &partition);
        out.extend_from_slice(&cdo);
        pad_to(&mut out, ALIGN);
        Ok(out)
    }
}

fn header<const N: usize>(bytes: &Bytes<'_>, at: usize) -> Result<[u32; N]> {
    let mut words = [0; N];
    words.copy_from_slice(&bytes.words(at, N)?);
    if checksum(&words) != words[N - 1] {
        return Err(Error::malformed(Format::Pdi, at, "the checksum of a header is wrong"));
    }
    Ok(words)
}
