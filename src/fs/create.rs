//! `O_CREAT`: making a name, or opening what is there.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use hearthfs_mount::{Answer, Caller, Created, Errno, Ino, OpenFlags, Opened, Reply};

use super::begin::{BeginBase, LiveOn};
use super::filesystem::Filesystem;
use super::inode::DirEntryKey;
use super::live::Mark;
use super::lookup::{Lead, is_hidden};
use super::retry::{RetryWish, Try};
use super::rights::MAY_CHANGE_NAMES;
use super::state::State;
use super::units::{PublishedBy, Purpose};
use super::wish::{DECIDE_TRIES_MAX, Wish};
use crate::digest::Digest;
use crate::local::StagedPath;
use crate::name::check_name;
use crate::namespace::{Attrs, Entry, EntryKind, FileKind, Scope};

impl Filesystem {
    pub(super) fn create_file(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &OsStr,
        mode: u32,
        flags: OpenFlags,
    ) -> Answer<Created> {
        self.0.rooms.freshness.note_activity();
        let name = name.as_bytes();
        if let Err(error) = check_name(name) {
            return Err(super::errno::of_path(error)).into();
        }
        if self.0.rules.read_only {
            return Err(Errno::EROFS).into();
        }
        if is_hidden(parent, name) {
            return Err(Errno::EPERM).into();
        }
        let mut spot: DirEntryKey = (parent, name.into());
        let path = self.0.state.lock().names.path_of(&spot);
        let kind = path.as_ref().map(|path| self.0.rules.profiles.classify(path).kind);
        let is_lock = kind == Some(FileKind::Lock(Scope::Cluster));
        if matches!(kind, Some(FileKind::Unit(_))) {
            match self.routed(caller, spot, Purpose::Make) {
                Ok(routed) => spot = routed,
                Err(errno) => return Err(errno).into(),
            }
        }
        let who = self.0.callers.who(caller);
        let now = self.0.rooms.clock.mono();
        let (tried, ended) = self.0.state.lock().retries.end_at(caller, &spot, now);
        self.give_up_seat(ended);
        let wish = Wish { caller: *caller, who, flags, tried, patient: true, client: None };
        let (attrs, is_new) = {
            let state = self.0.state.lock();
            if !state.handles.has_room(caller.uid) {
                return Err(Errno::ENFILE).into();
            }
            match self.attrs_for_new(&state, parent, caller, mode) {
                Ok(attrs) => (attrs, self.must_be_new(&state, &spot, &wish)),
                Err(errno) => return Err(errno).into(),
            }
        };
        if let Err(errno) = is_new {
            return self.create_over(&spot, &wish, attrs, errno);
        }
        if !flags.writes() {
            return match self.create_to_read(&spot, &wish, attrs.clone()) {
                Err(errno) => self.create_over(&spot, &wish, attrs, errno),
                made => made.into(),
            };
        }
        if is_lock {
            return self.create_lock(&spot, &wish, attrs);
        }
        if self.has_room() {
            return match self.stage().and_then(|staged| self.make(&spot, &wish, &attrs, staged)) {
                Err(errno) => self.create_over(&spot, &wish, attrs, errno),
                made => made.into(),
            };
        }
        let this = self.clone();
        Answer::later(async move {
            this.wait_for_room().await?;
            let staged = this.stage()?;
            match this.make(&spot, &wish, &attrs, staged) {
                Err(errno) => match this.create_over(&spot, &wish, attrs, errno) {
                    Answer::Now(reply) => reply,
                    Answer::Later(work) => work.await,
                },
                made => made,
            }
        })
    }

    /// Makes the name and its live file.
    fn make(
        &self,
        spot: &DirEntryKey,
        wish: &Wish,
        attrs: &Attrs,
        (file, staged): (File, StagedPath),
    ) -> Reply<Created> {
        let clean = Mark::of_new(&staged);
        let mut guard = self.0.state.lock();
        let state = &mut *guard;
        self.must_be_new(state, spot, wish)?;
        // The wait for room lies between the first check and this one.
        self.may_use(state, &wish.caller, spot.0, MAY_CHANGE_NAMES)?;
        let attrs = attrs.clone();
        let base = BeginBase { spot: Some(spot.clone()), published: None, attrs, copy: None };
        state.take_name(spot);
        let id = self.begin_live(state, LiveOn::Fresh, wish, &base, (file, staged, clean), true)?;
        let ino = state.lives.get(id).ok_or(Errno::ESTALE)?.ino;
        let opened = self.attach_writer(state, ino, id, wish);
        let live = state.lives.get(id).ok_or(Errno::ESTALE)?;
        // Nothing can have written to it yet, so it is not examined.
        let (attr, attr_ttl) = self.attr_of_live(state, live, (0, live.attrs.mtime));
        let found = self.tell(state, Some(spot), attr, attr_ttl, Duration::MAX);
        Ok(Created { found, opened })
    }

