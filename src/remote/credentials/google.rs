//! The files in which Google Cloud keeps credentials.
//!
//! Owns telling their kinds apart and naming those that cannot be used. Must never show their contents.

use std::fmt;
use std::path::{Path, PathBuf};

use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder};
use serde_json::Value;

use super::{CredentialFiles, Provider, read_text};
use crate::error::{Error, Kind, Result};
use crate::remote::trouble::Trouble;

/// A file with a service account's key, or one written by `gcloud auth application-default login`.
pub(in crate::remote) struct KeyFile {
    path: PathBuf,
    /// Makes the client whose credentials are used; has no credentials of its own.
    builder: GoogleCloudStorageBuilder,
}

impl fmt::Debug for KeyFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyFile").field("path", &self.path).finish_non_exhaustive()
    }
}

impl KeyFile {
    pub(in crate::remote) fn new(path: PathBuf, builder: GoogleCloudStorageBuilder) -> Self {
        Self { path, builder }
    }

    fn refusal(&self, problem: &str) -> Error {
        refusal(&self.path, problem)
    }
}

impl CredentialFiles for KeyFile {
    type Credential = GcpCredential;

    fn files(&self) -> Vec<&Path> {
        vec![&self.path]
    }

    fn read(&self) -> Result<Provider<GcpCredential>> {
        let text = read_text(&self.path)?.ok_or_else(|| self.refusal("is not there"))?;
        let key = json(&self.path, &text)?;
        let builder = self.builder.clone();
        let builder = match key["type"].as_str() {
            Some("authorized_user") => {
                builder.with_application_credentials(self.path.display().to_string())
            }
            Some("service_account") | None => builder.with_service_account_key(text),
            Some(other) => {
                return Err(self.refusal(&format!(
                    "is of the type `{other}`, which is not supported; name a service account's key, \
                     or use the identity of the instance"
                )));
            }
        };
        let client = builder.build().map_err(|error| {
            let op = self.refusal("cannot be used").to_string();
            Error::with(Kind::Denied, op, Trouble::of(&error))
        })?;
        Ok(client.credentials().clone())
    }
}

/// Returns the endpoint that a key names, as keys for emulators do.
pub(in crate::remote) fn base_url(path: &Path) -> Result<Option<String>> {
    let Some(text) = read_text(path)? else { return Ok(None) };
    Ok(json(path, &text)?["gcs_base_url"].as_str().map(str::to_owned))
}

fn json(path: &Path, text: &str) -> Result<Value> {
    // The parser's error is left out: it may quote secrets.
    match serde_json::from_str(text) {
        Ok(value @ Value::Object(_)) => Ok(value),
        _ => Err(refusal(path, "is not a JSON object")),
    }
}

fn refusal(path: &Path, problem: &str) -> Error {
    Error::new(Kind::Denied, format!("the Google credentials file {} {problem}", path.display()))
}
