//! Rules that a layout must obey for a model and a batch. An error names the nearest values that obey the rule.

use super::limits;
use super::{Batch, Layout, LayoutError, RankOrder, ZeroStage};
use crate::lowering::ContextMethod;
use crate::model::Model;
use crate::parallel::{kv_heads_of_device, ulysses_degree_rule};
use crate::variations::Variations;

impl Layout {
    /// Returns the error for layers that the chunks do not divide, even if the ends count as layers.
    pub(crate) fn uneven_layers_error(&self, layers: u64, chunks: u64) -> LayoutError {
        let fits = |n: u64| {
            (0..3).any(|extra| {
                (layers + extra).is_multiple_of(n)
                    && ((layers + extra) / n > u64::from(extra > 0) || (extra == 2 && n > 2 && layers + extra >= n))
            })
        };
        let (p, v) = (u64::from(self.pipeline), u64::from(self.virtual_stages));
        let stages = nearest_valid_values(p, layers + 2, "pp", |p| fits(p * v));
        let (key, value, cure) = if v == 1 {
            ("pp", p.to_string(), stages)
        } else if (1..=layers).any(|v| fits(p * v)) {
            // A different number of chunks per stage leaves the devices unchanged, so it is suggested first.
            ("virtual_stages", v.to_string(), nearest_valid_values(v, layers, "virtual_stages", |v| fits(p * v)))
        } else {
            ("virtual_stages", v.to_string(), stages)
        };
        let most = layers.saturating_add(2);
        let limit = if chunks > most {
            format!(
                "such that pp x virtual_stages = {chunks} is at most {most}, the {layers} layers and stages for the \
                 embedding and the head (a stated layer split leaves inner stages without layers)"
            )
        } else {
            format!(
                "such that pp x virtual_stages = {chunks} divides the {layers} layers (or {most} with the embedding \
                 and the head as layers)"
            )
        };
        LayoutError { key, value, limit, cure }
    }

    /// Checks the degrees against a model and a batch.
    ///
    /// # Errors
    /// The first broken rule. The order is: positive numbers, global limits ([`crate::limits`]), rank order, heads and
    /// widths by t, virtual stages, layers by p x v, shared weights, the batch by micro-batch x d. Then come the ranks
    /// by e, the sequence by c (and by t under sequence parallelism), the encoder, shards, and the experts' own
    /// tensor-parallel degree.
    pub fn check_model_and_batch(&self, model: &Model, batch: &Batch) -> Result<(), LayoutError> {
        self.check_positive(batch)?;
        limits::check_limits(self, model, batch)?;
        self.check_order()?;
        let t = u64::from(self.tensor);
        let obeys = |t: u64| crate::parallel::obeys_degree_rules(model, t);
        if !obeys(t) {
            return Err(LayoutError {
                key: "tp",
                value: t.to_string(),
                limit: format!(
                    "a divisor of the {} heads and of the MLP width {}, and a divisor or a multiple of the {} \
                     key/value heads{}",
                    join_counts(model.attention_heads().into_iter().map(|(heads, _)| heads)),
                    model.distinct_mlp_widths(),
                    join_counts(model.attention_heads().into_iter().map(|(_, kv)| kv)),
                    crate::parallel::mixer_degree_limits(model)
                ),
                cure: nearest_valid_values(t, model.heads, "tp", obeys),
            });
        }
        let (heads, c) = (kv_heads_of_device(model, t), u64::from(self.context));
        if self.context_method == ContextMethod::Ulysses && !heads.is_multiple_of(c) {
            return Err(LayoutError {
                key: "cp",
                value: c.to_string(),
                limit: ulysses_degree_rule(model, t),
                cure: format!(
                    "{}, or the ring method",
                    nearest_valid_values(c, heads, "cp", |c| heads.is_multiple_of(c))
                ),
            });
        }
        if self.virtual_stages > 1 && self.pipeline == 1 {
            return Err(LayoutError {
                key: "virtual_stages",
                value: self.virtual_stages.to_string(),
                limit: "1 without a pipeline".to_owned(),
                cure: "use 1, or pp of at least 2".to_owned(),
            });
        }
        self.chunk_split(model.layers)?;
        self.check_shared_weights(model)?;
        self.check_batch(batch)?;
        self.check_encoder(model)?;
        self.check_shards()?;
        self.check_expert_tensor(model)
    }

