//! One suite of what the remote has to do, against every kind of store.

mod stores;

use std::io::{Read as _, Seek as _, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use hearthfs::clock::{self, Clock};
use hearthfs::config::RemoteUrl;
use hearthfs::digest::Digest;
use hearthfs::error::{Kind, Result};
use hearthfs::remote::{
    Environment, Health, PackBuilder, PackReader, Remote, RemoteOptions, decode_frame, keys,
};
use hearthfs::stamp::{NodeId, Stamp};
use stores::{ACCESS_KEY, BUCKET, Moto, S3Server, SECRET_KEY, environment};

const DEADLINE: Duration = Duration::from_secs(5);

/// Overwrites an object behind the remote's back.
type Overwrite = Box<dyn Fn(&str, &[u8])>;

/// A store under test.
struct Bed {
    /// The address without a prefix, to which each test adds its own.
    url: String,
    options: RemoteOptions,
    env: Environment,
    overwrite: Overwrite,
}

impl Bed {
    fn url(&self, prefix: &str) -> RemoteUrl {
        format!("{}/{prefix}", self.url).parse().expect("a good address")
    }

    fn open(&self, prefix: &str) -> Remote {
        self.open_as(prefix, NodeId(1))
    }

    fn open_as(&self, prefix: &str, node: NodeId) -> Remote {
        let (url, clock) = (self.url(prefix), Clock::system());
        Remote::open_in(&url, &self.options, clock, node, &self.env).expect("a client")
    }

    async fn connect(&self, prefix: &str) -> Remote {
        let remote = self.open(prefix);
        remote.check().await.expect("a usable store");
        remote
    }

    async fn suite(&self) {
        self.commits_and_packs_come_back().await;
        self.lists_are_complete_and_sorted().await;
        self.large_blobs_come_back().await;
        self.damage_is_noticed().await;
        self.foreign_formats_are_refused().await;
        self.two_nodes_share_a_store().await;
        self.requests_are_counted().await;
    }

    async fn commits_and_packs_come_back(&self) {
        let remote = self.connect("basic").await;
        let name = commit(1);
        let missing = remote.get_commit(&name).await.expect_err("not there yet");
        assert_eq!(missing.kind(), Kind::NotFound, "{}", missing.chain());
        for body in [&b"first"[..], b"first", b""] {
            let body = Bytes::copy_from_slice(body);
            remote.put_commit(&name, body.clone()).await.expect("written");
            assert_eq!(remote.get_commit(&name).await.expect("read"), body);
        }
        let mut builder = PackBuilder::new();
        let small: Vec<_> = (0..20u8).map(|seed| noise(seed, 1000)).collect();
        let places: Vec<_> =
            small.iter().map(|raw| builder.add(&Digest::of(raw), raw).expect("fits")).collect();
        let pack = keys::pack_name(&stamp(1));
        let bytes = Bytes::from(builder.finish());
        remote.put_pack(&pack, bytes.clone()).await.expect("written");
        let whole = remote.get_pack(&pack).await.expect("read");
        assert_eq!(PackReader::open(&whole).expect("whole").members().len(), 20);
        for (raw, (offset, length)) in small.iter().zip(&places) {
            let frame = remote.get_pack_range(&pack, *offset, u64::from(*length)).await;
            let found = decode_frame(&frame.expect("read"), &Digest::of(raw), 1000);
            assert_eq!(&found.expect("whole"), raw);
        }
        let end = bytes.len() as u64;
        for (offset, length) in [(end - 1, 2), (end, 1), (end + 10, 5)] {
            let error = remote.get_pack_range(&pack, offset, length).await.expect_err("beyond");
            assert_eq!(error.kind(), Kind::Corrupt, "{offset}: {}", error.chain());
        }
        let other = keys::pack_name(&stamp(2));
        let missing = remote.get_pack_range(&other, 0, 1).await.expect_err("not there");
        assert_eq!(missing.kind(), Kind::NotFound);
        assert_eq!(remote.health(), Health::Up);
    }

    async fn lists_are_complete_and_sorted(&self) {
        let remote = self.connect("lists").await;
        assert_eq!(remote.list_log(None).await.expect("listed"), []);
        let names: Vec<_> = (0..1100).map(commit).collect();
        let puts = names.iter().map(|name| remote.put_commit(name, Bytes::from_static(b"x")));
        for put in futures::future::join_all(puts).await {
            put.expect("written");
        }
        (self.overwrite)("lists/log/readme.txt", b"of somebody else");
        let found = remote.list_log(None).await.expect("listed");
        assert_eq!(
            found.iter().map(|item| &item.name).collect::<Vec<_>>(),
            names.iter().collect::<Vec<_>>()
        );
        let now_ms = Clock::system().wall_ms();
        assert!(found.iter().all(|item| item.size == 1));
        assert!(found.iter().all(|item| item.stored_ms.abs_diff(now_ms) < 120_000));
        let some = remote.list_log(Some(&names[1089])).await.expect("listed");
        assert_eq!(some.iter().map(|i| i.name.as_str()).collect::<Vec<_>>(), names[1090..]);
        assert_eq!(remote.list_log(Some(&names[1099])).await.expect("listed"), []);
    }

    async fn large_blobs_come_back(&self) {
        let remote = self.connect("blobs").await;
        // Noise does not compress, so that the largest takes three parts; the zeros take one.
        for raw in [noise(1, 20 << 20), vec![0; 20 << 20], noise(2, 1 << 20), vec![]] {
            let digest = Digest::of(&raw);
            assert!(!remote.has_blob(&digest).await.expect("asked"));
            let missing = fetch(&remote, &digest, raw.len()).await.expect_err("not there");
            assert_eq!(missing.kind(), Kind::NotFound);
            for _ in 0..2 {
                let size = raw.len() as u64;
                remote.put_blob(&digest, file_of(&raw), size).await.expect("uploaded");
            }
            assert!(remote.has_blob(&digest).await.expect("asked"));
            assert!(fetch(&remote, &digest, raw.len()).await.expect("fetched") == raw);
            if !raw.is_empty() {
                let error = fetch(&remote, &digest, raw.len() - 1).await.expect_err("too long");
                assert_eq!(error.kind(), Kind::Corrupt, "{}", error.chain());
                let error = fetch(&remote, &digest, raw.len() + 1).await.expect_err("too short");
                assert_eq!(error.kind(), Kind::Corrupt, "{}", error.chain());
            }
        }
        let raw = noise(3, 20 << 20);
        let wrong = Digest::of(b"something else");
        let error = remote.put_blob(&wrong, file_of(&raw), raw.len() as u64).await;
        assert_eq!(error.expect_err("not its digest").kind(), Kind::Corrupt);
        assert!(!remote.has_blob(&wrong).await.expect("asked"));
    }

    async fn damage_is_noticed(&self) {
        let remote = self.connect("damage").await;
        let raw = noise(4, 2 << 20);
        let digest = Digest::of(&raw);
        let key = format!("damage/blobs/{}/{digest}", digest.shard());
        let good = zstd::bulk::compress(&raw, 3).expect("compresses");
        let mut flipped = good.clone();
        flipped[good.len() / 2] ^= 1;
        let other = zstd::bulk::compress(&noise(5, raw.len()), 3).expect("compresses");
        let longer = zstd::bulk::compress(&noise(5, raw.len() * 2), 3).expect("compresses");
        let bomb = zstd::bulk::compress(&vec![0; 1 << 28], 3).expect("compresses");
        let twice = [&good[..], &good[..]].concat();
        for (what, bytes) in [
            ("flipped", &flipped[..]),
            ("cut", &good[..good.len() / 2]),
            ("empty", b""),
            ("not compressed", &raw[..]),
            ("another blob", &other[..]),
            ("much longer", &longer[..]),
            ("a bomb", &bomb[..]),
            ("twice", &twice[..]),
        ] {
            (self.overwrite)(&key, bytes);
            let mut file = tempfile::tempfile().expect("a file");
            let into = file.try_clone().expect("a handle");
            let error = remote.get_blob(&digest, raw.len() as u64, into).await.expect_err(what);
            assert_eq!(error.kind(), Kind::Corrupt, "{what}: {}", error.chain());
            let written = file.seek(std::io::SeekFrom::End(0)).expect("a size");
            assert!(written <= raw.len() as u64, "{what}: {written}");
        }
        assert_eq!(remote.health(), Health::Up, "damage is no outage");
        remote.put_blob(&digest, file_of(&raw), raw.len() as u64).await.expect("healed");
        assert!(fetch(&remote, &digest, raw.len()).await.expect("fetched") == raw);
    }

    async fn foreign_formats_are_refused(&self) {
        for (prefix, text, says) in [
            ("newer", "{\"format\":2,\"anything\":true}", "holds format 2"),
            ("foreign", "<html>", "belongs to something else"),
        ] {
            // Something has to be there for a directory to exist.
            self.connect(prefix).await;
            (self.overwrite)(&format!("{prefix}/hearthfs.json"), text.as_bytes());
            let remote = self.open(prefix);
            let error = remote.check().await.expect_err(says);
            assert_eq!(error.kind(), Kind::Invalid);
            let printed = self.url(prefix).to_string();
            let text = error.chain();
            assert!(text.contains(says) && text.contains(&printed), "{text}");
            let put = remote.put_commit(&commit(1), Bytes::from_static(b"x")).await;
            assert_eq!(put.expect_err("refused").kind(), Kind::Invalid);
        }
    }

    async fn two_nodes_share_a_store(&self) {
        // All make the format at the same time; all must agree.
        let nodes: Vec<_> = (0..8).map(|node| self.open_as("shared", NodeId(node))).collect();
        for checked in futures::future::join_all(nodes.iter().map(Remote::check)).await {
            checked.expect("a usable store");
        }
        nodes[0].put_commit(&commit(1), Bytes::from_static(b"x")).await.expect("written");
        for node in &nodes {
            assert_eq!(node.list_log(None).await.expect("listed").len(), 1);
            assert!(node.now_ms().abs_diff(Clock::system().wall_ms()) < 3_000);
        }
    }

    async fn requests_are_counted(&self) {
        let remote = self.connect("counts").await;
        let before = remote.requests();
        let raw = noise(6, 20 << 20);
        let digest = Digest::of(&raw);
        remote.put_blob(&digest, file_of(&raw), raw.len() as u64).await.expect("uploaded");
        let up = remote.requests();
        // Begin, three parts, complete.
        assert_eq!(up.puts - before.puts, 5);
        assert!(up.bytes_up - before.bytes_up >= raw.len() as u64);
        fetch(&remote, &digest, raw.len()).await.expect("fetched");
        remote.has_blob(&digest).await.expect("asked");
        remote.list_log(None).await.expect("listed");
        let down = remote.requests();
        assert_eq!((down.gets - up.gets, down.heads - up.heads, down.lists - up.lists), (1, 1, 1));
        assert!(down.bytes_down - up.bytes_down >= raw.len() as u64);
        assert_eq!(down.errors, before.errors);
        let text = serde_json::to_value(down).expect("plain data");
        assert_eq!(text["gets"].as_u64(), Some(down.gets));
    }
}

fn stamp(ms: u64) -> Stamp {
    Stamp { ms, counter: 0, node: NodeId(1) }
}

fn commit(ms: u64) -> String {
    keys::commit_name(&stamp(ms))
}

/// Makes bytes that do not compress, the same ones each time.
fn noise(seed: u8, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut bytes);
    bytes
}

