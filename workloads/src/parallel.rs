//! Parallel degrees within a layer: one device's share of the model, and the rules for the tensor-, context- and
//! expert-parallel degrees.

use crate::error::WorkloadError;
use crate::lowering::{Attention, ContextMethod, Lowering};
use crate::model::Model;
use crate::variations::Variations;

/// Most sequences in a micro-batch (2^20).
pub const MAX_MICRO_BATCH: u64 = 1 << 20;
/// Most tokens in a sequence (2^24).
pub const MAX_SEQUENCE: u64 = 1 << 24;
/// Largest tensor-, context- or expert-parallel degree (2^16).
pub const MAX_TENSOR_PARALLEL: u32 = 1 << 16;

/// The attention heads of one device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heads {
    /// Query heads.
    pub(crate) query: u64,
    /// Key/value heads.
    pub(crate) kv: u64,
    /// Dimension of a query or key head.
    pub(crate) dim: u64,
    /// Dimension of a value head.
    pub(crate) value: u64,
}

impl Heads {
    /// Returns the share of one of `devices` devices, which must divide the heads.
    pub(crate) fn split_over_devices(self, devices: u32) -> Self {
        let devices = u64::from(devices.max(1));
        Self { query: self.query / devices, kv: self.kv / devices, ..self }
    }
}

/// One device's share of the dimensions that tensor parallelism splits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceSlice {
    /// Query heads.
    pub heads: u64,
    /// Key/value heads, at least one. With more devices than key/value heads, several devices hold the same head.
    pub kv_heads: u64,
    /// MLP width.
    pub ffn: u64,
    /// Rows of the token embedding and of the head.
    pub vocabulary: u64,
}

impl DeviceSlice {
    /// Returns one device's share under `lowering`.
    ///
    /// # Errors
    /// A micro-batch, sequence length or degree that is out of range, or a degree that does not divide the dimension it
    /// splits. Most messages name the nearest valid values.
    pub fn new(model: &Model, lowering: &Lowering) -> Result<Self, WorkloadError> {
        check_ranges(model, lowering)?;
        let t = u64::from(lowering.tensor_parallel);
        for (heads, kv_heads) in model.attention_heads() {
            check_divides(model, t, "heads", heads)?;
            if t <= kv_heads {
                check_divides(model, t, "key/value heads", kv_heads)?;
            } else if !t.is_multiple_of(kv_heads) {
                let limit = format!("a multiple of the {kv_heads} key/value heads if it exceeds them");
                return Err(degree_error(model, t, limit));
            }
        }
        for width in model.mlp_widths() {
            check_divides(model, t, "MLP width", width)?;
        }
        check_mixer_degrees(model, t)?;
        let c = u64::from(lowering.context_parallel);
        if lowering.sequence_parallel && !lowering.sequence_length.is_multiple_of(t.saturating_mul(c)) {
            let (product, limit) = if c == 1 {
                (t, format!("a multiple of the tensor-parallel degree {t}"))
            } else {
                (t.saturating_mul(c), format!("a multiple of the tensor- and context-parallel degrees {t} x {c}"))
            };
            return Err(WorkloadError::BadLowering {
                model: model.name.clone(),
                setting: "the sequence length under sequence parallelism".to_owned(),
                value: lowering.sequence_length.to_string(),
                limit,
                cure: format!(
                    "use {}, or switch sequence parallelism off",
                    nearby_multiples(lowering.sequence_length, product)
                ),
            });
        }
        check_context(model, lowering)?;
        check_encoder(model, lowering)?;
        check_experts(model, lowering)?;
        Ok(Self {
            heads: model.heads / t,
            kv_heads: kv_heads_of_device(model, t),
            ffn: model.ffn / t,
            vocabulary: model.vocabulary_padded_by(lowering.vocabulary_multiple, lowering.tensor_parallel) / t,
        })
    }

    /// Returns the device's attention heads.
    pub(crate) fn attention_heads(&self, model: &Model) -> Heads {
        Heads { query: self.heads, kv: self.kv_heads, dim: model.head_dim, value: model.value_dim() }
    }
}

