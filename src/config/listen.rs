//! Addresses at which a mount answers monitors.
//!
//! Owns their form. Must never resolve or open one.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// The prefix of the path of a socket.
const UNIX: &str = "unix:";

/// An address at which a mount answers monitors.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ListenAt {
    /// An address and a port.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl ListenAt {
    /// Reports whether only this machine can reach it.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(at) => at.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

impl FromStr for ListenAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const FORM: &str =
            "expected ADDRESS:PORT such as \"127.0.0.1:9464\" or \"[::1]:9464\", or \"unix:/PATH\"";
        if let Some(path) = text.strip_prefix(UNIX) {
            let path = PathBuf::from(path);
            let is_whole = path.is_absolute() && path.file_name().is_some();
            return if is_whole { Ok(Self::Unix(path)) } else { Err(FORM.to_owned()) };
        }
        let numbers = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
        let at: SocketAddr =
            numbers.as_deref().unwrap_or(text).parse().map_err(|_| FORM.to_owned())?;
        Ok(Self::Tcp(at))
    }
}

impl fmt::Display for ListenAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(at) => write!(f, "{at}"),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_sockets() {
        for (text, local) in [
            ("127.0.0.1:9464", true),
            ("localhost:9464", true),
            ("[::1]:9464", true),
            ("127.0.0.1:0", true),
            ("0.0.0.0:9464", false),
            ("[::]:9464", false),
            ("10.1.2.3:80", false),
            ("unix:/run/hearthfs/metrics.sock", true),
        ] {
            let at: ListenAt = text.parse().unwrap();
            assert_eq!(at.is_local(), local, "{text}");
            assert_eq!(at.to_string().parse(), Ok(at), "{text}");
        }
    }

    #[test]
    fn bad_input_is_refused_with_the_form() {
        for text in [
            "9464",
            ":9464",
            "127.0.0.1",
            "host:9464",
            "127.0.0.1:99999",
            "unix:",
            "unix:a",
            "unix:/",
        ] {
            let refused = ListenAt::from_str(text).unwrap_err();
            assert!(refused.contains("127.0.0.1:9464"), "{text}: {refused}");
        }
    }
}
