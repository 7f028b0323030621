//! Credentials of each cloud: missing or wrong ones are refused by name at the mount. When they expire
//! later the mount goes on and logs that once; pending changes are uploaded when they are valid again.

use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::bad_input::{Desk, LIMIT_MS};
use crate::harness::body::{self, Id};
use crate::harness::command::run;
use crate::harness::store::Trouble;
use crate::harness::{
    Cluster, Io, Must as _, Node, Options, Store, SyscallProcess, eventually, skipped, sleep_ms,
    tree,
};
use crate::stores::{ACCESS_KEY, AZURE_ACCOUNT, AZURE_KEY, SECRET_KEY};

#[test]
fn bad_input_credentials_and_buckets() {
    let desk = Desk::new();
    let store = Store::s3(&desk.site);
    let mount = |desk: &Desk, url: &str, secret: Option<&str>| {
        let mut command = desk.site.hearthfs();
        command.args(["mount", &desk.mount, "--cache-dir", &desk.cache, "--remote", url]);
        command.envs(store.env());
        if let Some(secret) = secret {
            command.env("AWS_SECRET_ACCESS_KEY", secret);
        }
        run(&mut command, LIMIT_MS)
    };
    let url = store.url();
    desk.refuses(|desk| mount(desk, &url, Some("wrong")), &[&url]);
    store.trouble(Trouble::Forbidden);
    desk.refuses(|desk| mount(desk, &url, None), &[&url]);
}

/// Wrong credentials are refused with the store's name and what to check, and are not printed.
fn refused_at_the_mount(desk: &Desk, store: &Store, wrong: &[(String, String)], check: &str) {
    let url = store.url();
    let mount = |desk: &Desk| {
        let mut command = desk.site.hearthfs();
        command.args(["mount", &desk.mount, "--cache-dir", &desk.cache, "--remote", &url]);
        let said = run(command.envs(store.env()).envs(wrong.iter().cloned()), LIMIT_MS);
        assert!(!said.err.contains(WRONG), "{}", said.err);
        said
    };
    desk.refuses(mount, &[&url, "the credentials are refused: check", check]);
}

/// A key that the store does not know, in base64.
const WRONG: &str = "d3Jvbmcgb25l";

#[test]
fn bad_input_credentials_of_gs_at_the_mount() {
    let desk = Desk::new();
    let store = Store::gcs_with_key(&Arc::new(Mutex::new(Some("first".to_owned()))));
    let file = desk.site.path().join("key.json");
    write_account(&store, &file, "another");
    let wrong = from_account(&file);
    refused_at_the_mount(&desk, &store, &wrong, "GOOGLE_APPLICATION_CREDENTIALS");
}

#[test]
fn bad_input_credentials_of_azure_at_the_mount() {
    let store = match Store::azure() {
        Ok(store) => store,
        Err(reason) => return skipped("bad_input_credentials_of_azure_at_the_mount", reason),
    };
    let wrong = [("AZURE_STORAGE_ACCOUNT_KEY".to_owned(), WRONG.to_owned())];
    refused_at_the_mount(&Desk::new(), &store, &wrong, "AZURE_STORAGE_ACCOUNT_KEY");
}

/// Without any credentials, the message lists where they were looked for.
#[test]
fn bad_input_no_credentials() {
    let nowhere = "http://127.0.0.1:9";
    for (url, env, wanted) in [
        ("s3://bucket/x", ("AWS_METADATA_ENDPOINT", nowhere), "AWS_ACCESS_KEY_ID"),
        ("gs://bucket/x", ("PATH", "/bin"), "GOOGLE_APPLICATION_CREDENTIALS"),
        ("az://account/container/x", ("IDENTITY_ENDPOINT", nowhere), "AZURE_STORAGE_ACCOUNT_KEY"),
    ] {
        let desk = Desk::new();
        let mount = |desk: &Desk| {
            let mut command = desk.site.hearthfs();
            command.args(["mount", &desk.mount, "--cache-dir", &desk.cache, "--remote", url]);
            run(command.env(env.0, env.1), LIMIT_MS)
        };
        desk.refuses(mount, &[url, "no credentials: set", wanted]);
    }
}

