//! What hosts of a mirror need beside the class.

use napi::bindgen_prelude::Object;
use napi::{Env, JsValue, sys};
use napi_derive::napi;
use vecplane_core::{Invalidation, invalidate_plane as invalidate, stale_path};

use crate::convert::*;
use crate::error::guarded;
use crate::task::on_pool;

/// Where the sidecar of a plane is.
#[napi]
pub fn stale_path_for(path: FilePath) -> String {
    stale_path(&path.0).to_string_lossy().into_owned()
}

#[napi]
pub fn invalidate_plane(env: Env, path: FilePath) -> napi::Result<Returned> {
    let done = guarded(|| Ok(invalidate(&path.0)?)).map_err(|failure| failure.raise(env.raw()))?;
    invalidation(env.raw(), done).map(Returned)
}

#[napi]
pub fn invalidate_plane_async(env: Env, path: FilePath) -> napi::Result<Returned> {
    on_pool(&env, move || Ok(invalidate(&path.0)?), invalidation)
}

/// Which marks were made, and why the others were not.
pub fn invalidation(env: sys::napi_env, done: Invalidation) -> napi::Result<sys::napi_value> {
    let mut object = Object::new(&Env::from_raw(env))?;
    object.set("inBand", done.in_band.is_ok())?;
    object.set("sidecar", done.sidecar.is_ok())?;
    for (name, mark) in [("inBandError", done.in_band), ("sidecarError", done.sidecar)] {
        if let Err(error) = mark {
            object.set(name, error.to_string())?;
        }
    }
    Ok(object.raw())
}
