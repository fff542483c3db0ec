//! Energy of the GPU that a command works on.

use gpu::AdapterInfo;
use telemetry::{EnergyMark, EnergyMeter, PendingMark, Sampler, SamplerOptions, System};

/// Samples the machine and this GPU. Other GPUs are left alone: sampling could keep them awake.
pub fn sample(device: &AdapterInfo) -> (Option<Sampler>, Option<EnergyMeter>) {
    let pci = device.pci_address.clone();
    let options = SamplerOptions {
        gpus: Some(pci.clone().into_iter().collect()),
        names: pci.clone().map(|pci| (pci, device.name.clone())).into_iter().collect(),
        ..SamplerOptions::default()
    };
    let sampler = Sampler::start(&System::new(), options)
        .inspect_err(|error| tracing::warn!("the machine cannot be sampled: {error}"))
        .ok();
    let energy = sampler.as_ref().zip(pci).map(|(sampler, pci)| sampler.energy_meter(&pci));
    (sampler, energy)
}

/// Measures the power of one GPU while it works.
pub struct PowerProbe {
    meter: Option<EnergyMeter>,
    /// Its thread reads the GPU.
    _sampler: Option<Sampler>,
}

/// The readings of the GPU within some work: the first after it began and the last before it ended.
#[derive(Default)]
pub struct PowerInterval {
    first: Option<PendingMark>,
    last: Option<EnergyMark>,
}

impl PowerProbe {
    /// Starts to read the GPU.
    pub fn start(device: &AdapterInfo) -> Self {
        // A CPU driver has no GPU to read.
        let (_sampler, meter) = match device.pci_address {
            Some(_) => sample(device),
            None => (None, None),
        };
        Self { meter, _sampler }
    }

    /// Work begins.
    pub fn begin(&self) -> PowerInterval {
        PowerInterval { first: self.meter.as_ref().map(EnergyMeter::next_mark), last: None }
    }

    /// Work ends.
    pub fn end(&self, interval: &mut PowerInterval) {
        interval.last = self.meter.as_ref().and_then(EnergyMeter::mark);
    }

    /// What power is computed from, for instance `nvml counter`.
    pub fn source(&self) -> Option<&'static str> {
        self.meter.as_ref()?.source()
    }
}

/// Mean power in watts over intervals; `None` if none of them was long enough to measure.
pub fn mean_watts<'a>(intervals: impl IntoIterator<Item = &'a PowerInterval>) -> Option<f64> {
    let energy = |interval: &PowerInterval| interval.first.as_ref()?.get()?.until(interval.last.as_ref()?);
    let measured = intervals.into_iter().filter_map(energy);
    let (joules, seconds) = measured.fold((0.0, 0.0), |sum, part| (sum.0 + part.0, sum.1 + part.1));
    (seconds > 0.0).then(|| joules / seconds)
}
