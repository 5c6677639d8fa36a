//! Computes dimensions that follow from others, in an order in which every expression has its inputs.

use super::dimension::{Dimension, Values, describe_cycle};
use super::extent::ValueExtent;
use super::interval::{Expression, NumberInterval};
use super::lookup::LookUp;
use super::names::{FORM, brace_names, check_functions, names_in_expression};
use exmex::{Express, FlatEx};
use sim::hardware::FieldValue;
use std::collections::BTreeMap;

/// The name of the die area in mm². The area is known once all other fields are, and serves fields that depend on it
/// (static power).
pub const AREA: &str = "area_mm2";

/// The rule that computes a dimension.
#[derive(Debug, Clone)]
enum Rule {
    /// A copy of another dimension.
    Same(usize),
    /// A word.
    Word(String),
    /// A number computed from others: the expression, the positions of its names, and the same expression over
    /// intervals.
    Computed(Box<FlatEx<f64>>, Vec<usize>, Box<Expression>),
    /// A value looked up by the dimension at this position.
    LookedUp(usize, LookUp),
}

/// A computed dimension.
#[derive(Debug, Clone)]
struct Derived {
    slot: usize,
    text: String,
    rule: Rule,
    /// True if it depends on the area.
    of_area: bool,
}

/// All dimensions of a space: the listed ones, and those computed from them.
#[derive(Debug, Clone)]
pub struct Formulas {
    /// The names of all values: listed dimensions first, in the order of the study's keys, then names that expressions
    /// use and computed dimensions.
    keys: Vec<String>,
    listed: Vec<Vec<FieldValue>>,
    /// The initial values: the base's value for fields that expressions only read, otherwise NaN.
    start: Vec<FieldValue>,
    derived: Vec<Derived>,
}

/// The values of a design, in the order of [`Formulas::keys`].
pub type DesignValues = Vec<FieldValue>;

impl Formulas {
    /// Orders the dimensions by dependency. `base` gives the base's value of a field that expressions read but no
    /// dimension varies.
    ///
    /// # Errors
    /// The faulty dimension and its fault.
    pub fn new(dimensions: &[Dimension], base: &dyn Fn(&str) -> Option<FieldValue>) -> Result<Self, String> {
        let mut keys = Vec::new();
        let mut listed = Vec::new();
        for dimension in dimensions {
            if let Values::Listed(values) = &dimension.values {
                keys.push(dimension.key.clone());
                listed.push(values.clone());
            }
        }
        let mut formulas =
            Self { start: vec![FieldValue::Number(f64::NAN); keys.len()], keys, listed, derived: Vec::new() };
        let mut waiting: BTreeMap<&str, &Values> = BTreeMap::new();
        for dimension in dimensions.iter().filter(|dimension| !matches!(dimension.values, Values::Listed(_))) {
            waiting.insert(&dimension.key, &dimension.values);
        }
        // Each round adds the dimensions that depend on none still waiting.
        while !waiting.is_empty() {
            let ready: Vec<&str> = waiting
                .iter()
                .filter(|(_, values)| !waiting.keys().any(|name| values.refer_to_dimension(name)))
                .map(|(key, _)| *key)
                .collect();
            if ready.is_empty() {
                return Err(describe_cycle(&waiting));
            }
            for key in ready {
                if let Some(values) = waiting.remove(key) {
                    let fault = |why| format!("space.dimensions.{key} = {values}: {why}");
                    formulas.add_rule(key, values, base).map_err(fault)?;
                }
            }
        }
        Ok(formulas)
    }

