//! What the nodes of a test share, and how it fails on demand.
//!
//! Owns the shared directory or the S3 server of a test, and its troubles. Must never know the
//! layout of the objects beyond their folders' names.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Must as _;
use super::node::Site;
use crate::stores::{ACCESS_KEY, BUCKET, Moto, S3Server, SECRET_KEY};

/// A store for one test.
#[derive(Debug)]
pub(crate) struct Store(Kind);

#[derive(Debug)]
enum Kind {
    Dir(PathBuf),
    S3(S3Server),
    Moto(Moto),
}

/// What an S3 server does wrong.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Trouble {
    /// It accepts no connections.
    Down,
    /// It accepts requests and answers none.
    Hang,
    /// It answers 403 to everything.
    Forbidden,
    /// It answers 503 to that percentage of requests.
    Errors(u64),
    /// It takes that many milliseconds for every request.
    Slow(u64),
}

impl Store {
    /// Makes a shared directory.
    pub(crate) fn dir(site: &Site) -> Self {
        Self(Kind::Dir(site.dir("store")))
    }

    /// Starts an S3 server in this process.
    pub(crate) fn s3(_site: &Site) -> Self {
        Self(Kind::S3(S3Server::start()))
    }

    /// Starts somebody else's S3 server as a process; the reason when it is not installed.
    pub(crate) fn moto() -> Result<Self, String> {
        Moto::start().map(Kind::Moto).map(Self)
    }

    /// Returns its URL.
    pub(crate) fn url(&self) -> String {
        match &self.0 {
            Kind::Dir(dir) => format!("file://{}", dir.display()),
            Kind::S3(_) | Kind::Moto(_) => format!("s3://{BUCKET}/some/prefix"),
        }
    }

    /// Returns what the daemon needs in its environment to reach it: the usual AWS variables.
    pub(crate) fn env(&self) -> Vec<(String, String)> {
        let endpoint = match &self.0 {
            Kind::Dir(_) => return Vec::new(),
            Kind::S3(server) => server.endpoint(),
            Kind::Moto(moto) => {
                moto.options(Duration::from_secs(5)).endpoint.must("the server's address")
            }
        };
        let variables = [
            ("AWS_ENDPOINT_URL", endpoint.as_str()),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY),
        ];
        variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
    }

    /// Returns the directory that holds the objects as files.
    pub(crate) fn objects(&self) -> PathBuf {
        match &self.0 {
            Kind::Dir(dir) => dir.clone(),
            Kind::S3(server) => server.bucket_dir().join("some/prefix"),
            Kind::Moto(_) => panic!("this server keeps its objects to itself"),
        }
    }

    /// Returns the objects below a folder of the store.
    pub(crate) fn objects_in(&self, folder: &str) -> Vec<PathBuf> {
        let mut found = super::tree::files_below(&self.objects().join(folder));
        found.sort();
        found
    }

    /// Returns the number of requests so far that a server has seen.
    pub(crate) fn requests(&self) -> u64 {
        match &self.0 {
            Kind::S3(server) => server.faults.requests(),
            Kind::Dir(_) | Kind::Moto(_) => panic!("only the server in this process counts"),
        }
    }

    /// Lets an S3 server answer questions for its lifecycle rules so.
    pub(crate) fn answer_rules(&self, status: u16, body: &str) {
        let Kind::S3(server) = &self.0 else { panic!("only the server in this process does") };
        server.faults.answer_rules(status, body);
    }

    /// Begins a trouble of an S3 server.
    pub(crate) fn trouble(&self, what: Trouble) {
        let Kind::S3(server) = &self.0 else {
            panic!("troubles are for the server in this process")
        };
        match what {
            Trouble::Down => server.down(),
            Trouble::Hang => server.faults.hang(true),
            Trouble::Forbidden => server.faults.forbid(true),
            Trouble::Errors(percent) => server.faults.errors(percent),
            Trouble::Slow(ms) => server.faults.latency(Duration::from_millis(ms)),
        }
    }

    /// Makes every request fail. Where a shared directory was, there is a file.
    pub(crate) fn fail(&self) {
        match &self.0 {
            Kind::Dir(dir) => {
                std::fs::rename(dir, away(dir)).must("take the store away");
                std::fs::write(dir, b"not a directory").must("put a file in its place");
            }
            Kind::S3(server) => server.down(),
            Kind::Moto(_) => panic!("this server cannot be made to fail"),
        }
    }

    /// Makes a shared directory disappear, as an unmounted network disk does: an empty one is left.
    pub(crate) fn vanish(&self) {
        let Kind::Dir(dir) = &self.0 else { panic!("only a directory vanishes") };
        std::fs::rename(dir, away(dir)).must("take the store away");
        std::fs::create_dir(dir).must("leave an empty directory");
    }

    /// Ends all troubles. What was written into an empty place meanwhile stays out of the store.
    pub(crate) fn heal(&self) {
        match &self.0 {
            Kind::Dir(dir) => bring_back(dir),
            Kind::S3(server) => {
                server.up();
                server.faults.hang(false);
                server.faults.forbid(false);
                server.faults.errors(0);
                server.faults.latency(Duration::ZERO);
            }
            Kind::Moto(_) => {}
        }
    }
}

fn away(dir: &Path) -> PathBuf {
    dir.with_extension("away")
}

fn bring_back(dir: &Path) {
    if !away(dir).exists() {
        return;
    }
    let impostor = dir.with_extension("impostor");
    if impostor.is_dir() {
        std::fs::remove_dir_all(&impostor).must("remove an older impostor");
    } else if impostor.exists() {
        std::fs::remove_file(&impostor).must("remove an older impostor");
    }
    std::fs::rename(dir, &impostor).must("clear the store's place");
    std::fs::rename(away(dir), dir).must("bring the store back");
}
