//! A question about deployments with its parts read.

use super::method;
use crate::failure::{self, Failure, OrInput};
use crate::input;
use search::ask::{DeploymentCase, DeploymentQuestion, ServedPools};
use search::serve::ServedObjective;
use serving::ServingEngine;
use serving::apart::apart;
use serving::best::{self, ServiceLevel, ServingAnswer, ServingHardware, ServingQuestion};
use serving::lengths::RequestLengths;
use sim::hardware::Accelerator;
use sim::network::Fabric;
use sim::units::Seconds;
use workloads::Model;

/// A question with its parts read.
pub struct LoadedDeployment<'q> {
    asked: &'q DeploymentQuestion,
    /// The objective that ranks deployments.
    pub objective: ServedObjective,
    pub model: Model,
    draft: Option<Model>,
    pub engine: ServingEngine,
    /// The given chips with their fabrics.
    pub hardware: Vec<(Accelerator, Fabric)>,
}

impl<'q> LoadedDeployment<'q> {
    /// Reads the parts of a question.
    pub fn load(asked: &'q DeploymentQuestion) -> Result<Self, Failure> {
        let model = Model::load_assuming(&asked.model, &asked.files, &asked.assume_ignored).or_input()?;
        if model.experts.is_none() && asked.formats.experts != asked.formats.products {
            let limit = format!("{} has no experts", asked.model);
            let cure = "leave it out: --products is the format of all its products";
            return Err(failure::option_failure("--experts", asked.formats.experts, limit, cure));
        }
        let engine = ServingEngine::load_from(&asked.engine, &asked.files)
            .map_err(|error| failure::option_failure_from("--engine", &error))?;
        let objective = ServedObjective::try_from(asked.objective).map_err(failure::input_failure)?;
        let draft = method::read_draft_model(&asked.method, &asked.files)?;
        let mut loaded = Self { asked, objective, model, draft, engine, hardware: Vec::new() };
        for name in &asked.chips {
            let own = loaded.read_hardware(name)?;
            if loaded.hardware.iter().any(|(chip, _)| *chip == own.0) {
                return Err(failure::option_failure("--chip", &own.0.name, "is named twice", "name each chip once"));
            }
            loaded.hardware.push(own);
        }
        Ok(loaded)
    }

    /// Returns the question.
    pub fn question(&self) -> &'q DeploymentQuestion {
        self.asked
    }

    /// Returns the assumptions about the model, its drafter, and the networks and host links of the given chips.
    pub fn assumptions(&self) -> Vec<String> {
        let models = std::iter::once(&self.model).chain(&self.draft);
        let mut all: Vec<String> = Vec::new();
        let foreign = self.hardware.iter().filter(|(chip, fabric)| sim::is_foreign_network(fabric, chip));
        let foreign = foreign.map(|(chip, fabric)| {
            let joins = fabric.joins.join(", ");
            format!("{} is a network of {joins}, not of {}: its links are taken as they are", fabric.name, chip.name)
        });
        let away = self.hardware.iter().filter(|_| self.asked.method.cache_place.is_some());
        let links = away.filter_map(|(chip, _)| {
            let rate = chip.host?.bandwidth.0 / 1e9;
            Some(format!("{} copies from and to its host at {rate:.1} GB/s each way", chip.name))
        });
        for one in models.flat_map(|model| model.assumptions.iter().cloned()).chain(foreign).chain(links) {
            if !all.contains(&one) {
                all.push(one);
            }
        }
        all
    }

    /// Reads a chip and its fabric.
    pub fn read_hardware(&self, name: &str) -> Result<(Accelerator, Fabric), Failure> {
        self.read_hardware_for(name, self.asked.devices)
    }

    /// Reads a chip and its fabric with this number of devices.
    pub fn read_hardware_for(&self, name: &str, devices: u32) -> Result<(Accelerator, Fabric), Failure> {
        let asked = self.asked;
        let mut chip = input::read_chip(name, &asked.files)?.accelerator;
        if let Some(text) = &asked.nvme {
            chip.storage = Some(input::parse_storage(text)?);
        }
        let fabric = asked.fabric.clone().or(chip.origin.usual_fabric.clone()).ok_or_else(|| {
            failure::input_failure(format!(
                "--fabric is missing: the file of chip {name} has no usual_fabric; give --fabric NAME (coplace list \
                fabrics)"
            ))
        })?;
        let fabric = input::read_fabric(&fabric, &chip, None, &asked.files)?.for_devices(devices).or_input()?;
        Ok((chip, fabric))
    }

    /// Returns the given chips with their fabrics and the engine.
    pub fn sides(&self) -> Vec<ServingHardware<'_>> {
        let engine = &self.engine;
        self.hardware.iter().map(|(chip, fabric)| ServingHardware { chip, fabric, engine }).collect()
    }

    /// Returns the given chip that is this built-in chip; `None` if no given chip is.
    pub fn side_of_chip(&self, built_in: &str) -> Option<ServingHardware<'_>> {
        let engine = &self.engine;
        let own = self.hardware.iter().find(|(chip, _)| chip.known_name() == built_in);
        own.map(|(chip, fabric)| ServingHardware { chip, fabric, engine })
    }

    /// Returns the question of a case in the form for pricing plans.
    pub fn question_of_case(&self, case: &DeploymentCase) -> Result<ServingQuestion<'_>, Failure> {
        let asked = self.asked;
        let lengths = RequestLengths::new(&case.lengths).or_input()?;
        let seconds = |limit: Option<f64>| limit.map(|ms| Seconds(ms * 1e-3));
        let level =
            ServiceLevel { time_to_first_token: seconds(case.ttft_ms), time_per_output_token: seconds(case.tpot_ms) };
        let method = method::read_method(&asked.method, &self.model, &lengths, self.draft.as_ref())?;
        method::check_storage(&asked.method, asked.nvme.is_some(), &method)?;
        Ok(ServingQuestion {
            model: &self.model,
            devices: asked.devices,
            formats: asked.formats,
            lengths,
            level,
            given: asked.degrees,
            method,
            power_limit: None,
        })
    }
}

/// Returns the deployments on every chip, or on every pair of chips in pools apart, or both.
pub fn deploy(question: &ServingQuestion<'_>, pools: ServedPools, sides: &[ServingHardware<'_>]) -> Vec<ServingAnswer> {
    let mut answers = Vec::new();
    if pools != ServedPools::Apart {
        answers.extend(sides.iter().map(|side| best::together(question, *side)));
    }
    if pools != ServedPools::Together {
        let pairs = sides.iter().flat_map(|a| sides.iter().map(move |b| (*a, *b)));
        answers.extend(pairs.map(|(a, b)| apart(question, a, b)));
    }
    answers
}
