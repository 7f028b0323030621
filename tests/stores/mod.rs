//! Object stores for tests: one in this process, as S3 and as Google's, with failures on
//! command; moto and Azurite as processes; a running Ceph.
//!
//! Owns starting and stopping them. Must never be needed by the library.
#![allow(dead_code, reason = "each test program uses only some items")]
#![allow(unused_imports, reason = "each test program uses only some items")]

mod dialect;
mod memory;
mod processes;
mod radosgw;
mod server;

use hearthfs::remote::Environment;

pub(crate) use dialect::{Dialect, Google};
pub(crate) use processes::{AZURE_ACCOUNT, AZURE_KEY, Azurite, Moto};
pub(crate) use radosgw::Radosgw;
pub(crate) use server::{S3Server, Unable};

/// The access key that the servers accept.
pub(crate) const ACCESS_KEY: &str = "testkey";
/// The secret of this key.
pub(crate) const SECRET_KEY: &str = "testsecret";
/// The bucket that the servers have.
pub(crate) const BUCKET: &str = "bkt";

/// Returns an environment with these credentials and nothing else.
pub(crate) fn environment(access_key: &str, secret_key: &str) -> Environment {
    environment_of(&[("AWS_ACCESS_KEY_ID", access_key), ("AWS_SECRET_ACCESS_KEY", secret_key)])
}

/// Returns an environment with these variables and nothing else.
pub(crate) fn environment_of(all: &[(&str, &str)]) -> Environment {
    all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}
