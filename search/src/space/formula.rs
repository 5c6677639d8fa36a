//! Dimensions that follow from others: expressions in the order in which they can be computed.

use super::dimension::{Dimension, Values};
use super::interval::{Expression, Interval};
use exmex::{Express, FlatEx};
use sim::hardware::Setting;
use std::collections::BTreeMap;

/// The die's area: known once all other fields are, of use for what grows with it (static power).
pub const AREA: &str = "area_mm2";
/// Functions of expressions; what stands before a bracket is no name.
const FUNCTIONS: &str = "min, max, ceil, floor, round, sqrt, ln, log2, log10, exp, abs";

/// What a formula says.
#[derive(Debug, Clone)]
enum Rule {
    /// As another dimension.
    Same(usize),
    /// A word.
    Word(String),
    /// A computed number of others; beside it the same over intervals, where its functions have them.
    Computed(Box<FlatEx<f64>>, Vec<usize>, Option<Box<Expression>>),
}

/// What is known of a value while the dimensions range over parts of their lists.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Extent {
    /// This.
    Fixed(Setting),
    /// A number between these.
    Between(Interval),
    /// Nothing.
    Unknown,
}

impl Extent {
    fn interval(&self) -> Option<Interval> {
        match self {
            Self::Fixed(Setting::Number(number)) => Some(Interval::point(*number)),
            Self::Between(interval) => Some(*interval),
            _ => None,
        }
    }
}

/// A computed dimension.
#[derive(Debug, Clone)]
struct Derived {
    slot: usize,
    text: String,
    rule: Rule,
    /// Whether it follows from the area.
    of_area: bool,
}

/// All dimensions of a space: those that are listed, and what follows from them.
#[derive(Debug, Clone)]
pub struct Formulas {
    /// Names of all values, listed ones first, in the order of the study's keys.
    keys: Vec<String>,
    listed: Vec<Vec<Setting>>,
    /// Values that no design changes.
    start: Vec<Setting>,
    derived: Vec<Derived>,
}

/// The values of a design, by [`Formulas::keys`].
pub type Slots = Vec<Setting>;

impl Formulas {
    /// Puts dimensions in order. `base` says what a field of the base has, for those that expressions refer to without varying them.
    ///
    /// # Errors
    /// Which dimension is wrong, and how.
    pub fn new(dimensions: &[Dimension], base: &dyn Fn(&str) -> Option<Setting>) -> Result<Self, String> {
        let mut keys = Vec::new();
        let mut listed = Vec::new();
        for dimension in dimensions {
            if let Values::Listed(values) = &dimension.values {
                keys.push(dimension.key.clone());
                listed.push(values.clone());
            }
        }
        let mut formulas = Self { start: vec![Setting::Number(f64::NAN); keys.len()], keys, listed, derived: Vec::new() };
        let mut waiting: BTreeMap<&str, &str> = BTreeMap::new();
        for dimension in dimensions {
            if let Values::Derived(text) = &dimension.values {
                waiting.insert(&dimension.key, text);
            }
        }
        // Each round computes what needs nothing that waits.
        while !waiting.is_empty() {
            let ready: Vec<&str> = waiting
                .iter()
                .filter(|(_, text)| names(text).iter().all(|name| !waiting.contains_key(name.as_str())))
                .map(|(key, _)| *key)
                .collect();
            if ready.is_empty() {
                let (key, text) = waiting.first_key_value().map_or(("", ""), |(key, text)| (*key, *text));
                let why = "it refers to itself, or to what waits for it; give one of them values";
                return Err(format!("space.dimensions.{key} = \"{text}\": {why}"));
            }
            for key in ready {
                let text = waiting.remove(key).unwrap_or_default();
                formulas.add(key, text, base).map_err(|why| format!("space.dimensions.{key} = \"{text}\": {why}"))?;
            }
        }
        Ok(formulas)
    }

