//! The client of an S3 bucket.
//!
//! Owns the choice of the endpoint and of one of the AWS ways to credentials. Must never take a
//! credential from anywhere else.

use std::collections::BTreeMap;
use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsCredentialProvider};
use object_store::{ClientConfigKey, ObjectStore};

use super::{CredentialError, Environment, RemoteOptions, With, endpoint_of, is_plain, shown};
use crate::error::{Error, Kind, Result};
use crate::remote::bucket_api::{BucketApi, Pass};
use crate::remote::credentials::Followed;
use crate::remote::credentials::aws::ProfileFiles;

/// Advice when the store refuses the credentials.
pub(super) const REFUSED: &str = "the credentials are refused: check AWS_ACCESS_KEY_ID, AWS_PROFILE and \
    the policy, which has to allow GetObject, PutObject and ListBucket";

/// Advice when there are no credentials.
const WANTED: &str = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or run where \
    instance metadata gives them";

/// Makes the client.
pub(super) fn open(bucket: &str, with: &With<'_>) -> Result<Arc<dyn ObjectStore>> {
    let address = BucketAddress::find(bucket, with.options, with.env)?;
    let builder = base(bucket, &address, with)?;
    if address.anonymous {
        return Ok(Arc::new(builder.build().map_err(|e| with.failed(&e))?));
    }
    let provider = credentials(&builder, with)?;
    Ok(Arc::new(builder.with_credentials(provider).build().map_err(|e| with.failed(&e))?))
}

/// Makes the access to the bucket's settings.
pub(super) fn bucket_api(bucket: &str, with: &With<'_>) -> Result<BucketApi> {
    let address = BucketAddress::find(bucket, with.options, with.env)?;
    let builder = base(bucket, &address, with)?;
    let region = address.region.clone();
    let base = match (&address.endpoint, address.virtual_host) {
        (Some(endpoint), true) => endpoint.clone(),
        (Some(endpoint), false) => format!("{endpoint}/{bucket}"),
        (None, true) => format!("https://{bucket}.s3.{region}.amazonaws.com"),
        (None, false) => format!("https://s3.{region}.amazonaws.com/{bucket}"),
    };
    let pass = if address.anonymous {
        Pass::Anonymous
    } else {
        Pass::Aws { credentials: credentials(&builder, with)?, region }
    };
    let client = with.http(address.endpoint.as_deref())?;
    Ok(BucketApi { client, base, pass, deadline: with.options.deadline })
}

/// Returns where the credentials come from.
fn credentials(builder: &AmazonS3Builder, with: &With<'_>) -> Result<AwsCredentialProvider> {
    let inner: AwsCredentialProvider = match from_files(with.env)? {
        Some(files) => Arc::new(Followed::new(files)),
        // The library knows variables, web identity, container and instance metadata.
        None => builder.clone().build().map_err(|e| with.failed(&e))?.credentials().clone(),
    };
    Ok(Arc::new(CredentialError { inner, wanted: WANTED }))
}

/// The endpoint and the region of a bucket.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BucketAddress {
    pub(super) endpoint: Option<String>,
    pub(super) region: String,
    pub(super) virtual_host: bool,
    anonymous: bool,
}

impl BucketAddress {
    pub(super) fn find(bucket: &str, options: &RemoteOptions, env: &Environment) -> Result<Self> {
        let profile = match ProfileFiles::find(|name| env.get(name)) {
            Some(files) => files.section()?,
            None => BTreeMap::new(),
        };
        let endpoint = options
            .endpoint
            .clone()
            .or_else(|| env.first(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"]))
            .or_else(|| profile.get("endpoint_url").cloned());
        let region = options
            .region
            .clone()
            .or_else(|| env.first(&["AWS_REGION", "AWS_DEFAULT_REGION"]))
            .or_else(|| profile.get("region").cloned())
            .unwrap_or_else(|| "us-east-1".to_owned());
        // Host names with a dot in the bucket's name do not match the certificates.
        let path_style =
            options.path_style.unwrap_or_else(|| endpoint.is_some() || bucket.contains('.'));
        let endpoint = match endpoint {
            Some(text) => Some(place_of(&text, bucket, path_style)?),
            None => None,
        };
        let anonymous = env.is_true("AWS_SKIP_SIGNATURE");
        Ok(Self { endpoint, region, virtual_host: !path_style, anonymous })
    }
}

/// Puts the bucket into the host name of an endpoint, if it belongs there.
fn place_of(text: &str, bucket: &str, path_style: bool) -> Result<String> {
    let mut url = endpoint_of(text)?;
    if !path_style {
        let host = format!("{bucket}.{}", url.host_str().unwrap_or_default());
        url.set_host(Some(&host)).map_err(|_| {
            let op = format!("endpoint `{text}` cannot take the bucket into its host name");
            Error::new(Kind::Invalid, format!("{op}; set remote.path_style to true"))
        })?;
    }
    Ok(shown(&url))
}

fn base(bucket: &str, address: &BucketAddress, with: &With<'_>) -> Result<AmazonS3Builder> {
    let mut builder = AmazonS3Builder::new();
    for (key, value) in with.env.settings::<AmazonS3ConfigKey>() {
        // We set the client's time limits ourselves; all other variables have their usual effect.
        if key != AmazonS3ConfigKey::Client(ClientConfigKey::Timeout) {
            builder = builder.with_config(key, value);
        }
    }
    let endpoint = address.endpoint.as_deref();
    builder = builder
        .with_client_options(with.client(endpoint)?)
        .with_retry(with.retry())
        .with_bucket_name(bucket)
        .with_region(&address.region)
        .with_virtual_hosted_style_request(address.virtual_host)
        .with_http_connector(with.connector(address.anonymous));
    if let Some(endpoint) = endpoint {
        builder = builder
            .with_config(AmazonS3ConfigKey::S3Endpoint, endpoint)
            .with_allow_http(is_plain(Some(endpoint)));
    }
    Ok(builder)
}

/// Takes the shared files as the source, unless the variables name something that takes precedence.
fn from_files(env: &Environment) -> Result<Option<ProfileFiles>> {
    let keys = env.first(&["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]);
    let identity = env.get("AWS_WEB_IDENTITY_TOKEN_FILE").zip(env.get("AWS_ROLE_ARN"));
    if keys.is_some() || identity.is_some() {
        return Ok(None);
    }
    let Some(files) = ProfileFiles::find(|name| env.get(name)) else { return Ok(None) };
    match files.credential(&files.section()?)? {
        Some(_) => Ok(Some(files)),
        None if files.asked => Err(Error::new(
            Kind::Denied,
            format!("AWS_PROFILE `{}` has no credentials", files.profile),
        )),
        None => Ok(None),
    }
}
