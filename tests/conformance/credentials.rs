//! Credentials in the usual forms of each cloud, wrong ones, and those that change while in use.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use hearthfs::error::Kind;
use hearthfs::remote::{Health, RemoteOptions};

use crate::bed::{Bed, commit, run};
use crate::skipped;
use crate::stores::{
    ACCESS_KEY, AZURE_ACCOUNT, AZURE_KEY, Azurite, BUCKET, Dialect, Google, S3Server, SECRET_KEY,
    environment, environment_of,
};

#[test]
fn refusals_of_a_server_name_cause_and_remedy() {
    let server = S3Server::start();
    let bed = Bed::s3(&server);
    run(async {
        for env in [
            environment(ACCESS_KEY, "wrong"),
            environment("nobody", SECRET_KEY),
            // Only instance metadata is left, and there is none.
            [("AWS_METADATA_ENDPOINT".to_owned(), "http://127.0.0.1:9".to_owned())]
                .into_iter()
                .collect(),
        ] {
            let wrong = Bed { env, ..Bed::s3(&server) };
            let error = wrong.open("p").check().await.expect_err("refused");
            assert_eq!(error.kind(), Kind::Denied, "{}", error.chain());
            let text = error.chain();
            assert!(text.contains("AWS_ACCESS_KEY_ID") && text.contains("s3://bkt/p"), "{text}");
            assert!(!text.contains("wrong") && !text.contains(SECRET_KEY), "{text}");
        }
        assert!(std::fs::read_dir(server.bucket_dir()).expect("a bucket").next().is_none());
        server.faults.hang(true);
        let hasty = Bed { options: server.options(Duration::from_millis(500)), ..Bed::s3(&server) };
        let error = hasty.open("p").check().await.expect_err("no answer");
        assert_eq!(error.kind(), Kind::TimedOut, "{}", error.chain());
        server.faults.hang(false);
        server.down();
        let error = bed.open("p").check().await.expect_err("no connection");
        assert_eq!(error.kind(), Kind::Unavailable, "{}", error.chain());
        assert!(error.to_string().contains("check endpoint and network"), "{error}");
        server.up();
        bed.open("p").check().await.expect("the store is back");
    });
}

