//! What nodes send each other.

use super::{Model, Registers};

impl Model {
    /// Returns what this node sends to the others: its changes since they last synchronised, given
    /// `heard` from them since. A path that it made and removed again is not sent, unless another
    /// node has changed it, and is afterwards as it was before.
    pub(in crate::daemon::tests) fn tell(&mut self, heard: &Registers) -> Registers {
        let mut news = Registers::new();
        for (path, now) in std::mem::take(&mut self.registers) {
            let before = self.told.get(&path).cloned();
            let was_there = before.as_ref().is_some_and(|(_, thing)| thing.is_some());
            let kept = if now.1.is_some() || was_there || heard.contains_key(&path) {
                Some(now)
            } else {
                before.clone()
            };
            if let Some(kept) = kept {
                if before.is_none_or(|before| before.0 < kept.0) {
                    news.insert(path.clone(), kept.clone());
                }
                self.registers.insert(path, kept);
            }
        }
        news
    }

    /// Applies what another node has sent.
    pub(in crate::daemon::tests) fn learn(&mut self, news: &Registers) {
        for (path, (number, thing)) in news {
            if self.registers.get(path).is_none_or(|(known, _)| known < number) {
                self.registers.insert(path.clone(), (*number, thing.clone()));
            }
        }
    }

    /// Notes that all nodes know the same.
    pub(in crate::daemon::tests) fn met(&mut self) {
        self.told = self.registers.clone();
    }

    /// Returns the number of the last change, after raising it to that of another node.
    pub(in crate::daemon::tests) fn count_on(&mut self, last: u64) -> u64 {
        self.last = self.last.max(last);
        self.last
    }
}
