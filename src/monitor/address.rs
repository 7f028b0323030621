//! The address at which the mount answers monitors.
//!
//! Owns the socket. Must never take over a socket that a process serves, or one of another user.

use std::fmt;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::runtime::Handle;
use tokio_util::either::Either;

use crate::config::ListenAt;
use crate::error::{Error, Kind, Result};

/// Mode of a socket: figures are no secret, as `status` is none to the user of a mount. Connecting
/// requires the right to write.
const SOCKET_MODE: u32 = 0o666;

/// A connection of a client.
pub(super) type Stream = Either<TcpStream, UnixStream>;

/// A socket that accepts connections.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Waits for the next client.
    pub(super) async fn accept(&self) -> std::io::Result<Stream> {
        Ok(match self {
            Self::Tcp(listener) => Either::Left(listener.accept().await?.0),
            Self::Unix(listener) => Either::Right(listener.accept().await?.0),
        })
    }
}

/// The address of a listener; dropping it removes the name of a socket.
#[derive(Debug)]
pub(super) struct Held(ListenAt);

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let ListenAt::Unix(path) = &self.0
            && let Err(error) = std::fs::remove_file(path)
        {
            tracing::debug!(path = %path.display(), %error, "the socket for metrics is not removed");
        }
    }
}

/// Listens at an address. If the address has port 0, the returned guard names the port that was chosen.
pub(super) fn listen(runtime: &Handle, at: &ListenAt) -> Result<(Listener, Held)> {
    let refused = |error: std::io::Error| {
        let (kind, remedy) = match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                (Kind::Busy, "another program uses it; choose another metrics.listen")
            }
            std::io::ErrorKind::PermissionDenied => {
                (Kind::Denied, "choose a port above 1023, or a directory of this user")
            }
            std::io::ErrorKind::AddrNotAvailable => {
                (Kind::Invalid, "this machine has no such address; choose another metrics.listen")
            }
            _ => (Kind::Invalid, "check metrics.listen"),
        };
        Error::with(kind, format!("listen at metrics.listen = \"{at}\": {remedy}"), error)
    };
    let _inside = runtime.enter();
    match at {
        ListenAt::Tcp(address) => {
            let socket = std::net::TcpListener::bind(address).map_err(refused)?;
            socket.set_nonblocking(true).map_err(refused)?;
            let held = Held(ListenAt::Tcp(socket.local_addr().map_err(refused)?));
            Ok((Listener::Tcp(TcpListener::from_std(socket).map_err(refused)?), held))
        }
        ListenAt::Unix(path) => {
            clear(path)?;
            let listener = UnixListener::bind(path).map_err(refused)?;
            let mode = std::fs::Permissions::from_mode(SOCKET_MODE);
            std::fs::set_permissions(path, mode).map_err(refused)?;
            Ok((Listener::Unix(listener), Held(ListenAt::Unix(path.clone()))))
        }
    }
}

/// Removes a socket that a process of ours left and that no process serves.
fn clear(path: &PathBuf) -> Result<()> {
    let Ok(found) = path.symlink_metadata() else { return Ok(()) };
    let us = rustix::process::geteuid().as_raw();
    let taken = |kind, why: &str| {
        let what = format!("metrics.listen = \"unix:{}\": {why}", path.display());
        Err(Error::new(kind, what))
    };
    if !found.file_type().is_socket() {
        return taken(Kind::Invalid, "a file that is not a socket is there; choose another path");
    }
    if found.uid() != us {
        return taken(Kind::Denied, "a socket of another user is there; choose another path");
    }
    if is_served(path) {
        return taken(Kind::Busy, "another process serves it; choose another path");
    }
    std::fs::remove_file(path)
        .map_err(|error| Error::io(format!("remove {}", path.display()), error))
}

fn is_served(path: &Path) -> bool {
    std::os::unix::net::UnixStream::connect(path).is_ok()
}
