//! Records what is opened on a mount: `hearthfs run --record`.
//!
//! Owns the recordings. Must never cost an open more than the read of one number while there is
//! none. Must never grow beyond its bounds: a recording without questions ends by itself.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::hashing::{FastMap, FastSet};
use crate::name::TreePath;
use crate::namespace::is_edition;

/// The most recordings at once.
const RECORDINGS_MAX: usize = 16;
/// The most paths that one recording keeps until the next question. Further ones are only counted.
const PATHS_MAX: usize = 100_000;
/// How long one question keeps a recording going.
const RECORDED_FOR: Duration = Duration::from_secs(30);
/// The approximate size of the paths in one answer, in bytes.
const ANSWER_BYTES: usize = 128 << 10;

/// Some of the files that were opened, in the order of the first opens since the last question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedOpens {
    /// Files.
    pub paths: Vec<TreePath>,
    /// Opens that were not kept because too many waited already.
    pub lost: u64,
    /// Another question returns more.
    pub more: bool,
}

#[derive(Debug, Default)]
struct OpenRecording {
    until: Duration,
    paths: VecDeque<TreePath>,
    waiting: FastSet<TreePath>,
    lost: u64,
}

/// All recordings, by the random number that each recording process has chosen.
#[derive(Debug, Default)]
pub(super) struct Opens {
    count: AtomicUsize,
    all: Mutex<FastMap<u64, OpenRecording>>,
}

impl Opens {
    /// Reports whether any recording is on.
    pub(super) fn is_on(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Notes a file that was opened. A file in a draft does not count.
    pub(super) fn note(&self, path: &TreePath, now: Duration) {
        if is_edition(path) {
            return;
        }
        let mut all = self.all.lock();
        all.retain(|_, recording| recording.until > now);
        for recording in all.values_mut() {
            if recording.waiting.contains(path) {
                continue;
            }
            if recording.paths.len() >= PATHS_MAX {
                recording.lost += 1;
                continue;
            }
            recording.waiting.insert(path.clone());
            recording.paths.push_back(path.clone());
        }
        self.count.store(all.len(), Ordering::Relaxed);
    }

    /// Begins the recording with this number, or continues it, and returns some of its paths. The
    /// `last` question ends the recording when nothing is left. Returns `None` when there are too
    /// many recordings.
    pub(super) fn take(&self, number: u64, last: bool, now: Duration) -> Option<RecordedOpens> {
        let mut all = self.all.lock();
        all.retain(|_, recording| recording.until > now);
        if all.len() >= RECORDINGS_MAX && !all.contains_key(&number) {
            return None;
        }
        let recording = all.entry(number).or_default();
        recording.until = now + RECORDED_FOR;
        let (mut paths, mut bytes) = (Vec::new(), 0);
        while bytes < ANSWER_BYTES
            && let Some(path) = recording.paths.pop_front()
        {
            bytes += path.as_bytes().len();
            recording.waiting.remove(&path);
            paths.push(path);
        }
        let more = !recording.paths.is_empty();
        let opened = RecordedOpens { paths, lost: std::mem::take(&mut recording.lost), more };
        if last && !more {
            all.remove(&number);
        }
        self.count.store(all.len(), Ordering::Relaxed);
        Some(opened)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> TreePath {
        text.split('/').fold(TreePath::root(), |dir, name| dir.join(name.as_bytes()).unwrap())
    }

    #[test]
    fn a_recording_has_each_file_in_the_order_of_its_first_open() {
        let (opens, at) = (Opens::default(), Duration::from_secs);
        opens.note(&path("before"), at(1));
        assert!(!opens.is_on());
        assert_eq!(opens.take(7, false, at(1)), Some(RecordedOpens::default()));
        assert!(opens.is_on());
        for name in ["b", "a/c", "b", "a/c", "d"] {
            opens.note(&path(name), at(2));
        }
        let told = opens.take(7, true, at(3)).expect("a recording");
        assert_eq!(told.paths, [path("b"), path("a/c"), path("d")]);
        assert!(!opens.is_on(), "the last request ends the recording");
    }

    #[test]
    fn p13_bounded_recordings_end_by_themselves_and_hold_so_many_paths() {
        let (opens, at) = (Opens::default(), Duration::from_secs);
        for number in 0..RECORDINGS_MAX as u64 {
            assert!(opens.take(number, false, at(1)).is_some());
        }
        assert_eq!(opens.take(99, false, at(1)), None, "too many recordings");
        assert!(opens.take(0, false, at(20)).is_some());
        opens.note(&path("x"), at(40));
        assert_eq!(opens.all.lock().len(), 1, "recordings without requests are dropped");
        for n in 0..=PATHS_MAX {
            opens.note(&path(&format!("{n}")), at(41));
        }
        let (mut paths, mut lost) = (0, 0);
        loop {
            let told = opens.take(0, true, at(42)).expect("the recording continues");
            (paths, lost) = (paths + told.paths.len(), lost + told.lost);
            if !told.more {
                break;
            }
        }
        assert_eq!((paths, lost), (PATHS_MAX, 2));
    }
}
