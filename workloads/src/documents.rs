//! Documents packed into sequences: attention stays within a document.

use crate::document_lengths::DocumentLength;
use crate::error::WorkloadError;
use crate::layer_list::{EncoderDecoderSide, KeyWindow};
use crate::model::Model;
use sim::kernel::{MOST_PIECE_LENGTHS, PieceLength, SequencePieces};

/// Largest number of distinct lengths in a distribution.
pub const MOST_DOCUMENT_LENGTHS: usize = 4096;
/// Largest number of documents of one length.
const MOST_DOCUMENTS: u64 = 1 << 32;

impl Model {
    /// Returns the model with packed documents: a token attends only to its own document. An empty list changes
    /// nothing. Documents are packed whole. A document longer than a sequence fills whole sequences, and its rest
    /// counts as a separate document.
    ///
    /// # Errors
    /// A length or a number that is zero or out of range; too many lengths; a model for which attention within
    /// documents is not modelled (encoder-decoders, images, other tasks, indexers, compressed keys).
    pub fn with_documents(self, documents: Vec<DocumentLength>) -> Result<Self, WorkloadError> {
        if documents.is_empty() {
            return Ok(self);
        }
        let error = |value: String, limit: String, cure: &str| WorkloadError::BadLowering {
            model: self.name.clone(),
            setting: "the lengths of documents".to_owned(),
            value,
            limit,
            cure: cure.to_owned(),
        };
        if documents.len() > MOST_DOCUMENT_LENGTHS {
            let limit = format!("at most {MOST_DOCUMENT_LENGTHS} lengths");
            return Err(error(documents.len().to_string(), limit, "group them"));
        }
        let most = crate::limits::MAX_POSITIONS;
        let wrong =
            |d: &&DocumentLength| !(1..=most).contains(&d.tokens) || !(1..=MOST_DOCUMENTS).contains(&d.documents);
        if let Some(wrong) = documents.iter().find(wrong) {
            let value = format!("{}:{}", wrong.tokens, wrong.documents);
            let limit = format!("from 1 to {most} tokens, and from 1 to {MOST_DOCUMENTS} documents");
            return Err(error(value, limit, "correct it"));
        }
        let v = &self.variations;
        let without = [
            (v.side != EncoderDecoderSide::Only, "an encoder-decoder"),
            (v.patches.is_some(), "images"),
            (v.task_head.is_some(), "a head of another task than predicting tokens"),
            (v.indexer.is_some(), "keys that an indexer chooses"),
            (v.compressed.is_some(), "keys compressed over time"),
        ];
        if let Some((_, what)) = without.iter().find(|(has, _)| *has) {
            let limit = format!("none: attention within documents is not modelled for {what}");
            return Err(error("given".to_owned(), limit, "leave them out"));
        }
        let (tokens, squares) = documents.iter().fold((0_u128, 0_u128), |(tokens, squares), d| {
            let all = u128::from(d.documents) * u128::from(d.tokens);
            (tokens + all, squares + all * u128::from(d.tokens))
        });
        let mut model = self;
        model.assumptions.push(format!(
            "attention stays within documents, and kernels skip the scores between them; a token's document has {} \
             tokens on average before sequences cut it",
            squares / tokens
        ));
        model.documents = documents;
        Ok(model)
    }

    /// Returns the pieces into which documents cut a sequence of `sequence` tokens; `None` if a token may see the whole
    /// sequence.
    #[must_use]
    pub fn pieces_of_sequence(&self, sequence: u64) -> Option<SequencePieces> {
        group_pieces(self.documents_in_sequence(sequence), sequence)
    }

    /// Returns the pieces into which documents and chunked attention cut a sequence, in a model whose layers are alike;
    /// `None` if nothing cuts it.
    pub(crate) fn pieces_of_attention(&self, sequence: u64) -> Option<SequencePieces> {
        let Some(chunk) = self.variations.window.and_then(KeyWindow::chunk) else {
            return self.pieces_of_sequence(sequence);
        };
        let whole = match self.documents_in_sequence(sequence) {
            documents if documents.is_empty() => vec![EqualPieces { tokens: sequence, number: 1 }],
            documents => documents,
        };
        group_pieces(whole.into_iter().flat_map(|piece| cut_piece(piece, chunk)).collect(), sequence)
    }

