//! Distance kernels, chosen once for the processor at hand.
//!
//! | file | responsibility |
//! |---|---|
//! | `mod.rs` | the kernel table, its dispatch, prefetching |
//! | `query.rs` | a query, or a node in the role of one, laid out for the kernels |
//! | `exact.rs` | final distances, from exact copies or from decoded codes |
//! | `scalar.rs` | the definition of every kernel, which the others are tested against |
//! | `x86_64/`, `aarch64.rs` | the same in vector instructions |
//!
//! A kernel scores a batch of rows against one query. Rows are what a record stores:
//!
//! | row | bytes a component | content |
//! |---|---|---|
//! | int8 | 1 | the code, -127 to 127, plus 128 (biased, as `vpdpbusd` wants one side unsigned) |
//! | int16 | 2 | the code, -32,767 to 32,767 |
//! | f16 | 2 | IEEE half |
//! | f32 | 4 | IEEE single |
//! | sketch | 1/8 | a level, 0 or 1, by blocks of 128 components: see `sketch.rs` |
//!
//! The byte after a row's last component belongs to another field, which another thread may be changing: **no kernel
//! reads past the last component**, not even into a lane that it then ignores.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod exact;
mod query;
mod scalar;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use std::sync::OnceLock;

pub use exact::{CodeRow, ExactQuery, ExactRow};
pub use query::{Query, Screen};

/// Scores `rows` against `query`: `dots[i]` becomes the result for `rows[i]`.
///
/// # Safety
/// - Every row is readable for as many components of the kernel's row format as the query has: `code_count()` for
///   `dot_int8`, `codes().len()` for sketches, `values().len()` for the others. No alignment is asked for.
/// - Nobody writes those components during the call, or the caller discards the results when somebody did.
/// - The processor has the features of the table that the kernel was taken from, which `kernels` and `available` see to.
///
/// # Panics
/// When `dots` is shorter than `rows`.
pub type DotRows = unsafe fn(query: &Query, rows: &[*const u8], dots: &mut [f32]);

/// One implementation of every kernel.
///
/// Integer dots are exact in every table and rounded once, to f32. Float dots add at least 16 partial sums, so their
/// error is at most `(dims / 16 + 16) * 2^-24 * sum |q_i * v_i|`: at 65,536 components 2.5e-4 of that sum if every
/// rounding went the same way, and far less in practice. Squared distances are within the same bound of themselves.
pub struct Kernels {
    /// `scalar`, `avx2`, `avxvnni`, `avx512`, `neon` or `neon-dotprod`.
    pub name: &'static str,
    /// i8 query codes x int8 rows: the integer dot of the codes.
    pub dot_int8: DotRows,
    /// i8 query codes x levels of sketches: the integer dot.
    pub dot_sketch: DotRows,
    /// f32 query values x int8 rows, in code units.
    pub dot_int8_values: DotRows,
    /// f32 query values x int16 rows, in code units.
    pub dot_int16: DotRows,
    /// f32 query values x f16 rows.
    pub dot_f16: DotRows,
    /// f32 query values x f32 rows.
    pub dot_f32: DotRows,
    /// Squared Euclidean distance of f32 query values from f32 rows.
    pub l2_f32: DotRows,
    /// Squared Euclidean distance of f32 query values from f16 rows.
    pub l2_f16: DotRows,
    /// Copies an int8 row's codes, bias removed, and returns their sum. Safety: as `DotRows`, with `codes.len()`
    /// components.
    pub load_int8: unsafe fn(row: *const u8, codes: &mut [i8]) -> i32,
    /// Copies an int16 row as floats, in code units. Safety: as `load_int8`.
    pub load_int16: unsafe fn(row: *const u8, values: &mut [f32]),
    /// Copies an f16 row as floats. Safety: as `load_int8`.
    pub load_f16: unsafe fn(row: *const u8, values: &mut [f32]),
}

/// The best table for this processor, or the one that `VECPLANE_KERNELS` names where this processor can run it.
/// Decided on the first call.
pub fn kernels() -> &'static Kernels {
    static CHOSEN: OnceLock<&'static Kernels> = OnceLock::new();
    CHOSEN.get_or_init(|| choose(&std::env::var("VECPLANE_KERNELS").unwrap_or_default()))
}

fn choose(name: &str) -> &'static Kernels {
    let available = available();
    let named = available.iter().find(|kernels| kernels.name == name);
    named.or(available.last()).copied().unwrap_or(scalar())
}

/// The definition of every kernel: slow, and accurate.
pub fn scalar() -> &'static Kernels {
    &scalar::KERNELS
}

/// Every table that this processor can run, worst first.
pub fn available() -> Vec<&'static Kernels> {
    #[allow(unused_mut)] // Other architectures have the scalar table only.
    let mut available = vec![scalar()];
    #[cfg(target_arch = "x86_64")]
    {
        use x86_64::{avx2, avx512};
        let tables = [
            (avx2::detected(), &avx2::KERNELS),
            (avx2::detected_vnni(), &avx2::KERNELS_VNNI),
            (avx512::detected(), &avx512::KERNELS),
        ];
        available.extend(tables.iter().filter(|(detected, _)| *detected).map(|(_, kernels)| *kernels));
    }
    #[cfg(target_arch = "aarch64")]
    {
        available.push(&aarch64::KERNELS);
        if aarch64::detected_dotprod() {
            available.push(&aarch64::KERNELS_DOTPROD);
        }
    }
    available
}

/// Asks for the cache line at `line`. A hint: any address will do, mapped or not.
#[inline(always)]
pub fn prefetch(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, and SSE belongs to every x86-64.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch never faults and changes neither memory, stack nor flags.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{line}]", line = in(reg) line, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = line;
}
