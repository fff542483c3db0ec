//! Self-test cases: one run of a kernel, compared with its CPU reference.
//!
//! A [`Case`] runs one kernel once, at one size, on random data, and compares every output with the reference. Outputs are
//! poisoned before the run and followed by a guard, which exposes values that were not written and writes past the end.

use std::time::Duration;

use gpu::{Arena, Buffer, Device, Lifetime, Memory, Result, Tier};

/// One comparison of a kernel with its reference.
pub struct Case {
    /// Sizes and variant, in a few words.
    pub name: String,
    /// The tier it runs at.
    pub tier: Tier,
    run: Run,
}

type Run = Box<dyn Fn(&Device) -> Result<Comparison> + Send + Sync>;

impl Case {
    /// A case that runs and compares with `run`.
    pub fn new(
        name: String,
        tier: Tier,
        run: impl Fn(&Device) -> Result<Comparison> + Send + Sync + 'static,
    ) -> Self {
        Self { name, tier, run: Box::new(run) }
    }

    /// Runs the case.
    pub fn run(&self, device: &Device) -> Result<Comparison> {
        (self.run)(device)
    }
}

/// The result of comparing a kernel's outputs with the reference.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// The largest error, as a fraction of the allowance; up to 1 passes.
    pub worst_error: f64,
    /// Outputs compared.
    pub compared: usize,
    /// Description of the first mismatch.
    pub first_mismatch: Option<String>,
}

impl Comparison {
    /// Compares an output that may differ by `allowed`.
    pub fn close(&mut self, what: impl FnOnce() -> String, got: f64, want: f64, allowed: f64) {
        self.compared += 1;
        let error = (got - want).abs();
        // NaN must not pass.
        let ratio = match error {
            0.0 => 0.0,
            _ if error.is_nan() => f64::INFINITY,
            _ => error / allowed,
        };
        if ratio > 1.0 && self.first_mismatch.is_none() {
            self.first_mismatch = Some(format!("{} is {got}, expected {want} ± {allowed:.3e}", what()));
        }
        self.worst_error = self.worst_error.max(ratio);
    }

    /// The same, except that the output must be NaN where the expected value or its allowance is.
    pub fn close_or_nan(&mut self, what: impl FnOnce() -> String, got: f64, want: f64, allowed: f64) {
        if want.is_nan() || allowed.is_nan() {
            self.equal(|| format!("whether {} is NaN", what()), &got.is_nan(), &true);
        } else {
            self.close(what, got, want, allowed);
        }
    }

    /// Compares an output that must be equal.
    pub fn equal<T: PartialEq + std::fmt::Debug>(
        &mut self,
        what: impl FnOnce() -> String,
        got: &T,
        want: &T,
    ) {
        self.compared += 1;
        if got != want {
            self.worst_error = f64::INFINITY;
            if self.first_mismatch.is_none() {
                self.first_mismatch = Some(format!("{} is {got:?}, expected {want:?}", what()));
            }
        }
    }

    /// Whether all outputs match, and at least one was compared.
    pub fn passed(&self) -> bool {
        self.first_mismatch.is_none() && self.compared > 0
    }
}

/// Timeout per case: Mesa's CPU driver is slow, a hung GPU slower.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Host-visible memory for the inputs and outputs of a case.
pub fn arena(device: &Device) -> Arena {
    Arena::new(device, Lifetime::Scratch, Memory::Shared).with_block_size(1 << 20)
}

/// The content of a buffer of which a case reads much: from a copy in memory that the CPU reads fast. The kernel's own
/// buffer stays where the GPU reads fast.
pub(crate) fn read_back<T: bytemuck::Pod>(device: &Device, buffer: &Buffer) -> Result<Vec<T>> {
    let copy = arena(device).in_memory(Memory::Readback).buffer("copy", buffer.view().len())?;
    let mut recorder = device.recorder()?;
    recorder.copy("read back", buffer.view(), copy.view())?;
    recorder.seal()?.run(TIMEOUT)?;
    copy.read_vec()
}

/// Outputs below this size take less time to read from memory that the CPU does not cache than to allocate elsewhere.
const MIN_READBACK_WORDS: usize = 4096;
/// Words after an output that must stay unchanged.
const GUARD: usize = 64;
/// A recognisable bit pattern; a NaN as f32.
pub(crate) const POISON: u32 = 0x7fa5_5a5a;

/// An output buffer of 32-bit words: poisoned, and followed by a guard.
pub struct Output {
    /// The buffer to pass to the kernel.
    pub buffer: Buffer,
    words: usize,
}

impl Output {
    /// Room for `words` words. Large outputs are in memory that the CPU reads fast.
    pub fn new(arena: &mut Arena, words: usize) -> Result<Self> {
        match words >= MIN_READBACK_WORDS {
            true => Self::with_atomics(&mut arena.in_memory(Memory::Readback), words),
            false => Self::with_atomics(arena, words),
        }
    }

    /// The same in the arena's own memory, of whatever size: GPUs may lack atomics elsewhere.
    pub fn with_atomics(arena: &mut Arena, words: usize) -> Result<Self> {
        Ok(Self { buffer: arena.buffer_from("output", &vec![POISON; words + GUARD])?, words })
    }

    /// Wraps the buffer of an output that was passed on inside another type.
    pub fn from_buffer(buffer: Buffer, words: usize) -> Self {
        Self { buffer, words }
    }

    /// The words, once the kernel has finished; also checks the guard.
    pub fn read(&self, comparison: &mut Comparison) -> Result<Vec<u32>> {
        let mut words: Vec<u32> = self.buffer.read_vec()?;
        let guard = words.split_off(self.words);
        comparison.equal(|| "the guard after the output".into(), &guard, &vec![POISON; GUARD]);
        Ok(words)
    }

    /// The words as floats.
    pub fn read_f32(&self, comparison: &mut Comparison) -> Result<Vec<f32>> {
        Ok(self.read(comparison)?.into_iter().map(f32::from_bits).collect())
    }
}

/// Deterministic pseudo-random numbers (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts from a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform between −1 and 1.
    pub fn signed(&mut self) -> f32 {
        ((self.bits() >> 40) as f32 / (1 << 23) as f32) - 1.0
    }

    /// Uniform from `low` to `high`, inclusive.
    pub fn integer(&mut self, low: i64, high: i64) -> i64 {
        low + (self.bits() % (high - low + 1) as u64) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_detect_wrong_values() {
        let passes = |got: f64, want: f64| {
            let mut comparison = Comparison::default();
            comparison.close(|| "x".into(), got, want, 0.01);
            comparison.passed()
        };
        assert!(passes(1.0, 1.009));
        assert!(!passes(1.0, 1.02));
        assert!(!passes(f64::NAN, 1.0));
        assert!(!passes(1.0, f64::NAN));
        assert!(!passes(f64::INFINITY, 1.0));
        assert!(!Comparison::default().passed(), "an empty comparison must not pass");
    }
}
