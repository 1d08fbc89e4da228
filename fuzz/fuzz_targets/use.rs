//! What opened can be searched, verified and written to, whatever its bytes are.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../damage.rs"]
mod damage;

fuzz_target!(|input: &[u8]| damage::open_and_use(input));
