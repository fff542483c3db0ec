//! Energy of steps, shared among the requests of a batch.

use std::time::Duration;

/// Reads the power of the GPU in watts; `None` if it is not known now. Called once per step: it must not block.
pub type PowerMeter = Box<dyn Fn() -> Option<f64> + Send>;

/// A sum of energies in joules. Unknown as soon as one of them is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Joules(Option<f64>);

impl Default for Joules {
    fn default() -> Self {
        Self(Some(0.0))
    }
}

impl Joules {
    /// The energy of a step that took this long.
    pub fn of_step(meter: Option<&PowerMeter>, time: Duration) -> Self {
        let watts = meter.and_then(|watts| watts()).filter(|watts| watts.is_finite() && *watts >= 0.0);
        Self(watts.map(|watts| watts * time.as_secs_f64()))
    }

    /// The part of a request with `rows` of a step's rows.
    pub fn share(self, rows: usize, of_rows: usize) -> Self {
        Self(self.0.map(|joules| joules * rows as f64 / of_rows.max(1) as f64))
    }

    pub fn add(&mut self, other: Self) {
        self.0 = self.0.zip(other.0).map(|(sum, joules)| sum + joules);
    }

    pub fn get(self) -> Option<f64> {
        self.0
    }
}

/// Energy of all steps whose power was known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepEnergy {
    /// Joules.
    pub joules: f64,
    /// Tokens that those steps generated.
    pub generation_tokens: u64,
}

impl StepEnergy {
    pub(crate) fn record(&mut self, joules: Joules, tokens: u64) {
        if let Some(joules) = joules.get() {
            self.joules += joules;
            self.generation_tokens += tokens;
        }
    }

    /// Joules per generated token, prefill included; `None` before the first one.
    pub fn joules_per_token(&self) -> Option<f64> {
        (self.generation_tokens > 0).then(|| self.joules / self.generation_tokens as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_with_an_unknown_part_is_unknown() {
        let meter: PowerMeter = Box::new(|| Some(100.0));
        let step = Joules::of_step(Some(&meter), Duration::from_millis(10));
        let mut sum = Joules::default();
        sum.add(step.share(1, 4));
        sum.add(step.share(3, 4));
        assert!((sum.get().unwrap() - 1.0).abs() < 1e-12);
        sum.add(Joules::of_step(None, Duration::from_millis(10)));
        assert_eq!(sum.get(), None);
        let broken: PowerMeter = Box::new(|| Some(f64::NAN));
        assert_eq!(Joules::of_step(Some(&broken), Duration::from_secs(1)).get(), None);
    }

    #[test]
    fn energy_per_token_counts_metered_steps_only() {
        let meter: PowerMeter = Box::new(|| Some(50.0));
        let mut energy = StepEnergy::default();
        assert_eq!(energy.joules_per_token(), None);
        energy.record(Joules::of_step(Some(&meter), Duration::from_secs(1)), 10);
        energy.record(Joules::of_step(None, Duration::from_secs(1)), 1000);
        assert_eq!(energy.joules_per_token(), Some(5.0));
    }
}
