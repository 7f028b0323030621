//! Counts requests by kind.
//!
//! Owns the counters of a session. Must never cost more than an addition.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! operations {
    ($($operation:ident $name:literal)*) => {
        /// A request of the kernel.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum KernelOp { $($operation),* }

        impl KernelOp {
            const ALL: &[Self] = &[$(Self::$operation),*];

            pub(crate) const fn name(self) -> &'static str {
                match self { $(Self::$operation => $name),* }
            }
        }
    };
}

operations! {
    Lookup "lookup" Forget "forget" Getattr "getattr" Setattr "setattr" Readlink "readlink"
    Mknod "mknod" Mkdir "mkdir" Unlink "unlink" Rmdir "rmdir" Symlink "symlink" Rename "rename"
    Link "link" Open "open" Create "create" Read "read" Write "write" Flush "flush"
    Release "release" Fsync "fsync" Fallocate "fallocate" Lseek "lseek"
    CopyFileRange "copy_file_range" Opendir "opendir" Readdir "readdir"
    ReaddirPlus "readdirplus" Releasedir "releasedir" Fsyncdir "fsyncdir" Statfs "statfs"
    Setxattr "setxattr" Getxattr "getxattr" Listxattr "listxattr" Removexattr "removexattr"
    Access "access" Ioctl "ioctl" Setlk "setlk"
}

#[derive(Debug)]
pub(crate) struct Counts([AtomicU64; KernelOp::ALL.len()]);

impl Default for Counts {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Counts {
    pub(crate) fn add(&self, op: KernelOp) {
        self.0[op as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the operations with a nonzero count.
    pub(crate) fn read(&self) -> Vec<(&'static str, u64)> {
        let all = KernelOp::ALL
            .iter()
            .map(|op| (op.name(), self.0[*op as usize].load(Ordering::Relaxed)));
        all.filter(|(_, count)| *count > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_counted_under_its_name() {
        let counts = Counts::default();
        assert!(counts.read().is_empty());
        for (times, op) in KernelOp::ALL.iter().enumerate() {
            (0..=times).for_each(|_| counts.add(*op));
        }
        let read = counts.read();
        assert_eq!(read.len(), KernelOp::ALL.len());
        assert_eq!((read[0], read[15]), (("lookup", 1), ("write", 16)));
    }
}
