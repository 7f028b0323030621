//! One suite of requirements for the remote, run against every kind of store.

#[path = "conformance/abilities.rs"]
mod abilities;
#[path = "conformance/bed.rs"]
mod bed;
#[path = "conformance/credentials.rs"]
mod credentials;
mod stores;

use std::time::Duration;

use bytes::Bytes;
use hearthfs::clock::{self, Clock};
use hearthfs::config::RemoteUrl;
use hearthfs::digest::Digest;
use hearthfs::error::Kind;
use hearthfs::remote::{Environment, Health, Remote, RemoteOptions};
use hearthfs::stamp::NodeId;

use bed::{Bed, commit, file_of, noise, run};
use stores::{Azurite, BUCKET, Dialect, Moto, S3Server};

#[test]
fn remote_conformance_file() {
    let base = tempfile::tempdir().expect("a directory");
    run(Bed::file(base.path()).suite());
}

/// Runs the suite over a server in this process, which counts the actual requests.
fn conformance_of(server: &S3Server, bed: &Bed) {
    run(async {
        bed.suite().await;
        let mut sent = 0;
        let before = server.faults.requests();
        let remote = bed.connect("basic").await;
        remote.list_log(None).await.expect("listed");
        sent += remote.requests().total();
        assert_eq!(server.faults.requests() - before, sent, "every request is counted");
    });
}

#[test]
fn remote_conformance_s3s() {
    let server = S3Server::start();
    conformance_of(&server, &Bed::s3(&server));
}

#[test]
fn remote_conformance_gcs() {
    let server = S3Server::start_as(Dialect::Gcs(stores::Google::default()));
    conformance_of(&server, &Bed::gcs(&server));
}

#[test]
fn remote_conformance_moto() {
    let bed = match Moto::start() {
        Ok(moto) => Bed::moto(moto),
        Err(reason) => return skipped("remote_conformance_moto", &reason),
    };
    run(async {
        bed.suite().await;
        missing_bucket(&bed).await;
    });
}

#[test]
fn remote_conformance_azurite() {
    let bed = match Azurite::start() {
        Ok(azurite) => Bed::azure(azurite),
        Err(reason) => return skipped("remote_conformance_azurite", &reason),
    };
    run(async {
        bed.suite().await;
        missing_bucket(&bed).await;
    });
}

/// Prints in one piece, bypassing the capture of output, that a test could not run.
fn skipped(test: &str, reason: &str) {
    let line = format!("SKIPPED {test}: {reason}\n");
    drop(std::io::Write::write_all(&mut std::io::stderr().lock(), line.as_bytes()));
}

async fn missing_bucket(bed: &Bed) {
    let text = format!("{}/p", bed.url.replace(BUCKET, "no-such-bucket"));
    let url: RemoteUrl = text.parse().expect("a good address");
    let clock = Clock::system();
    let remote = Remote::open_in(&url, &bed.options, clock, NodeId(1), &bed.env).expect("a client");
    let error = remote.check().await.expect_err("no such bucket");
    assert_eq!(error.kind(), Kind::NotFound, "{}", error.chain());
    let (shown, text) = (text, error.chain());
    assert!(text.contains(&shown), "{text}");
    assert!(text.contains("the bucket does not exist"), "{text}");
}

#[test]
fn an_outage_of_a_server_is_short_and_noticed_once() {
    let server = S3Server::start();
    let options = server.options(Duration::from_secs(1));
    let bed = Bed { options, ..Bed::s3(&server) };
    run(async {
        let remote = bed.connect("outage").await;
        remote.put_commit(&commit(1), Bytes::from_static(b"x")).await.expect("written");
        let clock = Clock::system();
        for trouble in ["hang", "down", "errors", "forbid"] {
            let switch = |on: bool| match (trouble, on) {
                ("hang", on) => server.faults.hang(on),
                ("down", true) => server.down(),
                ("down", false) => server.up(),
                ("errors", on) => server.faults.errors(if on { 100 } else { 0 }),
                (_, on) => server.faults.forbid(on),
            };
            // A store that answers gets every request: each may be the first to succeed.
            let answers = matches!(trouble, "errors" | "forbid");
            switch(true);
            let start = clock.mono();
            for _ in 0..20 {
                remote.get_commit(&commit(1)).await.expect_err(trouble);
            }
            // It counts as down when no request has succeeded for a whole deadline.
            while answers && remote.health() == Health::Up {
                remote.get_commit(&commit(1)).await.expect_err(trouble);
                assert!(clock.mono().saturating_sub(start) < Duration::from_secs(6), "{trouble}");
            }
            let took = clock.mono().saturating_sub(start);
            let limit = Duration::from_millis(if answers { 6000 } else { 1900 });
            assert!(took < limit, "{trouble}: {took:?}");
            assert!(matches!(remote.health(), Health::Down { .. }), "{trouble}");
            switch(false);
            let body = remote.background().get_commit(&commit(1)).await.expect("the store is back");
            assert_eq!(body, "x");
            assert_eq!(remote.health(), Health::Up);
        }
        server.faults.errors(30);
        let mut good = 0;
        for _ in 0..40 {
            good += usize::from(remote.background().get_commit(&commit(1)).await.is_ok());
        }
        assert!(good >= 30, "{good}: single errors are retried");
    });
}