#[test]
fn credentials_from_files_are_used_and_followed() {
    let server = S3Server::start();
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("credentials");
    let write = |secret: &str| {
        let text =
            format!("[team]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {secret}\n");
        std::fs::write(&file, text).expect("written");
    };
    write("expired-by-now");
    let env = [
        ("AWS_SHARED_CREDENTIALS_FILE", file.display().to_string()),
        ("AWS_CONFIG_FILE", "/nonexistent".to_owned()),
        ("AWS_PROFILE", "team".to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into_iter()
    .collect();
    let bed = Bed { env, ..Bed::s3(&server) };
    run(async {
        let remote = bed.open("files");
        assert_eq!(remote.check().await.expect_err("refused").kind(), Kind::Denied);
        write(SECRET_KEY);
        remote.check().await.expect("the new secret is used");
    });
}

/// The requests to a server: first line, then headers, then body.
type Asked = Arc<Mutex<Vec<String>>>;

/// Answers each request with the result of `answer`, and records it; ends with the test program.
fn service(answer: impl Fn(&str) -> (u16, String) + Send + 'static) -> (String, Asked) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let asked = Asked::default();
    let noted = asked.clone();
    let serve = move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut text = String::new();
            let mut chunk = [0; 4096];
            while !is_whole(&text) {
                match stream.read(&mut chunk) {
                    Ok(0) | Err(_) => break,
                    Ok(length) => text.push_str(&String::from_utf8_lossy(&chunk[..length])),
                }
            }
            let (status, body) = answer(&text);
            noted.lock().expect("no thread panics with the lock").push(text);
            let answer = format!(
                "HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            drop(stream.write_all(answer.as_bytes()));
        }
    };
    drop(hearthfs::task::thread("service", serve).expect("a thread"));
    (format!("http://{address}"), asked)
}

/// Reports whether a request has come with the whole of its body.
fn is_whole(text: &str) -> bool {
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let lower = head.to_ascii_lowercase();
    let length = lower.lines().find_map(|line| line.strip_prefix("content-length: "));
    length.is_none_or(|length| body.len() >= length.trim().parse().expect("a length"))
}

#[test]
fn credentials_from_instance_metadata_are_used() {
    let server = S3Server::start();
    let (metadata, _) = service(|request| {
        let body = match request.split(' ').nth(1) {
            Some("/latest/api/token") => "session".to_owned(),
            Some("/latest/meta-data/iam/security-credentials/") => "role".to_owned(),
            _ => format!(
                "{{\"AccessKeyId\":\"{ACCESS_KEY}\",\"SecretAccessKey\":\"{SECRET_KEY}\",\
                 \"Token\":\"t\",\"Expiration\":\"2099-01-01T00:00:00Z\"}}"
            ),
        };
        (200, body)
    });
    let bed =
        Bed { env: environment_of(&[("AWS_METADATA_ENDPOINT", &metadata)]), ..Bed::s3(&server) };
    run(async {
        let before = server.faults.requests();
        let remote = bed.connect("metadata").await;
        let sent = server.faults.requests() - before;
        assert_eq!(remote.requests().total(), sent, "only requests to the store are counted");
    });
}

/// Writes the key of a service account with that id.
fn write_key(file: &Path, id: &str) {
    let key = serde_json::json!({
        "type": "service_account",
        "client_email": "tests@example.iam.gserviceaccount.com",
        "private_key": include_str!("../stores/service_account.pem"),
        "private_key_id": id,
    });
    std::fs::write(file, key.to_string()).expect("written");
}

#[test]
fn credentials_of_a_google_service_account_are_used_and_followed() {
    let accepted = Arc::new(Mutex::new(Some("first".to_owned())));
    let server = S3Server::start_as(Dialect::Gcs(Google::with_key_id(&accepted)));
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("key.json");
    write_key(&file, "wrong");
    let env = environment_of(&[("GOOGLE_APPLICATION_CREDENTIALS", &file.display().to_string())]);
    let options = server.options(Duration::from_secs(5));
    let bed = Bed { options, env, ..Bed::gcs(&server) };
    run(async {
        let remote = bed.open("files");
        let error = remote.check().await.expect_err("refused");
        assert_eq!(error.kind(), Kind::Denied, "{}", error.chain());
        let text = error.chain();
        assert!(text.contains("gs://bkt/files"), "{text}");
        assert!(text.contains("check GOOGLE_APPLICATION_CREDENTIALS"), "{text}");
        write_key(&file, "first");
        remote.check().await.expect("the right key is used");
        // The key is rotated: first the old one is no longer accepted, then the new one is there.
        *accepted.lock().expect("no thread panics with the lock") = Some("second".to_owned());
        let put = remote.put_commit(&commit(1), Bytes::from_static(b"x")).await;
        assert_eq!(put.expect_err("rotated").kind(), Kind::Denied);
        assert!(
            matches!(remote.health(), Health::Down { .. }),
            "missing credentials are an outage"
        );
        write_key(&file, "second");
        remote.put_commit(&commit(1), Bytes::from_static(b"x")).await.expect("rotated");
        assert_eq!(remote.health(), Health::Up);
        std::fs::write(&file, "half a file").expect("written");
        let error = remote.background().list_log(None).await.expect_err("no key");
        assert!(error.chain().contains("key.json is not a JSON object"), "{}", error.chain());
        write_key(&file, "second");
        assert_eq!(remote.background().list_log(None).await.expect("listed").len(), 1);
    });
}

#[test]
fn credentials_of_azure_are_used_and_followed() {
    let azurite = match Azurite::start() {
        Ok(azurite) => azurite,
        Err(reason) => return skipped("credentials_of_azure_are_used_and_followed", &reason),
    };
    let endpoint = azurite.endpoint();
    let bed = Bed::azure(azurite);
    let with = |all: &[(&str, &str)]| Bed { env: environment_of(all), ..bed_like(&bed) };
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("config");
    let write = |text: &str| std::fs::write(&file, text).expect("written");
    let config_dir = dir.path().display().to_string();
    run(async {
        // A wrong key, and none at all where there is no managed identity either.
        for env in [
            &[("AZURE_STORAGE_ACCOUNT_KEY", "d3Jvbmc=")][..],
            &[("AZURE_STORAGE_SAS_TOKEN", "sv=2021-08-06&sr=c&sp=r&se=2020-01-01&sig=d3Jvbmc%3D")],
            &[("IDENTITY_ENDPOINT", "http://127.0.0.1:9")],
        ] {
            let error = with(env).open("p").check().await.expect_err("refused");
            assert_eq!(error.kind(), Kind::Denied, "{}", error.chain());
            let text = error.chain();
            assert!(text.contains("AZURE_STORAGE_ACCOUNT_KEY"), "{text}");
            assert!(text.contains(&format!("az://{AZURE_ACCOUNT}/{BUCKET}/p")), "{text}");
            assert!(!text.contains("d3Jvbmc"), "{text}");
        }
        let string = format!(
            "DefaultEndpointsProtocol=http;AccountName={AZURE_ACCOUNT};AccountKey={AZURE_KEY};\
             BlobEndpoint={endpoint}/{AZURE_ACCOUNT};"
        );
        let options = RemoteOptions { endpoint: None, ..bed.options.clone() };
        let said = with(&[("AZURE_STORAGE_CONNECTION_STRING", &string)]);
        Bed { options, ..said }.connect("string").await;
        let sas = container_sas("2099-01-01T00:00:00Z");
        let shared = with(&[("AZURE_STORAGE_SAS_TOKEN", &sas)]);
        let remote = shared.connect("sas").await;
        remote.put_commit(&commit(1), Bytes::from_static(b"x")).await.expect("written");
        assert_eq!(remote.list_log(None).await.expect("listed").len(), 1);
        assert!(remote.requests().total() > 6, "signatures in the query also count");
        // The file of the `az` command, rotated from an expired signature to a good one to a key.
        write(&format!("[storage]\nsas_token = {}\n", container_sas("2020-01-01T00:00:00Z")));
        let from_file = with(&[("AZURE_CONFIG_DIR", &config_dir)]);
        let remote = from_file.open("file");
        let error = remote.check().await.expect_err("expired");
        assert_eq!(error.kind(), Kind::Denied, "{}", error.chain());
        assert!(!error.chain().contains("sig="), "{}", error.chain());
        write(&format!("[storage]\nsas_token = {sas}\n"));
        remote.check().await.expect("the new token is used");
        write(&format!("[storage]\naccount = {AZURE_ACCOUNT}\nkey = {AZURE_KEY}\n"));
        remote.put_commit(&commit(1), Bytes::from_static(b"x")).await.expect("written");
    });
}

fn bed_like(bed: &Bed) -> Bed {
    Bed {
        url: bed.url.clone(),
        options: bed.options.clone(),
        env: bed.env.clone(),
        overwrite: Box::new(|_, _| ()),
        ..*bed
    }
}

/// Signs a token for the container, good until `end`.
fn container_sas(end: &str) -> String {
    use base64::Engine as _;
    let base64 = base64::engine::general_purpose::STANDARD;
    let (rights, version) = ("racwdl", "2021-08-06");
    let text = format!(
        "{rights}\n2019-01-01T00:00:00Z\n{end}\n/blob/{AZURE_ACCOUNT}/{BUCKET}\n\n\n\n{version}\nc\
         \n\n\n\n\n\n\n"
    );
    let key = base64.decode(AZURE_KEY).expect("base64");
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &key);
    let signature = base64.encode(ring::hmac::sign(&key, text.as_bytes()));
    let signature = signature.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D");
    format!(
        "sv={version}&sr=c&sp={rights}&st=2019-01-01T00%3A00%3A00Z&se={}&sig={signature}",
        end.replace(':', "%3A")
    )
}

