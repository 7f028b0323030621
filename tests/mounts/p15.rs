//! P15 own-node-at-once: when a call that changes a name has returned, all processes of the node see the change.

use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::harness::body::{self, Id};
use crate::harness::node::Site;
use crate::harness::syscall_process::{CREATE_NEW, IN_PLACE, Race, Seen};
use crate::harness::time::thread;
use crate::harness::{
    Cluster, Io, Must as _, Node, Options, SyscallProcess, eventually, in_both_modes, say,
};

const READERS: u64 = 3;
/// How long a file is rewritten under its readers, unless `HEARTHFS_TEST_READS` sets the number of
/// reads over all ways of writing.
const RACE_MS: u64 = 2_500;
/// The longest time of readers on one mount if the number of reads counts; the next ones get another mount.
const LONG_RACE_MS: u64 = 120_000;
/// How many times each change is made and checked.
const ROUNDS: usize = 12;

/// Returns how many reads each way of writing gets, if a number is set.
fn reads_wanted(ways: u64) -> Option<u64> {
    let wanted = std::env::var("HEARTHFS_TEST_READS").ok()?;
    Some(wanted.parse::<u64>().must("HEARTHFS_TEST_READS").div_ceil(ways))
}

/// One process rewrites a file, others read it in a loop: no read is older than the last close before
/// it began, and none is torn.
fn p15_own_node_at_once_for_readers_in_a_loop(io: Io) {
    let ways = [
        ("emptied", IN_PLACE, false),
        ("overwritten", OFlags::WRONLY, false),
        ("updated", OFlags::RDWR, false),
        ("renamed", IN_PLACE, true),
    ];
    let wanted = reads_wanted(ways.len() as u64);
    let mut wrong = Vec::new();
    for (way, flags, renamed) in ways {
        let (mut sum, mut versions) = (0, 0);
        while sum < wanted.unwrap_or(500) {
            let left = wanted.map(|wanted| wanted - sum);
            let site = Site::new();
            let node = Node::start(&site, "m", None, Options::new(io));
            let (made, seen) = race(&site, &node, flags, renamed, left);
            let reads: u64 = seen.iter().map(|seen| seen.reads).sum();
            assert!(reads >= 500, "{way}: only {reads} reads");
            let right = |seen: &Seen| seen.torn + seen.stale + seen.missing + seen.failed == 0;
            if !seen.iter().all(right) {
                wrong.push(format!("{way}: {seen:?}"));
            }
            (sum, versions) = (sum + reads, versions + made);
        }
        if wanted.is_some() {
            say(format_args!("{way}, {}: {sum} reads of {versions} versions", io.word()));
        }
    }
    assert!(wrong.is_empty(), "reads were wrong:\n{}", wrong.join("\n"));
}
in_both_modes!(p15_own_node_at_once_for_readers_in_a_loop);

/// Runs one writing process and several reading ones, for `reads` reads in all if given; returns
/// the number of written versions, and the counts.
fn race(
    site: &Site,
    node: &Node,
    flags: OFlags,
    renamed: bool,
    reads: Option<u64>,
) -> (u64, Vec<Seen>) {
    let race = Race {
        path: node.at("entry"),
        shared: site.path().join("race"),
        flags,
        temporary: renamed.then(|| node.at("entry.tmp")),
        readers: READERS,
    };
    let mut writer = SyscallProcess::new();
    // The first version has the length that all have if the file is not truncated.
    let first = Race { flags: flags | OFlags::CREATE, ..race.clone() };
    writer.rewrite_once(&first).must("the first version");
    let (ms, reads) = match reads {
        Some(reads) => (LONG_RACE_MS, reads.div_ceil(READERS)),
        None => (RACE_MS, u64::MAX >> 1),
    };
    let readers: Vec<_> = (0..READERS)
        .map(|_| {
            let race = race.clone();
            thread(move || SyscallProcess::new().reread(&race, reads, ms))
        })
        .collect();
    let made = writer.rewrite(&race, ms).must("rewrite");
    assert!(made > 20, "only {made} versions were written");
    let seen = readers.into_iter().map(|reader| reader.join().must("a reader")).collect();
    (made, seen)
}

/// The results of all ways to examine a name.
#[derive(Debug, PartialEq, Eq)]
struct Look {
    stat: Result<u64, Errno>,
    open: Result<Vec<u8>, Errno>,
    is_listed: bool,
}

impl Look {
    fn at(process: &mut SyscallProcess, path: &Path) -> Self {
        let dir = path.parent().must("a directory above");
        let name = path.file_name().must("a name").to_string_lossy().into_owned();
        Self {
            stat: process.stat(path).map(|stat| stat.size),
            open: process.get(path),
            is_listed: process.list(dir).must("list").contains(&name),
        }
    }

