//! The last check of an answer: every number is finite. JSON would print other numbers as `null`, and a table as `inf`
//! or `NaN`.

use serde::Serialize;
use serde::ser::{self, Serializer};
use std::fmt;

/// An answer with a number that is not finite.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FiniteError {
    /// A number that is not finite.
    #[error(
        "the answer's {key} is {value}, which is not finite; a value of the input is far too large or small: check its \
        unit and exponent"
    )]
    NotFinite {
        /// The keys and positions that lead to the number: `plans[0].step_s`.
        key: String,
        /// The number.
        value: f64,
    },
    /// The answer cannot be serialized.
    #[error("the answer cannot be written: {0}")]
    Other(String),
}

impl ser::Error for FiniteError {
    fn custom<T: fmt::Display>(why: T) -> Self {
        Self::Other(why.to_string())
    }
}

/// Checks every number in a value.
///
/// # Errors
/// The first number that is not finite, with its place; a value that cannot be serialized.
pub fn check_finite(value: &(impl Serialize + ?Sized)) -> Result<(), FiniteError> {
    value.serialize(&mut NumberWalk { path: String::new() })
}

/// A serializer that visits every number of a value and writes nothing.
struct NumberWalk {
    /// The current place.
    path: String,
}

impl NumberWalk {
    fn visit_number(&self, value: f64) -> Result<(), FiniteError> {
        if value.is_finite() { Ok(()) } else { Err(FiniteError::NotFinite { key: self.path.clone(), value }) }
    }

    /// Visits a part, then restores the place of its parent.
    fn visit_part(&mut self, part: &str, value: &(impl Serialize + ?Sized)) -> Result<(), FiniteError> {
        let here = self.path.len();
        self.path.push_str(part);
        value.serialize(&mut *self)?;
        self.path.truncate(here);
        Ok(())
    }

    fn visit_key(&mut self, key: &str, value: &(impl Serialize + ?Sized)) -> Result<(), FiniteError> {
        let part = if self.path.is_empty() { key.to_owned() } else { format!(".{key}") };
        self.visit_part(&part, value)
    }
}

/// A visit to the members of a list or an object.
struct PartWalk<'a> {
    walk: &'a mut NumberWalk,
    /// For a list: the next position.
    at: usize,
    /// For a map: the last key.
    key: String,
}

impl<'a> PartWalk<'a> {
    fn begin_parts(walk: &'a mut NumberWalk) -> Self {
        Self { walk, at: 0, key: String::new() }
    }

    fn visit_next(&mut self, value: &(impl Serialize + ?Sized)) -> Result<(), FiniteError> {
        self.at += 1;
        self.walk.visit_part(&format!("[{}]", self.at - 1), value)
    }
}

macro_rules! nothing_to_see {
    ($($method:ident: $kind:ty),*) => { $(fn $method(self, _: $kind) -> Result<(), FiniteError> { Ok(()) })* };
}

impl<'a> Serializer for &'a mut NumberWalk {
    type Ok = ();
    type Error = FiniteError;
    type SerializeSeq = PartWalk<'a>;
    type SerializeTuple = PartWalk<'a>;
    type SerializeTupleStruct = PartWalk<'a>;
    type SerializeTupleVariant = PartWalk<'a>;
    type SerializeMap = PartWalk<'a>;
    type SerializeStruct = PartWalk<'a>;
    type SerializeStructVariant = PartWalk<'a>;

    nothing_to_see!(
        serialize_bool: bool, serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64, serialize_i128: i128,
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64, serialize_u128: u128, serialize_char: char,
        serialize_str: &str, serialize_bytes: &[u8], serialize_unit_struct: &'static str
    );

    fn serialize_f32(self, value: f32) -> Result<(), FiniteError> {
        self.visit_number(value.into())
    }

    fn serialize_f64(self, value: f64) -> Result<(), FiniteError> {
        self.visit_number(value)
    }

