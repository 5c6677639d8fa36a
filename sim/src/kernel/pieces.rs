//! Sequences that are cut into pieces.

use super::FusedAttention;
use serde::{Deserialize, Serialize};

/// Largest number of distinct piece lengths in a kernel.
pub const MOST_PIECE_LENGTHS: usize = 8;

/// The pieces of one length in a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct PieceLength {
    /// Keys of a piece.
    pub keys: u64,
    /// Keys of the sequence that lie in pieces of this length.
    pub held: u64,
}

/// The pieces that a sequence is cut into. A query sees only keys of its own piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SequencePieces([PieceLength; MOST_PIECE_LENGTHS]);

impl SequencePieces {
    /// Returns the pieces of the given lengths. `None` if no length holds keys, or if there are more than
    /// [`MOST_PIECE_LENGTHS`].
    #[must_use]
    pub fn new(lengths: &[PieceLength]) -> Option<Self> {
        let mut pieces = [PieceLength::default(); MOST_PIECE_LENGTHS];
        let held = lengths.iter().filter(|length| length.keys > 0 && length.held > 0);
        if lengths.len() > pieces.len() || held.clone().count() == 0 {
            return None;
        }
        pieces.iter_mut().zip(held).for_each(|(piece, length)| *piece = *length);
        Some(Self(pieces))
    }

    /// Returns the lengths of the pieces.
    pub fn lengths(self) -> impl Iterator<Item = PieceLength> {
        self.0.into_iter().filter(|length| length.held > 0)
    }

    /// Returns the mean over a sequence's keys of a value that depends on the length of the key's piece, rounded down.
    pub fn mean_over_keys(self, value: impl Fn(u64) -> u128) -> u128 {
        let (sum, keys) = self.lengths().fold((0_u128, 0_u128), |(sum, keys), length| {
            (sum + u128::from(length.held) * value(length.keys), keys + u128::from(length.held))
        });
        sum / keys.max(1)
    }
}

impl FusedAttention {
    /// Returns attention on the pieces of each length as a kernel on whole sequences, with the number of times that it
    /// runs. A kernel has a whole number of pieces, and the second number corrects for that rounding. Without pieces
    /// the kernel itself is returned and runs once.
    pub fn kernels_of_pieces(&self) -> impl Iterator<Item = (Self, f64)> {
        let whole = self.pieces.is_none().then_some((*self, 1.0));
        let of_length = move |length: PieceLength| {
            let pieces = self.batch as f64 * length.held as f64 / length.keys as f64;
            let batch = pieces.round().max(1.0);
            let queries = (u128::from(self.queries) * u128::from(length.keys)).div_ceil(self.keys.max(1).into());
            let kernel = Self {
                batch: batch as u64,
                queries: u64::try_from(queries).unwrap_or(u64::MAX).max(1),
                keys: length.keys,
                window: self.window.filter(|window| *window < length.keys),
                pieces: None,
                ..*self
            };
            (kernel, pieces / batch)
        };
        whole.into_iter().chain(self.pieces.into_iter().flat_map(SequencePieces::lengths).map(of_length))
    }
}
