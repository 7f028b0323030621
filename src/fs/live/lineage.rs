//! Which version a live file follows, and which it may replace.

use crate::fs::beginnings::Moment;
use crate::namespace::EntryKind;
use crate::stamp::Stamp;

/// The versions before a live file. Its names have these puts, unless a later version has taken
/// them.
#[derive(Debug)]
pub(in crate::fs) struct Lineage {
    /// When it was begun. If it was not emptied at its beginning: when the version was begun that it
    /// began from.
    begun: Moment,
    /// The put whose next version it is, if it is the same file.
    follows: Option<Stamp>,
    /// The put that it may replace: the version that it began from, was renamed over, or has
    /// published last. A later version of its name may belong to another user, who may not let this
    /// writer replace it.
    replaces: Option<Stamp>,
    /// It was renamed over what is published under its name. No other process begins from that
    /// version any more.
    renamed: bool,
    /// The content that it gave its name last, or that it began from, even if it was emptied at its
    /// beginning.
    left: Option<EntryKind>,
}

impl Lineage {
    /// Makes the lineage of a live file that begins from a put with this content, or from nothing.
    pub(in crate::fs) fn new(begun: Moment, put: Option<Stamp>, left: Option<EntryKind>) -> Self {
        Self { begun, follows: put, replaces: put, renamed: false, left }
    }

    pub(in crate::fs) fn begun(&self) -> Moment {
        self.begun
    }

    /// Returns the put whose next version it is, if it is the same file.
    pub(in crate::fs) fn follows(&self) -> Option<Stamp> {
        self.follows
    }

    /// Returns the put that it may replace without a check of rights.
    pub(in crate::fs) fn replaces(&self) -> Option<Stamp> {
        self.replaces
    }

    /// Reports whether it was renamed over what is published under its name.
    pub(in crate::fs) fn is_renamed(&self) -> bool {
        self.renamed
    }

    /// Returns the content that it gave its name last, or that it began from.
    pub(in crate::fs) fn left(&self) -> Option<&EntryKind> {
        self.left.as_ref()
    }

    /// Notes that the put that it may replace was made again.
    pub(in crate::fs) fn replace(&mut self, put: Option<Stamp>) {
        self.replaces = put;
    }

    /// Notes that the put that it follows was made again.
    pub(in crate::fs) fn follow(&mut self, put: Option<Stamp>) {
        self.follows = put;
    }

    /// Notes that it was renamed to a name. It replaces what is published there, if that is one it
    /// may replace, and is another file.
    pub(in crate::fs) fn rename_over(&mut self, there: Option<Stamp>) {
        (self.follows, self.replaces, self.renamed) = (None, there, there.is_some());
    }

    /// Notes that its name has this content because of it.
    pub(in crate::fs) fn leave(&mut self, content: EntryKind) {
        self.left = Some(content);
    }

    /// Notes that its version was published with this put.
    pub(in crate::fs) fn publish(&mut self, put: Option<Stamp>, content: EntryKind) {
        (self.follows, self.replaces, self.renamed) = (put, put, false);
        self.leave(content);
    }
}
