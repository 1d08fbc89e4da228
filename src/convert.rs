//! JS values <-> core types.

use std::ffi::c_void;
use std::path::PathBuf;
use std::ptr::{copy_nonoverlapping, null_mut};
use std::time::Duration;

use napi::bindgen_prelude::{FromNapiValue, ToNapiValue, TypeName};
use napi::{ValueType, sys};
use vecplane_core::{Candidates, Hits, Plane, Result, SearchOptions, TagQuery, TagSet};

use crate::error::{Failure, Outcome, checked};
use crate::tags;

/// Largest `k` and `ef`.
const BEAM_MAX: u64 = 1 << 20;
/// Highest level of a raw node.
const LEVEL_MAX: u64 = 15;
/// Most threads that a batch may ask for.
const THREADS_MAX: u64 = 1024;
/// Largest integer up to which JS numbers represent every integer.
const SAFE_INTEGER_MAX: u64 = (1 << 53) - 1;

/// A finished JS value on its way out.
pub struct Returned(pub sys::napi_value);

impl ToNapiValue for Returned {
    unsafe fn to_napi_value(_env: sys::napi_env, value: Self) -> napi::Result<sys::napi_value> {
        Ok(value.0)
    }
}

impl TypeName for Returned {
    fn type_name() -> &'static str {
        "Returned"
    }

    fn value_type() -> ValueType {
        ValueType::Unknown
    }
}

/// An argument as it arrived. Its checks name it in their messages, and whatever they return is a copy.
#[derive(Clone, Copy)]
pub struct Arg {
    env: sys::napi_env,
    value: sys::napi_value,
}

/// Declares the types that exported methods take: each argument is checked and copied as the call arrives.
macro_rules! arguments {
    ($($Name:ident: $Type:ty = $check:expr;)*) => {$(
        pub struct $Name(pub $Type);

        impl FromNapiValue for $Name {
            unsafe fn from_napi_value(env: sys::napi_env, value: sys::napi_value) -> napi::Result<Self> {
                let check: fn(Arg) -> Outcome<$Type> = $check;
                check(Arg { env, value }).map($Name).map_err(|failure| failure.raise(env))
            }
        }
    )*};
}

arguments! {
    Any: Arg = Ok;
    FilePath: PathBuf = |arg| arg.path("path");
    OptionalPath: Option<PathBuf> = |arg| arg.given().map(|arg| arg.path("path")).transpose();
    Overwrite: bool = |arg| arg.given().map_or(Ok(false), |arg| arg.flag("overwrite"));
    Renumber: bool = |arg| arg.given().map_or(Ok(false), |arg| arg.flag("renumber"));
    Relink: bool = |arg| arg.given().map_or(Ok(false), |arg| arg.flag("relink"));
    Vector: Vec<f32> = |arg| arg.elements("vector", "a Float32Array");
    Vectors: Vec<f32> = |arg| arg.elements("vectors", "a Float32Array");
    Key: Vec<u8> = |arg| arg.key("key");
    OptionalKey: Vec<u8> = |arg| arg.present().map_or(Ok(Vec::new()), |arg| arg.key("key"));
    Keys: Vec<u8> = |arg| arg.present().map_or(Ok(Vec::new()), |arg| arg.elements("keys", BYTES));
    KeyEnds: Vec<u32> = |arg| arg.present().map_or(Ok(Vec::new()), |arg| arg.elements("keyEnds", WORDS));
    Threads: usize = |arg| arg.given().map_or(Ok(0), |arg| arg.count("threads", 1, THREADS_MAX));
    Id: u32 = |arg| arg.whole("id");
    Ids: Vec<u32> = |arg| arg.elements("ids", WORDS);
    K: usize = |arg| arg.count("k", 0, BEAM_MAX);
    Ef: Option<usize> = |arg| arg.given().map(|arg| arg.count("ef", 1, BEAM_MAX)).transpose();
    Filter: Permitted = |arg| arg.present().map_or(Ok(Permitted::default()), Permitted::new);
    KeyList: Vec<Vec<u8>> = Arg::keys;
    OptionalTags: TagSet = |arg| arg.given().map_or(Ok(TagSet::default()), tags::set);
    TagColumn: tags::Column = |arg| arg.given().map_or(Ok(tags::Column::default()), tags::Column::new);
    After: Option<Place> = |arg| arg.given().map(Place::new).transpose();
    CursorWords: Vec<u32> = |arg| arg.elements("cursor", WORDS);
    Expansion: Option<usize> = |arg| arg.given().map(|arg| arg.count("filterExpansion", 1, BEAM_MAX)).transpose();
    MaybeKey: Option<Vec<u8>> = |arg| arg.present().map(|arg| arg.key("key")).transpose();
    Level: u8 = |arg| arg.integer("level", 0, LEVEL_MAX).map(|level| level as u8);
    RawVector: Vec<u8> = |arg| arg.elements("vector", BYTES);
    Scale: f32 = |arg| arg.plain::<f64>("scale", "a number").map(|number| number as f32);
    InvMag: f32 = |arg| arg.plain::<f64>("invMag", "a number").map(|number| number as f32);
    Neighbors: Vec<u32> = |arg| arg.elements("neighbors", WORDS);
    Upper: Vec<u32> = |arg| arg.elements("upper", WORDS);
    UpperEnds: Vec<u32> = |arg| arg.elements("upper", WORDS);
    Budget: Option<usize> = |arg| {
        arg.present().map(|arg| arg.count("visitBudget", 1, SAFE_INTEGER_MAX)).transpose()
    };
    Verdicts: Vec<u8> = |arg| arg.elements("verdicts", BYTES);
    Recall: Option<f64> = |arg| arg.given().map(|arg| arg.plain("recall", "a number")).transpose();
    Within: Option<f64> = |arg| arg.given().map(|arg| arg.plain("within", "a number")).transpose();
    CalibratedK: usize = |arg| arg.count("k", 1, 1024);
    Samples: Option<usize> = |arg| arg.given().map(|arg| arg.count("samples", 100, 100_000)).transpose();
    Rerank: bool = |arg| arg.given().map_or(Ok(true), |arg| arg.flag("rerank"));
    Watermark: u64 = |arg| arg.integer("watermark", 0, SAFE_INTEGER_MAX);
    OptionalWatermark: Option<u64> = |arg| {
        arg.given().map(|arg| arg.integer("watermark", 0, SAFE_INTEGER_MAX)).transpose()
    };
}