/// Credentials in an address are refused and not printed, wherever the address is set.
#[test]
fn bad_input_credentials_in_addresses() {
    for url in [
        "s3://key:hid/den@bucket",
        "s3://hidden@bucket/x",
        "gs://key:hidden@bucket/x",
        "az://account:hidden@container/x",
        "az://account/container?sv=1&sig=hidden",
        "file://user:hidden@host/x",
    ] {
        let desk = Desk::new();
        let file = desk.site.path().join("hearthfs.toml");
        std::fs::write(&file, format!("[remote]\nurl = \"{url}\"\n")).must("write a file");
        let mount = |desk: &Desk, flag: &str, value: &str| {
            let mut command = desk.site.hearthfs();
            command.args(["mount", &desk.mount, "--cache-dir", &desk.cache, flag, value]);
            let said = run(&mut command, LIMIT_MS);
            assert!(!said.err.contains("hidden") && !said.err.contains("hid/den"), "{}", said.err);
            said
        };
        desk.refuses(|desk| mount(desk, "--remote", url), &["remote.url", "***"]);
        let file = file.to_string_lossy();
        desk.refuses(|desk| mount(desk, "--config", &file), &["remote.url", "***", ":2"]);
    }
}

/// A cluster whose node A has its credentials from a file that the test writes.
struct Rotation {
    node: Node,
    other: Node,
    right: Box<dyn Fn()>,
    wrong: Box<dyn Fn()>,
}

/// Credentials become wrong while mounted, and right again.
fn rotated(it: &Rotation) {
    let mut process = SyscallProcess::new();
    let bytes = |seq| body::make(Id { writer: 1, seq }, 40_000);
    process.put(&it.node.at("before"), &bytes(1)).must("put");
    it.node.drain();
    (it.wrong)();
    for seq in 2..5 {
        process.put(&it.node.at(format!("f{seq}")), &bytes(seq)).must("put");
    }
    eventually(20_000, "the daemon reports it", || {
        let warnings = warnings(&it.node);
        if warnings.is_empty() { Err("nothing yet".to_owned()) } else { Ok(()) }
    });
    // The mount goes on with all local content, long enough for a retry.
    sleep_ms(3_000);
    assert!(std::fs::read(it.node.at("f4")).must("read") == bytes(4));
    assert!(std::fs::metadata(it.node.at("missing")).is_err());
    assert!(it.node.status()["backlog"]["records"].as_u64().must("a count") > 0);
    let said = warnings(&it.node);
    assert_eq!(said.len(), 1, "one warning: {said:#?}");
    assert!(said[0].contains("the credentials are refused: check"), "{said:?}");
    (it.right)();
    it.node.drain();
    let all = tree::converge(&it.node.mount, &it.other.mount, 15_000);
    assert_eq!(all.len(), 4);
}

fn warnings(node: &Node) -> Vec<String> {
    node.log().lines().filter(|line| line.contains(" WARN ")).map(str::to_owned).collect()
}