    /// Checks that a name leads nowhere. Where it leads somewhere, `ESTALE` makes the kernel look
    /// again and check the mode of the file that it finds.
    fn must_be_new(&self, state: &State, spot: &DirEntryKey, wish: &Wish) -> Reply<()> {
        let path = state.names.path_of(spot).ok_or_else(|| state.names.why_no_path(spot))?;
        let there = self.seen(&path).is_some() || state.has_private(spot);
        match there {
            true if wish.flags.exclusive => Err(Errno::EEXIST),
            true => Err(Errno::ESTALE),
            false => Ok(()),
        }
    }

    /// Continues where the name to be made exists already.
    pub(super) fn create_over(
        &self,
        spot: &DirEntryKey,
        wish: &Wish,
        attrs: Attrs,
        errno: Errno,
    ) -> Answer<Created> {
        if errno != Errno::ESTALE {
            return Err(errno).into();
        }
        if !wish.is_last() {
            let now = self.0.rooms.clock.mono();
            let again = RetryWish::of(wish.writes().then_some(wish.flags));
            let mut state = self.0.state.lock();
            state.retries.begin(&wish.caller, vec![spot.clone()], None, again, now);
            return Err(Errno::ESTALE).into();
        }
        // The thread has looked again already, and the name has appeared since.
        let (this, spot, wish) = (self.clone(), spot.clone(), *wish);
        Answer::later(async move {
            for _ in 0..DECIDE_TRIES_MAX {
                match this.open_as_found(&spot, &wish).await {
                    Err(Errno::ESTALE) => {}
                    done => return done,
                }
                if this.must_be_new(&this.0.state.lock(), &spot, &wish).is_ok() {
                    let made = if wish.flags.writes() {
                        this.stage().and_then(|staged| this.make(&spot, &wish, &attrs, staged))
                    } else {
                        this.create_to_read(&spot, &wish, attrs.clone())
                    };
                    if !matches!(made, Err(Errno::ESTALE)) {
                        return made;
                    }
                }
            }
            Err(Errno::EBUSY)
        })
    }

    /// Opens what a name leads to, and checks its mode, as the kernel does after a lookup.
    async fn open_as_found(&self, spot: &DirEntryKey, wish: &Wish) -> Reply<Created> {
        let (lead, ino) = {
            let mut state = self.0.state.lock();
            let path = Self::path_to_find(&state, spot)?;
            let found = if wish.flags.writes() {
                let led = self.lead_writer(&mut state, spot, &path, wish.who, wish.flags, None);
                led.map(Lead::lasting)
            } else {
                self.find(&mut state, spot, &path, Some(wish.who)).map(|(lead, _)| lead).ok()
            };
            let lead = found.ok_or(Errno::ESTALE)?;
            let entry = state.entry_of(lead.ino).ok_or(Errno::EISDIR)?;
            self.permits(&wish.caller, &entry.attrs, wish.wants())?;
            (lead, lead.ino)
        };
        let flags = OpenFlags { exclusive: false, ..wish.flags };
        let opened = match self.open_file_as(ino, &Wish { flags, ..*wish }) {
            Answer::Now(reply) => reply?,
            Answer::Later(work) => work.await?,
        };
        self.tell_opened(lead, spot, opened)
    }

    pub(super) fn tell_opened(
        &self,
        lead: Lead,
        spot: &DirEntryKey,
        opened: Opened,
    ) -> Reply<Created> {
        let found = self.found(&mut self.0.state.lock(), lead, Some(spot))?;
        Ok(Created { found, opened })
    }

    /// Creates with `O_RDONLY`. No handle can write the file, so the empty file is published at
    /// once.
    fn create_to_read(&self, spot: &DirEntryKey, wish: &Wish, attrs: Attrs) -> Reply<Created> {
        let kind = EntryKind::File { digest: Digest::empty(), size: 0 };
        let ino = match self.put_new(spot, Entry { kind, attrs, link: None }) {
            Ok(ino) => ino,
            Err(Errno::EEXIST) if wish.flags.exclusive => return Err(Errno::EEXIST),
            Err(Errno::EEXIST) => return Err(Errno::ESTALE),
            Err(errno) => return Err(errno),
        };
        self.note_published(spot, Some(&wish.caller), PublishedBy::NameCall)?;
        let flags = OpenFlags { exclusive: false, ..wish.flags };
        match self.open_file_as(ino, &Wish { flags, tried: Try::First, ..*wish }) {
            Answer::Now(opened) => self.tell_opened(Lead::lasting(ino), spot, opened?),
            // An empty file opens without a wait, so another file has taken its place.
            Answer::Later(_) => Err(Errno::ESTALE),
        }
    }

    /// Returns the attributes for something new in a directory. A directory with the set-group-id
    /// bit passes its group on.
    pub(super) fn attrs_for_new(
        &self,
        state: &State,
        parent: Ino,
        caller: &Caller,
        mode: u32,
    ) -> Reply<Attrs> {
        self.may_use(state, caller, parent, MAY_CHANGE_NAMES)?;
        let (dir, _) = self.attr_of(state, parent)?;
        if dir.nlink == 0 {
            return Err(Errno::ENOENT);
        }
        let gid = if dir.perm & 0o2000 == 0 { caller.gid } else { dir.gid };
        let now = self.now();
        Ok(Attrs {
            mode: mode & 0o7777,
            uid: caller.uid,
            gid,
            mtime: now,
            atime: now,
            ..Attrs::default()
        })
    }
}
