//! Credentials of an Azure storage account, as its tools write them down.
//!
//! Owns connection strings and the file of the `az` command. Must never show what they hold.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use object_store::StaticCredentialProvider;
use object_store::azure::{AzureAccessKey, AzureCredential, split_sas};

use super::ini::{self, Section};
use super::{CredentialFiles, Provider};
use crate::error::{Error, Kind, Result};
use crate::remote::trouble::Trouble;

/// The parts of a connection string that we need.
#[derive(Default, PartialEq, Eq)]
pub(in crate::remote) struct ConnectionString {
    pub(in crate::remote) account: Option<String>,
    pub(in crate::remote) key: Option<String>,
    pub(in crate::remote) sas: Option<String>,
    pub(in crate::remote) endpoint: Option<String>,
    /// It means the emulator on this machine.
    pub(in crate::remote) emulator: bool,
}

impl ConnectionString {
    /// Parses a connection string of `account`; `place` says where it was found.
    pub(in crate::remote) fn read(text: &str, account: &str, place: &str) -> Result<Self> {
        let mut found = Self::default();
        let (mut scheme, mut suffix) = ("https".to_owned(), None);
        for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
            // A key ends in `=`, so only the first one divides.
            let Some((name, value)) = part.split_once('=') else {
                let op =
                    format!("{place} is not a connection string: expected `name=value;name=value`");
                return Err(Error::new(Kind::Invalid, op));
            };
            let value = value.to_owned();
            match name.to_ascii_lowercase().as_str() {
                "accountname" => found.account = Some(value),
                "accountkey" => found.key = Some(value),
                "sharedaccesssignature" => found.sas = Some(value),
                "blobendpoint" => found.endpoint = Some(value),
                "defaultendpointsprotocol" => scheme = value,
                "endpointsuffix" => suffix = Some(value),
                "usedevelopmentstorage" => found.emulator = value.eq_ignore_ascii_case("true"),
                _ => {}
            }
        }
        match &found.account {
            Some(other) if other != account => {
                let op = format!(
                    "{place} is of the storage account `{other}`, the address names `{account}`; \
                     correct one of them"
                );
                return Err(Error::new(Kind::Invalid, op));
            }
            _ => {}
        }
        if let Some(suffix) = suffix {
            found.endpoint.get_or_insert(format!("{scheme}://{account}.blob.{suffix}"));
        }
        Ok(found)
    }
}

/// The file of the `az` command, whose section `[storage]` may name a key.
#[derive(Debug)]
pub(in crate::remote) struct CliFile {
    path: PathBuf,
    account: String,
}

impl CliFile {
    /// Finds the file; `None` if it does not exist or has nothing for this account.
    pub(in crate::remote) fn find(dir: &Path, account: &str) -> Result<Option<Self>> {
        let file = Self { path: dir.join("config"), account: account.to_owned() };
        Ok(file.credential(&file.section()?)?.is_some().then_some(file))
    }

    fn section(&self) -> Result<Section> {
        Ok(ini::read(&self.path)?.remove("storage").unwrap_or_default())
    }

    /// Takes the credential out of the section; ignores one of another account.
    fn credential(&self, section: &Section) -> Result<Option<AzureCredential>> {
        let get = |name: &str| section.get(name).filter(|value| !value.is_empty()).cloned();
        let (mut key, mut sas) = (get("key"), get("sas_token"));
        if let Some(text) = get("connection_string") {
            let place = format!("connection_string in {}", self.path.display());
            let found = ConnectionString::read(&text, &self.account, &place)?;
            (key, sas) = (found.key.or(key), found.sas.or(sas));
        } else if get("account").is_some_and(|account| account != self.account) {
            return Ok(None);
        }
        let failed = |what: &str, error: object_store::Error| {
            let op = format!("the {what} in {} cannot be used", self.path.display());
            Error::with(Kind::Denied, op, Trouble::of(&error))
        };
        if let Some(key) = key {
            let key = AzureAccessKey::try_new(&key).map_err(|error| failed("key", error.into()))?;
            return Ok(Some(AzureCredential::AccessKey(key)));
        }
        let Some(sas) = sas else { return Ok(None) };
        let pairs = split_sas(&sas).map_err(|error| failed("SAS token", error))?;
        Ok(Some(AzureCredential::SASToken(pairs)))
    }
}

