//! A subscriber of KV events that shares no code with the publisher: ZMTP 3.0 and 3.1 and MessagePack by the
//! specifications, and the tree that the events describe.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// Timeout of reads; generous for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Sequence number of the end of a replay.
pub const END: u64 = u64::MAX;

/// A connection whose handshake is complete.
pub struct Connection {
    pub stream: TcpStream,
    /// Frames that came before the answer to a ping.
    early: VecDeque<(u8, Vec<u8>)>,
}

impl Connection {
    /// Connects as a socket of this type, with version 3.`minor`.
    pub fn open(address: SocketAddr, socket_type: &str, minor: u8) -> Connection {
        let mut connection = Connection::greet(address, minor);
        connection.command(
            &[
                b"\x05READY\x0bSocket-Type",
                &(socket_type.len() as u32).to_be_bytes()[..],
                socket_type.as_bytes(),
            ]
            .concat(),
        );
        let (flags, body) = connection.frame().expect("the answer to READY");
        assert!(flags == 4 && body.starts_with(b"\x05READY"), "{flags} {body:?}");
        connection
    }

    /// Exchanges greetings.
    pub fn greet(address: SocketAddr, minor: u8) -> Connection {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_nodelay(true).unwrap();
        // As libzmq does: its signature, then the rest.
        stream.write_all(b"\xff\0\0\0\0\0\0\0\x01\x7f").unwrap();
        let mut greeting = [0; 64];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(greeting[..16], *b"\xff\0\0\0\0\0\0\0\0\x7f\x03\x01NULL");
        let mut rest = vec![3, minor];
        rest.extend(b"NULL");
        rest.resize(54, 0);
        stream.write_all(&rest).unwrap();
        Connection { stream, early: VecDeque::new() }
    }

    pub fn send(&mut self, flags: u8, body: &[u8]) {
        let mut bytes = vec![flags, body.len() as u8];
        assert!(body.len() < 256);
        bytes.extend(body);
        self.stream.write_all(&bytes).unwrap();
    }

    pub fn command(&mut self, body: &[u8]) {
        self.send(4, body);
    }

    pub fn message(&mut self, frames: &[&[u8]]) {
        for (index, frame) in frames.iter().enumerate() {
            self.send(u8::from(index + 1 < frames.len()), frame);
        }
    }

    /// Waits until the other side has understood everything that was sent so far.
    pub fn synchronize(&mut self) {
        self.command(b"\x04PING\0\0sync");
        let mut early = VecDeque::new();
        loop {
            match self.frame().expect("the answer to a ping") {
                (4, body) => break assert_eq!(body, b"\x04PONGsync"),
                frame => early.push_back(frame),
            }
        }
        self.early = early;
    }

    /// The next frame; `None` once the connection is closed.
    pub fn frame(&mut self) -> Option<(u8, Vec<u8>)> {
        if let Some(frame) = self.early.pop_front() {
            return Some(frame);
        }
        let flags = self.read(1)?[0];
        let length = match flags & 2 {
            0 => u64::from(self.read(1)?[0]),
            _ => u64::from_be_bytes(self.read(8)?.try_into().unwrap()),
        };
        Some((flags & !2, self.read(length as usize)?))
    }

    fn read(&mut self, length: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; length];
        match self.stream.read_exact(&mut bytes) {
            Ok(()) => Some(bytes),
            Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("nothing was sent for {TIMEOUT:?}"),
            Err(_) => None,
        }
    }

    /// The frames of the next message.
    pub fn next_message(&mut self) -> Option<Vec<Vec<u8>>> {
        let mut frames = vec![];
        loop {
            let (flags, body) = self.frame()?;
            assert!(flags <= 1, "a command");
            frames.push(body);
            if flags == 0 {
                return Some(frames);
            }
        }
    }

    /// The next batch: topic, sequence number and events. Frames before the last three are skipped.
    pub fn next_batch(&mut self) -> Option<(Vec<u8>, u64, Vec<u8>)> {
        let mut frames = self.next_message()?;
        let payload = frames.pop().unwrap();
        let sequence = u64::from_be_bytes(frames.pop().unwrap().try_into().unwrap());
        Some((frames.pop().unwrap(), sequence, payload))
    }
}

