//! Reads Megatron-LM's pipeline chunks and the layers of each.

use super::keys::{FrameworkFileError, FrameworkKeys};
use super::megatron_model;
use super::run::PlanOptions;
use super::split::chunks_of_layout;
use workloads::LayerEnds;

const LAYERS: &str = "num-layers";
const LAYOUT: &str = "pipeline-model-parallel-layout";
const LAYERS_OF_A_CHUNK: &str = "num-layers-per-virtual-pipeline-stage";
const FIRST: &str = "decoder-first-pipeline-num-layers";
const LAST: &str = "decoder-last-pipeline-num-layers";

/// Reads the number of chunks per stage, and the split of the layers over all chunks.
pub(super) fn read_stages(
    keys: &mut FrameworkKeys,
    options: &mut PlanOptions,
    pipeline: u64,
) -> Result<(), FrameworkFileError> {
    let (layers, leading) = (keys.count(LAYERS)?, megatron_model::leading_layers(keys)?);
    if let Some(layout) = keys.text(LAYOUT)? {
        return read_layout(keys, options, &layout, layers, leading, pipeline);
    }
    let stated = keys.count("num-virtual-stages-per-pipeline-rank")?.unwrap_or(1);
    let Some(layers) = layers else {
        if keys.list(LAYERS_OF_A_CHUNK).is_some() {
            return Err(keys.fault(LAYERS, "is missing; the chunks of a stage follow from it"));
        }
        options.push("virtual-stages", stated);
        return Ok(());
    };
    let ends = EndLayers::read(keys, layers)?;
    let all = layers + ends.embedding + ends.loss;
    let virtual_stages = match keys.count(LAYERS_OF_A_CHUNK)?.map(|layers| layers.saturating_mul(pipeline)) {
        Some(of_chunks) if all.is_multiple_of(of_chunks) => all / of_chunks,
        Some(_) => {
            let limit = format!("must divide the {all} layers over {pipeline} stages; correct it");
            return Err(keys.fault(LAYERS_OF_A_CHUNK, limit));
        }
        None => stated,
    };
    options.push("virtual-stages", virtual_stages);
    let chunks = virtual_stages.saturating_mul(pipeline);
    if chunks > all {
        return Err(keys.fault(LAYERS, format!("are fewer than the {chunks} stages; correct one of the two")));
    }
    if chunks < 2 {
        return Ok(());
    }
    let of_block = megatron_model::layers_of_block(keys)?;
    if ends == EndLayers::default() && leading == 0 {
        if layers.is_multiple_of(chunks) && !(layers / chunks).is_multiple_of(of_block) {
            let limit =
                format!("give {chunks} stages no whole blocks of {of_block} layers, of which one has no window");
            return Err(keys.fault(LAYERS, limit));
        }
        options.push("layer-split", "even");
        return Ok(());
    }
    let mut counts = ends.layers_of_chunks(keys, layers, chunks)?;
    counts[0] = counts[0].checked_sub(leading).ok_or_else(|| {
        keys.fault(LAYERS, format!("the first stage has fewer layers than the {leading} without experts"))
    })?;
    push_split(keys, options, LAYERS, &counts)
}

/// The numbers of layers at the two ends of a pipeline, which may differ from the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct EndLayers {
    /// 1 if the embedding counts as a layer.
    embedding: u64,
    /// 1 if the loss counts as a layer.
    loss: u64,
    first: Option<u64>,
    last: Option<u64>,
}

impl EndLayers {
    fn read(keys: &mut FrameworkKeys, layers: u64) -> Result<Self, FrameworkFileError> {
        let embedding = u64::from(keys.switch("account-for-embedding-in-pipeline-split")?);
        let loss = u64::from(keys.switch("account-for-loss-in-pipeline-split")?);
        let mut at_end = |key: &str| match keys.count(key)? {
            Some(stated) if stated > layers => {
                Err(keys.fault(key, format!("must be at most the {layers} of num-layers; correct it")))
            }
            stated => Ok(stated),
        };
        Ok(Self { embedding, loss, first: at_end(FIRST)?, last: at_end(LAST)? })
    }

