//! Replays of clients that cannot run here, on two nodes at once: each treats its directory as the client does.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::clients::{LIMIT_MS, command, python};
use crate::harness::command::{run, wait};
use crate::harness::time::thread;
use crate::harness::{Cluster, Io, Must as _, eventually, in_both_modes, skipped, sleep_ms, tree};

fn replay(cluster: &Cluster, name: &str, args: &[&str]) -> Option<Command> {
    let Some(python) = python() else {
        skipped(&format!("clients_{name}"), "python3 is not installed");
        return None;
    };
    Some(command(cluster, &python, name, args))
}

fn text(path: &Path) -> &str {
    path.to_str().must("a path that is text")
}

fn clients_neuron_replay(io: Io) {
    let cluster = Cluster::two(io);
    let (on_a, on_b) = (cluster.a.at("neuron"), cluster.b.at("neuron"));
    let start = |dir: &Path, key: &str| {
        let mut command = replay(&cluster, "neuron_replay.py", &[text(dir), key, "1"])?;
        Some(thread(move || run(&mut command, LIMIT_MS).good().trim().to_owned()))
    };
    let (Some(one), Some(other)) = (start(&on_a, "k1"), start(&on_a, "k1")) else { return };
    let mut said = [one.join().must("one"), other.join().must("other")];
    said.sort();
    assert_eq!(said, ["COMPILED", "WAITED"], "two processes of one node");
    cluster.a.drain();
    sleep_ms(1_150);
    let later = start(&on_b, "k1").must("python").join().must("later");
    assert_eq!(later, "HIT", "the other node, later");
    // On both nodes at once: locks exclude only on one node, and nothing may be torn in any case.
    let both = [start(&on_a, "k2"), start(&on_b, "k2"), start(&on_b, "k2")];
    for one in both {
        let said = one.must("python").join().must("one of three");
        assert!(["COMPILED", "WAITED", "HIT"].contains(&said.as_str()), "{said}");
    }
    cluster.settle();
    let all = tree::converge(&cluster.a.mount, &cluster.b.mount, 10_000);
    assert!(!all.keys().any(|path| path.to_string_lossy().ends_with(".lock")), "{all:?}");
    for dir in [&on_a, &on_b] {
        assert_eq!(start(dir, "k2").must("python").join().must("later"), "HIT");
    }
}
in_both_modes!(clients_neuron_replay);

fn looked(child: &mut Child) {
    let mut line = String::new();
    let out = child.stdout.as_mut().must("its stdout");
    BufReader::with_capacity(1, out).read_line(&mut line).must("an answer of the reader");
    assert_eq!(line.trim(), "LOOKED");
}

