//! Planes open in this process: handles on the same file share one mapping, one set of locks, one reader entry.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use crate::engine::{Engine, lock};
use crate::error::{Error, Result};
use crate::file::header::Superblock;
use crate::file::layout::{HEADER_BYTES, SUPERBLOCK_BYTES};
use crate::file::store::Store;
use crate::recover::Progress;
use crate::storage::{Faults, FileId, Storage};

/// How often in a row a path may turn out to have got another file just now.
const OPENS_MAX: usize = 64;

type Key = (FileId, bool);

fn planes() -> &'static Mutex<HashMap<Key, Weak<Engine>>> {
    static PLANES: OnceLock<Mutex<HashMap<Key, Weak<Engine>>>> = OnceLock::new();
    PLANES.get_or_init(Mutex::default)
}

/// Opens a plane, or shares the one that this process has open on the same file.
pub fn open(
    path: &Path,
    read_only: bool,
    timeout: Duration,
    progress: &Progress<'_>,
    faults: Option<Arc<dyn Faults>>,
) -> Result<Arc<Engine>> {
    for _ in 0..OPENS_MAX {
        match open_now(path, read_only, timeout, progress, faults.clone()) {
            // A compaction put another file there meanwhile.
            Err(Error::Superseded { .. }) => {}
            result => return result,
        }
    }
    Err(Error::Superseded { path: path.to_path_buf() })
}

fn open_now(
    path: &Path,
    read_only: bool,
    timeout: Duration,
    progress: &Progress<'_>,
    faults: Option<Arc<dyn Faults>>,
) -> Result<Arc<Engine>> {
    let storage = Storage::open(path, read_only, faults)?;
    let key = (storage.file_id()?, read_only);
    // One whose file was replaced at the path it came from stays stale, though the file may have other names.
    let current = |engine: &Arc<Engine>| engine.check_current().is_ok() && !engine.is_superseded();
    if let Some(engine) = lock(planes()).get(&key).and_then(Weak::upgrade).filter(current) {
        return Ok(engine);
    }
    // Without the registry's lock: recovery may take long, and other planes should not wait for it.
    let engine = open_storage(storage, timeout, progress)?;
    if Storage::open(path, true, None)?.file_id()? != key.0 {
        // Another file came to be there before the engine had read the words that would have told of it.
        return Err(Error::Superseded { path: path.to_path_buf() });
    }
    let mut planes = lock(planes());
    planes.retain(|_, engine| engine.strong_count() > 0);
    if let Some(other) = planes.get(&key).and_then(Weak::upgrade).filter(current) {
        return Ok(other);
    }
    let engine = Arc::new(engine);
    planes.insert(key, Arc::downgrade(&engine));
    Ok(engine)
}

fn open_storage(storage: Storage, timeout: Duration, progress: &Progress<'_>) -> Result<Engine> {
    let bytes = storage.len()?;
    if bytes < HEADER_BYTES as u64 {
        let start = storage.read_header(bytes.min(8) as usize)?;
        return Err(match crate::file::layout::MAGIC.starts_with(&start) && !start.is_empty() {
            true => Error::Truncated { bytes, expected: HEADER_BYTES as u64 },
            false if bytes == 0 => {
                Error::NotAPlane { path: storage.path().to_path_buf(), reason: "the file is empty" }
            }
            false => Error::NotAPlane {
                path: storage.path().to_path_buf(),
                reason: "its first bytes are not a plane's",
            },
        });
    }
    let header = storage.read_header(2 * SUPERBLOCK_BYTES)?;
    let (superblock, slot) = Superblock::choose(&header, storage.path())?;
    let nodes = u64::from(superblock.commit.id_high_water);
    let store = Store::new(storage, superblock.config.clone(), superblock.uuid, nodes)?;
    let engine = Engine::new(store, superblock, slot)?;
    engine.recover_if_needed(timeout, progress)?;
    engine.store.refresh()?;
    Ok(engine)
}
