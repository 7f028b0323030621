//! The client of an Azure Blob Storage container.
//!
//! Owns the choice of the endpoint and of one of Azure's ways to credentials. Must never take a
//! credential from anywhere else.

use std::path::PathBuf;
use std::sync::Arc;

use object_store::ObjectStore;
use object_store::azure::{
    AzureAccessKey, AzureConfigKey, AzureCredentialProvider, MicrosoftAzureBuilder,
};

use super::{CredentialError, Environment, RemoteOptions, With, endpoint_of, shown};
use crate::error::{Error, Kind, Result};
use crate::remote::credentials::Followed;
use crate::remote::credentials::azure::{CliFile, ConnectionString};

/// Advice when the store refuses the credentials.
pub(super) const REFUSED: &str = "the credentials are refused: check AZURE_STORAGE_ACCOUNT_KEY, the \
    times of AZURE_STORAGE_SAS_TOKEN, or the identity, which needs the role Storage Blob Data Contributor";

/// Advice when there are no credentials.
const WANTED: &str = "set AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN or \
    AZURE_STORAGE_CONNECTION_STRING, or AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_CLIENT_SECRET, or name \
    a key in ~/.azure/config, or run where a managed identity gives them";

const CONNECTION_STRING: &str = "AZURE_STORAGE_CONNECTION_STRING";

/// The key that every emulator has.
const EMULATOR_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
/// The address of the emulator.
const EMULATOR_URL: &str = "http://127.0.0.1:10000";

/// Makes the client.
pub(super) fn open(
    account: &str,
    container: &str,
    with: &With<'_>,
) -> Result<Arc<dyn ObjectStore>> {
    let said = match with.env.get(CONNECTION_STRING) {
        Some(text) => ConnectionString::read(&text, account, CONNECTION_STRING)?,
        None => ConnectionString::default(),
    };
    let endpoint = endpoint(account, &said, with.options, with.env)?;
    let anonymous = with.env.is_true("AZURE_SKIP_SIGNATURE");
    let mut builder = settings(with.env)
        .with_account(account)
        .with_container_name(container)
        .with_client_options(with.client(endpoint.as_deref())?)
        .with_retry(with.retry())
        .with_http_connector(with.connector(anonymous));
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    let emulated = is_emulated(&said, with.env);
    let key = said.key.or_else(|| with.env.get("AZURE_STORAGE_KEY"));
    for (name, value) in [(AzureConfigKey::AccessKey, key), (AzureConfigKey::SasKey, said.sas)] {
        if let Some(value) = value {
            builder = builder.with_config(name, value);
        }
    }
    if emulated && !is_named(&builder)? {
        builder = builder.with_access_key(EMULATOR_KEY);
    }
    if let Some(key) = builder.get_config_value(&AzureConfigKey::AccessKey)
        && AzureAccessKey::try_new(&key).is_err()
    {
        let op = format!(
            "the account key for {} is not in base64: check AZURE_STORAGE_ACCOUNT_KEY, or {}",
            with.url, CONNECTION_STRING
        );
        return Err(Error::new(Kind::Invalid, op));
    }
    if anonymous {
        return Ok(Arc::new(builder.build().map_err(|e| with.failed(&e))?));
    }
    let file = if is_named(&builder)? { None } else { cli_file(account, with.env)? };
    let provider: AzureCredentialProvider = match file {
        Some(file) => Arc::new(Followed::new(file)),
        // The library knows keys, tokens, client secrets, federated tokens (whose file it reads again
        // for each token) and managed identities.
        None => builder.clone().build().map_err(|e| with.failed(&e))?.credentials().clone(),
    };
    let provider = Arc::new(CredentialError { inner: provider, wanted: WANTED });
    Ok(Arc::new(builder.with_credentials(provider).build().map_err(|e| with.failed(&e))?))
}

/// Takes over the variables that the library knows. Container and account come from the address,
/// and the endpoint from our own search.
fn settings(env: &Environment) -> MicrosoftAzureBuilder {
    use AzureConfigKey as Key;
    env.settings::<Key>().fold(MicrosoftAzureBuilder::new(), |builder, (key, value)| match key {
        Key::AccountName
        | Key::ContainerName
        | Key::Endpoint
        | Key::UseEmulator
        | Key::Client(_) => builder,
        key => builder.with_config(key, value),
    })
}

/// Reports whether the variables configure credentials; refuses an incomplete set.
fn is_named(builder: &MicrosoftAzureBuilder) -> Result<bool> {
    use AzureConfigKey as Key;
    let has = |key: Key| builder.get_config_value(&key).is_some();
    let cli = builder.get_config_value(&Key::UseAzureCli).is_some_and(|value| value == "true");
    if has(Key::Token) || has(Key::AccessKey) || has(Key::SasKey) || has(Key::CredentialType) || cli
    {
        return Ok(true);
    }
    let identity = [
        (Key::ClientSecret, "AZURE_CLIENT_SECRET"),
        (Key::FederatedTokenFile, "AZURE_FEDERATED_TOKEN_FILE"),
    ];
    let Some((_, named)) = identity.into_iter().find(|(key, _)| has(*key)) else {
        return Ok(false);
    };
    for (key, missing) in
        [(Key::ClientId, "AZURE_CLIENT_ID"), (Key::AuthorityId, "AZURE_TENANT_ID")]
    {
        if !has(key) {
            let op = format!("{named} is set and {missing} is not; set both, or neither");
            return Err(Error::new(Kind::Invalid, op));
        }
    }
    Ok(true)
}

fn is_emulated(said: &ConnectionString, env: &Environment) -> bool {
    said.emulator || env.is_true("AZURE_STORAGE_USE_EMULATOR")
}

fn cli_file(account: &str, env: &Environment) -> Result<Option<CliFile>> {
    let home = || env.get("HOME").map(|home| PathBuf::from(home).join(".azure"));
    match env.get("AZURE_CONFIG_DIR").map(PathBuf::from).or_else(home) {
        Some(dir) => CliFile::find(&dir, account),
        None => Ok(None),
    }
}

/// Returns the endpoint of the account, if it is not in Azure's public cloud.
pub(super) fn endpoint(
    account: &str,
    said: &ConnectionString,
    options: &RemoteOptions,
    env: &Environment,
) -> Result<Option<String>> {
    let emulator = is_emulated(said, env)
        .then(|| env.get("AZURITE_BLOB_STORAGE_URL").unwrap_or_else(|| EMULATOR_URL.to_owned()));
    let named = options
        .endpoint
        .clone()
        .or_else(|| env.first(&["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"]))
        .or_else(|| said.endpoint.clone())
        .or(emulator);
    let Some(text) = named else { return Ok(None) };
    let mut url = endpoint_of(&text)?;
    let bare = match url.host() {
        Some(url::Host::Domain(name)) => name == "localhost",
        Some(url::Host::Ipv4(_) | url::Host::Ipv6(_)) | None => true,
    };
    let last = url.path_segments().and_then(|mut parts| parts.next_back().map(str::to_owned));
    if options.path_style.unwrap_or(bare)
        && last.as_deref() != Some(account)
        && let Ok(mut path) = url.path_segments_mut()
    {
        path.pop_if_empty().push(account);
    }
    Ok(Some(shown(&url)))
}