    /// Checks a stated number of shards: the ZeRO stage shards something, and the number divides the ranks.
    fn check_shards(&self) -> Result<(), LayoutError> {
        let Some(shards) = self.shards.map(u64::from) else { return Ok(()) };
        let broken =
            |limit: String, cure: String| Err(LayoutError { key: "shards", value: shards.to_string(), limit, cure });
        if self.zero == ZeroStage::None {
            return broken("left out under ZeRO-0, which shards nothing".to_owned(), "use zero = 1, 2 or 3".to_owned());
        }
        let ranks = u64::from(self.data) * u64::from(self.context);
        let divides = |shards: u64| shards > 0 && ranks.is_multiple_of(shards);
        if !divides(shards) {
            let limit = format!("a divisor of the {ranks} ranks that hold the same layers (dp x cp)");
            return broken(limit, nearest_valid_values(shards, ranks, "shards", divides));
        }
        Ok(())
    }

    /// Checks a stated tensor-parallel degree of experts. This degree and the expert-parallel degree must divide a
    /// stage's ranks: Megatron-LM's `parallel_state` has expert-tensor x expert-parallel x expert-data-parallel ranks
    /// per stage. The degree must also divide the experts' width, and divide `tensor` or be a multiple of it. Without
    /// sequence parallelism, tensor-parallel ranks would send the same tokens to several devices; Megatron-LM refuses
    /// that with experts.
    fn check_expert_tensor(&self, model: &Model) -> Result<(), LayoutError> {
        let Some(width) = self.expert_tensor.map(u64::from) else { return Ok(()) };
        let broken =
            |limit: String, cure: String| Err(LayoutError { key: "etp", value: width.to_string(), limit, cure });
        if model.experts.is_none() {
            return broken("left out for a model without experts".to_owned(), "leave it out".to_owned());
        }
        let ranks = self.ranks_per_stage() / u64::from(self.expert.max(1));
        let obeys = |n: u64| {
            n > 0 && ranks.is_multiple_of(n) && model.ffn.is_multiple_of(n) && divides_either_way(n, self.tensor.into())
        };
        if !obeys(width) {
            let limit = format!(
                "a divisor of the {ranks} ranks that ep = {} leaves of a stage and of the experts' width {}, and a \
                 divisor or a multiple of tp = {}",
                self.expert, model.ffn, self.tensor
            );
            return broken(limit, nearest_valid_values(width, ranks, "etp", obeys));
        }
        if self.tensor > 1 && !self.sequence_parallel {
            let limit = format!("{} without sequence parallelism", self.tensor);
            return broken(limit, "use sequence parallelism".to_owned());
        }
        if self.order == RankOrder::PipelineFirst {
            let limit = format!("{} if the stages of a copy are neighbours", self.tensor);
            return broken(limit, "use the order tp-cp-dp-pp".to_owned());
        }
        Ok(())
    }

    fn check_positive(&self, batch: &Batch) -> Result<(), LayoutError> {
        let degrees = [
            ("tp", u64::from(self.tensor)),
            ("pp", self.pipeline.into()),
            ("dp", self.data.into()),
            ("cp", self.context.into()),
            ("ep", self.expert.into()),
            ("etp", self.expert_tensor.unwrap_or(1).into()),
            ("shards", self.shards.unwrap_or(1).into()),
            ("virtual_stages", self.virtual_stages.into()),
            ("micro_batch", batch.micro_batch),
            ("global_batch", batch.global_batch),
            ("seq", batch.sequence_length),
        ];
        match degrees.into_iter().find(|(_, value)| *value == 0) {
            Some((key, _)) => Err(LayoutError {
                key,
                value: "0".to_owned(),
                limit: "at least 1".to_owned(),
                cure: "use 1 or more".to_owned(),
            }),
            None => Ok(()),
        }
    }