/// Checks that a tensor-parallel degree divides the dimensions of mixers other than attention.
fn check_mixer_degrees(model: &Model, t: u64) -> Result<(), WorkloadError> {
    if let Some(scan) = model.variations.scan {
        check_divides(model, t, "heads of the scan", scan.heads)?;
    }
    if let Some(linear) = model.variations.linear {
        check_divides(model, t, "heads of linear attention", linear.heads)?;
        if !divides_or_is_multiple(t, linear.key_heads) {
            let limit = format!("a divisor or a multiple of the {} key heads of linear attention", linear.key_heads);
            return Err(degree_error(model, t, limit));
        }
    }
    if let Some(scan) = model.variations.channel_scan {
        check_divides(model, t, scan.divided_parts(), scan.divisible_parts())?;
    }
    if let Some(own) = model.variations.compressed {
        check_divides(model, t, "groups of attention's results", own.output_groups)?;
    }
    if model.variations.convolution.is_some() {
        check_divides(model, t, "channels of the convolution", model.hidden)?;
    }
    Ok(())
}

/// Returns the number of key/value heads on one of `t` tensor-parallel devices, at least one. With more devices than
/// heads, several devices hold the same head. If layers differ, it returns the greatest common divisor of their shares.
pub(crate) fn kv_heads_of_device(model: &Model, t: u64) -> u64 {
    let shares = model.attention_heads().into_iter().map(|(_, kv)| (kv / t).max(1));
    shares.reduce(num_integer::gcd).unwrap_or(1)
}

/// Returns the rule for the context-parallel degree under Ulysses, as text. The exchange gives every device whole
/// heads, so the degree must divide the key/value heads, and then it also divides the query heads. Transformer Engine's
/// exchange, which Megatron-LM runs, requires both.
pub(crate) fn ulysses_degree_rule(model: &Model, t: u64) -> String {
    format!("a divisor of the {} key/value heads of a device: Ulysses splits heads", kv_heads_of_device(model, t))
}

/// Checks context parallelism: the degree divides sequences, all mixers can be split along the sequence, attention is
/// fused or exchanged by heads, and the degree divides the exchanged heads.
fn check_context(model: &Model, lowering: &Lowering) -> Result<(), WorkloadError> {
    let c = u64::from(lowering.context_parallel);
    let error = |setting: &str, value: String, limit: String, cure: String| {
        Err(WorkloadError::BadLowering { model: model.name.clone(), setting: setting.to_owned(), value, limit, cure })
    };
    if !lowering.sequence_length.is_multiple_of(c) {
        let cure = format!("use {}", nearby_multiples(lowering.sequence_length, c));
        let limit = format!("a multiple of the context-parallel degree {c}");
        return error("the sequence length", lowering.sequence_length.to_string(), limit, cure);
    }
    let Variations { scan, channel_scan, linear, convolution, compressed, recurrence, indexer, .. } = model.variations;
    let along_sequence = [
        (scan.is_some() || channel_scan.is_some(), "a scan"),
        (linear.is_some(), "linear attention"),
        (convolution.is_some(), "a convolution"),
        (compressed.is_some(), "the compression of keys"),
        (recurrence.is_some(), "a recurrence"),
    ];
    if let Some((_, what)) = along_sequence.into_iter().find(|(has, _)| *has && c > 1) {
        let limit = format!("1: {what} goes along the whole sequence");
        return error(
            "the context-parallel degree",
            c.to_string(),
            limit,
            "use tensor parallelism for long sequences".to_owned(),
        );
    }
    if c > 1 && indexer.is_some() && lowering.context_method == ContextMethod::Ulysses {
        return error(
            "the method of context parallelism",
            "ulysses".to_owned(),
            "ring: an indexer chooses keys for every query, not for every head".to_owned(),
            "use the ring method".to_owned(),
        );
    }
    let t = u64::from(lowering.tensor_parallel);
    let heads = kv_heads_of_device(model, t);
    match lowering.context_method {
        ContextMethod::Ring if c > 1 && lowering.attention == Attention::Unfused => error(
            "attention under ring context parallelism",
            "unfused".to_owned(),
            "fused: a ring never has all scores of a row".to_owned(),
            "use fused attention, or the Ulysses method".to_owned(),
        ),
        ContextMethod::Ulysses if !heads.is_multiple_of(c) => {
            let limit = ulysses_degree_rule(model, t);
            let near = (1..c).rev().find(|n| heads.is_multiple_of(*n)).unwrap_or(1);
            error("the context-parallel degree", c.to_string(), limit, format!("use {near}, or the ring method"))
        }
        _ => Ok(()),
    }
}