/// The identities of Azure: each gets its token in its own way, and the store receives it.
#[test]
fn credentials_of_azure_identities_are_fetched_and_shown() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("token");
    std::fs::write(&file, "federated-1").expect("written");
    let (store, shown) = service(|_| (403, String::new()));
    let (authority, asked) = service(|_| {
        let ends = "\"expires_in\":0,\"expires_on\":\"1\"";
        (200, format!("{{\"access_token\":\"the-token\",\"token_type\":\"Bearer\",{ends}}}"))
    });
    let file_name = file.display().to_string();
    let identity = [("AZURE_CLIENT_ID", "our-id"), ("AZURE_TENANT_ID", "our-tenant")];
    let host = ("AZURE_AUTHORITY_HOST", authority.as_str());
    let secret = [identity[0], identity[1], host, ("AZURE_CLIENT_SECRET", "our-secret")];
    let federated = [identity[0], identity[1], host, ("AZURE_FEDERATED_TOKEN_FILE", &file_name)];
    let managed = [("IDENTITY_ENDPOINT", authority.as_str()), identity[0]];
    for (env, wanted) in [
        (&secret[..], &["POST /our-tenant/", "client_id=our-id", "client_secret=our-secret"][..]),
        (&federated, &["POST /our-tenant/", "client_assertion=federated-1"]),
        (&managed, &["GET /?", "client_id=our-id", "resource=https"]),
    ] {
        let url = format!("az://{AZURE_ACCOUNT}/{BUCKET}");
        let options = RemoteOptions {
            endpoint: Some(store.clone()),
            deadline: Duration::from_secs(5),
            ..RemoteOptions::default()
        };
        let server = S3Server::start();
        let bed = Bed { url, options, env: environment_of(env), ..Bed::s3(&server) };
        run(async {
            let remote = bed.open("p");
            assert_eq!(remote.check().await.expect_err("403").kind(), Kind::Denied);
            // An expired token is fetched again, using what the file then holds.
            std::fs::write(&file, "federated-2").expect("written");
            assert_eq!(remote.check().await.expect_err("403").kind(), Kind::Denied);
            std::fs::write(&file, "federated-1").expect("written");
        });
        let asked = std::mem::take(&mut *asked.lock().expect("no thread panics with the lock"));
        for word in wanted {
            assert!(asked[0].contains(word), "{word}: {asked:?}");
        }
        if wanted.contains(&"client_assertion=federated-1") {
            assert!(asked.last().expect("asked").contains("federated-2"), "{asked:?}");
        }
        let shown = std::mem::take(&mut *shown.lock().expect("no thread panics with the lock"));
        assert!(
            shown.iter().all(|request| request.contains("authorization: Bearer the-token")),
            "{shown:?}"
        );
    }
}
