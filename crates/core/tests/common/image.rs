//! Files as a crash leaves them: copies whose identity words are changed, and mixtures of old and new sectors.

#[cfg(unix)]
use std::fs::{File, OpenOptions};
#[cfg(unix)]
use std::os::unix::fs::{FileExt, MetadataExt};
#[cfg(unix)]
use std::path::Path;

use super::Rng;

/// What a disk writes whole.
pub const SECTOR: usize = 512;
/// End of the header, where the first extent starts.
pub const HEADER_BYTES: usize = 131_072;
/// Bytes of one superblock; there are two from offset 0.
pub const SUPERBLOCK_BYTES: usize = 4096;
/// Where the shared-state page starts.
pub const SHARED: usize = 8192;
/// `dirty` in the shared-state page.
pub const DIRTY: usize = SHARED + 128;
/// `settled` in the shared-state page.
pub const SETTLED: usize = SHARED + 140;
/// Boot id, 16 bytes, in the shared-state page.
pub const BOOT: usize = DIRTY + 16;
/// Device and inode, 8 bytes each.
pub const FILE_ID: usize = BOOT + 16;

/// The mount, 8 bytes.
pub const MOUNT: usize = FILE_ID + 16;

const EXTENT_COUNT: usize = SHARED + 64;
const EXTENT_TABLE: usize = 32_768;
const EXTENT_ENTRY: usize = 32;

/// No machine's boot id.
const OTHER_BOOT: [u8; 16] = [0xB7; 16];

/// Makes the last writer's boot another one than this.
pub fn set_other_boot(bytes: &mut [u8]) {
    bytes[BOOT..BOOT + 16].copy_from_slice(&OTHER_BOOT);
}

/// Makes a file one that another machine wrote, or this one before its last start.
#[cfg(unix)]
pub fn move_to_other_boot(path: &Path) {
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(&OTHER_BOOT, BOOT as u64).unwrap();
}

/// Makes a file one that was open for writing when its machine crashed.
#[cfg(unix)]
pub fn crash_machine(path: &Path) {
    move_to_other_boot(path);
    let dirty = 1u32.to_le_bytes();
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(&dirty, DIRTY as u64).unwrap();
}

/// Makes a file one that was written through another mount of its file system.
#[cfg(unix)]
pub fn move_to_other_mount(path: &Path) {
    let other = 0xFEED_FACE_u64.to_le_bytes();
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(&other, MOUNT as u64).unwrap();
}

/// Writes a file that looks as if it had been written in this boot, under this inode: what a killed process leaves.
#[cfg(unix)]
pub fn write_as_killed(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
    let file = OpenOptions::new().write(true).open(path).unwrap();
    let metadata = file.metadata().unwrap();
    let mut id = [0; 16];
    id[..8].copy_from_slice(&metadata.dev().to_le_bytes());
    id[8..].copy_from_slice(&metadata.ino().to_le_bytes());
    file.write_all_at(&id, FILE_ID as u64).unwrap();
}

/// Reads a file that others may be writing, through the page cache that their maps share. Not through a map of its own:
/// a recovery may cut the file off meanwhile.
#[cfg(unix)]
pub fn read(path: &Path) -> Vec<u8> {
    let file = File::open(path).unwrap();
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    let mut at = 0;
    while at < bytes.len() {
        match file.read_at(&mut bytes[at..], at as u64).unwrap() {
            0 => break,
            n => at += n,
        }
    }
    bytes.truncate(at);
    bytes
}

/// What a power cut may leave: the last synced bytes, with any subset of sectors from later moments.
pub fn power_cut(rng: &mut Rng, synced: &[u8], later: &[&[u8]]) -> Vec<u8> {
    let mut image = synced.to_vec();
    // Few, half or most of the sectors got out; and perhaps the file had grown already.
    let share = *rng.pick(&[0.02, 0.2, 0.5, 0.8, 0.98]);
    let runs = rng.chance(0.3);
    let mut taking = false;
    for copy in later {
        if copy.len() > image.len() && rng.chance(0.7) {
            image.resize(copy.len(), 0);
        }
        let sectors = image.len().min(copy.len()) / SECTOR;
        for sector in 0..sectors {
            let range = sector * SECTOR..(sector + 1) * SECTOR;
            if image[range.clone()] == copy[range.clone()] {
                continue;
            }
            // Single sectors, or runs of neighbours as a kernel writes them out.
            if !runs || rng.chance(0.1) {
                taking = rng.chance(share);
            }
            if taking {
                image[range.clone()].copy_from_slice(&copy[range]);
            }
        }
    }
    image
}

/// A directory for files whose syncs need not reach a disk: crashes are played, not had.
pub fn memory_dir() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.or_else(|_| tempfile::tempdir()).unwrap()
}

/// Such a directory that stays, with what is in it, when its test fails; the test says where.
pub struct Evidence(Option<tempfile::TempDir>);

thread_local! {
    static DISCARD: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// From here on this thread is expected to fail: nothing is kept.
pub fn discard_evidence() {
    DISCARD.set(true);
}

pub fn evidence_dir() -> Evidence {
    Evidence(Some(memory_dir()))
}

impl Evidence {
    pub fn path(&self) -> &Path {
        self.0.as_ref().unwrap().path()
    }
}

impl Drop for Evidence {
    fn drop(&mut self) {
        if std::thread::panicking()
            && !DISCARD.get()
            && let Some(dir) = self.0.take()
        {
            println!("the files are in {}", dir.keep().display());
        }
    }
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    let mut wide = [0; 8];
    wide[..N].copy_from_slice(&bytes[at..at + N]);
    u64::from_le_bytes(wide)
}

/// Where a region lies in a file that starts with these bytes: start and end of each extent, in the order of the region.
pub fn extents(bytes: &[u8], region: usize) -> Vec<(usize, usize)> {
    let entries = (0..number::<4>(bytes, EXTENT_COUNT) as usize).map(|i| EXTENT_TABLE + i * EXTENT_ENTRY);
    entries
        .filter(|at| number::<4>(bytes, at + 16) as usize == region)
        .map(|at| (number::<8>(bytes, at) as usize, number::<8>(bytes, at + 8) as usize))
        .map(|(offset, length)| (offset, offset + length))
        .collect()
}
