//! Boxes of combinations: products of ranges of a space's dimensions.

use super::formula::Formulas;
use serde::{Deserialize, Serialize};
use sim::hardware::FieldValue;

/// A box of combinations: for each listed dimension a range of adjacent values. Numbers are in ascending order.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Region {
    /// By dimension: the first and the last position in the dimension's order.
    ranges: Vec<(u16, u16)>,
}

/// The order of each dimension's values, for ranges.
#[derive(Debug, Clone)]
pub(super) struct DimensionOrder {
    /// By dimension: indices into the study's list. Numbers ascend; words keep the list's order.
    places: Vec<Vec<usize>>,
}

impl DimensionOrder {
    pub fn new(formulas: &Formulas) -> Self {
        let of = |values: &Vec<FieldValue>| {
            let mut places: Vec<usize> = (0..values.len()).collect();
            let numbers: Option<Vec<f64>> = values.iter().map(FieldValue::number).collect();
            if let Some(numbers) = numbers {
                places.sort_by(|&a, &b| numbers[a].total_cmp(&numbers[b]));
            }
            places
        };
        Self { places: formulas.listed_values().iter().map(of).collect() }
    }

    /// The region of all combinations.
    pub fn whole_region(&self) -> Region {
        // The position fits in 16 bits, because a dimension has at most 65,536 values.
        Region { ranges: self.places.iter().map(|places| (0, (places.len() - 1) as u16)).collect() }
    }

    /// The indices of a region's values in the study's lists, by dimension.
    pub fn places_of_region(&self, region: &Region) -> Vec<Vec<usize>> {
        let of = |(places, &(first, last)): (&Vec<usize>, &(u16, u16))| {
            places[usize::from(first)..=usize::from(last)].to_vec()
        };
        self.places.iter().zip(&region.ranges).map(of).collect()
    }
}

impl Region {
    /// The number of combinations.
    #[must_use]
    pub fn combination_count(&self) -> u64 {
        self.ranges.iter().map(|(first, last)| u64::from(last - first) + 1).product()
    }

    /// True if it is a single combination.
    #[must_use]
    pub fn is_single(&self) -> bool {
        self.ranges.iter().all(|(first, last)| first == last)
    }

    /// Dimensions with several values.
    pub(crate) fn open_dimensions(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.ranges.len()).filter(|&dimension| self.ranges[dimension].0 < self.ranges[dimension].1)
    }

    /// Splits the region into its lower and upper half along a dimension with several values.
    pub(crate) fn split_in_halves(&self, dimension: usize) -> [Self; 2] {
        let (first, last) = self.ranges[dimension];
        let middle = first + (last - first) / 2;
        let with = |range| {
            let mut half = self.clone();
            half.ranges[dimension] = range;
            half
        };
        [with((first, middle)), with((middle + 1, last))]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::super::dimension::read_dimensions;
    use super::*;

    #[test]
    fn halves_share_a_region_among_them_and_leave_nothing_out() {
        let dimensions =
            read_dimensions(&toml::from_str("a = [4, 1, 2]\nb = [\"x\", \"y\"]\nc = 7\nd = \"a + c\"").unwrap())
                .unwrap();
        let formulas = Formulas::new(&dimensions, &|_| None).unwrap();
        let order = DimensionOrder::new(&formulas);
        let whole = order.whole_region();
        assert_eq!((whole.combination_count(), whole.open_dimensions().collect::<Vec<_>>()), (6, vec![0, 1]));
        assert_eq!(order.places_of_region(&whole), [vec![1, 2, 0], vec![0, 1], vec![0]]);
        let (mut singles, mut waiting) = (Vec::new(), vec![whole]);
        while let Some(region) = waiting.pop() {
            match region.open_dimensions().next() {
                Some(dimension) => waiting.extend(region.split_in_halves(dimension)),
                None => singles.push(
                    formulas.combination_of_places(order.places_of_region(&region).into_iter().map(|places| places[0])),
                ),
            }
        }
        singles.sort_unstable();
        assert_eq!(singles, [0, 1, 2, 3, 4, 5]);
    }
}
