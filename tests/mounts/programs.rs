//! File operations of programs beyond reading and writing whole files.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::harness::body::{self, Id};
use crate::harness::node::Site;
use crate::harness::syscall_process::{CREATE_NEW, IN_PLACE};
use crate::harness::{
    Cluster, Io, Must as _, Node, Options, SyscallProcess, command, in_both_modes, now, tree,
};

const READ_WRITE: OFlags = OFlags::RDWR.union(OFlags::CREATE);

fn alone(io: Io) -> (Node, Site) {
    let site = Site::new();
    (Node::start(&site, "m", None, Options::new(io)), site)
}

fn programs_hard_links(io: Io) {
    let cluster = Cluster::two(io);
    let (node, mut process) = (&cluster.a, SyscallProcess::new());
    process.put(&node.at("one"), b"shared").must("put");
    process.link(&node.at("one"), &node.at("two")).must("link");
    let (one, two) =
        (process.stat(&node.at("one")).must("stat"), process.stat(&node.at("two")).must("stat"));
    assert_eq!((one.nlink, two.nlink, one.ino), (2, 2, two.ino));
    assert_eq!(process.link(&node.at("one"), &node.at("two")), Err(Errno::EXIST));
    process.unlink(&node.at("one")).must("unlink one name");
    assert_eq!(process.get(&node.at("two")).must("read by the other"), b"shared");
    assert_eq!(process.stat(&node.at("two")).must("stat").nlink, 1);
    let fd = process.open(&node.at("new.tmp"), CREATE_NEW, 0o600).must("create");
    process.write(fd, b"published by link").must("write");
    process.close(fd).must("close");
    process.link(&node.at("new.tmp"), &node.at("new")).must("publish by link");
    process.unlink(&node.at("new.tmp")).must("remove the temporary");
    cluster.settle();
    let all = tree::converge(&node.mount, &cluster.b.mount, 10_000);
    assert_eq!(all.len(), 2, "{all:?}");
}
in_both_modes!(programs_hard_links);

fn programs_extended_attributes(io: Io) {
    let (node, _site) = alone(io);
    let (path, mut process) = (node.at("x"), SyscallProcess::new());
    process.put(&path, b"data").must("put");
    process.setxattr(&path, "user.origin", b"compiler 1", 0).must("setxattr");
    process.setxattr(&path, "user.empty", b"", 1).must("create an empty one");
    assert_eq!(process.getxattr(&path, "user.origin").must("getxattr"), b"compiler 1");
    let mut listed = process.listxattr(&path).must("listxattr");
    listed.sort();
    assert_eq!(listed, ["user.empty", "user.origin"]);
    assert_eq!(process.setxattr(&path, "user.origin", b"y", 1), Err(Errno::EXIST));
    assert_eq!(process.setxattr(&path, "user.none", b"y", 2), Err(Errno::NODATA));
    assert_eq!(process.getxattr(&path, "user.none"), Err(Errno::NODATA));
    process.removexattr(&path, "user.empty").must("removexattr");
    assert_eq!(process.removexattr(&path, "user.empty"), Err(Errno::NODATA));
    process.rename(&path, &node.at("y")).must("rename");
    assert_eq!(process.getxattr(&node.at("y"), "user.origin").must("getxattr"), b"compiler 1");
}
in_both_modes!(programs_extended_attributes);

fn programs_sparse_files_and_truncation(io: Io) {
    let cluster = Cluster::two(io);
    let (node, mut process) = (&cluster.a, SyscallProcess::new());
    let path = node.at("sparse");
    let fd = process.open(&path, READ_WRITE, 0o644).must("open");
    process.pwrite(fd, 5_000_000, b"end").must("write far out");
    process.pwrite(fd, 100, b"begin").must("write");
    process.ftruncate(fd, 6_000_000).must("grow");
    assert_eq!(process.read(fd, 5_000_000, 6).must("read"), b"end\0\0\0");
    process.ftruncate(fd, 5_000_001).must("shrink");
    process.ftruncate(fd, 5_000_010).must("grow again");
    assert_eq!(process.read(fd, 4_999_999, 20).must("read"), b"\0e\0\0\0\0\0\0\0\0\0");
    process.fallocate(fd, 0, 5_000_000, 100_000).must("fallocate");
    assert_eq!(process.fstat(fd).must("fstat").size, 5_100_000);
    process.fallocate(fd, 1, 0, 6_000_000).must("fallocate beyond, keeping the size");
    assert_eq!(process.fstat(fd).must("fstat").size, 5_100_000);
    process.close(fd).must("close");
    process.truncate(&path, 105).must("truncate by name");
    let expected = [&[0; 100][..], b"begin"].concat();
    assert_eq!(process.get(&path).must("read"), expected);
    process.truncate(&path, 0).must("empty it by name");
    assert_eq!(process.get(&path).must("read"), b"");
    process.truncate(&path, 200_000).must("grow by name");
    cluster.a.drain();
    tree::converge(&node.mount, &cluster.b.mount, 10_000);
    assert_eq!(std::fs::read(cluster.b.at("sparse")).must("read on B"), vec![0; 200_000]);
}
in_both_modes!(programs_sparse_files_and_truncation);

