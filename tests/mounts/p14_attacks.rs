//! P14 isolation: two users attack each other with ordinary calls, on the mount and in a plain directory.
//!
//! The plain directory is the reference: each call has the same result on both, and leaves the same
//! files, owners and modes behind.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::users::{A, B, can_be_others, let_in};
use crate::harness::node::Site;
use crate::harness::syscall_process::{CREATE_NEW, IN_PLACE};
use crate::harness::{Io, Must as _, Node, Options, SyscallProcess, in_both_modes, skipped, tree};

/// A group of which both may be members.
pub(super) const GROUP: u32 = 63_010;
pub(super) const SECRET: &[u8] = b"A's";

/// The stage of a script: a directory, the processes of the users, and their results.
pub(super) struct Stage {
    pub(super) dir: PathBuf,
    pub(super) a: SyscallProcess,
    pub(super) b: SyscallProcess,
    pub(super) log: Vec<String>,
}

impl Stage {
    /// Sets up a stage in an empty directory: `open` (0777), `sticky` (1777), `shared` (2770, the group's), and A's own
    /// `readable` (0755) and `private` (0700).
    fn new(dir: PathBuf, b_groups: &[u32]) -> Self {
        let mut root = SyscallProcess::new();
        let dirs = [
            ("open", 0o777, 0, 0),
            ("sticky", 0o1777, 0, 0),
            ("shared", 0o2770, A.uid, GROUP),
            ("readable", 0o755, A.uid, A.gid),
            ("private", 0o700, A.uid, A.gid),
        ];
        for (name, mode, uid, gid) in dirs {
            let path = dir.join(name);
            root.mkdir(&path).must("mkdir");
            root.chown(&path, Some(uid), Some(gid)).must("chown");
            // Last, because a change of the owner takes set-id bits away.
            root.chmod(&path, mode).must("chmod");
        }
        Self {
            dir,
            a: SyscallProcess::of(A, &[GROUP]),
            b: SyscallProcess::of(B, b_groups),
            log: Vec::new(),
        }
    }