#[test]
fn a_shared_directory_that_is_unmounted_is_an_outage_and_not_empty() {
    let base = tempfile::tempdir().expect("a directory");
    let dir = base.path().join("share");
    let url: RemoteUrl = format!("file://{}", dir.display()).parse().expect("a good address");
    let open = || {
        let (options, env) = (RemoteOptions::default(), Environment::default());
        Remote::open_in(&url, &options, Clock::system(), NodeId(1), &env).expect("a handle")
    };
    run(async {
        let remote = open();
        remote.check().await.expect("made");
        remote.put_commit(&commit(1), Bytes::from_static(b"x")).await.expect("written");
        let aside = base.path().join("aside");
        std::fs::rename(&dir, &aside).expect("moved");
        std::fs::create_dir(&dir).expect("a bare mount point");
        let quiet = remote.background();
        for error in [
            quiet.list_log(None).await.expect_err("gone"),
            quiet.get_commit(&commit(1)).await.expect_err("gone"),
            quiet.put_commit(&commit(2), Bytes::from_static(b"x")).await.expect_err("gone"),
        ] {
            assert_eq!(error.kind(), Kind::Unavailable, "{}", error.chain());
        }
        assert!(std::fs::read_dir(&dir).expect("readable").next().is_none(), "nothing is written");
        std::fs::remove_dir(&dir).expect("removed");
        std::fs::rename(&aside, &dir).expect("moved back");
        assert_eq!(quiet.list_log(None).await.expect("listed").len(), 1);
        assert_eq!(remote.health(), Health::Up);
        let lost = base.path().join("a/b");
        let url: RemoteUrl = format!("file://{}", lost.display()).parse().expect("good");
        let (options, env) = (RemoteOptions::default(), Environment::default());
        let far = Remote::open_in(&url, &options, Clock::system(), NodeId(1), &env);
        let error = far.expect("a handle").check().await.expect_err("no parent");
        assert_eq!(error.kind(), Kind::NotFound);
        assert!(error.to_string().contains("mount the shared file system"), "{error}");
    });
}

#[test]
fn uploads_that_fail_leave_no_parts_behind() {
    let server = S3Server::start();
    let bed = Bed::s3(&server);
    run(async {
        let remote = bed.connect("aborts").await;
        let raw = noise(7, 40 << 20);
        let wrong = Digest::of(b"something else");
        let put = remote.put_blob(&wrong, file_of(&raw), raw.len() as u64).await;
        assert_eq!(put.expect_err("a wrong digest").kind(), Kind::Corrupt);
        let digest = Digest::of(&raw);
        server.faults.latency(Duration::from_millis(30));
        let put = remote.put_blob(&digest, file_of(&raw), raw.len() as u64);
        assert!(clock::within(Duration::from_millis(200), put).await.is_none(), "given up");
        server.faults.latency(Duration::ZERO);
        let root = server.bucket_dir().parent().expect("a parent").to_owned();
        let parts = || {
            let names = std::fs::read_dir(&root).expect("readable").flatten();
            names.filter(|e| e.file_name().to_string_lossy().contains("part-")).count()
        };
        for _ in 0..100 {
            if parts() == 0 {
                break;
            }
            clock::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(parts(), 0);
        let file = tempfile::tempfile().expect("a file");
        let got = remote.get_blob(&digest, raw.len() as u64, file).await;
        assert_eq!(got.expect_err("no object").kind(), Kind::NotFound);
    });
}
