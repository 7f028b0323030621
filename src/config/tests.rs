//! The configuration as a whole: precedence, refusals, and the shipped file.

use super::*;

fn around(variables: &[(&str, &str)]) -> Surroundings {
    let mut all = vec![("HOME", "/home/me"), ("XDG_CONFIG_HOME", "/nonexistent")];
    all.extend(variables);
    Surroundings { current_dir: "/work/here".into(), ..source::around(1000, &all) }
}

fn flag(key: &str, value: &str) -> FlagValue {
    FlagValue { key: key.to_owned(), value: value.to_owned(), flag: format!("--{key}") }
}

fn flags(values: &[(&str, &str)]) -> Flags {
    Flags { file: None, values: values.iter().map(|(k, v)| flag(k, v)).collect() }
}

/// Loads a file's text; the second value is the file's path.
fn load_text(text: &str) -> (Result<Loaded, Refusal>, String) {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("hearthfs.toml");
    std::fs::write(&path, text).expect("write");
    let shown = path.display().to_string();
    let flags = Flags { file: Some(path), values: Vec::new() };
    (load(&flags, &around(&[]), Some(Path::new("/mnt/cache"))), shown)
}

/// The usual place may be a link to the file of a cluster. If that is missing, the defaults would be wrong.
#[test]
fn a_link_to_a_missing_file_is_refused() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let file = dir.path().join("hearthfs/hearthfs.toml");
    std::fs::create_dir(dir.path().join("hearthfs")).expect("make a directory");
    std::os::unix::fs::symlink("missing.toml", &file).expect("make a link");
    let base = dir.path().to_str().expect("plain text");
    let refused = load(&Flags::default(), &around(&[("XDG_CONFIG_HOME", base)]), None);
    let refusal = refused.expect_err("the target is missing").to_string();
    assert!(refusal.contains(file.to_str().expect("plain text")), "{refusal}");
}

#[test]
fn shipped_file_is_the_defaults() {
    let text = include_str!("../../systemd/hearthfs.toml");
    let source::Parsed { raws, problems, .. } = source::parse(Path::new("hearthfs.toml"), text);
    assert_eq!(problems, []);
    let written: Vec<_> = raws.iter().map(|raw| raw.key.name).collect();
    for key in KEYS {
        assert!(written.contains(&key.name), "{} is not in the file", key.name);
        let line = format!("{} = {}", key.short(), key.literal(key.default));
        assert!(text.lines().any(|l| l == line), "the file does not say `{line}`");
        if let Some(variable) = key.variable {
            assert!(text.contains(variable), "the file does not name {variable}");
        }
    }
    assert_eq!(written.len(), KEYS.len());
    for raw in &raws {
        assert_eq!(raw.value, raw.key.default, "{}", raw.key.name);
    }
    assert!(KEYS.len() <= 30, "the design allows about 25 keys");
}

#[test]
fn defaults_pass_their_own_checks() {
    for key in KEYS {
        let mut settings = Settings::default();
        assert_eq!((key.set)(&mut settings, key.default), Ok(()), "{}", key.name);
    }
    let loaded = load(&Flags::default(), &around(&[]), Some(Path::new("/mnt/cache")));
    let settings = loaded.expect("defaults").settings;
    assert_eq!(settings.local.cache_dir, Path::new("/home/me/.cache/hearthfs/mnt-cache"));
    assert_eq!(settings.local.cache_size, ByteSize(50 << 30));
    assert_eq!(settings.remote.deadline.as_secs(), 5);
    assert_eq!(settings.remote.url, None);
}

#[test]
fn flag_before_environment_before_file_before_default() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("c.toml");
    let text = "[remote]\ndeadline = \"2s\"\nfreshness = \"2s\"\n[writeback]\nopen_wait = \"1s\"\n\
                [local]\ncache_size = \"1GiB\"\n";
    std::fs::write(&path, text).expect("write");
    let variables = [
        ("HEARTHFS_CONFIG", path.to_str().expect("text")),
        ("HEARTHFS_FRESHNESS", "3s"),
        ("HEARTHFS_CACHE_SIZE", "2GiB"),
        ("HEARTHFS_REMOTE", ""),
    ];
    let flags = flags(&[("local.cache_size", "3GiB")]);
    let loaded = load(&flags, &around(&variables), None).expect("good");
    let show = |key: &str| {
        let entry = loaded.effective.iter().find(|e| e.key == key).expect(key);
        (entry.value.clone(), entry.origin.to_string())
    };
    assert_eq!(show("remote.deadline"), ("2s".into(), format!("{}:2", path.display())));
    assert_eq!(show("remote.freshness"), ("3s".into(), "environment HEARTHFS_FRESHNESS".into()));
    assert_eq!(show("local.cache_size"), ("3GiB".into(), "flag --local.cache_size".into()));
    assert_eq!(show("remote.url"), (String::new(), "default".into()));
    assert_eq!(show("writeback.delay"), ("200ms".into(), "default".into()));
    assert_eq!(loaded.settings.local.cache_size, ByteSize(3 << 30));
    assert_eq!(loaded.settings.remote.freshness.as_secs(), 3);
    assert_eq!(loaded.file.as_deref(), Some(&*path));
}

