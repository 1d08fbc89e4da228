//! Graphs of as few links as the options allow, built with as little care.
#![cfg(target_os = "linux")]

mod common;

use common::clock::thread_us;
use common::{Rng, check_verified};
use vecplane_core::{CreateOptions, Plane, Rerank};

/// With two links a node and a beam of one, most newcomers find no neighbour with a link to spare. Finding them a place must
/// not cost a look at all the others.
#[test]
fn inserts_into_the_sparsest_graph_take_as_long_in_a_large_plane_as_in_a_small_one() {
    const HALF: usize = 15_000;
    let mut rng = Rng::for_test("inserts_into_the_sparsest_graph");
    let dir = tempfile::tempdir().unwrap();
    let options = CreateOptions {
        m: 2,
        layer0_cap: 2,
        ef_construction: 1,
        rerank: Rerank::None,
        ..CreateOptions::new(8)
    };
    let plane = Plane::create(&dir.path().join("plane"), &options).unwrap();
    let mut halves = [0.0; 2];
    for half in &mut halves {
        let before = thread_us();
        for _ in 0..HALF {
            plane.insert(&rng.gaussian(8), b"").unwrap();
        }
        *half = thread_us() - before;
    }
    println!("{HALF} inserts took {:.2} s, {HALF} more {:.2} s", halves[0], halves[1]);
    // Three times as long, if each looked at all.
    assert!(halves[1] < 2.0 * halves[0], "{halves:?}");
    check_verified(&plane);
}