    fn add(&mut self, key: &str, text: &str, base: &dyn Fn(&str) -> Option<Setting>) -> Result<(), String> {
        let names = names(text);
        let rule = if let [name] = &names[..]
            && text.trim() == name
        {
            match self.slot(name, base) {
                Some(slot) => Rule::Same(slot),
                // A word for a field that has words.
                None if !matches!(base(key), Some(Setting::Number(_)) | None) => Rule::Word(name.clone()),
                None => return Err(self.unknown(name)),
            }
        } else {
            let expression: FlatEx<f64> = exmex::parse(&braced(text))
                .map_err(|why| format!("{}; write plain numbers, names of dimensions, + - * / ^ and {FUNCTIONS}", why.msg()))?;
            let mut slots = Vec::new();
            for name in expression.var_names() {
                slots.push(self.slot(name, base).ok_or_else(|| self.unknown(name))?);
            }
            let ends = Expression::parse(&braced(text)).ok().map(Box::new);
            Rule::Computed(Box::new(expression), slots, ends)
        };
        let of_area = match &rule {
            Rule::Same(slot) => self.is_of_area(*slot),
            Rule::Word(_) => false,
            Rule::Computed(_, slots, _) => slots.iter().any(|slot| self.is_of_area(*slot)),
        };
        self.keys.push(key.to_owned());
        self.start.push(Setting::Number(f64::NAN));
        self.derived.push(Derived { slot: self.keys.len() - 1, text: text.to_owned(), rule, of_area });
        Ok(())
    }

    fn unknown(&self, name: &str) -> String {
        let known = self.keys.join(", ");
        format!("{name} is no dimension of the study and no field of the base; {}", sim::names::hint(name, &known, "there are"))
    }

    fn is_of_area(&self, slot: usize) -> bool {
        self.keys[slot] == AREA || self.derived.iter().any(|derived| derived.slot == slot && derived.of_area)
    }

    /// The slot of a name; one that only the base has gets its own.
    fn slot(&mut self, name: &str, base: &dyn Fn(&str) -> Option<Setting>) -> Option<usize> {
        if let Some(slot) = self.keys.iter().position(|key| key == name) {
            return Some(slot);
        }
        let value = if name == AREA { Setting::Number(f64::NAN) } else { base(name)? };
        self.keys.push(name.to_owned());
        self.start.push(value);
        Some(self.keys.len() - 1)
    }

    /// The names of all values, the listed ones first.
    #[must_use]
    pub fn keys(&self) -> &[String] {
        &self.keys
    }

    /// The values of the listed dimensions, by the first of [`Self::keys`].
    #[must_use]
    pub fn listed(&self) -> &[Vec<Setting>] {
        &self.listed
    }

    /// Whether a dimension follows from the area.
    #[must_use]
    pub fn any_of_area(&self) -> bool {
        self.derived.iter().any(|derived| derived.of_area)
    }

