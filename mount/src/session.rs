//! A mounted session, from mount to unmount.
//!
//! Owns the FUSE threads and the mount point. Must never unmount anything except what it mounted.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use tokio::sync::watch;

use crate::adapter::{Adapter, Shared};
use crate::invalidator::Invalidator;
use crate::mount_lock::MountLock;
use crate::mounting::{self, Attached};
use crate::mounts::{self, MountEntry};
use crate::shape::MountShape;
use crate::vfs::{Abilities, Vfs};
use crate::wake::{QuickWake, Wakes};
use crate::{device, process};

/// The options of a mount.
#[derive(Debug)]
pub struct MountOptions {
    /// An existing directory.
    pub mount_point: PathBuf,
    /// The source that the mount table shows, for instance the remote URL without credentials.
    pub fs_name: String,
    /// Whether the kernel refuses all writes.
    pub read_only: bool,
    /// Whether other users may use the mount, within the permissions of its files.
    pub allow_other: bool,
    /// Whether files have extended attributes of `user.*`. Without them a new file costs one request
    /// less, because the kernel stops asking for `security.capability` before the first write.
    pub user_xattrs: bool,
    /// How idle processors wake while requests arrive.
    pub wakes: Wakes,
    /// Threads that take requests; at least one.
    pub threads: usize,
    /// Whether to handle `flock` locks. Otherwise the kernel keeps them, by inode.
    pub want_flock: bool,
    /// A regular file in the cache directory, open for reading, with which passthrough to that file
    /// system is tested. `None` means that passthrough is not requested.
    pub probe_file: Option<File>,
}

/// A mounted file system. Dropping it unmounts lazily and does not wait.
#[derive(Debug)]
pub struct Session {
    entry: MountEntry,
    abilities: Abilities,
    invalidator: Invalidator,
    shared: Arc<Shared>,
    ended: watch::Receiver<bool>,
    server: Mutex<Option<JoinHandle<io::Result<()>>>>,
}

impl Session {
    /// Mounts `vfs`, tells it the abilities of the session, and serves it on threads of its own.
    /// Answers that have to wait run on `runtime`.
    ///
    /// # Errors
    ///
    /// When the mount point does not exist or is in use (`EBUSY`), neither the kernel nor `fusermount3` allows the
    /// mount, or a thread cannot be started. Nothing stays mounted then.
    #[expect(clippy::needless_pass_by_value, reason = "the session owns its arguments")]
    pub fn mount(
        vfs: Arc<dyn Vfs>,
        options: MountOptions,
        runtime: tokio::runtime::Handle,
    ) -> io::Result<Self> {
        let mount_point = mounts::resolve(&options.mount_point)?;
        let shape = MountShape {
            source: &options.fs_name,
            read_only: options.read_only,
            allow_other: options.allow_other,
            default_permissions: kernel_checks(&options),
        };
        // The mount does not answer before `serve`, so nothing may access what lies below it.
        let Attached { device, entry } = mounting::mount(&mount_point, &shape)?;
        Self::serve(&vfs, &options, runtime, device, entry.clone()).inspect_err(|_| {
            drop(unmount_if_ours(&entry, true));
        })
    }

    fn serve(
        vfs: &Arc<dyn Vfs>,
        options: &MountOptions,
        runtime: tokio::runtime::Handle,
        device: std::os::fd::OwnedFd,
        entry: MountEntry,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let wake = Arc::new(QuickWake::detect(options.wakes));
        let wake_refusal = wake.refusal();
        let want_passthrough = options.probe_file.is_some();
        let adapter = Adapter {
            vfs: Arc::clone(vfs),
            runtime,
            want_passthrough,
            want_flock: options.want_flock,
            kernel_checks: kernel_checks(options),
            user_xattrs: options.user_xattrs,
            wake,
            shared: Arc::clone(&shared),
        };
        let mut config = fuser::Config::default();
        config.n_threads = Some(options.threads.max(1));
        config.clone_fd = false;
        // The kernel decides which users may use the mount (`allow_other`). A second check for each
        // request would refuse the close of a file that was passed to a process of another user.
        let acl = fuser::SessionACL::All;
        let notices = std::fs::File::from(device.try_clone()?);
        let session = fuser::Session::from_fd(adapter, device, acl, config)?;
        let abilities = abilities(&session, options, &shared, wake_refusal);
        vfs.start(abilities);
        let invalidator = Invalidator::start(session.notifier(), notices)?;
        let (ending, ended) = watch::channel(false);
        let server = start_server(session, entry.clone(), ending)?;
        Ok(Self { entry, abilities, invalidator, shared, ended, server: Mutex::new(Some(server)) })
    }

    /// Returns the abilities of the session.
    pub fn abilities(&self) -> Abilities {
        self.abilities
    }

    /// Returns the mount point, free of links.
    pub fn mount_point(&self) -> &Path {
        &self.entry.mount_point
    }

    /// Returns the handle for telling the kernel of changed names.
    pub fn notifier(&self) -> Invalidator {
        self.invalidator.clone()
    }

    /// Returns the number of requests of each kind, by name, without zeros.
    pub fn requests(&self) -> Vec<(&'static str, u64)> {
        self.shared.requests.read()
    }

    /// Returns how many calls of the [`Vfs`] have panicked. Each was answered with EIO.
    pub fn panics(&self) -> u64 {
        self.shared.panics.load(Ordering::Relaxed)
    }