    pub(super) fn at(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub(super) fn note<T>(&mut self, what: &str, result: Result<T, Errno>) {
        let told = result.map_or_else(|errno| format!("{errno:?}"), |_| "done".to_owned());
        self.log.push(format!("{what}: {told}"));
    }

    /// Runs an attempt of B, and records its result.
    pub(super) fn try_b<T>(
        &mut self,
        what: &str,
        act: impl FnOnce(&mut SyscallProcess) -> Result<T, Errno>,
    ) {
        let result = act(&mut self.b);
        self.note(what, result);
    }

    /// A file of A's with exactly that mode.
    pub(super) fn of_a(&mut self, name: &str, mode: u32) -> PathBuf {
        let path = self.at(name);
        self.a.make(&path, mode, SECRET).must(format_args!("A makes {name}"));
        self.a.chmod(&path, mode).must("A sets its mode");
        path
    }

    /// Describes the final state: names, kinds, owners, modes, bytes.
    fn left(&self) -> Vec<String> {
        let found = tree::read(&self.dir).must("read the stage");
        let with_owner = found.into_iter().map(|(path, thing)| {
            let about = std::fs::symlink_metadata(self.dir.join(&path)).must("stat");
            let mode = about.mode() & 0o7777;
            format!("{} {}:{} {mode:o} {thing:?}", path.display(), about.uid(), about.gid())
        });
        with_owner.collect()
    }
}

/// Runs a script in a plain directory and on a mount, and compares.
pub(super) fn as_in_a_plain_directory(
    io: Io,
    test: &str,
    b_groups: &[u32],
    script: fn(&mut Stage),
) {
    if !can_be_others(test, io) {
        return;
    }
    let site = Site::new();
    let_in(site.path(), 0o755);
    let node = Node::start(&site, "m", None, Options::new(io));
    let play = |dir: PathBuf| {
        let mut stage = Stage::new(dir, b_groups);
        script(&mut stage);
        let left = stage.left();
        (stage.log, left)
    };
    let plain = play(site.dir("plain"));
    let here = play(node.mount.clone());
    assert!(plain.0.len() > 4, "the script did nothing");
    let apart = |plain: &[String], here: &[String]| -> Vec<String> {
        let only = |these: &[String], those: &[String], word: &str| -> Vec<String> {
            let odd = these.iter().filter(|line| !those.contains(line));
            odd.map(|line| format!("{word}: {line}")).collect()
        };
        [only(plain, here, "plain"), only(here, plain, "mount")].concat()
    };
    let faults = [apart(&plain.0, &here.0), apart(&plain.1, &here.1)].concat();
    assert!(faults.is_empty(), "{} differences:\n{}", faults.len(), faults.join("\n"));
}

/// Every call on files of A's of every mode, in every kind of directory.
fn calls_on_files(stage: &mut Stage) {
    for mode in [0o600, 0o640, 0o644, 0o660, 0o622, 0o666, 0o606] {
        for dir in ["open", "sticky", "readable", "private", "shared"] {
            let name = format!("{dir}/{mode:o}");
            let path = stage.of_a(&name, mode);
            attack(stage, &name, &path);
        }
    }
}

fn attack(stage: &mut Stage, name: &str, path: &Path) {
    let opens = [
        ("read", OFlags::RDONLY),
        ("write", OFlags::WRONLY),
        ("update", OFlags::RDWR),
        ("empty", IN_PLACE),
        ("append", OFlags::WRONLY.union(OFlags::APPEND)),
        ("create to read", OFlags::RDONLY.union(OFlags::CREATE)),
        ("create to update", OFlags::RDWR.union(OFlags::CREATE)),
        ("create new", CREATE_NEW),
        ("empty to read", OFlags::RDONLY.union(OFlags::TRUNC)),
    ];
    for (what, flags) in opens {
        let opened = stage.b.open(path, flags, 0o666);
        if let Ok(fd) = opened {
            // A user who may open it may use it; the remaining bytes are compared.
            let read = stage.b.read(fd, 0, 100).map(|read| read.len());
            let wrote = stage.b.write(fd, b"B");
            stage.log.push(format!("{name}, {what}: reads {read:?}"));
            stage.note(&format!("{name}, {what}, write"), wrote);
            stage.try_b(&format!("{name}, {what}, fchmod"), |b| b.fchmod(fd, 0o777));
            stage.b.close(fd).must("close");
        }
        stage.note(&format!("{name}, {what}"), opened);
    }
    let b = &mut stage.b;
    let results = [
        ("chmod", b.chmod(path, 0o777)),
        ("chown", b.chown(path, Some(B.uid), None)),
        ("chgrp", b.chown(path, None, Some(B.gid))),
        ("utimes", b.utimes(path, 1_000_000, 1)),
        ("truncate", b.truncate(path, 1)),
        ("setxattr", b.setxattr(path, "user.b", b"B", 0)),
        ("getxattr", b.getxattr(path, "user.none").map(drop)),
        ("listxattr", b.listxattr(path).map(drop)),
        ("link", b.link(path, &path.with_extension("link"))),
        ("stat", b.stat(path).map(drop)),
    ];
    for (what, result) in results {
        stage.note(&format!("{name}, {what}"), result);
    }
    let (moved, own) = (path.with_extension("moved"), path.with_extension("own"));
    let renamed = stage.b.rename(path, &moved);
    stage.note(&format!("{name}, rename"), renamed);
    let made = stage.b.make(&own, 0o644, b"B's own");
    stage.note(&format!("{name}, make another"), made);
    let over = stage.b.rename(&own, path);
    stage.note(&format!("{name}, rename over"), over);
    let exchanged = stage.b.rename_with(&moved, path, 2);
    stage.note(&format!("{name}, exchange"), exchanged);
    let unlinked = stage.b.unlink(path);
    stage.note(&format!("{name}, unlink"), unlinked);
}

fn p14_isolation_of_files_from_others(io: Io) {
    as_in_a_plain_directory(io, "p14_isolation_of_files_from_others", &[], calls_on_files);
}
in_both_modes!(p14_isolation_of_files_from_others);

/// The same by a user whose only membership in the file's group is a supplementary one.
fn p14_isolation_of_files_from_their_group(io: Io) {
    let test = "p14_isolation_of_files_from_their_group";
    as_in_a_plain_directory(io, test, &[GROUP, 63_011], |stage| {
        for mode in [0o600, 0o640, 0o660, 0o606, 0o066] {
            for dir in ["open", "sticky", "shared"] {
                let name = format!("{dir}/g{mode:o}");
                let path = stage.of_a(&name, mode);
                stage.a.chown(&path, None, Some(GROUP)).must("A gives it to the group");
                attack(stage, &name, &path);
            }
        }
        // A user may give an own file to a group of which it is a member, and to no other.
        let own = stage.at("open/own");
        stage.b.make(&own, 0o644, b"B's").must("B's file");
        for group in [GROUP, 63_011, 63_099] {
            let given = stage.b.chown(&own, None, Some(group));
            stage.note(&format!("chgrp to {group}"), given);
        }
    });
}
in_both_modes!(p14_isolation_of_files_from_their_group);

/// Umasks and directories that pass on their group: what a new file may be used for.
fn p14_isolation_of_new_files(io: Io) {
    as_in_a_plain_directory(io, "p14_isolation_of_new_files", &[GROUP], |stage| {
        for mask in [0, 0o022, 0o027, 0o077, 0o777] {
            stage.b.umask(mask);
            for dir in ["open", "sticky", "shared"] {
                let at = |kind: &str| stage.dir.join(format!("{dir}/{kind}{mask:o}"));
                let (file, below, link) = (at("file"), at("dir"), at("link"));
                let made = stage.b.make(&file, 0o666, b"B's");
                stage.note(&format!("{dir}, {mask:o}, make"), made);
                let made = stage.b.mkdir(&below);
                stage.note(&format!("{dir}, {mask:o}, mkdir"), made);
                let linked = stage.b.symlink(Path::new("../open"), &link);
                stage.note(&format!("{dir}, {mask:o}, symlink"), linked);
                let read = stage.a.get(&file);
                stage.note(&format!("{dir}, {mask:o}, A reads"), read);
                let wrote = stage.a.put(&file, b"A's now");
                stage.note(&format!("{dir}, {mask:o}, A writes"), wrote);
                let inside = stage.a.make(&below.join("x"), 0o600, b"A's");
                stage.note(&format!("{dir}, {mask:o}, A makes a file below"), inside);
            }
        }
    });
}
in_both_modes!(p14_isolation_of_new_files);

/// Descriptors of directories that are moved, removed, or replaced by another user's of the same name.
fn p14_isolation_below_directories_that_move(io: Io) {
    as_in_a_plain_directory(io, "p14_isolation_below_directories_that_move", &[], |stage| {
        let directory = OFlags::RDONLY | OFlags::DIRECTORY;
        let (dir, moved) = (stage.at("open/dir"), stage.at("open/moved"));
        stage.b.mkdir(&dir).must("B's directory");
        stage.b.make(&dir.join("secret"), 0o644, b"B's own").must("B's file");
        let fd = stage.b.open(&dir, directory, 0).must("B opens its directory");
        let file = stage.b.open(&dir.join("secret"), OFlags::RDWR, 0).must("B opens its file");
        stage.b.rename(&dir, &moved).must("B moves its directory");
        stage.a.mkdir_with(&dir, 0o700).must("A's directory");
        stage.a.make(&dir.join("secret"), 0o600, SECRET).must("A's file");
        for (name, flags) in [
            ("secret", OFlags::RDONLY),
            ("secret", OFlags::RDWR),
            ("fresh", CREATE_NEW),
            ("../dir/secret", OFlags::RDONLY),
            ("../moved/secret", OFlags::RDONLY),
        ] {
            let opened = stage.b.open_at(fd, name, flags, 0o644);
            let read = opened.and_then(|fd| stage.b.read(fd, 0, 100));
            let text = read.map(|read| String::from_utf8_lossy(&read).into_owned());
            stage.log.push(format!("{name} {flags:?} from the descriptor: {text:?}"));
        }
        stage.try_b("write", |b| b.pwrite(file, 0, b"B wrote"));
        stage.b.close(file).must("close");
        stage.try_b("chdir", |b| b.chdir(&SyscallProcess::proc_path(fd)));
        let read = stage.b.get(Path::new("secret"));
        stage
            .log
            .push(format!("secret from the working directory: {:?}", read.map(|read| read.len())));
        for name in ["secret", "fresh"] {
            stage.b.unlink(&moved.join(name)).must("B empties its directory");
        }
        stage.b.rmdir(&moved).must("B removes its directory");
        stage.try_b("create in a removed one", |b| b.open_at(fd, "late", CREATE_NEW, 0o644));
        let again = stage.a.mkdir_with(&moved, 0o700);
        stage.note("A takes the name", again);
        stage.a.make(&moved.join("secret"), 0o600, SECRET).must("A's file");
        let opened = stage.b.open_at(fd, "secret", OFlags::RDONLY, 0);
        stage.note("open below a removed one", opened);
        stage.try_b("create in a removed one", |b| b.open_at(fd, "late", CREATE_NEW, 0o644));
        let moved_by_b = stage.b.rename(&stage.dir.join("private"), &stage.dir.join("open/stolen"));
        stage.note("rename of A's private directory", moved_by_b);
        let listed = stage.b.list(&stage.dir.join("private"));
        stage.note("list of A's private directory", listed);
        stage.b.chdir(&stage.dir.join("open")).must("chdir");
    });
}
in_both_modes!(p14_isolation_below_directories_that_move);

/// Links: to another user's file, through a descriptor, and what a symbolic link of B makes A do.
fn p14_isolation_of_links(io: Io) {
    as_in_a_plain_directory(io, "p14_isolation_of_links", &[], |stage| {
        for (k, mode) in [0o600, 0o644, 0o666].into_iter().enumerate() {
            for dir in ["open", "sticky", "readable"] {
                let path = stage.of_a(&format!("{dir}/file{k}"), mode);
                let link = stage.at(&format!("open/{dir}{k}"));
                let linked = stage.b.link(&path, &link);
                stage.note(&format!("{dir}, {mode:o}, link"), linked);
                if let Ok(fd) = stage.b.open(&path, OFlags::RDONLY, 0) {
                    let by_fd = stage.b.link_fd(fd, &stage.dir.join(format!("open/fd-{dir}{k}")));
                    stage.note(&format!("{dir}, {mode:o}, link by descriptor"), by_fd);
                    // Mappings: a descriptor that is open for reading cannot be mapped for writing.
                    let shared = stage.b.map(fd, 3, true, true);
                    stage.note(&format!("{dir}, {mode:o}, writable mapping"), shared);
                    let private = stage.b.map(fd, 3, true, false);
                    if let Ok(map) = private {
                        stage.b.map_write(map, 0, b"B's");
                        stage.b.unmap(map).must("unmap");
                    }
                    stage.note(&format!("{dir}, {mode:o}, private mapping"), private);
                    let again = stage.b.open(&SyscallProcess::proc_path(fd), OFlags::RDWR, 0);
                    // With passthrough, a writable mapping would be one of the blob, so the mount
                    // refuses; docs/semantics.md says so. Open for writing only, both behave the same.
                    let told = if again == Err(Errno::TXTBSY) { Ok(0) } else { again };
                    stage.note(&format!("{dir}, {mode:o}, reopen to update"), told);
                    if let Ok(again) = again {
                        // A process that has a file open for writing reads that version.
                        stage.b.close(again).must("close");
                    }
                    let fchmod = stage.b.fchmod(fd, 0o777);
                    stage.note(&format!("{dir}, {mode:o}, fchmod"), fchmod);
                    let marked = stage.b.fsetxattr(fd, "user.b", b"B");
                    stage.note(&format!("{dir}, {mode:o}, fsetxattr"), marked);
                    let cut = stage.b.ftruncate(fd, 1);
                    stage.note(&format!("{dir}, {mode:o}, ftruncate"), cut);
                    stage.b.close(fd).must("close");
                }
                for name in [&link, &path] {
                    let read = stage.b.get(name);
                    stage.note(&format!("{dir}, {mode:o}, read"), read);
                    let wrote = stage.b.put(name, b"B's");
                    stage.note(&format!("{dir}, {mode:o}, write"), wrote);
                }
                // A publishes a new version: a user who had a link gets no further access.
                let anew = stage.a.put(&path, b"A's new text");
                stage.note(&format!("{dir}, {mode:o}, A writes anew"), anew);
                let read = stage.b.get(&link).map(|read| read.len());
                stage.log.push(format!("{dir}, {mode:o}, read by the link: {read:?}"));
            }
        }
        let trap = stage.at("open/trap");
        stage.b.symlink(Path::new("../readable/aim"), &trap).must("B's symbolic link");
        let wrote = stage.b.put(&trap, b"B's");
        stage.note("B creates through its own link", wrote);
        let wrote = stage.a.put(&trap, b"A's");
        stage.note("A creates through B's link", wrote);
        let wrote = stage.b.put(&trap, b"B's");
        stage.note("B writes through its own link", wrote);
    });
}
in_both_modes!(p14_isolation_of_links);

/// Sticky directories: a user can remove neither another's file nor one that took the place of its own.
fn p14_isolation_in_sticky_directories(io: Io) {
    as_in_a_plain_directory(io, "p14_isolation_in_sticky_directories", &[], |stage| {
        let mut root = SyscallProcess::new();
        for (k, open) in [false, true].into_iter().enumerate() {
            let (path, tmp) =
                (stage.at(&format!("sticky/n{k}")), stage.at(&format!("private/n{k}")));
            stage.b.make(&path, 0o644, b"B's").must("B's file");
            let fd = stage.b.open(&path, OFlags::RDWR, 0).must("B opens its file");
            if !open {
                stage.b.close(fd).must("close");
            }
            stage.a.make(&tmp, 0o600, SECRET).must("A's file");
            root.rename(&tmp, &path).must("root replaces it");
            let unlinked = stage.b.unlink(&path);
            stage.note(&format!("{open}, unlink"), unlinked);
            let renamed = stage.b.rename(&path, &stage.dir.join("open/stolen"));
            stage.note(&format!("{open}, rename"), renamed);
            let own = stage.at(&format!("sticky/own{k}"));
            stage.b.make(&own, 0o644, b"B's").must("B's other file");
            let over = stage.b.rename(&own, &path);
            stage.note(&format!("{open}, rename over"), over);
            let exchanged = stage.b.rename_with(&own, &path, 2);
            stage.note(&format!("{open}, exchange"), exchanged);
            if open {
                let wrote = stage.b.pwrite(fd, 0, b"B writes");
                stage.note("write to what was replaced", wrote);
                let marked = stage.b.fchmod(fd, 0o666);
                stage.note("fchmod of what was replaced", marked);
                let closed = stage.b.close(fd);
                stage.note("close of what was replaced", closed);
            }
            let dir = stage.at(&format!("sticky/dir{k}"));
            stage.a.mkdir_with(&dir, 0o777).must("A's directory");
            let removed = stage.b.rmdir(&dir);
            stage.note("rmdir", removed);
            let moved = stage.b.rename(&dir, &stage.dir.join("open/dir"));
            stage.note("rename of a directory", moved);
            let inside = stage.b.make(&dir.join("inside"), 0o644, b"B's");
            stage.note("a file in another's directory", inside);
        }
    });
}
in_both_modes!(p14_isolation_in_sticky_directories);

/// Root of a user namespace has no rights outside it.
fn p14_isolation_from_user_namespaces(io: Io) {
    let test = "p14_isolation_from_user_namespaces";
    if let Err(errno) = SyscallProcess::of(B, &[]).enter_user_namespace() {
        skipped(&format!("{test}::{}", io.word()), format_args!("user namespaces: {errno}"));
        return;
    }
    as_in_a_plain_directory(io, test, &[], |stage| {
        stage.b.enter_user_namespace().must("a user namespace");
        for mode in [0o600, 0o644, 0o660, 0o666] {
            for dir in ["open", "sticky", "readable", "private", "shared"] {
                let name = format!("{dir}/{mode:o}");
                let path = stage.of_a(&name, mode);
                attack(stage, &name, &path);
            }
        }
        let own = stage.at("open/own");
        stage.b.make(&own, 0o600, b"B's").must("B's file");
        let given = stage.b.chown(&own, Some(A.uid), None);
        stage.note("chown to another", given);
        let seen = stage.b.stat(&own).map(|stat| (stat.uid, stat.gid));
        stage.log.push(format!("its own file is {seen:?}"));
    });
}
in_both_modes!(p14_isolation_from_user_namespaces);

/// Bits that grant the rights of an owner or group are cleared when another user changes the bytes,
/// and when the owner changes.
fn p14_isolation_of_set_id_bits(io: Io) {
    as_in_a_plain_directory(io, "p14_isolation_of_set_id_bits", &[GROUP], |stage| {
        for mode in [0o6777, 0o4777, 0o2777, 0o2767, 0o6666] {
            let files: Vec<PathBuf> = ["update", "empty", "append", "cut", "read", "nothing"]
                .iter()
                .map(|what| stage.of_a(&format!("open/{what}-{mode:o}"), mode))
                .collect();
            let [update, empty, append, cut, read, nothing] = files.as_slice() else {
                unreachable!("six files were opened")
            };
            for (path, flags) in [
                (update, OFlags::RDWR),
                (empty, IN_PLACE),
                (append, OFlags::WRONLY.union(OFlags::APPEND)),
            ] {
                let fd = stage.b.open(path, flags, 0).must("B may write");
                stage.try_b("write", |b| b.write(fd, b"B"));
                stage.b.close(fd).must("close");
            }
            stage.try_b("truncate", |b| b.truncate(cut, 1));
            stage.try_b("read", |b| b.get(read));
            let fd = stage.b.open(nothing, OFlags::WRONLY, 0).must("B may write");
            stage.b.close(fd).must("close");

            let mut root = SyscallProcess::new();
            let by_root = stage.of_a(&format!("open/root-{mode:o}"), mode);
            let fd = root.open(&by_root, OFlags::WRONLY, 0).must("root may write");
            root.write(fd, b"R").must("write");
            root.close(fd).must("close");
            for (name, uid, gid) in [("u", Some(B.uid), None), ("g", None, Some(B.gid))] {
                let given = stage.of_a(&format!("open/{name}-{mode:o}"), mode);
                root.chown(&given, uid, gid).must("root gives it away");
            }
            let own = stage.of_a(&format!("open/own-{mode:o}"), mode);
            stage.a.chown(&own, None, Some(GROUP)).must("A gives it to its group");
        }
    });
}
in_both_modes!(p14_isolation_of_set_id_bits);
