//! Matrices of weights on a device of a tensor-parallel group, and the low-rank forms of what belongs to them.

use super::activations::round_rank;
use super::policy::ProjectionBasis;

/// A matrix: `copies` of rows x columns on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Matrix {
    pub(crate) copies: u64,
    pub(crate) rows: u64,
    pub(crate) columns: u64,
    /// Devices that it is split among.
    pub(crate) ranks: u64,
    /// Whether its rows are split, not its columns.
    pub(crate) by_rows: bool,
}

impl Matrix {
    /// The dimension that a rank stands for: the products' input on the device for a basis drawn from a seed, which every device draws for what it has;
    /// for singular vectors the shorter side of the whole matrix, of which they are.
    pub(crate) fn projected_side(self, basis: ProjectionBasis) -> u64 {
        match basis {
            ProjectionBasis::Seed => self.rows,
            ProjectionBasis::SingularVectors => {
                let [rows, columns] = self.undivided_sides();
                rows.min(columns)
            }
        }
    }

    /// A rank as a whole number. Singular vectors are at most as many as the shorter side has: GaLore's decomposition cuts a larger rank there
    /// (`U[:, :rank]` of its authors' code). A basis from a seed has no such end: a rank above its side is none.
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

    /// Rows and columns of the whole matrix.
    pub(crate) fn undivided_sides(self) -> [u64; 2] {
        if self.by_rows {
            [self.rows.saturating_mul(self.ranks), self.columns]
        } else {
            [self.rows, self.columns.saturating_mul(self.ranks)]
        }
    }

    /// Whether singular vectors are those of its rows' side: of the shorter one of the whole matrix, of equal ones the one that is not split, so that a
    /// device projects its part alone.
    fn projects_rows(self) -> bool {
        let [rows, columns] = self.undivided_sides();
        rows < columns || rows == columns && !self.by_rows
    }

    /// The sides of a device's part: the one that singular vectors project, and the other.
    pub(crate) fn projected_and_other_side(self) -> [u64; 2] {
        if self.projects_rows() { [self.rows, self.columns] } else { [self.columns, self.rows] }
    }

    /// Numbers on one device of what stands for it in a rank: of the projection, and of the basis.
    ///
    /// The projection is one of the whole matrix, shared by its devices without a rest: of a matrix that is split along the side that is not projected
    /// each has its columns of it; along the other, the devices' projections are summed and scattered. Of the basis a device has the rows that meet
    /// its part of the gradient: all of them, replicated, where the projected side is whole there, its own where that side is split.
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
            // Columns of gate: the shorter side is whole on each device.
            let gate = Matrix { copies: 1, rows: h, columns: i / ranks, ranks, by_rows: false };
            assert_eq!(gate.projected_numbers(r, ProjectionBasis::SingularVectors), [r * i / ranks, r * h]);
            // Rows of down: the shorter side, its columns, is whole as well.
            let down = Matrix { copies: 1, rows: i / ranks, columns: h, ranks, by_rows: true };
            assert_eq!(down.projected_numbers(r, ProjectionBasis::SingularVectors), [r * i / ranks, r * h]);
            // A square one is projected along the side that is not split.
            for by_rows in [false, true] {
                let [rows, columns] = if by_rows { [h / ranks, h] } else { [h, h / ranks] };
                let square = Matrix { copies: 2, rows, columns, ranks, by_rows };
                assert_eq!(square.projected_numbers(r, ProjectionBasis::SingularVectors), [2 * r * h / ranks, 2 * r * h]);
                assert_eq!(square.projected_side(ProjectionBasis::SingularVectors), h);
            }
            // Keys of few heads: the shorter side is the split one; both projection and basis are shared.
            let key = Matrix { copies: 1, rows: h, columns: 1024 / ranks, ranks, by_rows: false };
            assert_eq!(key.projected_numbers(512, ProjectionBasis::SingularVectors), [512 * h / ranks, 512 * 1024 / ranks]);
            assert_eq!(key.projected_side(ProjectionBasis::SingularVectors), 1024);
            // A rank above that is as many singular vectors as there are; a basis from a seed has as many as are asked for, or is none.
            assert_eq!(key.rank_within_sides(1792.0, ProjectionBasis::SingularVectors), Some(1024));
            assert_eq!(key.rank_within_sides(0.25, ProjectionBasis::SingularVectors), Some(256));
            assert_eq!(key.rank_within_sides(0.0, ProjectionBasis::SingularVectors), None);
            assert_eq!(
                (key.rank_within_sides(4096.0, ProjectionBasis::Seed), key.rank_within_sides(4097.0, ProjectionBasis::Seed)),
                (Some(4096), None)
            );
        }
    }
}
