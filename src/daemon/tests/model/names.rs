//! Names: the calls that make, move, remove and show them.

use std::collections::BTreeSet;

use hearthfs_mount::Errno;

use super::{Done, Kind, Model, Seen, Shown, Thing, View, What, is_below, moved, parent};
use crate::daemon::tests::users::{R, SETGID, W};

impl Model {
    pub(super) fn make(&mut self, program: usize, path: &str, what: What, mode: u32) -> Done {
        self.walk(program, path)?;
        if self.view(program, path).is_some() {
            return Err(Errno::EEXIST);
        }
        self.permit_change(program, path)?;
        let mut rights = self.rights_for_new(program, path, mode);
        if what == What::Dir {
            rights.mode |= self.rights_of_dir(parent(path)).mode & SETGID;
        }
        self.detach(path);
        let put = self.next();
        self.put(path, Thing { what, rights, group: None, put });
        Ok(())
    }

    pub(super) fn link(&mut self, program: usize, from: &str, to: &str) -> Done {
        self.walk(program, from)?;
        let view = self.view(program, from).ok_or(Errno::ENOENT)?;
        self.walk(program, to)?;
        if self.view(program, to).is_some() {
            return Err(Errno::EEXIST);
        }
        self.permit_change(program, to)?;
        let thing = self.published(from).filter(|_| view.kind != Kind::Dir && view.draft.is_none());
        // A file that is not published yet has nothing that a second name could lead to.
        let mut thing = thing.ok_or(Errno::EPERM)?;
        if thing.group.is_none() {
            thing.group = Some(self.next());
            self.put(from, thing.clone());
        }
        self.detach(to);
        self.put(to, thing);
        self.link_locks(from, to);
        Ok(())
    }

    /// Takes a name from drafts that are written under it, or were closed there and removed by
    /// another node.
    pub(super) fn detach(&mut self, path: &str) {
        for draft in self.drafts.values_mut().filter(|d| d.name.as_deref() == Some(path)) {
            draft.name = None;
        }
    }

    /// Checks that a program may remove what it finds under a name.
    fn may_delete(&self, program: usize, path: &str, view: &View, is_dir: bool) -> Done {
        self.permit_change(program, path)?;
        let (user, dir) = (self.users[program], self.rights_of_dir(parent(path)));
        let there = self.published(path).map(|thing| thing.rights);
        if user.sticks(dir, view.rights) || there.is_some_and(|there| user.sticks(dir, there)) {
            return Err(Errno::EPERM);
        }
        match (is_dir, view.kind == Kind::Dir) {
            (true, false) => Err(Errno::ENOTDIR),
            (false, true) => Err(Errno::EISDIR),
            _ => Ok(()),
        }
    }

    pub(super) fn unlink(&mut self, program: usize, path: &str) -> Done {
        self.walk(program, path)?;
        let view = self.view(program, path).ok_or(Errno::ENOENT)?;
        self.may_delete(program, path, &view, false)?;
        if self.published(path).is_some() {
            self.remove(path);
        }
        self.detach(path);
        self.part_locks(path);
        Ok(())
    }

    fn is_empty_dir(&self, path: &str) -> bool {
        self.live_below(path).next().is_none() && !self.drafts_below(path)
    }

    pub(super) fn rmdir(&mut self, program: usize, path: &str) -> Done {
        self.walk(program, path)?;
        let view = self.view(program, path).ok_or(Errno::ENOENT)?;
        self.may_delete(program, path, &view, true)?;
        if !self.is_empty_dir(path) {
            return Err(Errno::ENOTEMPTY);
        }
        self.remove(path);
        self.part_locks(path);
        Ok(())
    }

    fn is_same_file(&self, program: usize, from: &str, to: &str) -> bool {
        let group = |path| self.published(path).and_then(|thing: Thing| thing.group);
        let draft = |path| self.view(program, path).and_then(|view| view.draft);
        from == to
            || (group(from).is_some() && group(from) == group(to) && draft(from) == draft(to))
    }