    fn there(bytes: &[u8]) -> Self {
        Self { stat: Ok(bytes.len() as u64), open: Ok(bytes.to_vec()), is_listed: true }
    }

    fn missing() -> Self {
        Self { stat: Err(Errno::NOENT), open: Err(Errno::NOENT), is_listed: false }
    }
}

/// A process that changes a name, and one that has examined it before and does so again.
struct Pair {
    actor: SyscallProcess,
    watcher: SyscallProcess,
    node: Node,
    _site: Site,
}

impl Pair {
    fn new(io: Io) -> Self {
        let site = Site::new();
        let node = Node::start(&site, "m", None, Options::new(io));
        Self { actor: SyscallProcess::new(), watcher: SyscallProcess::new(), node, _site: site }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.node.at(name)
    }

    /// Makes sure that the kernel caches the name, and returns what was there.
    fn prime(&mut self, name: &str) -> Look {
        let path = self.node.at(name);
        Look::at(&mut self.watcher, &path)
    }

    #[track_caller]
    fn sees(&mut self, name: &str, expected: &Look, when: &str) {
        let path = self.node.at(name);
        let seen = Look::at(&mut self.watcher, &path);
        assert_eq!(seen, *expected, "{name}, {when}");
        let own = Look::at(&mut self.actor, &path);
        assert_eq!(own, *expected, "{name}, {when}, in the acting process");
    }
}

/// Files: created, closed, truncated, replaced, renamed, linked and removed, each examined before and after.
fn p15_own_node_at_once_for_files(io: Io) {
    let mut pair = Pair::new(io);
    for round in 0..ROUNDS {
        let names = ["one", "other", "tmp", "link"].map(|name| format!("{name}{round}"));
        let [one, other, tmp, link] = names.each_ref().map(String::as_str);
        let [at_one, at_other, at_tmp, at_link] = names.each_ref().map(|name| pair.at(name));
        for name in [one, other, tmp, link] {
            assert_eq!(pair.prime(name), Look::missing());
        }
        let fd = pair.actor.open(&at_one, CREATE_NEW, 0o644).must("create");
        assert_eq!(pair.watcher.stat(&at_one).map(|stat| stat.size), Ok(0), "a created name");
        assert!(pair.watcher.list(&pair.node.mount).must("list").contains(&names[0]), "create");
        assert_eq!(pair.watcher.open(&at_one, CREATE_NEW, 0o644), Err(Errno::EXIST), "O_EXCL");
        pair.actor.write(fd, b"first").must("write");
        pair.actor.close(fd).must("close");
        pair.sees(one, &Look::there(b"first"), "closed");
        pair.actor.put(&at_one, b"second version").must("put");
        pair.sees(one, &Look::there(b"second version"), "rewritten in place");
        pair.actor.truncate(&at_one, 6).must("truncate");
        pair.sees(one, &Look::there(b"second"), "cut by its name");
        let fd = pair.actor.open(&at_one, OFlags::RDWR, 0).must("open");
        pair.actor.pwrite(fd, 0, b"SEC").must("write");
        pair.actor.close(fd).must("close");
        pair.sees(one, &Look::there(b"SECond"), "updated");
        pair.actor.rename(&at_one, &at_other).must("rename");
        pair.sees(one, &Look::missing(), "renamed away");
        pair.sees(other, &Look::there(b"SECond"), "renamed to");
        pair.actor.put(&at_tmp, b"third").must("put");
        pair.actor.rename(&at_tmp, &at_other).must("rename over");
        pair.sees(tmp, &Look::missing(), "renamed away");
        pair.sees(other, &Look::there(b"third"), "renamed over");
        pair.actor.link(&at_other, &at_link).must("link");
        pair.sees(link, &Look::there(b"third"), "linked");
        assert_eq!(pair.watcher.stat(&at_other).must("stat").nlink, 2, "link count");
        pair.actor.put(&at_link, b"by the other name").must("put");
        pair.sees(other, &Look::there(b"by the other name"), "written by its other name");
        pair.actor.unlink(&at_other).must("unlink");
        pair.sees(other, &Look::missing(), "unlinked");
        assert_eq!(pair.watcher.stat(&at_link).must("stat").nlink, 1, "link count");
        pair.actor.put(&at_other, b"again").must("put");
        pair.sees(other, &Look::there(b"again"), "created again");
        for path in [&at_other, &at_link] {
            pair.actor.unlink(path).must("unlink");
        }
        pair.sees(other, &Look::missing(), "removed");
        pair.sees(link, &Look::missing(), "removed");
    }
}
in_both_modes!(p15_own_node_at_once_for_files);

