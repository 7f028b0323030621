use super::gcs::CredentialWay;
use super::s3::BucketAddress;
use super::*;
use crate::remote::credentials::azure::ConnectionString;

fn env(all: &[(&str, &str)]) -> Environment {
    all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn the_place_is_found_by_option_then_variable_then_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = dir.path().join("config");
    std::fs::write(&config, "[default]\nregion=eu-north-1\nendpoint_url=http://file:1\n")
        .expect("written");
    let config = config.display().to_string();
    let files =
        [("AWS_CONFIG_FILE", config.as_str()), ("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")];
    let find = |options: &RemoteOptions, more: &[(&str, &str)]| {
        let all: Vec<_> = files.iter().chain(more).copied().collect();
        let address = BucketAddress::find("bkt", options, &env(&all)).expect("an address");
        (address.endpoint.unwrap_or_default(), address.region, address.virtual_host)
    };
    let plain = RemoteOptions::default();
    assert_eq!(find(&plain, &[]), ("http://file:1".into(), "eu-north-1".into(), false));
    let vars = [("AWS_ENDPOINT_URL", "https://var/"), ("AWS_REGION", "ap-south-1")];
    assert_eq!(find(&plain, &vars), ("https://var".into(), "ap-south-1".into(), false));
    let set = RemoteOptions {
        endpoint: Some("http://127.0.0.1:9000/".into()),
        region: Some("auto".into()),
        ..plain.clone()
    };
    assert_eq!(find(&set, &vars), ("http://127.0.0.1:9000".into(), "auto".into(), false));
    let hosted = RemoteOptions {
        endpoint: Some("https://s3.example:444".into()),
        path_style: Some(false),
        ..plain.clone()
    };
    assert_eq!(find(&hosted, &[]).0, "https://bkt.s3.example:444");
    let amazon = BucketAddress::find("bkt", &plain, &env(&[])).expect("an address");
    assert_eq!((amazon.endpoint, amazon.virtual_host), (None, true));
    assert!(!BucketAddress::find("b.kt", &plain, &env(&[])).expect("an address").virtual_host);
}

#[test]
fn bad_endpoints_are_refused_with_value() {
    for (text, says) in [
        ("127.0.0.1:9000", "is not a URL"),
        ("minio:9000", "is neither http nor https"),
        ("ftp://x", "is neither http nor https"),
        ("http://x/#a", "holds `?`"),
    ] {
        let error = endpoint_of(text).expect_err(text);
        assert_eq!(error.kind(), Kind::Invalid);
        let text_of = error.to_string();
        assert!(text_of.contains(says) && text_of.contains(text), "{text_of}");
    }
    for text in ["http://key:secret@x", "https://x/?sig=secret"] {
        let error = endpoint_of(text).expect_err("refused").to_string();
        assert!(!error.contains("secret"), "{error}");
    }
}

fn client(url: &str, options: &RemoteOptions, all: &[(&str, &str)]) -> Result<()> {
    let url = url.parse().expect("a good address");
    open(&url, options, &env(all), &Arc::new(Meter::default())).map(drop)
}

const S3: &str = "s3://bkt";
const GCS: &str = "gs://bkt";
const AZURE: &str = "az://acc/con";
/// A home directory without configuration files.
const NO_HOME: (&str, &str) = ("HOME", "/nonexistent");

#[test]
fn clients_are_made_without_a_network() {
    for (url, variables) in [
        (S3, &[("AWS_ACCESS_KEY_ID", "AK"), ("AWS_SECRET_ACCESS_KEY", "SK")][..]),
        (GCS, &[NO_HOME]),
        (GCS, &[("GOOGLE_BEARER_TOKEN", "token")]),
        (GCS, &[("STORAGE_EMULATOR_HOST", "localhost:4443")]),
        (GCS, &[("GOOGLE_SERVICE_ACCOUNT_KEY", KEY_WITHOUT_OAUTH)]),
        (AZURE, &[NO_HOME]),
        (AZURE, &[("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")]),
        (AZURE, &[("AZURE_STORAGE_KEY", "a2V5")]),
        (AZURE, &[("AZURE_STORAGE_SAS_TOKEN", "?sv=1&sig=x")]),
        (AZURE, &[("AZURE_STORAGE_CONNECTION_STRING", "AccountName=acc;AccountKey=a2V5")]),
        (AZURE, &[("AZURE_STORAGE_CONNECTION_STRING", "UseDevelopmentStorage=true")]),
        (
            AZURE,
            &[
                ("AZURE_CLIENT_ID", "i"),
                ("AZURE_TENANT_ID", "t"),
                ("AZURE_FEDERATED_TOKEN_FILE", "/nonexistent"),
            ],
        ),
    ] {
        client(url, &RemoteOptions::default(), variables).unwrap_or_else(|error| {
            panic!("{url} {variables:?}: {}", error.chain());
        });
    }
}

/// A key in the form that emulators accept.
const KEY_WITHOUT_OAUTH: &str = "{\"gcs_base_url\":\"http://127.0.0.1:1\",\"disable_oauth\":true,\
    \"client_email\":\"\",\"private_key\":\"\",\"private_key_id\":\"\"}";

