//! The sharing tests again, with the same bodies, over each kind of store that is not a directory.

use crate::harness::Cluster;
use crate::{p1, p5, p7, p10, s3};

/// How long the writers and readers of P1 are at it; there are several stores to do.
const LOAD_MS: u64 = 3_000;

/// Makes one test for each store: in this process as S3 and as Google's, and the emulator of Azure.
macro_rules! over_each_store {
    ($name:ident, $test:expr) => {
        mod $name {
            use crate::harness::{Cluster, Io, Options, Store, skipped};

            #[test]
            fn s3() {
                $test(&Cluster::with(Store::s3, &Options::new(Io::best())));
            }

            #[test]
            fn gs() {
                $test(&Cluster::with(Store::gcs, &Options::new(Io::best())));
            }

            #[test]
            fn az() {
                match Store::azure() {
                    Ok(store) => $test(&Cluster::with(|_| store, &Options::new(Io::best()))),
                    Err(reason) => skipped(concat!(module_path!(), "::az"), reason),
                }
            }
        }
    };
}

over_each_store!(clouds_p1_whole_or_nothing, super::torn_reads);
over_each_store!(clouds_p5_in_order, super::p5::in_order);
over_each_store!(clouds_p7_one_winner, super::p7::writes_in_place);
over_each_store!(clouds_p7_one_winner_of_kinds, super::p7::conflicting_kinds);
over_each_store!(clouds_p10_freshness, super::fresh);
over_each_store!(clouds_two_nodes, super::s3::work_of_a_day);
over_each_store!(clouds_abilities_are_shown, super::abilities);

fn torn_reads(cluster: &Cluster) {
    p1::writers_in_place(cluster, LOAD_MS);
}

fn fresh(cluster: &Cluster) {
    p10::changes(&cluster.a, &cluster.b, 1_000 + p10::MARGIN_MS);
}

/// `status --json` says what the store was seen to do.
fn abilities(cluster: &Cluster) {
    let status = cluster.a.status();
    for ability in ["create_if_absent", "delete", "list_at_once"] {
        assert_eq!(status["abilities"][ability].as_bool(), Some(true), "{status}");
    }
}