    /// Renames a file or directory (rule 6).
    pub(super) fn rename(&mut self, program: usize, from: &str, to: &str) -> Done {
        self.walk(program, from)?;
        self.walk(program, to)?;
        let view = self.view(program, from).ok_or(Errno::ENOENT)?;
        let target = self.view(program, to);
        if is_below(to, from) {
            return Err(Errno::EINVAL);
        }
        if is_below(from, to) {
            return Err(Errno::ENOTEMPTY);
        }
        if self.is_same_file(program, from, to) {
            return Ok(());
        }
        let is_dir = view.kind == Kind::Dir;
        self.may_delete(program, from, &view, is_dir)?;
        match &target {
            Some(target) => self.may_delete(program, to, target, is_dir)?,
            None => self.permit_change(program, to)?,
        }
        if is_dir && parent(from) != parent(to) {
            self.permit(program, view.rights, W)?;
        }
        if is_dir && target.is_some() && !self.is_empty_dir(to) {
            return Err(Errno::ENOTEMPTY);
        }
        self.carry_out(from, to);
        Ok(())
    }

    fn carry_out(&mut self, from: &str, to: &str) {
        let (source, target) = (self.published(from), self.published(to));
        self.detach(to);
        let waits = source.is_none();
        if let Some(thing) = source {
            let mut all = vec![(from.to_owned(), thing)];
            all.extend(self.live_below(from).map(|(path, thing)| (path.clone(), thing.clone())));
            for (path, _) in &all {
                self.remove(path);
            }
            for (path, mut thing) in all {
                if thing.put == 0 {
                    thing.put = self.next();
                }
                self.put(&moved(&path, from, to), thing);
            }
            // Rule 11 has kept the directory above each implied directory that was just emptied.
            // Below the moved directory itself, nothing may stay.
            let stale: Vec<String> = self.live_below(from).map(|(path, _)| path.clone()).collect();
            for path in stale.iter().map(String::as_str).chain([from]) {
                let number = self.next();
                self.registers.insert(path.to_owned(), (number, None));
            }
        }
        let ids: Vec<usize> = self.drafts.keys().copied().collect();
        for id in ids {
            // If nothing is published, the drafts written there move. A draft that was closed, and
            // removed by another node, does not.
            let gone = waits && !self.is_private(id);
            let draft = self.drafts.get_mut(&id).unwrap();
            if let Some(name) = &mut draft.name
                && (name == from || is_below(name, from))
            {
                let itself = name == from;
                if gone && itself {
                    draft.name = None;
                    continue;
                }
                *name = moved(name, from, to);
                if waits && itself {
                    // It is another file, and replaces what is published there when it is closed.
                    draft.unpublished.fresh = true;
                    (draft.began, draft.base) = (None, target.as_ref().map(|thing| thing.put));
                    draft.renamed = target.is_some();
                }
            }
        }
        self.move_locks(from, to);
    }

    pub(super) fn list(&self, program: usize, path: &str) -> Result<Vec<String>, Errno> {
        if !path.is_empty() {
            self.walk(program, path)?;
            match self.view(program, path) {
                Some(View { kind: Kind::Dir, .. }) => {}
                Some(_) => return Err(Errno::ENOTDIR),
                None => return Err(Errno::ENOENT),
            }
        }
        self.permit(program, self.rights_of_dir(path), R)?;
        let all = self.live_below(path).map(|(path, _)| path).chain(self.private_names());
        let rests = all.filter(|name| is_below(name, path)).map(|name| {
            let rest = if path.is_empty() { name } else { &name[path.len() + 1..] };
            rest.split('/').next().unwrap_or_default().to_owned()
        });
        let names: BTreeSet<String> = rests.collect();
        Ok(names.into_iter().collect())
    }

    pub(super) fn stat(&self, program: usize, path: &str) -> Seen {
        self.walk(program, path)?;
        let view = self.view(program, path).ok_or(Errno::ENOENT)?;
        Ok(Shown::Attrs(view.kind, view.rights, view.size))
    }
}
