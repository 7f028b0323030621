//! What a reason means, and what to do about it.
//!
//! Owns the sentences. Must never print raw text that another user has chosen.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::cli::escape::printed;
use crate::cli::output::{count, time};
use crate::namespace::{Explained, Profiles, Reason};

/// An answer in words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Words {
    pub(super) why: String,
    pub(super) remedy: String,
}

/// Returns the word for a reason in a list.
pub(super) fn word(reason: Reason) -> &'static str {
    match reason {
        Reason::There => "there",
        Reason::Writing => "writing",
        Reason::Never => "never",
        Reason::Unsure => "unsure",
        Reason::Late => "late",
        Reason::Removed => "removed",
        Reason::Expired => "expired",
        Reason::StoreDown => "store-down",
        Reason::NoRoom => "no-room",
        Reason::Damaged => "damaged",
        Reason::Evicted => "evicted",
        Reason::Incomplete => "incomplete",
        Reason::NodeLocal => "node-local",
        Reason::NoDirectory => "no-directory",
        Reason::Denied => "denied",
        Reason::Unknown => "unknown",
    }
}

/// Explains what a reason means in general, and what to do about it.
pub(super) fn then(reason: Reason) -> (&'static str, &'static str) {
    match reason {
        Reason::There => (
            "it is there",
            "nothing to do; a program that misses it asks for another name: `hearthfs explain --last`",
        ),
        Reason::Writing => (
            "a program on this node is writing it, and it is published when the program closes it",
            "wait for the writer; if it is killed, nothing is published",
        ),
        Reason::Never => (
            "no node had published it",
            "the program makes it now, and then all nodes have it; if another node made it before, check on that node with \
             `hearthfs explain` and `hearthfs status` whether it is remote",
        ),
        Reason::Unsure => (
            "this node did not know it and could not read the log of the store, so another node may have it",
            "`hearthfs doctor` says what is wrong with the store",
        ),
        Reason::Late => (
            "it had not arrived on this node when it was asked for",
            "try again; an entry of another node arrives within remote.freshness after it is remote, and it is remote after \
             writeback.delay and the upload",
        ),
        Reason::Removed => (
            "it was removed or renamed",
            "the next program that needs it makes it again; to find out what removes it, look on that node for `rm`, for \
             a size limit of the client, and for its clean-up",
        ),
        Reason::Expired => (
            "it is past its age: it was not opened in the second half of expiry.age",
            "raise expiry.age, and set expiry.renew_on_use = true; the next program that needs it makes it again",
        ),
        Reason::StoreDown => (
            "its bytes are not on this node (never fetched, or evicted), and the store cannot be used",
            "`hearthfs doctor` says what is wrong with the store; a larger local.cache_size keeps more here",
        ),
        Reason::NoRoom => (
            "its bytes are in the store only, and this node has no room for them",
            "make room on the disk of the cache directory, or set local.cache_size to less than the space of the disk",
        ),
        Reason::Damaged => (
            "its bytes in the store are damaged or missing",
            "the next program that needs it makes and stores it again; if there are many, look for a rule that deletes too early: \
             `hearthfs lifecycle verify`",
        ),
        Reason::Evicted => (
            "its bytes were only on this node, and are no longer there",
            "raise local.cache_size, or name a store with remote.url",
        ),
        Reason::Incomplete => (
            "it belongs to a unit with files that are missing or cannot be fetched, and a unit appears only when it is complete",
            "the next program that needs the unit makes it again; `hearthfs rm` of its directory removes the rest",
        ),
        Reason::NodeLocal => (
            "files of this name never leave the node that writes them, according to the profile of the client",
            "nothing to do; `hearthfs profiles NAME` shows the rules",
        ),
        Reason::NoDirectory => {
            ("a file is in the place of a directory above it", "remove or rename that file")
        }
        Reason::Denied => (
            "the mode bits of the entry or of a directory above it do not let you read it",
            "ask its owner for the right; `hearthfs stat` shows owner and mode",
        ),
        Reason::Unknown => (
            "the reason is unknown to the daemon or to this version of the program",
            "run the same version of both; `hearthfs doctor` compares them",
        ),
    }
}

