//! A connection from a peer: its handshake, and what it sends.

use std::{fmt, io, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    time::timeout,
};

use crate::zmtp::{self, Command, Decoder, GREETING_LEN, Received, SocketType, Violation};

/// Maximum time for the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a connection ends.
#[derive(Debug)]
pub(crate) enum End {
    /// The peer closed it, or the network did.
    Closed,
    /// The peer does not keep to the protocol.
    Violation(Violation),
    /// The peer is too slow.
    Timeout,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Closed => f.write_str("it was closed"),
            End::Violation(violation) => violation.fmt(f),
            End::Timeout => f.write_str("it timed out"),
        }
    }
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> Self {
        End::Closed
    }
}

impl From<Violation> for End {
    fn from(violation: Violation) -> Self {
        End::Violation(violation)
    }
}

/// What a peer sends.
pub(crate) struct Reader {
    stream: OwnedReadHalf,
    decoder: Decoder,
}

impl Reader {
    /// The next message or command. Can be cancelled without losing bytes.
    pub(crate) async fn next(&mut self) -> Result<Received, End> {
        loop {
            if let Some(received) = self.decoder.next()? {
                return Ok(received);
            }
            let mut buffer = [0; 2048];
            match self.stream.read(&mut buffer).await? {
                0 => return Err(End::Closed),
                length => self.decoder.push(&buffer[..length]),
            }
        }
    }
}

/// Silence after which the system asks whether a peer is still there.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);

/// Greets a peer and completes the handshake.
pub(crate) async fn handshake(stream: TcpStream, own: SocketType) -> Result<(Reader, OwnedWriteHalf), End> {
    stream.set_nodelay(true)?;
    // A peer whose machine is gone must not keep its place.
    rustix::net::sockopt::set_socket_keepalive(&stream, true).map_err(io::Error::from)?;
    rustix::net::sockopt::set_tcp_keepidle(&stream, KEEPALIVE_IDLE).map_err(io::Error::from)?;
    let (read, mut write) = stream.into_split();
    let mut reader = Reader { stream: read, decoder: Decoder::default() };
    let shake = async {
        write.write_all(&zmtp::greeting()).await?;
        let mut greeting = [0; GREETING_LEN];
        let mut length = 0;
        while length < GREETING_LEN {
            match reader.stream.read(&mut greeting[length..]).await? {
                0 => return Err(End::Closed),
                more => length += more,
            }
            zmtp::check_greeting(&greeting[..length])?;
        }
        write.write_all(&zmtp::ready(own)).await?;
        let first = loop {
            match reader.next().await? {
                Received::Command(Command::Ping(context)) => write.write_all(&zmtp::pong(&context)).await?,
                first => break first,
            }
        };
        if let Err(violation) = zmtp::check_ready(&first, own) {
            // So that the peer can say why.
            write.write_all(&zmtp::error("Invalid socket type")).await?;
            return Err(violation.into());
        }
        Ok(())
    };
    timeout(HANDSHAKE_TIMEOUT, shake).await.map_err(|_| End::Timeout)??;
    Ok((reader, write))
}
