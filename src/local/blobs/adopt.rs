//! Adopting a staged file as a blob, and giving it back to a writer who is not done.
//!
//! A blob is *unsealed* as long as its writer may still write to it through a duplicated descriptor
//! or a mapping. Writers are told apart by the inode of their file: when two of them come to the
//! same digest, one file serves it and the other is *displaced* into staging, where it stays its
//! writer's.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

use super::{Adopted, Blob, Blobs, Sealed, State, Used, failed, is_full, seal_at};
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::local::dir::inode_of;
use crate::local::lru::{Held, charge};
use crate::local::seal::{Seal, hash_file};
use crate::local::staging::StagedPath;

impl Blobs {
    /// Makes a staged file the blob of `digest`. Nobody may write to it any more.
    ///
    /// `file` is the staged file, and `digest` and `size` are its content's: the caller has read it.
    /// Survives SIGKILL once this has returned; [`Blobs::sync`] makes it survive a power loss.
    pub fn adopt(
        &self,
        staged: StagedPath,
        file: &File,
        digest: Digest,
        size: u64,
        state: State,
    ) -> Result<Adopted> {
        self.adopt_as(staged, file, digest, size, state, true)
    }

    /// Makes a staged file the blob of `digest` although its writer may still write to it.
    ///
    /// The writer must come back with [`Blobs::seal`] when it can write no more, and with
    /// [`Blobs::withdraw`] when it has written.
    pub fn adopt_unsealed(
        &self,
        staged: StagedPath,
        file: &File,
        digest: Digest,
        size: u64,
        state: State,
    ) -> Result<Adopted> {
        self.adopt_as(staged, file, digest, size, state, false)
    }

    fn adopt_as(
        &self,
        staged: StagedPath,
        file: &File,
        digest: Digest,
        size: u64,
        state: State,
        sealed: bool,
    ) -> Result<Adopted> {
        if sealed && digest.is_empty_content() {
            return Ok(Adopted::Known);
        }
        // A file that may still be written to is looked at again when it is sealed.
        if sealed {
            let found = file.metadata().map_err(|e| failed("examine", &digest, e))?;
            if found.len() != size {
                let op = format!("adopt blob {digest}: {} bytes instead of {size}", found.len());
                return Err(Error::new(Kind::Corrupt, op));
            }
        }
        let unsaved = state == State::Unsaved && !self.0.options.evict_unsaved;
        let adopted = self.put_in_place(staged, file, digest, unsaved, sealed)?;
        self.relieve(charge(size));
        Ok(adopted)
    }

    fn put_in_place(
        &self,
        staged: StagedPath,
        file: &File,
        digest: Digest,
        unsaved: bool,
        sealed: bool,
    ) -> Result<Adopted> {
        let path = self.path_of(&digest);
        let _stripe = self.stripe(&digest);
        let known = self.0.table.lock().tier.get(&digest);
        let here = match known {
            Some(_) => seal_at(&path).map_err(|e| failed("examine", &digest, e))?,
            None => None,
        };
        if let Some(held) = known
            && held.blob.verified
            && !held.unsealed
            && here == Some(held.blob.seal)
        {
            return self.known(staged, file, digest, unsaved, sealed);
        }
        let displaced = known.filter(|held| held.unsealed && here.is_some());
        self.move_in(staged, &path, &digest, displaced)?;
        // Renaming moves the ctime, so the seal is taken afterwards.
        let found = file.metadata().map_err(|e| failed("examine", &digest, e))?;
        let (seal, used) = (Seal::of(&found), self.now());
        let unsaved = unsaved || known.is_some_and(|held| held.unsaved);
        let mut table = self.0.table.lock();
        table.tier.put(digest, Blob { seal, verified: true, used }, unsaved, !sealed);
        // The next run is not to trust an unsealed blob without reading it.
        if sealed {
            table.tell(digest, Some(Used { seal, used }));
        }
        Ok(Adopted::New)
    }