/// What a query may return; everything, where a part is missing.
#[derive(Default)]
pub struct Permitted {
    pub bits: Option<Vec<u8>>,
    pub keys: Option<Vec<Vec<u8>>>,
    pub tags: Option<TagQuery>,
}

impl Permitted {
    /// From bits, or from an object that `index.js` made of all parts that the caller gave.
    fn new(arg: Arg) -> Outcome<Self> {
        let part = |name| match (arg.kind(), arg.view()) {
            (sys::ValueType::napi_object, None) => arg.option(name).given(),
            _ => None,
        };
        if part("parts").is_none() {
            return Ok(Permitted { bits: Some(arg.elements("filter", BYTES)?), ..Permitted::default() });
        }
        let bits = part("bits").and_then(Arg::present);
        Ok(Permitted {
            bits: bits.map(|bits| bits.elements("filter", BYTES)).transpose()?,
            keys: part("keys").map(Arg::keys).transpose()?,
            tags: part("tags").map(tags::query).transpose()?,
        })
    }

    /// Puts it among what a query asks for.
    pub fn apply<'a>(&'a self, options: &mut SearchOptions<'a>) {
        options.filter = self.bits.as_deref();
        options.keys = self.keys.as_deref();
        options.tags = self.tags.as_ref();
    }
}

/// Where an iteration goes on.
pub enum Place {
    AfterId(u32),
    AfterKey(Vec<u8>),
}

impl Place {
    fn new(arg: Arg) -> Outcome<Self> {
        match arg.kind() {
            sys::ValueType::napi_number => arg.whole("after").map(Place::AfterId),
            _ => arg.key("after").map(Place::AfterKey),
        }
    }
}

const BYTES: &str = "a Buffer or Uint8Array";
const WORDS: &str = "a Uint32Array";
/// Names of typed arrays by their Node-API kind.
const TYPED_ARRAYS: [&str; 11] = [
    "Int8Array",
    "Uint8Array",
    "Uint8ClampedArray",
    "Int16Array",
    "Uint16Array",
    "Int32Array",
    "Uint32Array",
    "Float32Array",
    "Float64Array",
    "BigInt64Array",
    "BigUint64Array",
];

/// What typed arrays hold: plain numbers without padding, any bits of which are valid.
trait Element: Copy {
    const KIND: sys::napi_typedarray_type;
}

impl Element for u8 {
    const KIND: sys::napi_typedarray_type = sys::TypedarrayType::uint8_array;
}

impl Element for u32 {
    const KIND: sys::napi_typedarray_type = sys::TypedarrayType::uint32_array;
}

