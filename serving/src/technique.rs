//! Techniques of inference on a deployment: merging the chunks of a long prompt, and reading stored memories.

use crate::ServingError;
use workloads::memory::ServingEffect;
use workloads::{Model, Technique, TechniqueError};

/// A technique of inference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ContextTechnique {
    /// Chunks of a prompt are merged two by two (HOMER).
    Merged(MergedChunks),
    /// Keys and values of stored texts are read from storage (Memory^3).
    Memories(StoredMemories),
}

impl ContextTechnique {
    /// Returns a technique for a model and prompts of up to `input` tokens.
    ///
    /// # Errors
    /// A technique of training, a parameter out of range, or chunks for which too few layers merge.
    pub fn of_technique(technique: &Technique, model: &Model, input: u64) -> Result<Self, ServingError> {
        let refused = |error: TechniqueError| ServingError::Technique(Box::new(error));
        let (effect, values) = technique.serving_effect(model, input).map_err(refused)?;
        let value = |key: &str| values.get(key).copied().unwrap_or(0.0);
        match effect {
            ServingEffect::MergeChunks => {
                let merged = MergedChunks {
                    chunk: (value("chunk") as u64).max(2),
                    warmup: value("warmup") as u64,
                    layers: model.layers,
                };
                merged.check_levels(input)?;
                Ok(Self::Merged(merged))
            }
            ServingEffect::ReadMemories => Ok(Self::Memories(StoredMemories {
                texts: value("references"),
                held_tokens: value("retrieved") * value("tokens") * value("memory_layers") / model.layers.max(1) as f64,
                stored_tokens: value("tokens") * value("memory_layers") / model.layers.max(1) as f64,
                interval: value("interval").max(1.0),
            })),
        }
    }
}

/// The merging of a prompt's chunks in a tree (Song et al., ICLR 2024, section 3; the authors' `patch_llama.py` has the
/// schedule). All chunks pass the first layers separately. At the end of its layers, a node keeps half a chunk of
/// tokens, in its own layers and all earlier ones. Its parent joins two nodes. Nodes are computed depth first, so at
/// most one node of every height waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MergedChunks {
    /// Tokens of a chunk, and of the merged prompt.
    pub chunk: u64,
    /// Number of first layers, which merge nothing.
    pub warmup: u64,
    /// Number of layers of the model.
    pub layers: u64,
}

/// The nodes of one height of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TreeLevel {
    /// Number of nodes.
    pub(crate) nodes: u64,
    /// Number of tokens of each node while its layers run.
    pub(crate) tokens: u64,
    /// Number of tokens that each node keeps afterwards.
    pub(crate) kept: u64,
    /// Number of layers that the nodes pass.
    pub(crate) layers: u64,
    /// Number of layers that their tokens have passed at the end, lower nodes included.
    pub(crate) passed: u64,
}

impl MergedChunks {
    /// Returns the number of a prompt's tokens that are left after merging.
    #[must_use]
    pub fn kept_tokens(&self, input: u64) -> u64 {
        input.min(self.chunk)
    }

    fn height(&self, input: u64) -> u64 {
        u64::from(input.div_ceil(self.chunk).next_power_of_two().trailing_zeros())
    }

    fn check_levels(&self, input: u64) -> Result<(), ServingError> {
        let (levels, merging) = (self.height(input) + 1, self.layers.saturating_sub(self.warmup));
        if levels <= merging || levels == 1 {
            return Ok(());
        }
        Err(ServingError::Plan {
            key: "chunk",
            value: self.chunk.to_string(),
            limit: format!("a prompt of {input} tokens needs {levels} heights of the tree, and {merging} layers merge"),
            cure: "give larger chunks, or a smaller warmup".to_owned(),
        })
    }

    /// Returns the nodes of a prompt of `input` tokens by height, leaves first.
    pub(crate) fn levels(&self, input: u64) -> Vec<TreeLevel> {
        let height = self.height(input);
        let merging = self.layers.saturating_sub(self.warmup);
        let each = merging / (height + 1);
        let leaves = 1u64 << height;
        let mut tokens = input.div_ceil(leaves);
        let (mut passed, mut levels) = (0, Vec::new());
        for level in 0..=height {
            let layers = if level == 0 { self.layers - each * height } else { each };
            passed += layers;
            let kept = if level == height { tokens.min(self.chunk) } else { tokens.min(self.chunk / 2) };
            levels.push(TreeLevel { nodes: 1 << (height - level), tokens, kept, layers, passed });
            tokens = 2 * kept;
        }
        levels
    }

    /// Returns the number of tokens that pass a layer for a prompt, as a mean over layers.
    pub(crate) fn computed_tokens(&self, input: u64) -> f64 {
        let of = |level: &TreeLevel| (level.nodes * level.tokens * level.layers) as f64;
        self.levels(input).iter().map(of).sum::<f64>() / self.layers.max(1) as f64
    }

    /// Returns the peak number of tokens with keys and values that a prompt holds at once, as a mean over layers: of
    /// the node at work, and of one waiting node of every height from its own up, except the root's.
    #[must_use]
    pub fn peak_tokens(&self, input: u64) -> f64 {
        let levels = self.levels(input);
        let at_work = |at: usize| {
            let waiting = levels.iter().skip(at).rev().skip(1).map(|level| level.kept * level.passed).sum::<u64>();
            let own = levels.get(at).map_or(0, |level| level.tokens * level.passed);
            (waiting + own) as f64 / self.layers.max(1) as f64
        };
        (0..levels.len()).map(at_work).fold(0.0, f64::max)
    }
}

/// Memories of stored texts: keys and values of a few tokens per text, computed beforehand. A sequence attends to the
/// memories of some texts, and reads others from storage after an interval (Yang et al. 2024, arXiv:2407.01178, section
/// 3.1). The search for texts is not priced.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StoredMemories {
    /// Number of texts in the bank.
    pub texts: f64,
    /// Tokens of the memories that a sequence attends to, as a mean over layers.
    pub held_tokens: f64,
    /// Tokens stored per text, as a mean over layers.
    pub stored_tokens: f64,
    /// Number of tokens after which a sequence reads other memories.
    pub interval: f64,
}
