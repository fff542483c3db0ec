//! ZMTP 3.1, ZeroMQ's protocol over TCP (<https://rfc.zeromq.org/spec/37/>): as much as a server needs that publishes and
//! answers. Peers are not trusted: whatever they send is checked before memory is allocated for it.
//!
//! A connection begins with a greeting of 64 bytes from both sides, then a READY command from both (the NULL mechanism,
//! which authenticates nobody). Then there are messages, which consist of frames, and further commands.

use std::fmt;

/// Length of a greeting.
pub(crate) const GREETING_LEN: usize = 64;

/// Maximum length of a frame from a peer: topics and sequence numbers are short.
pub(crate) const MAX_FRAME: usize = 4096;

/// Maximum number of frames of a message from a peer.
const MAX_FRAMES: usize = 8;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// What a peer did that ends its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// The signature of ZMTP is missing.
    NotZmtp,
    /// Version 1 or 2.
    OldVersion { major: u8 },
    /// Not NULL.
    Mechanism,
    /// A frame is too long.
    FrameTooLong { length: u64 },
    /// A message has too many frames.
    TooManyFrames,
    /// Bits of a frame's flags that have no meaning, or not together.
    Flags { flags: u8 },
    /// Something other than READY comes first, or a second one.
    Handshake,
    /// The type of the peer's socket does not go with this one.
    SocketType,
    /// A connection has too many subscriptions.
    TooManySubscriptions,
    /// A command or message that makes no sense here.
    Malformed,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::NotZmtp => f.write_str("it does not speak ZeroMQ's protocol"),
            Violation::OldVersion { major } => {
                write!(f, "it speaks version {major} of ZeroMQ's protocol: 3 is needed")
            }
            Violation::Mechanism => {
                f.write_str("it asks for authentication, which there is none of: use the NULL mechanism")
            }
            Violation::FrameTooLong { length } => {
                write!(f, "it sent a frame of {length} bytes: the limit is {MAX_FRAME}")
            }
            Violation::TooManyFrames => write!(f, "it sent a message of more than {MAX_FRAMES} frames"),
            Violation::Flags { flags } => write!(f, "it sent a frame with the flags {flags:#04x}"),
            Violation::Handshake => f.write_str("it sent handshake commands in the wrong order"),
            Violation::SocketType => {
                f.write_str("its socket has another type than SUB for events, or DEALER or REQ for a replay")
            }
            Violation::TooManySubscriptions => f.write_str("it has too many subscriptions"),
            Violation::Malformed => f.write_str("it sent a malformed command or message"),
        }
    }
}

/// The type of a socket here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketType {
    Pub,
    Router,
}

impl SocketType {
    fn name(self) -> &'static str {
        match self {
            SocketType::Pub => "PUB",
            SocketType::Router => "ROUTER",
        }
    }

    fn takes(self, peer: &[u8]) -> bool {
        match self {
            SocketType::Pub => matches!(peer, b"SUB" | b"XSUB"),
            SocketType::Router => matches!(peer, b"DEALER" | b"REQ" | b"ROUTER"),
        }
    }
}

/// The greeting of this side.
pub(crate) fn greeting() -> [u8; GREETING_LEN] {
    let mut greeting = [0; GREETING_LEN];
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    (greeting[10], greeting[11]) = (3, 1);
    greeting[12..16].copy_from_slice(b"NULL");
    greeting
}

/// Checks the first bytes of a greeting, as many as have arrived. A peer with an old version sends no more of them until
/// it knows that of this side.
pub(crate) fn check_greeting(received: &[u8]) -> Result<(), Violation> {
    let at = |index: usize| received.get(index).copied();
    if at(0).is_some_and(|byte| byte != 0xff) || at(9).is_some_and(|byte| byte != 0x7f) {
        return Err(Violation::NotZmtp);
    }
    if let Some(major) = at(10).filter(|major| *major < 3) {
        return Err(Violation::OldVersion { major });
    }
    let mechanism = *b"NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    match received.get(12..32) {
        Some(asked) if asked != mechanism => Err(Violation::Mechanism),
        _ => Ok(()),
    }
}

/// A frame from a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Frame {
    flags: u8,
    body: Vec<u8>,
}

/// What a peer sent after its greeting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    Message(Vec<Vec<u8>>),
    Command(Command),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// The end of the handshake, with the type of the peer's socket.
    Ready {
        socket_type: Vec<u8>,
    },
    Subscribe(Vec<u8>),
    Cancel(Vec<u8>),
    /// To be answered by [`pong`] with these bytes.
    Ping(Vec<u8>),
    /// Any other, which has no effect.
    Other,
}

/// Collects the bytes that arrive after the greeting.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    buffer: Vec<u8>,
    /// The frames of a message whose last one has not arrived.
    message: Vec<Vec<u8>>,
}

