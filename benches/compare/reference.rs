//! What a plain program achieves with the same bytes and the same store.
//!
//! Owns the references of `across` and `bulk`: a program that fetches packs in parallel, and one that
//! writes files and uploads them meanwhile. Must never do less than a node must, and never have
//! information that a node lacks.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures::{Stream, StreamExt as _, TryStreamExt as _};
use hearthfs::clock::Clock;
use hearthfs::config::RemoteUrl;
use hearthfs::digest::Digest;
use hearthfs::remote::{PackBuilder, PackReader, REQUESTS_IN_FLIGHT_MAX, Remote, keys};
use hearthfs::stamp::{NodeId, Stamp};
use hearthfs::sync::EngineSettings;
use hearthfs::task;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use crate::bodies::Bodies;
use crate::clock::timed;
use crate::stores::{ACCESS_KEY, BUCKET, S3Server, SECRET_KEY, environment};

/// How long a request may take.
const DEADLINE: Duration = Duration::from_secs(30);
/// Files below this size are gathered into packs, as a node does it.
const PACKED_BELOW_BYTES: usize = 1 << 20;

/// A file to write: its name, size and the number of its body.
#[derive(Debug, Clone)]
pub(crate) struct PlainFile {
    pub(crate) name: String,
    pub(crate) size: usize,
    pub(crate) seq: u64,
}

/// What becomes one object.
#[derive(Debug)]
enum Planned {
    Pack(Vec<PathBuf>),
    Alone(PathBuf),
}

/// Times the fetch of all packs below `bench/`: fetches them in parallel, decompresses and digests
/// the contents, and writes each to a file in `into`. Also returns the number of contents.
pub(crate) fn fetch(server: &S3Server, into: &Path) -> Result<(Duration, usize)> {
    let packs = server.names_in_memory("bench/packs/");
    let remote = open(server, "bench")?.read_only();
    let runtime = runtime()?;
    rustix::fs::sync();
    let (took, members) = timed(|| runtime.block_on(fetch_all(&remote, packs, into)));
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok((took, members?))
}

/// Times a program that writes files to a directory, and meanwhile reads, digests, compresses and
/// uploads them below `plain/`, in packs and objects of the sizes that a node uses. It makes no
/// commits.
pub(crate) fn publish(
    server: &S3Server,
    into: &Path,
    set: &[PlainFile],
    bodies: &Bodies,
) -> Result<Duration> {
    let remote = open(server, "plain")?;
    let runtime = runtime()?;
    runtime.block_on(remote.check())?;
    for file in set {
        let path = into.join(&file.name);
        std::fs::create_dir_all(path.parent().context("a parent")?)?;
    }
    rustix::fs::sync();
    let (took, done) = timed(|| {
        let (written, arriving) = mpsc::channel(set.len().max(1));
        let uploading = runtime.spawn(upload_all(remote, arriving));
        let mut body = Vec::new();
        for file in set {
            bodies.fill(file.seq, file.size, &mut body);
            let path = into.join(&file.name);
            std::fs::write(&path, &body)?;
            written.blocking_send((path, file.size)).context("the uploads go on")?;
        }
        drop(written);
        runtime.block_on(uploading)?
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    let stored = done?;
    if stored != set.len() {
        bail!("{stored} files were uploaded instead of {}", set.len());
    }
    Ok(took)
}

fn open(server: &S3Server, prefix: &str) -> Result<Remote> {
    let options = server.options(DEADLINE);
    let url = format!("s3://{BUCKET}/{prefix}").parse::<RemoteUrl>();
    let url = url.map_err(|why| anyhow::anyhow!("no address: {why}"))?;
    let env = environment(ACCESS_KEY, SECRET_KEY);
    Ok(Remote::open_in(&url, &options, Clock::system(), NodeId(1), &env)?)
}

fn runtime() -> Result<Runtime> {
    let cores = std::thread::available_parallelism()?.get();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(cores).max_blocking_threads(cores).enable_all();
    Ok(runtime.build()?)
}

/// Fetches the packs, and writes their contents to files; returns the number of contents.
async fn fetch_all(remote: &Remote, packs: Vec<String>, into: &Path) -> Result<usize> {
    let fetched = futures::stream::iter(packs).map(|pack| async move {
        let bytes = remote.get_pack(&pack).await?;
        let into = into.to_owned();
        task::blocking(move || -> Result<usize> {
            let pack = PackReader::open(&bytes)?;
            for member in pack.members() {
                let content = pack.read(member)?;
                std::fs::write(into.join(member.digest.to_string()), content)?;
            }
            Ok(pack.members().len())
        })
        .await
    });
    fetched
        .buffer_unordered(REQUESTS_IN_FLIGHT_MAX)
        .try_fold(0, |a, b| async move { Ok(a + b) })
        .await
}

/// Uploads the files that arrive, until there are no more; returns how many there were.
async fn upload_all(remote: Remote, arriving: mpsc::Receiver<(PathBuf, usize)>) -> Result<usize> {
    let stored = plan(arriving).enumerate().map(|(number, planned)| {
        let remote = remote.clone();
        async move {
            match planned {
                Planned::Pack(paths) => store_pack(&remote, number, paths).await,
                Planned::Alone(path) => store_object(&remote, path).await,
            }
        }
    });
    stored
        .buffer_unordered(REQUESTS_IN_FLIGHT_MAX)
        .try_fold(0, |a, b| async move { Ok(a + b) })
        .await
}

/// Decides what becomes a pack, and what an object of its own.
fn plan(arriving: mpsc::Receiver<(PathBuf, usize)>) -> impl Stream<Item = Planned> {
    let pack_bytes = EngineSettings::default().pack_bytes;
    let start = (arriving, Vec::new(), 0);
    futures::stream::unfold(start, move |(mut arriving, mut paths, mut bytes)| async move {
        while let Some((path, size)) = arriving.recv().await {
            if size >= PACKED_BELOW_BYTES {
                return Some((Planned::Alone(path), (arriving, paths, bytes)));
            }
            paths.push(path);
            bytes += size as u64;
            if bytes >= pack_bytes {
                return Some((Planned::Pack(paths), (arriving, Vec::new(), 0)));
            }
        }
        (!paths.is_empty()).then(|| (Planned::Pack(paths), (arriving, Vec::new(), 0)))
    })
}

async fn store_pack(remote: &Remote, number: usize, paths: Vec<PathBuf>) -> Result<usize> {
    let count = paths.len();
    let pack = task::blocking(move || -> Result<Vec<u8>> {
        let mut pack = PackBuilder::new();
        for path in paths {
            let content = std::fs::read(path)?;
            pack.add(&Digest::of(&content), &content).context("the pack is full")?;
        }
        Ok(pack.finish())
    });
    let stamp = Stamp { ms: 1, counter: u32::try_from(number)?, node: NodeId(1) };
    remote.put_pack(&keys::pack_name(&stamp), pack.await?.into()).await?;
    Ok(count)
}

async fn store_object(remote: &Remote, path: PathBuf) -> Result<usize> {
    let opened = task::blocking(move || -> Result<(File, Digest, u64)> {
        let content = std::fs::read(&path)?;
        Ok((File::open(path)?, Digest::of(&content), content.len() as u64))
    });
    let (file, digest, size) = opened.await?;
    remote.put_blob(&digest, file, size).await?;
    Ok(1)
}
