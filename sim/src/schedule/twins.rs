//! Operators that can change places. The search starts those of a group in order of their numbers.

use super::bounds::{OperatorBitset, PrecedenceSets};
use super::piece::Piece;

/// Returns, per operator, the lower-numbered operators that can replace it in any schedule in which they start later.
pub(super) fn earlier_twins(
    piece: &Piece,
    relation: &PrecedenceSets,
    only_across: OperatorBitset,
) -> Vec<OperatorBitset> {
    let alike = |i: usize, j: usize| {
        (piece.kind[i], piece.lat[i], piece.exc[i], only_across >> i & 1)
            == (piece.kind[j], piece.lat[j], piece.exc[j], only_across >> j & 1)
    };
    let twins_of = |i: usize| {
        let before = (0..i).filter(|&j| alike(i, j) && relation.succs[i] & !relation.succs[j] == 0);
        before.fold(0, |set, j| set | 1 << j)
    };
    (0..piece.operator_count()).map(twins_of).collect()
}
