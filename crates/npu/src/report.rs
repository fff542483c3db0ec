//! Which operations use the NPU, and why: for logs, `/health` and metrics.
//!
//! An operation is registered when its model is loaded, and removed when the model is unloaded. Clones of a [`Report`]
//! share its contents.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::matmul::Decision;

/// Decision and counters of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperationState {
    /// The operation and its model, such as `embeddings of all-minilm`.
    pub name: String,
    /// Where its products are computed now, and why.
    pub decision: Decision,
    /// Products that the NPU computed, also in batches that did not end there and were repeated by the GPU.
    pub products: u64,
    /// Fallbacks to the GPU: after an error, or since the NPU did not take a product.
    pub fallbacks: u64,
    /// System memory of the copy of its weights for the NPU.
    pub weight_bytes: u64,
}

impl OperationState {
    /// Replaces the decision. What does not use the NPU keeps no weights for it.
    fn decide(&mut self, decision: &Decision) {
        self.decision = decision.clone();
        if !decision.uses_npu {
            self.weight_bytes = 0;
        }
    }
}

/// All operations that may use the NPU.
#[derive(Debug, Clone, Default)]
pub struct Report(Arc<Mutex<Operations>>);

#[derive(Debug, Default)]
struct Operations {
    next: u64,
    present: Vec<(u64, OperationState)>,
    /// Products and fallbacks of removed operations.
    past: (u64, u64),
}

impl Report {
    /// Registers an operation.
    pub fn register(&self, name: impl Into<String>, decision: &Decision) -> Operation {
        let mut operations = self.lock();
        let number = operations.next;
        operations.next += 1;
        let state = OperationState {
            name: name.into(),
            decision: decision.clone(),
            products: 0,
            fallbacks: 0,
            weight_bytes: 0,
        };
        operations.present.push((number, state));
        drop(operations);
        Operation { report: self.clone(), number }
    }

    /// The operations of loaded models.
    pub fn operations(&self) -> Vec<OperationState> {
        self.lock().present.iter().map(|(_, state)| state.clone()).collect()
    }

    /// Whether the NPU is used, by name: two loads of one model are one operation, which uses it if either does.
    pub fn uses_by_name(&self) -> BTreeMap<String, bool> {
        let mut uses = BTreeMap::new();
        for (_, state) in &self.lock().present {
            *uses.entry(state.name.clone()).or_default() |= state.decision.uses_npu;
        }
        uses
    }

    /// Products that the NPU computed and fallbacks to the GPU, of all operations since the start.
    pub fn totals(&self) -> (u64, u64) {
        let operations = self.lock();
        operations.present.iter().fold(operations.past, |(products, fallbacks), (_, state)| {
            (products + state.products, fallbacks + state.fallbacks)
        })
    }

    /// System memory of all copies of weights for the NPU.
    pub fn weight_bytes(&self) -> u64 {
        self.lock().present.iter().map(|(_, state)| state.weight_bytes).sum()
    }

    fn lock(&self) -> MutexGuard<'_, Operations> {
        // A panic under the lock leaves the data consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An operation in a report, removed from it on drop.
#[derive(Debug)]
pub struct Operation {
    report: Report,
    number: u64,
}

impl Operation {
    /// Its state.
    pub fn state(&self) -> Option<OperationState> {
        self.report
            .lock()
            .present
            .iter()
            .find(|(number, _)| *number == self.number)
            .map(|(_, state)| state.clone())
    }

    /// Counts a product.
    pub fn count(&self) {
        self.change(|state| state.products += 1);
    }

    /// Replaces the decision.
    pub fn decide(&self, decision: &Decision) {
        self.change(|state| state.decide(decision));
    }

    /// Replaces the size of the copy of its weights.
    pub fn set_weight_bytes(&self, bytes: u64) {
        self.change(|state| state.weight_bytes = bytes);
    }

    /// Counts a fallback to the GPU, and replaces the decision.
    pub fn fall_back(&self, decision: &Decision) {
        self.change(|state| {
            state.decide(decision);
            state.fallbacks += 1;
        });
    }

    fn change(&self, change: impl FnOnce(&mut OperationState)) {
        let mut operations = self.report.lock();
        if let Some((_, state)) = operations.present.iter_mut().find(|(number, _)| *number == self.number) {
            change(state);
        }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        let mut operations = self.report.lock();
        if let Some(index) = operations.present.iter().position(|(number, _)| *number == self.number) {
            let (_, state) = operations.present.remove(index);
            operations.past.0 += state.products;
            operations.past.1 += state.fallbacks;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_come_and_go_and_totals_stay() {
        let report = Report::default();
        let decision = |uses_npu| Decision { uses_npu, reason: "a reason".to_owned() };
        let first = report.register("first", &decision(true));
        let second = report.register("second", &decision(false));
        first.count();
        first.count();
        second.decide(&decision(true));
        first.set_weight_bytes(7);
        second.set_weight_bytes(5);
        assert_eq!(report.weight_bytes(), 12);
        first.fall_back(&decision(false));
        assert_eq!(report.weight_bytes(), 5);
        let state = first.state().expect("present");
        assert_eq!((state.products, state.fallbacks, state.decision.uses_npu), (2, 1, false));
        let names = |report: &Report| -> Vec<(String, bool)> {
            let operations = report.operations().into_iter();
            operations.map(|state| (state.name, state.decision.uses_npu)).collect()
        };
        assert_eq!(names(&report), [("first".to_owned(), false), ("second".to_owned(), true)]);
        drop(first);
        assert_eq!(names(&report), [("second".to_owned(), true)]);
        assert_eq!((report.totals(), report.weight_bytes()), ((2, 1), 5));
    }
}
