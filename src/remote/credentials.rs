//! Credentials from the files that the AWS tools share.
//!
//! Owns reading `credentials` and `config` of a profile, again when they change. Must never print a
//! secret, nor fetch anything over the network.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use parking_lot::Mutex;

use crate::error::{Error, Kind, Result};
use crate::task;

/// The largest such file that is read.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Ways to get credentials that a profile can name and that we do not take.
const OTHER_WAYS: [&str; 5] =
    ["credential_process", "sso_session", "sso_start_url", "role_arn", "source_profile"];

/// The settings of one profile, from both files.
pub(super) type Profile = BTreeMap<String, String>;

/// Where the files are, and which profile counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProfileFiles {
    pub(super) credentials: PathBuf,
    pub(super) config: PathBuf,
    pub(super) profile: String,
    /// Somebody asked for this profile, so that it has to be there.
    pub(super) asked: bool,
}

impl ProfileFiles {
    /// Finds the files as the AWS tools do; `None` without a home directory or variables.
    pub(super) fn find(var: impl Fn(&str) -> Option<String>) -> Option<Self> {
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

    /// Reads the profile; what the credentials file says goes before the other.
    pub(super) fn read(&self) -> Result<Profile> {
        let mut config = read_ini(&self.config)?;
        let named = format!("profile {}", self.profile);
        let mut found = config.remove(&named).or_else(|| match self.profile.as_str() {
            "default" => config.remove("default"),
            _ => None,
        });
        if let Some(section) = read_ini(&self.credentials)?.remove(&self.profile) {
            found.get_or_insert_default().extend(section);
        }
        match found {
            Some(profile) => Ok(profile),
            None if self.asked => Err(self.refusal("is in neither file")),
            None => Ok(Profile::new()),
        }
    }

    /// Takes the credentials out of a profile; `None` when it has none and need not have any.
    pub(super) fn credential(&self, profile: &Profile) -> Result<Option<AwsCredential>> {
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

    fn version(&self) -> Version {
        [&self.credentials, &self.config].map(|path| {
            let data = std::fs::metadata(path).ok()?;
            Some((data.modified().ok()?, data.len()))
        })
    }
}

/// What tells that a file has changed.
type Version = [Option<(SystemTime, u64)>; 2];

/// Hands out the credentials of a profile, as the files say at the time of each request.
pub(super) struct FileCredentials {
    files: ProfileFiles,
    last: Mutex<Option<(Version, Arc<AwsCredential>)>>,
}

impl FileCredentials {
    pub(super) fn new(files: ProfileFiles) -> Self {
        Self { files, last: Mutex::new(None) }
    }

    fn current(&self) -> Result<Arc<AwsCredential>> {
        // Taken before reading, so that a change while we read is seen next time.
        let version = self.files.version();
        if let Some((seen, credential)) = &*self.last.lock()
            && *seen == version
        {
            return Ok(credential.clone());
        }
        let profile = self.files.read()?;
        let Some(credential) = self.files.credential(&profile)? else {
            return Err(self.files.refusal("has no credentials"));
        };
        let credential = Arc::new(credential);
        *self.last.lock() = Some((version, credential.clone()));
        Ok(credential)
    }
}

impl fmt::Debug for FileCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileCredentials").field("files", &self.files).finish_non_exhaustive()
    }
}

/// A provider whose source outlives the call, so that the files can be read off the runtime.
#[derive(Debug)]
pub(super) struct FileProvider(pub(super) Arc<FileCredentials>);

#[async_trait]
impl CredentialProvider for FileProvider {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let source = self.0.clone();
        task::blocking(move || source.current()).await.map_err(|error| {
            let (path, source) = ("credentials".to_owned(), error.chain().into());
            object_store::Error::Unauthenticated { path, source }
        })
    }
}

