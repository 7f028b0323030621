//! Ceph's S3 gateway, which deletes by the rules of a bucket: started before the tests.

use std::collections::BTreeSet;

use futures::TryStreamExt as _;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{ObjectStore as _, ObjectStoreExt as _};
use parking_lot::{Mutex, MutexGuard};

use super::{ACCESS_KEY, BUCKET, SECRET_KEY};

/// Held by the one test that may change the bucket's rules: they are read and written as a whole,
/// so of two concurrent changes one would be lost.
static RULES: Mutex<()> = Mutex::new(());

/// The server of `tests/rules/radosgw.sh`, with a prefix of its bucket that no other test has.
#[derive(Debug)]
pub(crate) struct Radosgw {
    endpoint: String,
    prefix: String,
    _rules: MutexGuard<'static, ()>,
}

impl Radosgw {
    /// Takes a new prefix of the running server; returns the reason if there is none.
    pub(crate) fn here() -> Result<Self, String> {
        let endpoint = std::env::var("HEARTHFS_RGW")
            .map_err(|_| "HEARTHFS_RGW names no server of tests/rules/radosgw.sh".to_owned())?;
        // Fails if there is one already, which works as well.
        drop(rustls::crypto::ring::default_provider().install_default());
        let prefix = format!("rgw-{:016x}", hearthfs::task::random_u64());
        Ok(Self { endpoint, prefix, _rules: RULES.lock() })
    }

    /// Returns its address, as a URL.
    pub(crate) fn endpoint(&self) -> String {
        self.endpoint.clone()
    }

    /// Returns the URL of the prefix.
    pub(crate) fn url(&self) -> String {
        format!("s3://{BUCKET}/{}", self.prefix)
    }

    fn client(&self) -> AmazonS3 {
        let builder = AmazonS3Builder::new().with_endpoint(&self.endpoint).with_allow_http(true);
        let builder = builder.with_bucket_name(BUCKET).with_region("us-east-1");
        let builder = builder.with_access_key_id(ACCESS_KEY).with_secret_access_key(SECRET_KEY);
        builder.build().expect("a client")
    }

    /// Returns all keys below the prefix, relative to it.
    pub(crate) fn keys(&self) -> BTreeSet<String> {
        let prefix = Path::from(self.prefix.as_str());
        block_on(async {
            let mut found = BTreeSet::new();
            let client = self.client();
            let mut listed = client.list(Some(&prefix));
            while let Some(object) = listed.try_next().await.expect("a list") {
                let key = object
                    .location
                    .as_ref()
                    .strip_prefix(&self.prefix)
                    .expect("a key below the prefix");
                found.insert(key.trim_start_matches('/').to_owned());
            }
            found
        })
    }

    /// Replaces a text in an object below the prefix.
    pub(crate) fn edit(&self, key: &str, from: &str, to: &str) {
        let path = Path::from(format!("{}/{key}", self.prefix));
        block_on(async {
            let client = self.client();
            let bytes = client.get(&path).await.expect("read").bytes().await.expect("its bytes");
            let text = String::from_utf8(bytes.to_vec()).expect("a text");
            assert!(text.contains(from), "{key}: {text}");
            client.put(&path, text.replace(from, to).into()).await.expect("written");
        });
    }

    /// Writes an object of one letter below the prefix.
    pub(crate) fn put(&self, key: &str) {
        let path = Path::from(format!("{}/{key}", self.prefix));
        block_on(async { self.client().put(&path, "x".into()).await.expect("written") });
    }
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(work)
}
