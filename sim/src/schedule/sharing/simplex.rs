//! The revised simplex method (Dantzig, 1953) for programs with a row per operator, with column generation.

/// The coefficient of one column in one row.
#[derive(Debug, Clone, Copy)]
pub(super) struct ColumnEntry {
    pub row: usize,
    /// The part of the operator that one unit of the column completes.
    pub per: f64,
}

/// The smallest pivot.
const PIVOT: f64 = 1e-9;

/// Minimises the cost of columns that complete each row's operator at least once.
pub(super) struct CoveringProgram {
    /// The inverse of the basis, row by row.
    inverse: Vec<f64>,
    /// Per basic column: its value, and its cost.
    values: Vec<f64>,
    costs: Vec<f64>,
}

impl CoveringProgram {
    /// Starts from one column per row that completes only the row's operator, at a cost of 1 each.
    pub fn new(alone: &[ColumnEntry]) -> Self {
        let rows = alone.len();
        let mut inverse = vec![0.0; rows * rows];
        for (r, entry) in alone.iter().enumerate() {
            inverse[r * rows + r] = 1.0 / entry.per;
        }
        let values = alone.iter().map(|e| 1.0 / e.per).collect();
        Self { inverse, values, costs: vec![1.0; rows] }
    }

    fn row_count(&self) -> usize {
        self.values.len()
    }

    /// Returns the dual price of each row.
    pub fn shadow_prices(&self) -> Vec<f64> {
        let mut prices = vec![0.0; self.row_count()];
        for (line, &cost) in self.inverse.chunks(self.row_count()).zip(&self.costs) {
            if cost != 0.0 {
                for (p, e) in prices.iter_mut().zip(line) {
                    *p += cost * e;
                }
            }
        }
        prices
    }

    /// Brings a column into the basis. Returns `false` if no row limits it, which only rounding can cause.
    pub fn enter_column(&mut self, column: &[ColumnEntry], cost: f64) -> bool {
        let n = self.row_count();
        let change: Vec<f64> =
            self.inverse.chunks(n).map(|line| column.iter().map(|e| line[e.row] * e.per).sum::<f64>()).collect();
        let mut leaving: Option<(f64, usize)> = None;
        for r in (0..n).filter(|&r| change[r] > PIVOT) {
            let ratio = self.values[r].max(0.0) / change[r];
            // Among rows that leave at the same value take the largest pivot, for numerical stability.
            let better = leaving
                .is_none_or(|(least, l)| ratio < least - 1e-12 || ratio < least + 1e-12 && change[r] > change[l]);
            if better {
                leaving = Some((ratio, r));
            }
        }
        let Some((ratio, out)) = leaving else { return false };
        let line: Vec<f64> = self.inverse[out * n..(out + 1) * n].iter().map(|e| e / change[out]).collect();
        for r in (0..n).filter(|&r| r != out && change[r] != 0.0) {
            for (e, l) in self.inverse[r * n..(r + 1) * n].iter_mut().zip(&line) {
                *e -= change[r] * l;
            }
            self.values[r] -= change[r] * ratio;
        }
        self.inverse[out * n..(out + 1) * n].copy_from_slice(&line);
        (self.values[out], self.costs[out]) = (ratio, cost);
        true
    }
}