    /// Keeps the intact blob that is there and lets go of the staged file.
    fn known(
        &self,
        staged: StagedPath,
        file: &File,
        digest: Digest,
        unsaved: bool,
        sealed: bool,
    ) -> Result<Adopted> {
        let ino = inode_of(file).map_err(|e| failed("examine", &digest, e))?;
        let mut table = self.0.table.lock();
        table.tier.change(&digest, |held| held.unsaved |= unsaved);
        if sealed {
            drop(table);
            drop(staged);
        } else {
            table.displaced.insert(ino, (digest, staged));
        }
        Ok(Adopted::Known)
    }

    /// Renames a staged file to the path of its digest. The file of an unsealed writer that lies
    /// there moves to staging in the same step, so that the digest never misses.
    fn move_in(
        &self,
        staged: StagedPath,
        path: &Path,
        digest: &Digest,
        displaced: Option<Held>,
    ) -> Result<()> {
        let Some(writer) = displaced else {
            self.rename(staged.path(), path, digest)?;
            staged.consume();
            return Ok(());
        };
        let ino = writer.blob.seal.ino;
        match rustix::fs::renameat_with(CWD, staged.path(), CWD, path, RenameFlags::EXCHANGE) {
            Ok(()) => {
                staged.note_bytes(charge(writer.blob.seal.size));
                self.0.table.lock().displaced.insert(ino, (*digest, staged));
            }
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                let aside = self.0.shelf.name();
                fs::hard_link(path, aside.path()).map_err(|e| failed("displace", digest, e))?;
                self.rename(staged.path(), path, digest)?;
                staged.consume();
                self.0.table.lock().displaced.insert(ino, (*digest, aside));
            }
            Err(e) => return Err(failed("adopt", digest, e.into())),
        }
        Ok(())
    }

    /// Renames, and tries once more after removing the reason of a failure that has a remedy.
    fn rename(&self, from: &Path, to: &Path, digest: &Digest) -> Result<()> {
        let first = match fs::rename(from, to) {
            Ok(()) => return Ok(()),
            Err(e) => e,
        };
        if is_full(&first) {
            self.free_up(super::evict::FULL_DISK_STEP_BYTES);
        } else if first.kind() == io::ErrorKind::NotFound && from.exists() {
            if let Some(shard) = to.parent() {
                fs::create_dir_all(shard).map_err(|e| failed("adopt", digest, e))?;
            }
        } else if first.kind() == io::ErrorKind::IsADirectory {
            fs::remove_dir_all(to).map_err(|e| failed("adopt", digest, e))?;
        } else {
            return Err(failed("adopt", digest, first));
        }
        fs::rename(from, to).map_err(|e| failed("adopt", digest, e))
    }

    /// Seals the blob that the writer of `file` left unsealed; nobody may write to `file` any more.
    ///
    /// Reads the whole file: writes through a mapping leave no other trace. On `Changed` the blob
    /// is served no more; take the file back with [`Blobs::withdraw`].
    pub fn seal(&self, digest: &Digest, file: &File) -> Result<Sealed> {
        let expected = self.0.table.lock().tier.get(digest).map_or(0, |held| held.blob.seal.size);
        let content = hash_file(file, expected).map_err(|e| failed("read", digest, e))?;
        let same = content == *digest;
        let found = file.metadata().map_err(|e| failed("examine", digest, e))?;
        let ino = Seal::of(&found).ino;
        let path = self.path_of(digest);
        let _stripe = self.stripe(digest);
        let here = seal_at(&path).map_err(|e| failed("examine", digest, e))?;
        let mut table = self.0.table.lock();
        let known = table.tier.get(digest);
        let mine = known.is_some_and(|held| held.unsealed && held.blob.seal.ino == ino);
        if !same {
            if mine {
                table.tier.change(digest, |held| held.blob.verified = false);
            }
            return Ok(Sealed::Changed);
        }
        if mine && here.is_some_and(|here| here.ino == ino) {
            return Ok(self.seal_in_place(digest, here.unwrap_or(Seal::of(&found)), &mut table));
        }
        let Some((_, staged)) = table.displaced.remove(&ino) else { return Ok(Sealed::Changed) };
        drop(table);
        let intact = known.is_some_and(|held| {
            held.blob.verified && !held.unsealed && Some(held.blob.seal) == here
        });
        if intact {
            drop(staged);
            return Ok(Sealed::Kept);
        }
        // What served the digest is gone or may change: ours takes its place.
        let displaced = known.filter(|held| held.unsealed && here.is_some());
        self.move_in(staged, &path, digest, displaced)?;
        let found = file.metadata().map_err(|e| failed("examine", digest, e))?;
        let mut table = self.0.table.lock();
        let unsaved = known.is_none_or(|held| held.unsaved) && !self.0.options.evict_unsaved;
        let blob = Blob { seal: Seal::of(&found), verified: true, used: self.now() };
        table.tier.put(*digest, blob, unsaved, false);
        table.tell(*digest, Some(Used { seal: blob.seal, used: blob.used }));
        Ok(Sealed::Kept)
    }

    fn seal_in_place(&self, digest: &Digest, seal: Seal, table: &mut super::Table) -> Sealed {
        let used = self.now();
        table.tier.change(digest, |held| {
            held.blob = Blob { seal, verified: true, used };
            held.unsealed = false;
        });
        table.tell(*digest, Some(Used { seal, used }));
        Sealed::Kept
    }

    /// Takes the file of an unsealed writer back into staging; `None` when it has no name any more
    /// (somebody removed it), so that its content must be copied out of `file`.
    ///
    /// Whoever else needs the digest misses it afterwards, unless another writer's file serves it.
    pub fn withdraw(&self, digest: &Digest, file: &File) -> Result<Option<StagedPath>> {
        let found = file.metadata().map_err(|e| failed("examine", digest, e))?;
        let ino = Seal::of(&found).ino;
        let path = self.path_of(digest);
        let _stripe = self.stripe(digest);
        let mut table = self.0.table.lock();
        if let Some((_, staged)) = table.displaced.remove(&ino) {
            staged.note_bytes(found.len());
            return Ok(Some(staged));
        }
        let mine = table.tier.get(digest).filter(|held| held.unsealed && held.blob.seal.ino == ino);
        drop(table);
        let Some(mine) = mine else { return Ok(None) };
        let here = seal_at(&path).map_err(|e| failed("examine", digest, e))?;
        if here.is_none_or(|here| here.ino != ino) {
            self.0.table.lock().forget(digest);
            return Ok(None);
        }
        let staged = self.0.shelf.name();
        fs::rename(&path, staged.path()).map_err(|e| failed("withdraw", digest, e))?;
        staged.note_bytes(found.len());
        if let Err(e) = self.promote(digest, &path, mine.unsaved) {
            tracing::debug!(%digest, error = %e, "no other writer's file can serve this blob");
        }
        Ok(Some(staged))
    }

    /// Lets another writer's file serve a digest whose own file was withdrawn, if there is one that
    /// still holds these bytes; forgets the blob otherwise.
    fn promote(&self, digest: &Digest, path: &Path, unsaved: bool) -> io::Result<()> {
        let mut table = self.0.table.lock();
        table.forget(digest);
        let others = table.displaced.iter().filter(|(_, (of, _))| of == digest);
        let others: Vec<_> = others.map(|(ino, (_, at))| (*ino, at.path().to_owned())).collect();
        drop(table);
        for (ino, at) in others {
            let file = File::open(&at)?;
            let size = file.metadata()?.len();
            if hash_file(&file, size)? != *digest {
                continue;
            }
            fs::rename(&at, path)?;
            let seal = Seal::of(&file.metadata()?);
            let mut table = self.0.table.lock();
            let blob = Blob { seal, verified: true, used: self.now() };
            table.tier.put(*digest, blob, unsaved, true);
            table.news.remove(digest);
            if let Some((_, staged)) = table.displaced.remove(&ino) {
                staged.consume();
            }
            break;
        }
        Ok(())
    }
}