fn programs_append_by_two_processes(io: Io) {
    let (node, _site) = alone(io);
    let path = node.at("log");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND;
    let (mut one, mut other) = (SyscallProcess::new(), SyscallProcess::new());
    let first = one.open(&path, flags, 0o644).must("open");
    let second = other.open(&path, flags, 0o644).must("open");
    for round in 0..100 {
        one.write(first, format!("one {round:03}\n").as_bytes()).must("append");
        other.write(second, format!("two {round:03}\n").as_bytes()).must("append");
    }
    one.close(first).must("close");
    other.close(second).must("close");
    let text = std::fs::read_to_string(&path).must("read");
    let lines: Vec<String> =
        (0..100).map(|round| format!("one {round:03}\ntwo {round:03}\n")).collect();
    let expected = lines.concat();
    assert_eq!(text, expected);
    // Closed, opened again, and extended, as generated code is written in two steps.
    other.put_with(&path, OFlags::WRONLY | OFlags::APPEND, 4096, 0, b"last\n").must("extend");
    assert_eq!(std::fs::read_to_string(&path).must("read"), expected + "last\n");
}
in_both_modes!(programs_append_by_two_processes);

/// A directory that another node makes too is no obstacle to a process that rewrites files in it.
fn programs_rewrite_below_directories_that_others_make_too(io: Io) {
    let cluster = Cluster::two(io);
    let (mut here, mut there) = (SyscallProcess::new(), SyscallProcess::new());
    for round in 0..8 {
        let dirs = [format!("d{round}"), format!("d{round}/e")];
        for dir in &dirs {
            here.mkdir(&cluster.a.at(dir)).must("mkdir here");
            there.mkdir(&cluster.b.at(dir)).must("mkdir there");
        }
        let file = cluster.a.at(format!("d{round}/e/file"));
        // Until what the other node made has arrived.
        let until = now() + Duration::from_millis(700);
        let mut count = 0;
        while now() < until {
            let body = format!("body {count}");
            here.put(&file, body.as_bytes()).must("rewrite in place");
            assert_eq!(here.get(&file).must("read"), body.as_bytes());
            count += 1;
        }
    }
    cluster.settle();
    tree::converge(&cluster.a.mount, &cluster.b.mount, 10_000);
}
in_both_modes!(programs_rewrite_below_directories_that_others_make_too);

fn programs_direct_io(io: Io) {
    let (node, _site) = alone(io);
    let (path, mut process) = (node.at("direct"), SyscallProcess::new());
    let fd = process.open(&path, READ_WRITE | OFlags::DIRECT, 0o644).must("open with O_DIRECT");
    process.write_aligned(fd, 0, 8192, b'a').must("write a block");
    process.write_aligned(fd, 4096, 4096, b'b').must("write a block");
    process.close(fd).must("close");
    let expected = [[b'a'; 4096], [b'b'; 4096]].concat();
    assert!(std::fs::read(&path).must("read") == expected);
    let mut plain = SyscallProcess::new();
    let direct = process.open(&path, OFlags::RDONLY | OFlags::DIRECT, 0).must("open");
    let cached = plain.open(&path, OFlags::RDONLY, 0).must("open beside it");
    assert!(plain.read(cached, 0, 8192).must("read") == expected);
    process.close(direct).must("close");
}
in_both_modes!(programs_direct_io);

fn programs_random_writes_as_a_linker_does(io: Io) {
    let cluster = Cluster::two(io);
    let (path, mut process) = (cluster.a.at("lib.so"), SyscallProcess::new());
    let bytes = body::make(Id { writer: 1, seq: 1 }, 250_000);
    let fd = process.open(&path, READ_WRITE | OFlags::TRUNC, 0o666).must("open");
    let mut pieces: Vec<usize> = (0..bytes.len()).step_by(1_777).collect();
    pieces.reverse();
    pieces.rotate_left(40);
    for at in pieces {
        let end = bytes.len().min(at + 1_777);
        process.seek(fd, at as i64, 0).must("seek");
        process.write(fd, &bytes[at..end]).must("write");
        assert!(process.read(fd, at as u64, end - at).must("read back") == bytes[at..end]);
    }
    process.close(fd).must("close");
    process.chmod(&path, 0o755).must("chmod after the close");
    cluster.a.drain();
    tree::converge(&cluster.a.mount, &cluster.b.mount, 10_000);
    assert!(std::fs::read(cluster.b.at("lib.so")).must("read on B") == bytes);
}
in_both_modes!(programs_random_writes_as_a_linker_does);

