//! Splits rows into folds that are held out together.

/// Largest number of folds by size. If there are more sizes, neighbouring ones share a fold.
const MOST: usize = 6;

/// The fold of every row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RowFolds {
    pub(super) of: Vec<usize>,
    pub(super) count: usize,
}

impl RowFolds {
    pub(super) fn by_name(names: Vec<String>) -> Self {
        let mut known = names.clone();
        known.sort();
        known.dedup();
        let of = names.iter().map(|name| known.partition_point(|other| other < name)).collect();
        Self { of, count: known.len() }
    }

    /// Returns one fold per size. If there are many sizes, neighbouring ones share a fold.
    pub(super) fn by_size(sizes: Vec<u64>) -> Self {
        let mut known = sizes.clone();
        known.sort_unstable();
        known.dedup();
        let count = known.len().min(MOST);
        let of = |size: &u64| known.partition_point(|other| other < size) * count / known.len().max(1);
        Self { of: sizes.iter().map(of).collect(), count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_in_size_are_held_out_together() {
        let folds = RowFolds::by_size(vec![8, 1, 8, 16, 64, 32, 2, 4, 128, 256, 512, 1024]);
        assert_eq!(folds.count, 6);
        assert_eq!(folds.of, [1, 0, 1, 2, 3, 2, 0, 1, 3, 4, 4, 5]);
        assert_eq!(RowFolds::by_size(vec![5, 5]), RowFolds { of: vec![0, 0], count: 1 });
        assert_eq!(
            RowFolds::by_name(vec!["b".into(), "a".into(), "b".into()]),
            RowFolds { of: vec![1, 0, 1], count: 2 }
        );
    }
}
