use super::*;

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
        let place = Place::find("bkt", options, &env(&all)).expect("a place");
        (place.endpoint.unwrap_or_default(), place.region, place.virtual_host)
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
    let amazon = Place::find("bkt", &plain, &env(&[])).expect("a place");
    assert_eq!((amazon.endpoint, amazon.virtual_host), (None, true));
    assert!(!Place::find("b.kt", &plain, &env(&[])).expect("a place").virtual_host);
}

#[test]
fn bad_endpoints_are_refused_with_value() {
    for (text, says) in [
        ("127.0.0.1:9000", "is not a URL"),
        ("minio:9000", "is neither http nor https"),
        ("ftp://x", "is neither http nor https"),
        ("http://x/?a", "holds `?`"),
    ] {
        let error = endpoint_of(text, "bkt", true).expect_err(text);
        assert_eq!(error.kind(), Kind::Invalid);
        let text_of = error.to_string();
        assert!(text_of.contains(says) && text_of.contains(text), "{text_of}");
    }
    let error = endpoint_of("http://key:secret@x", "bkt", true).expect_err("refused").to_string();
    assert!(!error.contains("secret"), "{error}");
}

#[test]
fn clients_are_made_without_a_network() {
    let meter = Arc::new(Meter::default());
    let keys = env(&[("AWS_ACCESS_KEY_ID", "AK"), ("AWS_SECRET_ACCESS_KEY", "SK")]);
    s3("bkt", &RemoteOptions::default(), &keys, &meter).expect("a client with TLS");
    let half = env(&[("AWS_ACCESS_KEY_ID", "AK")]);
    let error = s3("bkt", &RemoteOptions::default(), &half, &meter).expect_err("half a credential");
    assert_eq!(error.kind(), Kind::Invalid);
    let asked = env(&[("AWS_PROFILE", "nobody"), ("HOME", "/nonexistent")]);
    let error = s3("bkt", &RemoteOptions::default(), &asked, &meter).expect_err("no such profile");
    assert_eq!(error.kind(), Kind::Denied);
}

#[test]
fn secrets_are_not_printed() {
    let keys = env(&[("AWS_SECRET_ACCESS_KEY", "hidden"), ("PATH", "x"), ("HOME", "/h")]);
    assert_eq!(format!("{keys:?}"), "{\"AWS_SECRET_ACCESS_KEY\", \"HOME\"}");
}