/// Subscribes to all topics with this prefix, and waits until that is in force.
pub fn subscribe(address: SocketAddr, topic: &[u8], minor: u8) -> Connection {
    let mut connection = Connection::open(address, "SUB", minor);
    match minor {
        0 => connection.message(&[&[&[1], topic].concat()]),
        _ => connection.command(&[b"\x09SUBSCRIBE", topic].concat()),
    }
    connection.synchronize();
    connection
}

/// All batches from a sequence number on: the topic, the number and the payload of each.
pub fn replay(address: SocketAddr, from: u64) -> Vec<(Vec<u8>, u64, Vec<u8>)> {
    let mut connection = Connection::open(address, "DEALER", 1);
    connection.message(&[b"", &from.to_be_bytes()]);
    let mut batches = vec![];
    loop {
        let (topic, sequence, payload) = connection.next_batch().unwrap();
        if sequence == END {
            assert!(topic.is_empty() && payload.is_empty());
            return batches;
        }
        batches.push((topic, sequence, payload));
    }
}

/// A value of MessagePack.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Nil,
    Uint(u64),
    Float(f64),
    Text(String),
    Array(Vec<Value>),
    Map(BTreeMap<String, Value>),
}

impl Value {
    pub fn decode(mut bytes: &[u8]) -> Value {
        let value = Value::take(&mut bytes);
        assert!(bytes.is_empty(), "{} bytes after the value", bytes.len());
        value
    }

    fn take(bytes: &mut &[u8]) -> Value {
        let mut part = |length: usize| {
            let (part, rest) = bytes.split_at(length);
            *bytes = rest;
            part
        };
        let big_endian = |part: &[u8]| part.iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
        let head = part(1)[0];
        match head {
            0..=0x7f => Value::Uint(u64::from(head)),
            0x80..=0x8f => Value::map(usize::from(head & 15), bytes),
            0x90..=0x9f => Value::array(usize::from(head & 15), bytes),
            0xa0..=0xbf => Value::Text(String::from_utf8(part(usize::from(head & 31)).to_vec()).unwrap()),
            0xc0 => Value::Nil,
            0xcb => Value::Float(f64::from_bits(big_endian(part(8)))),
            0xcc..=0xcf => Value::Uint(big_endian(part(1 << (head - 0xcc)))),
            0xd9 => {
                let length = usize::from(part(1)[0]);
                Value::Text(String::from_utf8(part(length).to_vec()).unwrap())
            }
            0xdc | 0xdd => {
                let length = big_endian(part(2 << (head - 0xdc))) as usize;
                Value::array(length, bytes)
            }
            0xde | 0xdf => {
                let length = big_endian(part(2 << (head - 0xde))) as usize;
                Value::map(length, bytes)
            }
            _ => panic!("a value that begins with {head:#x}"),
        }
    }

    fn array(length: usize, bytes: &mut &[u8]) -> Value {
        Value::Array((0..length).map(|_| Value::take(bytes)).collect())
    }

    fn map(length: usize, bytes: &mut &[u8]) -> Value {
        let entry = |_| {
            let Value::Text(key) = Value::take(bytes) else { panic!("a key that is no text") };
            (key, Value::take(bytes))
        };
        Value::Map((0..length).map(entry).collect())
    }

    pub fn items(&self) -> &[Value] {
        let Value::Array(items) = self else { panic!("no array: {self:?}") };
        items
    }

    pub fn uint(&self) -> u64 {
        let Value::Uint(value) = self else { panic!("no integer: {self:?}") };
        *value
    }

    pub fn get(&self, key: &str) -> &Value {
        let Value::Map(entries) = self else { panic!("no map: {self:?}") };
        entries.get(key).unwrap_or_else(|| panic!("no {key}: {self:?}"))
    }