    fn add_rule(
        &mut self,
        key: &str,
        values: &Values,
        base: &dyn Fn(&str) -> Option<FieldValue>,
    ) -> Result<(), String> {
        let rule = match values {
            Values::Listed(_) => return Ok(()),
            Values::Derived(text) => self.parse_expression(key, text, base)?,
            Values::LookedUp(look_up) => {
                let slot = self.slot_of_name(&look_up.by, base).ok_or_else(|| self.unknown_name(&look_up.by))?;
                // Checks the values that are known now. Computed values are checked when a design is built.
                self.possible_values(slot).into_iter().try_for_each(|value| look_up.value_for(value).map(drop))?;
                Rule::LookedUp(slot, look_up.clone())
            }
        };
        let of_area = match &rule {
            Rule::Same(slot) | Rule::LookedUp(slot, _) => self.follows_from_area(*slot),
            Rule::Word(_) => false,
            Rule::Computed(_, slots, _) => slots.iter().any(|slot| self.follows_from_area(*slot)),
        };
        self.keys.push(key.to_owned());
        self.start.push(FieldValue::Number(f64::NAN));
        self.derived.push(Derived { slot: self.keys.len() - 1, text: values.to_string(), rule, of_area });
        Ok(())
    }

    /// The possible values at a position, if they are listed, looked up or the base's. Otherwise empty.
    fn possible_values(&self, slot: usize) -> Vec<&FieldValue> {
        if let Some(values) = self.listed.get(slot) {
            return values.iter().collect();
        }
        match self.derived.iter().find(|derived| derived.slot == slot).map(|derived| &derived.rule) {
            None if self.keys[slot] == AREA => Vec::new(),
            None => vec![&self.start[slot]],
            Some(Rule::Same(of)) => self.possible_values(*of),
            Some(Rule::LookedUp(_, look_up)) => look_up.values.iter().map(|(_, value)| value).collect(),
            Some(Rule::Word(_) | Rule::Computed(..)) => Vec::new(),
        }
    }

    /// Parses a derived dimension: an expression, the name of another dimension, or a word.
    fn parse_expression(
        &mut self,
        key: &str,
        text: &str,
        base: &dyn Fn(&str) -> Option<FieldValue>,
    ) -> Result<Rule, String> {
        let names = names_in_expression(text);
        if let [name] = &names[..]
            && text.trim() == name
        {
            return match self.slot_of_name(name, base) {
                Some(slot) => Ok(Rule::Same(slot)),
                // A word, for a field whose values are words.
                None if !matches!(base(key), Some(FieldValue::Number(_)) | None) => Ok(Rule::Word(name.clone())),
                None => Err(self.unknown_name(name)),
            };
        }
        check_functions(text)?;
        let expression: FlatEx<f64> =
            exmex::parse(&brace_names(text)).map_err(|why| format!("{}; {FORM}", why.msg()))?;
        let mut slots = Vec::new();
        for name in expression.var_names() {
            slots.push(self.slot_of_name(name, base).ok_or_else(|| self.unknown_name(name))?);
        }
        // This rejects the parser's functions without an interval version, which could not bound a box.
        let ends = Expression::parse(&brace_names(text)).map_err(|why| format!("{}; {FORM}", why.msg()))?;
        Ok(Rule::Computed(Box::new(expression), slots, Box::new(ends)))
    }

    fn unknown_name(&self, name: &str) -> String {
        let known = self.keys.join(", ");
        format!(
            "{name} is neither a dimension of the study nor a field of the base; {}",
            sim::names::hint(name, &known, "there are")
        )
    }

    fn follows_from_area(&self, slot: usize) -> bool {
        self.keys[slot] == AREA || self.derived.iter().any(|derived| derived.slot == slot && derived.of_area)
    }

    /// The position of a name in `keys`. A name that only the base has is added. `None` if neither has it.
    fn slot_of_name(&mut self, name: &str, base: &dyn Fn(&str) -> Option<FieldValue>) -> Option<usize> {
        if let Some(slot) = self.keys.iter().position(|key| key == name) {
            return Some(slot);
        }
        let value = if name == AREA { FieldValue::Number(f64::NAN) } else { base(name)? };
        self.keys.push(name.to_owned());
        self.start.push(value);
        Some(self.keys.len() - 1)
    }

    /// The names of all values, listed ones first.
    #[must_use]
    pub fn keys(&self) -> &[String] {
        &self.keys
    }

    /// The values of the listed dimensions, in the order of [`Self::keys`].
    #[must_use]
    pub fn listed_values(&self) -> &[Vec<FieldValue>] {
        &self.listed
    }