/// Checks that the split of sequences divides the tokens of an encoder with its own sequence length.
fn check_encoder(model: &Model, lowering: &Lowering) -> Result<(), WorkloadError> {
    let tokens = model.variations.encoder_tokens(lowering.sequence_length);
    let t = if lowering.sequence_parallel { lowering.tensor_parallel } else { 1 };
    let split = u64::from(lowering.context_parallel) * u64::from(t);
    if model.variations.frames.is_none() || tokens.is_multiple_of(split) {
        return Ok(());
    }
    let near = (1..split).rev().find(|n| tokens.is_multiple_of(*n)).unwrap_or(1);
    Err(WorkloadError::BadLowering {
        model: model.name.clone(),
        setting: "the devices that a sequence is split over".to_owned(),
        value: split.to_string(),
        limit: format!("a divisor of the encoder's {tokens} tokens"),
        cure: format!("use {near}, or switch sequence parallelism off"),
    })
}

/// Checks expert parallelism: the tensor-parallel degree of experts fits, and the expert-parallel degree divides the
/// experts. A model without experts allows only a degree of 1.
fn check_experts(model: &Model, lowering: &Lowering) -> Result<(), WorkloadError> {
    let (e, t) = (u64::from(lowering.expert_parallel), lowering.tensor_parallel);
    let fits = |shared: u32| {
        let wider = shared.is_multiple_of(t) && model.ffn.is_multiple_of(shared.into());
        shared > 0 && (t.is_multiple_of(shared) || wider)
    };
    if let Some(shared) = lowering.expert_tensor_parallel.filter(|shared| !fits(*shared)) {
        return Err(WorkloadError::BadLowering {
            model: model.name.clone(),
            setting: "the tensor-parallel degree of experts".to_owned(),
            value: shared.to_string(),
            limit: format!(
                "a divisor of the tensor-parallel degree {t}, or a multiple of it that divides the experts' width {}",
                model.ffn
            ),
            cure: format!("use 1 or {t}"),
        });
    }
    let count = model.experts.map_or(1, |experts| experts.count);
    if count.is_multiple_of(e) {
        return Ok(());
    }
    let (limit, cure) = match model.experts {
        None => ("1: the model has no experts".to_owned(), "use 1, or a model with experts".to_owned()),
        Some(_) => {
            let near: Vec<String> =
                [(1..e).rev().find(|n| count.is_multiple_of(*n)), (e + 1..=count).find(|n| count.is_multiple_of(*n))]
                    .into_iter()
                    .flatten()
                    .map(|n| n.to_string())
                    .collect();
            (format!("a divisor of the {count} experts"), format!("use {}", near.join(" or ")))
        }
    };
    let setting = "the expert-parallel degree".to_owned();
    Err(WorkloadError::BadLowering { model: model.name.clone(), setting, value: e.to_string(), limit, cure })
}

/// Returns the tensor-parallel degrees up to `limit` that the model allows, in rising order.
#[must_use]
pub fn tensor_parallel_degrees(model: &Model, limit: u32) -> Vec<u32> {
    (1..=limit.min(MAX_TENSOR_PARALLEL)).filter(|t| obeys_degree_rules(model, u64::from(*t))).collect()
}

/// Returns whether every device gets whole heads, or several devices share each head.
fn divides_or_is_multiple(t: u64, heads: u64) -> bool {
    if t <= heads { heads.is_multiple_of(t) } else { t.is_multiple_of(heads) }
}

pub(crate) fn obeys_degree_rules(model: &Model, t: u64) -> bool {
    let divides = |(heads, kv): &(u64, u64)| heads.is_multiple_of(t) && divides_or_is_multiple(t, *kv);
    let Variations { scan, channel_scan, linear, convolution, compressed, .. } = model.variations;
    model.attention_heads().iter().all(divides)
        && scan.is_none_or(|scan| scan.heads.is_multiple_of(t))
        && linear.is_none_or(|linear| linear.heads.is_multiple_of(t) && divides_or_is_multiple(t, linear.key_heads))
        && channel_scan.is_none_or(|scan| scan.divisible_parts().is_multiple_of(t))
        && convolution.is_none_or(|_| model.hidden.is_multiple_of(t))
        && compressed.is_none_or(|own| own.output_groups.is_multiple_of(t))
        && model.mlp_widths().all(|width| width.is_multiple_of(t))
}