fn file_of(raw: &[u8]) -> std::fs::File {
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(raw).expect("written");
    file
}

async fn fetch(remote: &Remote, digest: &Digest, size: usize) -> Result<Vec<u8>> {
    let mut file = tempfile::tempfile().expect("a file");
    remote.get_blob(digest, size as u64, file.try_clone().expect("a handle")).await?;
    let mut raw = Vec::new();
    file.rewind().expect("a file");
    file.read_to_end(&mut raw).expect("readable");
    Ok(raw)
}

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(work)
}

fn overwrite_files(root: PathBuf) -> Overwrite {
    Box::new(move |key, bytes| {
        let path = root.join(key);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        std::fs::write(path, bytes).expect("written");
    })
}

fn s3_bed(server: &S3Server) -> Bed {
    Bed {
        url: format!("s3://{BUCKET}"),
        options: server.options(DEADLINE),
        env: environment(ACCESS_KEY, SECRET_KEY),
        overwrite: overwrite_files(server.bucket_dir()),
    }
}

#[test]
fn remote_conformance_file() {
    let base = tempfile::tempdir().expect("a directory");
    let bed = Bed {
        url: format!("file://{}", base.path().display()),
        options: RemoteOptions::default(),
        env: Environment::default(),
        overwrite: overwrite_files(base.path().to_owned()),
    };
    run(bed.suite());
}

