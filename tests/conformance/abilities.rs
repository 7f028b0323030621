//! A store is tried before it is trusted: missing abilities are found, whatever the store answers.

use hearthfs::error::Kind;
use hearthfs::remote::StoreAbilities;

use crate::bed::{ABLE, Bed, commit, run};
use crate::stores::{Dialect, Google, S3Server, Unable, environment_of};

/// Runs a check on both servers that can be made to fail.
fn each(check: impl Fn(&S3Server, &Bed)) {
    let server = S3Server::start_as(Dialect::Open);
    let env = environment_of(&[("AWS_SKIP_SIGNATURE", "true")]);
    check(&server, &Bed { env, ..Bed::s3(&server) });
    let server = S3Server::start_as(Dialect::Gcs(Google::default()));
    check(&server, &Bed::gcs(&server));
}

#[test]
fn abilities_that_are_needed_are_a_refusal_when_they_are_missing() {
    each(|server, bed| {
        run(async {
            for (unable, says) in [
                (Unable::Keep, "an object that was just written is not found"),
                (Unable::Overwrite, "other bytes than were just written"),
                (Unable::ReadParts, "parts of objects cannot be read"),
            ] {
                let prefix = format!("{unable:?}");
                // The store already has our format; otherwise the first ability would not be reached.
                bed.connect(&prefix).await;
                server.faults.unable(Some(unable));
                let remote = bed.open(&prefix);
                let error = remote.check().await.expect_err(says);
                assert_eq!(error.kind(), Kind::Invalid, "{}", error.chain());
                let (text, url) = (error.chain(), bed.url(&prefix).to_string());
                assert!(text.contains(says) && text.contains(&url), "{text}");
                assert!(text.contains("use another server"), "{text}");
                server.faults.unable(None);
                // An unfit store is not used, even if this was found while mounted.
                let before = server.faults.requests();
                let put = remote.put_commit(&commit(1), "x".into()).await.expect_err("unfit");
                assert_eq!(put.kind(), Kind::Invalid);
                assert_eq!(server.faults.requests(), before);
            }
        });
    });
}

#[test]
fn abilities_that_are_not_needed_are_noted_and_done_without() {
    each(|server, bed| {
        run(async {
            for (unable, found) in [
                (Unable::HeedConditions, StoreAbilities { create_if_absent: Some(false), ..ABLE }),
                (Unable::Decide, StoreAbilities { create_if_absent: None, ..ABLE }),
                (Unable::Delete, StoreAbilities { delete: false, ..ABLE }),
                (Unable::Hurry, ABLE),
                (Unable::List, StoreAbilities { list_at_once: false, ..ABLE }),
            ] {
                // The store already has our format, whose creation needs a condition.
                bed.connect(&format!("{unable:?}")).await;
                server.faults.unable(Some(unable));
                let remote = bed.open(&format!("{unable:?}"));
                remote.check().await.expect("usable");
                assert_eq!(remote.abilities(), Some(found));
                server.faults.unable(None);
                remote.put_commit(&commit(1), "x".into()).await.expect("written");
                assert_eq!(remote.list_log(None).await.expect("listed").len(), 1);
            }
        });
    });
}

/// A broken connection says nothing about the store.
#[test]
fn abilities_are_not_judged_by_outages() {
    let server = S3Server::start();
    let bed = Bed::s3(&server);
    run(async {
        bed.connect("outage").await;
        server.faults.errors(100);
        let remote = bed.open("outage");
        let error = remote.check().await.expect_err("down");
        assert_eq!(error.kind(), Kind::Unavailable, "{}", error.chain());
        assert_eq!((remote.abilities(), remote.unfit()), (None, None));
        server.faults.errors(0);
        remote.check().await.expect("up");
        assert_eq!(remote.abilities(), Some(ABLE));
    });
}
