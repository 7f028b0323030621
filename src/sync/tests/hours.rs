//! P13: how many requests a node sends to the store in an hour, in virtual time.

use std::time::Duration;

use super::harness::*;
use crate::remote::Requests;

/// The step by which time advances.
const STEP: Duration = Duration::from_millis(100);
/// The simulated time; an hour is ten times as much.
const TENTH_OF_AN_HOUR: u32 = 6 * 600;

/// Runs a node for six minutes over a store whose requests take 20 ms. Another node has written
/// something before. `each` is called every 100 ms. Returns the node's requests per hour.
async fn hour(each: impl AsyncFn(&Node, u32)) -> Requests {
    let world = World::new();
    let mut other = world.node();
    other.send("there", b"before").await;
    let node = world.node();
    node.fail("latency_ms=20");
    node.engine.start();
    assert!(node.engine.follower().wait_fresh(DEADLINE).await);
    for _ in 0..300 {
        world.clock.advance(STEP);
        crate::clock::sleep(STEP).await;
    }
    let before = node.remote().requests();
    for n in 0..TENTH_OF_AN_HOUR {
        each(&node, n).await;
        world.clock.advance(STEP);
        crate::clock::sleep(STEP).await;
    }
    let after = node.remote().requests();
    node.engine.stop().await;
    Requests {
        puts: (after.puts - before.puts) * 10,
        gets: (after.gets - before.gets) * 10,
        lists: (after.lists - before.lists) * 10,
        deletes: (after.deletes - before.deletes) * 10,
        ..Requests::default()
    }
}

/// Looks a name up, as the mount does.
async fn look_up(node: &Node) {
    let freshness = node.engine.follower().freshness();
    freshness.note_activity();
    if !freshness.ready() {
        assert!(freshness.wait_fresh(DEADLINE).await);
    }
}

#[test]
fn p13_bounded_requests_in_an_hour() {
    run(async {
        let idle = hour(async |_, _| ()).await;
        let missing = hour(async |node, _| look_up(node).await).await;
        let rare = hour(async |node, n| {
            if n % 600 == 0 {
                look_up(node).await;
            }
        })
        .await;
        let writing = hour(async |node, n| {
            if n % 10 == 0 {
                look_up(node).await;
                node.write(&format!("{n}"), &content(u64::from(n), 9000));
            }
        })
        .await;
        assert_eq!(idle.total(), 0, "{idle:?}");
        // The head of the log once per window, while programs make requests and for ten seconds
        // more, and a list every ten minutes.
        assert!((3_900..=4_300).contains(&missing.gets) && missing.lists <= 20, "{missing:?}");
        assert!(rare.gets <= 60 * 13 && rare.lists <= 20, "{rare:?}");
        // A pack, a commit and a head for each file; what the check before an upload looks for is
        // mostly known.
        assert!(writing.puts <= 3 * 3_600 + 200 && writing.lists <= 200, "{writing:?}");
    });
}
