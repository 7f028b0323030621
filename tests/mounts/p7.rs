//! P7 one-winner: two nodes that write one path converge; the loser's `close()` succeeds.

use std::path::Path;

use rustix::io::Errno;

use crate::harness::body::{self, Id};
use crate::harness::tree::{self, Thing};
use crate::harness::{Cluster, Io, Must as _, SyscallProcess, in_both_modes, sleep_ms};

/// Does `left` on one node and `right` on the other at the same time.
fn both<L: Send, R: Send>(
    left: impl FnOnce() -> L + Send,
    right: impl FnOnce() -> R + Send,
) -> (L, R) {
    std::thread::scope(|scope| {
        let left = scope.spawn(left);
        let right = right();
        (left.join().must("the other node's part"), right)
    })
}

fn settled(cluster: &Cluster) -> tree::Tree {
    cluster.settle();
    let there = tree::converge(&cluster.a.mount, &cluster.b.mount, 10_000);
    sleep_ms(1_300);
    let later = tree::converge(&cluster.a.mount, &cluster.b.mount, 1_000);
    assert_eq!(tree::difference(&there, &later), "", "the nodes show other files later");
    there
}

fn p7_one_winner_of_writes_in_place(io: Io) {
    writes_in_place(&Cluster::two(io));
}
in_both_modes!(p7_one_winner_of_writes_in_place);

/// Both write the same names in place at the same moments.
pub(crate) fn writes_in_place(cluster: &Cluster) {
    let (mut one, mut other) = (SyscallProcess::new(), SyscallProcess::new());
    let len = |k: u64| if k.is_multiple_of(5) { 1_300_000 } else { 20_000 + 1_000 * k as usize };
    for k in 0..20 {
        let name = format!("f{k}");
        let (mine, theirs) = (
            body::make(Id { writer: 1, seq: k }, len(k)),
            body::make(Id { writer: 2, seq: k }, len(k) + 7),
        );
        let (left, right) = both(
            || one.put(&cluster.a.at(&name), &mine),
            || other.put(&cluster.b.at(&name), &theirs),
        );
        assert_eq!((left, right), (Ok(()), Ok(())), "the closes of {name}");
    }
    let there = settled(cluster);
    assert_eq!(there.len(), 20);
    for k in 0..20 {
        let bytes = std::fs::read(cluster.a.at(format!("f{k}"))).must("read");
        let id = body::check(&bytes).must(format_args!("f{k}"));
        assert_eq!(id.seq, k);
    }
    // A later writer wins over both, from either side.
    let last = body::make(Id { writer: 3, seq: 0 }, 5_000);
    other.put(&cluster.b.at("f3"), &last).must("a later writer");
    cluster.b.drain();
    tree::converge(&cluster.a.mount, &cluster.b.mount, 10_000);
    assert!(std::fs::read(cluster.a.at("f3")).must("read") == last);
}

fn p7_one_winner_of_renames(io: Io) {
    renames(&Cluster::two(io));
}
in_both_modes!(p7_one_winner_of_renames);

/// Both rename their own file to the same names at the same moments.
pub(crate) fn renames(cluster: &Cluster) {
    let (mut one, mut other) = (SyscallProcess::new(), SyscallProcess::new());
    let publish = |process: &mut SyscallProcess, mount: &Path, writer: u32, k: u64| {
        let bytes = body::make(Id { writer, seq: k }, 30_000);
        let temporary = mount.join(format!("tmp.{k}"));
        process.put(&temporary, &bytes)?;
        process.rename(&temporary, &mount.join(format!("entry{k}")))
    };
    for k in 0..20 {
        let (left, right) = both(
            || publish(&mut one, &cluster.a.mount, 1, k),
            || publish(&mut other, &cluster.b.mount, 2, k),
        );
        assert_eq!((left, right), (Ok(()), Ok(())), "renames of {k}, with one temporary's name");
    }
    let there = settled(cluster);
    assert_eq!(there.len(), 20, "only entries: {there:?}");
    for k in 0..20 {
        let bytes = std::fs::read(cluster.b.at(format!("entry{k}"))).must("read");
        assert_eq!(body::check(&bytes).must("a whole entry").seq, k);
    }
}

fn p7_one_winner_of_conflicting_kinds(io: Io) {
    conflicting_kinds(&Cluster::two(io));
}
in_both_modes!(p7_one_winner_of_conflicting_kinds);

/// Both make different things of the same names at the same moments.
pub(crate) fn conflicting_kinds(cluster: &Cluster) {
    let (mut one, mut other) = (SyscallProcess::new(), SyscallProcess::new());
    for k in 0..6 {
        let at = |node: &crate::harness::Node, name: &str| node.at(format!("{name}{k}"));
        one.put(&at(&cluster.a, "gone"), b"old").must("put");
        one.mkdir(&at(&cluster.a, "dir")).must("mkdir");
        cluster.a.drain();
        tree::converge(&cluster.a.mount, &cluster.b.mount, 10_000);
        let (left, right) = both(
            || one.unlink(&at(&cluster.a, "gone")),
            || other.put(&at(&cluster.b, "gone"), b"new"),
        );
        assert_eq!((left, right), (Ok(()), Ok(())), "unlink against write");
        let (left, right) = both(
            || one.mkdir(&at(&cluster.a, "kind")),
            || other.put(&at(&cluster.b, "kind"), b"a file"),
        );
        let fine =
            |done: Result<(), Errno>| matches!(done, Ok(()) | Err(Errno::EXIST | Errno::ISDIR));
        assert!(fine(left) && fine(right), "mkdir against write: {left:?} {right:?}");
        let (left, right) = both(
            || one.rmdir(&at(&cluster.a, "dir")),
            || other.put(&at(&cluster.b, "dir").join("f"), b"inside"),
        );
        let fine = matches!(left, Ok(()) | Err(Errno::NOTEMPTY))
            && matches!(right, Ok(()) | Err(Errno::NOENT));
        assert!(fine, "rmdir against a file in it: {left:?} {right:?}");
        let (left, right) = both(
            || one.symlink(Path::new("left"), &at(&cluster.a, "link")),
            || other.symlink(Path::new("right"), &at(&cluster.b, "link")),
        );
        let fine = |done: Result<(), Errno>| matches!(done, Ok(()) | Err(Errno::EXIST));
        assert!(fine(left) && fine(right), "two links: {left:?} {right:?}");
    }
    let there = settled(cluster);
    for k in 0..6 {
        let link = there.get(Path::new(&format!("link{k}")));
        assert!(matches!(link, Some(Thing::Link(_))), "link{k} is {link:?}");
        assert!(there.contains_key(Path::new(&format!("kind{k}"))), "kind{k} is lost");
        let gone = std::fs::read(cluster.a.at(format!("gone{k}")));
        assert!(gone.is_err() || gone.is_ok_and(|bytes| bytes == b"new"), "gone{k}");
    }
    // Whichever won, both nodes can continue with every name.
    for (path, thing) in there.iter().rev() {
        let path = cluster.b.mount.join(path);
        let done = if *thing == Thing::Dir { other.rmdir(&path) } else { other.unlink(&path) };
        done.must(format_args!("remove {}", path.display()));
    }
    assert!(settled(cluster).is_empty());
}