    /// The computed dimensions that follow a dimension, directly or through others.
    #[must_use]
    pub fn keys_that_follow(&self, key: &str) -> Vec<&str> {
        let mut following: Vec<usize> = self.keys.iter().position(|known| known == key).into_iter().collect();
        // Computed dimensions stand behind those that they refer to.
        for derived in &self.derived {
            let refers = |slot: &usize| following.contains(slot);
            let follows = match &derived.rule {
                Rule::Same(slot) | Rule::LookedUp(slot, _) => refers(slot),
                Rule::Word(_) => false,
                Rule::Computed(_, slots, _) => slots.iter().any(refers),
            };
            if follows {
                following.push(derived.slot);
            }
        }
        following.iter().skip(1).map(|slot| self.keys[*slot].as_str()).collect()
    }

    /// True if a dimension follows from the area.
    #[must_use]
    pub fn any_follows_from_area(&self) -> bool {
        self.derived.iter().any(|derived| derived.of_area)
    }

    /// The positions in [`Self::keys`] that a design sets. If `of_area` is true, those that depend on the area;
    /// otherwise all others, listed ones included.
    pub fn positions_set(&self, of_area: bool) -> impl Iterator<Item = usize> + '_ {
        let listed = if of_area { 0 } else { self.listed.len() };
        (0..listed)
            .chain(self.derived.iter().filter(move |derived| derived.of_area == of_area).map(|derived| derived.slot))
    }

    /// The number of combinations of the listed values; `None` if it overflows.
    #[must_use]
    pub fn combination_count(&self) -> Option<u64> {
        self.listed.iter().try_fold(1_u64, |product, values| product.checked_mul(values.len() as u64))
    }

    /// Indices of a combination's values in their lists. The first dimension changes least often.
    #[must_use]
    pub fn places_of_combination(&self, mut combination: u64) -> Vec<usize> {
        let mut places = vec![0; self.listed.len()];
        for (place, values) in places.iter_mut().zip(&self.listed).rev() {
            *place = (combination % values.len() as u64) as usize;
            combination /= values.len() as u64;
        }
        places
    }

    /// All values of a combination, except those that depend on the area, which stay NaN.
    ///
    /// # Errors
    /// An expression whose value is no number, or a look-up without a result.
    pub fn values_of_combination(&self, combination: u64) -> Result<DesignValues, String> {
        let mut slots = self.start.clone();
        for ((slot, place), values) in slots.iter_mut().zip(self.places_of_combination(combination)).zip(&self.listed) {
            *slot = values[place].clone();
        }
        self.compute_values(&mut slots, false)?;
        Ok(slots)
    }

    /// Adds the values that depend on the area.
    ///
    /// # Errors
    /// As [`Self::values_of_combination`].
    pub fn add_area_values(&self, slots: &mut DesignValues, area_mm2: f64) -> Result<(), String> {
        if let Some(at) = self.keys.iter().position(|key| key == AREA) {
            slots[at] = FieldValue::Number(area_mm2);
        }
        self.compute_values(slots, true)
    }

    fn compute_values(&self, slots: &mut DesignValues, of_area: bool) -> Result<(), String> {
        for derived in self.derived.iter().filter(|derived| derived.of_area == of_area) {
            slots[derived.slot] = match &derived.rule {
                Rule::Same(slot) => slots[*slot].clone(),
                Rule::Word(word) => FieldValue::Word(word.clone()),
                Rule::LookedUp(by, look_up) => {
                    look_up.value_for(&slots[*by]).map_err(|why| self.expression_fault(derived, &why))?.clone()
                }
                Rule::Computed(expression, names, _) => self.evaluate_expression(
                    derived,
                    expression,
                    &names.iter().map(|&name| (name, &slots[name])).collect::<Vec<_>>(),
                )?,
            };
        }
        Ok(())
    }

    fn expression_fault(&self, derived: &Derived, why: &str) -> String {
        format!("space.dimensions.{} = {}: {why}", self.keys[derived.slot], derived.text)
    }

    /// The value of an expression with these values of its names.
    fn evaluate_expression(
        &self,
        derived: &Derived,
        expression: &FlatEx<f64>,
        names: &[(usize, &FieldValue)],
    ) -> Result<FieldValue, String> {
        let fault = |why: String| self.expression_fault(derived, &why);
        let mut numbers = Vec::with_capacity(names.len());
        for (name, setting) in names {
            let wrong = || fault(format!("{} = {setting} is no number; give it numbers", self.keys[*name]));
            numbers.push(setting.number().ok_or_else(wrong)?);
        }
        let value = expression.eval(&numbers).map_err(|why| fault(why.msg().to_owned()))?;
        if !value.is_finite() {
            let of: Vec<String> = names
                .iter()
                .zip(&numbers)
                .map(|((name, _), value)| format!("{} = {value}", self.keys[*name]))
                .collect();
            let why = format!("is {value} where {}: it divides by zero or has no value", of.join(", "));
            return Err(fault(format!("{why}; correct it, or leave such values out")));
        }
        Ok(FieldValue::Number(value))
    }

    /// The extents of all values except those that follow from the area. `some` gives, for each listed dimension, the
    /// indices of its possible values.
    ///
    /// # Errors
    /// An expression of fixed values whose value is no number, or a look-up without a result.
    pub(super) fn extents_of_region(&self, some: &[Vec<usize>]) -> Result<Vec<ValueExtent>, String> {
        let mut extents: Vec<ValueExtent> = self.start.iter().cloned().map(ValueExtent::Fixed).collect();
        for ((extent, places), values) in extents.iter_mut().zip(some).zip(&self.listed) {
            *extent = ValueExtent::one_of(places.iter().map(|&place| &values[place]).collect());
        }
        self.compute_extents(&mut extents, false)?;
        Ok(extents)
    }

    /// Adds the extents of values that depend on the area.
    ///
    /// # Errors
    /// As [`Self::extents_of_region`].
    pub(super) fn add_area_extents(&self, extents: &mut [ValueExtent], area_mm2: NumberInterval) -> Result<(), String> {
        if let Some(at) = self.keys.iter().position(|key| key == AREA) {
            extents[at] = ValueExtent::Between(area_mm2);
        }
        self.compute_extents(extents, true)
    }

    fn compute_extents(&self, extents: &mut [ValueExtent], of_area: bool) -> Result<(), String> {
        for derived in self.derived.iter().filter(|derived| derived.of_area == of_area) {
            extents[derived.slot] = match &derived.rule {
                Rule::Same(slot) => extents[*slot].clone(),
                Rule::Word(word) => ValueExtent::Fixed(FieldValue::Word(word.clone())),
                Rule::LookedUp(by, look_up) => {
                    look_up.extent_for(&extents[*by]).map_err(|why| self.expression_fault(derived, &why))?
                }
                Rule::Computed(expression, names, ends) => {
                    let fixed: Option<Vec<(usize, &FieldValue)>> =
                        names
                            .iter()
                            .map(|&name| {
                                if let ValueExtent::Fixed(value) = &extents[name] { Some((name, value)) } else { None }
                            })
                            .collect();
                    let ranges = || {
                        names
                            .iter()
                            .map(|&name| extents[name].interval_if_known())
                            .collect::<Option<Vec<NumberInterval>>>()
                    };
                    match fixed {
                        Some(fixed) => ValueExtent::Fixed(self.evaluate_expression(derived, expression, &fixed)?),
                        None => {
                            let range =
                                ranges().and_then(|ranges| ends.eval(&ranges).ok()).filter(|range| range.is_finite());
                            range.map_or(ValueExtent::Unknown, ValueExtent::Between)
                        }
                    }
                }
            };
        }
        Ok(())
    }

    /// The listed dimensions that a value depends on; `None` if it follows from the area.
    pub(super) fn roots_of_value(&self, slot: usize) -> Option<Vec<usize>> {
        if self.follows_from_area(slot) {
            return None;
        }
        if slot < self.listed.len() {
            return Some(vec![slot]);
        }
        let Some(derived) = self.derived.iter().find(|derived| derived.slot == slot) else { return Some(Vec::new()) };
        let mut roots = Vec::new();
        match &derived.rule {
            Rule::Same(of) | Rule::LookedUp(of, _) => roots = self.roots_of_value(*of)?,
            Rule::Word(_) => {}
            Rule::Computed(_, names, _) => {
                for name in names {
                    roots.extend(self.roots_of_value(*name)?);
                }
            }
        }
        roots.sort_unstable();
        roots.dedup();
        Some(roots)
    }

    /// The number of the combination with these indices of the listed values.
    pub(super) fn combination_of_places(&self, places: impl IntoIterator<Item = usize>) -> u64 {
        self.listed.iter().zip(places).fold(0, |number, (values, place)| number * values.len() as u64 + place as u64)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::super::dimension::read_dimensions;
    use super::*;

    fn base(key: &str) -> Option<FieldValue> {
        match key {
            "tensor.cores" | "tensor.rows" | "clock_mhz" => Some(FieldValue::Number(8.0)),
            "area.node" => Some(FieldValue::Word("n7".into())),
            _ => None,
        }
    }

    fn formulas(text: &str) -> Result<Formulas, String> {
        Formulas::new(&read_dimensions(&toml::from_str(text).unwrap()).unwrap(), &base)
    }

    fn value(formulas: &Formulas, combination: u64, key: &str) -> FieldValue {
        let mut slots = formulas.values_of_combination(combination).unwrap();
        formulas.add_area_values(&mut slots, 100.0).unwrap();
        slots[formulas.keys().iter().position(|k| k == key).unwrap()].clone()
    }

    #[test]
    fn what_follows_is_computed_in_any_order() {
        let text = "a = \"b + 1\"\nb = \"max(tensor.cores, 2) * tensor.rows\"\n\"tensor.cores\" = [1, 4]\n\
                    \"area.node\" = \"n5\"\n\"energy.node\" = \"area.node\"\nw = \"0.15 * area_mm2\"\n\"e\" = \"w / 2 + 10\"\nlow = \"min(b, ceil(2.5))\"";
        let f = formulas(text).unwrap();
        assert_eq!(f.combination_count(), Some(2));
        let number = |c, key| value(&f, c, key).number().unwrap();
        assert_eq!((number(0, "a"), number(1, "a"), number(0, "low")), (17.0, 33.0, 3.0));
        assert_eq!((number(0, "w"), number(1, "e")), (15.0, 17.5));
        assert_eq!(value(&f, 0, "energy.node"), FieldValue::Word("n5".into()));
        assert!(f.any_follows_from_area());
        let later: Vec<&str> = f.positions_set(true).map(|slot| f.keys()[slot].as_str()).collect();
        assert_eq!(later, ["w", "e"]);
    }

    #[test]
    fn combinations_count_through_the_last_dimension_first() {
        let f = formulas("a = [1, 2]\nb = [1, 2, 3]\nc = \"a * 10 + b\"").unwrap();
        let all: Vec<f64> = (0..6).map(|i| value(&f, i, "c").number().unwrap()).collect();
        assert_eq!(all, [11.0, 12.0, 13.0, 21.0, 22.0, 23.0]);
    }

    #[test]
    fn what_belongs_to_another_value_is_looked_up() {
        let text = "\"area.node\" = [\"n7\", \"n5\", \"n3\"]\nnode = \"area.node\"\nstacks = [2, 4, 8]\n\
                    rate = { by = \"node\", values = { n7 = 460, n5 = 460, n3 = 922, n2 = 2000 } }\n\
                    \"area.link\" = { by = \"area.node\", values = { n7 = \"old\", n5 = \"new\", n3 = \"new\" } }\n\
                    hbm = \"rate * stacks\"\nspare = { by = \"stacks\", values = { 2 = 0, 4 = 1.5, 8.0 = 1 } }";
        let f = formulas(&text.replace("8.0", "\"8.0\"")).unwrap();
        let all: Vec<f64> = (0..9).map(|i| value(&f, i, "hbm").number().unwrap()).collect();
        assert_eq!(all, [920.0, 1840.0, 3680.0, 920.0, 1840.0, 3680.0, 1844.0, 3688.0, 7376.0]);
        let spare: Vec<f64> = (0..3).map(|i| value(&f, i, "spare").number().unwrap()).collect();
        assert_eq!((spare, value(&f, 8, "area.link")), (vec![0.0, 1.5, 1.0], FieldValue::Word("new".into())));
        let slot = |key: &str| f.keys().iter().position(|k| k == key).unwrap();
        assert_eq!(f.roots_of_value(slot("hbm")).unwrap(), [0, 1]);
        let box_of =
            |nodes: &[usize], stacks: &[usize]| f.extents_of_region(&[nodes.to_vec(), stacks.to_vec()]).unwrap();
        let older = box_of(&[0, 1], &[0, 1]);
        assert_eq!(older[slot("rate")], ValueExtent::Fixed(FieldValue::Number(460.0)));
        assert_eq!(older[slot("hbm")], ValueExtent::Between(NumberInterval::new(920.0, 1840.0)));
        assert_eq!(older[slot("spare")], ValueExtent::Between(NumberInterval::new(0.0, 1.5)));
        let links = ["old", "new"].map(|word| FieldValue::Word(word.into())).to_vec();
        assert_eq!(older[slot("area.link")], ValueExtent::Among(links));
        assert_eq!(box_of(&[0, 2], &[2])[slot("rate")], ValueExtent::Between(NumberInterval::new(460.0, 922.0)));
        assert_eq!(box_of(&[1, 2], &[2])[slot("area.link")], ValueExtent::Fixed(FieldValue::Word("new".into())));
    }

    #[test]
    fn what_cannot_be_computed_is_named() {
        for (text, why) in [
            (
                "a = \"b\"\nb = \"a + 1\"",
                "space.dimensions.a = \"b\": it refers to itself (a -> b -> a); give one of them values",
            ),
            ("a = \"a + 1\"", "it refers to itself (a -> a)"),
            (
                "a = \"2 * c\"\nb = \"c\"\nc = \"b + 1\"",
                "space.dimensions.c = \"b + 1\": it refers to itself (c -> b -> c)",
            ),
            ("a = \"sin(tensor.cores)\"", "write plain numbers, names of dimensions, + - * / ^ and min, max"),
            ("a = \"tensor.colums * 2\"", "tensor.colums is neither a dimension of the study nor a field of the base"),
            ("a = \"2 * (3\"", "space.dimensions.a = \"2 * (3\": "),
            (
                "\"area.node\" = [\"n7\", \"n3\"]\na = { by = \"area.node\", values = { n7 = 1 } }",
                "space.dimensions.a = { by = \"area.node\", values = { n7 = 1 } }: has no value for area.node = n3; add one (values = { n3 = ... }), \
                 or leave n3 out of area.node",
            ),
            (
                "a = { by = \"area.nodes\", values = { n7 = 1 } }",
                "area.nodes is neither a dimension of the study nor a field of the base",
            ),
            ("a = { by = \"clock_mhz\", values = { 9 = 1 } }", "has no value for clock_mhz = 8"),
            ("a = { by = \"b\", values = { 1 = 1 } }\nb = \"2 * a\"", "it refers to itself"),
        ] {
            let error = formulas(text).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let zero = formulas("a = [2, 0]\nb = \"clock_mhz / a\"").unwrap();
        let error = zero.values_of_combination(1).unwrap_err();
        assert!(
            error.starts_with(
                "space.dimensions.b = \"clock_mhz / a\": is inf where a = 0, clock_mhz = 8: it divides by zero"
            ),
            "{error}"
        );
        assert!(zero.values_of_combination(0).is_ok());
        let computed = formulas("a = [1, 2]\nb = \"2 * a\"\nc = { by = \"b\", values = { 2 = 7 } }").unwrap();
        assert_eq!(value(&computed, 0, "c"), FieldValue::Number(7.0));
        assert!(
            computed
                .values_of_combination(1)
                .unwrap_err()
                .contains("has no value for b = 4; add one (values = { 4 = ... })")
        );
        let word = formulas("b = \"2 * area.node\"").unwrap();
        assert!(word.values_of_combination(0).unwrap_err().contains("area.node = n7 is no number; give it numbers"));
    }
}