    fn serialize_none(self) -> Result<(), FiniteError> {
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), FiniteError> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), FiniteError> {
        Ok(())
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, _: &'static str) -> Result<(), FiniteError> {
        Ok(())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result<(), FiniteError> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), FiniteError> {
        self.visit_key(variant, value)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<PartWalk<'a>, FiniteError> {
        Ok(PartWalk::begin_parts(self))
    }

    fn serialize_tuple(self, _: usize) -> Result<PartWalk<'a>, FiniteError> {
        Ok(PartWalk::begin_parts(self))
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<PartWalk<'a>, FiniteError> {
        Ok(PartWalk::begin_parts(self))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<PartWalk<'a>, FiniteError> {
        Ok(PartWalk::begin_parts(self))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<PartWalk<'a>, FiniteError> {
        Ok(PartWalk::begin_parts(self))
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<PartWalk<'a>, FiniteError> {
        Ok(PartWalk::begin_parts(self))
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<PartWalk<'a>, FiniteError> {
        Ok(PartWalk::begin_parts(self))
    }
}

macro_rules! list {
    ($($kind:ident::$method:ident),*) => { $(
        impl ser::$kind for PartWalk<'_> {
            type Ok = ();
            type Error = FiniteError;
            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), FiniteError> { self.visit_next(value) }
            fn end(self) -> Result<(), FiniteError> { Ok(()) }
        }
    )* };
}

list!(
    SerializeSeq::serialize_element,
    SerializeTuple::serialize_element,
    SerializeTupleStruct::serialize_field,
    SerializeTupleVariant::serialize_field
);

macro_rules! object {
    ($($kind:ident),*) => { $(
        impl ser::$kind for PartWalk<'_> {
            type Ok = ();
            type Error = FiniteError;
            fn serialize_field<T: Serialize + ?Sized>(&mut self, key: &'static str, value: &T) -> Result<(), FiniteError> {
                self.walk.visit_key(key, value)
            }
            fn end(self) -> Result<(), FiniteError> { Ok(()) }
        }
    )* };
}

object!(SerializeStruct, SerializeStructVariant);

impl ser::SerializeMap for PartWalk<'_> {
    type Ok = ();
    type Error = FiniteError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), FiniteError> {
        let text = serde_json::to_string(key).map_err(ser::Error::custom)?;
        text.trim_matches('"').clone_into(&mut self.key);
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), FiniteError> {
        let key = std::mem::take(&mut self.key);
        self.walk.visit_key(&key, value)
    }

    fn end(self) -> Result<(), FiniteError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[derive(Serialize)]
    struct Answer {
        plans: Vec<Plan>,
        parts: BTreeMap<&'static str, f64>,
    }

    #[derive(Serialize)]
    struct Plan {
        step_s: Option<f64>,
        pair: (u32, f64),
    }

    fn answer(step: f64, pair: f64, part: f64) -> Answer {
        let plans = vec![Plan { step_s: None, pair: (1, 2.0) }, Plan { step_s: Some(step), pair: (3, pair) }];
        Answer { plans, parts: BTreeMap::from([("memory", part)]) }
    }

    #[test]
    fn a_number_that_is_none_is_found_wherever_it_is_and_nothing_else_is() {
        assert_eq!(check_finite(&answer(1.0, -0.0, f64::MAX)), Ok(()));
        for bad in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
            for (answer, key) in [
                (answer(bad, 1.0, 1.0), "plans[1].step_s"),
                (answer(1.0, bad, 1.0), "plans[1].pair[1]"),
                (answer(1.0, 1.0, bad), "parts.memory"),
            ] {
                let error = check_finite(&answer).map_err(|error| error.to_string());
                let expected = format!("the answer's {key} is {bad}, which is not finite; ");
                assert!(error.as_ref().is_err_and(|error| error.starts_with(&expected)), "{error:?} {expected}");
            }
        }
    }
}
