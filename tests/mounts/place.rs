//! A node whose store is missing: a share that is not mounted, an empty directory, another store.

use std::path::Path;

use crate::harness::body::{self, Id};
use crate::harness::command::run;
use crate::harness::node::Site;
use crate::harness::store::Trouble;
use crate::harness::{
    Cluster, Io, Must as _, Node, Options, Store, SyscallProcess, eventually, in_both_modes, now,
    tree,
};

const REFUSED: i32 = 2;

fn body(seq: u64) -> Vec<u8> {
    body::make(Id { writer: 1, seq }, [300, 9_000, 300_000][seq as usize % 3])
}

fn write(node: &Node, prefix: &str, seqs: std::ops::Range<u64>) {
    let mut process = SyscallProcess::new();
    for seq in seqs {
        process.put(&node.at(format!("{prefix}{seq}")), &body(seq)).must("put a file");
    }
}

fn reads(node: &Node, prefix: &str, seqs: std::ops::Range<u64>) {
    let mut process = SyscallProcess::new();
    for seq in seqs {
        let read = process.get(&node.at(format!("{prefix}{seq}")));
        assert!(read == Ok(body(seq)), "{prefix}{seq}: {:?}", read.map(|bytes| bytes.len()));
    }
}

fn health(node: &Node) -> (bool, String) {
    let status = node.status();
    let up = status["health"]["up"].as_bool().must("a health");
    (up, status["health"]["last_error"].as_str().unwrap_or_default().to_owned())
}

/// Waits until a node knows that its store is down.
fn await_outage(node: &Node) {
    eventually(20_000, "the outage is known", || {
        let (up, why) = health(node);
        if up { Err(why) } else { Ok(()) }
    });
}

fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).must("read the directory").next().is_none()
}

/// Acknowledged changes of a node reach the others, whatever was in the place of the store meanwhile.
fn p4_local_durable_while_the_share_is_not_mounted(io: Io) {
    let mut cluster = Cluster::two(io);
    write(&cluster.a, "old", 0..12);
    cluster.settle();
    tree::converge(&cluster.a.mount, &cluster.b.mount, 15_000);
    cluster.a.stop();
    cluster.b.stop();
    cluster.store.vanish();
    cluster.a.up();
    reads(&cluster.a, "old", 0..12);
    write(&cluster.a, "mine", 0..5);
    let (up, why) = health(&cluster.a);
    assert!(!up && why.contains(&cluster.store.url()) && why.contains("hearthfs init"), "{why}");
    let said = cluster.a.log().lines().filter(|line| line.contains("hearthfs init")).count();
    assert_eq!(said, 1, "{}", cluster.a.log());
    // The daemon dies and restarts in between, and then finds no directory at all.
    cluster.a.kill_only();
    assert!(is_empty(&cluster.store.objects()), "nothing is written there");
    std::fs::remove_dir(cluster.store.objects()).must("remove the empty directory");
    cluster.a.up();
    reads(&cluster.a, "old", 0..12);
    reads(&cluster.a, "mine", 0..5);
    write(&cluster.a, "mine", 5..8);
    assert!(!health(&cluster.a).0 && !cluster.store.objects().exists());
    // The share is back.
    std::fs::create_dir(cluster.store.objects()).must("its mount point");
    cluster.store.heal();
    cluster.b.up();
    eventually(40_000, "all acknowledged files are on the other node", || {
        let shown = tree::texts(&cluster.b.mount).len();
        if shown == 20 { Ok(()) } else { Err(format!("{shown} of 20 entries")) }
    });
    cluster.a.drain();
    reads(&cluster.b, "mine", 0..8);
    assert!(health(&cluster.a).0);
    tree::converge(&cluster.a.mount, &cluster.b.mount, 15_000);
}
in_both_modes!(p4_local_durable_while_the_share_is_not_mounted);