impl Decoder {
    /// Adds bytes that arrived. To be called after [`Decoder::next`] returned `None`, so that what is here is less than a
    /// frame.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend(bytes);
    }

    /// The next message or command that is complete.
    pub(crate) fn next(&mut self) -> Result<Option<Received>, Violation> {
        while let Some(Frame { flags, body }) = self.next_frame()? {
            if flags & COMMAND != 0 {
                // Not between the frames of a message.
                if !self.message.is_empty() {
                    return Err(Violation::Malformed);
                }
                return Ok(Some(Received::Command(command(&body)?)));
            }
            if self.message.len() == MAX_FRAMES {
                return Err(Violation::TooManyFrames);
            }
            self.message.push(body);
            if flags & MORE == 0 {
                return Ok(Some(Received::Message(std::mem::take(&mut self.message))));
            }
        }
        Ok(None)
    }

    fn next_frame(&mut self) -> Result<Option<Frame>, Violation> {
        let Some(&flags) = self.buffer.first() else { return Ok(None) };
        if flags & !(MORE | LONG | COMMAND) != 0 || flags & (MORE | COMMAND) == MORE | COMMAND {
            return Err(Violation::Flags { flags });
        }
        let (length, head) = if flags & LONG == 0 {
            let Some(&length) = self.buffer.get(1) else { return Ok(None) };
            (u64::from(length), 2)
        } else {
            let Some(bytes) = self.buffer.get(1..9) else { return Ok(None) };
            (u64::from_be_bytes(std::array::from_fn(|index| bytes[index])), 9)
        };
        let fitting = usize::try_from(length).ok().filter(|length| *length <= MAX_FRAME);
        let Some(fitting) = fitting else { return Err(Violation::FrameTooLong { length }) };
        if self.buffer.len() < head + fitting {
            return Ok(None);
        }
        let body = self.buffer[head..head + fitting].to_vec();
        self.buffer.drain(..head + fitting);
        Ok(Some(Frame { flags, body }))
    }
}

/// Splits off a part that is preceded by its length in one byte.
fn short_part(bytes: &[u8]) -> Result<(&[u8], &[u8]), Violation> {
    let (length, rest) = bytes.split_first().ok_or(Violation::Malformed)?;
    rest.split_at_checked(usize::from(*length)).ok_or(Violation::Malformed)
}

fn command(body: &[u8]) -> Result<Command, Violation> {
    let (name, rest) = short_part(body)?;
    match name {
        b"READY" => {
            let mut socket_type = vec![];
            let mut metadata = rest;
            while !metadata.is_empty() {
                let (name, rest) = short_part(metadata)?;
                let (length, rest) = rest.split_at_checked(4).ok_or(Violation::Malformed)?;
                let length = u32::from_be_bytes(std::array::from_fn(|index| length[index]));
                let length = usize::try_from(length).map_err(|_| Violation::Malformed)?;
                let (value, rest) = rest.split_at_checked(length).ok_or(Violation::Malformed)?;
                if name.eq_ignore_ascii_case(b"Socket-Type") {
                    socket_type = value.to_vec();
                }
                metadata = rest;
            }
            Ok(Command::Ready { socket_type })
        }
        b"SUBSCRIBE" => Ok(Command::Subscribe(rest.to_vec())),
        b"CANCEL" => Ok(Command::Cancel(rest.to_vec())),
        b"PING" => {
            // Two bytes of a time, then a context of at most 16.
            let context = rest.get(2..).filter(|context| context.len() <= 16).ok_or(Violation::Malformed)?;
            Ok(Command::Ping(context.to_vec()))
        }
        _ => Ok(Command::Other),
    }
}

/// The end of a peer's handshake, which must be the first that it sends after its greeting.
pub(crate) fn check_ready(first: &Received, own: SocketType) -> Result<(), Violation> {
    match first {
        Received::Command(Command::Ready { socket_type }) if own.takes(socket_type) => Ok(()),
        Received::Command(Command::Ready { .. }) => Err(Violation::SocketType),
        _ => Err(Violation::Handshake),
    }
}

/// A change of a peer's subscriptions: those of version 3.0 are messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Subscribe(Vec<u8>),
    Cancel(Vec<u8>),
}

impl Change {
    /// `None` for messages to the publisher, which are ignored as ZeroMQ does.
    pub(crate) fn of_message(mut frames: Vec<Vec<u8>>) -> Option<Change> {
        let mut topic = frames.pop().filter(|_| frames.is_empty())?;
        match topic.first()? {
            1 => Some(Change::Subscribe(topic.split_off(1))),
            0 => Some(Change::Cancel(topic.split_off(1))),
            _ => None,
        }
    }
}

/// The READY command of this side.
pub(crate) fn ready(own: SocketType) -> Vec<u8> {
    let mut body = b"\x05READY\x0bSocket-Type".to_vec();
    body.extend((own.name().len() as u32).to_be_bytes());
    body.extend(own.name().as_bytes());
    command_frame(&body)
}

/// An ERROR command, which refuses a handshake.
pub(crate) fn error(reason: &str) -> Vec<u8> {
    let length = reason.len().min(255);
    let mut body = b"\x05ERROR".to_vec();
    body.push(length as u8);
    body.extend(&reason.as_bytes()[..length]);
    command_frame(&body)
}

/// The answer to [`Command::Ping`].
pub(crate) fn pong(context: &[u8]) -> Vec<u8> {
    command_frame(&[b"\x04PONG", context].concat())
}

fn command_frame(body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![];
    put_frame(&mut bytes, COMMAND, body);
    bytes
}

/// A message of these frames.
pub(crate) fn message(frames: &[&[u8]]) -> Vec<u8> {
    let mut bytes = vec![];
    for (index, body) in frames.iter().enumerate() {
        put_frame(&mut bytes, if index + 1 < frames.len() { MORE } else { 0 }, body);
    }
    bytes
}

fn put_frame(bytes: &mut Vec<u8>, flags: u8, body: &[u8]) {
    match u8::try_from(body.len()) {
        Ok(length) => bytes.extend([flags, length]),
        Err(_) => {
            bytes.push(flags | LONG);
            bytes.extend((body.len() as u64).to_be_bytes());
        }
    }
    bytes.extend(body);
}

#[cfg(test)]
mod tests;
