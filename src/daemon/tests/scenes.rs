//! Several calls that belong together: what programs do in one go, and what single random calls hardly ever come to.

use hearthfs_mount::OpenFlags;

use super::calls::{Call, Text};
use super::kernel::Fd;
use super::node::{READ, REPLACE};
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
        // What may be mapped goes another way than what may not.
        let flags = OpenFlags { read, ..REPLACE };
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

    /// Has another program inherit a descriptor, write by it, and exit; then all others read the name (rule 4).
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

    /// Has all programs look at a name, one after the other: what it leads one to must not be shown to the next.
    pub(super) fn glance(&mut self, program: usize, path: &'static str) {
        for next in 0..PROGRAMS {
            self.call((program + next) % PROGRAMS, &Call::Stat { path });
        }
    }
}
