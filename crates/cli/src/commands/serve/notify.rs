//! systemd's notification protocol: a datagram to the socket in `NOTIFY_SOCKET`. Does nothing if that is not set.

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

/// The server accepts requests.
pub fn ready() {
    notify("READY=1");
}

/// The server is shutting down.
pub fn stopping() {
    notify("STOPPING=1");
}

fn notify(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty()) else { return };
    if let Err(error) = send(&socket, state) {
        // Not fatal: the service manager reports a missing notification itself.
        tracing::warn!(
            "cannot send {state} to the service manager: NOTIFY_SOCKET={}: {error}",
            socket.display()
        );
    }
}

fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes() {
        // Linux's abstract socket namespace.
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}
