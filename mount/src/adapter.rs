//! Carries requests of fuser to a [`Vfs`] and its answers back.
//!
//! Owns the capabilities that are requested from the kernel. Must never decide anything about a
//! file, wait, or hold a lock across a call of the [`Vfs`].

mod attributes;
mod listing;
mod replies;
mod requests;
mod translate;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fuser::{InitFlags, KernelConfig};

use crate::counts::{Counts, KernelOp};
use crate::vfs::{Answer, Errno, Reply, Vfs};
use crate::wake::QuickWake;

/// Most bytes of one read or write request.
const TRANSFER_MAX_BYTES: u32 = 1024 * 1024;
/// The most requests without a waiting caller (read-ahead, releases) that the kernel keeps in flight.
const BACKGROUND_REQUESTS_MAX: u16 = 64;
/// How deep file systems may be stacked below a backing file. Ours counts as one level, so backing
/// files must be on a file system that is not stacked itself.
const STACK_DEPTH_MAX: u32 = 1;

/// The capabilities requested from the kernel; it ignores those that it does not know.
const CAPABILITIES: InitFlags = InitFlags::FUSE_ATOMIC_O_TRUNC
    .union(InitFlags::FUSE_PARALLEL_DIROPS)
    .union(InitFlags::FUSE_ASYNC_READ)
    .union(InitFlags::FUSE_BIG_WRITES)
    .union(InitFlags::FUSE_MAX_PAGES)
    .union(InitFlags::FUSE_DO_READDIRPLUS)
    .union(InitFlags::FUSE_READDIRPLUS_AUTO)
    // The target of a symbolic link never changes: another target is another inode.
    .union(InitFlags::FUSE_CACHE_SYMLINKS)
    // Only this kernel changes the bytes of an inode, so its page cache is always right.
    .union(InitFlags::FUSE_EXPLICIT_INVAL_DATA)
    // Without it a shared mapping of a direct handle is ENODEV.
    .union(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP)
    // Without it every single write asks for `security.capability` first. The price is that the
    // `Vfs` must clear setuid and setgid bits.
    .union(InitFlags::FUSE_HANDLE_KILLPRIV_V2);

/// What the kernel and the [`Vfs`] have done so far, for the session.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// The kernel supports passthrough, and passthrough was requested.
    pub(crate) passthrough_offered: AtomicBool,
    /// The kernel passes the locks of `flock` to us.
    pub(crate) flock_offered: AtomicBool,
    /// The requests received.
    pub(crate) requests: Counts,
    /// Calls of the [`Vfs`] that panicked.
    pub(crate) panics: AtomicU64,
}

/// The fuser side of a session.
pub(crate) struct Adapter {
    pub(crate) vfs: Arc<dyn Vfs>,
    pub(crate) runtime: tokio::runtime::Handle,
    pub(crate) want_passthrough: bool,
    pub(crate) want_flock: bool,
    /// The kernel checks callers against owners and modes itself.
    pub(crate) kernel_checks: bool,
    pub(crate) user_xattrs: bool,
    pub(crate) wake: Arc<QuickWake>,
    pub(crate) shared: Arc<Shared>,
}

/// Counts a panic that unwinds through it.
struct CountPanic(Arc<Shared>, KernelOp);

impl Drop for CountPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.panics.fetch_add(1, Ordering::Relaxed);
            tracing::error!(op = self.1.name(), "file system operation panicked");
        }
    }
}

impl Adapter {
    /// Requests those of the wanted capabilities that the kernel has.
    fn negotiate(&self, config: &mut KernelConfig) -> io::Result<()> {
        let mut wanted = CAPABILITIES;
        if self.want_passthrough {
            wanted |= InitFlags::FUSE_PASSTHROUGH;
        }
        if self.want_flock {
            // Not `FUSE_POSIX_LOCKS` as well: a request does not say which of the two kinds it is.
            wanted |= InitFlags::FUSE_FLOCK_LOCKS;
        }
        let granted = wanted & config.capabilities();
        if config.add_capabilities(granted).is_err() {
            return Err(io::Error::from_raw_os_error(libc::EPROTO));
        }
        if granted.contains(InitFlags::FUSE_PASSTHROUGH) {
            let depth = config.set_max_stack_depth(STACK_DEPTH_MAX);
            self.shared.passthrough_offered.store(depth.is_ok(), Ordering::Release);
        }
        let flock = granted.contains(InitFlags::FUSE_FLOCK_LOCKS);
        self.shared.flock_offered.store(flock, Ordering::Release);
        let sizes = config.set_max_write(TRANSFER_MAX_BYTES);
        let background = config.set_max_background(BACKGROUND_REQUESTS_MAX);
        tracing::debug!(?granted, missing = ?(wanted - granted), ?sizes, ?background, "fuse init");
        Ok(())
    }

    /// Calls the [`Vfs`]; a panic becomes EIO, so that it costs only the answer and not the thread.
    fn call<T>(&self, op: KernelOp, call: impl FnOnce(&dyn Vfs) -> T) -> Reply<T> {
        self.shared.requests.add(op);
        self.wake.note(&self.runtime);
        catch_unwind(AssertUnwindSafe(|| {
            let _count = CountPanic(Arc::clone(&self.shared), op);
            call(&*self.vfs)
        }))
        .map_err(|_panic| Errno::EIO)
    }

    /// Sends an answer that is ready, and otherwise moves it with its reply into a task.
    fn settle<T: 'static>(
        &self,
        op: KernelOp,
        call: impl FnOnce(&dyn Vfs) -> Answer<T>,
        send: impl FnOnce(Reply<T>) + Send + 'static,
    ) {
        match self.call(op, call) {
            Ok(Answer::Now(reply)) => send(reply),
            Err(errno) => send(Err(errno)),
            Ok(Answer::Later(work)) => {
                let count = CountPanic(Arc::clone(&self.shared), op);
                #[expect(
                    clippy::disallowed_methods,
                    reason = "this crate has no seam for tasks; the kernel limits how many requests are pending"
                )]
                drop(self.runtime.spawn(async move {
                    let _count = count;
                    send(work.await);
                }));
            }
        }
    }
}