/// A store that another node made on the bare mount point is not the known one either, at the start
/// and while mounted.
#[test]
fn p4_local_durable_beside_another_store_in_the_same_place() {
    let mut cluster = Cluster::two(Io::best());
    write(&cluster.a, "old", 0..4);
    cluster.settle();
    tree::converge(&cluster.a.mount, &cluster.b.mount, 15_000);
    cluster.b.stop();
    cluster.store.vanish();
    run(cluster.site.hearthfs().args(["init", &cluster.store.url()]), 20_000).good();
    let empty = tree::files_below(&cluster.store.objects()).len();
    write(&cluster.a, "mine", 0..3);
    eventually(20_000, "the node notices", || {
        let (up, why) = health(&cluster.a);
        if !up && why.contains("--replaces") { Ok(()) } else { Err(why) }
    });
    cluster.a.kill_only();
    cluster.a.up();
    write(&cluster.a, "mine", 3..5);
    let (up, why) = health(&cluster.a);
    assert!(!up && why.contains("holds another store"), "{why}");
    reads(&cluster.a, "old", 0..4);
    assert_eq!(tree::files_below(&cluster.store.objects()).len(), empty, "nothing is sent there");
    cluster.store.heal();
    cluster.b.up();
    eventually(40_000, "all acknowledged files are on the other node", || {
        let shown = tree::texts(&cluster.b.mount).len();
        if shown == 9 { Ok(()) } else { Err(format!("{shown} of 9 entries")) }
    });
    reads(&cluster.b, "mine", 0..5);
}

/// A missing directory is made only for a node that knows no store, and only in an existing directory.
#[test]
fn place_of_a_directory_that_does_not_exist() {
    let site = &Site::new();
    let near = format!("file://{}", site.path().join("near").display());
    let far = format!("file://{}", site.path().join("no/far").display());
    let mut node = Node::start(site, "n", None, Options::new(Io::best()));
    node.stop();
    node.set_remote(&far);
    let text = node.refused();
    assert!(text.contains("no does not exist") && text.contains("far"), "{text}");
    let said = run(site.hearthfs().args(["init", &far]), 20_000);
    assert_eq!(said.code(), REFUSED, "{said:?}");
    assert!(said.err.contains("no does not exist; make it"), "{said:?}");
    node.set_remote(&near);
    node.up();
    assert_eq!(node.log().matches("there was no store: a new one is made").count(), 1);
    node.stop();
    let away = site.path().join("near.away");
    std::fs::rename(site.path().join("near"), &away).must("the share goes");
    let other = format!("file://{}", site.path().join("other").display());
    node.set_remote(&other);
    let text = node.refused();
    assert!(text.contains(&format!("hearthfs init {other}")) && text.contains(&near), "{text}");
    assert!(!site.path().join("other").exists());
}

/// A command that has ended does not wait for a store that is down.
fn run_ends_at_once_when_the_store_is_down(io: Io) {
    let cluster = Cluster::with(Store::dir, &Options::new(io).alone());
    let mount = cluster.a.mount.to_string_lossy().into_owned();
    cluster.store.vanish();
    write(&cluster.a, "first", 0..1);
    await_outage(&cluster.a);
    let script = format!("for n in 1 2 3 4; do echo $n > {mount}/new$n; done; exit 7");
    let began = now();
    let said = cluster.a.command(&["run", "--mount", &mount, "--", "sh", "-c", &script]);
    let took = began.elapsed();
    assert!(took.as_secs() < 15, "{took:?}");
    assert_eq!(said.code(), 7, "{said:?}");
    for part in ["changes", "not yet remote; ", &cluster.store.url(), "it is kept here"] {
        assert!(said.err.contains(part), "`{part}` is not in: {said:?}");
    }
    assert!(!said.err.contains("drained"), "{said:?}");
    // `drain` waits as long as it is told to, and says why.
    let said = cluster.a.command(&["drain", &mount, "--timeout", "5s"]);
    assert_eq!(said.code(), 1, "{said:?}");
    assert!(said.err.contains("draining: ") && said.err.contains("error: "), "{said:?}");
    assert!(said.err.matches(&cluster.store.url()).count() >= 2, "{said:?}");
    // A short outage does not end it.
    cluster.store.heal();
    let said = cluster.a.command(&["run", "--mount", &mount, "--", "true"]);
    assert!(said.code() == 0 && said.err.contains("drained in"), "{said:?}");
    write(&cluster.a, "last", 0..1);
    cluster.store.vanish();
    let said = cluster.a.command(&["unmount", &mount, "--timeout", "5s"]);
    assert!(said.code() == 1 && said.err.contains(&cluster.store.url()), "{said:?}");
    cluster.store.heal();
}
in_both_modes!(run_ends_at_once_when_the_store_is_down);