    /// Unmounts. With `lazy`, even if the mount is in use; its users keep their open files, and the
    /// session continues to serve them. Succeeds if it is already unmounted.
    ///
    /// # Errors
    ///
    /// `EBUSY`: in use; otherwise the error of the kernel or `fusermount3`.
    pub fn unmount(&self, lazy: bool) -> io::Result<()> {
        // The device number is given to another mount once this one is gone.
        if self.has_ended() {
            return Ok(());
        }
        unmount_if_ours(&self.entry, lazy)
    }

    /// Cuts the connection: every waiting and every later request fails with `ECONNABORTED` or
    /// `ENOTCONN`. For use after a deadline. Needs root; a user's mounts end with the process.
    ///
    /// # Errors
    ///
    /// When the control file of the connection cannot be written: `EACCES` without root.
    pub fn abort(&self) -> io::Result<()> {
        if self.has_ended() { Ok(()) } else { abort_if_ours(&self.entry) }
    }

    /// Waits until the mount is no longer used, after our unmount or another's. Blocks the thread.
    ///
    /// # Errors
    ///
    /// When the device fails, or a thread that serves it panicked.
    pub fn wait(&self) -> io::Result<()> {
        let mut server = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        match server.take() {
            Some(server) => {
                server.join().unwrap_or_else(|_| Err(io::Error::other("fuse session panicked")))
            }
            None => Ok(()),
        }
    }

    /// Waits as [`Session::wait`] does, without blocking a thread.
    pub async fn ended(&self) {
        let mut ended = self.ended.clone();
        // An error means that the thread is gone, which also means the end.
        drop(ended.wait_for(|ended| *ended).await);
    }

    /// Reports whether the session has ended.
    pub fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.has_ended()
            && let Err(error) = self.unmount(true)
        {
            tracing::warn!(%error, mount_point = %self.entry.mount_point.display(), "unmount failed");
        }
    }
}

/// Starts the thread that starts the others and outlives them.
fn start_server(
    session: fuser::Session<Adapter>,
    entry: MountEntry,
    ending: watch::Sender<bool>,
) -> io::Result<JoinHandle<io::Result<()>>> {
    let work = move || {
        // The kernel reports the end of the last use with either error, depending on which of its
        // threads is first.
        let result = session.run().or_else(|error| match error.raw_os_error() {
            Some(libc::ECONNABORTED) => Ok(()),
            _ => Err(error),
        });
        if let Err(error) = &result {
            // No thread reads requests any more, but the device stays open as long as names can be
            // invalidated. Without this, callers would wait for ever.
            let aborted = abort_if_ours(&entry);
            tracing::error!(%error, ?aborted, "fuse session failed");
        }
        ending.send_replace(true);
        result
    };
    let thread = std::thread::Builder::new().name("hearthfs-fuse".to_owned());
    #[expect(
        clippy::disallowed_methods,
        reason = "this crate has no seam for threads; `wait` joins this one"
    )]
    thread.spawn(work)
}

/// Returns whether the kernel has to check callers against owners and modes. If only root may use
/// the mount there is nothing to check, and the kernel would request the attributes of a directory
/// again after each change of its names.
fn kernel_checks(options: &MountOptions) -> bool {
    options.allow_other || process::effective_user() != 0
}

/// Unmounts if the topmost mount there is still this one.
fn unmount_if_ours(entry: &MountEntry, lazy: bool) -> io::Result<()> {
    // Otherwise a mount that another program is making there might be removed instead.
    let _turn = MountLock::take(&entry.mount_point);
    match mounts::top_at(&entry.mount_point)? {
        Some(top) if is_same(&top, entry) => mounts::unmount_entry(&top, lazy),
        _ => Ok(()),
    }
}

fn abort_if_ours(entry: &MountEntry) -> io::Result<()> {
    match mounts::top_at(&entry.mount_point)? {
        Some(top) if is_same(&top, entry) => mounts::abort_entry(&top),
        _ => Ok(()),
    }
}

fn is_same(one: &MountEntry, other: &MountEntry) -> bool {
    one.device == other.device && one.is_hearthfs()
}

fn abilities<F: fuser::Filesystem>(
    session: &fuser::Session<F>,
    options: &MountOptions,
    shared: &Shared,
    wake_refusal: Option<&'static str>,
) -> Abilities {
    let refusal = match &options.probe_file {
        None => Some("switched off"),
        Some(_) if !shared.passthrough_offered.load(Ordering::Acquire) => {
            Some("this kernel has no FUSE passthrough (Linux 6.9 or later has)")
        }
        Some(file) => device::try_backing(session, file).err().map(|error| refusal_of(&error)),
    };
    let flock_refusal = match shared.flock_offered.load(Ordering::Acquire) {
        true => None,
        false if !options.want_flock => Some("switched off"),
        false => Some("this kernel handles them itself (Linux 3.2 or later asks the daemon)"),
    };
    Abilities {
        passthrough: refusal.is_none(),
        passthrough_refusal: refusal,
        flock_refusal,
        wake_refusal,
    }
}

fn refusal_of(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM) => "it needs CAP_SYS_ADMIN",
        Some(libc::ELOOP) => "the cache directory is on a stacked file system (overlay, FUSE)",
        _ => "the kernel refused a file of the cache directory",
    }
}
