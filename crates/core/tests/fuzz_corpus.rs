//! Inputs that the fuzz targets of `fuzz/` have found, those that once did harm among them, replayed. Children do it, so that
//! an end by a signal, or a hang, is seen as the failure it is.

#![cfg(unix)]

mod common;
#[path = "../../../fuzz/damage.rs"]
mod damage;

use std::path::{Path, PathBuf};
use std::time::Duration;

use common::child::{self, argument, expect_done, spawn};

fn corpus(target: &str) -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut inputs: Vec<PathBuf> =
        std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    inputs.sort();
    inputs
}

#[test]
fn child_process() {
    let Some(role) = child::role() else { return };
    for input in corpus(&role) {
        // Says which one it was, should it be the last.
        println!("{}", input.display());
        let bytes = std::fs::read(&input).unwrap();
        damage::open(&bytes);
        damage::open_and_use(&bytes);
    }
    // The files of the process go with it.
    std::fs::remove_dir_all(argument(0).replace("{}", &std::process::id().to_string())).unwrap();
}

fn replay(target: &str) {
    let inputs = corpus(target).len();
    assert!(inputs >= 8, "{inputs} inputs");
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
    let files = parent.join("vecplane-fuzz-{}");
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let child = spawn(target, &[files.to_str().unwrap()], &out);
    expect_done(child, Duration::from_secs(120), &out);
    println!("{inputs} inputs");
}

#[test]
fn inputs_found_by_fuzzing_the_opener_do_no_harm() {
    replay("open");
}

#[test]
fn inputs_found_by_fuzzing_use_do_no_harm() {
    replay("use");
}
