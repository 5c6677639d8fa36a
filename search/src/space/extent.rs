//! The extent of a dimension's value over a part of a space.

use super::interval::NumberInterval;
use sim::hardware::FieldValue;

/// The possible values of a dimension while the listed dimensions range over parts of their lists.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ValueExtent {
    /// A single value.
    Fixed(FieldValue),
    /// A number in this interval.
    Between(NumberInterval),
    /// One of these values, not all of which are numbers.
    Among(Vec<FieldValue>),
    /// No extent is known.
    Unknown,
}

impl ValueExtent {
    pub(super) fn interval_if_known(&self) -> Option<NumberInterval> {
        match self {
            Self::Fixed(FieldValue::Number(number)) => Some(NumberInterval::point(*number)),
            Self::Between(interval) => Some(*interval),
            _ => None,
        }
    }

    /// The extent of a value that is one of `values`; unknown if there are none.
    pub(super) fn one_of(values: Vec<&FieldValue>) -> Self {
        let [first, others @ ..] = &values[..] else { return Self::Unknown };
        if others.iter().all(|other| other == first) {
            return Self::Fixed((*first).clone());
        }
        match values.iter().map(|value| value.number()).collect::<Option<Vec<f64>>>() {
            Some(numbers) => Self::Between(NumberInterval::hull_of(&numbers)),
            None => Self::Among(values.into_iter().cloned().collect()),
        }
    }
}