#[test]
fn remote_conformance_s3s() {
    let server = S3Server::start();
    let bed = s3_bed(&server);
    run(async {
        bed.suite().await;
        let mut sent = 0;
        let before = server.faults.requests();
        let remote = bed.connect("basic").await;
        remote.list_log(None).await.expect("listed");
        sent += remote.requests().total();
        assert_eq!(server.faults.requests() - before, sent, "every request is counted");
    });
}

#[test]
fn remote_conformance_moto() {
    let moto = match Moto::start() {
        Ok(moto) => moto,
        Err(reason) => return skipped("remote_conformance_moto", &reason),
    };
    let moto = std::sync::Arc::new(moto);
    let (options, writer) = (moto.options(Duration::from_secs(20)), moto.clone());
    let bed = Bed {
        url: format!("s3://{BUCKET}"),
        options,
        env: environment(ACCESS_KEY, SECRET_KEY),
        overwrite: Box::new(move |key, bytes| {
            assert_eq!(writer.put(&format!("{BUCKET}/{key}"), bytes), 200, "{key}");
        }),
    };
    run(async {
        bed.suite().await;
        missing_bucket(&bed).await;
    });
}

#[expect(clippy::print_stderr, reason = "a test that did not run has to say so")]
fn skipped(test: &str, reason: &str) {
    eprintln!("SKIPPED {test}: {reason}");
}

