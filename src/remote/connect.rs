//! Making the client of a store.
//!
//! Owns every setting of the object-store library: endpoint, region, credentials, TLS, time limits,
//! retries. Must never talk to the store itself.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Once};
use std::time::Duration;

use async_trait::async_trait;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsCredential, AwsCredentialProvider};
use object_store::{
    BackoffConfig, Certificate, ClientConfigKey, ClientOptions, CredentialProvider, ObjectStore,
    RetryConfig,
};

use super::credentials::{FileCredentials, FileProvider, ProfileFiles};
use super::meter::{Meter, MeteredConnector};
use super::trouble::Trouble;
use crate::error::{Error, Kind, Result};

/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long an unused connection is kept; shorter than servers keep theirs.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(20);
/// How many unused connections are kept.
const POOL_IDLE_MAX: usize = 24;
/// How often the client itself tries again; whoever called tries again for as long as it likes.
const RETRIES_MAX: usize = 2;
/// How long after the first attempt the client still tries again.
const RETRY_TIMEOUT: Duration = Duration::from_secs(2);

/// What can be set about a remote, beside its address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteOptions {
    /// The service's address, `http://host:port` or `https://host`; `None` = what the AWS variables
    /// and files say, or else Amazon.
    pub endpoint: Option<String>,
    /// The region; `None` = what the AWS variables and files say, or else `us-east-1`.
    pub region: Option<String>,
    /// Whether the bucket goes into the path instead of the host name; `None` = yes with an endpoint
    /// of one's own.
    pub path_style: Option<bool>,
    /// How long a small request may take; large bodies get time by their size on top.
    pub deadline: Duration,
    /// How long entries live as this node is configured, `None` for ever: what a store that is made
    /// now declares.
    pub expiry: Option<Duration>,
}

impl Default for RemoteOptions {
    fn default() -> Self {
        let deadline = Duration::from_secs(5);
        Self { endpoint: None, region: None, path_style: None, deadline, expiry: None }
    }
}

/// The environment variables that say how to reach a store.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// Takes the process's own.
    pub fn process() -> Self {
        std::env::vars_os()
            .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)))
            .collect()
    }

    fn get(&self, name: &str) -> Option<String> {
        self.0.get(name).filter(|value| !value.is_empty()).cloned()
    }
}

impl FromIterator<(String, String)> for Environment {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(all: I) -> Self {
        Self(
            all.into_iter()
                .filter(|(name, _)| name.starts_with("AWS_") || name == "HOME")
                .collect(),
        )
    }
}

impl fmt::Debug for Environment {
    /// Prints the names only: the values are secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// Makes the client for a bucket.
pub(super) fn s3(
    bucket: &str,
    options: &RemoteOptions,
    env: &Environment,
    meter: &Arc<Meter>,
) -> Result<Arc<dyn ObjectStore>> {
    install_tls();
    let place = Place::find(bucket, options, env)?;
    let op = |error: &object_store::Error| {
        let trouble = Trouble::of(error);
        Error::with(Kind::Invalid, format!("set up the client of s3://{bucket}"), trouble)
    };
    let builder = base(bucket, options, env, &place, meter)?;
    if place.anonymous {
        return Ok(Arc::new(builder.build().map_err(|e| op(&e))?));
    }
    let provider: AwsCredentialProvider = match from_files(env)? {
        Some(files) => Arc::new(FileProvider(files)),
        // The library knows variables, web identity, container and instance metadata.
        None => builder.clone().build().map_err(|e| op(&e))?.credentials().clone(),
    };
    let provider = Arc::new(Explained { inner: provider });
    Ok(Arc::new(builder.with_credentials(provider).build().map_err(|e| op(&e))?))
}

/// Where a bucket is reached.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    endpoint: Option<String>,
    region: String,
    virtual_host: bool,
    anonymous: bool,
}

impl Place {
    fn find(bucket: &str, options: &RemoteOptions, env: &Environment) -> Result<Self> {
        let profile = match ProfileFiles::find(|name| env.get(name)) {
            Some(files) => files.read()?,
            None => BTreeMap::new(),
        };
        let endpoint = options
            .endpoint
            .clone()
            .or_else(|| env.get("AWS_ENDPOINT_URL_S3"))
            .or_else(|| env.get("AWS_ENDPOINT_URL"))
            .or_else(|| env.get("AWS_ENDPOINT"))
            .or_else(|| profile.get("endpoint_url").cloned());
        let region = options
            .region
            .clone()
            .or_else(|| env.get("AWS_REGION"))
            .or_else(|| env.get("AWS_DEFAULT_REGION"))
            .or_else(|| profile.get("region").cloned())
            .unwrap_or_else(|| "us-east-1".to_owned());
        // A dot in a bucket's name does not fit the certificates of host names.
        let path_style =
            options.path_style.unwrap_or_else(|| endpoint.is_some() || bucket.contains('.'));
        let endpoint = match endpoint {
            Some(text) => Some(endpoint_of(&text, bucket, path_style)?),
            None => None,
        };
        let anonymous =
            env.get("AWS_SKIP_SIGNATURE").is_some_and(|v| v.eq_ignore_ascii_case("true"));
        Ok(Self { endpoint, region, virtual_host: !path_style, anonymous })
    }
}

