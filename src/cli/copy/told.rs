//! What a copy needs to know from the daemon of a mount.
//!
//! Owns the request, and the defaults if the daemon does not answer: it may belong to another user.

use crate::cli::failure::{Failure, Outcome};
use crate::cli::output::note;
use crate::cli::{status, wait};
use crate::config::{self, Flags, Surroundings};
use crate::control::{Client, Status};
use crate::namespace::{Profile, Profiles};

use super::OnMount;

/// The part of the cache that units of some seconds may take: the daemon reserves half of it for
/// what stays on the node.
const UNIT_PART: u64 = 4;
/// The same if the daemon does not report the size of its cache.
const UNIT_BYTES: u64 = 1 << 30;

/// The daemon's answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::cli) struct Told {
    /// The profiles that the mount uses.
    pub(in crate::cli) profiles: Profiles,
    /// The limit of the node's cache, if the daemon reports it.
    pub(in crate::cli) cache_bytes: Option<u64>,
}

impl Told {
    /// Returns how many bytes units of some seconds may take.
    pub(in crate::cli) fn unit_bytes(&self) -> u64 {
        self.cache_bytes.map_or(UNIT_BYTES, |bytes| bytes / UNIT_PART)
    }

    /// Asks the daemon of a mount. If it does not answer, the profiles come from the configuration
    /// that `flags` name.
    pub(in crate::cli) fn ask(around: &Surroundings, on: &OnMount, flags: &Flags) -> Outcome<Self> {
        let asked = wait(async {
            let (mut client, status) = status::find(around, &on.point).await?;
            Ok((profiles(&mut client).await, status))
        });
        let limit = |status: &Status| Some(status.local.limit_bytes);
        let (why, cache_bytes) = match asked {
            Ok((Ok(profiles), status)) => {
                return Ok(Self { profiles, cache_bytes: limit(&status) });
            }
            Ok((Err(failure), status)) => (failure, limit(&status)),
            Err(failure) => (failure, None),
        };
        let loaded = config::load(flags, around, Some(&on.point))?;
        let why = why.messages.join("; ");
        note(&format!(
            "warning: the daemon of {} does not report its profiles ({why}), so those of your configuration are used; name its configuration file with --config",
            on.point.display()
        ));
        Ok(Self { profiles: loaded.settings.profiles, cache_bytes })
    }
}

async fn profiles(client: &mut Client) -> Outcome<Profiles> {
    let all = client.profiles().await?;
    let all: Vec<Profile> = serde_json::from_value(all)
        .map_err(|error| Failure::failed(format!("they cannot be understood: {error}")))?;
    Profiles::from_all(all).map_err(|refused| Failure::failed(refused.reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_the_same_after_the_socket() {
        let shipped = Profiles::default();
        let all = serde_json::to_string(shipped.all()).expect("JSON");
        let all: Vec<Profile> = serde_json::from_str(&all).expect("profiles");
        assert_eq!(Profiles::from_all(all).expect("valid profiles"), shipped);
    }
}
