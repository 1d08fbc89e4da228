//! What `calibrate` found, as a JS object.

use napi::bindgen_prelude::Object;
use napi::{Env, JsValue, sys};
use vecplane_core::Calibration;

/// See `Calibration` in `index.d.ts`.
pub fn calibration_to_js(env: sys::napi_env, curve: &Calibration) -> napi::Result<sys::napi_value> {
    let env = Env::from_raw(env);
    let mut object = Object::new(&env)?;
    object.set("k", curve.k as f64)?;
    object.set("samples", curve.samples as f64)?;
    object.set("count", curve.count as f64)?;
    object.set("stale", curve.stale)?;
    let mut points = Vec::with_capacity(curve.points.len());
    for point in &curve.points {
        let mut object = Object::new(&env)?;
        object.set("ef", point.ef as f64)?;
        object.set("recall", point.recall)?;
        if let Some(adaptive) = point.adaptive {
            object.set("adaptiveRecall", adaptive.recall)?;
        }
        points.push(object);
    }
    object.set("curve", points)?;
    Ok(object.raw())
}