#[test]
fn bad_files_are_refused_by_name_and_line() {
    let cases: [(&str, usize, &[&str]); 27] = [
        ("[locl]\n", 1, &["locl", "unknown section", "\"local\""]),
        (
            "[zebra]\n",
            1,
            &["zebra", "mount, local, remote, writeback, expiry, run, metrics, log, profiles"],
        ),
        ("cache_dir = \"/x\"\n", 1, &["cache_dir", "[local]"]),
        ("bogus = 1\n", 1, &["bogus", "must be in a section"]),
        ("[local]\n\ncache_sise = \"1GiB\"\n", 3, &["local.cache_sise", "\"cache_size\""]),
        ("[local]\nurl = \"file:///x\"\n", 2, &["local.url", "\"remote.url\""]),
        ("[local]\nwhatever = 1\n", 2, &["local.whatever", "cache_dir, cache_size"]),
        ("[local]\ncache_size = 500\n", 2, &["local.cache_size", "500", "unit"]),
        ("[local]\ncache_size = \"50G\"\n", 2, &["\"50G\"", "50GiB"]),
        ("[local]\ncache_size = \"1MiB\"\n", 2, &["\"1MiB\"", "from 16MiB"]),
        ("[local]\ncache_size = \"many\"\n", 2, &["\"many\"", "expected a number with a unit"]),
        ("[local]\ncache_dir = \"~/x\"\n", 2, &["~/x", "not expanded"]),
        ("[remote]\ndeadline = \"1\"\n", 2, &["remote.deadline", "unit"]),
        ("[remote]\ndeadline = \"1ms\"\n", 2, &["from 100ms to 5m"]),
        ("[remote]\nurl = \"http://x\"\n", 2, &["remote.url", "http", "s3://BUCKET"]),
        ("[remote]\nurl = \"s3://k:v@b\"\n", 2, &["credentials", "***@b"]),
        ("[remote]\nurl = \"gs://k:v@b\"\n", 2, &["credentials", "***@b"]),
        ("[remote]\nurl = \"az://k:v/w@b/c\"\n", 2, &["credentials", "***@b/c"]),
        ("[remote]\nurl = \"az://acc/con?sig=v\"\n", 2, &["no meaning", "acc/con?***"]),
        ("[remote]\nurl = \"file://k:v@h/d\"\n", 2, &["absolute", "***@h/d"]),
        ("[remote]\nendpoint = \"https://k:v@h\"\n", 2, &["credentials", "***@h"]),
        ("[remote]\nendpoint = \"host:90\"\n", 2, &["remote.endpoint", "http://HOST"]),
        ("[mount]\nio = \"fast\"\n", 2, &["\"fast\"", "\"auto\", \"passthrough\", \"ordinary\""]),
        ("[mount]\nwrites = \"yes\"\n", 2, &["mount.writes", "\"shared\", \"private\", \"none\""]),
        ("[mount]\nthreads = 0\n", 2, &["mount.threads", "1 to 64"]),
        ("[log]\nlevel = \"loud\"\n", 2, &["log.level", "error, warn, info"]),
        ("[local\n", 1, &[]),
    ];
    for (text, line, words) in cases {
        let (result, path) = load_text(text);
        let error = result.expect_err(text).to_string();
        assert!(error.starts_with(&format!("{path}:{line}: ")), "{text}: {error}");
        for word in words {
            assert!(error.contains(word), "{text}: `{word}` is not in: {error}");
        }
    }
}

#[test]
fn the_mount_point_may_stand_in_the_file() {
    let text = "[mount]\ndirectory = \"/mnt/shared\"\n";
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("c.toml");
    std::fs::write(&path, text).expect("write");
    let flags = Flags { file: Some(path), values: Vec::new() };
    let named = load(&flags, &around(&[]), None).expect("good").settings;
    assert_eq!(named.mount.directory.as_deref(), Some(Path::new("/mnt/shared")));
    assert_eq!(named.local.cache_dir, Path::new("/home/me/.cache/hearthfs/mnt-shared"));
    let other = load(&flags, &around(&[]), Some(Path::new("/mnt/other"))).expect("good");
    assert_eq!(other.settings.mount.directory.as_deref(), Some(Path::new("/mnt/other")));
    assert_eq!(other.origin("mount.directory").to_string(), "flag DIR");
    let variable = around(&[("HEARTHFS_MOUNT", "/mnt/env")]);
    let by_variable = load(&flags, &variable, None).expect("good").settings;
    assert_eq!(by_variable.mount.directory.as_deref(), Some(Path::new("/mnt/env")));
    let relative = load(&Flags::default(), &around(&[("HEARTHFS_MOUNT", "m")]), None);
    assert!(relative.expect_err("refused").to_string().contains("absolute path"));
}