/// Describes the present state of one name.
pub(super) fn now(explained: &Explained, path: &Path, of: Option<&Path>, similar: usize) -> Words {
    let (why, remedy) = then(explained.reason);
    let (mut why, mut remedy) = (why.to_owned(), remedy.to_owned());
    let shown = |path: &Path| printed(path.as_os_str().as_bytes());
    match explained.reason {
        Reason::There => {
            if explained.is_remote == Some(false) && explained.shared {
                why = format!(
                    "it is there{}, and not remote yet, so other nodes miss it",
                    by(explained)
                );
                "`hearthfs status` shows what delays it, and `hearthfs drain` waits for it"
                    .clone_into(&mut remedy);
            } else {
                why = format!("it is there{}", by(explained));
            }
        }
        Reason::Late => {
            why = format!(
                "it had not arrived when it was asked for; it is there now{}",
                by(explained)
            );
        }
        Reason::Removed => {
            let what = of.map(|dir| format!(", with its directory {}", shown(dir)));
            why = format!("removed or renamed{}{}", what.unwrap_or_default(), by(explained));
        }
        Reason::Expired => why = format!("{why}; it was written{}", by(explained)),
        Reason::Never => {
            "no node has published it, according to the whole log".clone_into(&mut why);
            if !explained.shared {
                "it is not known here: never made, or removed and forgotten".clone_into(&mut why);
            }
            if let Some(hint) = quick(explained) {
                remedy = hint;
            }
        }
        Reason::NoDirectory => {
            if let Some(file) = of {
                why = format!("a file is in the place of a directory: {}", shown(file));
                remedy = format!("remove or rename it: hearthfs rm '{}'", shown(file));
            }
        }
        Reason::Denied => {
            let dir = of.or(path.parent()).unwrap_or(path);
            remedy = format!(
                "ask the owner of {} for the right; `hearthfs stat` shows owner and mode",
                shown(dir)
            );
        }
        _ => {}
    }
    if similar > 0 {
        let entries = count(similar as u64, "entry", "entries");
        why = format!("{why}; {entries} of the same program under another key");
        remedy = format!(
            "what goes into the key differs: compare versions, flags, devices and paths of the runs{}",
            explained.client.as_deref().map(profile_hint).unwrap_or_default()
        );
    }
    Words { why, remedy }
}

fn profile_hint(client: &str) -> String {
    format!(" (`hearthfs profiles {}` says what matters)", printed(client.as_bytes()))
}

/// Adds that a client does not cache quick compilations.
fn quick(explained: &Explained) -> Option<String> {
    let profiles = Profiles::default();
    let profile = profiles.get(explained.client.as_deref()?)?;
    let (name, value) = profile.short_compiles.first_key_value()?;
    Some(format!(
        "the program makes it now; {} does not keep programs that compile quickly unless {name}={value} or \
         run.cache_short_compiles is set",
        profile.title
    ))
}

/// Describes when something was done, and by which node.
fn by(explained: &Explained) -> String {
    let ago = explained
        .changed_ms
        .map(|changed_ms| format!(", {} ago", time(explained.now_ms.saturating_sub(changed_ms))));
    let node = explained.node.as_ref().map(|node| {
        let here = if explained.own { ", this one" } else { "" };
        format!(" by node {}{here}", printed(node.as_bytes()))
    });
    [ago, node].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Reason; 16] = [
        Reason::There,
        Reason::Writing,
        Reason::Never,
        Reason::Unsure,
        Reason::Late,
        Reason::Removed,
        Reason::Expired,
        Reason::StoreDown,
        Reason::NoRoom,
        Reason::Damaged,
        Reason::Evicted,
        Reason::Incomplete,
        Reason::NodeLocal,
        Reason::NoDirectory,
        Reason::Denied,
        Reason::Unknown,
    ];

    fn of(reason: Reason) -> Explained {
        Explained {
            reason,
            now_ms: 90_000,
            changed_ms: Some(30_000),
            node: Some("00000000000000aa".into()),
            shared: true,
            ..Explained::default()
        }
    }

    #[test]
    fn every_reason_has_words_of_its_own_and_a_remedy() {
        let words: std::collections::BTreeSet<&str> = ALL.into_iter().map(word).collect();
        assert_eq!(words.len(), ALL.len());
        let path = Path::new("/m/jax/x");
        let whys: std::collections::BTreeSet<String> =
            ALL.into_iter().map(|reason| now(&of(reason), path, None, 0).why).collect();
        assert_eq!(whys.len(), ALL.len());
        for reason in ALL {
            assert!(
                !now(&of(reason), path, None, 0).remedy.is_empty() && !then(reason).1.is_empty()
            );
        }
    }

    #[test]
    fn the_answer_names_node_and_time() {
        let path = Path::new("/m/jax/x");
        let removed = now(&of(Reason::Removed), path, Some(Path::new("/m/jax")), 0);
        assert_eq!(
            removed.why,
            "removed or renamed, with its directory /m/jax, 1m0s ago by node 00000000000000aa"
        );
        let mut own = of(Reason::There);
        (own.own, own.is_remote) = (true, Some(false));
        let there = now(&own, path, None, 0);
        assert!(there.why.contains("this one, and not remote yet"), "{}", there.why);
        assert!(there.remedy.contains("hearthfs drain"));
    }

    #[test]
    fn for_another_key_the_remedy_names_what_to_compare() {
        let mut never = of(Reason::Never);
        never.client = Some("jax".into());
        let path = Path::new("/m/jax/x");
        assert!(
            now(&never, path, None, 0)
                .remedy
                .contains("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")
        );
        let other = now(&never, path, None, 2);
        assert!(
            other.why.contains("2 entries of the same program under another key"),
            "{}",
            other.why
        );
        assert!(other.remedy.contains("hearthfs profiles jax"), "{}", other.remedy);
    }
}
