//! Records on their way out: many by their keys, and all of them in order.

use napi::bindgen_prelude::Object;
use napi::{Env, JsValue, sys};
use napi_derive::napi;
use vecplane_core::{Cursor, Records};

use crate::convert::*;
use crate::plane::NativePlane;

#[napi]
impl NativePlane {
    /// An array with a vector, or undefined, for each key.
    #[napi]
    pub fn get_many(&self, env: Env, keys: KeyList) -> napi::Result<Returned> {
        let found = self.read(env, |plane| plane.get_many(&keys.0))?;
        let mut array = env.create_array(found.len() as u32)?;
        for (i, found) in found.into_iter().enumerate() {
            array.set(i as u32, vector(env.raw(), found)?.unwrap_or(undefined(env.raw())?))?;
        }
        Ok(Returned(array.raw()))
    }

    /// A record's tags, as encoded; null when there is no record.
    #[napi]
    pub fn tags_of(&self, env: Env, id: Id) -> napi::Result<Option<Returned>> {
        let tags = self.read(env, |plane| plane.tags(id.0))?;
        tags.map(|tags| bytes_to_js(env.raw(), tags.as_bytes())).transpose()
    }

    /// Where an iteration starts, for `records`.
    #[napi]
    pub fn cursor(&self, env: Env, after: After) -> napi::Result<Returned> {
        let cursor = self.read(env, |plane| match &after.0 {
            None => plane.cursor(),
            Some(Place::AfterId(id)) => plane.cursor_after(*id),
            Some(Place::AfterKey(key)) => plane.cursor_after_key(key),
        })?;
        words(env.raw(), cursor)
    }

    /// Records from a cursor on, and the cursor to go on with, unless that was the last of them.
    #[napi]
    pub fn records(&self, env: Env, cursor: CursorWords, most: u32) -> napi::Result<Returned> {
        let [next, end, numbering] = cursor.0[..] else { unreachable!("index.js hands back what it got") };
        let cursor = Cursor { next, end, numbering };
        let (records, next) = self.read(env, |plane| plane.records(cursor, most as usize))?;
        let Records { ids: found, vectors, keys, key_ends, tags, tag_ends } = records;
        let mut object = Object::new(&env)?;
        object.set("ids", ids(env.raw(), &found)?)?;
        object.set("vectors", vector(env.raw(), Some(vectors))?)?;
        object.set("keys", bytes_to_js(env.raw(), &keys)?)?;
        object.set("keyEnds", ids(env.raw(), &key_ends)?)?;
        object.set("tags", bytes_to_js(env.raw(), &tags)?)?;
        object.set("tagEnds", ids(env.raw(), &tag_ends)?)?;
        next.map_or(Ok(()), |next| object.set("next", words(env.raw(), next)?))?;
        Ok(Returned(object.raw()))
    }
}

fn words(env: sys::napi_env, cursor: Cursor) -> napi::Result<Returned> {
    ids(env, &[cursor.next, cursor.end, cursor.numbering])
}
