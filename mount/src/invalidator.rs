//! Tells the kernel that names have changed elsewhere.
//!
//! Owns one thread and its queue. Must never take a name back from inside a request or while it
//! holds a lock: for that the kernel takes the lock of the directory, and waits for requests in that
//! directory that may be waiting for us. For the same reason it must never take cached pages back.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use crate::vfs::{Ino, Notices};

/// The most names that wait to be invalidated. Further ones are dropped: that costs freshness up to
/// the lifetime that the kernel got with the name, never correctness.
const QUEUE_MAX: usize = 16 * 1024;

/// `FUSE_NOTIFY_INVAL_INODE` of `linux/fuse.h`.
const INVAL_INODE: i32 = 2;
/// `FUSE_NOTIFY_INC_EPOCH` of `linux/fuse.h`.
const INC_EPOCH: i32 = 8;

/// Builds a notification: a `struct fuse_out_header` of no request, and what follows it.
fn notice<const LEN: usize>(code: i32, body: &[u8]) -> [u8; LEN] {
    let mut notice = [0; LEN];
    notice[..4].copy_from_slice(&(LEN as u32).to_ne_bytes());
    notice[4..8].copy_from_slice(&code.to_ne_bytes());
    notice[16..].copy_from_slice(body);
    notice
}

#[derive(Debug, Default)]
struct NoticeCounts {
    sent: AtomicU64,
    dropped: AtomicU64,
}

/// A handle by which names are invalidated; cheap to clone, never blocks.
#[derive(Clone, Debug)]
pub struct Invalidator {
    queue: SyncSender<(Ino, OsString)>,
    counts: Arc<NoticeCounts>,
    device: Arc<File>,
}

impl Invalidator {
    pub(crate) fn start(notifier: fuser::Notifier, device: File) -> io::Result<Self> {
        let (queue, names) = sync_channel(QUEUE_MAX);
        let counts = Arc::new(NoticeCounts::default());
        let shared = Arc::clone(&counts);
        let thread = std::thread::Builder::new().name("hearthfs-inval".to_owned());
        #[expect(
            clippy::disallowed_methods,
            reason = "this crate has no seam for threads; this one ends with the last handle"
        )]
        drop(thread.spawn(move || drain(&names, &notifier, &shared))?);
        Ok(Self { queue, counts, device: Arc::new(device) })
    }

    /// Returns how many times the kernel was told to forget a name, or all names.
    pub fn sent(&self) -> u64 {
        self.counts.sent.load(Ordering::Relaxed)
    }

    /// Returns how many names were dropped because the queue was full or the kernel refused.
    pub fn dropped(&self) -> u64 {
        self.counts.dropped.load(Ordering::Relaxed)
    }
}

impl Notices for Invalidator {
    /// Needs Linux 6.16 or later.
    fn expire_all(&self) -> bool {
        let done = (&*self.device).write_all(&notice::<16>(INC_EPOCH, &[])).is_ok();
        self.counts.sent.fetch_add(u64::from(done), Ordering::Relaxed);
        done
    }

    fn expire_attrs(&self, ino: Ino) -> bool {
        // `struct fuse_notify_inval_inode_out`: the inode, an offset and a length. With a negative
        // offset the kernel keeps the cached pages, so it waits for no lock of theirs.
        let mut body = [0; 24];
        body[..8].copy_from_slice(&ino.0.to_ne_bytes());
        body[8..16].copy_from_slice(&(-1_i64).to_ne_bytes());
        match (&*self.device).write_all(&notice::<40>(INVAL_INODE, &body)) {
            Ok(()) => true,
            // The kernel does not know the inode.
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }

    fn inval_entry(&self, parent: Ino, name: &OsStr) {
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            self.queue.try_send((parent, name.to_owned()))
        {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn drain(names: &Receiver<(Ino, OsString)>, notifier: &fuser::Notifier, counts: &NoticeCounts) {
    for (parent, name) in names {
        // fuser treats ENOENT, which means that the kernel did not know the name, as success.
        match notifier.inval_entry(fuser::INodeNo(parent.0), &name) {
            Ok(()) => counts.sent.fetch_add(1, Ordering::Relaxed),
            Err(error) => {
                tracing::debug!(%error, parent = parent.0, "invalidation refused");
                counts.dropped.fetch_add(1, Ordering::Relaxed)
            }
        };
    }
}
