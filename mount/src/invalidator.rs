//! Tells the kernel that names have changed elsewhere.
//!
//! Owns one thread and its queue. Must never be driven from inside a request, hold a lock while it
//! calls the kernel, or invalidate an inode: for that the kernel takes the lock of the directory,
//! and waits for requests in that directory that may be waiting for us.

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

/// `FUSE_NOTIFY_INC_EPOCH` of `linux/fuse.h`.
const INC_EPOCH: i32 = 8;

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
            reason = "the crate is a leaf; the thread ends with the last handle"
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
        // `struct fuse_out_header` of a notification: length, code, no request.
        let mut notice = [0; 16];
        notice[..4].copy_from_slice(&16u32.to_ne_bytes());
        notice[4..8].copy_from_slice(&INC_EPOCH.to_ne_bytes());
        let done = (&*self.device).write_all(&notice).is_ok();
        self.counts.sent.fetch_add(u64::from(done), Ordering::Relaxed);
        done
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