/// Checks an endpoint, and puts the bucket into its host name where the bucket belongs there.
fn endpoint_of(text: &str, bucket: &str, path_style: bool) -> Result<String> {
    let refuse = |problem: &str| {
        let allowed = "allowed: `http://host[:port]` or `https://host[:port]`";
        Error::new(Kind::Invalid, format!("endpoint `{text}` {problem}; {allowed}"))
    };
    let url = url::Url::parse(text).map_err(|_| refuse("is not a URL"))?;
    if !url.username().is_empty() || url.password().is_some() {
        let problem = "the endpoint holds credentials: put them into the AWS variables or files";
        return Err(Error::new(Kind::Invalid, problem));
    }
    if !matches!(url.scheme(), "http" | "https") {
        return Err(refuse("is neither http nor https"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(refuse("holds `?` or `#`"));
    }
    let Some(host) = url.host_str() else { return Err(refuse("names no host")) };
    let mut url = url.clone();
    if !path_style {
        let host = format!("{bucket}.{host}");
        url.set_host(Some(&host))
            .map_err(|_| refuse("cannot take the bucket into its host name"))?;
    }
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

fn base(
    bucket: &str,
    options: &RemoteOptions,
    env: &Environment,
    place: &Place,
    meter: &Arc<Meter>,
) -> Result<AmazonS3Builder> {
    let mut builder = AmazonS3Builder::new();
    for (name, value) in &env.0 {
        // Time limits of the client are ours to set; all else is as people know it.
        match name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() {
            Ok(AmazonS3ConfigKey::Client(ClientConfigKey::Timeout)) | Err(_) => {}
            Ok(key) if !value.is_empty() => builder = builder.with_config(key, value),
            Ok(_) => {}
        }
    }
    let retry = RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(50),
            max_backoff: Duration::from_millis(500),
            base: 2.0,
        },
        max_retries: RETRIES_MAX,
        retry_timeout: RETRY_TIMEOUT.min(options.deadline / 2),
    };
    builder = builder
        .with_client_options(client_options(options, env, place)?)
        .with_retry(retry)
        .with_bucket_name(bucket)
        .with_region(&place.region)
        .with_virtual_hosted_style_request(place.virtual_host)
        .with_http_connector(MeteredConnector { meter: meter.clone(), anonymous: place.anonymous });
    if let Some(endpoint) = &place.endpoint {
        builder = builder
            .with_config(AmazonS3ConfigKey::S3Endpoint, endpoint)
            .with_allow_http(endpoint.starts_with("http://"));
    }
    Ok(builder)
}

fn client_options(
    options: &RemoteOptions,
    env: &Environment,
    place: &Place,
) -> Result<ClientOptions> {
    let plain = place.endpoint.as_deref().is_some_and(|url| url.starts_with("http://"));
    let mut client = ClientOptions::new()
        .with_allow_http(plain)
        // A whole body may take as long as its size needs; we watch that ourselves.
        .with_timeout_disabled()
        .with_connect_timeout(CONNECT_TIMEOUT.min(options.deadline))
        .with_read_timeout(options.deadline)
        .with_pool_idle_timeout(POOL_IDLE_TIMEOUT)
        .with_pool_max_idle_per_host(POOL_IDLE_MAX);
    if let Some(path) = env.get("AWS_CA_BUNDLE") {
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

/// Takes the shared files as the source, where the variables name nothing that goes before them.
fn from_files(env: &Environment) -> Result<Option<Arc<FileCredentials>>> {
    let keys = env.get("AWS_ACCESS_KEY_ID").or_else(|| env.get("AWS_SECRET_ACCESS_KEY"));
    let identity = env.get("AWS_WEB_IDENTITY_TOKEN_FILE").zip(env.get("AWS_ROLE_ARN"));
    if keys.is_some() || identity.is_some() {
        return Ok(None);
    }
    let Some(files) = ProfileFiles::find(|name| env.get(name)) else { return Ok(None) };
    match files.credential(&files.read()?)? {
        Some(_) => Ok(Some(Arc::new(FileCredentials::new(files)))),
        None if files.asked => Err(Error::new(
            Kind::Denied,
            format!("AWS_PROFILE `{}` has no credentials", files.profile),
        )),
        None => Ok(None),
    }
}

/// Makes a failure to get credentials say so, instead of looking like one of the store.
#[derive(Debug)]
struct Explained {
    inner: AwsCredentialProvider,
}

#[async_trait]
impl CredentialProvider for Explained {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        self.inner.get_credential().await.map_err(|error| {
            let text = format!(
                "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or \
                 run where instance metadata gives them ({})",
                Trouble::of(&error)
            );
            let path = "credentials".to_owned();
            object_store::Error::Unauthenticated { path, source: text.into() }
        })
    }
}

/// Names the TLS implementation once per process; the HTTP client is built without one.
fn install_tls() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Fails when somebody else in the process has set one already, which serves as well.
        drop(rustls::crypto::ring::default_provider().install_default());
    });
}

#[cfg(test)]
mod tests;