impl Element for f32 {
    const KIND: sys::napi_typedarray_type = sys::TypedarrayType::float32_array;
}

/// Where a typed array's elements are.
struct View {
    kind: sys::napi_typedarray_type,
    length: usize,
    data: *mut c_void,
    buffer: sys::napi_value,
}

impl Arg {
    /// The value as Node-API knows it.
    pub fn raw(self) -> sys::napi_value {
        self.value
    }

    /// `None` for undefined: the default applies.
    pub fn given(self) -> Option<Arg> {
        (self.kind() != sys::ValueType::napi_undefined).then_some(self)
    }

    /// `None` for undefined and null: there is no such thing.
    pub fn present(self) -> Option<Arg> {
        self.given().filter(|arg| arg.kind() != sys::ValueType::napi_null)
    }

    /// The value of an option. `index.js` hands over plain objects of its own making, so this runs none of the caller's
    /// code and cannot fail.
    pub fn option(self, name: &str) -> Arg {
        let mut value = self.value;
        if let Ok(name) = to_js(self.env, name) {
            // SAFETY: both values are live in `self.env` for the whole call that `self` is an argument of.
            unsafe { sys::napi_get_property(self.env, self.value, name, &mut value) };
        }
        Arg { value, ..self }
    }

    /// The elements of an array that `index.js` made itself, so that reading it runs none of the caller's code.
    pub fn list(self, name: &str) -> Outcome<Vec<Arg>> {
        let mut length = 0;
        // SAFETY: as in `option`; anything but an array is refused with a status.
        let status = unsafe { sys::napi_get_array_length(self.env, self.value, &mut length) };
        if status != sys::Status::napi_ok {
            return Err(self.mistyped(name, "an array"));
        }
        let element = |i| {
            let mut value = self.value;
            // SAFETY: as in `option`.
            unsafe { sys::napi_get_element(self.env, self.value, i, &mut value) };
            Arg { value, ..self }
        };
        Ok((0..length).map(element).collect())
    }

    /// A boolean.
    pub fn flag(self, name: &str) -> Outcome<bool> {
        self.plain(name, "a boolean")
    }

    /// An integer from `min` to `max`.
    fn integer(self, name: &str, min: u64, max: u64) -> Outcome<u64> {
        let number: f64 = self.plain(name, "a number")?;
        if number.fract() == 0.0 && number >= min as f64 && number <= max as f64 {
            return Ok(number as u64);
        }
        Err(Failure::Range(format!("{name} must be an integer from {min} to {max}, got {}", spelled(number))))
    }

    /// A size from `min` to `max`.
    fn count(self, name: &str, min: u64, max: u64) -> Outcome<usize> {
        self.integer(name, min, max).map(|number| number as usize)
    }

    /// A whole number, whose range the engine checks.
    pub fn whole(self, name: &str) -> Outcome<u32> {
        self.integer(name, 0, u32::MAX.into()).map(|number| number as u32)
    }

    /// One of a few names.
    pub fn choice<T: Copy>(self, name: &str, choices: &[(&str, T)]) -> Outcome<T> {
        let text: String = self.plain(name, "a string")?;
        choices.iter().find(|(choice, _)| *choice == text).map(|(_, value)| *value).ok_or_else(|| {
            let names: Vec<_> = choices.iter().map(|(choice, _)| format!("'{choice}'")).collect();
            Failure::Value(format!("unknown {name} '{text}': it must be one of {}", names.join(", ")))
        })
    }

    /// A file's path.
    fn path(self, name: &str) -> Outcome<PathBuf> {
        let text: String = self.plain(name, "a string")?;
        if text.is_empty() || text.contains('\0') {
            return Err(Failure::Value(format!("{name} must not be empty or contain a NUL character")));
        }
        Ok(text.into())
    }

    /// A record's key: a string as UTF-8, or bytes.
    fn key(self, name: &str) -> Outcome<Vec<u8>> {
        match self.kind() {
            sys::ValueType::napi_string => self.plain(name, "a string").map(String::into_bytes),
            _ => self.elements(name, "a string, Buffer or Uint8Array"),
        }
    }

    /// Many keys.
    fn keys(self) -> Outcome<Vec<Vec<u8>>> {
        self.list("keys")?.into_iter().map(|arg| arg.key("a key")).collect()
    }

