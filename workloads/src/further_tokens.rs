//! Models that are trained to predict more tokens than the next one (multi-token prediction).

use crate::error::WorkloadError;
use crate::layer_list::EncoderDecoderSide;
use crate::limits::MAX_FURTHER_TOKENS;
use crate::model::Model;

/// Start of the import note ([`crate::import`]) for a file whose further-token modules were left out.
const KEY: &str = "`num_nextn_predict_layers`";

impl Model {
    /// Returns the model with `further_tokens` modules, each of which predicts one more token ahead (DeepSeek-V3,
    /// arXiv:2412.19437, section 2.2). Each module holds a layer like the last one, a product of twice the width by the
    /// width, and three norms. The modules share the model's embedding and head.
    ///
    /// # Errors
    /// More than [`MAX_FURTHER_TOKENS`] modules; a model that is not a causal language model with one stack of layers
    /// as wide as its embedding; a head with its own transform; several residual streams; blocks that layers share.
    pub fn with_further_token_modules(self, further_tokens: u64) -> Result<Self, WorkloadError> {
        let error = |limit: &str, cure: &str| WorkloadError::BadLowering {
            model: self.name.clone(),
            setting: "the number of modules that predict further tokens".to_owned(),
            value: further_tokens.to_string(),
            limit: limit.to_owned(),
            cure: cure.to_owned(),
        };
        let v = &self.variations;
        let plain = self.causal && v.side == EncoderDecoderSide::Only && v.patches.is_none() && v.task_head.is_none();
        if further_tokens > MAX_FURTHER_TOKENS {
            return Err(error(&format!("at most {MAX_FURTHER_TOKENS}"), "published runs have 1"));
        }
        if further_tokens > 0 && !(plain && self.embedding_width == self.hidden && !self.head_transform) {
            let limit = "0 for a model that is not a causal language model, or whose embedding is narrower than its \
                layers";
            return Err(error(limit, "leave it out"));
        }
        if further_tokens > 0 && (v.streams.is_some() || v.shared_block.is_some()) {
            let limit = "0 for a model with several residual streams or with blocks that layers share";
            return Err(error(limit, "leave it out"));
        }
        let mut model = self;
        model.variations.further_tokens = further_tokens;
        if further_tokens > 0 {
            model.assumptions.retain(|assumption| !assumption.starts_with(KEY));
        }
        Ok(model)
    }
}
