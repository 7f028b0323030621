//! One suite of requirements for a remote, and the stores on which it runs.

use std::io::{Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use hearthfs::clock::Clock;
use hearthfs::config::RemoteUrl;
use hearthfs::digest::Digest;
use hearthfs::error::{Kind, Result};
use hearthfs::remote::{
    Environment, HeadPut, HeadRead, HeadVersion, Health, LogHead, PackBuilder, PackReader, Remote,
    RemoteOptions, StoreAbilities, decode_frame, keys,
};
use hearthfs::stamp::{NodeId, Stamp};

use crate::stores::{
    ACCESS_KEY, AZURE_ACCOUNT, AZURE_KEY, Azurite, BUCKET, Moto, S3Server, SECRET_KEY, environment,
    environment_of,
};

pub(crate) const DEADLINE: Duration = Duration::from_secs(5);
/// The deadline for servers that are slow on a busy machine.
const SLOW_DEADLINE: Duration = Duration::from_secs(20);

/// Overwrites an object behind the remote's back.
pub(crate) type Overwrite = Box<dyn Fn(&str, &[u8])>;

/// A store under test.
pub(crate) struct Bed {
    /// The address without a prefix, to which each test adds its own.
    pub(crate) url: String,
    pub(crate) options: RemoteOptions,
    pub(crate) env: Environment,
    pub(crate) overwrite: Overwrite,
    /// The abilities that must be found.
    pub(crate) abilities: StoreAbilities,
    /// It may have a head of the log.
    pub(crate) heads: bool,
    /// Requests for a blob of three parts.
    pub(crate) puts_of_three_parts: u64,
}

/// The abilities of a good store.
pub(crate) const ABLE: StoreAbilities =
    StoreAbilities { create_if_absent: Some(true), delete: true, list_at_once: true };

impl Bed {
    /// A directory that is shared.
    pub(crate) fn file(dir: &Path) -> Self {
        Self {
            url: format!("file://{}", dir.display()),
            options: RemoteOptions::default(),
            env: Environment::default(),
            overwrite: overwrite_files(dir.to_owned()),
            abilities: ABLE,
            heads: false,
            // There are no requests, so each call counts as one: begin, three parts, complete.
            puts_of_three_parts: 5,
        }
    }

    /// The server in this process, as S3.
    pub(crate) fn s3(server: &S3Server) -> Self {
        Self {
            url: format!("s3://{BUCKET}"),
            options: server.options(DEADLINE),
            env: environment(ACCESS_KEY, SECRET_KEY),
            overwrite: overwrite_files(server.bucket_dir()),
            abilities: ABLE,
            heads: true,
            puts_of_three_parts: 5,
        }
    }

    /// The server in this process, as Google's.
    pub(crate) fn gcs(server: &S3Server) -> Self {
        let options = RemoteOptions { deadline: DEADLINE, ..RemoteOptions::default() };
        let env = environment_of(&[("STORAGE_EMULATOR_HOST", &server.endpoint())]);
        Self { url: format!("gs://{BUCKET}"), options, env, ..Self::s3(server) }
    }

    /// The S3 server of another project (moto).
    pub(crate) fn moto(moto: Moto) -> Self {
        Self {
            url: format!("s3://{BUCKET}"),
            options: moto.options(SLOW_DEADLINE),
            env: environment(ACCESS_KEY, SECRET_KEY),
            overwrite: Box::new(move |key, bytes| {
                assert_eq!(moto.put(&format!("{BUCKET}/{key}"), bytes), 200, "{key}");
            }),
            abilities: ABLE,
            heads: true,
            puts_of_three_parts: 5,
        }
    }

    /// The emulator of Azure (Azurite).
    pub(crate) fn azure(azurite: Azurite) -> Self {
        Self {
            url: format!("az://{AZURE_ACCOUNT}/{BUCKET}"),
            options: RemoteOptions {
                endpoint: Some(azurite.endpoint()),
                deadline: SLOW_DEADLINE,
                ..RemoteOptions::default()
            },
            env: environment_of(&[("AZURE_STORAGE_ACCOUNT_KEY", AZURE_KEY)]),
            overwrite: Box::new(move |key, bytes| {
                assert_eq!(azurite.put(&format!("{BUCKET}/{key}"), bytes), 201, "{key}");
            }),
            abilities: ABLE,
            heads: true,
            // There is no request to begin: three parts, complete.
            puts_of_three_parts: 4,
        }
    }

    pub(crate) fn url(&self, prefix: &str) -> RemoteUrl {
        format!("{}/{prefix}", self.url).parse().expect("a good address")
    }

    pub(crate) fn open(&self, prefix: &str) -> Remote {
        self.open_as(prefix, NodeId(1))
    }

    pub(crate) fn open_as(&self, prefix: &str, node: NodeId) -> Remote {
        let (url, clock) = (self.url(prefix), Clock::system());
        Remote::open_in(&url, &self.options, clock, node, &self.env).expect("a client")
    }

    pub(crate) async fn connect(&self, prefix: &str) -> Remote {
        let remote = self.open(prefix);
        remote.check().await.expect("a usable store");
        remote
    }

    pub(crate) async fn suite(&self) {
        self.abilities_are_found().await;
        self.commits_and_packs_are_read_back().await;
        self.lists_are_complete_and_sorted().await;
        self.large_blobs_are_read_back().await;
        self.one_blob_comes_from_two_nodes().await;
        self.damage_is_noticed().await;
        self.foreign_formats_are_refused().await;
        self.two_nodes_share_a_store().await;
        self.heads_replace_what_they_were_made_from().await;
        self.requests_are_counted().await;
    }

    async fn abilities_are_found(&self) {
        let remote = self.open("tried");
        assert_eq!(remote.abilities(), None);
        // The first one looks for foreign objects, makes the store ours, and makes its head.
        for requests_max in [11, 7] {
            let remote = self.open("tried");
            remote.check().await.expect("a usable store");
            assert_eq!(remote.abilities(), Some(self.abilities));
            let requests = remote.requests();
            assert!(requests.total() <= requests_max, "{requests:?}");
        }
    }

    async fn commits_and_packs_are_read_back(&self) {
        let remote = self.connect("basic").await;
        let name = commit(1);
        let missing = remote.get_commit(&name).await.expect_err("missing");
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
            let error =
                remote.get_pack_range(&pack, offset, length).await.expect_err("beyond the end");
            assert_eq!(error.kind(), Kind::Corrupt, "{offset}: {}", error.chain());
        }
        let other = keys::pack_name(&stamp(2));
        let missing = remote.get_pack_range(&other, 0, 1).await.expect_err("missing");
        assert_eq!(missing.kind(), Kind::NotFound);
        assert_eq!(remote.health(), Health::Up);
    }

    /// If two nodes replace the same head of the log, one of them succeeds.
    async fn heads_replace_what_they_were_made_from(&self) {
        let (a, b) = (self.connect("heads").await, self.connect("heads").await);
        assert_eq!(a.may_have_head(), self.heads);
        if !self.heads {
            let head = LogHead::after(None, [], 0);
            assert_eq!(a.put_head(&head, None).await.expect_err("refused").kind(), Kind::Invalid);
            return;
        }
        // The store was made with one.
        let read = a.get_head(None).await.expect("read");
        let HeadRead::Other(made, first) = read else { panic!("{read:?}") };
        assert!(made.commits.is_empty(), "{made:?}");
        assert!(refuses_stale_heads(&a).await, "the first head");
        let one = LogHead::after(Some(&made), [(stamp(1), Some(Bytes::from_static(b"x")))], 0);
        let put = put_head(&a, &one, Some(&first)).await;
        let HeadPut::Done(version) = put else { panic!("{put:?}") };
        assert!(refuses_stale_heads(&b).await, "a head exists");
        let put = put_head(&b, &one, None).await;
        assert!(matches!(put, HeadPut::Conflict), "{put:?}");
        match a.get_head(Some(&version)).await.expect("read") {
            HeadRead::Same => {}
            // Some servers send the head even if it is known.
            HeadRead::Other(head, _) if *head == one => {}
            other => panic!("{other:?}"),
        }
        let two = LogHead::after(Some(&one), [(stamp(2), None)], 0);
        let put = put_head(&b, &two, Some(&version)).await;
        assert!(matches!(put, HeadPut::Done(_)), "{put:?}");
        let put = put_head(&a, &two, Some(&version)).await;
        assert!(matches!(put, HeadPut::Conflict), "{put:?}");
        let read = a.get_head(Some(&version)).await.expect("read");
        let HeadRead::Other(head, version) = read else { panic!("{read:?}") };
        assert_eq!(*head, two);
        let three = LogHead::after(Some(&two), [], 0);
        let put = put_head(&a, &three, Some(&version)).await;
        assert!(matches!(put, HeadPut::Done(_)), "a version from a read can be replaced: {put:?}");
        assert_eq!(a.health(), Health::Up);
    }

    async fn lists_are_complete_and_sorted(&self) {
        let remote = self.connect("lists").await;
        assert_eq!(remote.list_log(None).await.expect("listed"), []);
        let names: Vec<_> = (0..1100).map(commit).collect();
        let puts = names.iter().map(|name| remote.put_commit(name, Bytes::from_static(b"x")));
        for put in futures::future::join_all(puts).await {
            put.expect("written");
        }
        (self.overwrite)("lists/log/readme.txt", b"of another user");
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

    async fn large_blobs_are_read_back(&self) {
        let remote = self.connect("blobs").await;
        // Noise does not compress, so the largest takes three parts; the zeros take one.
        for raw in [noise(1, 20 << 20), vec![0; 20 << 20], noise(2, 1 << 20), vec![]] {
            let digest = Digest::of(&raw);
            let missing = fetch(&remote, &digest, raw.len()).await.expect_err("missing");
            assert_eq!(missing.kind(), Kind::NotFound);
            for _ in 0..2 {
                let size = raw.len() as u64;
                remote.put_blob(&digest, file_of(&raw), size).await.expect("uploaded");
            }
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
        assert_eq!(error.expect_err("a wrong digest").kind(), Kind::Corrupt);
        let missing = fetch(&remote, &wrong, raw.len()).await.expect_err("no object");
        assert_eq!(missing.kind(), Kind::NotFound);
    }

    /// Two concurrent uploads in parts of one object: each is retried until it succeeds.
    async fn one_blob_comes_from_two_nodes(&self) {
        let raw = noise(8, 20 << 20);
        let digest = Digest::of(&raw);
        let nodes = [self.open_as("same", NodeId(1)), self.open_as("same", NodeId(2))];
        let upload = async |remote: &Remote| {
            let mut tries = 0;
            while let Err(error) = remote.put_blob(&digest, file_of(&raw), raw.len() as u64).await {
                assert_eq!(error.kind(), Kind::Unavailable, "{}", error.chain());
                tries += 1;
                assert!(tries < 5, "{}", error.chain());
            }
            assert_eq!(remote.health(), Health::Up, "the other upload causes no outage");
        };
        futures::join!(upload(&nodes[0]), upload(&nodes[1]));
        for remote in &nodes {
            assert!(fetch(remote, &digest, raw.len()).await.expect("fetched") == raw);
        }
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
            // A directory exists only if it contains something.
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
        // All make the format at the same time, and must agree.
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
        assert_eq!(up.puts - before.puts, self.puts_of_three_parts);
        assert!(up.bytes_up - before.bytes_up >= raw.len() as u64);
        fetch(&remote, &digest, raw.len()).await.expect("fetched");
        remote.list_log(None).await.expect("listed");
        let down = remote.requests();
        assert_eq!((down.gets - up.gets, down.lists - up.lists), (1, 1));
        assert!(down.bytes_down - up.bytes_down >= raw.len() as u64);
        assert_eq!(down.errors, before.errors);
        let text = serde_json::to_value(down).expect("plain data");
        assert_eq!(text["gets"].as_u64(), Some(down.gets));
    }
}

pub(crate) fn stamp(ms: u64) -> Stamp {
    Stamp { ms, counter: 0, node: NodeId(1) }
}

pub(crate) fn commit(ms: u64) -> String {
    keys::commit_name(&stamp(ms))
}

/// Makes bytes that do not compress, the same ones each time.
pub(crate) fn noise(seed: u8, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut bytes);
    bytes
}

pub(crate) fn file_of(raw: &[u8]) -> std::fs::File {
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(raw).expect("written");
    file
}

pub(crate) async fn fetch(remote: &Remote, digest: &Digest, size: usize) -> Result<Vec<u8>> {
    let mut file = tempfile::tempfile().expect("a file");
    remote.get_blob(digest, size as u64, file.try_clone().expect("a handle")).await?;
    let mut raw = Vec::new();
    file.rewind().expect("a file");
    file.read_to_end(&mut raw).expect("readable");
    Ok(raw)
}

pub(crate) fn run<T>(work: impl Future<Output = T>) -> T {
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

/// Tries the conditions of the store, as soon as it lets the head be replaced again.
async fn refuses_stale_heads(remote: &Remote) -> bool {
    loop {
        match remote.put_stale_head().await.expect("answered") {
            HeadPut::Conflict => return true,
            HeadPut::Done(_) => return false,
            HeadPut::TooSoon => hearthfs::clock::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Replaces the head of the log, as soon as the store allows it.
async fn put_head(remote: &Remote, head: &LogHead, over: Option<&HeadVersion>) -> HeadPut {
    loop {
        match remote.put_head(head, over).await.expect("answered") {
            HeadPut::TooSoon => hearthfs::clock::sleep(Duration::from_millis(100)).await,
            put => return put,
        }
    }
}
