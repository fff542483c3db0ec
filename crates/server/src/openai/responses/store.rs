//! Stored responses: in memory, the least recently used ones are evicted.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tokio::task::AbortHandle;

use super::item::Item;
use super::response::{ResponseObject, Status};
use crate::config::Config;
use crate::error::Error;

/// The API key of a request, as a digest. All zero if the server has no keys.
pub(crate) type Owner = [u8; 32];

/// A response and its input.
#[derive(Clone, Debug)]
pub(crate) struct StoredResponse {
    pub(super) response: ResponseObject,
    /// Items of earlier responses that were part of the input.
    pub(super) history: Vec<Arc<Item>>,
    /// Items of the request.
    pub(super) input: Vec<Arc<Item>>,
}

impl StoredResponse {
    /// All items of the input.
    pub(super) fn input_items(&self) -> impl DoubleEndedIterator<Item = &Arc<Item>> {
        self.history.iter().chain(&self.input)
    }

    /// Input and output: the conversation that the next response continues.
    pub(super) fn items(&self) -> impl DoubleEndedIterator<Item = &Arc<Item>> {
        self.input_items().chain(&self.response.output)
    }
}

/// Stored responses, within limits of number and size.
pub(crate) struct ResponseStore {
    max_responses: usize,
    max_bytes: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    entries: HashMap<String, Entry>,
    /// Ids by the time of the last use, which is a number.
    by_use: BTreeMap<u64, String>,
    next_use: u64,
    /// Items by id. Responses of one conversation share them.
    items: HashMap<String, SharedItem>,
    /// Bytes of all entries and items.
    bytes: usize,
}

struct Entry {
    owner: Owner,
    stored: Arc<StoredResponse>,
    /// Bytes without the items.
    bytes: usize,
    last_use: u64,
    /// The generation of a response in the background.
    task: Option<AbortHandle>,
}

struct SharedItem {
    owner: Owner,
    item: Arc<Item>,
    bytes: usize,
    /// How often responses have it.
    count: usize,
}

/// A response with its size.
struct Measured {
    stored: StoredResponse,
    /// Without the items.
    bytes: usize,
    /// Of each item, by itself: items are shared.
    item_bytes: Vec<usize>,
}

impl Measured {
    fn new(stored: StoredResponse) -> Measured {
        let item_bytes: Vec<usize> = stored.items().map(|item| item_length(item)).collect();
        let output: usize = item_bytes.iter().rev().take(stored.response.output.len()).sum();
        let pointers = size_of::<Arc<Item>>() * item_bytes.len();
        let bytes = json_length(&stored.response).saturating_sub(output) + pointers;
        Measured { stored, bytes, item_bytes }
    }
}

