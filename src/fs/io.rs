//! Reads and writes that come to the daemon, and the calls on open files that the kernel never
//! passes through.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use hearthfs_mount::{Answer, Errno, Handle, Ino, Reply, StatFs};
use rustix::fs::{FallocateFlags, SeekFrom};

use super::filesystem::Filesystem;
use super::handles::Bytes;
use super::inode::{Inode, InodeKind, Source};
use crate::namespace::EntryKind;

impl Filesystem {
    fn bytes_of(&self, handle: Handle) -> Reply<Bytes> {
        let state = self.0.state.lock();
        state.handles.file(handle).map(|file| file.bytes.clone()).ok_or(Errno::EBADF)
    }

    /// Returns the file of a writing handle, and whether writes go to its end. The caller is about
    /// to write `bytes` bytes that end at `end`, and they count from now on. The published version
    /// of the file is preserved first.
    fn writable(&self, handle: Handle, end: u64, bytes: u64) -> Reply<(Arc<Source>, bool)> {
        let (id, found) = {
            let mut state = self.0.state.lock();
            let file = state.handles.file_mut(handle).ok_or(Errno::EBADF)?;
            let writing = file.writing.as_mut().ok_or(Errno::EBADF)?;
            writing.note_write();
            let id = writing.live();
            let found = match &file.bytes {
                Bytes::Source(source) => (Arc::clone(source), writing.goes_to_the_end()),
                Bytes::Empty => return Err(Errno::EBADF),
            };
            if writing.is_aside() {
                let through = file.ino;
                state.note_change(id, through);
            }
            let live = state.lives.get(id).ok_or(Errno::EBADF)?;
            if let Some(staged) = &live.staged {
                staged.note_growth(end, bytes);
            }
            (live.version().is_some().then_some(id), found)
        };
        if let Some(id) = id {
            self.preserve(id).map_err(|error| super::errno::promised(&error))?;
        }
        Ok(found)
    }