/// Other ranks have looked before the code arrived, and import it right after their barrier.
fn clients_nnscaler_replay(io: Io) {
    let cluster = Cluster::two(io);
    let (on_a, on_b) = (cluster.a.at("nns"), cluster.b.at("nns"));
    let args = [text(&on_a), "4"];
    let Some(mut first) = replay(&cluster, "nnscaler_replay.py", &args) else { return };
    std::fs::create_dir_all(on_a.join("_parallel_modules/model/Block/_")).must("mkdir");
    cluster.a.drain();
    let home = on_b.join("_parallel_modules/model/Block/_");
    eventually(5_000, "node B has the directory", || {
        if home.is_dir() { Ok(()) } else { Err("not yet".to_owned()) }
    });
    let mut readers: Vec<Child> = (0..4)
        .map(|rank| {
            let dir = if rank % 2 == 0 { &on_b } else { &on_a };
            let args = [text(dir), "4", "import"];
            let mut command = replay(&cluster, "nnscaler_replay.py", &args).must("python");
            command.env("RANK", rank.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
            command.spawn().must("start a reader")
        })
        .collect();
    readers.iter_mut().for_each(looked);
    assert_eq!(run(&mut first, LIMIT_MS).good().trim(), "GENERATED");
    // The barrier: the writer's node has uploaded its work, and `freshness` has passed.
    cluster.a.drain();
    sleep_ms(1_150);
    for reader in &mut readers {
        reader.stdin.as_mut().must("its stdin").write_all(b"go\n").must("pass the barrier");
    }
    for (rank, mut reader) in readers.into_iter().enumerate() {
        let status = wait(&mut reader, 60_000).must("a reader ends");
        assert!(status.success(), "rank {rank} did not import the generated code: {status}");
    }
    let mut again = replay(&cluster, "nnscaler_replay.py", &[text(&on_b), "4"]).must("python");
    assert_eq!(run(&mut again, LIMIT_MS).good().trim(), "REUSED");
}
in_both_modes!(clients_nnscaler_replay);

fn clients_dejavu_replay(io: Io) {
    let cluster = Cluster::two(io);
    let (on_a, on_b) = (cluster.a.at("dejavu"), cluster.b.at("dejavu"));
    std::fs::create_dir(&on_a).must("mkdir");
    let keys: Vec<String> = (0..40).map(|k| format!("k{k}")).collect();
    let start = |dir: &Path, kernel: &str| {
        let mut args = vec![text(dir), kernel];
        args.extend(keys.iter().map(String::as_str));
        let mut command = replay(&cluster, "dejavu_replay.py", &args)?;
        Some(thread(move || run(&mut command, LIMIT_MS).good().trim().to_owned()))
    };
    let Some(cold) = start(&on_a, "gemm") else { return };
    assert_eq!(cold.join().must("cold"), "HIT 0 MISS 40");
    cluster.a.drain();
    sleep_ms(1_150);
    let warm = start(&on_b, "gemm").must("python").join().must("warm");
    assert_eq!(warm, "HIT 40 MISS 0");
    // All ranks of both nodes rewrite one file; none ever reads an unparseable version.
    let ranks: Vec<_> = [&on_a, &on_b, &on_a, &on_b, &on_a, &on_b]
        .into_iter()
        .map(|dir| start(dir, "attention").must("python"))
        .collect();
    for rank in ranks {
        rank.join().must("a rank that parses what it reads");
    }
    cluster.settle();
    tree::converge(&cluster.a.mount, &cluster.b.mount, 10_000);
}
in_both_modes!(clients_dejavu_replay);

/// Ranks of both nodes compile one model part at once, and others read all the time.
fn clients_vllm_replay(io: Io) {
    let cluster = Cluster::two(io);
    let (on_a, on_b) = (cluster.a.at("vllm"), cluster.b.at("vllm"));
    std::fs::create_dir(&on_a).must("mkdir");
    cluster.settle();
    let start = |dir: &Path, part: &str, name: &str| {
        let mut command = replay(&cluster, "vllm_replay.py", &[text(dir), part, name, "6"])?;
        Some(thread(move || run(&mut command, LIMIT_MS).good().trim().to_owned()))
    };
    let fine = ["WROTE", "HIT", "OTHER"];
    for round in 0..4 {
        let part = format!("part{round}");
        let ranks: Vec<_> = (0..6)
            .map(|rank| {
                let dir = if rank % 2 == 0 { &on_a } else { &on_b };
                start(dir, &part, &format!("rank{rank}"))
            })
            .collect();
        for rank in ranks {
            let Some(rank) = rank else { return };
            let said = rank.join().must("a rank without torn or missing files");
            assert!(fine.contains(&said.as_str()), "{said}");
        }
        cluster.settle();
        tree::converge(&cluster.a.mount, &cluster.b.mount, 10_000);
        // One of them compiles again, with a directory of artifacts that is removed and remade.
        let args = [text(&on_a), &part, "again", "6", "replace"];
        let mut again = replay(&cluster, "vllm_replay.py", &args).must("python");
        assert_eq!(run(&mut again, LIMIT_MS).good().trim(), "WROTE");
        cluster.settle();
        tree::converge(&cluster.a.mount, &cluster.b.mount, 10_000);
        for dir in [&on_a, &on_b] {
            assert_eq!(start(dir, &part, "late").must("python").join().must("late"), "HIT");
        }
    }
}
in_both_modes!(clients_vllm_replay);

/// Processes of both nodes tune the same fusions at once. A torn file would end a compilation.
fn clients_xla_replay(io: Io) {
    let cluster = Cluster::two(io);
    let (on_a, on_b) = (cluster.a.at("jax"), cluster.b.at("jax"));
    std::fs::create_dir(&on_a).must("mkdir");
    cluster.settle();
    let start = |dir: &Path, name: &str| {
        let mut command = replay(&cluster, "xla_replay.py", &[text(dir), name, "120"])?;
        Some(thread(move || run(&mut command, LIMIT_MS).good().trim().to_owned()))
    };
    let names = ["one", "two", "three", "four"];
    let both = names.iter().zip([&on_a, &on_b, &on_a, &on_b]);
    let running: Vec<_> = both.map(|(name, dir)| start(dir, name)).collect();
    for one in running {
        let Some(one) = one else { return };
        assert!(one.join().must("no error").starts_with("HIT "));
    }
    cluster.settle();
    let all = tree::converge(&cluster.a.mount, &cluster.b.mount, 10_000);
    assert!(!all.keys().any(|path| path.to_string_lossy().contains("/tmp/")), "{all:?}");
    for dir in [&on_a, &on_b] {
        assert_eq!(start(dir, "late").must("python").join().must("late"), "HIT 120 MISS 0");
    }
}
in_both_modes!(clients_xla_replay);