impl ResponseStore {
    pub(crate) fn new(config: &Config) -> ResponseStore {
        ResponseStore {
            max_responses: config.max_stored_responses,
            max_bytes: config.max_stored_response_bytes,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a response, and evicts others if it does not fit. `task` generates it, if it is in the background.
    pub(super) fn insert(&self, owner: Owner, stored: StoredResponse, task: Option<AbortHandle>) {
        // Measured without the lock.
        let measured = Measured::new(stored);
        if measured.bytes + measured.item_bytes.iter().sum::<usize>() > self.max_bytes {
            // It would evict all others, and then itself.
            task.inspect(AbortHandle::abort);
            return;
        }
        self.put(&mut self.state(), owner, measured, task);
    }

    fn put(&self, state: &mut State, owner: Owner, measured: Measured, task: Option<AbortHandle>) {
        let Measured { stored, bytes, item_bytes } = measured;
        for (item, bytes) in stored.items().zip(item_bytes) {
            state.add_item(owner, item, bytes);
        }
        let last_use = state.next_use();
        let id = stored.response.id.clone();
        state.by_use.insert(last_use, id.clone());
        state.bytes += bytes;
        let entry = Entry { owner, stored: Arc::new(stored), bytes, last_use, task };
        state.entries.insert(id, entry);
        while state.entries.len() > self.max_responses || state.bytes > self.max_bytes {
            let Some((_, oldest)) = state.by_use.first_key_value() else { break };
            let oldest = oldest.clone();
            state.remove(&oldest);
        }
    }

    /// The response with this id, if it is the owner's.
    pub(super) fn get(&self, owner: &Owner, id: &str) -> Option<Arc<StoredResponse>> {
        let mut state = self.state();
        let now = state.next_use();
        let State { entries, by_use, .. } = &mut *state;
        let entry = entries.get_mut(id).filter(|entry| entry.owner == *owner)?;
        by_use.remove(&entry.last_use);
        by_use.insert(now, id.to_owned());
        entry.last_use = now;
        Some(entry.stored.clone())
    }

    /// The item with this id, if it is the owner's.
    pub(super) fn item(&self, owner: &Owner, id: &str) -> Option<Arc<Item>> {
        let state = self.state();
        state.items.get(id).filter(|shared| shared.owner == *owner).map(|shared| shared.item.clone())
    }

    /// Deletes a response, and cancels it if it is in progress. Returns whether there was one.
    pub(super) fn delete(&self, owner: &Owner, id: &str) -> bool {
        let mut state = self.state();
        let found = state.entries.get(id).is_some_and(|entry| entry.owner == *owner);
        found.then(|| state.remove(id)).is_some()
    }

    /// Replaces a response in the background, unless it has ended. Returns whether it did.
    pub(super) fn finish(&self, owner: &Owner, response: ResponseObject) -> bool {
        let Some(stored) = self.get(owner, &response.id) else { return false };
        let StoredResponse { history, input, .. } = &*stored;
        let id = response.id.clone();
        let measured =
            Measured::new(StoredResponse { response, history: history.clone(), input: input.clone() });
        let mut state = self.state();
        // It may have ended meanwhile.
        let running = |entry: &&mut Entry| entry.stored.response.is_running();
        let Some(entry) = state.entries.get_mut(&id).filter(running) else { return false };
        let task = entry.task.take().filter(|_| measured.stored.response.is_running());
        state.remove(&id);
        self.put(&mut state, *owner, measured, task);
        true
    }

    /// Ends a response in the background with an error.
    pub(super) fn fail(&self, owner: &Owner, id: &str, error: &Error) {
        if let Some(stored) = self.get(owner, id) {
            let mut response = stored.response.clone();
            response.fail(error);
            self.finish(owner, response);
        }
    }

    /// The response, after it was cancelled if it was in progress.
    pub(super) fn cancel(&self, owner: &Owner, id: &str) -> Option<Arc<StoredResponse>> {
        let stored = self.get(owner, id)?;
        if stored.response.is_running() {
            let task = self.state().entries.get_mut(id).and_then(|entry| entry.task.take());
            let mut response = stored.response.clone();
            response.status = Status::Cancelled;
            self.finish(owner, response);
            // Drops the generation, which cancels the engine's request.
            task.inspect(AbortHandle::abort);
        }
        self.get(owner, id)
    }
}

impl State {
    fn next_use(&mut self) -> u64 {
        self.next_use += 1;
        self.next_use
    }

    fn add_item(&mut self, owner: Owner, item: &Arc<Item>, bytes: usize) {
        let shared = self.items.entry(item.id.clone()).or_insert_with(|| {
            self.bytes += bytes;
            SharedItem { owner, item: item.clone(), bytes, count: 0 }
        });
        shared.count += 1;
    }

    /// Removes a response and the items that no other one has.
    fn remove(&mut self, id: &str) {
        let Some(entry) = self.entries.remove(id) else { return };
        self.by_use.remove(&entry.last_use);
        self.bytes -= entry.bytes;
        for item in entry.stored.items() {
            if let Some(shared) = self.items.get_mut(&item.id) {
                shared.count -= 1;
                if shared.count == 0 {
                    self.bytes -= shared.bytes;
                    self.items.remove(&item.id);
                }
            }
        }
        entry.task.as_ref().inspect(|task| task.abort());
    }
}

fn item_length(item: &Item) -> usize {
    *item.json_length.get_or_init(|| json_length(item))
}

/// Length of a value as JSON.
fn json_length(value: &impl Serialize) -> usize {
    struct Counter(usize);
    impl Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut counter = Counter(0);
    serde_json::to_writer(&mut counter, value).expect("response types serialise to JSON");
    counter.0
}

#[cfg(test)]
mod tests {
    use super::super::item::{ItemKind, ItemRole, ItemStatus, Part};
    use super::super::response::Settings;
    use super::*;

    const OWNER: Owner = [1; 32];

    fn message(role: ItemRole, text: &str) -> Arc<Item> {
        let content = vec![Part::InputText { text: text.to_owned() }];
        Arc::new(Item::new(ItemStatus::Completed, ItemKind::Message { role, content }))
    }

    /// A response that continues `previous`.
    fn response(id: usize, previous: Option<&StoredResponse>, text: &str) -> StoredResponse {
        let mut response = ResponseObject::new(format!("resp_{id}"), Settings::default());
        response.status = Status::Completed;
        response.output.push(message(ItemRole::Assistant, "fine"));
        let history = previous.map(|previous| previous.items().cloned().collect()).unwrap_or_default();
        StoredResponse { response, history, input: vec![message(ItemRole::User, text)] }
    }

    fn store(max_stored_responses: usize, max_stored_response_bytes: usize) -> ResponseStore {
        ResponseStore::new(&Config { max_stored_responses, max_stored_response_bytes, ..Config::default() })
    }

    /// The bytes of all entries and items, counted anew.
    fn counted(state: &State) -> usize {
        let entries: usize = state.entries.values().map(|entry| entry.bytes).sum();
        entries + state.items.values().map(|shared| shared.bytes).sum::<usize>()
    }

    #[test]
    fn ten_thousand_responses_stay_within_the_limits() {
        let (max_responses, max_bytes) = (1000, 600 << 10);
        let store = store(max_responses, max_bytes);
        let mut previous: Option<StoredResponse> = None;
        for id in 0..10_000 {
            // Conversations of 20 responses, some of them large.
            let text = "x".repeat(if id % 97 == 0 { 20_000 } else { 100 });
            let next = response(id, previous.as_ref().filter(|_| id % 20 != 0), &text);
            store.insert(OWNER, next.clone(), None);
            let state = store.state();
            assert!(state.entries.len() <= max_responses && state.bytes <= max_bytes);
            assert_eq!(state.entries.len(), state.by_use.len());
            if id % 100 == 0 {
                assert_eq!(state.bytes, counted(&state));
            }
            previous = Some(next);
        }
        let ids: Vec<usize> = {
            let state = store.state();
            state.by_use.values().map(|id| id.strip_prefix("resp_").unwrap().parse().unwrap()).collect()
        };
        assert!(ids.len() > 100);
        assert_eq!(ids, (10_000 - ids.len()..10_000).collect::<Vec<_>>(), "the oldest were evicted");
        for id in ids {
            assert!(store.delete(&OWNER, &format!("resp_{id}")));
        }
        let state = store.state();
        assert_eq!((state.bytes, state.items.len(), state.by_use.len()), (0, 0, 0));
    }

    #[test]
    fn shared_items_count_once() {
        let store = store(100, usize::MAX);
        let first = response(0, None, &"x".repeat(10_000));
        store.insert(OWNER, first.clone(), None);
        let before = store.state().bytes;
        store.insert(OWNER, response(1, Some(&first), "y"), None);
        assert!(store.state().bytes < before + 5000);
        // What the second one still has is not freed with the first.
        assert!(store.delete(&OWNER, "resp_0"));
        assert!(store.state().bytes > 10_000);
        assert!(store.item(&OWNER, &first.input[0].id).is_some());
        assert!(store.item(&[2; 32], &first.input[0].id).is_none());
        assert!(store.delete(&OWNER, "resp_1"));
        assert_eq!(store.state().bytes, 0);
    }

    #[test]
    fn a_response_ends_once() {
        let store = store(100, usize::MAX);
        let mut running = response(0, None, "x");
        running.response.status = Status::InProgress;
        store.insert(OWNER, running.clone(), None);
        let status = |status| {
            let mut response = running.response.clone();
            response.status = status;
            response
        };
        assert!(!store.finish(&[2; 32], status(Status::Completed)), "another owner's");
        assert!(store.finish(&OWNER, status(Status::Cancelled)));
        assert!(!store.finish(&OWNER, status(Status::Completed)));
        let stored = store.cancel(&OWNER, "resp_0").expect("a response");
        assert_eq!(stored.response.status, Status::Cancelled);
        let state = store.state();
        assert_eq!(state.bytes, counted(&state));
    }
}