/// The same if a server hangs, is gone, or refuses every request.
#[test]
fn run_ends_at_once_when_a_server_is_down() {
    for trouble in [Trouble::Hang, Trouble::Down, Trouble::Forbidden] {
        let options = Options::new(Io::best()).alone().deadline("2s");
        let cluster = Cluster::with(Store::s3, &options);
        let mount = cluster.a.mount.to_string_lossy().into_owned();
        cluster.store.trouble(trouble);
        write(&cluster.a, "first", 0..1);
        await_outage(&cluster.a);
        let script = format!("echo 1 > {mount}/new");
        let began = now();
        let said = cluster.a.command(&["run", "--mount", &mount, "--", "sh", "-c", &script]);
        let took = began.elapsed();
        assert!(took.as_secs() < 25, "{trouble:?}: {took:?}");
        assert_eq!(said.code(), 0, "{trouble:?}: {said:?}");
        assert!(said.err.contains("not yet remote; "), "{trouble:?}: {said:?}");
        assert!(
            !said.err.contains("takes longer than"),
            "a reason is given: {trouble:?}: {said:?}"
        );
        cluster.store.heal();
        cluster.a.drain();
    }
}

/// If a store fails while a command's files are uploaded, the command waits for the configured time.
#[test]
fn run_waits_for_a_store_that_fails_while_it_drains() {
    let options = Options::new(Io::best()).alone().deadline("2s");
    let cluster = Cluster::with(Store::s3, &options);
    let mount = cluster.a.mount.to_string_lossy().into_owned();
    write(&cluster.a, "first", 0..1);
    cluster.a.drain();
    cluster.store.trouble(Trouble::Hang);
    assert!(health(&cluster.a).0, "no request was sent since");
    let script = format!("echo 1 > {mount}/new");
    let words = ["run", "--mount", &mount, "--", "sh", "-c", &script];
    std::thread::scope(|scope| {
        let running = scope.spawn(|| cluster.a.command(&words));
        await_outage(&cluster.a);
        // Longer than a probe takes.
        assert_eq!(cluster.a.command(&["drain", &mount, "--timeout", "4s"]).code(), 1);
        assert!(!running.is_finished(), "{:?}", running.join().must("run"));
        cluster.store.heal();
        let said = running.join().must("run");
        assert!(said.code() == 0 && said.err.contains("drained in"), "{said:?}");
        assert!(said.err.contains("the store was down meanwhile: "), "{said:?}");
    });
}

/// A mount in the background prints what otherwise only its log would say about the store.
#[test]
fn place_of_a_new_store_is_said() {
    let site = &Site::new();
    let (mount, cache) = (site.dir("m"), site.path().join("cache"));
    let url = format!("file://{}", site.path().join("store").display());
    let says = |text: &str| {
        let mut command = site.hearthfs();
        command.arg("mount").arg(&mount).args(["--background", "--remote", &url]);
        command.arg("--cache-dir").arg(&cache);
        let said = run(&mut command, 30_000);
        assert!(said.status.success() && said.err.contains(text), "`{text}`: {said:?}");
        run(site.hearthfs().arg("unmount").arg(&mount), 90_000).good();
        said.err
    };
    says(&format!("there was no store at {url}: a new one is made"));
    assert!(!says("mounted at").contains("a new one is made"));
    let (store, away) = (site.path().join("store"), site.path().join("away"));
    std::fs::rename(&store, &away).must("the share goes");
    says("cannot be used now");
    std::fs::rename(&away, &store).must("the share comes back");
    assert!(!says("mounted at").contains("cannot be used"));
}
