//! Groups of calls that belong together: what programs do in one go, and what random single calls
//! hardly ever produce.

use hearthfs_mount::OpenFlags;

use super::calls::{Call, Text};
use super::kernel::Fd;
use super::node::{READ, REPLACE, UPDATE, written};
use super::world::{PROGRAMS, World};

impl World<'_> {
    /// Creates, writes and closes.
    pub(super) fn put(
        &mut self,
        program: usize,
        path: &'static str,
        text: Text,
        mode: u32,
        read: bool,
    ) {
        let Some(fd) = self.new_fd() else { return };
        // A file that may be mapped takes another path than one that may not.
        let flags = OpenFlags { access: written(read), ..REPLACE };
        if self.call(program, &Call::Open { path, fd, flags, mode: Some(mode) }) {
            if !text.0.is_empty() {
                self.call(program, &Call::Write { fd, at: 0, text });
            }
            self.call(program, &Call::Close { fd });
        }
    }

    /// Reads a whole file by its name.
    pub(super) fn get(&mut self, program: usize, path: &'static str) {
        let Some(fd) = self.new_fd() else { return };
        if self.call(program, &Call::Open { path, fd, flags: READ, mode: None }) {
            self.call(program, &Call::Read { fd });
            self.call(program, &Call::Close { fd });
        }
    }

    /// Makes another program inherit a descriptor, write through it, and exit. After that all other
    /// programs read the name (rule 4).
    pub(super) fn spawn(&mut self, program: usize, fd: Fd, path: Option<&'static str>, text: Text) {
        let (child, Some(new)) = ((program + 1) % PROGRAMS, self.new_fd()) else { return };
        self.call(program, &Call::Duplicate { fd, new, to: child });
        self.call(child, &Call::Write { fd: new, at: 0, text });
        self.call(child, &Call::Close { fd: new });
        for reader in (0..PROGRAMS).filter(|_| path.is_some()) {
            self.get(reader, path.unwrap_or_default());
        }
    }

    /// Maps a file, closes it, stores, and unmaps, as a linker does (rule 10).
    pub(super) fn link_as_linkers_do(&mut self, program: usize, fd: Fd, text: &Text) {
        let Some(mapping) = self.new_fd() else { return };
        self.call(program, &Call::Write { fd, at: 0, text: text.clone() });
        self.call(program, &Call::Map { fd, mapping });
        self.call(program, &Call::Close { fd });
        let text = Text(text.0.to_ascii_uppercase());
        self.call(program, &Call::Store { mapping, at: 0, text });
        self.call(program, &Call::Unmap { mapping });
    }

    /// Writes and closes a file that another program still has open. A third program begins to read
    /// or write the file before the second one writes further (P3, rules 4 and 10).
    pub(super) fn leave(&mut self, program: usize, path: &'static str, text: &Text, how: usize) {
        let (heir, third) = ((program + 1) % PROGRAMS, (program + 2) % PROGRAMS);
        let later = Text(text.0.to_ascii_uppercase());
        let Some(fd) = self.new_fd() else { return };
        let flags = OpenFlags { access: written(how & 1 > 0), ..REPLACE };
        if !self.call(program, &Call::Open { path, fd, flags, mode: Some(0o666) }) {
            return;
        }
        let Some(left) = self.new_fd() else { return };
        self.call(program, &Call::Duplicate { fd, new: left, to: heir });
        self.call(program, &Call::Write { fd, at: 0, text: text.clone() });
        self.call(program, &Call::Close { fd });
        let Some(fd) = self.new_fd() else { return };
        let write = OpenFlags { access: written(how & 2 > 0), truncate: how & 4 > 0, ..UPDATE };
        let flags = if how & 8 > 0 { write } else { READ };
        let opened = self.call(third, &Call::Open { path, fd, flags, mode: None });
        if how & 32 > 0 {
            self.call(heir, &Call::Write { fd: left, at: 1, text: later });
        }
        if opened && flags.reads() {
            self.call(third, &Call::Read { fd });
        }
        if opened && flags.writes() {
            self.call(third, &Call::Write { fd, at: 2, text: Text(b"_".to_vec()) });
        }
        if opened && how & 64 > 0 {
            self.call(third, &Call::Close { fd });
        }
        if how & 16 > 0 {
            self.call(heir, &Call::Close { fd: left });
        }
        self.get(third, path);
    }

    /// Keeps a file open for reading, removes its name or not, and opens the file once more for
    /// writing, through its descriptor (P14).
    pub(super) fn come_back(&mut self, program: usize, path: &'static str, text: Text, how: usize) {
        let (Some(fd), Some(reader)) = (self.new_fd(), self.new_fd()) else { return };
        let own = how & 1 > 0;
        if own && !self.call(program, &Call::Open { path, fd, flags: REPLACE, mode: Some(0o666) }) {
            return;
        }
        let look = Call::Open { path, fd: reader, flags: READ, mode: None };
        let opened = self.call(program, &look);
        if own {
            self.call(program, &Call::Write { fd, at: 0, text: text.clone() });
        }
        if how & 2 > 0 {
            self.call(program, &Call::Unlink { path });
        }
        if own {
            self.call(program, &Call::Close { fd });
        }
        let Some(new) = self.new_fd().filter(|_| opened) else { return };
        let flags = OpenFlags { access: written(false), truncate: how & 4 > 0, ..UPDATE };
        let flags = if how & 8 > 0 { READ } else { flags };
        if !self.call(program, &Call::Reopen { fd: reader, new, flags }) {
            return;
        }
        if flags.writes() {
            self.call(program, &Call::Write { fd: new, at: 0, text });
        } else {
            self.call(program, &Call::Read { fd: new });
        }
        self.call(program, &Call::Read { fd: reader });
        self.call(program, &Call::Close { fd: new });
        self.get((program + 1) % PROGRAMS, path);
    }

    /// Makes all programs look at a name, one after the other. What the name leads one program to
    /// must not be shown to the next.
    pub(super) fn glance(&mut self, program: usize, path: &'static str) {
        for next in 0..PROGRAMS {
            self.call((program + next) % PROGRAMS, &Call::Stat { path });
        }
    }
}