async fn missing_bucket(bed: &Bed) {
    let url: RemoteUrl = "s3://no-such-bucket/p".parse().expect("a good address");
    let clock = Clock::system();
    let remote = Remote::open_in(&url, &bed.options, clock, NodeId(1), &bed.env).expect("a client");
    let error = remote.check().await.expect_err("no such bucket");
    assert_eq!(error.kind(), Kind::NotFound, "{}", error.chain());
    let text = error.chain();
    assert!(text.contains("s3://no-such-bucket/p"), "{text}");
    assert!(text.contains("the bucket does not exist"), "{text}");
}

#[test]
fn refusals_of_a_server_name_cause_and_remedy() {
    let server = S3Server::start();
    let bed = s3_bed(&server);
    run(async {
        for env in [
            environment(ACCESS_KEY, "wrong"),
            environment("nobody", SECRET_KEY),
            // Nothing but instance metadata is left, and there is none.
            [("AWS_METADATA_ENDPOINT".to_owned(), "http://127.0.0.1:9".to_owned())]
                .into_iter()
                .collect(),
        ] {
            let wrong = Bed { env, ..s3_bed(&server) };
            let error = wrong.open("p").check().await.expect_err("refused");
            assert_eq!(error.kind(), Kind::Denied, "{}", error.chain());
            let text = error.chain();
            assert!(text.contains("AWS_ACCESS_KEY_ID") && text.contains("s3://bkt/p"), "{text}");
            assert!(!text.contains("wrong") && !text.contains(SECRET_KEY), "{text}");
        }
        assert!(std::fs::read_dir(server.bucket_dir()).expect("a bucket").next().is_none());
        server.faults.hang(true);
        let hasty = Bed { options: server.options(Duration::from_millis(500)), ..s3_bed(&server) };
        let error = hasty.open("p").check().await.expect_err("no answer");
        assert_eq!(error.kind(), Kind::TimedOut, "{}", error.chain());
        server.faults.hang(false);
        server.down();
        let error = bed.open("p").check().await.expect_err("no connection");
        assert_eq!(error.kind(), Kind::Unavailable, "{}", error.chain());
        assert!(error.to_string().contains("check endpoint and network"), "{error}");
        server.up();
        bed.open("p").check().await.expect("it is back");
    });
}

