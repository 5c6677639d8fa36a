//! Tile sizes that the mapper tries.

use super::tensor_core::{ceil_div, ceil_nonnegative};
use serde::{Deserialize, Serialize};

/// The tile sizes that the mapper tries per dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MappingEffort {
    /// Powers of two and the whole dimension, as in kernel libraries.
    #[default]
    Library,
    /// Also multiples of three (3, 6, 12, ...) and every even split of the dimension into 2 to 8.
    Thorough,
    /// Every size up to the dimension, for dimensions up to 64. Beyond, as [`MappingEffort::Thorough`] with splits into
    /// 2 to 64.
    Exhaustive,
}

impl MappingEffort {
    /// True if the sizes of every dimension come in descending order.
    pub(super) fn sizes_only_fall(self) -> bool {
        self == Self::Library
    }
}

/// Most candidates per dimension: 64 powers of two, 64 with a factor of three, 64 splits.
const MAX_SIZES: usize = 192;

/// Tile sizes of one dimension, the whole dimension first. Thorough sizes are neither sorted nor free of repeats.
#[derive(Debug, Clone, Copy)]
pub(super) struct TileSizes {
    values: [f64; MAX_SIZES],
    count: usize,
}

impl TileSizes {
    /// Returns the sizes for an effort. `granule` is the array dimension that this dimension is mapped on; `None` for
    /// the streamed one. If every size is listed ([`MappingEffort::Exhaustive`] up to 64), a granule drops each size
    /// whose next smaller one gives as many tiles and as many folds of the edge tile: the smaller one takes as long and
    /// needs less room.
    pub(super) fn new(dimension: f64, effort: MappingEffort, granule: Option<f64>) -> Self {
        let mut sizes = Self { values: [0.0; MAX_SIZES], count: 0 };
        sizes.push(dimension);
        if effort == MappingEffort::Exhaustive && dimension <= 64.0 {
            let mut size = dimension - 1.0;
            while size >= 1.0 {
                sizes.push(size);
                size -= 1.0;
            }
            if let Some(granule) = granule {
                sizes.drop_dominated(dimension, granule);
            }
            return sizes;
        }
        let mut power = 1.0;
        while power * 2.0 < dimension {
            power *= 2.0;
        }
        while power >= 1.0 {
            sizes.push(power);
            if effort > MappingEffort::Library && power >= 2.0 {
                sizes.push(power * 0.75);
            }
            power /= 2.0;
        }
        let splits = match effort {
            MappingEffort::Library => 0,
            MappingEffort::Thorough => 8,
            MappingEffort::Exhaustive => 64,
        };
        for split in 2..=splits {
            sizes.push(ceil_div(dimension, f64::from(split)));
        }
        sizes
    }

    /// Drops every size whose successor gives as many tiles and no more folds. The sizes are consecutive and
    /// descending.
    fn drop_dominated(&mut self, dimension: f64, granule: f64) {
        let cut = |size: f64| {
            let tiles = ceil_div(dimension, size);
            let edge = dimension - (tiles - 1.0) * size;
            (tiles, ceil_div(size, granule), ceil_div(edge, granule))
        };
        let mut kept = 0;
        for i in 0..self.count {
            let size = self.values[i];
            let dominated = i + 1 < self.count && {
                let ((tiles, folds, edge), (fewer_tiles, fewer_folds, fewer_edge)) =
                    (cut(size), cut(self.values[i + 1]));
                tiles == fewer_tiles && fewer_folds <= folds && fewer_edge <= edge
            };
            if !dominated {
                self.values[kept] = size;
                kept += 1;
            }
        }
        self.count = kept;
    }

    fn push(&mut self, size: f64) {
        let size = ceil_nonnegative(size);
        if let Some(slot) = self.values.get_mut(self.count)
            && size >= 1.0
        {
            *slot = size;
            self.count += 1;
        }
    }

    /// Returns the sizes in listed order, or reversed if `back`.
    pub(super) fn iter(&self, back: bool) -> impl Iterator<Item = f64> + '_ {
        (0..self.count).filter_map(move |i| self.values.get(if back { self.count - 1 - i } else { i }).copied())
    }
}
