//! The inputs for building any segment: the model, its slice on this device, and the settings of the lowering.

use super::OperatorContext;
use crate::lowering::Lowering;
use crate::model::Model;
use crate::parallel::DeviceSlice;
use sim::units::Bytes;

/// Inputs for building any segment.
pub(crate) struct SegmentPlan<'a> {
    pub(crate) model: &'a Model,
    pub(crate) shape: OperatorContext,
    pub(crate) slice: DeviceSlice,
    pub(crate) lowering: Lowering,
}

impl<'a> SegmentPlan<'a> {
    pub(crate) fn new(model: &'a Model, lowering: &Lowering, slice: DeviceSlice) -> Self {
        let shape = OperatorContext {
            batch: lowering.micro_batch,
            sequence: lowering.sequence_length / u64::from(lowering.context_parallel.max(1)),
            context: lowering.context_parallel,
            ranks: lowering.tensor_parallel,
            sequence_parallel: lowering.sequence_parallel && lowering.tensor_parallel > 1,
            operand: lowering.precision.operand,
            product: lowering.precision.product.unwrap_or(lowering.precision.operand),
            gradient: lowering.precision.gradient,
            fused: lowering.elementwise_fusion,
            composed: lowering.composed_layers && !lowering.elementwise_fusion,
            separate_accumulation: lowering.separate_accumulation,
            cached_conversions: lowering.cached_conversions,
            fused_loss: lowering.fused_loss,
            loss: lowering.loss,
            pieces: match lowering.serving {
                Some(_) => None,
                None => model.pieces_of_attention(lowering.sequence_length),
            },
            serving: lowering.serving,
        };
        Self { model, shape, slice, lowering: *lowering }
    }

    /// Returns the plan for the encoder. If the encoder reads sound, its sequences have their own length.
    pub(crate) fn encoder_plan(&self) -> Self {
        let sequence = match self.model.variations.frames {
            Some(frames) => frames.tokens / u64::from(self.shape.context.max(1)),
            None => self.shape.sequence,
        };
        Self { shape: OperatorContext { sequence, ..self.shape }, ..*self }
    }

    /// Returns the number of chunks in which the tokens pass a head of input width `width`.
    pub(crate) fn loss_chunks(&self, width: u64) -> u64 {
        self.shape.loss.chunk_count(self.shape.tokens(), width, self.slice.vocabulary)
    }

    /// Returns the bytes of the residual stream on this device.
    pub(crate) fn residual_stream_bytes(&self) -> Bytes {
        self.shape.activation_bytes(self.residual_stream_size())
    }

    /// Returns the number of elements of the residual stream on this device.
    pub(crate) fn residual_stream_size(&self) -> u64 {
        self.shape.local_tokens().saturating_mul(self.model.residual_width())
    }
}
