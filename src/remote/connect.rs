//! Makes the client of a store.
//!
//! Owns what the clients of all clouds have in common: the options, the environment, TLS, time
//! limits, retries, and the message about missing credentials. Must never talk to the store itself.

mod azure;
mod gcs;
mod s3;
mod source;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Once};
use std::time::Duration;

use async_trait::async_trait;
use object_store::client::{HttpClient, HttpConnector as _, ReqwestConnector};
use object_store::{
    BackoffConfig, Certificate, ClientOptions, CredentialProvider, ObjectStore, RetryConfig,
};

pub(super) use source::{region, source};

use super::bucket_api::BucketApi;
use super::meter::{Meter, MeteredConnector};
use super::trouble::{NO_CREDENTIALS, Trouble};
use crate::config::{RemoteUrl, without_secrets};
use crate::error::{Error, Kind, Result};

/// How long establishing a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long an idle connection is kept; shorter than servers keep theirs.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(20);
/// How many idle connections are kept.
const POOL_IDLE_MAX: usize = 24;
/// How many times the client itself retries; the caller retries for as long as it likes.
const RETRIES_MAX: usize = 2;
/// How long after the first attempt the client still retries.
const RETRY_TIMEOUT: Duration = Duration::from_secs(2);

/// The settings of a remote, besides its address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteOptions {
    /// The service's address, `http://host:port` or `https://host`; `None` = what the cloud's variables
    /// and files say, or else the cloud itself.
    pub endpoint: Option<String>,
    /// The region of an S3 bucket; `None` = what the AWS variables and files say, or else `us-east-1`.
    pub region: Option<String>,
    /// Whether the bucket (S3) or account (Azure) goes into the path instead of the host name;
    /// `None` = depends on the endpoint.
    pub path_style: Option<bool>,
    /// How long a request may take after the last bytes that moved.
    pub deadline: Duration,
    /// How long entries live as this node is configured, `None` for ever. A store that is made now
    /// declares this.
    pub expiry: Option<Duration>,
}

impl Default for RemoteOptions {
    fn default() -> Self {
        let deadline = Duration::from_secs(5);
        Self { endpoint: None, region: None, path_style: None, deadline, expiry: None }
    }
}

/// Prefixes of the variables that configure access to a store.
const VARIABLES: [&str; 3] = ["AWS_", "AZURE_", "GOOGLE_"];
/// Such variables with other prefixes.
const OTHER_VARIABLES: [&str; 5] = [
    "AZURITE_BLOB_STORAGE_URL",
    "CLOUDSDK_CONFIG",
    "HOME",
    "IDENTITY_ENDPOINT",
    "STORAGE_EMULATOR_HOST",
];

/// The environment variables that configure access to a store.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// Takes the variables of the process.
    pub fn process() -> Self {
        std::env::vars_os()
            .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)))
            .collect()
    }

    fn get(&self, name: &str) -> Option<String> {
        self.0.get(name).filter(|value| !value.is_empty()).cloned()
    }

    /// Returns the value of the first of these names that is set.
    fn first(&self, names: &[&str]) -> Option<String> {
        names.iter().find_map(|name| self.get(name))
    }

    fn is_true(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }

    /// Returns the settings whose variables the client library knows.
    fn settings<K: std::str::FromStr>(&self) -> impl Iterator<Item = (K, String)> {
        self.0.iter().filter(|(_, value)| !value.is_empty()).filter_map(|(name, value)| {
            Some((name.to_ascii_lowercase().parse().ok()?, value.clone()))
        })
    }
}

impl FromIterator<(String, String)> for Environment {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(all: I) -> Self {
        let ours = |name: &str| {
            OTHER_VARIABLES.contains(&name) || VARIABLES.iter().any(|start| name.starts_with(start))
        };
        Self(all.into_iter().filter(|(name, _)| ours(name)).collect())
    }
}

impl fmt::Debug for Environment {
    /// Prints the names only: the values are secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// Makes the client for a bucket. Directories are handled before.
pub(super) fn open(
    url: &RemoteUrl,
    options: &RemoteOptions,
    env: &Environment,
    meter: &Arc<Meter>,
) -> Result<Arc<dyn ObjectStore>> {
    install_tls();
    let with = With { url, options, env, meter };
    match url {
        RemoteUrl::S3 { bucket, .. } => s3::open(bucket, &with),
        RemoteUrl::Gcs { bucket, .. } => gcs::open(bucket, &with),
        RemoteUrl::Azure { account, container, .. } => azure::open(account, container, &with),
        RemoteUrl::File(_) => {
            Err(Error::new(Kind::Internal, format!("{url} is a directory and has no client")))
        }
    }
}

/// Makes the access to the settings of a bucket; `None` if there is no API for them.
pub(super) fn bucket_api(
    url: &RemoteUrl,
    options: &RemoteOptions,
    env: &Environment,
) -> Result<Option<BucketApi>> {
    install_tls();
    let with = With { url, options, env, meter: &Arc::default() };
    match url {
        RemoteUrl::S3 { bucket, .. } => s3::bucket_api(bucket, &with).map(Some),
        RemoteUrl::Gcs { bucket, .. } => gcs::bucket_api(bucket, &with).map(Some),
        RemoteUrl::Azure { .. } | RemoteUrl::File(_) => Ok(None),
    }
}

/// Returns advice for a person when the store refuses credentials.
pub(super) fn credentials_remedy(url: &RemoteUrl) -> &'static str {
    match url {
        RemoteUrl::S3 { .. } => s3::REFUSED,
        RemoteUrl::Gcs { .. } => gcs::REFUSED,
        RemoteUrl::Azure { .. } => azure::REFUSED,
        RemoteUrl::File(_) => "hearthfs may not read and write there: correct the permissions",
    }
}