    /// Returns the pieces into which documents cut sequences.
    fn documents_in_sequence(&self, sequence: u64) -> Vec<EqualPieces> {
        let whole = self.documents.iter().map(|d| EqualPieces { tokens: d.tokens, number: d.documents.into() });
        whole.flat_map(|documents| cut_piece(documents, sequence.max(1))).collect()
    }
}

/// Pieces of equal length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct EqualPieces {
    /// Length of a piece.
    tokens: u64,
    number: u128,
}

/// Returns the pieces of one sequence. Their lengths follow the distribution `lengths`. `None` if every piece is as
/// long as the sequence.
fn group_pieces(mut lengths: Vec<EqualPieces>, sequence: u64) -> Option<SequencePieces> {
    if lengths.iter().all(|pieces| pieces.tokens >= sequence) {
        return None;
    }
    lengths.sort_unstable();
    let groups = group_lengths(&lengths);
    let all: u128 = groups.iter().map(|group| group.tokens).sum();
    // The longest pieces get the tokens that rounding leaves over.
    let mut left = sequence;
    let share = |group: &LengthGroup| u64::try_from(group.tokens * u128::from(sequence) / all).unwrap_or(0);
    let mut pieces: Vec<PieceLength> =
        groups.iter().map(|group| PieceLength { keys: group.mean_length(), held: share(group) }).collect();
    pieces.iter().for_each(|piece| left -= piece.held);
    pieces.last_mut()?.held += left;
    SequencePieces::new(&pieces)
}

/// Cuts pieces into pieces of at most `longest` tokens.
fn cut_piece(EqualPieces { tokens, number }: EqualPieces, longest: u64) -> impl Iterator<Item = EqualPieces> {
    let (full, rest) = (tokens / longest, tokens % longest);
    let cut =
        [EqualPieces { tokens: longest, number: number * u128::from(full) }, EqualPieces { tokens: rest, number }];
    cut.into_iter().filter(|cut| cut.tokens > 0 && cut.number > 0)
}

/// A group of pieces of neighbouring lengths.
#[derive(Debug, Clone, Copy, Default)]
struct LengthGroup {
    /// Sum of the pieces' lengths.
    tokens: u128,
    /// Sum of the squares of the pieces' lengths.
    squares: u128,
}

impl LengthGroup {
    /// Returns the length of equal pieces with as many tokens and scores as the group, rounded, at least 1.
    fn mean_length(self) -> u64 {
        u64::try_from((self.squares + self.tokens / 2) / self.tokens.max(1)).unwrap_or(u64::MAX).max(1)
    }

    fn with_pieces(self, pieces: EqualPieces) -> Self {
        let tokens = u128::from(pieces.tokens) * pieces.number;
        Self { tokens: self.tokens + tokens, squares: self.squares + tokens * u128::from(pieces.tokens) }
    }
}

/// Groups sorted lengths into at most [`MOST_PIECE_LENGTHS`] groups with about equally many tokens each. If there are
/// no more distinct lengths than that, each length is a group.
fn group_lengths(sorted: &[EqualPieces]) -> Vec<LengthGroup> {
    let distinct: Vec<LengthGroup> = sorted
        .chunk_by(|a, b| a.tokens == b.tokens)
        .map(|same| same.iter().fold(LengthGroup::default(), |group, pieces| group.with_pieces(*pieces)))
        .collect();
    if distinct.len() <= MOST_PIECE_LENGTHS {
        return distinct;
    }
    let all: u128 = distinct.iter().map(|group| group.tokens).sum();
    let mut groups = vec![LengthGroup::default(); MOST_PIECE_LENGTHS];
    let mut before = 0;
    for group in distinct {
        let middle = before + group.tokens / 2;
        let at = usize::try_from(middle * MOST_PIECE_LENGTHS as u128 / all.max(1)).unwrap_or(0);
        before += group.tokens;
        let to = &mut groups[at.min(MOST_PIECE_LENGTHS - 1)];
        *to = LengthGroup { tokens: to.tokens + group.tokens, squares: to.squares + group.squares };
    }
    groups.retain(|group| group.tokens > 0);
    groups
}
