//! The sharing tests again, with two mounts and the same bodies, over each kind of store that is
//! not a directory.
//!
//! Each test here is the body of a test of its promise, which itself runs over `file://`. Left out are:
//!
//! - P8, and P5 over a failing store: the store must fail on command, which only a directory and the
//!   server in this process can do. Over a directory and over S3 they are in `p8.rs` and `p5.rs`.
//! - P9 and tests that remove the log, over Azure: Azurite gives no access to its objects, so they
//!   cannot be damaged. These tests run over the two servers whose objects are files.
//! - Tests of a node's own disk (P9 there, the loss of its index, the limits of P13) and P2 without
//!   another node: they do not use the store.
//! - P11, which is not about sharing: `rules_rgw_*` has a server that deletes by age.

use crate::harness::{Cluster, Io, Options};
use crate::{checkpoints, p1, p2, p3, p4, p5, p7, p9, p10, p12, p13, s3};

/// How long the writers and readers of P1 run; there are several stores to test.
const LOAD_MS: u64 = 3_000;
/// How many times a node is killed; there are several stores to test.
const KILLS: u64 = 15;

fn plain() -> Options {
    Options::new(Io::best())
}

/// Makes one test for each server whose objects are files: in this process as S3 and as Google's.
/// Further tests of the module may follow.
macro_rules! over_each_server {
    ($name:ident, $options:expr, $test:expr $(, $more:item)?) => {
        mod $name {
            use super::*;
            use crate::harness::Store;

            #[test]
            fn s3() {
                $test(&mut Cluster::with(Store::s3, &$options));
            }

            #[test]
            fn gs() {
                $test(&mut Cluster::with(Store::gcs, &$options));
            }
            $($more)?
        }
    };
}

/// Makes one test for each kind of store: those two, and the emulator of Azure.
macro_rules! over_each_store {
    ($name:ident, $options:expr, $test:expr) => {
        over_each_server!(
            $name,
            $options,
            $test,
            #[test]
            fn az() {
                match Store::azure() {
                    Ok(store) => $test(&mut Cluster::with(|_| store, &$options)),
                    Err(reason) => {
                        crate::harness::skipped(concat!(module_path!(), "::az"), reason);
                    }
                }
            }
        );
    };
}

over_each_store!(clouds_p1_whole_or_nothing, plain(), torn_reads);
over_each_store!(clouds_p1_slow_readers, plain(), p1::slow_readers);
over_each_store!(clouds_p1_half_written, plain(), p1::half_written);
over_each_store!(clouds_p1_guests, plain(), p1::guests);
over_each_store!(clouds_p2_over_an_old_version, plain(), p2::over_an_old_version);
over_each_store!(clouds_p3_replaced, plain(), p3::replaced);
over_each_store!(clouds_p3_evicted, plain().cache_size(p3::TIER), p3::evicted);
over_each_store!(clouds_p4_at_the_close, plain(), p4::at_the_close);
over_each_store!(clouds_p4_nothing_half, plain(), p4::nothing_half);
over_each_store!(clouds_p4_kills, plain(), kills);
over_each_store!(clouds_p5_in_order, plain(), p5::in_order);
over_each_store!(clouds_p5_restarts, plain(), p5::restarts);
over_each_store!(clouds_p7_writes_in_place, plain(), p7::writes_in_place);
over_each_store!(clouds_p7_renames, plain(), p7::renames);
over_each_store!(clouds_p7_conflicting_kinds, plain(), p7::conflicting_kinds);
over_each_server!(clouds_p9_damaged_packs, plain(), p9::damaged_packs);
over_each_server!(clouds_p9_damaged_blob_objects, plain(), p9::damaged_blob_objects);
over_each_server!(clouds_p9_damaged_commits, plain(), p9::damaged_commits);
over_each_store!(clouds_p10_a_second, plain(), p10::a_second);
over_each_store!(clouds_p10_zero, plain().freshness("0s"), p10::zero);
over_each_store!(clouds_p10_missed_before, plain().alone(), p10::missed_before);
over_each_store!(clouds_p10_one_question, plain().alone(), p10::one_question);
over_each_store!(clouds_p12_under_load, plain(), p12::under_load);
over_each_server!(clouds_p12_clean_store, plain(), p12::clean_store);
over_each_store!(clouds_p12_many_names, plain(), p12::many_names);
over_each_store!(clouds_p12_times, plain(), p12::times);
over_each_store!(clouds_p13_many_open, plain(), p13::many_open);
over_each_server!(clouds_checkpoints, checkpoints::options(Io::best()), without_the_log);
over_each_store!(clouds_two_nodes, plain(), s3::work_of_a_day);
over_each_store!(clouds_abilities_are_shown, plain(), abilities);

fn torn_reads(cluster: &Cluster) {
    p1::writers_in_place(cluster, LOAD_MS);
}

fn kills(cluster: &mut Cluster) {
    p4::kills(cluster, KILLS);
}

fn without_the_log(cluster: &Cluster) {
    checkpoints::without_the_log(cluster, Io::best());
}

/// `status --json` shows the abilities of the store.
fn abilities(cluster: &Cluster) {
    let status = cluster.a.status();
    for ability in ["create_if_absent", "delete", "list_at_once"] {
        assert_eq!(status["abilities"][ability].as_bool(), Some(true), "{status}");
    }
}