#[test]
fn credentials_from_files_are_used_and_followed() {
    let server = S3Server::start();
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("credentials");
    let write = |secret: &str| {
        let text =
            format!("[team]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {secret}\n");
        std::fs::write(&file, text).expect("written");
    };
    write("expired-by-now");
    let env = [
        ("AWS_SHARED_CREDENTIALS_FILE", file.display().to_string()),
        ("AWS_CONFIG_FILE", "/nonexistent".to_owned()),
        ("AWS_PROFILE", "team".to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into_iter()
    .collect();
    let bed = Bed { env, ..s3_bed(&server) };
    run(async {
        let remote = bed.open("files");
        assert_eq!(remote.check().await.expect_err("refused").kind(), Kind::Denied);
        write(SECRET_KEY);
        remote.check().await.expect("the new secret is used");
    });
}

/// Answers as the metadata service of a machine in the cloud does; ends after five connections.
fn metadata_service() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let serve = move || {
        for stream in listener.incoming().take(5) {
            let mut stream = stream.expect("a connection");
            let mut head = [0; 4096];
            let length = stream.read(&mut head).expect("a request");
            let head = String::from_utf8_lossy(&head[..length]).into_owned();
            let body = match head.split(' ').nth(1) {
                Some("/latest/api/token") => "session".to_owned(),
                Some("/latest/meta-data/iam/security-credentials/") => "role".to_owned(),
                _ => format!(
                    "{{\"AccessKeyId\":\"{ACCESS_KEY}\",\"SecretAccessKey\":\"{SECRET_KEY}\",\
                     \"Token\":\"t\",\"Expiration\":\"2099-01-01T00:00:00Z\"}}"
                ),
            };
            let answer = format!(
                "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(answer.as_bytes()).expect("sent");
        }
    };
    drop(hearthfs::task::thread("metadata", serve).expect("a thread"));
    format!("http://{address}")
}

#[test]
fn credentials_from_instance_metadata_are_used() {
    let server = S3Server::start();
    let env = [("AWS_METADATA_ENDPOINT".to_owned(), metadata_service())].into_iter().collect();
    let bed = Bed { env, ..s3_bed(&server) };
    run(async {
        let before = server.faults.requests();
        let remote = bed.connect("metadata").await;
        let sent = server.faults.requests() - before;
        assert_eq!(remote.requests().total(), sent, "the store's requests are counted, no others");
    });
}

#[test]
fn an_outage_of_a_server_is_short_and_noticed_once() {
    let server = S3Server::start();
    let options = server.options(Duration::from_secs(1));
    let bed = Bed { options, ..s3_bed(&server) };
    run(async {
        let remote = bed.connect("outage").await;
        remote.put_commit(&commit(1), Bytes::from_static(b"x")).await.expect("written");
        let clock = Clock::system();
        for trouble in ["hang", "down", "errors", "forbid"] {
            let switch = |on: bool| match (trouble, on) {
                ("hang", on) => server.faults.hang(on),
                ("down", true) => server.down(),
                ("down", false) => server.up(),
                ("errors", on) => server.faults.errors(if on { 100 } else { 0 }),
                (_, on) => server.faults.forbid(on),
            };
            switch(true);
            let start = clock.mono();
            for _ in 0..20 {
                remote.get_commit(&commit(1)).await.expect_err(trouble);
            }
            let took = clock.mono().saturating_sub(start);
            assert!(took < Duration::from_millis(1900), "{trouble}: {took:?}");
            assert!(matches!(remote.health(), Health::Down { .. }), "{trouble}");
            switch(false);
            let body = remote.background().get_commit(&commit(1)).await.expect("it is back");
            assert_eq!(body, "x");
            assert_eq!(remote.health(), Health::Up);
        }
        server.faults.errors(30);
        let mut good = 0;
        for _ in 0..40 {
            good += usize::from(remote.background().get_commit(&commit(1)).await.is_ok());
        }
        assert!(good >= 30, "{good}: single errors are retried");
    });
}

#[test]
fn a_shared_directory_that_is_unmounted_is_an_outage_and_not_empty() {
    let base = tempfile::tempdir().expect("a directory");
    let dir = base.path().join("share");
    let url: RemoteUrl = format!("file://{}", dir.display()).parse().expect("a good address");
    let open = || {
        let (options, env) = (RemoteOptions::default(), Environment::default());
        Remote::open_in(&url, &options, Clock::system(), NodeId(1), &env).expect("a handle")
    };
    run(async {
        let remote = open();
        remote.check().await.expect("made");
        remote.put_commit(&commit(1), Bytes::from_static(b"x")).await.expect("written");
        let aside = base.path().join("aside");
        std::fs::rename(&dir, &aside).expect("moved");
        std::fs::create_dir(&dir).expect("a bare mount point");
        let quiet = remote.background();
        for error in [
            quiet.list_log(None).await.expect_err("gone"),
            quiet.get_commit(&commit(1)).await.expect_err("gone"),
            quiet.has_blob(&Digest::of(b"x")).await.expect_err("gone"),
            quiet.put_commit(&commit(2), Bytes::from_static(b"x")).await.expect_err("gone"),
        ] {
            assert_eq!(error.kind(), Kind::Unavailable, "{}", error.chain());
        }
        assert!(std::fs::read_dir(&dir).expect("readable").next().is_none(), "nothing is written");
        std::fs::remove_dir(&dir).expect("removed");
        std::fs::rename(&aside, &dir).expect("moved back");
        assert_eq!(quiet.list_log(None).await.expect("listed").len(), 1);
        assert_eq!(remote.health(), Health::Up);
        let lost = base.path().join("a/b");
        let url: RemoteUrl = format!("file://{}", lost.display()).parse().expect("good");
        let (options, env) = (RemoteOptions::default(), Environment::default());
        let far = Remote::open_in(&url, &options, Clock::system(), NodeId(1), &env);
        let error = far.expect("a handle").check().await.expect_err("no parent");
        assert_eq!(error.kind(), Kind::NotFound);
        assert!(error.to_string().contains("mount the shared file system"), "{error}");
    });
}

#[test]
fn uploads_that_fail_leave_no_parts_behind() {
    let server = S3Server::start();
    let bed = s3_bed(&server);
    run(async {
        let remote = bed.connect("aborts").await;
        let raw = noise(7, 40 << 20);
        let wrong = Digest::of(b"something else");
        let put = remote.put_blob(&wrong, file_of(&raw), raw.len() as u64).await;
        assert_eq!(put.expect_err("not its digest").kind(), Kind::Corrupt);
        let digest = Digest::of(&raw);
        server.faults.latency(Duration::from_millis(30));
        let put = remote.put_blob(&digest, file_of(&raw), raw.len() as u64);
        assert!(clock::within(Duration::from_millis(200), put).await.is_none(), "given up");
        server.faults.latency(Duration::ZERO);
        let root = server.bucket_dir().parent().expect("a parent").to_owned();
        let parts = || {
            let names = std::fs::read_dir(&root).expect("readable").flatten();
            names.filter(|e| e.file_name().to_string_lossy().contains("part-")).count()
        };
        for _ in 0..100 {
            if parts() == 0 {
                break;
            }
            clock::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(parts(), 0);
        assert!(!remote.has_blob(&digest).await.expect("asked"));
    });
}
