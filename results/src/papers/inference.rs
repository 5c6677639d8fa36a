//! Figures of papers about inference. A study that names an engine serves a batch of prompts on one device.

use serving::beside::TechniqueFigures;
use serving::best::ServingHardware;
use serving::technique::ContextTechnique;
use serving::{PassTimes, ServingEngine, ServingError, ServingFormats, ServingMethod, ServingPlan};
use sim::hardware::Accelerator;
use sim::network::Fabric;
use workloads::{Model, Technique};

/// A study of inference.
pub(super) struct InferenceStudy<'a> {
    pub(super) model: &'a Model,
    pub(super) chip: &'a Accelerator,
    pub(super) fabric: &'a Fabric,
    pub(super) engine: &'a ServingEngine,
    /// The inference technique; `None` for plain serving.
    pub(super) technique: Option<&'a Technique>,
    /// The number of prompts in the batch. The next fields are the tokens of one prompt and of its answer.
    pub(super) sequences: u64,
    pub(super) input: u64,
    pub(super) output: u64,
}

impl InferenceStudy<'_> {
    const PLAN: ServingPlan = ServingPlan::of_one_device(ServingFormats::BF16);

    /// Returns the generated tokens over the time from the start of the prompts to the last tokens, per second.
    pub(super) fn generated_per_second(&self) -> Result<f64, String> {
        let rate = || {
            let technique = self.technique.map(|own| ContextTechnique::of_technique(own, self.model, self.input));
            let method = ServingMethod { technique: technique.transpose()?, ..ServingMethod::default() };
            let times = PassTimes::new(self.model, self.chip, self.fabric, self.engine, Self::PLAN)?;
            let mut times = times.with_method(method)?;
            let prompts = times.prefill(self.sequences, self.input, 0)?.total();
            let step = times.decode(self.sequences, self.input + self.output / 2)?.total();
            let time = prompts + step * self.output.saturating_sub(1) as f64;
            Ok((self.sequences * self.output) as f64 / time.0)
        };
        rate().map_err(|error: ServingError| error.to_string())
    }

    /// Returns the bytes of the weights plus those of a prompt's keys and values at their peak.
    pub(super) fn prompt_peak(&self) -> Result<f64, String> {
        let peak = |figures: &TechniqueFigures| (figures.weights + figures.peak).as_f64();
        match self.technique {
            Some(technique) => Ok(peak(&self.figures(technique)?)),
            None => {
                // Plain serving has the figures of HOMER with a single chunk, which merges nothing.
                let one: Technique = "homer".parse().map_err(|error: workloads::TechniqueError| error.to_string())?;
                Ok(peak(&self.figures(&one.with_parameter("chunk", self.input as f64))?))
            }
        }
    }

    /// Returns the bytes of the technique's stored memories: keys and values of its reference texts.
    pub(super) fn stored(&self) -> Result<f64, String> {
        Ok(self.figures(self.technique.ok_or("no technique")?)?.stored)
    }

    fn figures(&self, technique: &Technique) -> Result<TechniqueFigures, String> {
        let hardware = ServingHardware { chip: self.chip, fabric: self.fabric, engine: self.engine };
        let figures = ContextTechnique::of_technique(technique, self.model, self.input)
            .and_then(|own| TechniqueFigures::of_prompt(hardware, self.model, Self::PLAN, (own, self.input)));
        figures.map_err(|error| error.to_string())
    }
}
