//! The client of a Google Cloud Storage bucket.
//!
//! Owns the choice of the endpoint and of one of Google's ways to credentials. Must never take a
//! credential from anywhere else.

use std::path::PathBuf;
use std::sync::Arc;

use object_store::gcp::{
    GcpCredential, GcpCredentialProvider, GcpSigningCredential, GoogleCloudStorageBuilder,
};
use object_store::{ObjectStore, StaticCredentialProvider};

use super::{CredentialError, Environment, RemoteOptions, With, endpoint_of, is_plain, shown};
use crate::error::{Error, Kind, Result};
use crate::remote::bucket_api::{BucketApi, Pass};
use crate::remote::credentials::google::{KeyFile, base_url};
use crate::remote::credentials::{CredentialFiles as _, Followed};
use crate::remote::trouble::Trouble;

/// Advice when the store refuses the credentials.
pub(super) const REFUSED: &str = "the credentials are refused: check GOOGLE_APPLICATION_CREDENTIALS and \
    the role on the bucket, which has to allow what Storage Object User does";

/// Advice when there are no credentials.
const WANTED: &str = "set GOOGLE_APPLICATION_CREDENTIALS to the file of a key, or run `gcloud auth \
    application-default login`, or run where the metadata server gives them";

/// Google's own server.
const GOOGLE: &str = "https://storage.googleapis.com";

/// Where credentials come from.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CredentialWay {
    /// No credentials are sent.
    None,
    /// A token that another program fetched.
    Token(String),
    /// A key in an environment variable.
    Key(String),
    /// A credentials file.
    File(PathBuf),
    /// The metadata server, which workload identity uses too.
    Instance,
}

impl CredentialWay {
    /// Finds the source in the order in which Google's own libraries look.
    pub(super) fn find(options: &RemoteOptions, env: &Environment) -> Self {
        let emulated = options.endpoint.is_none() && env.get("STORAGE_EMULATOR_HOST").is_some();
        if emulated || env.is_true("GOOGLE_SKIP_SIGNATURE") {
            return Self::None;
        }
        if let Some(token) = env.get("GOOGLE_BEARER_TOKEN") {
            return Self::Token(token);
        }
        if let Some(path) = env.first(&["GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"]) {
            return Self::File(path.into());
        }
        if let Some(key) = env.get("GOOGLE_SERVICE_ACCOUNT_KEY") {
            return Self::Key(key);
        }
        if let Some(path) = env.get("GOOGLE_APPLICATION_CREDENTIALS") {
            return Self::File(path.into());
        }
        let dirs = [
            env.get("CLOUDSDK_CONFIG").map(PathBuf::from),
            env.get("HOME").map(|home| PathBuf::from(home).join(".config/gcloud")),
        ];
        let files = dirs.into_iter().flatten();
        if let Some(file) =
            files.map(|dir| dir.join("application_default_credentials.json")).find(|f| f.exists())
        {
            return Self::File(file);
        }
        // An instance's token must not be sent over an unencrypted connection.
        let endpoint = options.endpoint.clone().or_else(|| env.get("GOOGLE_BASE_URL"));
        if is_plain(endpoint.as_deref()) { Self::None } else { Self::Instance }
    }
}

/// Makes the client.
pub(super) fn open(bucket: &str, with: &With<'_>) -> Result<Arc<dyn ObjectStore>> {
    let way = CredentialWay::find(with.options, with.env);
    let endpoint = endpoint(&way, with)?;
    let builder = base(bucket, &way, endpoint.as_deref(), with)?;
    let provider = credentials(way, &builder, with)?;
    Ok(Arc::new(builder.with_credentials(provider).build().map_err(|e| with.failed(&e))?))
}

/// Makes the access to the bucket's description.
pub(super) fn bucket_api(bucket: &str, with: &With<'_>) -> Result<BucketApi> {
    let way = CredentialWay::find(with.options, with.env);
    let endpoint = endpoint(&way, with)?;
    let pass = if way == CredentialWay::None {
        Pass::Anonymous
    } else {
        let builder = base(bucket, &way, endpoint.as_deref(), with)?;
        Pass::Google { credentials: credentials(way, &builder, with)? }
    };
    let client = with.http(endpoint.as_deref())?;
    let server = endpoint.as_deref().unwrap_or(GOOGLE);
    let base = format!("{server}/storage/v1/b/{bucket}");
    Ok(BucketApi { client, base, pass, deadline: with.options.deadline })
}

fn base(
    bucket: &str,
    way: &CredentialWay,
    endpoint: Option<&str>,
    with: &With<'_>,
) -> Result<GoogleCloudStorageBuilder> {
    // We sign nothing for others; without this the library would make a client for it.
    let signing = GcpSigningCredential { email: String::new(), private_key: None };
    let mut builder = GoogleCloudStorageBuilder::new()
        .with_client_options(with.client(endpoint)?)
        .with_retry(with.retry())
        .with_bucket_name(bucket)
        .with_skip_signature(with.env.is_true("GOOGLE_SKIP_SIGNATURE"))
        .with_signing_credentials(Arc::new(StaticCredentialProvider::new(signing)))
        .with_http_connector(with.connector(*way == CredentialWay::None));
    if let Some(endpoint) = endpoint {
        builder = builder.with_base_url(endpoint);
    }
    Ok(builder)
}

/// Returns where the credentials come from.
fn credentials(
    way: CredentialWay,
    builder: &GoogleCloudStorageBuilder,
    with: &With<'_>,
) -> Result<GcpCredentialProvider> {
    let built = |builder: GoogleCloudStorageBuilder| builder.build().map_err(|e| with.failed(&e));
    let inner: GcpCredentialProvider = match way {
        CredentialWay::None => token(String::new()),
        CredentialWay::Token(bearer) => token(bearer),
        CredentialWay::Key(text) => {
            let client = builder.clone().with_service_account_key(text).build().map_err(|error| {
                let op = format!("GOOGLE_SERVICE_ACCOUNT_KEY is not a key for {}", with.url);
                Error::with(Kind::Invalid, op, Trouble::of(&error))
            });
            client?.credentials().clone()
        }
        CredentialWay::File(path) => {
            let file = KeyFile::new(path, builder.clone());
            file.read()?;
            Arc::new(Followed::new(file))
        }
        CredentialWay::Instance => built(builder.clone())?.credentials().clone(),
    };
    Ok(Arc::new(CredentialError { inner, wanted: WANTED }))
}

fn token(bearer: String) -> GcpCredentialProvider {
    Arc::new(StaticCredentialProvider::new(GcpCredential { bearer }))
}

/// Returns the endpoint, if it is not Google's own.
fn endpoint(way: &CredentialWay, with: &With<'_>) -> Result<Option<String>> {
    let mut named = with.options.endpoint.clone();
    if named.is_none()
        && let Some(host) = with.env.get("STORAGE_EMULATOR_HOST")
    {
        named = Some(if host.contains("://") { host } else { format!("http://{host}") });
    }
    if named.is_none() {
        named = with.env.get("GOOGLE_BASE_URL");
    }
    if named.is_none()
        && let CredentialWay::File(path) = way
    {
        named = base_url(path)?;
    }
    named.map(|text| endpoint_of(&text).map(|url| shown(&url))).transpose()
}