#[test]
fn bad_input_credentials_of_s3_that_expire_while_mounted() {
    let site = crate::harness::node::Site::new();
    let store = Store::s3(&site);
    let file = site.path().join("credentials");
    let write = |file: &Path, secret: &str| {
        let text =
            format!("[default]\naws_access_key_id={ACCESS_KEY}\naws_secret_access_key={secret}\n");
        std::fs::write(file, text).must("write credentials");
    };
    write(&file, SECRET_KEY);
    let mut options = Options::new(Io::best());
    options.env = [
        ("AWS_ACCESS_KEY_ID", String::new()),
        ("AWS_SECRET_ACCESS_KEY", String::new()),
        ("AWS_SHARED_CREDENTIALS_FILE", file.display().to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    let node = Node::start(&site, "a", Some(&store), options);
    let other = Node::start(&site, "b", Some(&store), Options::new(Io::best()));
    let right = file.clone();
    rotated(&Rotation {
        node,
        other,
        right: Box::new(move || write(&right, SECRET_KEY)),
        wrong: Box::new(move || write(&file, "expired")),
    });
}

#[test]
fn bad_input_credentials_of_gs_that_expire_while_mounted() {
    let site = crate::harness::node::Site::new();
    let accepted = Arc::new(Mutex::new(Some("first".to_owned())));
    let store = Store::gcs_with_key(&accepted);
    let start = |name: &str| {
        let file = site.path().join(format!("{name}.json"));
        write_account(&store, &file, "first");
        let mut options = Options::new(Io::best());
        options.env = from_account(&file);
        (Node::start(&site, name, Some(&store), options), file)
    };
    let ((node, file), (other, other_file)) = (start("a"), start("b"));
    let second = std::fs::read_to_string(&file).must("read a key").replace("first", "second");
    let late = second.clone();
    rotated(&Rotation {
        node,
        other,
        // From some time on the server accepts only the second key. Node B has it at once, node A late.
        wrong: Box::new(move || {
            std::fs::write(&other_file, &second).must("write a key");
            *accepted.lock().must("the server's key") = Some("second".to_owned());
        }),
        right: Box::new(move || std::fs::write(&file, &late).must("write a key")),
    });
}

/// Writes the key of a service account, with that id.
fn write_account(store: &Store, file: &Path, id: &str) {
    let key = serde_json::json!({
        "type": "service_account",
        "client_email": "tests@example.iam.gserviceaccount.com",
        "private_key": include_str!("../stores/service_account.pem"),
        "private_key_id": id,
        "gcs_base_url": store.endpoint(),
    });
    std::fs::write(file, key.to_string()).must("write a key");
}

/// Returns the variables with which such a key is used, and no emulator.
fn from_account(file: &Path) -> Vec<(String, String)> {
    [
        ("STORAGE_EMULATOR_HOST", String::new()),
        ("GOOGLE_APPLICATION_CREDENTIALS", file.display().to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// The file of the `az` command, whose key is changed while mounted.
#[test]
fn bad_input_credentials_of_azure_that_expire_while_mounted() {
    const NAME: &str = "bad_input_credentials_of_azure_that_expire_while_mounted";
    let store = match Store::azure() {
        Ok(store) => store,
        Err(reason) => return skipped(NAME, reason),
    };
    let site = crate::harness::node::Site::new();
    let dir = site.dir("azure");
    let write = |dir: &Path, key: &str| {
        let text = format!("[storage]\naccount = {AZURE_ACCOUNT}\nkey = {key}\n");
        std::fs::write(dir.join("config"), text).must("write credentials");
    };
    write(&dir, AZURE_KEY);
    let mut options = Options::new(Io::best());
    options.env = [
        ("AZURE_STORAGE_ACCOUNT_KEY", String::new()),
        ("AZURE_CONFIG_DIR", dir.display().to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    let node = Node::start(&site, "a", Some(&store), options);
    let other = Node::start(&site, "b", Some(&store), Options::new(Io::best()));
    let right = dir.clone();
    rotated(&Rotation {
        node,
        other,
        right: Box::new(move || write(&right, AZURE_KEY)),
        wrong: Box::new(move || write(&dir, WRONG)),
    });
}

/// Foreign objects below the prefix are left alone, and logged once.
#[test]
fn bad_input_foreign_objects() {
    let cluster = Cluster::with(
        |site| {
            let store = Store::s3(site);
            for name in ["readme.txt", "models/weights", "log/notes.txt"] {
                let path = store.objects().join(name);
                std::fs::create_dir_all(path.parent().must("a parent")).must("make a folder");
                std::fs::write(path, name).must("write an object");
            }
            store
        },
        &Options::new(Io::best()),
    );
    let mut process = SyscallProcess::new();
    for (node, name) in [(&cluster.a, "a"), (&cluster.b, "b")] {
        for k in 0..20 {
            process.put(&node.at(format!("{name}{k}")), b"x").must("put");
            sleep_ms(20);
        }
    }
    cluster.settle();
    let all = tree::converge(&cluster.a.mount, &cluster.b.mount, 15_000);
    assert_eq!(all.len(), 40);
    for node in [&cluster.a, &cluster.b] {
        let said = warnings(node);
        assert_eq!(said.len(), 1, "{said:#?}");
        assert!(said[0].contains("they are left alone"), "{said:?}");
    }
    for name in ["readme.txt", "models/weights", "log/notes.txt"] {
        let there = std::fs::read_to_string(cluster.store.objects().join(name));
        assert_eq!(there.must("an object of others"), name);
    }
}