    /// A copy of a typed array of exactly this element type.
    fn elements<T: Element>(self, name: &str, wanted: &str) -> Outcome<Vec<T>> {
        let view =
            self.view().filter(|view| view.kind == T::KIND).ok_or_else(|| self.mistyped(name, wanted))?;
        let mut elements = Vec::new();
        if view.length == 0 {
            let mut detached = false;
            // SAFETY: as in `option`; `view.buffer` came with the view.
            unsafe { sys::napi_is_detached_arraybuffer(self.env, view.buffer, &mut detached) };
            return if detached { Err(Failure::Value(format!("{name} is detached"))) } else { Ok(elements) };
        }
        if elements.try_reserve_exact(view.length).is_err() {
            return Err(Failure::Range(format!("{name} is too large to copy: {} elements", view.length)));
        }
        let bytes = view.length * size_of::<T>();
        // SAFETY: Node-API gives `length` elements of this type at `data`, and no JS runs in between. They are copied as
        // bytes, since the buffer under an array may be the host's own and aligned as it likes. `Element` promises that
        // whatever they hold is valid.
        unsafe {
            copy_nonoverlapping(view.data.cast::<u8>(), elements.as_mut_ptr().cast(), bytes);
            elements.set_len(view.length);
        }
        Ok(elements)
    }

    fn plain<T: FromNapiValue>(self, name: &str, wanted: &str) -> Outcome<T> {
        // SAFETY: as in `option`.
        unsafe { T::from_napi_value(self.env, self.value) }.map_err(|_| self.mistyped(name, wanted))
    }

    /// A string.
    pub fn text(self, name: &str) -> Outcome<String> {
        self.plain(name, "a string")
    }

    /// A number, whatever it is.
    pub fn number(self, name: &str, wanted: &str) -> Outcome<f64> {
        self.plain(name, wanted)
    }

    /// A copy of a `Uint32Array`.
    pub fn words(self, name: &str) -> Outcome<Vec<u32>> {
        self.elements(name, WORDS)
    }

    /// Which kind of value it is.
    pub fn kind(self) -> sys::napi_valuetype {
        let mut kind = sys::ValueType::napi_undefined;
        // SAFETY: as in `option`; `napi_typeof` fails for no live value.
        unsafe { sys::napi_typeof(self.env, self.value, &mut kind) };
        kind
    }

    fn view(self) -> Option<View> {
        let mut view = View { kind: -1, length: 0, data: null_mut(), buffer: null_mut() };
        let View { kind, length, data, buffer } = &mut view;
        // SAFETY: as in `option`; anything but a typed array is refused with a status.
        let status = unsafe {
            sys::napi_get_typedarray_info(self.env, self.value, kind, length, data, buffer, &mut 0)
        };
        (status == sys::Status::napi_ok).then_some(view)
    }

    fn mistyped(self, name: &str, wanted: &str) -> Failure {
        let (mut array, mut view) = (false, false);
        // SAFETY: as in `option`. None of these run the caller's code, whatever the value is.
        unsafe {
            sys::napi_is_array(self.env, self.value, &mut array);
            sys::napi_is_dataview(self.env, self.value, &mut view);
        }
        let received = match self.view() {
            Some(view) => usize::try_from(view.kind).ok().and_then(|kind| TYPED_ARRAYS.get(kind)).copied(),
            None => array.then_some("Array").or(view.then_some("DataView")),
        };
        let received =
            received.map(str::to_string).unwrap_or_else(|| ValueType::from(self.kind()).to_string());
        Failure::Type(format!("{name} must be {wanted}, got {received}"))
    }
}

/// A number as JavaScript writes it.
fn spelled(number: f64) -> String {
    match number {
        f64::INFINITY => "Infinity".into(),
        f64::NEG_INFINITY => "-Infinity".into(),
        _ => number.to_string(),
    }
}

/// A query, checked and copied.
pub struct Query(pub Vector, pub K, pub Ef, pub Filter, pub Expansion, pub Rerank, pub Recall, pub Within);

impl Query {
    /// Asks the engine.
    pub fn search(&self, plane: &Plane) -> Result<Hits> {
        plane.search(&self.0.0, &self.options())
    }

    /// Asks the engine many queries at once, one after the other in the vector.
    pub fn search_batch(&self, plane: &Plane, threads: usize) -> Result<Vec<Hits>> {
        plane.search_batch(&self.0.0, &self.options(), threads)
    }

    fn options(&self) -> SearchOptions<'_> {
        let Query(_, k, ef, filter, expansion, rerank, recall, within) = self;
        let mut options = SearchOptions::new(k.0);
        options.ef = ef.0;
        filter.0.apply(&mut options);
        options.filter_expansion = expansion.0.unwrap_or(options.filter_expansion);
        options.rerank = rerank.0;
        options.recall = recall.0;
        options.within = within.0;
        options
    }
}

