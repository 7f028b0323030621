//! The externally visible properties of a mount.
//!
//! Must never depend on how the mount is made.

/// The type of the root until the first GETATTR: a directory.
pub(crate) const ROOT_MODE: &str = "40755";

/// The properties of a mount that the kernel shows and applies.
#[derive(Clone, Debug)]
pub(crate) struct MountShape<'a> {
    pub(crate) source: &'a str,
    pub(crate) read_only: bool,
    pub(crate) allow_other: bool,
    /// Whether the kernel checks callers against owners and modes.
    pub(crate) default_permissions: bool,
}

impl MountShape<'_> {
    /// Returns the options that both textual ways of mounting spell alike, each with a leading comma.
    pub(crate) fn common(&self) -> String {
        let mut options = String::new();
        if self.default_permissions {
            options.push_str(",default_permissions");
        }
        if self.allow_other {
            options.push_str(",allow_other");
        }
        options
    }
}
