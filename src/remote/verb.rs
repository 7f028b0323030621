//! The five verbs of a store.

/// The kind of a request, as it is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verb {
    Put,
    Get,
    List,
    Delete,
    Head,
}

impl Verb {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Get => "get",
            Self::List => "list",
            Self::Delete => "delete",
            Self::Head => "head",
        }
    }
}