/// An answer as one ArrayBuffer: ids, distances and key ends of 4 bytes a hit each, then the keys. What is returned is
/// the view of the ids, whose length says where the others are.
pub fn hits(env: sys::napi_env, hits: Hits) -> napi::Result<sys::napi_value> {
    typed_array(env, &hits.ids, &[bytes(&hits.distances), bytes(&hits.key_ends), &hits.keys])
}

/// Many answers, laid out like one whose hits they all are, with the number of hits of each between key ends and keys.
pub fn answers(env: sys::napi_env, answers: Vec<Hits>) -> napi::Result<sys::napi_value> {
    let mut all = Hits::default();
    let mut counts = Vec::with_capacity(answers.len());
    for hits in answers {
        let start =
            u32::try_from(all.keys.len()).map_err(|_| napi::Error::from_reason("too many bytes of keys"))?;
        counts.push(hits.len() as u32);
        all.ids.extend(hits.ids);
        all.distances.extend(hits.distances);
        all.key_ends.extend(hits.key_ends.into_iter().map(|end| start.saturating_add(end)));
        all.keys.extend(hits.keys);
    }
    typed_array(env, &all.ids, &[bytes(&all.distances), bytes(&all.key_ends), bytes(&counts), &all.keys])
}

/// Records to ask about as one ArrayBuffer: ids and key ends, then the keys. What is returned is the view of the ids.
pub fn candidates(env: sys::napi_env, batch: &Candidates) -> napi::Result<Returned> {
    typed_array(env, &batch.ids, &[bytes(&batch.key_ends), &batch.keys]).map(Returned)
}

/// A `Uint32Array` of its own memory.
pub fn ids(env: sys::napi_env, ids: &[u32]) -> napi::Result<Returned> {
    typed_array(env, ids, &[]).map(Returned)
}

/// A `Float32Array` of its own memory, if there is a vector.
pub fn vector(env: sys::napi_env, vector: Option<Vec<f32>>) -> napi::Result<Option<Returned>> {
    vector.map(|vector| typed_array(env, &vector, &[]).map(Returned)).transpose()
}

/// A `Uint8Array` of its own memory.
pub fn bytes_to_js(env: sys::napi_env, bytes: &[u8]) -> napi::Result<Returned> {
    typed_array(env, bytes, &[]).map(Returned)
}

/// JavaScript's undefined.
pub fn undefined(env: sys::napi_env) -> napi::Result<Returned> {
    to_js(env, ()).map(Returned)
}

/// A time span that a caller gave in milliseconds.
pub fn milliseconds(number: u32) -> Duration {
    Duration::from_millis(number.into())
}

/// Whatever napi-rs knows to convert.
pub fn to_js<T: ToNapiValue>(env: sys::napi_env, value: T) -> napi::Result<sys::napi_value> {
    // SAFETY: called on the thread of `env`.
    unsafe { T::to_napi_value(env, value) }
}

/// A typed array of `elements` at the start of an ArrayBuffer that goes on with `rest`.
fn typed_array<T: Element>(
    env: sys::napi_env,
    elements: &[T],
    rest: &[&[u8]],
) -> napi::Result<sys::napi_value> {
    let (mut data, mut buffer, mut array) = (null_mut(), null_mut(), null_mut());
    let size = size_of_val(elements) + rest.iter().map(|part| part.len()).sum::<usize>();
    // SAFETY: called on the thread of `env`.
    let status = unsafe { sys::napi_create_arraybuffer(env, size, &mut data, &mut buffer) };
    checked(status, "create an ArrayBuffer")?;
    let mut end: *mut u8 = data.cast();
    for part in std::iter::once(&bytes(elements)).chain(rest).filter(|part| !part.is_empty()) {
        // SAFETY: the buffer has room for all parts, one after the other, and nobody else has seen it.
        unsafe {
            copy_nonoverlapping(part.as_ptr(), end, part.len());
            end = end.add(part.len());
        }
    }
    // SAFETY: as above; the elements are at the start of the buffer.
    let status = unsafe { sys::napi_create_typedarray(env, T::KIND, elements.len(), buffer, 0, &mut array) };
    checked(status, "create a typed array").map(|()| array)
}

fn bytes<T: Element>(elements: &[T]) -> &[u8] {
    // SAFETY: elements are plain numbers without padding.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}
