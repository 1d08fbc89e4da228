//! Any bytes give a plane or an error with a code: opening for reading, for writing, twice.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../damage.rs"]
mod damage;

fuzz_target!(|input: &[u8]| damage::open(input));
