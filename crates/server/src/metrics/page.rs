//! Prometheus' text format.

use std::fmt::{Display, Write};

use engine::Histogram;

/// Builder of the text format.
pub(super) struct Page {
    pub(super) text: String,
    /// What every name starts with.
    prefix: &'static str,
}

impl Page {
    pub(super) fn new(prefix: &'static str) -> Page {
        Page { text: String::new(), prefix }
    }

    pub(super) fn describe(&mut self, name: &str, help: &str, kind: &str) {
        let prefix = self.prefix;
        writeln!(self.text, "# HELP {prefix}{name} {help}.\n# TYPE {prefix}{name} {kind}")
            .expect("writing to a String does not fail");
    }

    /// A sample of a metric that was described; `labels` is empty or in braces.
    pub(super) fn sample(&mut self, name: &str, labels: &str, value: &dyn Display) {
        writeln!(self.text, "{}{name}{labels} {value}", self.prefix)
            .expect("writing to a String does not fail");
    }

    pub(super) fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.describe(name, help, "gauge");
        self.sample(name, "", &value);
    }

    pub(super) fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.describe(name, help, "counter");
        self.sample(name, "", &value);
    }

    pub(super) fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.describe(name, help, "histogram");
        self.histogram_samples(name, "", histogram);
    }

    /// The samples of a histogram that was described. `label` is empty, or `NAME="VALUE"`.
    pub(super) fn histogram_samples(&mut self, name: &str, label: &str, histogram: &Histogram) {
        let bucket = format!("{name}_bucket");
        let separator = if label.is_empty() { "" } else { "," };
        for (bound, count) in histogram.buckets() {
            let bound = bound.as_secs_f64();
            self.sample(&bucket, &format!("{{{label}{separator}le=\"{bound}\"}}"), &count);
        }
        self.sample(&bucket, &format!("{{{label}{separator}le=\"+Inf\"}}"), &histogram.count());
        let labels = if label.is_empty() { String::new() } else { format!("{{{label}}}") };
        self.sample(&format!("{name}_sum"), &labels, &histogram.sum().as_secs_f64());
        self.sample(&format!("{name}_count"), &labels, &histogram.count());
    }
}