    pub(super) fn read_file(&self, handle: Handle, offset: u64, size: u32) -> Reply<Vec<u8>> {
        let bytes = self.bytes_of(handle)?;
        let Some(file) = bytes.file() else { return Ok(Vec::new()) };
        let mut buffer = vec![0; size as usize];
        let mut filled = 0;
        while filled < buffer.len() {
            match file.read_at(&mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        buffer.truncate(filled);
        Ok(buffer)
    }

    pub(super) fn write_file(&self, handle: Handle, offset: u64, data: &[u8]) -> Reply<u32> {
        let (source, to_the_end) =
            self.writable(handle, offset.saturating_add(data.len() as u64), data.len() as u64)?;
        let file = source.backing.file();
        if to_the_end {
            let _end = source.end.lock();
            file.write_all_at(data, file.metadata()?.len())?;
        } else {
            file.write_all_at(data, offset)?;
        }
        Ok(data.len() as u32)
    }

    /// Writes what was stored through a mapping. That belongs to the inode's own bytes, whichever
    /// handle the kernel has picked: the handle may append, or have bytes of its own. The write
    /// ends at the end of the file, because beyond that the kernel only knows its own idea of the
    /// size.
    pub(super) fn write_stored(
        &self,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Reply<u32> {
        let own = {
            let mut state = self.0.state.lock();
            let id = state.names.inode(ino).and_then(Inode::live);
            id.and_then(|id| Some((id, state.lives.get_mut(id)?))).map(|(id, live)| {
                live.mapped.note_store(self.0.rooms.clock.mono());
                (id, Arc::clone(&live.source), live.version().is_some())
            })
        };
        let id = own.as_ref().map(|(id, ..)| *id);
        let source = match own {
            Some((id, source, published)) => {
                if published {
                    self.preserve(id).map_err(|error| super::errno::promised(&error))?;
                }
                source
            }
            None => self.writable(handle, 0, 0)?.0,
        };
        let file = source.backing.file();
        let left = file.metadata()?.len().saturating_sub(offset);
        let within = usize::try_from(left).unwrap_or(usize::MAX).min(data.len());
        file.write_all_at(&data[..within], offset)?;
        // Preserving the older version may have taken a while. Only now can the end of the mapping
        // arrive.
        let mut state = self.0.state.lock();
        if let Some(live) = id.and_then(|id| state.lives.get_mut(id)) {
            live.mapped.note_store(self.0.rooms.clock.mono());
        }
        Ok(data.len() as u32)
    }

    pub(super) fn sync_file(&self, ino: Ino, handle: Handle) -> Answer<()> {
        let (source, content, live) = {
            let mut state = self.0.state.lock();
            let Some(file) = state.handles.file(handle) else { return Err(Errno::EBADF).into() };
            let source = match &file.bytes {
                Bytes::Source(source) => Some(Arc::clone(source)),
                Bytes::Empty => None,
            };
            let id = file.live().or_else(|| state.names.inode(ino)?.live());
            match id.and_then(|id| state.lives.get_mut(id)) {
                Some(live) => {
                    // Its bytes are in the file itself until they are a blob.
                    live.synced = true;
                    (source, live.version().map(|version| version.digest), id)
                }
                None => match state.names.inode(ino).map(|inode| &inode.node) {
                    Some(InodeKind::Entry(published)) => match published.entry.kind {
                        EntryKind::File { digest, .. } => (source, Some(digest), None),
                        _ => (source, None, None),
                    },
                    _ => (source, None, None),
                },
            }
        };
        let this = self.clone();
        Answer::later(crate::task::blocking(move || {
            if let Some(source) = source {
                source.backing.file().sync_all()?;
            }
            let promised = |error: crate::error::Error| super::errno::promised(&error);
            // The end of a closed file may be under way already, without a sync.
            let is_blob = live.is_none_or(|id| this.finish_left(id));
            if let Some(digest) = content.filter(|digest| is_blob && !digest.is_empty_content()) {
                this.0.rooms.blobs.sync(&digest).map_err(promised)?;
            }
            this.0.rooms.ledger.sync().map_err(promised)
        }))
    }

    /// Makes the names of a directory durable.
    pub(super) fn sync_names(&self) -> Answer<()> {
        let this = self.clone();
        Answer::later(crate::task::blocking(move || {
            this.0.rooms.ledger.sync().map_err(|error| super::errno::promised(&error))
        }))
    }

    pub(super) fn allocate(
        &self,
        handle: Handle,
        offset: u64,
        length: u64,
        mode: i32,
    ) -> Reply<()> {
        let (source, _) = self.writable(handle, 0, 0)?;
        let flags = FallocateFlags::from_bits(mode as u32).ok_or(Errno::EOPNOTSUPP)?;
        rustix::fs::fallocate(source.backing.file(), flags, offset, length).map_err(errno_of)
    }

    pub(super) fn seek(&self, handle: Handle, offset: i64, whence: i32) -> Reply<i64> {
        /// `SEEK_DATA` and `SEEK_HOLE` of `lseek(2)`; the kernel answers the others itself.
        const SEEK_DATA: i32 = 3;
        const SEEK_HOLE: i32 = 4;
        let from = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
        let bytes = self.bytes_of(handle)?;
        let Some(file) = bytes.file() else { return Err(Errno::ENXIO) };
        let to = match whence {
            SEEK_DATA => SeekFrom::Data(from),
            SEEK_HOLE => SeekFrom::Hole(from),
            _ => return Err(Errno::EINVAL),
        };
        rustix::fs::seek(file, to).map(|at| at as i64).map_err(errno_of)
    }

    pub(super) fn stat_fs(&self) -> Reply<StatFs> {
        let figures = rustix::fs::statvfs(&self.0.rules.cache_dir).map_err(errno_of)?;
        Ok(StatFs {
            blocks: figures.f_blocks,
            free: figures.f_bfree,
            available: figures.f_bavail,
            files: figures.f_files,
            files_free: figures.f_ffree,
            block_size: figures.f_frsize as u32,
            name_max: crate::name::MAX_NAME_BYTES as u32,
        })
    }
}

fn errno_of(errno: rustix::io::Errno) -> Errno {
    Errno(errno.raw_os_error())
}
