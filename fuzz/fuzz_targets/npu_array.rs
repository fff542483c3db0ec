//! Runs an overlay's configuration and a stream on the model of an NPU's tile array: those of the tests' small overlay,
//! of which the input changes words, or arbitrary ones.
#![no_main]

#[path = "../../crates/npu/tests/integration/small_overlay.rs"]
#[allow(dead_code)]
mod small_overlay;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use npu::array::{Array, CoreLibrary, Fault, HostMemory};
use npu::gemm::GemmPlan;
use npu::tile::{Direction, TilePlace};
use npu::txn::{Op, Stream, Sync};
use npu::xclbin::Cdo;

/// Words of a CDO's header, and of a stream's.
const CDO_HEADER: usize = 5;
const STREAM_HEADER: usize = 4;
/// Rounds of the array: a few times what the small overlay's product takes.
const ROUNDS: u64 = 2000;

/// The configuration, the stream, and the arguments of a product on the small overlay.
struct Case {
    cdo: Vec<u32>,
    stream: Vec<u32>,
    library: CoreLibrary,
    host: HostMemory,
}

static CASE: LazyLock<Case> = LazyLock::new(|| {
    let overlay = small_overlay::overlay();
    let plan = GemmPlan::new(&overlay, 8, 32, 16).expect("a plan");
    let stream = plan.stream().and_then(|stream| stream.encode()).expect("a stream");
    let arguments = [8 * 32 * 2, 32 * 16 * 2, 8 * 16 * 4].map(|bytes| vec![1; bytes]);
    let case = Case {
        cdo: words(&small_overlay::cdo().encode().expect("a CDO")),
        stream: words(&stream),
        // Other programs than the overlay's are interpreted.
        library: CoreLibrary::interpreter().with(overlay.program, overlay.kernel),
        host: HostMemory::from_arguments(arguments.to_vec()),
    };
    let (cdo, stream) = decode(case.cdo.clone(), case.stream.clone()).expect("both are valid");
    run(&case, &cdo, &stream).expect("the product, within the rounds");
    case
});

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Repairs the headers; `None` if something does not decode.
fn decode(mut cdo: Vec<u32>, mut stream: Vec<u32>) -> Option<(Cdo, Stream)> {
    // Version, "CDO", format, length, checksum.
    let header = [4, 0x004f_4443, 0x200, (cdo.len() - CDO_HEADER) as u32];
    let sum = header.iter().fold(0, |sum: u32, &word| sum.wrapping_add(word));
    cdo[..CDO_HEADER - 1].copy_from_slice(&header);
    cdo[CDO_HEADER - 1] = !sum;
    stream[STREAM_HEADER - 1] = 4 * stream.len() as u32;
    Some((Cdo::decode(&bytes(&cdo)).ok()?, Stream::decode(&bytes(&stream)).ok()?))
}

/// Runs a stream. A fault is fine; a panic or a run without end is not.
fn run(case: &Case, cdo: &Cdo, stream: &Stream) -> Result<(), Fault> {
    let array = Array::load(1, cdo, case.library.clone())?;
    array.with_limit(ROUNDS).run(stream, &mut case.host.clone())
}

/// Any instructions, four words each.
fn instructions(words: &[u32]) -> Stream {
    let op = |words: &[u32]| {
        let [kind, address, value, mask] = [words[0], words[1], words[2], words[3]];
        match kind % 6 {
            0 => Op::Write { address: u64::from(address), value },
            1 => Op::BlockWrite { address, data: vec![value, mask] },
            2 => Op::MaskWrite { address: u64::from(address), value, mask },
            3 => Op::MaskPoll { address: u64::from(address), value, mask },
            4 => {
                let [column, row, channel, columns] = address.to_le_bytes();
                let direction = if value & 1 == 0 { Direction::S2mm } else { Direction::Mm2s };
                let (place, rows) = (TilePlace { column, row }, mask as u8);
                Op::Sync(Sync { place, direction, channel, columns, rows })
            }
            _ => {
                Op::Patch { address: u64::from(address), argument: u64::from(value), offset: u64::from(mask) }
            }
        }
    };
    Stream::new(1, words.chunks_exact(4).map(op).collect())
}

fuzz_target!(|bytes: &[u8]| {
    let case = &*CASE;
    let Some((&kind, bytes)) = bytes.split_first() else { return };
    let (mut cdo, mut stream) = (case.cdo.clone(), case.stream.clone());
    if kind % 4 == 0 {
        // The commands of the configuration, and then the instructions of the stream.
        let words = words(bytes);
        let (commands, rest) = words.split_at(words.len().min(16 * usize::from(kind / 4)));
        cdo.truncate(CDO_HEADER);
        cdo.extend(commands);
        let Some((cdo, _)) = decode(cdo, stream) else { return };
        let _ = run(case, &cdo, &instructions(rest));
        return;
    }
    // Places, and words to put there or to combine with what is there.
    let (commands, count) = (cdo.len() - CDO_HEADER, stream.len() - STREAM_HEADER);
    for change in bytes.chunks_exact(6) {
        let place = usize::from(u16::from_le_bytes([change[0], change[1]])) % (commands + count);
        let value = u32::from_le_bytes([change[2], change[3], change[4], change[5]]);
        let word = match place.checked_sub(commands) {
            None => &mut cdo[CDO_HEADER + place],
            Some(place) => &mut stream[STREAM_HEADER + place],
        };
        *word = if kind % 4 == 1 { value } else { *word ^ value };
    }
    let Some((cdo, stream)) = decode(cdo, stream) else { return };
    let _ = run(case, &cdo, &stream);
});
