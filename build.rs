//! Sets up the link step of a Node addon; nothing else happens at build time.

fn main() {
    napi_build::setup();
}
