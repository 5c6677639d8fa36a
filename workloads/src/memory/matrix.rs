//! Weight matrices on one device of a tensor-parallel group, and the low-rank forms of their gradients and states.

use super::activations::round_rank;
use super::policy::ProjectionBasis;

/// One device's part of `copies` matrices; the part has `rows` x `columns` elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Matrix {
    pub(crate) copies: u64,
    pub(crate) rows: u64,
    pub(crate) columns: u64,
    /// Number of devices that share each matrix.
    pub(crate) ranks: u64,
    /// True if the devices split the rows instead of the columns.
    pub(crate) by_rows: bool,
}

impl Matrix {
    /// Returns the dimension that a rank replaces. A basis drawn from a seed replaces the product's input dimension on
    /// the device, because each device draws a basis for its own part. Singular vectors replace the shorter side of the
    /// whole matrix.
    pub(crate) fn projected_side(self, basis: ProjectionBasis) -> u64 {
        match basis {
            ProjectionBasis::Seed => self.rows,
            ProjectionBasis::SingularVectors => {
                let [rows, columns] = self.undivided_sides();
                rows.min(columns)
            }
        }
    }

    /// Returns a rank as a whole number. For singular vectors it is capped at the shorter side, as GaLore's
    /// decomposition does (`U[:, :rank]` in its authors' code). For a basis drawn from a seed, a rank above the side
    /// gives `None`.
    pub(crate) fn rank_within_sides(self, rank: f64, basis: ProjectionBasis) -> Option<u64> {
        let side = self.projected_side(basis);
        match basis {
            ProjectionBasis::Seed => round_rank(rank, side),
            ProjectionBasis::SingularVectors => round_rank(rank.min(side as f64), side),
        }
    }

    pub(crate) fn number_count(self) -> u64 {
        self.copies.saturating_mul(self.rows).saturating_mul(self.columns)
    }

    /// Returns the sides (rows, columns) of the matrix over all devices.
    pub(crate) fn undivided_sides(self) -> [u64; 2] {
        if self.by_rows {
            [self.rows.saturating_mul(self.ranks), self.columns]
        } else {
            [self.rows, self.columns.saturating_mul(self.ranks)]
        }
    }

    /// Returns whether singular vectors project the rows: the rows must be the shorter side of the whole matrix. In a
    /// square matrix they project the unsplit side, so that a device projects its part alone.
    fn projects_rows(self) -> bool {
        let [rows, columns] = self.undivided_sides();
        rows < columns || rows == columns && !self.by_rows
    }

    /// Returns the sides of the device's part: the projected side and the other side, in this order.
    pub(crate) fn projected_and_other_side(self) -> [u64; 2] {
        if self.projects_rows() { [self.rows, self.columns] } else { [self.columns, self.rows] }
    }

    /// Returns the number of elements on one device of a projection of rank `rank` and of its basis, in this order.
    ///
    /// The devices share one projection of the whole matrix without remainder. If the matrix is split along the other
    /// side, each device holds its own columns. If the matrix is split along the projected side, the devices sum their
    /// projections and scatter the sum. A device holds the rows of the basis that its part of the gradient needs: all
    /// rows if the projected side is whole on each device, otherwise its own rows.
    pub(crate) fn projected_numbers(self, rank: u64, basis: ProjectionBasis) -> [u64; 2] {
        match basis {
            ProjectionBasis::Seed => [self.copies * rank * self.columns, 0],
            ProjectionBasis::SingularVectors => {
                let [side, other] = self.projected_and_other_side();
                let split = self.projects_rows() == self.by_rows;
                let share = if split { other.div_ceil(self.ranks.max(1)) } else { other };
                [self.copies * rank * share, self.copies * rank * side]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_projection_is_of_the_whole_matrix_and_shared() {
        let (h, i, r) = (4096, 11008, 1024);
        for ranks in [1, 2, 8, 16] {
            // Gate is split by columns, so every device has the whole shorter side.
            let gate = Matrix { copies: 1, rows: h, columns: i / ranks, ranks, by_rows: false };
            assert_eq!(gate.projected_numbers(r, ProjectionBasis::SingularVectors), [r * i / ranks, r * h]);
            // Down is split by rows, so its shorter side, the columns, is whole as well.
            let down = Matrix { copies: 1, rows: i / ranks, columns: h, ranks, by_rows: true };
            assert_eq!(down.projected_numbers(r, ProjectionBasis::SingularVectors), [r * i / ranks, r * h]);
            // A square matrix is projected along its unsplit side.
            for by_rows in [false, true] {
                let [rows, columns] = if by_rows { [h / ranks, h] } else { [h, h / ranks] };
                let square = Matrix { copies: 2, rows, columns, ranks, by_rows };
                assert_eq!(
                    square.projected_numbers(r, ProjectionBasis::SingularVectors),
                    [2 * r * h / ranks, 2 * r * h]
                );
                assert_eq!(square.projected_side(ProjectionBasis::SingularVectors), h);
            }
            // The key product of few heads is split along its shorter side, so the devices share projection and basis.
            let key = Matrix { copies: 1, rows: h, columns: 1024 / ranks, ranks, by_rows: false };
            assert_eq!(
                key.projected_numbers(512, ProjectionBasis::SingularVectors),
                [512 * h / ranks, 512 * 1024 / ranks]
            );
            assert_eq!(key.projected_side(ProjectionBasis::SingularVectors), 1024);
            // With singular vectors, a rank above their number is lowered to it. With a seed's basis, the rank is the
            // requested one or none.
            assert_eq!(key.rank_within_sides(1792.0, ProjectionBasis::SingularVectors), Some(1024));
            assert_eq!(key.rank_within_sides(0.25, ProjectionBasis::SingularVectors), Some(256));
            assert_eq!(key.rank_within_sides(0.0, ProjectionBasis::SingularVectors), None);
            assert_eq!(
                (
                    key.rank_within_sides(4096.0, ProjectionBasis::Seed),
                    key.rank_within_sides(4097.0, ProjectionBasis::Seed)
                ),
                (Some(4096), None)
            );
        }
    }
}