    /// Checks that pieces with shared weights are on one stage. Otherwise stages would have to sum the gradients of
    /// copies.
    fn check_shared_weights(&self, model: &Model) -> Result<(), LayoutError> {
        let Variations { shared_block, conditioning, .. } = model.variations;
        let sharers = [
            (shared_block.is_some(), "layers share the weights of a block"),
            (conditioning.is_some_and(|own| own.in_layers), "the head reads the first layer's embedders"),
        ];
        let shares = sharers.into_iter().find(|(shares, _)| *shares && self.pipeline > 1);
        let Some((_, what)) = shares else { return Ok(()) };
        let limit = format!("1: {what}, and gradients of copies on several stages are not modelled");
        let (key, value, cure) = ("pp", self.pipeline.to_string(), "use pp = 1".to_owned());
        Err(LayoutError { key, value, limit, cure })
    }

    /// Checks that the split of sequences divides the tokens of an encoder with its own sequence length.
    fn check_encoder(&self, model: &Model) -> Result<(), LayoutError> {
        let Some(frames) = model.variations.frames else { return Ok(()) };
        let limit = format!(
            "such that tp x cp, or cp without sequence parallelism, divides the encoder's {} tokens",
            frames.tokens
        );
        let c = u64::from(self.context);
        let divides = |n: u64| frames.tokens.is_multiple_of(n);
        if !divides(c) {
            let cure = nearest_valid_values(c, frames.tokens, "cp", divides);
            return Err(LayoutError { key: "cp", value: c.to_string(), limit, cure });
        }
        let t = u64::from(self.tensor);
        if self.sequence_parallel && !divides(c * t) {
            let cure = "use no sequence parallelism".to_owned();
            return Err(LayoutError { key: "tp", value: t.to_string(), limit, cure });
        }
        Ok(())
    }

    fn check_order(&self) -> Result<(), LayoutError> {
        if self.order == RankOrder::DataFirst {
            return Ok(());
        }
        let axes = [("cp", self.context), ("ep", self.expert)];
        let wide = axes.into_iter().find(|(_, degree)| *degree > 1).map(|(key, degree)| (key, degree, "1"));
        match wide.or(self.expert_tensor_degree().map(|width| ("etp", width, "left out"))) {
            Some((key, degree, limit)) => Err(LayoutError {
                key,
                value: degree.to_string(),
                limit: format!("{limit} if the stages of a copy are neighbours"),
                cure: "use the order t-d-p".to_owned(),
            }),
            None => Ok(()),
        }
    }

    fn check_batch(&self, batch: &Batch) -> Result<(), LayoutError> {
        let share = batch.micro_batch.saturating_mul(self.data.into());
        if !batch.global_batch.is_multiple_of(share) {
            return Err(LayoutError {
                key: "global_batch",
                value: batch.global_batch.to_string(),
                limit: format!("a multiple of micro_batch x dp = {} x {} = {share}", batch.micro_batch, self.data),
                cure: nearest_multiples(batch.global_batch, share),
            });
        }
        let ranks = u64::from(self.data) * u64::from(self.context) * u64::from(self.tensor);
        if !ranks.is_multiple_of(self.expert.into()) {
            return Err(LayoutError {
                key: "ep",
                value: self.expert.to_string(),
                limit: format!("a divisor of the {ranks} tensor-, context- and data-parallel ranks"),
                cure: nearest_valid_values(self.expert.into(), ranks, "ep", |e| ranks.is_multiple_of(e)),
            });
        }
        let split = u64::from(self.context) * if self.sequence_parallel { u64::from(self.tensor) } else { 1 };
        if !batch.sequence_length.is_multiple_of(split) {
            return Err(LayoutError {
                key: "seq",
                value: batch.sequence_length.to_string(),
                limit: format!("a multiple of the {split} devices that a sequence is split over"),
                cure: nearest_multiples(batch.sequence_length, split),
            });
        }
        Ok(())
    }
}

