//! Tags on their way in: of one record, of many, and those that a query asks for.

use napi::sys;
use vecplane_core::{BatchTags, Tag, TagQuery, TagSet};

use crate::convert::Arg;
use crate::error::{Failure, Outcome};

const NO_TAG: &str = "a number tag must be an integer from 0 to 4294967295";

/// A tag that JavaScript handed over; for a number that is none, the reason.
pub enum Given {
    Number(u32),
    Text(String),
    Unfit(&'static str),
}

impl Given {
    fn new(arg: Arg) -> Outcome<Self> {
        match arg.kind() {
            sys::ValueType::napi_string => Ok(Given::Text(arg.text("a tag")?)),
            _ => {
                let number = arg.number("a tag", "a string or an integer")?;
                let whole = number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number);
                Ok(if whole { Given::Number(number as u32) } else { Given::Unfit(NO_TAG) })
            }
        }
    }

    fn tag(&self) -> Result<Tag<'_>, &'static str> {
        match self {
            Given::Number(number) => Ok(Tag::Number(*number)),
            Given::Text(text) => Ok(Tag::Text(text)),
            Given::Unfit(reason) => Err(reason),
        }
    }
}

fn given(arg: Arg) -> Outcome<Vec<Given>> {
    arg.list("tags")?.into_iter().map(Given::new).collect()
}

/// The tags of one record, from an array that `index.js` made.
pub fn set(arg: Arg) -> Outcome<TagSet> {
    gathered(arg, |tags| TagSet::new(tags.iter().copied()))
}

fn gathered(arg: Arg, make: impl FnOnce(&[Tag<'_>]) -> vecplane_core::Result<TagSet>) -> Outcome<TagSet> {
    let given = given(arg)?;
    let unfit = |reason| Failure::from(vecplane_core::Error::TagInvalid { reason });
    let tags = given.iter().map(Given::tag).collect::<Result<Vec<_>, _>>().map_err(unfit)?;
    Ok(make(&tags)?)
}

/// What a query asks of tags, from an object that `index.js` made.
pub fn query(arg: Arg) -> Outcome<TagQuery> {
    let part = |name| {
        let part = arg.option(name).given();
        part.map(|arg| gathered(arg, |tags| TagSet::of_any_size(tags.iter().copied()))).transpose()
    };
    Ok(TagQuery {
        any_of: part("anyOf")?,
        all_of: part("allOf")?.unwrap_or_default(),
        none_of: part("noneOf")?.unwrap_or_default(),
    })
}

/// The tags of a batch: each distinct one, and which of them each record has.
#[derive(Default)]
pub struct Column {
    distinct: Vec<Given>,
    refs: Vec<u32>,
    ends: Vec<u32>,
}

impl Column {
    /// From an object that `index.js` made.
    pub fn new(arg: Arg) -> Outcome<Self> {
        Ok(Column {
            distinct: given(arg.option("distinct"))?,
            refs: arg.option("refs").words("tags")?,
            ends: arg.option("ends").words("tags")?,
        })
    }

    /// Hands it to the engine.
    pub fn with<T>(&self, call: impl FnOnce(BatchTags<'_>) -> T) -> T {
        let distinct: Vec<_> = self.distinct.iter().map(Given::tag).collect();
        call(BatchTags { distinct: &distinct, refs: &self.refs, ends: &self.ends })
    }
}
