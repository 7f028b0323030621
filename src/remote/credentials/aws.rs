//! The configuration files that the AWS tools share.
//!
//! Owns `credentials` and `config` of one profile. Must never accept an incomplete credential.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use object_store::StaticCredentialProvider;
use object_store::aws::AwsCredential;

use super::ini::{self, Section};
use super::{CredentialFiles, Provider};
use crate::error::{Error, Kind, Result};

/// Ways to get credentials that a profile can name and that we do not support.
const OTHER_WAYS: [&str; 5] =
    ["credential_process", "sso_session", "sso_start_url", "role_arn", "source_profile"];

/// Where the files are, and which profile to use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::remote) struct ProfileFiles {
    pub(in crate::remote) credentials: PathBuf,
    pub(in crate::remote) config: PathBuf,
    pub(in crate::remote) profile: String,
    /// This profile was asked for by name, so it has to exist.
    pub(in crate::remote) asked: bool,
}

impl ProfileFiles {
    /// Finds the files as the AWS tools do; `None` without a home directory or variables.
    pub(in crate::remote) fn find(var: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let home = var("HOME").map(|home| PathBuf::from(home).join(".aws"));
        let file = |name: &str, plain: &str| {
            var(name).map(PathBuf::from).or_else(|| home.as_ref().map(|dir| dir.join(plain)))
        };
        let asked = var("AWS_PROFILE").or_else(|| var("AWS_DEFAULT_PROFILE"));
        Some(Self {
            credentials: file("AWS_SHARED_CREDENTIALS_FILE", "credentials")?,
            config: file("AWS_CONFIG_FILE", "config")?,
            asked: asked.is_some(),
            profile: asked.unwrap_or_else(|| "default".to_owned()),
        })
    }

    /// Reads the profile; the credentials file takes precedence over the other.
    pub(in crate::remote) fn section(&self) -> Result<Section> {
        let mut config = ini::read(&self.config)?;
        let named = format!("profile {}", self.profile);
        let mut found = config.remove(&named).or_else(|| match self.profile.as_str() {
            "default" => config.remove("default"),
            _ => None,
        });
        if let Some(section) = ini::read(&self.credentials)?.remove(&self.profile) {
            found.get_or_insert_default().extend(section);
        }
        match found {
            Some(profile) => Ok(profile),
            None if self.asked => Err(self.refusal("is in neither file")),
            None => Ok(Section::new()),
        }
    }

    /// Takes the credentials out of a profile; `None` if it has none and may have none.
    pub(in crate::remote) fn credential(&self, profile: &Section) -> Result<Option<AwsCredential>> {
        let get = |key: &str| profile.get(key).filter(|value| !value.is_empty()).cloned();
        match (get("aws_access_key_id"), get("aws_secret_access_key")) {
            (Some(key_id), Some(secret_key)) => {
                Ok(Some(AwsCredential { key_id, secret_key, token: get("aws_session_token") }))
            }
            (Some(_), None) => {
                Err(self.refusal("has aws_access_key_id but no aws_secret_access_key"))
            }
            (None, Some(_)) => {
                Err(self.refusal("has aws_secret_access_key but no aws_access_key_id"))
            }
            (None, None) => match OTHER_WAYS.iter().find(|way| profile.contains_key(**way)) {
                Some(way) => Err(self.refusal(&format!(
                    "gets its credentials by `{way}`, which is not supported; export them as \
                     AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
                ))),
                None => Ok(None),
            },
        }
    }

    fn refusal(&self, problem: &str) -> Error {
        Error::new(
            Kind::Denied,
            format!(
                "AWS profile `{}` {problem} (looked into {} and {})",
                self.profile,
                self.credentials.display(),
                self.config.display()
            ),
        )
    }
}

impl CredentialFiles for ProfileFiles {
    type Credential = AwsCredential;

    fn files(&self) -> Vec<&Path> {
        vec![&self.credentials, &self.config]
    }

    fn read(&self) -> Result<Provider<AwsCredential>> {
        match self.credential(&self.section()?)? {
            Some(credential) => Ok(Arc::new(StaticCredentialProvider::new(credential))),
            None => Err(self.refusal("has no credentials")),
        }
    }
}

