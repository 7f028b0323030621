//! Describes where credentials come from.
//!
//! Owns the names of variables and files by which a person finds them. Must never print their contents.

use super::{Environment, RemoteOptions, gcs, s3};
use crate::config::RemoteUrl;
use crate::remote::credentials::aws::ProfileFiles;

/// Describes where the credentials for an address come from; `None` for a directory.
pub(in crate::remote) fn source(
    url: &RemoteUrl,
    options: &RemoteOptions,
    env: &Environment,
) -> Option<String> {
    match url {
        RemoteUrl::S3 { .. } => Some(of_s3(env)),
        RemoteUrl::Gcs { .. } => Some(of_gcs(options, env)),
        RemoteUrl::Azure { .. } => Some(of_azure(env)),
        RemoteUrl::File(_) => None,
    }
}

/// Returns the region in which a bucket is addressed; `None` if the cloud has no regions.
pub(in crate::remote) fn region(
    url: &RemoteUrl,
    options: &RemoteOptions,
    env: &Environment,
) -> Option<String> {
    let RemoteUrl::S3 { bucket, .. } = url else { return None };
    // Errors of the endpoint are reported where it is used.
    s3::BucketAddress::find(bucket, options, env).ok().map(|address| address.region)
}

fn of_s3(env: &Environment) -> String {
    if env.is_true("AWS_SKIP_SIGNATURE") {
        return "none are sent (AWS_SKIP_SIGNATURE)".to_owned();
    }
    if env.get("AWS_ACCESS_KEY_ID").is_some() {
        return "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY".to_owned();
    }
    if env.get("AWS_WEB_IDENTITY_TOKEN_FILE").zip(env.get("AWS_ROLE_ARN")).is_some() {
        return "AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN".to_owned();
    }
    if let Some(files) = ProfileFiles::find(|name| env.get(name))
        && let Ok(section) = files.section()
        && matches!(files.credential(&section), Ok(Some(_)))
    {
        let (profile, file) = (&files.profile, files.credentials.display());
        return format!("profile {profile} of {file} or {}", files.config.display());
    }
    "the container or the instance".to_owned()
}

fn of_gcs(options: &RemoteOptions, env: &Environment) -> String {
    match gcs::CredentialWay::find(options, env) {
        gcs::CredentialWay::None => "none are sent".to_owned(),
        gcs::CredentialWay::Token(_) => "GOOGLE_BEARER_TOKEN".to_owned(),
        gcs::CredentialWay::Key(_) => "GOOGLE_SERVICE_ACCOUNT_KEY".to_owned(),
        gcs::CredentialWay::File(path) => path.display().to_string(),
        gcs::CredentialWay::Instance => "the metadata server of the instance".to_owned(),
    }
}

fn of_azure(env: &Environment) -> String {
    const WAYS: [&str; 7] = [
        "AZURE_STORAGE_CONNECTION_STRING",
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_ACCESS_KEY",
        "AZURE_STORAGE_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_CLIENT_SECRET",
        "AZURE_FEDERATED_TOKEN_FILE",
    ];
    let named = WAYS.iter().find(|name| env.get(name).is_some());
    let usual = "~/.azure/config, or a managed identity";
    named.map_or_else(|| usual.to_owned(), |name| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(all: &[(&str, &str)]) -> Environment {
        all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn said(url: &str, all: &[(&str, &str)]) -> String {
        let url = url.parse().expect("an address");
        source(&url, &RemoteOptions::default(), &env(all)).expect("a bucket")
    }

    #[test]
    fn sources_are_named_and_not_printed() {
        let secret = "c2VjcmV0";
        for (url, all, wanted) in [
            (
                "s3://bucket",
                &[("AWS_ACCESS_KEY_ID", secret), ("AWS_SECRET_ACCESS_KEY", secret)][..],
                "AWS_ACCESS_KEY_ID",
            ),
            ("s3://bucket", &[], "the instance"),
            ("s3://bucket", &[("AWS_SKIP_SIGNATURE", "true")], "none"),
            ("gs://bucket", &[("GOOGLE_BEARER_TOKEN", secret)], "GOOGLE_BEARER_TOKEN"),
            (
                "gs://bucket",
                &[("GOOGLE_SERVICE_ACCOUNT_KEY", secret)],
                "GOOGLE_SERVICE_ACCOUNT_KEY",
            ),
            ("gs://bucket", &[("GOOGLE_APPLICATION_CREDENTIALS", "/k.json")], "/k.json"),
            (
                "az://account/container",
                &[("AZURE_STORAGE_ACCOUNT_KEY", secret)],
                "AZURE_STORAGE_ACCOUNT_KEY",
            ),
            ("az://account/container", &[], "managed identity"),
        ] {
            let text = said(url, all);
            assert!(text.contains(wanted) && !text.contains(secret), "{text}");
        }
    }

    #[test]
    fn regions_are_those_of_buckets_of_s3() {
        let of = |url: &str, all: &[(&str, &str)]| {
            region(&url.parse().expect("an address"), &RemoteOptions::default(), &env(all))
        };
        assert_eq!(of("s3://bucket", &[("AWS_REGION", "eu-west-1")]).as_deref(), Some("eu-west-1"));
        assert_eq!(of("s3://bucket", &[]).as_deref(), Some("us-east-1"));
        assert_eq!(of("gs://bucket", &[]), None);
    }
}