/// Shared writable mappings: written, closed, then unmapped; the content is that of the mapping.
fn programs_shared_writable_mapping(io: Io) {
    let (node, _site) = alone(io);
    let (path, mut process) = (node.at("mapped"), SyscallProcess::new());
    let fd = process.open(&path, READ_WRITE, 0o644).must("open");
    process.ftruncate(fd, 100_000).must("make room");
    let map = process.map(fd, 100_000, true, true).must("map shared and writable");
    process.map_write(map, 0, b"through the mapping");
    process.map_write(map, 99_990, b"at the end");
    assert_eq!(process.read(fd, 0, 19).must("read"), b"through the mapping");
    process.msync(map).must("msync");
    process.close(fd).must("close while it is mapped");
    process.unmap(map).must("unmap");
    let read = std::fs::read(&path).must("read");
    assert_eq!(read.len(), 100_000);
    assert_eq!(&read[..19], b"through the mapping");
    assert_eq!(&read[99_990..], b"at the end");

    // A published file must not change through a mapping of an older open.
    let old = process.open(&path, OFlags::RDONLY, 0).must("open to read");
    let view = process.map(old, 100_000, false, true).must("map shared, to read");
    let mut writer = SyscallProcess::new();
    let fd = writer.open(&path, OFlags::RDWR, 0).must("open to write");
    let map = writer.map(fd, 100_000, true, true).must("map to write");
    writer.map_write(map, 0, b"THROUGH");
    assert_eq!(
        process.map_read(view, 0, 19),
        b"through the mapping",
        "a published version changed"
    );
    writer.msync(map).must("msync");
    writer.unmap(map).must("unmap");
    writer.close(fd).must("close");
    assert_eq!(&std::fs::read(&path).must("read")[..19], b"THROUGH the mapping");
    assert_eq!(
        process.map_read(view, 0, 19),
        b"through the mapping",
        "a published version changed"
    );
}
in_both_modes!(programs_shared_writable_mapping);

fn compile(site: &Site, name: &str, source: &str, shared: bool) -> std::path::PathBuf {
    let (from, to) = (site.path().join(format!("{name}.c")), site.path().join(name));
    std::fs::write(&from, source).must("write a source");
    let mut cc = Command::new("cc");
    cc.args(if shared { &["-shared", "-fPIC"][..] } else { &[] }).arg("-o").arg(&to).arg(&from);
    command::run(&mut cc, 60_000).good();
    to
}

/// A program and a library that are in use keep their bytes while they are replaced and removed.
fn programs_run_and_load_from_the_mount(io: Io) {
    let (node, site) = alone(io);
    let old = compile(&site, "old.so", "int answer(void) { return 41; }\n", true);
    let new = compile(&site, "new.so", "int pad[9999]; int answer(void) { return 42; }\n", true);
    let slow = "#include <unistd.h>\nint main(void) { sleep(2); return 5; }\n";
    let program = compile(&site, "slow", slow, false);
    let (lib, run) = (node.at("lib.so"), node.at("run"));
    let mut process = SyscallProcess::new();
    process.put(&lib, &std::fs::read(&old).must("read")).must("put");
    assert_eq!(process.call_library(&lib, "answer", false), Ok(41));
    process.put(&run, &std::fs::read(&program).must("read")).must("put");
    process.chmod(&run, 0o755).must("chmod");
    let mut running = Command::new(&run).spawn().must("run from the mount");
    crate::harness::sleep_ms(200);
    let mut writer = SyscallProcess::new();
    writer.put(&node.at("lib.tmp"), &std::fs::read(&new).must("read")).must("put");
    writer.rename(&node.at("lib.tmp"), &lib).must("replace the library in use");
    writer.unlink(&run).must("remove the program in use");
    writer.put(&run, b"#!/bin/sh\nexit 6\n").must("another program of that name");
    writer.chmod(&run, 0o755).must("chmod");
    assert_eq!(process.call_library(&lib, "answer", true), Ok(41), "the library in use");
    let mut fresh = SyscallProcess::new();
    assert_eq!(fresh.call_library(&lib, "answer", false), Ok(42));
    let status = command::wait(&mut running, 20_000).must("the old program ends");
    assert_eq!(status.code(), Some(5), "the old program: {status}");
    assert_eq!(command::run(&mut Command::new(&run), 10_000).code(), 6);
}
in_both_modes!(programs_run_and_load_from_the_mount);

