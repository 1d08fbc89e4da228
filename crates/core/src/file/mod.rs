//! The file: its format, and what an open one offers.
//!
//! | file | responsibility |
//! |---|---|
//! | `layout.rs` | where everything lies; record sizes that follow from a configuration |
//! | `header.rs` | superblocks: written at commits, checked at open |
//! | `shared.rs` | words that running processes share, outside all checksums |
//! | `curves.rs` | recall curves: a page of the header, outside the commits |
//! | `extents.rs` | the table of extents |
//! | `identity.rs` | boot, device and inode: machine crash or mere process death |
//! | `addresses.rs` | how much of the process's address space a plane reserves |
//! | `store.rs` | an open file: typed views of its parts, growth |
//!
//! `store` builds on `storage` (system calls) and `map` (addresses); nothing here knows of graphs.

mod addresses;
pub mod curves;
#[cfg(test)]
mod document;
pub mod extents;
pub mod header;
pub mod identity;
pub mod layout;
pub mod shared;
pub mod store;