/// What making a client needs, for any cloud.
struct With<'a> {
    url: &'a RemoteUrl,
    options: &'a RemoteOptions,
    env: &'a Environment,
    meter: &'a Arc<Meter>,
}

impl With<'_> {
    /// Makes the error for a client that could not be made.
    fn failed(&self, error: &object_store::Error) -> Error {
        let op = format!("set up the client of {}", self.url);
        Error::with(Kind::Invalid, op, Trouble::of(error))
    }

    /// Returns the client options for requests to `endpoint`.
    fn client(&self, endpoint: Option<&str>) -> Result<ClientOptions> {
        let mut client = ClientOptions::new()
            .with_allow_http(is_plain(endpoint))
            // A whole body may take as long as its size needs, and nothing comes back while one is
            // sent. We enforce the time limits ourselves.
            .with_timeout_disabled()
            .with_connect_timeout(CONNECT_TIMEOUT.min(self.options.deadline))
            .with_pool_idle_timeout(POOL_IDLE_TIMEOUT)
            .with_pool_max_idle_per_host(POOL_IDLE_MAX);
        if let Some(path) = self.env.get("AWS_CA_BUNDLE") {
            let pem = std::fs::read(&path)
                .map_err(|error| Error::io(format!("read AWS_CA_BUNDLE {path}"), error))?;
            let all = Certificate::from_pem_bundle(&pem).map_err(|error| {
                let op = format!("AWS_CA_BUNDLE {path} holds no certificates in PEM form");
                Error::with(Kind::Invalid, op, Trouble::of(&error))
            })?;
            for certificate in all {
                client = client.with_root_certificate(certificate);
            }
        }
        Ok(client)
    }

    /// Returns how often and how fast the client itself retries.
    fn retry(&self) -> RetryConfig {
        RetryConfig {
            backoff: BackoffConfig {
                init_backoff: Duration::from_millis(50),
                max_backoff: Duration::from_millis(500),
                base: 2.0,
            },
            max_retries: RETRIES_MAX,
            retry_timeout: RETRY_TIMEOUT.min(self.options.deadline / 2),
        }
    }

    /// Returns an HTTP client for requests to `endpoint` that the client library does not know.
    fn http(&self, endpoint: Option<&str>) -> Result<HttpClient> {
        ReqwestConnector::default().connect(&self.client(endpoint)?).map_err(|e| self.failed(&e))
    }

    /// Returns what makes HTTP clients that count.
    fn connector(&self, anonymous: bool) -> MeteredConnector {
        MeteredConnector { meter: self.meter.clone(), anonymous }
    }
}

fn is_plain(endpoint: Option<&str>) -> bool {
    endpoint.is_some_and(|url| url.starts_with("http://"))
}

/// Checks an endpoint.
fn endpoint_of(text: &str) -> Result<url::Url> {
    let text = without_secrets(text.trim_end_matches('/'));
    let refuse = |problem: &str| {
        let allowed = "allowed: `http://host[:port]` or `https://host[:port]`";
        Error::new(Kind::Invalid, format!("endpoint `{text}` {problem}; {allowed}"))
    };
    let url = url::Url::parse(&text).map_err(|_| refuse("is not a URL"))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(refuse("holds credentials, which belong in the cloud's variables or files"));
    }
    if !matches!(url.scheme(), "http" | "https") {
        return Err(refuse("is neither http nor https"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(refuse("holds `?` or `#`"));
    }
    if url.host_str().is_none() {
        return Err(refuse("names no host"));
    }
    Ok(url)
}

/// Formats an endpoint for the client library.
fn shown(endpoint: &url::Url) -> String {
    endpoint.as_str().trim_end_matches('/').to_owned()
}

/// Marks a failure to get credentials, so that it does not look like an error of the store.
#[derive(Debug)]
struct CredentialError<C> {
    inner: Arc<dyn CredentialProvider<Credential = C>>,
    /// The credentials that were looked for.
    wanted: &'static str,
}

#[async_trait]
impl<C: fmt::Debug + Send + Sync> CredentialProvider for CredentialError<C> {
    type Credential = C;

    async fn get_credential(&self) -> object_store::Result<Arc<C>> {
        self.inner.get_credential().await.map_err(|error| {
            let text = format!("{NO_CREDENTIALS}{} ({})", self.wanted, Trouble::of(&error));
            let path = "credentials".to_owned();
            object_store::Error::Unauthenticated { path, source: text.into() }
        })
    }
}

/// Sets the TLS implementation once per process; the HTTP client is built without one.
fn install_tls() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Fails if the process has set one already, which works as well.
        drop(rustls::crypto::ring::default_provider().install_default());
    });
}

#[cfg(test)]
mod tests;
