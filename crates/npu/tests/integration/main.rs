//! The tests of this crate's API in one binary, which is built faster than one for each file.
//!
//! Tests with public overlays run if INDRIK_TEST_DATA names a folder with `npu/`. Those with the overlay in
//! `small_overlay.rs`, which our own writer makes, always run.

mod amd;
mod array;
mod files;
mod gemm;
mod hostile;
mod int8;
mod interpreter;
mod matmul;
mod mutation;
mod runtime;
mod small_overlay;

use std::path::Path;

use npu::array::{Array, HostMemory};
use npu::gemm::{GemmPlan, Overlay};
use npu::txn::Stream;
use npu::xclbin::{Cdo, Xclbin};

/// A file of the test data; `None`, with a message, if there is none.
fn data(name: &str) -> Option<Vec<u8>> {
    let path = std::env::var_os("INDRIK_TEST_DATA").map(|folder| Path::new(&folder).join("npu").join(name));
    let data = path.and_then(|path| std::fs::read(path).ok());
    if data.is_none() {
        println!("not tested with {name}: INDRIK_TEST_DATA does not name a folder that has npu/{name}");
    }
    data
}

/// The CDO of an overlay's file.
fn cdo(file: &[u8]) -> Cdo {
    let partition =
        Xclbin::decode(file).and_then(|xclbin| xclbin.partition()).expect("an xclbin with a partition");
    partition.pdis[0].pdi().expect("a PDI").cdo
}

/// A random number generator for tests: the same numbers everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn below(&mut self, bound: usize) -> usize {
        self.next() as usize % bound
    }

    /// Small enough that sums do not wrap.
    fn matrix(&mut self, len: usize) -> Vec<i16> {
        (0..len).map(|_| (self.next() % 2001) as i16 - 1000).collect()
    }
}

/// The product on the CPU.
fn reference(a: &[i16], b: &[i16], k: usize, n: usize) -> Vec<i32> {
    let mut c = Vec::new();
    for row in a.chunks_exact(k) {
        let mut sums = vec![0i32; n];
        for (&a, row_b) in row.iter().zip(b.chunks_exact(n)) {
            for (sum, &b) in sums.iter_mut().zip(row_b) {
                *sum += i32::from(a) * i32::from(b);
            }
        }
        c.extend(sums);
    }
    c
}

/// Runs a stream for the planned product on a configured array.
fn product(
    array: &mut Array,
    stream: &Stream,
    plan: &GemmPlan,
    a: &[i16],
    b: &[i16],
) -> npu::Result<Vec<i32>> {
    // Results that are not written must not be right by chance.
    let c = vec![0xa5; plan.c_bytes()];
    let mut host = HostMemory::from_arguments(vec![plan.pack_a(a)?, plan.pack_b(b)?, c]);
    array.run(stream, &mut host)?;
    plan.unpack_c(host.argument(2).expect("three arguments"))
}

/// An array with the configuration of an overlay.
fn load(overlay: &Overlay, cdo: &Cdo) -> npu::Result<Array> {
    Ok(Array::load(overlay.columns, cdo, overlay.library())?)
}
