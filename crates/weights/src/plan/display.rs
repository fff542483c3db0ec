//! Placements and shortfalls as text.

use std::fmt::{Display, Formatter, Result};

use super::{
    advice::{Advice, Shortfall},
    placement::{HeapUsage, Placement, Spill},
};

/// Bytes per second that a discrete GPU reads from host memory: PCIe 4.0 ×16 carries 31.5 GB/s in theory, and
/// about this much in practice.
const BUS_BANDWIDTH: f64 = 25e9;

/// A number of bytes in binary units.
struct Size(u64);

impl Display for Size {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let text = match self.0 {
            0 => "–".to_string(),
            bytes if bytes >= 1 << 30 => format!("{:.2} GiB", bytes as f64 / (1_u64 << 30) as f64),
            bytes if bytes >= 1 << 20 => format!("{:.1} MiB", bytes as f64 / (1_u64 << 20) as f64),
            bytes => format!("{:.1} KiB", bytes as f64 / 1024.0),
        };
        f.pad(&text)
    }
}

impl Display for Placement {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        writeln!(
            f,
            "{:>4}  {:<12} {:>11} {:>11} {:>11} {:>11} {:>11} {:>6}",
            "heap", "memory", "size", "usable", "weights", "kv", "scratch", "blocks"
        )?;
        for (index, heap) in self.heaps.iter().enumerate() {
            let memory = if heap.heap.device_local { "device-local" } else { "host" };
            row(f, &index.to_string(), memory, heap)?;
        }
        if let Some(spill) = &self.spill {
            writeln!(f, "{spill}")?;
        }
        Ok(())
    }
}

fn row(f: &mut Formatter<'_>, index: &str, memory: &str, heap: &HeapUsage) -> Result {
    let [size, usable, weights, kv, scratch] =
        [heap.heap.size, heap.usable, heap.weights, heap.kv, heap.scratch].map(Size);
    let blocks = heap.blocks;
    writeln!(
        f,
        "{index:>4}  {memory:<12} {size:>11} {usable:>11} {weights:>11} {kv:>11} {scratch:>11} {blocks:>6}"
    )
}

impl Display for Spill {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(
            f,
            "warning: {} do not fit into the GPU's memory and stay in host memory; each token reads {} of them across the \
             bus, which takes about {:.0} ms at {:.0} GB/s. A smaller scheme or a shorter context avoids this.",
            Size(self.bytes),
            Size(self.bytes_per_token),
            self.bytes_per_token as f64 / BUS_BANDWIDTH * 1e3,
            BUS_BANDWIDTH / 1e9,
        )
    }
}

impl Display for Shortfall {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(
            f,
            "does not fit: {} short ({} needed, {} usable). ",
            Size(self.bytes),
            Size(self.needed),
            Size(self.usable)
        )?;
        if self.advice.is_empty() {
            return write!(f, "Use a smaller model, or a device with more memory.");
        }
        write!(f, "Any of these makes it fit:")?;
        for advice in &self.advice {
            write!(f, "\n  - ")?;
            match advice {
                Advice::Scheme { scheme, weights, context_length } => {
                    write!(f, "weights in {scheme} (indrik quantize --quant {scheme}), {}", Size(*weights))?;
                    if *context_length < self.context_length {
                        write!(f, ", with a context of {context_length} instead of {}", self.context_length)?;
                    }
                }
                Advice::Context { context_length } => {
                    write!(f, "a context of {context_length} instead of {}", self.context_length)?;
                }
                Advice::FreeMemory { bytes } => {
                    write!(f, "closing other programs, to free {} of system memory", Size(*bytes))?;
                }
                Advice::PagesLimit { pages, gtt } => {
                    write!(
                        f,
                        "the kernel parameter ttm.pages_limit={pages} and a restart, for {} of GTT",
                        Size(*gtt)
                    )?;
                }
            }
        }
        Ok(())
    }
}
