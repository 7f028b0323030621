//! Names and attributes, for a syscall process.

use std::path::Path;

use rustix::io::Errno;

use super::{SyscallProcess, hex};

impl SyscallProcess {
    /// `unlink`.
    pub(crate) fn unlink(&mut self, path: &Path) -> Result<(), Errno> {
        self.done(&format!("unlink {}", hex(path)))
    }

    /// `rename`.
    pub(crate) fn rename(&mut self, from: &Path, to: &Path) -> Result<(), Errno> {
        self.rename_with(from, to, 0)
    }

    /// `renameat2` with flags: 1 is RENAME_NOREPLACE, 2 is RENAME_EXCHANGE.
    pub(crate) fn rename_with(&mut self, from: &Path, to: &Path, flags: u32) -> Result<(), Errno> {
        self.done(&format!("rename {} {} {flags}", hex(from), hex(to)))
    }

    /// `link`.
    pub(crate) fn link(&mut self, from: &Path, to: &Path) -> Result<(), Errno> {
        self.done(&format!("link {} {}", hex(from), hex(to)))
    }

    /// `symlink`.
    pub(crate) fn symlink(&mut self, target: &Path, at: &Path) -> Result<(), Errno> {
        self.done(&format!("symlink {} {}", hex(target), hex(at)))
    }

    /// `readlink`.
    pub(crate) fn readlink(&mut self, path: &Path) -> Result<Vec<u8>, Errno> {
        self.ask(&format!("readlink {}", hex(path)), &[]).map(|answer| answer.bytes)
    }

    /// `mkdir` with mode 0755.
    pub(crate) fn mkdir(&mut self, path: &Path) -> Result<(), Errno> {
        self.done(&format!("mkdir {} 493", hex(path)))
    }

    /// `rmdir`.
    pub(crate) fn rmdir(&mut self, path: &Path) -> Result<(), Errno> {
        self.done(&format!("rmdir {}", hex(path)))
    }

    /// `chmod`.
    pub(crate) fn chmod(&mut self, path: &Path, mode: u32) -> Result<(), Errno> {
        self.done(&format!("chmod {} {mode}", hex(path)))
    }

    /// Sets access and modification time.
    pub(crate) fn utimes(&mut self, path: &Path, s: i64, ns: i64) -> Result<(), Errno> {
        self.done(&format!("utimes {} {s} {ns}", hex(path)))
    }

    /// `chdir`.
    pub(crate) fn chdir(&mut self, path: &Path) -> Result<(), Errno> {
        self.done(&format!("chdir {}", hex(path)))
    }

    /// `getcwd`.
    pub(crate) fn cwd(&mut self) -> Result<Vec<u8>, Errno> {
        self.ask("cwd", &[]).map(|answer| answer.bytes)
    }

    /// `setxattr`; flags: 1 is XATTR_CREATE, 2 is XATTR_REPLACE.
    pub(crate) fn setxattr(
        &mut self,
        path: &Path,
        name: &str,
        value: &[u8],
        flags: u32,
    ) -> Result<(), Errno> {
        let request =
            format!("setxattr {} {} {flags} {}", hex(path), hex(Path::new(name)), value.len());
        self.ask(&request, value).map(|_| ())
    }

    /// `getxattr`.
    pub(crate) fn getxattr(&mut self, path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
        let request = format!("getxattr {} {}", hex(path), hex(Path::new(name)));
        self.ask(&request, &[]).map(|answer| answer.bytes)
    }

    /// `listxattr`, as a list of names.
    pub(crate) fn listxattr(&mut self, path: &Path) -> Result<Vec<String>, Errno> {
        let answer = self.ask(&format!("listxattr {}", hex(path)), &[])?;
        let names = answer.bytes.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        Ok(names.map(|name| String::from_utf8_lossy(name).into_owned()).collect())
    }

    /// `removexattr`.
    pub(crate) fn removexattr(&mut self, path: &Path, name: &str) -> Result<(), Errno> {
        self.done(&format!("removexattr {} {}", hex(path), hex(Path::new(name))))
    }
}