fn read_ini(path: &Path) -> Result<BTreeMap<String, Profile>> {
    let data = match std::fs::metadata(path) {
        Ok(data) => data,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(Error::io(format!("read {}", path.display()), error)),
    };
    if data.len() > FILE_BYTES_MAX {
        let op = format!("{} has more than {FILE_BYTES_MAX} bytes", path.display());
        return Err(Error::new(Kind::Invalid, op));
    }
    std::fs::read(path)
        .map(|bytes| parse_ini(&String::from_utf8_lossy(&bytes)))
        .map_err(|error| Error::io(format!("read {}", path.display()), error))
}

/// Reads sections of `key = value` lines. Lines that are indented belong to the setting before them
/// and say nothing that we need; keys are compared in lower case, as the tools do.
fn parse_ini(text: &str) -> BTreeMap<String, Profile> {
    let mut sections: BTreeMap<String, Profile> = BTreeMap::new();
    let mut section: Option<String> = None;
    for line in text.lines() {
        let line = line.trim_end();
        if line.is_empty() || line.starts_with(['#', ';', ' ', '\t']) {
            continue;
        }
        if let Some(rest) = line.strip_prefix('[') {
            section = rest.split_once(']').map(|(name, _)| section_name(name));
            if let Some(name) = &section {
                sections.entry(name.clone()).or_default();
            }
            continue;
        }
        let (Some(name), Some((key, value))) = (&section, line.split_once('=')) else { continue };
        let value = without_remark(value.trim());
        sections
            .entry(name.clone())
            .or_default()
            .insert(key.trim().to_ascii_lowercase(), value.to_owned());
    }
    sections
}

/// Makes `profile   "a b"` and `profile a b` one spelling.
fn section_name(text: &str) -> String {
    let text = text.trim();
    let plain = |name: &str| name.trim().trim_matches(['"', '\'']).to_owned();
    match text.split_once(char::is_whitespace) {
        Some(("profile", name)) => format!("profile {}", plain(name)),
        _ => plain(text),
    }
}

/// A remark at the end of a line needs white space before it, as a secret may hold `#`.
fn without_remark(value: &str) -> &str {
    let cut = [" #", " ;", "\t#", "\t;"].iter().filter_map(|mark| value.find(mark)).min();
    value[..cut.unwrap_or(value.len())].trim_end()
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let found = files.credential(&files.read()?)?;
        Ok(found.map(|c| (c.key_id, c.secret_key, c.token)))
    }

    #[test]
    fn profiles_are_found_as_the_tools_find_them() {
        let dir = tempfile::tempdir().expect("a directory");
        let default = files(dir.path(), None);
        let found = take(&default).expect("readable").expect("credentials");
        assert_eq!(found, ("AK1".to_owned(), "se#cr=et/1".to_owned(), None));
        assert_eq!(default.read().expect("readable")["region"], "eu-west-1");
        let team = files(dir.path(), Some("team"));
        let found = take(&team).expect("readable").expect("credentials");
        assert_eq!(found, ("AK2".to_owned(), "S2".to_owned(), Some("T2".to_owned())));
        assert_eq!(team.read().expect("readable")["region"], "us-west-2");
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
        assert_eq!(take(&none).expect("nothing"), None);
        assert!(ProfileFiles::find(|_| None).is_none());
    }

    #[test]
    fn changed_files_are_read_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let source = FileCredentials::new(files(dir.path(), None));
        assert_eq!(source.current().expect("credentials").key_id, "AK1");
        let longer = CREDENTIALS.replace("AK1", "ROTATED");
        std::fs::write(dir.path().join("credentials"), longer).expect("written");
        assert_eq!(source.current().expect("credentials").key_id, "ROTATED");
        assert!(!format!("{source:?}").contains("se#cr"));
    }

    proptest::proptest! {
        #[test]
        fn any_text_can_be_read(text in "([\\[\\]=#; a-z\n\t\"]|profile ){0,60}") {
            for (name, profile) in parse_ini(&text) {
                proptest::prop_assert!(!name.contains(['\n', ']']));
                proptest::prop_assert!(profile.keys().all(|key| !key.contains('=')));
            }
        }
    }
}