/// Two names that are exchanged, and one that is renamed without a temporary in between, while the
/// other process has both files open.
fn p15_own_node_at_once_for_names_that_are_open(io: Io) {
    let mut pair = Pair::new(io);
    for round in 0..ROUNDS {
        let names = ["left", "right", "third"].map(|name| format!("{name}{round}"));
        let [left, right, third] = names.each_ref().map(String::as_str);
        let paths = names.each_ref().map(|name| pair.at(name));
        pair.actor.put(&paths[0], b"l").must("put");
        pair.actor.put(&paths[1], b"rr").must("put");
        assert_eq!(pair.prime(third), Look::missing());
        let open = [0, 1].map(|k| pair.watcher.open(&paths[k], OFlags::RDONLY, 0).must("open"));
        pair.actor.rename_with(&paths[0], &paths[1], 2).must("exchange");
        pair.sees(left, &Look::there(b"rr"), "exchanged");
        pair.sees(right, &Look::there(b"l"), "exchanged");
        pair.actor.rename_with(&paths[0], &paths[2], 1).must("rename to nothing");
        pair.sees(left, &Look::missing(), "renamed away");
        pair.sees(third, &Look::there(b"rr"), "renamed to");
        pair.actor.put(&paths[1], b"new").must("rewrite");
        pair.sees(right, &Look::there(b"new"), "rewritten");
        pair.actor.unlink(&paths[1]).must("unlink");
        pair.sees(right, &Look::missing(), "unlinked");
        let read = open.map(|fd| pair.watcher.read(fd, 0, 10).must("read"));
        assert_eq!(read, [b"l".to_vec(), b"rr".to_vec()], "the open versions");
        for fd in open {
            pair.watcher.close(fd).must("close");
        }
    }
}
in_both_modes!(p15_own_node_at_once_for_names_that_are_open);

/// Directories and symbolic links.
fn p15_own_node_at_once_for_directories_and_links(io: Io) {
    let mut pair = Pair::new(io);
    let mount = pair.node.mount.clone();
    for round in 0..ROUNDS {
        let at = |name: &str| mount.join(format!("{name}{round}"));
        let (dir, moved, inside) = (at("dir"), at("moved"), at("dir").join("file"));
        let (symlink, target) = (at("symlink"), at("target"));
        let watcher = &mut pair.watcher;
        for path in [&dir, &moved, &inside, &symlink, &target] {
            assert_eq!(watcher.lstat(path), Err(Errno::NOENT));
        }
        pair.actor.mkdir(&dir).must("mkdir");
        assert_eq!(watcher.list(&dir), Ok(Vec::new()), "a new directory");
        assert_eq!(watcher.mkdir(&dir), Err(Errno::EXIST), "a new directory");
        pair.actor.put(&inside, b"inside").must("put");
        assert_eq!(watcher.get(&inside), Ok(b"inside".to_vec()), "in a new directory");
        assert_eq!(watcher.rmdir(&dir), Err(Errno::NOTEMPTY));
        pair.actor.rename(&dir, &moved).must("rename");
        assert_eq!(watcher.get(&inside), Err(Errno::NOENT), "below a directory that moved");
        assert_eq!(watcher.list(&dir), Err(Errno::NOENT), "a directory that moved");
        assert_eq!(watcher.get(&moved.join("file")), Ok(b"inside".to_vec()), "moved to");
        pair.actor.unlink(&moved.join("file")).must("unlink");
        assert_eq!(watcher.list(&moved), Ok(Vec::new()), "emptied");
        pair.actor.rmdir(&moved).must("rmdir");
        assert_eq!(watcher.lstat(&moved), Err(Errno::NOENT), "removed");
        assert_eq!(watcher.list(&moved), Err(Errno::NOENT), "removed");
        pair.actor.put(&moved, b"a file now").must("a file of that name");
        assert_eq!(watcher.get(&moved), Ok(b"a file now".to_vec()), "a file of that name");
        pair.actor.symlink(&target, &symlink).must("symlink");
        assert!(watcher.readlink(&symlink).is_ok(), "a new link");
        assert_eq!(watcher.get(&symlink), Err(Errno::NOENT), "a link to nothing");
        pair.actor.put(&target, b"target").must("put");
        assert_eq!(watcher.get(&symlink), Ok(b"target".to_vec()), "through a link");
        pair.actor.symlink(&moved, &at("tmp")).must("symlink");
        pair.actor.rename(&at("tmp"), &symlink).must("rename over a link");
        assert_eq!(watcher.get(&symlink), Ok(b"a file now".to_vec()), "a link replaced");
        pair.actor.unlink(&symlink).must("unlink");
        assert_eq!(watcher.lstat(&symlink), Err(Errno::NOENT), "a link removed");
    }
}
in_both_modes!(p15_own_node_at_once_for_directories_and_links);