    pub fn text(&self) -> &str {
        let Value::Text(text) = self else { panic!("no text: {self:?}") };
        text
    }
}

/// A block: all tokens up to its end, and the groups that hold it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Block {
    tokens: Vec<u32>,
    groups: BTreeSet<u64>,
}

/// What a server holds, by its events alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    blocks: BTreeMap<u64, Block>,
    /// By group: the kind of its layers, and their window.
    pub kinds: BTreeMap<u64, (String, Option<u64>)>,
    /// Times that all blocks were cleared.
    pub cleared: usize,
}

impl Tree {
    /// Applies the events of a batch. Panics if they make no sense.
    pub fn apply(&mut self, payload: &[u8]) {
        let batch = Value::decode(payload);
        let [Value::Float(time), events, rank] = batch.items() else { panic!("{batch:?}") };
        assert!(*time > 1e9);
        assert_eq!(rank.uint(), 0);
        for event in events.items() {
            let hashes = || event.get("block_hashes").items().iter().map(Value::uint);
            match event.get("type").text() {
                "BlockStored" => self.store(event, hashes().collect()),
                "BlockRemoved" => {
                    let group = event.get("group_idx").uint();
                    for hash in hashes() {
                        let block = self.blocks.get_mut(&hash).expect("a block that is removed was stored");
                        assert!(block.groups.remove(&group), "block {hash} was not stored in group {group}");
                        if block.groups.is_empty() {
                            self.blocks.remove(&hash);
                        }
                    }
                }
                "AllBlocksCleared" => {
                    self.blocks.clear();
                    self.cleared += 1;
                }
                other => panic!("an event {other}"),
            }
        }
    }

    fn store(&mut self, event: &Value, hashes: Vec<u64>) {
        assert_eq!((event.get("lora_id"), event.get("lora_name")), (&Value::Nil, &Value::Nil));
        assert_eq!(event.get("medium").text(), "GPU");
        let group = event.get("group_idx").uint();
        let kind = event.get("kv_cache_spec_kind").text().to_owned();
        let window = (kind == "sliding_window").then(|| event.get("kv_cache_spec_sliding_window").uint());
        assert_eq!(*self.kinds.entry(group).or_insert((kind.clone(), window)), (kind, window));
        let tokens: Vec<u32> =
            event.get("token_ids").items().iter().map(|token| token.uint() as u32).collect();
        let size = event.get("block_size").uint() as usize;
        assert_eq!(tokens.len(), hashes.len() * size);
        let mut before = match event.get("parent_block_hash") {
            Value::Nil => vec![],
            parent => {
                self.blocks.get(&parent.uint()).expect("a parent comes before its children").tokens.clone()
            }
        };
        for (hash, tokens) in hashes.into_iter().zip(tokens.chunks(size)) {
            before.extend(tokens);
            let new = || Block { tokens: before.clone(), groups: BTreeSet::new() };
            let block = self.blocks.entry(hash).or_insert_with(new);
            assert_eq!(block.tokens, before, "one hash for two blocks");
            assert!(block.groups.insert(group), "block {hash} is stored twice in group {group}");
        }
    }

    /// All blocks: all tokens up to the end of each, and its group.
    pub fn blocks(&self) -> BTreeSet<(Vec<u32>, u64)> {
        let blocks = self.blocks.values();
        blocks.flat_map(|block| block.groups.iter().map(|group| (block.tokens.clone(), *group))).collect()
    }

    /// The number of tokens at the beginning of these whose blocks are all in a group.
    pub fn prefix(&self, tokens: &[u32], group: u64) -> usize {
        let held: BTreeSet<&[u32]> = self
            .blocks
            .values()
            .filter(|block| block.groups.contains(&group))
            .map(|block| &block.tokens[..])
            .collect();
        let sizes: BTreeSet<usize> = held.iter().map(|block| block.len()).collect();
        sizes
            .into_iter()
            .take_while(|size| tokens.get(..*size).is_some_and(|prefix| held.contains(prefix)))
            .last()
            .unwrap_or(0)
    }
}
