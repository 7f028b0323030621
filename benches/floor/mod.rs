//! The floor of the benchmark: the cost of any file system on fuser.
//!
//! It mirrors a directory with only the necessary round trips. Names and attributes are cached for
//! an hour, present or missing. Bytes use passthrough if the kernel grants it. Readers close
//! without a request. There are no extended attributes and no permission checks, so it is only for
//! root. Must never be used for anything except measuring: it does not notice changes of the
//! directory made past it, and it forgets no inode.

#![expect(unreachable_pub, reason = "each benchmark includes this module and uses only some items")]

mod mirror;

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fuser::{
    Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    Request,
};
use mirror::{Mirror, NOTHING, lock};

// The value on all relevant Linux machines, without libc.
const O_TRUNC: i32 = 0o1000;
const O_ACCMODE: i32 = 0o3;
const O_RDONLY: i32 = 0;
const TTL: Duration = Duration::from_hours(1);
const GENERATION: Generation = Generation(0);
const TRANSFER_MAX_BYTES: u32 = 1024 * 1024;

/// A mounted floor; dropping it unmounts.
#[derive(Debug)]
pub struct Floor {
    session: Option<fuser::BackgroundSession>,
    requests: Arc<AtomicU64>,
}

impl Floor {
    /// Mirrors `directory` at `mount_point`.
    pub fn mount(
        directory: &Path,
        mount_point: &Path,
        passthrough: bool,
        threads: usize,
    ) -> io::Result<Self> {
        let requests = Arc::new(AtomicU64::new(0));
        let mirror = Mirror::new(directory, passthrough, Arc::clone(&requests));
        let mut config = fuser::Config::default();
        config.n_threads = Some(threads);
        config.mount_options =
            vec![fuser::MountOption::FSName("floor".to_owned()), fuser::MountOption::NoAtime];
        let session = fuser::Session::new(mirror, mount_point, &config)?.spawn()?;
        Ok(Self { session: Some(session), requests })
    }

    /// Returns how many requests with a waiting caller have come so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            drop(session.umount_and_join());
        }
    }
}

/// Sends the result of an operation, or its error.
macro_rules! answer {
    ($reply:expr, $result:expr, $value:pat => $send:expr) => {
        match $result {
            Ok($value) => $send,
            Err(error) => $reply.error(Errno::from(error)),
        }
    };
}

fn reader_flags(flags: i32) -> FopenFlags {
    if flags & O_ACCMODE == O_RDONLY { FopenFlags::FOPEN_NOFLUSH } else { FopenFlags::empty() }
}

