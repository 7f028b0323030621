//! Telling the service manager how far we are.
//!
//! Owns the few words of its protocol. Must never fail a mount: a manager that does not listen is told
//! nothing.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::config::Surroundings;

/// Tells the service manager `state`, such as `READY=1`, if one asked to be told.
pub(super) fn tell(around: &Surroundings, state: &str) {
    let Some(name) = around.variable("NOTIFY_SOCKET") else { return };
    let bytes = name.as_bytes();
    let address = match bytes.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(name),
    };
    let sent = address.and_then(|address| {
        let socket = UnixDatagram::unbound()?;
        socket.send_to_addr(state.as_bytes(), &address)
    });
    if let Err(error) = sent {
        tracing::debug!(%error, "the service manager was not told");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manager_hears_it() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).expect("bind");
        let variable = ("NOTIFY_SOCKET".into(), path.into());
        tell(&Surroundings { variables: [variable].into(), ..Surroundings::default() }, "READY=1");
        let mut heard = [0; 32];
        let length = manager.recv(&mut heard).expect("heard");
        assert_eq!(&heard[..length], b"READY=1");
        tell(&Surroundings::default(), "READY=1");
    }
}
