//! Everything that can go wrong, each with a stable code and the evidence.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::calibration::EF_CALIBRATED_MAX;
use crate::options::Precision;

#[cfg(windows)]
use windows_sys::Win32::Foundation as win;

/// Result of every fallible call of the engine.
pub type Result<T> = std::result::Result<T, Error>;

/// What happened. `code()` is public and never changes once released.
#[derive(Debug)]
#[non_exhaustive]
#[allow(missing_docs)] // The fields are the evidence that each message spells out.
pub enum Error {
    /// A vector of the wrong length.
    DimensionMismatch { expected: usize, actual: usize },
    /// A vector with NaN, an infinity, or a norm past the largest f32.
    NotFinite { component: Option<usize> },
    /// A query without a direction on a cosine plane.
    ZeroQuery,
    /// A number outside its range.
    OutOfRange { name: &'static str, value: u64, min: u64, max: u64 },
    /// A real number outside its range.
    NotInRange { name: &'static str, value: f64, range: &'static str },
    /// An option that does not fit the others or the plane.
    InvalidOption { name: &'static str, reason: &'static str },
    /// A batch whose arrays do not fit each other.
    InvalidBatch { reason: String },
    /// A key that cannot be stored.
    KeyUnstorable { bytes: usize, reason: &'static str },
    /// A tag that cannot be one, or too many of them.
    TagInvalid { reason: &'static str },
    /// The key belongs to a live record already.
    KeyExists { id: u32 },
    /// No live record has the key.
    KeyNotFound,
    /// A compaction gave the records other ids, which an iteration cannot follow.
    Renumbered,
    /// No room for another record.
    Full { max_nodes: u64 },
    /// No room for another long key.
    KeysFull { bytes_max: u64 },
    /// `create` found a file and `overwrite` was not set.
    Exists { path: PathBuf },
    /// The file is not a plane.
    NotAPlane { path: PathBuf, reason: &'static str },
    /// The file is a plane of a later version, or needs a section that this version does not know.
    UnsupportedVersion { found: u32, supported: u32 },
    /// The file ends before data that it says is there.
    Truncated { bytes: u64, expected: u64 },
    /// The file contradicts itself.
    Corrupt { what: &'static str, offset: u64 },
    /// Another process is writing.
    Locked { path: PathBuf, pid: u32 },
    /// The plane needs a recovery that a read-only handle may not do.
    NeedsRecovery { path: PathBuf },
    /// The handle was opened read-only.
    ReadOnly,
    /// The handle is closed.
    Closed,
    /// `create` put another plane at this path.
    Replaced { path: PathBuf },
    /// A compaction put another file at this path: whoever has a handle looks there again by itself.
    Superseded { path: PathBuf },
    /// A node in a form that the plane does not keep.
    RawLength { bytes: usize, dims: u32, precision: Precision, expected: usize },
    /// The plane keeps more of a vector than a raw node has.
    NotMirrorable,
    /// Readers, or another writer, have not let go of a node in time.
    InUse { id: u32 },
    /// Its host declared the plane invalid, for good.
    Invalidated { path: PathBuf },
    /// Neither mark of an invalidation could be made.
    NotInvalidated { path: PathBuf, in_band: String, sidecar: String },
    /// The file has other names, which a compaction would part from this one.
    Linked { path: PathBuf, names: u64 },
    /// A sync failed: writes are refused until the plane is opened again.
    SyncFailed,
    /// A recall was asked for, and the plane was never calibrated.
    NotCalibrated,
    /// No measured beam width reaches this recall.
    RecallUnreachable { recall: f64, best: f64, k: usize },
    /// Too few records to measure recall on.
    TooSmall { count: u64, min: u64 },
    /// The caller cancelled a long call.
    Aborted,
    /// The operating system refused.
    Io { source: io::Error, action: &'static str, path: PathBuf },
}

impl Error {
    /// The stable code; `Io` keeps the operating system's own (`ENOSPC`, `ENOENT`, ...).
    pub fn code(&self) -> &'static str {
        match self {
            Error::DimensionMismatch { .. } => "PLANE_DIMENSION_MISMATCH",
            Error::NotFinite { .. } => "PLANE_NOT_FINITE",
            Error::ZeroQuery => "PLANE_ZERO_QUERY",
            Error::OutOfRange { .. } | Error::NotInRange { .. } => "ERR_OUT_OF_RANGE",
            Error::InvalidOption { .. } | Error::InvalidBatch { .. } => "ERR_INVALID_ARG_VALUE",
            Error::KeyUnstorable { .. } => "PLANE_KEY_UNSTORABLE",
            Error::TagInvalid { .. } => "PLANE_TAG_INVALID",
            Error::KeyExists { .. } => "PLANE_KEY_EXISTS",
            Error::KeyNotFound => "PLANE_KEY_NOT_FOUND",
            Error::Renumbered => "PLANE_RENUMBERED",
            Error::Full { .. } => "PLANE_FULL",
            Error::KeysFull { .. } => "PLANE_KEYS_FULL",
            Error::Exists { .. } => "PLANE_EXISTS",
            Error::NotAPlane { .. } => "PLANE_NOT_A_PLANE",
            Error::UnsupportedVersion { .. } => "PLANE_UNSUPPORTED_VERSION",
            Error::Truncated { .. } => "PLANE_TRUNCATED",
            Error::Corrupt { .. } => "PLANE_CORRUPT",
            Error::Locked { .. } => "PLANE_LOCKED",
            Error::NeedsRecovery { .. } => "PLANE_NEEDS_RECOVERY",
            Error::ReadOnly => "PLANE_READ_ONLY",
            Error::Closed => "PLANE_CLOSED",
            Error::Replaced { .. } | Error::Superseded { .. } => "PLANE_REPLACED",
            Error::RawLength { .. } => "PLANE_DIMENSION_MISMATCH",
            Error::NotMirrorable => "PLANE_NOT_MIRRORABLE",
            Error::InUse { .. } => "PLANE_IN_USE",
            Error::Invalidated { .. } => "PLANE_INVALIDATED",
            Error::NotInvalidated { .. } => "PLANE_NOT_INVALIDATED",
            Error::Linked { .. } => "PLANE_LINKED",
            Error::SyncFailed => "PLANE_SYNC_FAILED",
            Error::NotCalibrated => "PLANE_NOT_CALIBRATED",
            Error::RecallUnreachable { .. } => "PLANE_RECALL_UNREACHABLE",
            Error::TooSmall { .. } => "PLANE_TOO_SMALL",
            Error::Aborted => "ABORT_ERR",
            Error::Io { source, .. } => os_code(source),
        }
    }

    /// Wraps an operating-system error with what was being done to which file.
    pub(crate) fn io(source: io::Error, action: &'static str, path: &std::path::Path) -> Self {
        Error::Io { source, action, path: path.to_path_buf() }
    }
}

fn os_code(error: &io::Error) -> &'static str {
    use io::ErrorKind as K;
    match error.kind() {
        K::NotFound => "ENOENT",
        K::PermissionDenied => "EACCES",
        K::AlreadyExists => "EEXIST",
        K::StorageFull => "ENOSPC",
        K::QuotaExceeded => "EDQUOT",
        K::IsADirectory => "EISDIR",
        K::NotADirectory => "ENOTDIR",
        K::ReadOnlyFilesystem => "EROFS",
        K::FileTooLarge => "EFBIG",
        K::OutOfMemory => "ENOMEM",
        K::InvalidInput => "EINVAL",
        K::ResourceBusy => "EBUSY",
        K::Interrupted => "EINTR",
        K::WouldBlock => "EAGAIN",
        #[cfg(unix)]
        _ => match error.raw_os_error() {
            Some(libc::ELOOP) => "ELOOP",
            Some(libc::EMFILE) => "EMFILE",
            Some(libc::ENFILE) => "ENFILE",
            Some(libc::ENAMETOOLONG) => "ENAMETOOLONG",
            Some(libc::ENXIO) => "ENXIO",
            Some(libc::ENODEV) => "ENODEV",
            _ => "EIO",
        },
        #[cfg(windows)]
        _ => match error.raw_os_error().map(|code| code as u32) {
            // A view or a handle of another process is in the way.
            Some(win::ERROR_SHARING_VIOLATION | win::ERROR_USER_MAPPED_FILE) => "EBUSY",
            Some(win::ERROR_LOCK_VIOLATION) => "EAGAIN",
            Some(win::ERROR_COMMITMENT_LIMIT | win::ERROR_NO_SYSTEM_RESOURCES) => "ENOMEM",
            Some(win::ERROR_TOO_MANY_OPEN_FILES) => "EMFILE",
            Some(win::ERROR_FILENAME_EXCED_RANGE) => "ENAMETOOLONG",
            Some(win::ERROR_CANT_RESOLVE_FILENAME) => "ELOOP",
            // As Node says for a name that no file can have.
            Some(win::ERROR_INVALID_NAME | win::ERROR_BAD_PATHNAME) => "ENOENT",
            _ => "EIO",
        },
        #[cfg(not(any(unix, windows)))]
        _ => "EIO",
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::DimensionMismatch { expected, actual } => {
                write!(f, "vector has {actual} components, this plane holds {expected} (dims)")
            }
            Error::NotFinite { component: Some(i) } => {
                write!(f, "component {i} of the vector is not finite (NaN or infinity)")
            }
            Error::NotFinite { component: None } => {
                write!(f, "the vector's norm is not finite in f32: its components are too large")
            }
            Error::ZeroQuery => {
                write!(f, "a zero vector has no direction, so cosine distances from it are undefined")
            }
            Error::OutOfRange { name, value, min, max } => {
                write!(f, "{name} must be from {min} to {max}, got {value}")
            }
            Error::InvalidOption { name, reason } => write!(f, "{name} {reason}"),
            Error::InvalidBatch { reason } => f.write_str(reason),
            Error::KeyUnstorable { bytes, reason } => {
                write!(f, "key of {bytes} bytes cannot be stored: {reason}")
            }
            Error::TagInvalid { reason } => f.write_str(reason),
            Error::KeyExists { id } => write!(f, "the key belongs to record {id} already"),
            Error::KeyNotFound => write!(f, "no record has the key"),
            Error::Renumbered => {
                write!(f, "compact gave the records new ids meanwhile: begin the iteration again")
            }
            Error::Full { max_nodes } => {
                write!(f, "the plane is full: it holds maxNodes = {max_nodes} records")
            }
            Error::KeysFull { bytes_max } => {
                write!(f, "the key arena is full: long keys may take {bytes_max} bytes in this plane")
            }
            Error::Exists { path } => {
                write!(f, "{} exists already; pass overwrite: true to replace it", path.display())
            }
            Error::NotAPlane { path, reason } => write!(f, "{} is not a plane: {reason}", path.display()),
            Error::UnsupportedVersion { found, supported } => {
                write!(f, "the file has format version {found}, this build reads up to {supported}")
            }
            Error::Truncated { bytes, expected } => {
                write!(f, "the file is truncated: it has {bytes} bytes of at least {expected}")
            }
            Error::Corrupt { what, offset } => {
                write!(f, "the file is corrupt: {what} (file offset {offset})")
            }
            Error::Locked { path, pid } => write!(f, "process {pid} is writing to {}", path.display()),
            Error::NeedsRecovery { path } => {
                write!(f, "{} needs recovery after a crash; open it for writing once", path.display())
            }
            Error::ReadOnly => write!(f, "the plane was opened read-only"),
            Error::Closed => write!(f, "the plane is closed"),
            Error::Replaced { path } => {
                write!(f, "another plane was created at {}; open it again", path.display())
            }
            Error::Superseded { path } => write!(f, "compaction replaced {}; open it again", path.display()),
            Error::RawLength { bytes, dims, precision, expected } => {
                let name = if *precision == Precision::Int8 { "int8" } else { "int16" };
                write!(f, "vector is {bytes} bytes; plane is {dims} dims x {name} ({expected} bytes)")
            }
            Error::NotMirrorable => write!(
                f,
                "raw nodes need a plane with precision int8 or int16 and no exact copy (rerank 'none')"
            ),
            Error::InUse { id } => {
                write!(f, "record {id} is in use: a reader has not let go of it for two seconds")
            }
            Error::Invalidated { path } => write!(
                f,
                "{} was invalidated: create it anew, with overwrite, and fill it again",
                path.display()
            ),
            Error::NotInvalidated { path, in_band, sidecar } => write!(
                f,
                "{} could not be invalidated by either mark: in-band: {in_band}; sidecar: {sidecar}",
                path.display()
            ),
            Error::Linked { path, names } => write!(
                f,
                "{} has {names} names (hard links), and compacting it would part them: remove the others, or compact \
                 to another path",
                path.display()
            ),
            Error::SyncFailed => {
                write!(f, "an earlier sync to disk failed; close the plane and open it again before writing")
            }
            Error::NotInRange { name, value, range } => write!(f, "{name} must be {range}, got {value}"),
            Error::NotCalibrated => {
                write!(f, "recall needs a measured plane: call calibrate() once, or give ef instead")
            }
            Error::RecallUnreachable { recall, best, k } => {
                // Rounded down: what the message names can be asked for.
                let best = (best * 1e5).floor() / 1e5;
                write!(
                    f,
                    "no ef up to {EF_CALIBRATED_MAX} gives a recall of {recall} here: the best for k {k} is {best}"
                )
            }
            Error::TooSmall { count, min } => write!(
                f,
                "the plane has {count} records and calibrate() needs {min}: with fewer, a search that asks for a recall looks at all"
            ),
            Error::Aborted => write!(f, "the operation was aborted"),
            Error::Io { source, action, path } => {
                write!(f, "{}: cannot {action} {}: {source}", os_code(source), path.display())
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

#[cfg(all(test, windows))]
mod tests {
    use super::*;

    #[test]
    fn refusals_of_windows_have_the_codes_of_node() {
        for (raw, code) in [
            (win::ERROR_FILE_NOT_FOUND, "ENOENT"),
            (win::ERROR_INVALID_NAME, "ENOENT"),
            (win::ERROR_ACCESS_DENIED, "EACCES"),
            (win::ERROR_FILE_EXISTS, "EEXIST"),
            (win::ERROR_DISK_FULL, "ENOSPC"),
            (win::ERROR_HANDLE_DISK_FULL, "ENOSPC"),
            (win::ERROR_SHARING_VIOLATION, "EBUSY"),
            (win::ERROR_USER_MAPPED_FILE, "EBUSY"),
            (win::ERROR_LOCK_VIOLATION, "EAGAIN"),
            (win::ERROR_TOO_MANY_OPEN_FILES, "EMFILE"),
            (win::ERROR_COMMITMENT_LIMIT, "ENOMEM"),
        ] {
            assert_eq!(os_code(&io::Error::from_raw_os_error(raw as i32)), code, "{raw}");
        }
    }
}