impl Filesystem for Mirror {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let mut wanted = InitFlags::FUSE_ATOMIC_O_TRUNC
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_EXPLICIT_INVAL_DATA
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2;
        if self.passthrough {
            wanted |= InitFlags::FUSE_PASSTHROUGH;
            config.set_max_stack_depth(1).map_err(|_| io::ErrorKind::Unsupported)?;
        }
        let granted = config.add_capabilities(wanted & config.capabilities()).is_ok();
        let sized = config.set_max_write(TRANSFER_MAX_BYTES).is_ok();
        if granted && sized { Ok(()) } else { Err(io::ErrorKind::Unsupported.into()) }
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: fuser::ReplyEntry) {
        self.count();
        match self.child(parent, name).and_then(fs::symlink_metadata) {
            Ok(meta) => reply.entry(&TTL, &self.learn(parent, name, &meta), GENERATION),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                reply.entry(&TTL, &NOTHING, GENERATION);
            }
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: fuser::ReplyAttr) {
        self.count();
        answer!(reply, self.stat(ino.0), attr => reply.attr(&TTL, &attr));
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: fuser::OpenFlags, reply: fuser::ReplyOpen) {
        self.count();
        let open = || OpenOptions::new().read(true).write(true).open(self.path(ino.0)?);
        let opened = self.handle(ino.0, open, |file| reply.open_backing(file)).and_then(|opened| {
            if flags.0 & O_TRUNC != 0 {
                opened.1.file.set_len(0)?;
            }
            Ok(opened)
        });
        answer!(reply, opened, (handle, backing) => match &backing.id {
            Some(id) => reply.opened_passthrough(FileHandle(handle), reader_flags(flags.0), id),
            None => reply.opened(FileHandle(handle), reader_flags(flags.0) | FopenFlags::FOPEN_KEEP_CACHE),
        });
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        flags: i32,
        reply: fuser::ReplyCreate,
    ) {
        self.count();
        let made = self.child(parent, name).and_then(|path| {
            let mut options = OpenOptions::new();
            let file = options.read(true).write(true).create_new(true).mode(mode).open(path)?;
            let attr = self.learn(parent, name, &file.metadata()?);
            let opened = self.handle(attr.ino.0, || Ok(file), |file| reply.open_backing(file))?;
            Ok((attr, opened))
        });
        answer!(reply, made, (attr, (handle, backing)) => {
            let (handle, flags) = (FileHandle(handle), reader_flags(flags));
            match &backing.id {
                Some(id) => reply.created_passthrough(&TTL, &attr, GENERATION, handle, flags, id),
                None => reply.created(&TTL, &attr, GENERATION, handle, flags),
            }
        });
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: fuser::OpenFlags,
        _: Option<fuser::LockOwner>,
        reply: fuser::ReplyData,
    ) {
        self.count();
        let mut bytes = vec![0; size as usize];
        let read = self.of_handle(handle).and_then(|open| open.file.read_at(&mut bytes, offset));
        answer!(reply, read, count => reply.data(&bytes[..count]));
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: fuser::WriteFlags,
        _: fuser::OpenFlags,
        _: Option<fuser::LockOwner>,
        reply: fuser::ReplyWrite,
    ) {
        self.count();
        let written = self.of_handle(handle).and_then(|open| open.file.write_at(data, offset));
        answer!(reply, written, count => reply.written(count as u32));
    }

    fn flush(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: fuser::LockOwner,
        reply: fuser::ReplyEmpty,
    ) {
        self.count();
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: fuser::OpenFlags,
        _: Option<fuser::LockOwner>,
        _: bool,
        reply: fuser::ReplyEmpty,
    ) {
        let last = lock(&self.handles).remove(&handle.0);
        reply.ok();
        drop(last);
    }

    fn mkdir(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        reply: fuser::ReplyEntry,
    ) {
        self.count();
        let made = self.child(parent, name).and_then(|path| {
            fs::create_dir(&path)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
            fs::symlink_metadata(path)
        });
        answer!(reply, made, meta => reply.entry(&TTL, &self.learn(parent, name, &meta), GENERATION));
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: fuser::ReplyEmpty) {
        self.count();
        let done = self.child(parent, name).and_then(fs::remove_file);
        answer!(reply, done, () => reply.ok());
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: fuser::ReplyEmpty) {
        self.count();
        let done = self.child(parent, name).and_then(fs::remove_dir);
        answer!(reply, done, () => reply.ok());
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: fuser::RenameFlags,
        reply: fuser::ReplyEmpty,
    ) {
        self.count();
        if !flags.is_empty() {
            return reply.error(Errno::EINVAL);
        }
        let done = self.child(parent, name).and_then(|from| {
            let to = self.child(new_parent, new_name)?;
            fs::rename(from, &to)?;
            self.learn(new_parent, new_name, &fs::symlink_metadata(to)?);
            Ok(())
        });
        answer!(reply, done, () => reply.ok());
    }

    fn opendir(&self, _: &Request, ino: INodeNo, _: fuser::OpenFlags, reply: fuser::ReplyOpen) {
        self.count();
        let opened = self.open_listing(ino.0);
        answer!(reply, opened, handle => reply.opened(FileHandle(handle), FopenFlags::empty()));
    }

    fn readdirplus(
        &self,
        _: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: fuser::ReplyDirectoryPlus,
    ) {
        self.count();
        let Some(names) = lock(&self.listings).get(&handle.0).cloned() else {
            return reply.error(Errno::EBADF);
        };
        for (place, (name, meta)) in names.iter().enumerate().skip(offset as usize) {
            let attr = self.learn(ino, name, meta);
            if reply.add(attr.ino, place as u64 + 1, name, &TTL, &attr, GENERATION) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: fuser::OpenFlags,
        reply: fuser::ReplyEmpty,
    ) {
        lock(&self.listings).remove(&handle.0);
        reply.ok();
    }
}