#[cfg(test)]
mod tests {
    use object_store::CredentialProvider as _;

    use super::*;
    use crate::remote::credentials::Followed;

    const CREDENTIALS: &str = "# mine\n[default]\naws_access_key_id = AK1\n\
        AWS_SECRET_ACCESS_KEY=se#cr=et/1 ; remark\n\n[ team ]\naws_access_key_id=AK2\n\
        aws_secret_access_key =S2\naws_session_token=T2\n[half]\naws_access_key_id=AK3\n";
    const CONFIG: &str = "[default]\nregion = eu-west-1\n[profile team]\nregion=us-west-2\n\
        s3 =\n  max_concurrent_requests = 20\n[profile \"sso\"]\nsso_session = x\n[orphan]\nregion=q\n";

    fn files(dir: &Path, profile: Option<&str>) -> ProfileFiles {
        std::fs::write(dir.join("credentials"), CREDENTIALS).expect("written");
        std::fs::write(dir.join("config"), CONFIG).expect("written");
        let var = |name: &str| match name {
            "AWS_SHARED_CREDENTIALS_FILE" => Some(dir.join("credentials").display().to_string()),
            "AWS_CONFIG_FILE" => Some(dir.join("config").display().to_string()),
            "AWS_PROFILE" => profile.map(str::to_owned),
            _ => None,
        };
        ProfileFiles::find(var).expect("both files are named")
    }

    fn take(files: &ProfileFiles) -> Result<Option<(String, String, Option<String>)>> {
        let found = files.credential(&files.section()?)?;
        Ok(found.map(|c| (c.key_id, c.secret_key, c.token)))
    }

    #[test]
    fn profiles_are_found_as_the_tools_find_them() {
        let dir = tempfile::tempdir().expect("a directory");
        let default = files(dir.path(), None);
        let found = take(&default).expect("readable").expect("credentials");
        assert_eq!(found, ("AK1".to_owned(), "se#cr=et/1".to_owned(), None));
        assert_eq!(default.section().expect("readable")["region"], "eu-west-1");
        let team = files(dir.path(), Some("team"));
        let found = take(&team).expect("readable").expect("credentials");
        assert_eq!(found, ("AK2".to_owned(), "S2".to_owned(), Some("T2".to_owned())));
        assert_eq!(team.section().expect("readable")["region"], "us-west-2");
    }

    #[test]
    fn unusable_profiles_are_refused_by_name() {
        let dir = tempfile::tempdir().expect("a directory");
        for (profile, says) in [
            ("nobody", "is in neither file"),
            ("orphan", "is in neither file"),
            ("half", "no aws_secret_access_key"),
            ("sso", "`sso_session`, which is not supported"),
        ] {
            let error = take(&files(dir.path(), Some(profile))).expect_err(profile);
            assert_eq!(error.kind(), Kind::Denied);
            let text = error.to_string();
            assert!(text.contains(says) && text.contains(&format!("`{profile}`")), "{text}");
        }
    }

    #[test]
    fn missing_files_mean_no_credentials_unless_a_profile_was_asked_for() {
        let var = |home: &'static str| move |name: &str| (name == "HOME").then(|| home.to_owned());
        let none = ProfileFiles::find(var("/nonexistent")).expect("a home");
        assert_eq!(none.credentials, Path::new("/nonexistent/.aws/credentials"));
        assert_eq!(take(&none).expect("no file"), None);
        assert!(ProfileFiles::find(|_| None).is_none());
    }

    #[tokio::test]
    async fn changed_files_are_read_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let source = Followed::new(files(dir.path(), None));
        assert_eq!(source.get_credential().await.expect("credentials").key_id, "AK1");
        let longer = CREDENTIALS.replace("AK1", "ROTATED");
        std::fs::write(dir.path().join("credentials"), longer).expect("written");
        assert_eq!(source.get_credential().await.expect("credentials").key_id, "ROTATED");
        assert!(!format!("{source:?}").contains("se#cr"));
    }
}
