//! What the service manager is told: systemd's protocol, a datagram to the socket that `NOTIFY_SOCKET` names. Without one nothing is
//! told.

use std::{
    ffi::OsStr,
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
};

/// Requests are answered.
pub fn ready() {
    tell("READY=1");
}

/// No new ones are.
pub fn stopping() {
    tell("STOPPING=1");
}

fn tell(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty()) else { return };
    if let Err(error) = send(&socket, state) {
        // It goes on: whoever waits for this word will say that it did not come.
        tracing::warn!(
            "the service manager cannot be told {state}: NOTIFY_SOCKET={}: {error}",
            socket.display()
        );
    }
}

fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes() {
        // A name that is in no folder.
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}
