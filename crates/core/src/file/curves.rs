//! Where a plane keeps its recall curves: a page of the header with two tables, of which the newer valid one counts.
//!
//! A table is written while the other one stays as it is, and is durable before that one is written again: a crash leaves
//! the curves from before or those from after. Nothing here is needed to read the plane, and nothing is trusted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arc_swap::{ArcSwap, Guard};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::store::Store;
use crate::calibration::{Adaptive, Calibration, EF_CALIBRATED_MAX, K_CALIBRATED_MAX, POINTS_MAX, Point};
use crate::testing::moment;

/// Bytes of one table.
pub const TABLE_BYTES: usize = 2048;
/// Where the first curve starts in a table.
pub const CURVES_AT: usize = 64;
/// Bytes of one curve.
pub const CURVE_BYTES: usize = 384;
/// Curves that a table has room for.
pub const CURVES_MAX: usize = (TABLE_BYTES - CURVES_AT) / CURVE_BYTES;
/// Where the points start in a curve.
const POINTS_AT: usize = 32;
/// Bytes of one point.
const POINT_BYTES: usize = 16;
/// Seed of the checksum: "CALIBR2". Tables with "CALIBR", without factors, were written by builds before the first release.
pub const CHECKSUM_SEED: u64 = 0x43_414C_4942_5232;

const WORDS: usize = TABLE_BYTES / 8;
/// Words of a table outside the curves.
const CHECKSUM: usize = 0;
const SEQUENCE: usize = 1;

/// One table, as it lies in the file.
#[repr(C, align(64))]
pub struct CurveTable([AtomicU64; WORDS]);

const _: () =
    assert!(size_of::<CurveTable>() == TABLE_BYTES && POINTS_AT + POINT_BYTES * POINTS_MAX <= CURVE_BYTES);

/// The curves as they were last read, for all handles of this process on a file.
#[derive(Default)]
pub struct Curves {
    cached: ArcSwap<Cached>,
    /// Writers of this process are alone with the tables.
    writing: Mutex<()>,
}

/// Curves, by ascending k, and which tables they were read from.
#[derive(Default)]
pub struct Cached {
    sequences: [u64; 2],
    pub curves: Vec<Calibration>,
}

impl Curves {
    /// The curves that count now, whichever process wrote them: two loads when they are known already.
    pub fn get(&self, store: &Store) -> Guard<Arc<Cached>> {
        let now = sequences(store);
        let cached = self.cached.load();
        if cached.sequences == now {
            return cached;
        }
        // What a writer changes meanwhile gets another number, and is read again by the next one to look.
        self.cached.store(Arc::new(Cached { sequences: now, curves: read(store) }));
        self.cached.load()
    }

    /// Adds a curve, in the place of an earlier one for its k; when the table is full the oldest goes, by the plane's age.
    /// The caller has the writer's turn, and syncs.
    pub fn put(&self, store: &Store, curve: Calibration) {
        let _writing = self.writing.lock().unwrap_or_else(|e| e.into_inner());
        let mut curves = read(store);
        curves.retain(|other| other.k != curve.k);
        if curves.len() == CURVES_MAX
            && let Some(oldest) = (0..curves.len()).min_by_key(|i| curves[*i].churn)
        {
            curves.remove(oldest);
        }
        let at = curves.partition_point(|other| other.k < curve.k);
        curves.insert(at, curve);
        write(store, &curves);
    }
}

/// The tables' sequence numbers: as long as they stay the same, so do the curves.
fn sequences(store: &Store) -> [u64; 2] {
    store.curve_tables().each_ref().map(|table| table.0[SEQUENCE].load(Ordering::Acquire))
}

/// The curves that count, by ascending k; none where there are none, or where the bytes are not those that were written.
fn read(store: &Store) -> Vec<Calibration> {
    newest(store).map_or(Vec::new(), |(_, _, bytes)| decode(&bytes).unwrap_or_default())
}

/// Gives a new plane the curves of the one that it is made of. Nobody else knows of the new one.
pub fn copy(source: &Store, target: &Store) {
    let curves = read(source);
    if !curves.is_empty() {
        write(target, &curves);
    }
}

/// Puts these curves, at most `CURVES_MAX`, in the place of those that counted. The caller has the writer's turn, is alone
/// with the tables, and syncs afterwards.
fn write(store: &Store, curves: &[Calibration]) {
    let (at, sequence) = newest(store).map_or((0, 1), |(at, sequence, _)| (1 - at, sequence + 1));
    let table = &store.curve_tables()[at];
    let mut bytes = encode(curves, sequence);
    let sum = checksum(&bytes, store.uuid());
    bytes[..8].copy_from_slice(&sum.to_le_bytes());
    // Whoever reads meanwhile finds neither the number nor the checksum of a table.
    table.0[SEQUENCE].store(0, Ordering::SeqCst);
    for (i, (word, bytes)) in table.0.iter().zip(bytes.as_chunks::<8>().0).enumerate() {
        if i != SEQUENCE {
            word.store(u64::from_le_bytes(*bytes), Ordering::Release);
        }
        if i % 64 == 0 {
            moment();
        }
    }
    table.0[SEQUENCE].store(sequence, Ordering::SeqCst);
    moment();
}