impl CredentialFiles for CliFile {
    type Credential = AzureCredential;

    fn files(&self) -> Vec<&Path> {
        vec![&self.path]
    }

    fn read(&self) -> Result<Provider<AzureCredential>> {
        match self.credential(&self.section()?)? {
            Some(credential) => Ok(Arc::new(StaticCredentialProvider::new(credential))),
            None => {
                let op = format!(
                    "{} no longer has credentials for the storage account `{}`",
                    self.path.display(),
                    self.account
                );
                Err(Error::new(Kind::Denied, op))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use object_store::CredentialProvider as _;

    use super::*;
    use crate::remote::credentials::Followed;

    #[test]
    fn connection_strings_are_read_and_those_of_others_refused() {
        let read = |text: &str| ConnectionString::read(text, "acc", "THE_VARIABLE");
        let found = read("DefaultEndpointsProtocol=https;AccountName=acc;AccountKey=a2V5PT0=;")
            .expect("good");
        assert_eq!((found.key.as_deref(), found.endpoint), (Some("a2V5PT0="), None));
        let found = read("AccountName=acc;EndpointSuffix=core.chinacloudapi.cn;AccountKey=eA==")
            .expect("good");
        assert_eq!(found.endpoint.as_deref(), Some("https://acc.blob.core.chinacloudapi.cn"));
        let found = read(
            "BlobEndpoint=http://h:1/acc;SharedAccessSignature=sv=1&sig=s%3D;EndpointSuffix=x",
        )
        .expect("good");
        assert_eq!(found.endpoint.as_deref(), Some("http://h:1/acc"));
        assert_eq!(found.sas.as_deref(), Some("sv=1&sig=s%3D"));
        assert!(read("UseDevelopmentStorage=true").expect("good").emulator);
        for (text, says) in [
            ("AccountName=other;AccountKey=secret", "`other`, the address names `acc`"),
            ("secret", "name=value"),
        ] {
            let error = read(text).err().expect(text);
            let text = error.to_string();
            assert!(text.contains(says) && text.contains("THE_VARIABLE"), "{text}");
            assert!(!text.contains("secret"), "{text}");
        }
    }

    #[tokio::test]
    async fn the_file_of_the_tools_is_followed() {
        let dir = tempfile::tempdir().expect("a directory");
        let write = |text: &str| std::fs::write(dir.path().join("config"), text).expect("written");
        let find = |account: &str| CliFile::find(dir.path(), account);
        assert!(find("acc").expect("no file").is_none());
        write("[storage]\naccount = acc\nkey = a2V5\n");
        assert!(find("other").expect("another account's").is_none());
        let source = Followed::new(find("acc").expect("readable").expect("our account"));
        let key = |text| AzureCredential::AccessKey(AzureAccessKey::try_new(text).expect("base64"));
        assert_eq!(*source.get_credential().await.expect("a key"), key("a2V5"));
        write("[storage]\naccount = acc\nkey = a2V5MjI=\n");
        assert_eq!(*source.get_credential().await.expect("a key"), key("a2V5MjI="));
        write("[storage]\nsas_token = ?sv=1&sig=s%3D\n");
        let pairs = [("sv", "1"), ("sig", "s=")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        let sas = AzureCredential::SASToken(pairs.into());
        assert_eq!(*source.get_credential().await.expect("a token"), sas);
        write("[storage]\nkey = not base64!\n");
        let error = source.get_credential().await.expect_err("no key").to_string();
        assert!(
            error.contains("config cannot be used") && !error.contains("not base64"),
            "{error}"
        );
        write("");
        let error = source.get_credential().await.expect_err("an empty file").to_string();
        assert!(error.contains("no longer has credentials"), "{error}");
    }
}