/// Returns whether one number divides the other.
fn divides_either_way(a: u64, b: u64) -> bool {
    a.is_multiple_of(b) || b.is_multiple_of(a)
}

/// Number of values tried on each side of an invalid one.
const NEAR: u64 = 1 << 16;

/// Returns a cure with the nearest values below and above that obey a rule; none is above `limit`.
fn nearest_valid_values(value: u64, limit: u64, key: &str, obeys: impl Fn(u64) -> bool) -> String {
    let below = (1..value.min(limit.saturating_add(1))).rev().take(NEAR as usize).find(|n| obeys(*n));
    let above = (value.saturating_add(1)..=limit.min(value.saturating_add(NEAR))).find(|n| obeys(*n));
    match (below, above) {
        (Some(low), Some(high)) => format!("use {key} = {low} or {high}"),
        (Some(one), None) | (None, Some(one)) => format!("use {key} = {one}"),
        (None, None) => format!("no {key} is valid: change the model"),
    }
}

/// Returns a cure with the nearest multiples of `step` below and above a value.
fn nearest_multiples(value: u64, step: u64) -> String {
    let below = value / step * step;
    let above = below.saturating_add(step);
    if below == 0 { format!("use {above}") } else { format!("use {below} or {above}") }
}

/// Returns the distinct counts as text for a message.
fn join_counts(counts: impl Iterator<Item = u64>) -> String {
    let distinct: std::collections::BTreeSet<u64> = counts.collect();
    distinct.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn layout(tensor: u32, pipeline: u32, data: u32, virtual_stages: u32) -> Layout {
        Layout { tensor, pipeline, data, virtual_stages, ..Layout::default() }
    }

    fn batch(micro_batch: u64, global_batch: u64) -> Batch {
        Batch { micro_batch, global_batch, sequence_length: 2048 }
    }

    #[test]
    fn layers_split_evenly_or_with_the_ends_as_layers() {
        assert_eq!(layout(8, 8, 1, 3).chunk_layers(96).unwrap(), vec![4; 24]);
        let llama = layout(8, 16, 1, 1).chunk_layers(126).unwrap();
        assert_eq!((llama[0], llama[1], llama[15], llama.iter().sum::<u64>()), (7, 8, 7, 126));
        let ends_alone = layout(8, 16, 1, 8).chunk_layers(126).unwrap();
        assert_eq!((ends_alone[0], ends_alone[1], ends_alone[127], ends_alone.iter().sum::<u64>()), (0, 1, 0, 126));
        let last_only = layout(1, 4, 1, 1).chunk_layers(31).unwrap();
        assert_eq!(last_only, [8, 8, 8, 7]);
    }

    #[test]
    fn a_broken_rule_names_the_nearest_values() {
        let model = Model::load("gpt3-175b").unwrap();
        let fault = |l: Layout, b: Batch| l.check_model_and_batch(&model, &b).unwrap_err().to_string();
        assert_eq!(
            fault(layout(7, 1, 1, 1), batch(1, 1)),
            "tp = 7: must be a divisor of the 96 heads and of the MLP width 49152, and a divisor or a multiple of the \
             96 key/value heads; use tp = 6 or 8"
        );
        assert_eq!(
            fault(layout(8, 20, 1, 1), batch(1, 20)),
            "pp = 20: must be such that pp x virtual_stages = 20 divides the 96 layers (or 98 with the embedding and \
             the head as layers); use pp = 16 or 24"
        );
        assert_eq!(
            fault(layout(8, 8, 4, 1), batch(3, 64)),
            "global_batch = 64: must be a multiple of micro_batch x dp = 3 x 4 = 12; use 60 or 72"
        );
        assert!(layout(8, 8, 4, 3).check_model_and_batch(&model, &batch(1, 64)).is_ok());
        let chunks = fault(layout(8, 8, 4, 5), batch(1, 64));
        assert!(
            chunks.starts_with("virtual_stages = 5: must be such that pp x virtual_stages = 40 divides the 96 layers"),
            "{chunks}"
        );
        assert!(chunks.ends_with("use virtual_stages = 4 or 6"), "{chunks}");
    }
}
