//! Chunks of a plan whose stages have different policies. Equal chunks are assembled only once.

use crate::pass::profile::{PieceProfile, StepProfile};
use crate::pipeline::arrangement::{Arrangement, KINDS};
use crate::pipeline::chunk::Chunk;
use sim::units::Seconds;
use workloads::LayerMix;

/// A plan's chunks, by their places in the pipeline.
#[derive(Debug, Clone)]
pub(crate) struct StagedChunks {
    /// The distinct chunks, by kind.
    pub chunks: Vec<Chunk>,
    /// Index of each place's chunk.
    of: Vec<usize>,
    /// Indices of each device's chunks, with their counts.
    on: Vec<Vec<(usize, u64)>>,
}

impl StagedChunks {
    /// Returns the chunks of an arrangement. `mixes` gives the policies of each chunk's layers, in pipeline order.
    /// `chunk` makes a chunk from its kind and its piece.
    pub fn new(
        arrangement: &Arrangement,
        profile: &StepProfile,
        mixes: &[LayerMix],
        chunk: impl Fn(usize, PieceProfile) -> Chunk,
    ) -> Self {
        let mut staged = Self { chunks: Vec::new(), of: vec![0; mixes.len()], on: Vec::new() };
        for kind in 0..KINDS {
            let mut known: Vec<(&LayerMix, usize)> = Vec::new();
            for (place, mix) in
                mixes.iter().enumerate().filter(|(place, _)| arrangement.chunk_kind(*place as u64) == kind)
            {
                let same = known.iter().find(|(other, _)| *other == mix).map(|(_, at)| *at);
                staged.of[place] = same.unwrap_or_else(|| {
                    known.push((mix, staged.chunks.len()));
                    staged.chunks.push(chunk(kind, piece_of_chunk(arrangement, profile, place as u64, mix)));
                    staged.chunks.len() - 1
                });
            }
        }
        staged.on = (0..arrangement.layout.pipeline).map(|device| staged.chunks_held_by(arrangement, device)).collect();
        staged
    }

    /// Returns the chunks of a device, with their counts.
    pub fn chunks_on_device(&self, device: u32) -> impl Iterator<Item = (&Chunk, u64)> {
        self.on.get(device as usize).into_iter().flatten().map(|&(chunk, count)| (&self.chunks[chunk], count))
    }

    /// Returns the chunk at `place` in the pipeline.
    pub fn chunk_at(&self, place: u64) -> &Chunk {
        &self.chunks[self.of[place as usize]]
    }

    /// Returns the time of a micro-batch's passes through the first round's chunks before those of `device`. `pass`
    /// gives the time of one chunk's pass. `device` is at least 1.
    pub fn time_before_device(&self, device: u32, pass: impl Fn(&Chunk) -> Seconds) -> Seconds {
        let between = self.chunk_counts(self.of[1..device as usize].iter().copied());
        pass(self.chunk_at(0)) + between.into_iter().map(|(at, count)| pass(&self.chunks[at]) * count as f64).sum()
    }

    fn chunks_held_by(&self, arrangement: &Arrangement, device: u32) -> Vec<(usize, u64)> {
        let here = self.of.iter().enumerate().filter(|(place, _)| arrangement.device_of_chunk(*place as u64) == device);
        self.chunk_counts(here.map(|(_, at)| *at))
    }

    fn chunk_counts(&self, places: impl Iterator<Item = usize>) -> Vec<(usize, u64)> {
        let mut counts = vec![0; self.chunks.len()];
        places.for_each(|at| counts[at] += 1);
        counts.into_iter().enumerate().filter(|(_, count)| *count > 0).collect()
    }
}

/// Returns the profile of a chunk: its layers under their policies, and its end.
fn piece_of_chunk(arrangement: &Arrangement, profile: &StepProfile, place: u64, mix: &LayerMix) -> PieceProfile {
    let layers =
        mix.iter().map(|run| profile.layer_with_policy(&run.policy).times(run.layers)).reduce(PieceProfile::plus);
    let mut piece = layers.unwrap_or_default();
    if place == 0 {
        piece = profile.embedding.plus(piece);
    }
    if place + 1 == arrangement.split.chunks {
        piece = piece.plus(profile.head);
        if place > 0 {
            piece.parameters += profile.tied_parameters;
        }
    }
    piece
}