/// The valid table with the higher sequence number: which of the two, that number, its bytes.
fn newest(store: &Store) -> Option<(usize, u64, [u8; TABLE_BYTES])> {
    let tables = store.curve_tables().iter().enumerate().filter_map(|(at, table)| {
        let mut bytes = [0; TABLE_BYTES];
        for (word, out) in table.0.iter().zip(bytes.as_chunks_mut::<8>().0) {
            *out = word.load(Ordering::Acquire).to_le_bytes();
        }
        let sequence = u64_at(&bytes, 8 * SEQUENCE);
        let whole = sequence != 0
            && sequence < u64::MAX
            && checksum(&bytes, store.uuid()) == u64_at(&bytes, 8 * CHECKSUM)
            && decode(&bytes).is_some();
        whole.then_some((at, sequence, bytes))
    });
    tables.max_by_key(|(_, sequence, _)| *sequence)
}

/// Over all of a table but the checksum itself, and the uuid, so that a table of another plane is none.
fn checksum(bytes: &[u8; TABLE_BYTES], uuid: &[u8; 16]) -> u64 {
    let mut covered = bytes[8..].to_vec();
    covered.extend(uuid);
    xxh3_64_with_seed(&covered, CHECKSUM_SEED)
}

fn encode(curves: &[Calibration], sequence: u64) -> [u8; TABLE_BYTES] {
    let mut out = [0; TABLE_BYTES];
    let curves = &curves[..curves.len().min(CURVES_MAX)];
    out[8..16].copy_from_slice(&sequence.to_le_bytes());
    out[16..20].copy_from_slice(&(curves.len() as u32).to_le_bytes());
    for (curve, out) in curves.iter().zip(out[CURVES_AT..].chunks_mut(CURVE_BYTES)) {
        let points = &curve.points[..curve.points.len().min(POINTS_MAX)];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &(curve.k as u32).to_le_bytes());
        put(4, &(curve.samples as u32).to_le_bytes());
        put(8, &curve.count.to_le_bytes());
        put(16, &curve.churn.to_le_bytes());
        put(24, &(points.len() as u32).to_le_bytes());
        put(28, &(curve.spread as f32).to_le_bytes());
        for (i, point) in points.iter().enumerate() {
            let at = POINTS_AT + POINT_BYTES * i;
            put(at, &(point.ef as u32).to_le_bytes());
            put(at + 4, &(point.recall as f32).to_le_bytes());
            if let Some(adaptive) = point.adaptive {
                put(at + 8, &adaptive.factor.to_le_bytes());
                put(at + 12, &(adaptive.recall as f32).to_le_bytes());
            }
        }
    }
    out
}

/// `None` where a value is outside its range.
fn decode(bytes: &[u8; TABLE_BYTES]) -> Option<Vec<Calibration>> {
    let count = u32_at(bytes, 16) as usize;
    if count > CURVES_MAX {
        return None;
    }
    let curves: Option<Vec<_>> =
        bytes[CURVES_AT..].chunks(CURVE_BYTES).take(count).map(decode_curve).collect();
    curves.filter(|curves| curves.is_sorted_by(|a, b| a.k < b.k))
}

fn decode_curve(bytes: &[u8]) -> Option<Calibration> {
    let float = |at| f64::from(f32::from_bits(u32_at(bytes, at)));
    let (k, samples) = (u32_at(bytes, 0) as usize, u32_at(bytes, 4) as usize);
    let (points, spread) = (u32_at(bytes, 24) as usize, float(28));
    if !(1..=K_CALIBRATED_MAX).contains(&k) || samples == 0 || !(1..=POINTS_MAX).contains(&points) {
        return None;
    }
    let point = |at: usize| {
        let adaptive = Adaptive { factor: float(at + 8) as f32, recall: float(at + 12) };
        let ef = u32_at(bytes, at) as usize;
        Point { ef, recall: float(at + 4), adaptive: (adaptive.factor != 0.0).then_some(adaptive) }
    };
    let points: Vec<Point> = (0..points).map(|i| point(POINTS_AT + POINT_BYTES * i)).collect();
    let is_recall = |recall: f64| (0.0..=1.0).contains(&recall);
    let is_factor = |factor: f32| factor >= 1.0 && factor.is_finite();
    let is_sound = |point: &Point| {
        (k..=EF_CALIBRATED_MAX).contains(&point.ef)
            && is_recall(point.recall)
            && point.adaptive.is_none_or(|adaptive| is_factor(adaptive.factor) && is_recall(adaptive.recall))
    };
    // Of all points or of none.
    let adaptive = |point: &Point| point.adaptive.map(|adaptive| (adaptive.factor, adaptive.recall));
    let ascend = |a: &Point, b: &Point| {
        let both_ascend = match (adaptive(a), adaptive(b)) {
            (Some(a), Some(b)) => a.0 <= b.0 && a.1 <= b.1,
            (a, b) => a.is_none() && b.is_none(),
        };
        a.ef < b.ef && a.recall <= b.recall && both_ascend
    };
    let sound =
        points.iter().all(is_sound) && points.is_sorted_by(ascend) && (0.0..=k as f64).contains(&spread);
    let (count, churn) = (u64_at(bytes, 8), u64_at(bytes, 16));
    sound.then_some(Calibration { k, samples, count, stale: false, churn, spread, points })
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