/// A process whose working directory is removed.
fn programs_working_directory_that_is_removed(io: Io) {
    let (node, _site) = alone(io);
    let (mut process, mut other) = (SyscallProcess::new(), SyscallProcess::new());
    process.mkdir(&node.at("build")).must("mkdir");
    process.chdir(&node.at("build")).must("chdir");
    process.put(Path::new("relative"), b"x").must("write a relative name");
    assert_eq!(other.get(&node.at("build/relative")).must("read"), b"x");
    process.unlink(Path::new("relative")).must("unlink");
    other.rmdir(&node.at("build")).must("rmdir of another's working directory");
    assert_eq!(process.cwd(), Err(Errno::NOENT));
    assert_eq!(process.put(Path::new("late"), b"x"), Err(Errno::NOENT));
    assert_eq!(process.stat(Path::new("relative")), Err(Errno::NOENT));
    other.mkdir(&node.at("build")).must("a new one of that name");
    process.chdir(&node.mount).must("chdir out of it");
    process.put(&node.at("build/again"), b"y").must("write into the new one");
}
in_both_modes!(programs_working_directory_that_is_removed);

/// Opening with O_CREAT, while another process removes the name all the time, never fails with ENOENT.
fn programs_create_against_unlink(io: Io) {
    let (node, _site) = alone(io);
    let path = node.at("contended");
    let (stop, stopped) = std::sync::mpsc::sync_channel::<()>(1);
    let remover = {
        let path = path.clone();
        crate::harness::time::thread(move || {
            let mut process = SyscallProcess::new();
            while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                match process.unlink(&path) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(errno) => panic!("unlink: {errno}"),
                }
            }
        })
    };
    let mut process = SyscallProcess::new();
    for round in 0..1_500 {
        let flags = if round % 2 == 0 { IN_PLACE } else { READ_WRITE };
        process.put_with(&path, flags, 4096, 0, b"x").must(format_args!("round {round}"));
    }
    drop(stop);
    remover.join().must("the remover");
}
in_both_modes!(programs_create_against_unlink);

/// Makes a repository in `$1` to which two processes commit concurrently, packs it, clones it with
/// and without hard links, and prints what the clones agree on.
const GIT: &str = r#"
repo=$1
git init -q -b main "$repo/one" && cd "$repo/one"
git config gc.auto 0
for i in $(seq 60); do mkdir -p "d$((i % 7))"; seq $((i * 40)) > "d$((i % 7))/f$i"; done
git add -A && git commit -qm first
for side in left right; do git worktree add -q -b "$side" "../$side"; done
work() { for i in $(seq 8); do seq $i 500 > "$1-$i"; git add "$1-$i"; git commit -qm "$1 $i"; done; }
(cd ../left && work left) & left=$!
(cd ../right && work right) & right=$!
wait $left; wait $right
git merge -q -m both left right >/dev/null
git repack -q -a -d -f && git pack-refs --all && git prune
git fsck --strict --full --no-progress
test -z "$(git status --porcelain)"
git clone -q "$repo/one" "$repo/linked"
git clone -q --no-hardlinks "$repo/one" "$repo/copied"
for clone in linked copied; do
    git -C "$repo/$clone" fsck --strict --full --no-progress
    test -z "$(git -C "$repo/$clone" status --porcelain)"
    git -C "$repo/$clone" rev-parse HEAD^{tree}
done
git rev-list --count HEAD
"#;

fn programs_git(io: Io) {
    if !command::need(&format!("programs_git::{}", io.word()), "git") {
        return;
    }
    let cluster = Cluster::two(io);
    let git = |words: &[&str]| {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).env("HOME", cluster.site.path()).env("GIT_CONFIG_NOSYSTEM", "1");
        for role in ["AUTHOR", "COMMITTER"] {
            command.env(format!("GIT_{role}_NAME"), "t").env(format!("GIT_{role}_EMAIL"), "t@t");
        }
        command::run(&mut command, 120_000).good()
    };
    let repository = cluster.a.mount.to_string_lossy().into_owned();
    let said = git(&["sh", "-ec", GIT, "sh", &repository]);
    let lines: Vec<&str> = said.lines().collect();
    // The first commit, eight of each side, and the merge.
    assert!(matches!(lines[..], [one, other, "18"] if one == other && one.len() == 40), "{said}");
    cluster.settle();
    tree::converge(&cluster.a.mount, &cluster.b.mount, 15_000);
    let other = cluster.b.at("copied").to_string_lossy().into_owned();
    git(&["git", "-c", "safe.directory=*", "-C", &other, "fsck", "--strict", "--full"]);
    let head = git(&["git", "-c", "safe.directory=*", "-C", &other, "rev-parse", "HEAD^{tree}"]);
    assert_eq!(Some(&head.trim()), lines.first(), "on the other node");
}
in_both_modes!(programs_git);