/// Changes modes, times and attributes of a name that the other process has just examined, by the
/// name and through a descriptor with these flags.
fn attributes(io: Io, flags: OFlags) {
    let mut pair = Pair::new(io);
    for round in 0..ROUNDS {
        let path = pair.at(&format!("f{round}"));
        pair.actor.put(&path, b"text").must("put");
        let fd = pair.actor.open(&path, flags, 0).must("open");
        for (by_name, mode, time) in [(true, 0o640, 1_000_000), (false, 0o751, 2_000_000)] {
            let (actor, watcher) = (&mut pair.actor, &mut pair.watcher);
            watcher.stat(&path).must("stat");
            let value = mode.to_string().into_bytes();
            if by_name {
                actor.chmod(&path, mode).must("chmod");
                actor.utimes(&path, time, 5).must("utimes");
                actor.setxattr(&path, "user.mark", &value, 0).must("setxattr");
            } else {
                actor.fchmod(fd, mode).must("fchmod");
                actor.futimes(fd, time, 5).must("futimes");
                actor.fsetxattr(fd, "user.mark", &value).must("fsetxattr");
            }
            let stat = watcher.stat(&path).must("stat");
            assert_eq!(stat.mode & 0o7777, mode, "by name {by_name}");
            assert_eq!((stat.mtime_s, stat.mtime_ns), (time, 5), "by name {by_name}");
            assert_eq!(watcher.getxattr(&path, "user.mark"), Ok(value), "by name {by_name}");
            assert_eq!(watcher.get(&path), Ok(b"text".to_vec()));
        }
        pair.actor.close(fd).must("close");
        let stat = pair.watcher.stat(&path).must("stat");
        assert_eq!((stat.mode & 0o7777, stat.mtime_s), (0o751, 2_000_000), "after the close");
    }
}

fn p15_own_node_at_once_for_attributes(io: Io) {
    attributes(io, OFlags::RDONLY);
}
in_both_modes!(p15_own_node_at_once_for_attributes);

/// The same while the process that changes them has the file open for writing, and writes nothing.
fn p15_own_node_at_once_for_attributes_beside_a_writer(io: Io) {
    attributes(io, OFlags::RDWR);
}
in_both_modes!(p15_own_node_at_once_for_attributes_beside_a_writer);

/// An entry whose bytes turn out to be lost is missing for every call after the open that noticed
/// it, and can be created.
fn p15_own_node_at_once_for_lost_bytes(io: Io) {
    const FILES: usize = 12;
    /// Too large for a commit.
    const LEN: usize = 60_000;
    let cluster = Cluster::two(io);
    let name = |k: usize| format!("entry{k}");
    for k in 0..FILES {
        let bytes = body::make(Id { writer: 1, seq: k as u64 }, LEN);
        SyscallProcess::new().put(&cluster.a.at(name(k)), &bytes).must("put");
    }
    cluster.a.drain();
    let (mut reader, mut other) = (SyscallProcess::new(), SyscallProcess::new());
    for k in 0..FILES {
        eventually(10_000, "the entries arrive", || {
            other.stat(&cluster.b.at(name(k))).map_err(|errno| errno.to_string())
        });
    }
    for folder in ["packs", "blobs"] {
        for object in cluster.store.objects_in(folder) {
            std::fs::remove_file(&object).must("lose an object");
        }
    }
    for k in 0..FILES {
        let path = cluster.b.at(name(k));
        // Every process has found it before, so that the kernel caches the name.
        let known = other.stat(&path);
        // The first loss may have hidden others.
        assert!(known.is_ok() || k > 0 && known == Err(Errno::NOENT), "{}: {known:?}", name(k));
        assert_eq!(reader.get(&path).err(), Some(Errno::NOENT), "open of lost bytes");
        let after = [reader.stat(&path), other.stat(&path)].map(|stat| stat.map(|_| ()));
        assert_eq!(after, [Err(Errno::NOENT); 2], "{}: stat after the open", name(k));
        assert!(!path.exists(), "exists() after the open");
        assert!(!other.list(&cluster.b.mount).must("list").contains(&name(k)), "listed");
        let fd = other.open(&path, CREATE_NEW, 0o644).must("create the lost file");
        other.write(fd, b"compiled again").must("write");
        other.close(fd).must("close");
        assert_eq!(reader.get(&path), Ok(b"compiled again".to_vec()));
    }
}
in_both_modes!(p15_own_node_at_once_for_lost_bytes);