    /// Returns the layers of every chunk: the stated numbers at the ends, and equal shares of the rest elsewhere. Fails
    /// if the rest does not divide.
    fn layers_of_chunks(self, keys: &FrameworkKeys, layers: u64, chunks: u64) -> Result<Vec<u64>, FrameworkFileError> {
        let stated = self.first.unwrap_or(0) + self.last.unwrap_or(0);
        let inner = chunks - u64::from(self.first.is_some()) - u64::from(self.last.is_some());
        let rest = (layers + self.embedding + self.loss).checked_sub(stated);
        let of_a_chunk = match rest {
            Some(0) if inner == 0 => 0,
            Some(rest) if inner > 0 && rest.is_multiple_of(inner) => rest / inner,
            _ => {
                let limit = format!("{layers} over {chunks} stages do not divide; give {LAYOUT}");
                return Err(keys.fault(LAYERS, limit));
            }
        };
        let counted = |stated: Option<u64>, counts: u64| stated.or_else(|| of_a_chunk.checked_sub(counts));
        let ends = counted(self.first, self.embedding).zip(counted(self.last, self.loss));
        let Some((first, last)) = ends else {
            return Err(keys.fault(LAYERS, format!("{layers} leave an end without its part; give {LAYOUT}")));
        };
        let between = (2..chunks).map(|_| of_a_chunk);
        Ok(std::iter::once(first).chain(between).chain([last]).collect())
    }
}

/// Reads a layout of stages. The embedding must be in the first stage; modules that predict further tokens and the loss
/// must be in the last one.
fn read_layout(
    keys: &mut FrameworkKeys,
    options: &mut PlanOptions,
    layout: &str,
    layers: Option<u64>,
    leading: u64,
    pipeline: u64,
) -> Result<(), FrameworkFileError> {
    let chunks = chunks_of_layout(layout).map_err(|why| keys.fault(LAYOUT, why))?;
    let stages = chunks.len() as u64;
    if !stages.is_multiple_of(pipeline) {
        return Err(keys.fault(LAYOUT, format!("has {stages} stages; give a multiple of the pipeline's {pipeline}")));
    }
    let (first, last) = (0, chunks.len() - 1);
    for (letter, at, place) in [('E', first, "first"), ('m', last, "last"), ('L', last, "last")] {
        if chunks.iter().enumerate().any(|(stage, chunk)| stage != at && chunk.contains(letter)) {
            let limit = format!("has {letter} in another stage than the {place} one, which is not modelled; move it");
            return Err(keys.fault(LAYOUT, limit));
        }
    }
    let mut counts: Vec<u64> = chunks.iter().map(|chunk| chunk.matches('t').count() as u64).collect();
    let total: u64 = counts.iter().sum();
    if let Some(layers) = layers.filter(|layers| *layers != total) {
        let limit = format!("has {total} layers t, num-layers is {layers}; they must be the same");
        return Err(keys.fault(LAYOUT, limit));
    }
    counts[0] = counts[0].checked_sub(leading).ok_or_else(|| {
        keys.fault(LAYOUT, format!("has fewer layers in its first stage than the {leading} without experts"))
    })?;
    options.push("virtual-stages", stages / pipeline);
    if stages < 2 {
        return Ok(());
    }
    push_split(keys, options, LAYOUT, &counts)
}

fn push_split(
    keys: &mut FrameworkKeys,
    options: &mut PlanOptions,
    key: &str,
    counts: &[u64],
) -> Result<(), FrameworkFileError> {
    let limit = "makes inner stages that differ otherwise than by one layer in neighbours, which is not modelled";
    let of_block = megatron_model::layers_of_block(keys)?;
    if counts.iter().any(|layers| !layers.is_multiple_of(of_block)) {
        let whole = format!("must give every stage whole blocks of {of_block} layers, of which one has no window");
        return Err(keys.fault(key, whole));
    }
    let blocks: Vec<u64> = counts.iter().map(|layers| layers / of_block).collect();
    options.push("layer-split", LayerEnds::of_chunks(&blocks).ok_or_else(|| keys.fault(key, limit))?);
    Ok(())
}