/// Returns the counts that a degree must divide in other mixers, as text for a message; empty without such mixers.
pub(crate) fn mixer_degree_limits(model: &Model) -> String {
    let Variations { scan, channel_scan, linear, convolution, compressed, .. } = model.variations;
    let linear = linear.map(|linear| {
        let keys = linear.key_heads;
        format!(
            ", and of the {} heads of linear attention, a divisor or a multiple of its {keys} key heads",
            linear.heads
        )
    });
    let scan = scan.map(|scan| format!(", and of the {} heads of the scan", scan.heads));
    let channels = channel_scan.map(|scan| format!(", and of the {} {}", scan.divisible_parts(), scan.divided_parts()));
    let convolution = convolution.map(|_| format!(", and of the {} channels of the convolution", model.hidden));
    let groups = compressed.map(|own| format!(", and of the {} groups of attention's results", own.output_groups));
    [linear, scan, channels, convolution, groups].into_iter().flatten().collect()
}

fn check_divides(model: &Model, t: u64, what: &str, count: u64) -> Result<(), WorkloadError> {
    if count.is_multiple_of(t) {
        Ok(())
    } else {
        Err(degree_error(model, t, format!("a divisor of the {count} {what}")))
    }
}

fn degree_error(model: &Model, t: u64, limit: String) -> WorkloadError {
    let degrees = tensor_parallel_degrees(model, MAX_TENSOR_PARALLEL);
    let below = degrees.iter().rev().find(|d| u64::from(**d) < t);
    let above = degrees.iter().find(|d| u64::from(**d) > t);
    let near: Vec<String> = [below, above].into_iter().flatten().map(ToString::to_string).collect();
    WorkloadError::BadLowering {
        model: model.name.clone(),
        setting: "the tensor-parallel degree".to_owned(),
        value: t.to_string(),
        limit,
        cure: format!("the nearest degree that this model allows is {}", near.join(" or ")),
    }
}

fn check_ranges(model: &Model, lowering: &Lowering) -> Result<(), WorkloadError> {
    let range = |setting: &str, value: u64, limit: u64, cure: &str| {
        if (1..=limit).contains(&value) {
            return Ok(());
        }
        Err(WorkloadError::BadLowering {
            model: model.name.clone(),
            setting: setting.to_owned(),
            value: value.to_string(),
            limit: format!("between 1 and {limit}"),
            cure: cure.to_owned(),
        })
    };
    range(
        "the micro-batch",
        lowering.micro_batch,
        MAX_MICRO_BATCH,
        "give the sequences of one micro-batch, 1 to 64 in practice",
    )?;
    let degree = u64::from(lowering.tensor_parallel);
    range(
        "the tensor-parallel degree",
        degree,
        u64::from(MAX_TENSOR_PARALLEL),
        "give the devices of one group, 1 to 64 in practice",
    )?;
    for (setting, value) in [
        ("the context-parallel degree", lowering.context_parallel),
        ("the expert-parallel degree", lowering.expert_parallel),
    ] {
        range(
            setting,
            u64::from(value),
            u64::from(MAX_TENSOR_PARALLEL),
            "give the devices of one group, 1 to 64 in practice",
        )?;
    }
    let (longest, cure) = match model.position {
        crate::model::PositionEncoding::Learned { .. } => {
            (model.max_sequence, "its table of learned positions ends there: train on shorter sequences")
        }
        _ => (MAX_SEQUENCE, "give the tokens of one sequence"),
    };
    range("the sequence length", lowering.sequence_length, longest, cure)
}

/// Returns the nearest multiples of `step` below and above `value`, as text.
fn nearby_multiples(value: u64, step: u64) -> String {
    let below = value / step * step;
    let above = below + step;
    if below == 0 { above.to_string() } else { format!("{below} or {above}") }
}
