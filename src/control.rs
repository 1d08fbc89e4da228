//! A batch on its way in: what it consists of, how far it is, whether to stop.

use std::cell::RefCell;
use std::sync::Arc;

use napi::bindgen_prelude::Object;
use napi::{Env, JsValue, sys};
use napi_derive::napi;
use vecplane_core::{Batch, BatchOutcome, Error, Plane};

use crate::convert::*;
use crate::error::Failure;
use crate::task::{Control, Shared, on_thread};

/// Follows a call and stops it.
#[napi]
#[derive(Default)]
pub struct NativeControl(Arc<Control>, RefCell<Option<Staged>>);

/// A batch, as far as it has arrived.
pub struct Staged {
    pub shared: Arc<Shared>,
    pub vectors: Vec<f32>,
    pub keys: Vec<u8>,
}

impl Staged {
    /// Adds the batch, after earlier ones of the same handle.
    pub fn write(
        self,
        env: Env,
        upsert: bool,
        key_ends: KeyEnds,
        threads: Threads,
        tags: TagColumn,
        control: &NativeControl,
    ) -> napi::Result<Returned> {
        let Staged { shared, vectors, keys } = self;
        let control = control.shared();
        let lane = Some(Arc::clone(&shared));
        let write = if upsert { Plane::upsert_batch_tagged } else { Plane::insert_batch_tagged };
        let work = move || {
            if !control.advance(0) {
                // Stopped before it began.
                let count = vectors.len() / shared.plane().config().dims as usize;
                return Err(Failure::Batch { fault: Error::Aborted, ids: vec![u32::MAX; count] });
            }
            let batch = Batch { vectors: &vectors, keys: &keys, key_ends: &key_ends.0 };
            let plane = shared.writing();
            let progress = |done| control.advance(done);
            let outcome = tags.0.with(|tags| write(plane, batch, tags, threads.0, &progress))?;
            match outcome.fault {
                Some(fault) => Err(Failure::Batch { fault, ids: outcome.ids }),
                None => {
                    control.advance(outcome.ids.len());
                    Ok(outcome)
                }
            }
        };
        on_thread(&env, lane, work, batch_to_js)
    }
}

#[napi]
impl NativeControl {
    #[napi(constructor)]
    pub fn new() -> Self {
        Self::default()
    }

    #[napi]
    pub fn abort(&self) {
        self.0.abort();
    }

    /// Takes the next piece of `total` components.
    #[napi]
    pub fn stage_vectors(&self, env: Env, piece: Vectors, total: f64) -> napi::Result<()> {
        self.append(env, |staged| &mut staged.vectors, &piece.0, total)
    }

    /// Takes the next piece of `total` bytes of keys.
    #[napi]
    pub fn stage_keys(&self, env: Env, piece: Keys, total: f64) -> napi::Result<()> {
        self.append(env, |staged| &mut staged.keys, &piece.0, total)
    }

    /// Lets go of what was staged, and of the plane.
    #[napi]
    pub fn discard(&self) {
        *self.1.borrow_mut() = None;
    }

    /// As `NativePlane::write_batch`, of what was staged.
    #[napi]
    pub fn write(
        &self,
        env: Env,
        upsert: bool,
        key_ends: KeyEnds,
        threads: Threads,
        tags: TagColumn,
    ) -> napi::Result<Returned> {
        let staged = self.1.take().expect("index.js stages before it writes");
        staged.write(env, upsert, key_ends, threads, tags, self)
    }

    #[napi(getter)]
    pub fn done(&self) -> f64 {
        self.0.done() as f64
    }

    #[napi(getter)]
    pub fn total(&self) -> f64 {
        self.0.total() as f64
    }
}

/// JavaScript holds the control for as long as it waits for the call, so this is the end of a worker in the middle of it:
/// nobody will hear of the rest.
impl Drop for NativeControl {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl NativeControl {
    /// What the call itself looks at.
    pub fn shared(&self) -> Arc<Control> {
        Arc::clone(&self.0)
    }

    /// Gets ready to take a batch piece by piece.
    pub fn stage(&self, shared: Arc<Shared>) {
        *self.1.borrow_mut() = Some(Staged { shared, vectors: Vec::new(), keys: Vec::new() });
    }

    fn append<T: Copy>(
        &self,
        env: Env,
        whole: fn(&mut Staged) -> &mut Vec<T>,
        piece: &[T],
        total: f64,
    ) -> napi::Result<()> {
        let mut staged = self.1.borrow_mut();
        let whole = whole(staged.as_mut().expect("index.js stages first"));
        if whole.try_reserve_exact((total as usize).saturating_sub(whole.len())).is_err() {
            let failure = Failure::Range(format!("a batch of {total} elements is too large to copy"));
            return Err(failure.raise(env.raw()));
        }
        whole.extend_from_slice(piece);
        Ok(())
    }
}

fn batch_to_js(env: sys::napi_env, outcome: BatchOutcome) -> napi::Result<sys::napi_value> {
    let wrapped = Env::from_raw(env);
    let mut rejected = wrapped.create_array(outcome.rejected.len() as u32)?;
    for (i, rejection) in outcome.rejected.iter().enumerate() {
        let mut object = Object::new(&wrapped)?;
        object.set("index", rejection.index)?;
        object.set("code", rejection.code.as_str())?;
        object.set("reason", rejection.reason.as_str())?;
        rejected.set(i as u32, object)?;
    }
    let mut object = Object::new(&wrapped)?;
    object.set("ids", ids(env, &outcome.ids)?)?;
    object.set("rejected", rejected)?;
    Ok(object.raw())
}