#[test]
fn what_cannot_work_is_refused_by_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let federated = file("federated", "{\"type\":\"external_account\",\"audience\":\"hidden\"}");
    let broken = file("broken", "hidden");
    let half = file("half", "{\"type\":\"service_account\",\"private_key\":\"hidden\"}");
    let adc = "GOOGLE_APPLICATION_CREDENTIALS";
    for (url, variables, kind, says) in [
        (S3, &[("AWS_ACCESS_KEY_ID", "hidden")][..], Kind::Invalid, "s3://bkt"),
        (S3, &[("AWS_PROFILE", "nobody"), NO_HOME], Kind::Denied, "nobody"),
        (
            GCS,
            &[(adc, "/nonexistent/key.json")],
            Kind::Denied,
            "/nonexistent/key.json is not there",
        ),
        (GCS, &[(adc, &federated)], Kind::Denied, "`external_account`, which is not supported"),
        (GCS, &[(adc, &broken)], Kind::Denied, "broken is not a JSON object"),
        (GCS, &[(adc, &half)], Kind::Denied, "half cannot be used"),
        (GCS, &[("GOOGLE_SERVICE_ACCOUNT_KEY", "hidden")], Kind::Invalid, "not a key for gs://bkt"),
        (
            AZURE,
            &[("AZURE_STORAGE_ACCOUNT_KEY", "hidden!")],
            Kind::Invalid,
            "AZURE_STORAGE_ACCOUNT_KEY",
        ),
        (AZURE, &[("AZURE_CLIENT_SECRET", "hidden")], Kind::Invalid, "AZURE_CLIENT_ID is not"),
        (
            AZURE,
            &[("AZURE_STORAGE_CONNECTION_STRING", "AccountName=other;AccountKey=hidden")],
            Kind::Invalid,
            "`other`, the address names `acc`",
        ),
    ] {
        let error = client(url, &RemoteOptions::default(), variables).expect_err(says);
        let text = error.chain();
        assert_eq!(error.kind(), kind, "{text}");
        assert!(text.contains(says) && !text.contains("hidden"), "{says}: {text}");
    }
}

#[test]
fn google_credentials_are_looked_for_in_order() {
    let home = tempfile::tempdir().expect("a directory");
    let gcloud = home.path().join(".config/gcloud");
    std::fs::create_dir_all(&gcloud).expect("made");
    let known = gcloud.join("application_default_credentials.json");
    std::fs::write(&known, "{}").expect("written");
    let home = home.path().display().to_string();
    let all = [
        ("HOME", home.as_str()),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/adc"),
        ("GOOGLE_SERVICE_ACCOUNT_KEY", "key"),
        ("GOOGLE_SERVICE_ACCOUNT", "/account"),
        ("GOOGLE_BEARER_TOKEN", "token"),
        ("STORAGE_EMULATOR_HOST", "localhost:1"),
    ];
    let ways = [
        CredentialWay::File(known),
        CredentialWay::File("/adc".into()),
        CredentialWay::Key("key".to_owned()),
        CredentialWay::File("/account".into()),
        CredentialWay::Token("token".to_owned()),
        CredentialWay::None,
    ];
    for (count, way) in ways.into_iter().enumerate() {
        assert_eq!(CredentialWay::find(&RemoteOptions::default(), &env(&all[..=count])), way);
    }
    let plain = |endpoint: &str| RemoteOptions {
        endpoint: Some(endpoint.to_owned()),
        ..RemoteOptions::default()
    };
    let none = env(&[NO_HOME]);
    assert_eq!(CredentialWay::find(&RemoteOptions::default(), &none), CredentialWay::Instance);
    assert_eq!(CredentialWay::find(&plain("https://proxy"), &none), CredentialWay::Instance);
    assert_eq!(CredentialWay::find(&plain("http://127.0.0.1:1"), &none), CredentialWay::None);
    assert_eq!(
        CredentialWay::find(&plain("http://127.0.0.1:1"), &env(&all[..2])),
        CredentialWay::File("/adc".into())
    );
}

#[test]
fn an_azure_account_is_found_in_host_or_path() {
    let find = |endpoint: &str, path_style: Option<bool>, all: &[(&str, &str)]| {
        let endpoint = Some(endpoint.to_owned()).filter(|text| !text.is_empty());
        let options = RemoteOptions { endpoint, path_style, ..RemoteOptions::default() };
        azure::endpoint("acc", &ConnectionString::default(), &options, &env(all))
            .expect("a good endpoint")
            .unwrap_or_default()
    };
    for (endpoint, path_style, found) in [
        ("", None, ""),
        ("https://acc.blob.core.chinacloudapi.cn/", None, "https://acc.blob.core.chinacloudapi.cn"),
        ("http://127.0.0.1:10000", None, "http://127.0.0.1:10000/acc"),
        ("http://127.0.0.1:10000/acc/", None, "http://127.0.0.1:10000/acc"),
        ("http://localhost:1", Some(false), "http://localhost:1"),
        ("http://azurite:10000", None, "http://azurite:10000"),
        ("http://azurite:10000/", Some(true), "http://azurite:10000/acc"),
    ] {
        assert_eq!(find(endpoint, path_style, &[]), found);
    }
    let emulator = [("AZURE_STORAGE_USE_EMULATOR", "true")];
    assert_eq!(find("", None, &emulator), "http://127.0.0.1:10000/acc");
    let named = [("AZURE_STORAGE_ENDPOINT", "https://a.example"), emulator[0]];
    assert_eq!(find("", None, &named), "https://a.example");
    assert_eq!(find("https://b.example", None, &named), "https://b.example");
}

#[test]
fn secrets_are_not_printed() {
    let keys = env(&[
        ("AWS_SECRET_ACCESS_KEY", "hidden"),
        ("AZURE_CLIENT_SECRET", "hidden"),
        ("PATH", "x"),
        ("HOME", "/h"),
    ]);
    let names = "{\"AWS_SECRET_ACCESS_KEY\", \"AZURE_CLIENT_SECRET\", \"HOME\"}";
    assert_eq!(format!("{keys:?}"), names);
}