#[test]
fn all_problems_are_reported_at_once() {
    let (result, _) =
        load_text("[local]\ncache_size = \"x\"\ncache_dri = \"/x\"\n[log]\nlevel = \"y\"\n");
    assert_eq!(result.expect_err("three errors").0.len(), 3);
}

#[test]
fn values_must_fit_together() {
    for (values, words) in [
        (
            &[("writeback.open_wait", "6s")][..],
            &["writeback.open_wait", "remote.deadline (5s)"][..],
        ),
        (
            &[("remote.deadline", "1s"), ("writeback.open_wait", "2s")],
            &["writeback.open_wait", "(1s)"],
        ),
        (
            &[("local.cache_size", "16MiB"), ("writeback.batch", "9MiB")],
            &["writeback.batch", "half of local.cache_size (16MiB)"],
        ),
        (
            &[("local.cache_dir", "/srv/a"), ("remote.url", "file:///srv/a/b")],
            &["remote.url", "/srv/a"],
        ),
        (
            &[("local.cache_dir", "/srv/a/b"), ("remote.url", "file:///srv/a")],
            &["remote.url", "/srv/a/b"],
        ),
        (
            &[("remote.url", "gs://bucket"), ("remote.region", "eu-west1")],
            &["flag", "remote.region = \"eu-west1\"", "gs://", "leave the key out"],
        ),
        (
            &[("remote.url", "gs://bucket"), ("remote.path_style", "true")],
            &["remote.path_style = \"true\"", "gs://", "leave the key out"],
        ),
        (
            &[("remote.url", "az://account/container"), ("remote.region", "westeurope")],
            &["remote.region = \"westeurope\"", "az://", "leave the key out"],
        ),
    ] {
        let error = load(&flags(values), &around(&[]), Some(Path::new("/mnt/cache")));
        let error = error.expect_err("refused").to_string();
        for word in words {
            assert!(error.contains(word), "`{word}` is not in: {error}");
        }
    }
    let short = load(&flags(&[("remote.deadline", "1s")]), &around(&[]), None).expect("good");
    assert_eq!(
        short.settings.writeback.open_wait.as_secs(),
        1,
        "the default is lowered to the deadline"
    );
    let apart = [("local.cache_dir", "/srv/a"), ("remote.url", "file:///srv/ab")];
    assert!(load(&flags(&apart), &around(&[]), None).is_ok());
}

#[test]
fn environment_and_flags_are_named_in_refusals() {
    let error = load(&Flags::default(), &around(&[("HEARTHFS_REMOTE", "bucket")]), None);
    let error = error.expect_err("refused").to_string();
    assert!(error.starts_with("environment HEARTHFS_REMOTE: remote.url = \"bucket\":"), "{error}");
    let error = load(&flags(&[("local.cachesize", "1GiB")]), &around(&[]), None);
    let error = error.expect_err("refused").to_string();
    assert!(error.contains("did you mean \"local.cache_size\""), "{error}");
    let missing = Flags { file: Some("no/such.toml".into()), values: Vec::new() };
    let error = load(&missing, &around(&[]), None).expect_err("refused").to_string();
    assert!(error.contains("/work/here/no/such.toml"), "{error}");
}

#[test]
fn a_wrong_value_is_refused_even_where_another_hides_it() {
    let hidden = around(&[("HEARTHFS_CACHE_SIZE", "lots")]);
    assert!(load(&flags(&[("local.cache_size", "1GiB")]), &hidden, None).is_err());
}

#[test]
fn odd_things_are_warned_about() {
    let odd = around(&[("HEARTHFS_REMOT", "x"), ("HEARTHFS_SOMETHING_ELSE", "x")]);
    let endpoint = flags(&[("remote.endpoint", "http://10.0.0.1:9000")]);
    let warnings = load(&endpoint, &odd, None).expect("good").warnings.join("\n");
    assert!(warnings.contains("HEARTHFS_REMOT is unknown; did you mean HEARTHFS_REMOTE"));
    assert!(!warnings.contains("SOMETHING_ELSE"));
    assert!(warnings.contains("remote.endpoint has no effect"));
    assert!(warnings.contains("not encrypted"));
}

#[test]
fn relative_cache_directories_start_here() {
    let loaded = load(&flags(&[("local.cache_dir", "c")]), &around(&[]), None).expect("good");
    assert_eq!(loaded.settings.local.cache_dir, Path::new("/work/here/c"));
}
