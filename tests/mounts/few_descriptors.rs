//! Limits: few descriptors, when a program or a user wants the daemon to open too many files.

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::limits::content;
use super::users::{A, B, can_be_others, let_in};
use crate::harness::node::Site;
use crate::harness::syscall_process::CREATE_NEW;
use crate::harness::{Io, Must as _, Node, Options, SyscallProcess, eventually, in_both_modes};

const ENTRIES: usize = 2_000;

/// Returns a syscall process that may have many files open.
fn process_with_descriptors() -> SyscallProcess {
    SyscallProcess::wrapped(&["sh", "-c", "ulimit -n 4096; exec \"$@\"", "sh"])
}

fn with_descriptors(io: Io, limit: &str) -> (Site, Node) {
    let site = Site::new();
    let options = Options::new(io);
    let node = Node::start(&site, "m", None, options.clone());
    let mut process = SyscallProcess::new();
    for k in 0..ENTRIES {
        process.put(&node.at(format!("f{k}")), &content(0, k as u64, 100)).must("put");
    }
    let cache = node.cache.clone();
    drop(node);
    let script = format!("{limit}; \"$@\"; exit $?");
    let options = options.wrapped(&["sh", "-c", &script, "sh"]);
    let node = Node::start_in(&site, "m", None, options, &cache);
    (site, node)
}

/// The soft limit is raised as far as allowed.
fn limits_few_descriptors_to_begin_with(io: Io) {
    let (_site, node) = with_descriptors(io, "ulimit -Sn 256");
    let mut process = process_with_descriptors();
    for k in 0..ENTRIES {
        let path = node.at(format!("f{k}"));
        process.open(&path, OFlags::RDONLY, 0).must(format_args!("open {k} of {ENTRIES}"));
    }
    process.put(&node.at("new"), b"x").must("create");
}
in_both_modes!(limits_few_descriptors_to_begin_with);

/// If it cannot be raised, a program that opens too many files gets an error for that; nothing is
/// reported as missing, and all else goes on.
fn limits_few_descriptors_for_good(io: Io) {
    let (_site, node) = with_descriptors(io, "ulimit -n 256");
    let mut process = process_with_descriptors();
    let (mut open, mut refused) = (Vec::new(), 0);
    for k in 0..ENTRIES {
        match process.open(&node.at(format!("f{k}")), OFlags::RDONLY, 0) {
            Ok(fd) => open.push(fd),
            Err(errno) => {
                assert!(matches!(errno, Errno::NFILE | Errno::MFILE), "open {k}: {errno}");
                refused += 1;
            }
        }
    }
    assert!(open.len() > 100 && refused > 0, "{} open, {refused} refused", open.len());
    for k in 0..20 {
        match process.open(&node.at(format!("new{k}")), CREATE_NEW, 0o644) {
            Ok(fd) => process.close(fd).must("close"),
            Err(errno) => assert!(matches!(errno, Errno::NFILE | Errno::MFILE), "{errno}"),
        }
    }
    // The reserve is for status requests.
    node.status();
    for fd in open {
        process.close(fd).must("close");
    }
    for k in 0..ENTRIES {
        let path = node.at(format!("f{k}"));
        eventually(5_000, format_args!("f{k} when others have closed"), || {
            let read = process.get(&path).map_err(|errno| errno.to_string())?;
            if read == content(0, k as u64, 100) { Ok(()) } else { Err("other bytes".to_owned()) }
        });
    }
    process.put(&node.at("after"), b"x").must("create");
}
in_both_modes!(limits_few_descriptors_for_good);

/// Blobs that no process has open any more are closed before a program is refused a new file.
fn limits_few_descriptors_go_to_new_files_first(io: Io) {
    let (_site, node) = with_descriptors(io, "ulimit -n 256");
    let kept = || {
        let fds = format!("/proc/{}/fd", node.pid().as_raw_nonzero());
        let files = std::fs::read_dir(fds).must("list descriptors").flatten();
        let files = files.filter_map(|fd| std::fs::read_link(fd.path()).ok());
        files.filter(|file| file.starts_with(node.cache.join("v1/blobs"))).count()
    };
    let mut process = process_with_descriptors();
    for k in 0..10 {
        process.get(&node.at(format!("f{k}"))).must("read");
    }
    assert!(kept() > 0, "nothing stays open");
    let mut opened = 0;
    let refused = (0..ENTRIES).find_map(|k| {
        let made = process.open(&node.at(format!("new{k}")), CREATE_NEW, 0o644);
        opened += usize::from(made.is_ok());
        made.err()
    });
    assert!(matches!(refused, Some(Errno::NFILE | Errno::MFILE)), "{refused:?} after {opened}");
    assert_eq!(kept(), 0, "refused after {opened}");
}
in_both_modes!(limits_few_descriptors_go_to_new_files_first);

/// A user that opens as many files as allowed leaves a quarter to the others, which is enough for
/// ordinary programs.
fn limits_one_user_leaves_descriptors_to_others(io: Io) {
    if !can_be_others("limits_one_user_leaves_descriptors_to_others", io) {
        return;
    }
    let (site, node) = with_descriptors(io, "ulimit -n 512");
    let_in(site.path(), 0o755);
    let_in(&node.mount, 0o777);
    let mut greedy = SyscallProcess::of(B, &[]);
    let mut refused = None;
    for k in 0..ENTRIES {
        match greedy.open(&node.at(format!("f{k}")), OFlags::RDONLY, 0) {
            Ok(_) => {}
            Err(errno) => {
                refused = Some((k, errno));
                break;
            }
        }
    }
    let (open, errno) = refused.expect("a limit");
    assert!(errno == Errno::NFILE && open > 200, "{open} open, then {errno}");
    assert_eq!(greedy.open(&node.at("of-b"), CREATE_NEW, 0o644), Err(Errno::NFILE));
    let mut other = SyscallProcess::of(A, &[]);
    for k in 0..50 {
        let path = node.at(format!("f{}", ENTRIES - 1 - k));
        let file = other.open(&path, OFlags::RDONLY, 0);
        file.must(format_args!("open file {k} beside the greedy one"));
    }
    other.put(&node.at("of-a"), b"x").must("create beside the greedy one");
}
in_both_modes!(limits_one_user_leaves_descriptors_to_others);
