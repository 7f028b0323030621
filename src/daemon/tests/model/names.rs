//! Names: what makes, moves, removes and shows them.

use std::collections::BTreeSet;

use hearthfs_mount::Errno;

use super::{Counter, Done, Model, Thing, is_below, moved};

impl Model {
    pub(in crate::daemon::tests) fn make(
        &mut self,
        counter: &mut Counter,
        path: &str,
        thing: Thing,
    ) -> Done {
        self.walk(path)?;
        if self.is_taken(path) {
            return Err(Errno::EEXIST);
        }
        self.put(counter, path, thing);
        Ok(())
    }

    pub(in crate::daemon::tests) fn link(
        &mut self,
        counter: &mut Counter,
        from: &str,
        to: &str,
    ) -> Done {
        self.walk(from)?;
        if !self.is_taken(from) {
            return Err(Errno::ENOENT);
        }
        self.walk(to)?;
        if self.is_taken(to) {
            return Err(Errno::EEXIST);
        }
        match self.published(from) {
            Some(Thing::File(bytes, group)) => {
                let group = group.unwrap_or_else(|| {
                    let group = counter.next();
                    self.put(counter, from, Thing::File(bytes.clone(), Some(group)));
                    group
                });
                self.put(counter, to, Thing::File(bytes, Some(group)));
                Ok(())
            }
            Some(Thing::Link(target, group)) => {
                let group = group.unwrap_or_else(|| {
                    let group = counter.next();
                    self.put(counter, from, Thing::Link(target.clone(), Some(group)));
                    group
                });
                self.put(counter, to, Thing::Link(target, Some(group)));
                Ok(())
            }
            Some(Thing::Dir) | None => Err(Errno::EPERM),
        }
    }

    pub(super) fn detach(&mut self, path: &str) {
        for draft in self.drafts.values_mut().filter(|d| d.name.as_deref() == Some(path)) {
            draft.name = None;
        }
    }

    pub(in crate::daemon::tests) fn unlink(&mut self, counter: &mut Counter, path: &str) -> Done {
        self.walk(path)?;
        match self.published(path) {
            Some(Thing::Dir) => return Err(Errno::EISDIR),
            Some(_) => self.remove(counter, path),
            None if self.is_taken(path) => {}
            None => return Err(Errno::ENOENT),
        }
        self.detach(path);
        Ok(())
    }

    pub(super) fn is_empty_dir(&self, path: &str) -> bool {
        self.live_below(path).next().is_none() && !self.drafts_below(path)
    }

    pub(in crate::daemon::tests) fn rmdir(&mut self, counter: &mut Counter, path: &str) -> Done {
        self.walk(path)?;
        match self.published(path) {
            Some(Thing::Dir) if !self.is_empty_dir(path) => Err(Errno::ENOTEMPTY),
            Some(Thing::Dir) => {
                self.remove(counter, path);
                Ok(())
            }
            None if !self.is_taken(path) => Err(Errno::ENOENT),
            _ => Err(Errno::ENOTDIR),
        }
    }

    /// Rule 6.
    pub(in crate::daemon::tests) fn rename(
        &mut self,
        counter: &mut Counter,
        from: &str,
        to: &str,
    ) -> Done {
        self.walk(from)?;
        self.walk(to)?;
        let (source, target) = (self.published(from), self.published(to));
        if !self.is_taken(from) {
            return Err(Errno::ENOENT);
        }
        if is_below(to, from) {
            return Err(Errno::EINVAL);
        }
        let group = |thing: &Option<Thing>| match thing {
            Some(Thing::File(_, group) | Thing::Link(_, group)) => *group,
            _ => None,
        };
        if from == to || (group(&source).is_some() && group(&source) == group(&target)) {
            return Ok(());
        }
        let (source_dir, target_dir) = (source == Some(Thing::Dir), target == Some(Thing::Dir));
        match (source_dir, target_dir) {
            (true, false) if self.is_taken(to) => return Err(Errno::ENOTDIR),
            (false, true) => return Err(Errno::EISDIR),
            (true, true) if !self.is_empty_dir(to) => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        self.detach(to);
        let waits = source.is_none();
        if let Some(thing) = source {
            let mut all = vec![(from.to_owned(), thing)];
            all.extend(self.live_below(from).map(|(path, thing)| (path.clone(), thing.clone())));
            for (path, _) in &all {
                self.remove(counter, path);
            }
            for (path, thing) in all {
                self.put(counter, &moved(&path, from, to), thing);
            }
            // The directory of an implied one that has just been emptied stays, but not below itself.
            let stale: Vec<String> = self.live_below(from).map(|(path, _)| path.clone()).collect();
            for path in stale.iter().map(String::as_str).chain([from]) {
                self.registers.insert(path.to_owned(), (counter.next(), None));
            }
        }
        for draft in self.drafts.values_mut() {
            if let Some(name) = &mut draft.name
                && (name == from || is_below(name, from))
            {
                *name = moved(name, from, to);
                draft.fresh |= waits;
            }
        }
        Ok(())
    }

    pub(in crate::daemon::tests) fn list(&self, path: &str) -> Result<Vec<String>, Errno> {
        if !path.is_empty() {
            self.walk(path)?;
            match self.published(path) {
                Some(Thing::Dir) => {}
                None if !self.is_taken(path) => return Err(Errno::ENOENT),
                _ => return Err(Errno::ENOTDIR),
            }
        }
        let private = self.drafts.values().filter_map(|d| d.name.as_ref());
        let all = self.live_below(path).map(|(path, _)| path).chain(private);
        let rests = all.filter(|name| is_below(name, path)).map(|name| {
            let rest = if path.is_empty() { name } else { &name[path.len() + 1..] };
            rest.split('/').next().unwrap_or_default().to_owned()
        });
        let names: BTreeSet<String> = rests.collect();
        Ok(names.into_iter().collect())
    }

    /// Returns what `stat` must find: kind and, where it is certain, size.
    pub(in crate::daemon::tests) fn stat(
        &self,
        program: usize,
        path: &str,
    ) -> Result<(bool, Option<u64>), Errno> {
        self.walk(path)?;
        let own = self.drafts_at(path).filter(|(_, d)| d.members.contains(&program)).last();
        if let Some((_, draft)) = own {
            return Ok((false, Some(draft.bytes.len() as u64)));
        }
        match self.published(path) {
            Some(Thing::Dir) => Ok((true, None)),
            Some(Thing::File(bytes, _)) => Ok((false, Some(bytes.len() as u64))),
            Some(Thing::Link(..)) => Ok((false, None)),
            None if self.is_taken(path) => Ok((false, None)),
            None => Err(Errno::ENOENT),
        }
    }
}
