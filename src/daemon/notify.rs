//! Reports to the service manager.
//!
//! Owns the few messages of its protocol. Must never fail or block a mount: a manager that does not
//! listen receives nothing.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use parking_lot::Mutex;

use crate::config::Surroundings;

/// The variables with which a service manager announces its socket and what it expects. They are
/// meant for one process, so none that we start may inherit them.
pub const MANAGER_VARIABLES: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];

/// How long one message may wait for a manager that is busy.
const SEND_LIMIT: Duration = Duration::from_secs(1);

/// The service manager, if there is one.
#[derive(Debug)]
pub(super) struct Manager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
    /// The last message, so that only news is sent.
    told: Mutex<String>,
}

impl Manager {
    /// Finds the manager that started this process.
    pub(super) fn find(around: &Surroundings) -> Self {
        let socket = around.variable("NOTIFY_SOCKET").and_then(|name| {
            connect(name.as_bytes())
                .inspect_err(|error| {
                    tracing::warn!(%error, ?name, "NOTIFY_SOCKET cannot be used");
                })
                .ok()
        });
        let watchdog = watchdog(around).filter(|_| socket.is_some());
        Self { socket, watchdog, told: Mutex::default() }
    }

    /// Reports whether a service manager started this process.
    pub(super) fn is_there(&self) -> bool {
        self.socket.is_some()
    }

    /// Returns how long the manager waits for a sign of life before it kills us; `None` means for ever.
    pub(super) fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// Reports that the mount works.
    pub(super) fn ready(&self, status: &str) {
        self.tell(&["READY=1"], status);
    }

    /// Reports the status.
    pub(super) fn status(&self, status: &str) {
        if *self.told.lock() != status {
            self.tell(&[], status);
        }
    }

    /// Reports that we are alive and well.
    pub(super) fn alive(&self, status: &str) {
        if self.watchdog.is_none() {
            self.status(status);
        } else if *self.told.lock() == status {
            self.send("WATCHDOG=1");
        } else {
            self.tell(&["WATCHDOG=1"], status);
        }
    }

    /// Reports that the end has begun and takes at most `more`, unless a later message extends it.
    pub(super) fn stopping(&self, status: &str, more: Duration) {
        self.tell(&["STOPPING=1", &format!("EXTEND_TIMEOUT_USEC={}", more.as_micros())], status);
    }

    fn tell(&self, words: &[&str], status: &str) {
        // The protocol is one assignment per line.
        let status = status.replace('\n', " ");
        let mut text = words.join("\n");
        if !text.is_empty() {
            text.push('\n');
        }
        text.extend(["STATUS=", &status]);
        self.send(&text);
        *self.told.lock() = status;
    }

    fn send(&self, text: &str) {
        let Some((socket, address)) = &self.socket else { return };
        if let Err(error) = socket.send_to_addr(text.as_bytes(), address) {
            tracing::debug!(%error, "cannot notify the service manager");
        }
    }
}

fn connect(name: &[u8]) -> std::io::Result<(UnixDatagram, SocketAddr)> {
    let address = match name.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name)),
    }?;
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(SEND_LIMIT))?;
    Ok((socket, address))
}

/// Returns the watchdog's interval, if it is meant for this process.
fn watchdog(around: &Surroundings) -> Option<Duration> {
    let number = |name: &str| around.variable(name).and_then(|v| v.to_str()).map(str::parse::<u64>);
    match number("WATCHDOG_PID") {
        None => {}
        Some(Ok(pid)) if pid == u64::from(std::process::id()) => {}
        Some(_) => return None,
    }
    match number("WATCHDOG_USEC") {
        Some(Ok(micros @ 1..)) => Some(Duration::from_micros(micros)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn around(variables: &[(&str, &str)]) -> Surroundings {
        let variables = variables.iter().map(|(k, v)| (k.into(), v.into())).collect();
        Surroundings { variables, ..Surroundings::default() }
    }

    fn heard(manager: &UnixDatagram) -> String {
        let mut text = [0; 256];
        let length = manager.recv(&mut text).expect("received");
        String::from_utf8_lossy(&text[..length]).into_owned()
    }

    #[test]
    fn the_manager_hears_what_is_new() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("notify");
        let listener = UnixDatagram::bind(&path).expect("bind");
        let socket = path.to_str().expect("text");
        let variables = [("NOTIFY_SOCKET", socket), ("WATCHDOG_USEC", "1000000")];
        let manager = Manager::find(&around(&variables));
        manager.ready("serving");
        assert_eq!(heard(&listener), "READY=1\nSTATUS=serving");
        manager.status("serving");
        manager.alive("serving");
        assert_eq!(heard(&listener), "WATCHDOG=1");
        manager.alive("two\nlines");
        assert_eq!(heard(&listener), "WATCHDOG=1\nSTATUS=two lines");
        manager.stopping("draining", Duration::from_secs(2));
        assert_eq!(heard(&listener), "STOPPING=1\nEXTEND_TIMEOUT_USEC=2000000\nSTATUS=draining");
        Manager::find(&around(&[])).ready("no manager listens");
    }

    #[test]
    fn an_abstract_socket_is_found() {
        let name = format!("hearthfs-notify-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("address");
        let listener = UnixDatagram::bind_addr(&address).expect("bind");
        Manager::find(&around(&[("NOTIFY_SOCKET", &format!("@{name}"))])).status("here");
        assert_eq!(heard(&listener), "STATUS=here");
    }

    #[test]
    fn a_watchdog_that_means_another_process_is_not_ours() {
        let us = std::process::id().to_string();
        let found = |variables: &[(&str, &str)]| watchdog(&around(variables));
        let usec = ("WATCHDOG_USEC", "3000000");
        assert_eq!(found(&[usec]), Some(Duration::from_secs(3)));
        assert_eq!(found(&[usec, ("WATCHDOG_PID", &us)]), Some(Duration::from_secs(3)));
        assert_eq!(found(&[usec, ("WATCHDOG_PID", "1")]), None);
        assert_eq!(found(&[usec, ("WATCHDOG_PID", "x")]), None);
        assert_eq!(found(&[("WATCHDOG_USEC", "0")]), None);
        assert_eq!(found(&[]), None);
        assert_eq!(Manager::find(&around(&[usec])).watchdog(), None, "no service manager");
    }
}
