//! The store of a test, and its failures on demand.
//!
//! Owns the shared directory or the server of a test, and its failures. Must never know the layout
//! of the objects beyond the names of their folders.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::Must as _;
use super::node::Site;
use crate::stores::{
    ACCESS_KEY, AZURE_ACCOUNT, AZURE_KEY, Azurite, BUCKET, Dialect, Google, Moto, Radosgw,
    S3Server, SECRET_KEY, Unable,
};

/// A store for one test.
#[derive(Debug)]
pub(crate) struct Store(Kind);

#[derive(Debug)]
enum Kind {
    Dir(PathBuf),
    S3(S3Server),
    Gcs(S3Server),
    Moto(Moto),
    Azurite(Azurite),
    Radosgw(Radosgw),
}

/// A failure of an S3 server.
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

    /// Starts a server in this process that behaves like Google's.
    pub(crate) fn gcs(_site: &Site) -> Self {
        Self(Kind::Gcs(S3Server::start_as(Dialect::Gcs(Google::default()))))
    }

    /// The same, but accepts only tokens of the service account's key with this id, which may be changed.
    pub(crate) fn gcs_with_key(key_id: &Arc<Mutex<Option<String>>>) -> Self {
        Self(Kind::Gcs(S3Server::start_as(Dialect::Gcs(Google::with_key_id(key_id)))))
    }

    /// Returns the address of a server.
    pub(crate) fn endpoint(&self) -> String {
        match &self.0 {
            Kind::Dir(_) => panic!("a directory has no endpoint"),
            Kind::S3(server) | Kind::Gcs(server) => server.endpoint(),
            Kind::Moto(moto) => moto.endpoint(),
            Kind::Azurite(azurite) => azurite.endpoint(),
            Kind::Radosgw(radosgw) => radosgw.endpoint(),
        }
    }

    /// Starts the emulator of Azure as a process; returns the reason if it is not installed.
    pub(crate) fn azure() -> Result<Self, String> {
        Azurite::start().map(Kind::Azurite).map(Self)
    }

    /// Starts an S3 server of another project as a process; returns the reason if it is not installed.
    pub(crate) fn moto() -> Result<Self, String> {
        Moto::start().map(Kind::Moto).map(Self)
    }

    /// Takes a new prefix of the server that deletes by rules; returns the reason if it is not running.
    pub(crate) fn radosgw() -> Result<Self, String> {
        Radosgw::here().map(Kind::Radosgw).map(Self)
    }

    /// Returns its URL.
    pub(crate) fn url(&self) -> String {
        match &self.0 {
            Kind::Dir(dir) => format!("file://{}", dir.display()),
            Kind::S3(_) | Kind::Moto(_) => format!("s3://{BUCKET}/some/prefix"),
            Kind::Gcs(_) => format!("gs://{BUCKET}/some/prefix"),
            Kind::Azurite(_) => format!("az://{AZURE_ACCOUNT}/{BUCKET}/some/prefix"),
            Kind::Radosgw(radosgw) => radosgw.url(),
        }
    }

    /// Returns the environment with which the daemon reaches it: the usual variables of its cloud.
    pub(crate) fn env(&self) -> Vec<(String, String)> {
        let aws = |endpoint: String| {
            vec![
                ("AWS_ENDPOINT_URL", endpoint),
                ("AWS_REGION", "us-east-1".to_owned()),
                ("AWS_ACCESS_KEY_ID", ACCESS_KEY.to_owned()),
                ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.to_owned()),
            ]
        };
        let variables = match &self.0 {
            Kind::Dir(_) => Vec::new(),
            Kind::S3(server) => aws(server.endpoint()),
            Kind::Moto(moto) => aws(moto.endpoint()),
            Kind::Radosgw(radosgw) => aws(radosgw.endpoint()),
            Kind::Gcs(server) => vec![("STORAGE_EMULATOR_HOST", server.endpoint())],
            Kind::Azurite(azurite) => vec![
                ("AZURE_STORAGE_ENDPOINT", azurite.endpoint()),
                ("AZURE_STORAGE_ACCOUNT_KEY", AZURE_KEY.to_owned()),
            ],
        };
        variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Reports whether the objects are files that a test can read and change.
    pub(crate) fn has_files(&self) -> bool {
        matches!(self.0, Kind::Dir(_) | Kind::S3(_) | Kind::Gcs(_))
    }

    /// Returns the directory that holds the objects as files.
    pub(crate) fn objects(&self) -> PathBuf {
        match &self.0 {
            Kind::Dir(dir) => dir.clone(),
            Kind::S3(server) | Kind::Gcs(server) => server.bucket_dir().join("some/prefix"),
            Kind::Moto(_) | Kind::Azurite(_) | Kind::Radosgw(_) => {
                panic!("the objects of this server cannot be read")
            }
        }
    }

    /// Replaces a text in an object.
    pub(crate) fn edit(&self, key: &str, from: &str, to: &str) {
        let Kind::Radosgw(radosgw) = &self.0 else {
            panic!("the objects of this store cannot be edited")
        };
        radosgw.edit(key, from, to);
    }

    /// Returns the present keys on the server that deletes by rules.
    pub(crate) fn keys(&self) -> BTreeSet<String> {
        let Kind::Radosgw(radosgw) = &self.0 else {
            panic!("the keys of this store cannot be listed")
        };
        radosgw.keys()
    }

    /// Returns the objects below a folder of the store.
    pub(crate) fn objects_in(&self, folder: &str) -> Vec<PathBuf> {
        let mut found = super::tree::files_below(&self.objects().join(folder));
        found.sort();
        found
    }

    /// Returns the number of requests that a server has received.
    pub(crate) fn requests(&self) -> u64 {
        match &self.0 {
            Kind::S3(server) | Kind::Gcs(server) => server.faults.requests(),
            Kind::Dir(_) | Kind::Moto(_) | Kind::Azurite(_) | Kind::Radosgw(_) => {
                panic!("only the server in this process counts")
            }
        }
    }

    /// Sets the answer of a server in this process to requests for its lifecycle rules.
    pub(crate) fn answer_rules(&self, status: u16, body: &str) {
        let (Kind::S3(server) | Kind::Gcs(server)) = &self.0 else {
            panic!("only the server in this process sets answers")
        };
        server.faults.answer_rules(status, body);
    }

    /// Starts a failure of a server in this process.
    pub(crate) fn trouble(&self, what: Trouble) {
        let (Kind::S3(server) | Kind::Gcs(server)) = &self.0 else {
            panic!("only the server in this process makes trouble")
        };
        match what {
            Trouble::Down => server.down(),
            Trouble::Hang => server.faults.hang(true),
            Trouble::Forbidden => server.faults.forbid(true),
            Trouble::Errors(percent) => server.faults.errors(percent),
            Trouble::Slow(ms) => server.faults.latency(Duration::from_millis(ms)),
        }
    }

    /// Makes a server in this process answer 503 to requests for keys that hold this text.
    pub(crate) fn throttle(&self, part_of_key: &str) {
        let (Kind::S3(server) | Kind::Gcs(server)) = &self.0 else {
            panic!("only the server in this process makes trouble")
        };
        server.faults.throttle(Some(part_of_key.to_owned()));
    }

    /// Returns how many requests were answered with 503 because of their keys.
    pub(crate) fn throttlings(&self) -> u64 {
        let (Kind::S3(server) | Kind::Gcs(server)) = &self.0 else {
            panic!("only the server in this process makes trouble")
        };
        server.faults.throttlings()
    }

    /// Returns how many requests were refused because they change something.
    pub(crate) fn refused_writes(&self) -> u64 {
        let (Kind::S3(server) | Kind::Gcs(server)) = &self.0 else {
            panic!("only the server in this process counts")
        };
        server.faults.refused_writes()
    }

    /// Removes an ability from a server in this process, which does not report that.
    pub(crate) fn unable(&self, what: Unable) {
        let (Kind::S3(server) | Kind::Gcs(server)) = &self.0 else {
            panic!("only the server in this process can be made unable")
        };
        server.faults.unable(Some(what));
    }

    /// Makes every request fail. A shared directory is replaced by a file.
    pub(crate) fn fail(&self) {
        match &self.0 {
            Kind::Dir(dir) => {
                std::fs::rename(dir, away(dir)).must("move the store away");
                std::fs::write(dir, b"not a directory").must("put a file in its place");
            }
            Kind::S3(server) | Kind::Gcs(server) => server.down(),
            Kind::Moto(_) | Kind::Azurite(_) | Kind::Radosgw(_) => {
                panic!("this server cannot be made to fail")
            }
        }
    }

    /// Makes a shared directory disappear, like an unmounted network disk: an empty one is left.
    pub(crate) fn vanish(&self) {
        let Kind::Dir(dir) = &self.0 else { panic!("only a directory vanishes") };
        std::fs::rename(dir, away(dir)).must("move the store away");
        std::fs::create_dir(dir).must("leave an empty directory");
    }

    /// Ends all failures. What was written into an empty place meanwhile stays out of the store.
    pub(crate) fn heal(&self) {
        match &self.0 {
            Kind::Dir(dir) => bring_back(dir),
            Kind::S3(server) | Kind::Gcs(server) => {
                server.up();
                server.faults.hang(false);
                server.faults.forbid(false);
                server.faults.errors(0);
                server.faults.throttle(None);
                server.faults.latency(Duration::ZERO);
            }
            Kind::Moto(_) | Kind::Azurite(_) | Kind::Radosgw(_) => {}
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