    /// What a design sets: positions in [`Self::keys`] of what is listed, and of what follows, from the area or not.
    pub fn set(&self, of_area: bool) -> impl Iterator<Item = usize> + '_ {
        let listed = if of_area { 0 } else { self.listed.len() };
        (0..listed).chain(self.derived.iter().filter(move |derived| derived.of_area == of_area).map(|derived| derived.slot))
    }

    /// Combinations of the listed values; `None` where there are too many to count.
    #[must_use]
    pub fn combinations(&self) -> Option<u64> {
        self.listed.iter().try_fold(1_u64, |product, values| product.checked_mul(values.len() as u64))
    }

    /// Places of a combination's values in their lists; the first dimension changes least often.
    #[must_use]
    pub fn places(&self, mut combination: u64) -> Vec<usize> {
        let mut places = vec![0; self.listed.len()];
        for (place, values) in places.iter_mut().zip(&self.listed).rev() {
            *place = (combination % values.len() as u64) as usize;
            combination /= values.len() as u64;
        }
        places
    }

    /// All values of a combination but those that follow from the area.
    ///
    /// # Errors
    /// An expression whose value is no number.
    pub fn values(&self, combination: u64) -> Result<Slots, String> {
        let mut slots = self.start.clone();
        for ((slot, place), values) in slots.iter_mut().zip(self.places(combination)).zip(&self.listed) {
            *slot = values[place].clone();
        }
        self.compute(&mut slots, false)?;
        Ok(slots)
    }

    /// The values that follow from the area.
    ///
    /// # Errors
    /// An expression whose value is no number.
    pub fn with_area(&self, slots: &mut Slots, area_mm2: f64) -> Result<(), String> {
        if let Some(at) = self.keys.iter().position(|key| key == AREA) {
            slots[at] = Setting::Number(area_mm2);
        }
        self.compute(slots, true)
    }

    fn compute(&self, slots: &mut Slots, of_area: bool) -> Result<(), String> {
        for derived in self.derived.iter().filter(|derived| derived.of_area == of_area) {
            slots[derived.slot] = match &derived.rule {
                Rule::Same(slot) => slots[*slot].clone(),
                Rule::Word(word) => Setting::Word(word.clone()),
                Rule::Computed(expression, names, _) => {
                    self.value(derived, expression, &names.iter().map(|&name| (name, &slots[name])).collect::<Vec<_>>())?
                }
            };
        }
        Ok(())
    }

    /// The value of an expression where its names have these.
    fn value(&self, derived: &Derived, expression: &FlatEx<f64>, names: &[(usize, &Setting)]) -> Result<Setting, String> {
        let fault = |why: String| format!("space.dimensions.{} = \"{}\": {why}", self.keys[derived.slot], derived.text);
        let mut numbers = Vec::with_capacity(names.len());
        for (name, setting) in names {
            numbers.push(setting.number().ok_or_else(|| fault(format!("{} is no number", self.keys[*name])))?);
        }
        let value = expression.eval(&numbers).map_err(|why| fault(why.msg().to_owned()))?;
        if !value.is_finite() {
            let of: Vec<String> =
                names.iter().zip(&numbers).map(|((name, _), value)| format!("{} = {value}", self.keys[*name])).collect();
            let why = format!("is {value} where {}: it divides by zero or has no value", of.join(", "));
            return Err(fault(format!("{why}; correct it, or leave such values out")));
        }
        Ok(Setting::Number(value))
    }

    /// What is known of all values but those that follow from the area, where each listed dimension has one of some of its values: their places.
    ///
    /// # Errors
    /// An expression whose value is no number, of values that are all fixed.
    pub(super) fn extents(&self, some: &[Vec<usize>]) -> Result<Vec<Extent>, String> {
        let mut extents: Vec<Extent> = self.start.iter().cloned().map(Extent::Fixed).collect();
        for ((extent, places), values) in extents.iter_mut().zip(some).zip(&self.listed) {
            *extent = match &places[..] {
                [place] => Extent::Fixed(values[*place].clone()),
                places => {
                    let numbers: Option<Vec<f64>> = places.iter().map(|&place| values[place].number()).collect();
                    numbers.map_or(Extent::Unknown, |numbers| Extent::Between(Interval::hull(&numbers)))
                }
            };
        }
        self.extend(&mut extents, false)?;
        Ok(extents)
    }

    /// What is known of the values that follow from the area.
    ///
    /// # Errors
    /// As [`Self::extents`].
    pub(super) fn extents_with_area(&self, extents: &mut [Extent], area_mm2: Interval) -> Result<(), String> {
        if let Some(at) = self.keys.iter().position(|key| key == AREA) {
            extents[at] = Extent::Between(area_mm2);
        }
        self.extend(extents, true)
    }

    fn extend(&self, extents: &mut [Extent], of_area: bool) -> Result<(), String> {
        for derived in self.derived.iter().filter(|derived| derived.of_area == of_area) {
            extents[derived.slot] = match &derived.rule {
                Rule::Same(slot) => extents[*slot].clone(),
                Rule::Word(word) => Extent::Fixed(Setting::Word(word.clone())),
                Rule::Computed(expression, names, ends) => {
                    let fixed: Option<Vec<(usize, &Setting)>> = names
                        .iter()
                        .map(|&name| if let Extent::Fixed(value) = &extents[name] { Some((name, value)) } else { None })
                        .collect();
                    let ranges = || names.iter().map(|&name| extents[name].interval()).collect::<Option<Vec<Interval>>>();
                    match (fixed, ends) {
                        (Some(fixed), _) => Extent::Fixed(self.value(derived, expression, &fixed)?),
                        (None, Some(ends)) => {
                            let range = ranges().and_then(|ranges| ends.eval(&ranges).ok()).filter(|range| range.is_finite());
                            range.map_or(Extent::Unknown, Extent::Between)
                        }
                        (None, None) => Extent::Unknown,
                    }
                }
            };
        }
        Ok(())
    }

    /// The listed dimensions that a value follows from; `None` where it follows from the area.
    pub(super) fn roots(&self, slot: usize) -> Option<Vec<usize>> {
        if self.is_of_area(slot) {
            return None;
        }
        if slot < self.listed.len() {
            return Some(vec![slot]);
        }
        let Some(derived) = self.derived.iter().find(|derived| derived.slot == slot) else { return Some(Vec::new()) };
        let mut roots = Vec::new();
        match &derived.rule {
            Rule::Same(of) => roots = self.roots(*of)?,
            Rule::Word(_) => {}
            Rule::Computed(_, names, _) => {
                for name in names {
                    roots.extend(self.roots(*name)?);
                }
            }
        }
        roots.sort_unstable();
        roots.dedup();
        Some(roots)
    }

    /// The number of the combination of these places of the listed values.
    pub(super) fn combination(&self, places: impl IntoIterator<Item = usize>) -> u64 {
        self.listed.iter().zip(places).fold(0, |number, (values, place)| number * values.len() as u64 + place as u64)
    }
}

