//! The last readings, for the plots.

use std::collections::VecDeque;

use super::source::Reading;

/// Number of readings kept: the width of the widest plot.
const LENGTH: usize = 240;

/// Values over time, newest last; `None` where a reading did not have them.
#[derive(Default)]
pub struct Series(VecDeque<Option<f64>>);

impl Series {
    fn push(&mut self, value: Option<f64>) {
        self.0.push_back(value);
        if self.0.len() > LENGTH {
            self.0.pop_front();
        }
    }

    /// A plot of the last `width` values in one line of text, from zero to `max`, or to the largest value.
    pub fn plot(&self, width: usize, max: Option<f64>) -> String {
        const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let shown: Vec<Option<f64>> = self.0.iter().rev().take(width).rev().copied().collect();
        let largest = shown.iter().flatten().copied().fold(0.0, f64::max);
        let max = max.unwrap_or(largest).max(f64::MIN_POSITIVE);
        let level = |value: Option<f64>| match value {
            None => ' ',
            Some(value) => {
                let level = (value / max * (LEVELS.len() - 1) as f64).round() as usize;
                LEVELS[level.min(LEVELS.len() - 1)]
            }
        };
        let padding = " ".repeat(width - shown.len());
        padding.chars().chain(shown.into_iter().map(level)).collect()
    }
}

/// What is plotted.
#[derive(Default)]
pub struct History {
    pub generated: Series,
    pub prompt: Series,
    pub gpu_busy: Series,
    pub power: Series,
}

impl History {
    /// Adds a reading.
    pub fn push(&mut self, reading: &Reading) {
        let tokens = reading.server.as_ref().map(|server| server.tokens);
        let gpu = reading.machine.as_ref().and_then(|machine| machine.gpus.first());
        self.generated.push(tokens.and_then(|tokens| tokens.generated_per_second));
        self.prompt.push(tokens.and_then(|tokens| tokens.prompt_per_second));
        self.gpu_busy.push(gpu.and_then(|gpu| gpu.busy));
        self.power.push(gpu.and_then(|gpu| gpu.power_watts));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plots_show_the_newest_values_at_the_right() {
        let mut series = Series::default();
        assert_eq!(series.plot(3, None), "   ");
        for value in [Some(0.0), None, Some(1.0), Some(2.0)] {
            series.push(value);
        }
        assert_eq!(series.plot(6, None), "  ▁ ▅█");
        assert_eq!(series.plot(2, Some(4.0)), "▃▅");
        (0..1000).for_each(|_| series.push(Some(1.0)));
        assert_eq!(series.0.len(), LENGTH);
    }
}
