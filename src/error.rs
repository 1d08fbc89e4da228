//! Core error -> JS error with `code`; the one place that does this.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

use napi::bindgen_prelude::Object;
use napi::{Unknown, sys};
use vecplane_core::Error;

use crate::convert::{self, to_js};

/// Result of everything in this crate that has not reached JavaScript yet.
pub type Outcome<T> = Result<T, Failure>;

/// What went wrong, on any thread; it becomes a JS error only on the thread that owns the environment.
#[derive(Debug)]
pub enum Failure {
    /// The engine said so.
    Core(Error),
    /// An argument of the wrong type.
    Type(String),
    /// An argument of the right type whose value cannot be used.
    Value(String),
    /// A number outside its range.
    Range(String),
    /// A batch that stopped before its end; records with an id have landed all the same.
    Batch { fault: Error, ids: Vec<u32> },
    /// A broken invariant: the text of a caught panic.
    Internal(String),
}

/// Which constructor an error is made with.
#[derive(Clone, Copy)]
enum Class {
    Type,
    Range,
    Plane,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Core(error)
    }
}

impl Failure {
    fn describe(&self) -> (Class, &'static str, String) {
        match self {
            Failure::Type(message) => (Class::Type, "ERR_INVALID_ARG_TYPE", message.clone()),
            Failure::Value(message) => (Class::Type, "ERR_INVALID_ARG_VALUE", message.clone()),
            Failure::Range(message) => (Class::Range, "ERR_OUT_OF_RANGE", message.clone()),
            Failure::Internal(message) => {
                (Class::Plane, "PLANE_INTERNAL", format!("internal error: {message}"))
            }
            Failure::Core(error) | Failure::Batch { fault: error, .. } => {
                let class = match error {
                    Error::InvalidOption { .. } | Error::InvalidBatch { .. } => Class::Type,
                    Error::DimensionMismatch { .. }
                    | Error::RawLength { .. }
                    | Error::NotFinite { .. }
                    | Error::ZeroQuery
                    | Error::OutOfRange { .. }
                    | Error::NotInRange { .. } => Class::Range,
                    _ => Class::Plane,
                };
                (class, error.code(), error.to_string())
            }
        }
    }

    /// Builds the JS error and wraps it, so that throwing it or rejecting with it yields that very object.
    pub fn raise(self, env: sys::napi_env) -> napi::Error {
        match self.to_js(env) {
            // SAFETY: `to_js` made the value in `env` just now, in the handle scope that is still open.
            Ok(value) => unsafe { Unknown::from_raw_unchecked(env, value) }.into(),
            Err(error) => error,
        }
    }

    fn to_js(&self, env: sys::napi_env) -> napi::Result<sys::napi_value> {
        let (class, code, message) = self.describe();
        let (code, message) = (to_js(env, code)?, to_js(env, message)?);
        let mut error = null_mut();
        // SAFETY: called on the thread of `env`; both arguments are live strings of it.
        let status = unsafe {
            match class {
                Class::Type => sys::napi_create_type_error(env, code, message, &mut error),
                Class::Range => sys::napi_create_range_error(env, code, message, &mut error),
                Class::Plane => match plane_error_class(env) {
                    Some(class) => {
                        sys::napi_new_instance(env, class, 2, [message, code].as_ptr(), &mut error)
                    }
                    None => sys::napi_create_error(env, code, message, &mut error),
                },
            }
        };
        checked(status, "create an error")?;
        if let Failure::Batch { ids, .. } = self {
            let mut error = Object::from_raw(env, error);
            error.set("ids", convert::ids(env, ids)?)?;
            error.set("inserted", ids.iter().filter(|&&id| id != u32::MAX).count() as f64)?;
        }
        Ok(error)
    }
}

/// Remembers the constructor that engine errors of this environment are made with.
pub fn set_plane_error_class(env: sys::napi_env, class: sys::napi_value) -> napi::Result<()> {
    let mut reference = null_mut();
    // SAFETY: called on the thread of `env` with a live value. The environment owns the reference and frees it at its
    // end; this crate uses the instance data for nothing else, so whatever `plane_error_class` finds there is it.
    unsafe {
        checked(sys::napi_create_reference(env, class, 1, &mut reference), "keep PlaneError")?;
        checked(sys::napi_set_instance_data(env, reference.cast(), None, null_mut()), "keep PlaneError")
    }
}

fn plane_error_class(env: sys::napi_env) -> Option<sys::napi_value> {
    let (mut reference, mut class) = (null_mut(), null_mut());
    // SAFETY: called on the thread of `env`; `set_plane_error_class` is the only one to set instance data.
    unsafe {
        checked(sys::napi_get_instance_data(env, &mut reference), "find PlaneError").ok()?;
        if reference.is_null() {
            return None;
        }
        checked(sys::napi_get_reference_value(env, reference.cast(), &mut class), "find PlaneError").ok()?;
    }
    (!class.is_null()).then_some(class)
}

/// Runs engine work; a panic in it becomes an error instead of the end of the process.
pub fn guarded<T>(work: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(Failure::Internal(text.unwrap_or_else(|| "a panic without a message".into())))
    })
}

/// A Node-API status as a `Result`.
pub fn checked(status: sys::napi_status, action: &str) -> napi::Result<()> {
    match status {
        sys::Status::napi_ok => Ok(()),
        _ => Err(napi::Error::new(napi::Status::from(status), format!("cannot {action}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_internal_error() {
        for (work, text) in [
            ((|| panic!("plain")) as fn() -> Outcome<()>, "internal error: plain"),
            (|| panic!("slot {}", 7), "internal error: slot 7"),
            (|| std::panic::panic_any(7), "internal error: a panic without a message"),
        ] {
            let (class, code, message) = guarded(work).expect_err("it panics").describe();
            assert!(matches!(class, Class::Plane));
            assert_eq!((code, message.as_str()), ("PLANE_INTERNAL", text));
        }
    }
}
