//! The memory of this machine, as the choice of a quantisation sees it.

use checkpoint::Config;
use gpu::AdapterInfo;
use indrik::DeviceSelector;
use model::{KvScheme, Limits};
use telemetry::System;
use weights::plan::{HeapInfo, Margin, Memory};

/// Context length that a model must have room for.
pub const CONTEXT: u32 = 8192;

/// Available system memory that is left to the system where there is no GPU.
const SYSTEM_RESERVE: u64 = 512 << 20;

/// A device and its memory.
pub struct Machine {
    /// Name for messages.
    pub name: String,
    pub memory: Memory,
    adapter: Option<AdapterInfo>,
}

impl Machine {
    /// The device with this name or index, else the fastest one, else the system memory alone: a model can be
    /// pulled before a driver is installed.
    pub fn detect(device: Option<&str>) -> anyhow::Result<Self> {
        let selector = DeviceSelector { name: device, ..DeviceSelector::default() };
        match selector.adapter() {
            Ok((_instance, adapter)) => Ok(Self::new(&System::new(), adapter.info)),
            // A device that was requested explicitly must exist.
            Err(error) if device.is_some() => Err(error.into()),
            Err(_) => Ok(Self::without_gpu(&System::new())),
        }
    }

    /// A device of a machine.
    pub fn new(system: &System, adapter: AdapterInfo) -> Self {
        let memory = indrik::memory_on(system, &adapter);
        Self { name: adapter.name.clone(), memory, adapter: Some(adapter) }
    }

    fn without_gpu(system: &System) -> Self {
        let found = system.memory();
        let size = found.as_ref().map_or(0, |memory| memory.total);
        let available = found.and_then(|memory| memory.available);
        let heap = HeapInfo { size, budget: None, used: 0, device_local: true, host_visible: true };
        let memory = Memory {
            heaps: vec![heap],
            unified: true,
            max_allocation: 4 << 30,
            available: available.map(|available| available.saturating_sub(SYSTEM_RESERVE)),
            margin: Margin::default(),
            gtt: None,
        };
        Self { name: "this machine (no Vulkan device found)".to_string(), memory, adapter: None }
    }

    /// The limits of a single sequence of [`CONTEXT`] tokens, or of the model's context if that is shorter.
    pub fn limits(&self, config: &Config) -> Limits {
        let context_length = CONTEXT.min(config.max_positions);
        match &self.adapter {
            Some(adapter) => Limits::new(adapter, config, 1, context_length),
            None => Limits {
                max_sequences: 1,
                context_length,
                prefill_chunk: 64,
                page_size: 64,
                kv_scheme: KvScheme::F16,
                max_pages: None,
                prefix_cache: true,
                image_tokens: 0,
            },
        }
    }

    /// Bytes that a model may use in total.
    pub fn usable(&self) -> u64 {
        self.memory.usable()
    }
}