/// Whether a letter may be in a name.
fn in_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_' || letter == '.'
}

/// Pieces of an expression, names among them: not what begins with a digit, nor what stands before a bracket.
fn pieces(text: &str) -> Vec<(bool, &str)> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|letter| in_name(letter) != in_name(first)).unwrap_or(rest.len());
        let (piece, after) = rest.split_at(end);
        let named = first.is_ascii_alphabetic() && !after.trim_start().starts_with('(');
        found.push((named, piece));
        rest = after;
    }
    found
}

/// The names in an expression.
fn names(text: &str) -> Vec<String> {
    let mut names: Vec<String> = pieces(text).into_iter().filter(|(named, _)| *named).map(|(_, name)| name.to_owned()).collect();
    names.sort();
    names.dedup();
    names
}

/// Whether an expression has a name.
pub(super) fn refers(text: &str, name: &str) -> bool {
    pieces(text).into_iter().any(|(named, piece)| named && piece == name)
}

/// The expression with its names in braces, so that they may hold dots and be called as a function is.
fn braced(text: &str) -> String {
    pieces(text).into_iter().map(|(named, piece)| if named { format!("{{{piece}}}") } else { piece.to_owned() }).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::super::dimension::read;
    use super::*;

    fn base(key: &str) -> Option<Setting> {
        match key {
            "tensor.cores" | "tensor.rows" | "clock_mhz" => Some(Setting::Number(8.0)),
            "area.node" => Some(Setting::Word("n7".into())),
            _ => None,
        }
    }

    fn formulas(text: &str) -> Result<Formulas, String> {
        Formulas::new(&read(&toml::from_str(text).unwrap()).unwrap(), &base)
    }

    fn value(formulas: &Formulas, combination: u64, key: &str) -> Setting {
        let mut slots = formulas.values(combination).unwrap();
        formulas.with_area(&mut slots, 100.0).unwrap();
        slots[formulas.keys().iter().position(|k| k == key).unwrap()].clone()
    }

    #[test]
    fn what_follows_is_computed_in_any_order() {
        let text = "a = \"b + 1\"\nb = \"max(tensor.cores, 2) * tensor.rows\"\n\"tensor.cores\" = [1, 4]\n\
                    \"area.node\" = \"n5\"\n\"energy.node\" = \"area.node\"\nw = \"0.15 * area_mm2\"\n\"e\" = \"w / 2 + 10\"\nlow = \"min(b, ceil(2.5))\"";
        let f = formulas(text).unwrap();
        assert_eq!(f.combinations(), Some(2));
        let number = |c, key| value(&f, c, key).number().unwrap();
        assert_eq!((number(0, "a"), number(1, "a"), number(0, "low")), (17.0, 33.0, 3.0));
        assert_eq!((number(0, "w"), number(1, "e")), (15.0, 17.5));
        assert_eq!(value(&f, 0, "energy.node"), Setting::Word("n5".into()));
        assert!(f.any_of_area());
        let later: Vec<&str> = f.set(true).map(|slot| f.keys()[slot].as_str()).collect();
        assert_eq!(later, ["w", "e"]);
    }

    #[test]
    fn combinations_count_through_the_last_dimension_first() {
        let f = formulas("a = [1, 2]\nb = [1, 2, 3]\nc = \"a * 10 + b\"").unwrap();
        let all: Vec<f64> = (0..6).map(|i| value(&f, i, "c").number().unwrap()).collect();
        assert_eq!(all, [11.0, 12.0, 13.0, 21.0, 22.0, 23.0]);
    }

    #[test]
    fn what_cannot_be_computed_is_named() {
        for (text, why) in [
            (
                "a = \"b\"\nb = \"a + 1\"",
                "space.dimensions.a = \"b\": it refers to itself, or to what waits for it; give one of them values",
            ),
            ("a = \"a + 1\"", "it refers to itself"),
            ("a = \"tensor.colums * 2\"", "tensor.colums is no dimension of the study and no field of the base"),
            ("a = \"2 * (3\"", "space.dimensions.a = \"2 * (3\": "),
        ] {
            let error = formulas(text).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let zero = formulas("a = [2, 0]\nb = \"clock_mhz / a\"").unwrap();
        let error = zero.values(1).unwrap_err();
        assert!(
            error.starts_with("space.dimensions.b = \"clock_mhz / a\": is inf where a = 0, clock_mhz = 8: it divides by zero"),
            "{error}"
        );
        assert!(zero.values(0).is_ok());
        let word = formulas("b = \"2 * area.node\"").unwrap();
        assert!(word.values(0).unwrap_err().contains("area.node is no number"));
    }
}
