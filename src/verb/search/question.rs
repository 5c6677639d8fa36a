//! Loads the question of a search: a study with its overrides.

use super::asked::{aim_of, check_robust_objective};
use super::within::nothing_within_limits;
use super::{SearchRequest, StudyOverrides};
use crate::failure::{self, Failure, OrInput};
use crate::input;
use crate::verb::job::{parse_headroom, with_documents};
use results::run::record::{SearchRecord, StudyRecord};
use results::run::search_run::{self, SearchRun};
use search::ask::Question;
use search::design::Aim;
use search::objective::FrontAxis;
use search::planner::Job;
use search::space::{Chips, EfficiencyChoice, FABRIC, Grid, Space, SpaceDimensions, SpaceSpec};
use search::study::{Study, WorkloadSpec};
use sim::files::carried::Files;
use sim::hardware::{Accelerator, ChipDocument, Constants, FieldValue};
use sim::network::{Fabric, FabricDocument, NetworkError};
use sim::units::Bytes;
use std::collections::BTreeMap;
use std::path::Path;
use step::SoftwareStack;
use workloads::footprint::Precision;
use workloads::{Lowering, Model, TrainingGraph, model};

/// The study of a search that names none.
const USUAL_STUDY: &str = "tpu";

/// The question of a search: a model on a study's cluster, and further models.
pub struct SearchQuestion {
    pub model: Model,
    /// The name of the model, or the path of its file.
    pub called: String,
    /// The weight of the model among several.
    pub weight: f64,
    /// The other models, each with its cluster in `study`. They are searched together with this one.
    pub others: Vec<SearchQuestion>,
    /// The name of the study, or the path of its file.
    pub name: String,
    pub study: Study,
    pub stack: SoftwareStack,
    /// The chip that the space's chips are compared with.
    pub reference: Accelerator,
    /// The reference in the form of the space's chips. Bounds are prepared with it. They stay admissible, because no
    /// chip has a smaller launch time.
    pub ideal: Accelerator,
    pub space: Space,
    pub aim: Aim,
    /// The fabric with all devices that it can join.
    pub cluster: Fabric,
    /// The fabric, cut to the study's devices.
    pub fabric: Fabric,
    /// The fabrics in the order of the space's own, cut to the study's devices.
    pub fabrics: Vec<Fabric>,
    pub sequence_length: u64,
    /// Keys of the model's file that the request declares to be without effect.
    pub assume_ignored: Vec<String>,
    /// The memory per device that plans leave free.
    pub headroom: Bytes,
    /// True if flags set the devices or the batch.
    pub cluster_by_flags: bool,
    /// True if designs are ranked by the bad end of the step's interval.
    pub robust: bool,
    /// The question of all models as a value.
    pub asked: Question,
}

impl SearchQuestion {
    /// Reads a request and loads its question.
    pub fn read_question(request: &SearchRequest) -> Result<Self, Failure> {
        Self::load(request.question()?, request, None)
    }

    /// Loads a recorded question again.
    pub fn load_again(asked: Question) -> Result<Self, Failure> {
        Self::load(asked, &SearchRequest::default(), None)
    }

    /// Loads the same question for chips at the clocks that a lower limit on power allows. Without `watts`, returns the
    /// question unchanged.
    pub fn with_clocks_lowered_to(self, watts: Option<f64>, request: &SearchRequest) -> Result<Self, Failure> {
        match watts {
            Some(_) => Self::load(self.asked, request, watts),
            None => Ok(self),
        }
    }

    /// Loads the parts that a question names. Errors name the options of the request that asked it.
    fn load(asked: Question, request: &SearchRequest, lower_to_w: Option<f64>) -> Result<Self, Failure> {
        let name = asked.study.clone().unwrap_or_else(|| "the question".to_owned());
        let Some(study) = Study::of_question(&asked) else {
            return Err(failure::file_failure(&name, "asks about one chip", "search and sweep take a space of chips"));
        };
        let mut questions = study.workloads.iter().map(|work| {
            let mut study = study.clone();
            study.space.limits.lower_to_w = lower_to_w;
            let cluster = &mut study.cluster;
            cluster.devices = work.devices.unwrap_or(cluster.devices);
            cluster.global_batch_sequences = work.global_batch_sequences.unwrap_or(cluster.global_batch_sequences);
            Self::read_model(&asked, request, name.clone(), study, work)
        });
        let Some(first) = questions.next() else { return Err(failure::file_failure(&name, "no model", "")) };
        Ok(Self { others: questions.collect::<Result<_, _>>()?, ..first? })
    }

    /// Reads the question of a single model.
    pub fn read_of_one_model(arguments: &SearchRequest) -> Result<Self, Failure> {
        Self::read_question(arguments)?.of_one_model(arguments.models.is_empty())
    }

    /// Returns the question; fails if it is about several models. `by_study` is true if the study named them.
    pub fn of_one_model(self, by_study: bool) -> Result<Self, Failure> {
        let question = self;
        if question.others.is_empty() {
            return Ok(question);
        }
        let (models, first) = (question.model_names(), &question.called);
        let cure = format!("name one of them as MODEL ({first}, for instance); search takes several");
        Err(failure::input_failure(match by_study {
            true => format!("study {}: is for several models ({models}), and one is taken here: {cure}", question.name),
            false => format!("MODEL: {models}: must be one here; {cure}"),
        }))
    }

    /// Loads the question of one model.
    fn read_model(
        question: &Question,
        request: &SearchRequest,
        name: String,
        mut study: Study,
        work: &WorkloadSpec,
    ) -> Result<Self, Failure> {
        let (asked, files) = (&request.asked, &question.files);
        let model = Model::load_assuming(&work.model, files, &question.assume_ignored).or_input()?;
        let model = model.with_further_token_modules(question.mtp_layers.unwrap_or(0)).or_input()?;
        let model = with_documents(model, &work.documents)?;
        let of = |key: &str| place_in_study(&name, key);
        let stack = read_stack_of_study(question, request, &name, &mut study)?;
        let reference = reference_chip(&study, files).map_err(|e| e.with_context(of(reference_key(&study))))?;
        let ideal = study.space.limits.ideal_form(&reference);
        let aim = aim_of(question, &study);
        check_robust_objective(question.aim.robust, &aim)?;
        check_hbm_prices(&name, &study, &aim)?;
        let base = name_for_fabric(&study, &reference, files);
        let fault = |e: NetworkError| match &asked.fabric {
            Some(fabric) => failure::option_failure_from(&format!("--fabric {fabric}"), &e),
            None => failure::file_failure(of("cluster.fabric"), e, ""),
        };
        let cluster = interop::load_fabric_for_name(&study.cluster.fabric, base, files).map_err(fault)?;
        let fabric = cluster.for_devices(study.cluster.devices).map_err(fault)?;
        let space = design_space(&name, asked, &study, files, &reference, base)?;
        if space.is_empty() {
            return Err(nothing_within_limits(&name, asked, &space));
        }
        let fabrics = space_fabrics(&name, files, &study, &space, base, &fabric)?;
        check_system_prices(&name, &aim, &fabrics)?;
        let sequence_length = work.sequence_length.unwrap_or(model.max_sequence);
        // The length is checked here, because a length at which the model cannot be trained is no fault of the plans.
        TrainingGraph::new(&model, &Lowering { sequence_length, ..Lowering::new(&model) }).or_input()?;
        let headroom = parse_headroom(question.software.headroom_gib, &reference, &stack)?;
        let (called, weight, others) = (work.model.clone(), work.weight, Vec::new());
        Ok(Self {
            model,
            called,
            weight,
            others,
            name,
            study,
            stack,
            reference,
            ideal,
            space,
            aim,
            cluster,
            fabric,
            fabrics,
            sequence_length,
            assume_ignored: question.assume_ignored.clone(),
            headroom,
            robust: question.aim.robust,
            cluster_by_flags: asked.devices.is_some() || asked.global_batch.is_some(),
            asked: question.clone(),
        })
    }

    /// Returns the question of each model, this one first.
    pub fn all_models(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(&self.others)
    }

    /// Returns the share of a model among all, as a fraction.
    pub fn share_of_model(&self, of: &Self) -> f64 {
        of.weight / self.all_models().map(|one| one.weight).sum::<f64>()
    }

    /// Returns the names of the models.
    pub fn model_names(&self) -> String {
        self.all_models().map(|one| one.called.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// Returns the job on the reference chip in the form of the space's chips.
    pub fn reference_job<'a>(&'a self, fabric: &'a Fabric) -> Job<'a> {
        Job {
            model: &self.model,
            chip: &self.ideal,
            fabric,
            stack: &self.stack,
            devices: self.study.cluster.devices,
            global_batch: self.study.cluster.global_batch_sequences.into(),
            sequence_length: self.sequence_length,
            attention: self.study.plan.attention,
            precision: self.stack.precision_of_run(Precision::default()),
            optimizer: self.study.plan.optimizer,
            headroom: self.headroom,
            fit: self.study.plan.fit,
            techniques: workloads::Techniques::none(),
        }
    }

    /// Returns the name of a run directory: the models' names and the study's.
    pub fn directory_name(&self, arguments: &SearchRequest) -> String {
        let called = |model: &String| if Path::new(model).exists() { file_stem(model) } else { model.clone() };
        let named = match &arguments.question {
            None => arguments.models.clone(),
            Some(_) => self.asked.models.iter().map(|of| of.model.clone()).collect(),
        };
        let models: Vec<String> = named.iter().map(called).collect();
        let study = file_stem(&self.name);
        if models.is_empty() { study } else { format!("{}-{study}", models.join("-")) }
    }

    /// Returns the question in the form of a run's record.
    pub fn study_record(&self) -> StudyRecord {
        let (study, space, aim) = (&self.study, &self.space, self.aim);
        let mut options = BTreeMap::from([
            ("attention".to_owned(), format!("{:?}", study.plan.attention).to_lowercase()),
            ("optimizer".to_owned(), format!("{:?}, mixed precision", study.plan.optimizer).to_lowercase()),
            ("headroom_gib".to_owned(), self.headroom.gib().to_string()),
            ("fit".to_owned(), study.plan.fit.to_string()),
            ("evaluations_at_most".to_owned(), study.limits.evaluations.to_string()),
            ("front".to_owned(), aim.axes.to_string()),
            ("within_percent".to_owned(), study.limits.within_percent.to_string()),
        ]);
        let further = self.model.variations.further_tokens;
        options.extend((further > 0).then(|| ("mtp_layers".to_owned(), further.to_string())));
        let limits = [
            ("max_area_mm2", space.max_area.map(|area| area.0)),
            ("max_power_w", study.space.limits.max_power_w),
            ("max_cost_usd", study.space.limits.max_cost_usd),
            ("min_hbm_gib", study.space.limits.min_hbm_gib),
            ("max_hbm_gib", study.space.limits.max_hbm_gib),
            ("min_hbm_gb_per_s", study.space.limits.min_hbm_gb_per_s),
            ("max_step_s", aim.max_step.map(|most| most.0)),
        ];
        let operation = aim.operation;
        let paid = [
            ("years", operation.years),
            ("usd_per_kwh", operation.usd_per_kwh),
            ("pue", operation.pue),
            ("utilisation", operation.utilisation),
        ];
        options.extend(self.robust.then(|| ("robust".to_owned(), "true".to_owned())));
        options.extend(
            paid.iter().filter(|_| aim.pays_energy()).map(|(key, value)| ((*key).to_owned(), value.to_string())),
        );
        let dollars = operation.dollars.name().to_owned();
        options.extend(aim.pays_system().then(|| ("dollars".to_owned(), dollars)));
        options.extend(limits.into_iter().filter_map(|(key, limit)| Some((key.to_owned(), limit?.to_string()))));
        StudyRecord {
            name: self.name.clone(),
            model: self.model_names(),
            parameters: self.model.parameters(),
            active_parameters: self.model.find_active_parameters(),
            sequence_tokens: self.sequence_length,
            space_designs: space.design_count() as u64,
            reference_chip: study.space.reference_chip.clone(),
            devices: u64::from(study.cluster.devices),
            fabric: self.fabric.name.clone(),
            global_batch_sequences: u64::from(study.cluster.global_batch_sequences),
            stack: self.stack.name.clone(),
            plans: study.plan.choices.phrase(),
            objective: if self.others.is_empty() {
                aim.objective.to_string()
            } else {
                format!("{} ({})", aim.objective, aim.over)
            },
            options,
            assumptions: self.model.assumptions.clone(),
        }
    }

    /// Returns a digest of the question and of the built-in files that it names. It does not depend on the spelling of
    /// paths.
    pub fn digest_of_question(&self, seed: u64) -> String {
        self.digest_of_asked(&self.asked, seed)
    }

    /// True if a record answers this question, whatever the limits of its search were.
    pub fn is_answered_by(&self, record: &SearchRecord, seed: u64) -> bool {
        let asked = Question { limits: record.asked.limits.clone(), ..self.asked.clone() };
        record.question == self.digest_of_asked(&asked, seed)
    }

    fn digest_of_asked(&self, asked: &Question, seed: u64) -> String {
        let Self { stack, reference, cluster, .. } = self;
        let models: Vec<Model> =
            self.all_models().map(|of| Model { name: String::new(), ..of.model.clone() }).collect();
        // As JSON, because the names of types and variants must not decide whether a record can be read.
        let named = serde_json::to_string(&(models, stack, reference, cluster, seed));
        let named = named.unwrap_or_else(|why| why.to_string());
        results::store::sums::short_digest(&format!("{} {named}", asked.canonical()))
    }
}

impl SearchRequest {
    /// Makes the request of a study for one model.
    pub fn of_model(model: &str, study: Option<&String>, stack: Option<&String>, sequence_length: Option<u64>) -> Self {
        let (study, stack) = (study.cloned(), stack.cloned());
        Self { models: vec![model.to_owned()], study, stack, sequence_length, ..Self::default() }
    }

    /// Moves a study file among the models to `study`. Fails if two studies are named.
    pub fn settle_study(&self) -> Result<Self, Failure> {
        let is_study = |name: &&String| Path::new(name.as_str()).extension().is_some_and(|ending| ending == "toml");
        let (studies, models): (Vec<&String>, Vec<&String>) = self.models.iter().partition(|name| is_study(name));
        let study = match (&studies[..], &self.study) {
            ([], study) => study.clone(),
            ([study], None) => Some((*study).clone()),
            ([study], Some(named)) => {
                return Err(failure::file_failure(
                    study,
                    format!("is a study, and --study {named} names another"),
                    "give one of them",
                ));
            }
            ([one, other, ..], _) => {
                return Err(failure::input_failure(format!("{one}, {other}: are two studies; give one of them")));
            }
        };
        Ok(Self { models: models.into_iter().cloned().collect(), study, ..self.clone() })
    }

    /// Returns the question: a recorded one, or a study in which the values of options replace its own.
    pub fn question(&self) -> Result<Question, Failure> {
        if let Some(file) = &self.question {
            return self.recorded_question(file);
        }
        let asked = &self.asked;
        let name = self.study.clone().unwrap_or_else(|| USUAL_STUDY.to_owned());
        let mut study = Study::load_from(&name, &self.files).or_input()?;
        asked.apply_to_study(&name, &mut study)?;
        if let Some(stack) = &self.stack {
            study.plan.stack.clone_from(stack);
        }
        study.workloads = chosen_models(&name, &study, &self.models)?;
        for work in &mut study.workloads {
            work.devices = asked.devices.or(work.devices);
            work.global_batch_sequences = asked.global_batch.or(work.global_batch_sequences);
            work.sequence_length = self.sequence_length.or(work.sequence_length);
        }
        let mut question = study.question(&name);
        question.files.clone_from(&self.files);
        question.files.remove(Path::new(&name));
        asked.apply_to_aim(&mut question.aim);
        question.software.headroom_gib = self.headroom_gib;
        question.software.fit = self.fit.or(question.software.fit);
        question.mtp_layers = self.mtp_layers;
        question.assume_ignored.clone_from(&self.assume);
        // The files are read now, because they may change during a long search.
        question.carry_files();
        Ok(question)
    }

    /// Reads the question of a file: a question as JSON, or a run's record.
    fn recorded_question(&self, file: &Path) -> Result<Question, Failure> {
        if !self.models.is_empty() || self.study.is_some() || self.changes_other_than_question() {
            let cure = "leave models, study and their options out, or ask without it";
            return Err(failure::option_failure("--question", file.display(), "is the whole question", cure));
        }
        let text = input::read_text(file, "a question (question.json)")?;
        Question::parse(&file.display().to_string(), &text).map_err(failure::input_failure)
    }

    /// True if the request differs from the study, or is a recorded question.
    pub fn changes_study(&self) -> bool {
        self.question.is_some() || self.changes_other_than_question()
    }

    fn changes_other_than_question(&self) -> bool {
        !self.asked.is_empty()
            || self.stack.is_some()
            || self.sequence_length.is_some()
            || self.mtp_layers.is_some()
            || !self.assume.is_empty()
            || self.headroom_gib != 0.0
            || self.fit.is_some()
    }
}

/// Returns a name without folders and ending; for a `config.json`, the name of its folder.
fn file_stem(name: &str) -> String {
    let path = Path::new(name);
    let path = if path.file_name().is_some_and(|f| f == "config.json") { path.parent().unwrap_or(path) } else { path };
    path.file_stem().map_or_else(|| "model".into(), |s| s.to_string_lossy().into_owned())
}

/// Returns the models of the search: the named ones, each with the study's entry for it if there is one, or all of the
/// study's. Fails if there is none, or if a model is named twice.
fn chosen_models(name: &str, study: &Study, named: &[String]) -> Result<Vec<WorkloadSpec>, Failure> {
    if named.is_empty() && study.workloads.is_empty() {
        let cure = "name one or several (coplace list models), or use a study that has some (--study tpu)";
        return Err(failure::option_failure("MODEL", "", format!("none is given, and study {name} names none"), cure));
    }
    let same = |a: &str, b: &str| {
        let file = |name: &str| {
            if model::is_built_in(name) {
                None
            } else {
                model::config_file(Path::new(name), &Files::default()).canonicalize().ok()
            }
        };
        sim::names::are_same_name(a, b) || file(a).is_some_and(|a| Some(a) == file(b))
    };
    for (at, model) in named.iter().enumerate() {
        if let Some(before) = named[..at].iter().find(|before| same(before, model)) {
            return Err(failure::option_failure(
                "MODEL",
                model,
                format!("is given already ({before})"),
                "give each model once, or in a study with a weight ([[workload]])",
            ));
        }
    }
    let known = |model: &String| study.workloads.iter().find(|work| work.model == *model).cloned();
    let chosen: Vec<WorkloadSpec> =
        named.iter().map(|model| known(model).unwrap_or_else(|| WorkloadSpec::of(model))).collect();
    Ok(if chosen.is_empty() { study.workloads.clone() } else { chosen })
}

/// Puts the study's name and the line of the key before a fault. `why` begins with the key.
fn place_in_study(name: &str, why: &str) -> String {
    format!("{}: {why}", Study::place(name, why))
}

/// Returns the study's key that names the reference chip. If the reference is the base chip, the key is that of the
/// base chip.
fn reference_key(study: &Study) -> &'static str {
    match &study.space.chips {
        Chips::Grid(spec) if spec.base_chip == study.space.reference_chip => "space.base_chip",
        _ => "space.reference_chip",
    }
}

/// Reads the stack of a study, and narrows the study's choices to those that it runs. Warns of what is left out.
fn read_stack_of_study(
    question: &Question,
    request: &SearchRequest,
    name: &str,
    study: &mut Study,
) -> Result<SoftwareStack, Failure> {
    let options = &question.software.stack_options;
    let stack = input::read_stack(&study.plan.stack, options, &question.files).map_err(|e| {
        e.with_context(match request.stack.is_some() {
            true => "--stack".to_owned(),
            false => place_in_study(name, "plan.stack"),
        })
    })?;
    let narrowed =
        study.plan.choices.narrow_to(&stack).map_err(|why| {
            failure::file_failure(Study::place(name, &format!("plan.{why}")), format!("plan.{why}"), "")
        })?;
    if let Some(change) = narrowed {
        tracing::warn!("stack {} does not run all plans of study {name}: {change}", study.plan.stack);
    }
    Ok(stack)
}

/// Fails if the objective pays for the system around the chips, and the parts of a fabric are unknown.
fn check_system_prices(name: &str, aim: &Aim, fabrics: &[Fabric]) -> Result<(), Failure> {
    let constants = Constants::nominal();
    let price = |fabric: &Fabric| fabric.price_system(&constants).err();
    match fabrics.iter().filter(|_| aim.pays_system()).find_map(price) {
        None => Ok(()),
        Some(why) => {
            let cure = "or let dollars pay for the chip alone (--dollars chip)";
            Err(failure::input_failure(place_in_study(name, &format!("cluster.fabric: {why}; {cure}"))))
        }
    }
}

/// Fails if cost matters and PHAZE's chips have several HBM capacities. The capacities change only the price, and are
/// searched as one.
fn check_hbm_prices(name: &str, study: &Study, aim: &Aim) -> Result<(), Failure> {
    let Chips::Phaze(grid) = &study.space.chips else { return Ok(()) };
    let dollars =
        aim.objective.pays_dollars() || aim.axes.contains(FrontAxis::Cost) || study.space.limits.max_cost_usd.is_some();
    if !dollars || grid.hbm_gib.len() < 2 {
        return Ok(());
    }
    let cure = "list one capacity, or use a study in which HBM is a dimension (--study tpu)";
    let list = &grid.hbm_gib;
    Err(failure::input_failure(place_in_study(
        name,
        &format!(
            "space.hbm_gib = {list:?}: cost matters here, but capacities that change no area are searched as one; \
            {cure}"
        ),
    )))
}

/// Returns the name of the chip that selects the figures of a fabric: a built-in base chip, else the reference chip, by
/// its own name if the fabric has figures for that name.
fn name_for_fabric<'a>(study: &'a Study, reference: &'a Accelerator, files: &Files) -> &'a str {
    match &study.space.chips {
        Chips::Grid(SpaceDimensions { base_chip, .. }) if !base_chip.ends_with(".toml") => base_chip,
        _ => match interop::load_fabric_for_name(&study.cluster.fabric, &reference.name, files) {
            Err(NetworkError::NoChip { .. }) => reference.known_name(),
            _ => &reference.name,
        },
    }
}

fn design_space(
    name: &str,
    asked: &StudyOverrides,
    study: &Study,
    files: &Files,
    reference: &Accelerator,
    base: &str,
) -> Result<Space, Failure> {
    let limits = &study.space.limits;
    let spec = match &study.space.chips {
        Chips::Phaze(grid) => {
            let space = Space::from_phaze(grid, limits, reference).or_input()?;
            if space.hbm.is_empty() {
                let (list, cure) = (&grid.hbm_gib, "allow one of them, or list another");
                let why = format!("space.hbm_gib = {list:?}: none is within the limits of HBM; {cure}");
                return Err(failure::input_failure(place_in_study(name, &why)));
            }
            return Ok(space);
        }
        Chips::Grid(spec) => spec,
    };
    let document =
        chip_document(&spec.base_chip, files).map_err(|e| e.with_context(place_in_study(name, "space.base_chip")))?;
    let mut document = document.strip_measured(spec.efficiency != EfficiencyChoice::Base);
    if spec.efficiency == EfficiencyChoice::Family {
        document.set_family_efficiency(document.build_accelerator().or_input()?.family());
    }
    document.set_constants(&study.space.constants);
    let fabric = FabricDocument::load_from(&study.cluster.fabric, base, files).ok();
    let field = |key: &str| fabric.as_ref().and_then(|fabric| fabric.field_value(key));
    let fault = |why: String| {
        failure::input_failure(asked.name_dimension_fault(&why).unwrap_or_else(|| place_in_study(name, &why)))
    };
    let space = Space::from_relatives(Grid::new(document, &spec.dimensions, &field).map_err(fault)?, limits);
    let space = space.map_err(fault)?;
    match space.refusal_of_all().map_err(fault)? {
        Some(why) => Err(failure::file_failure(
            asked.set_flags().unwrap_or_else(|| format!("{name}: space.dimensions")),
            format!("no combination of the dimensions is a chip: {why}"),
            "",
        )),
        None => Ok(space),
    }
}

/// Reads the chip that the space's chips are compared with, under the study's constants.
fn reference_chip(study: &Study, files: &Files) -> Result<Accelerator, Failure> {
    read_chip_under_constants(&study.space.reference_chip, &study.space, files)
}

/// Reads a chip under the constants of a space, so that it is compared with the space's chips under the same ones.
pub(super) fn read_chip_under_constants(name: &str, space: &SpaceSpec, files: &Files) -> Result<Accelerator, Failure> {
    if space.constants.is_empty() {
        return Ok(input::read_chip(name, files)?.accelerator);
    }
    let mut document = chip_document(name, files)?;
    document.set_constants(&space.constants);
    document.build_accelerator().or_input()
}

/// Reads a chip's file by name or path as a document of fields.
pub fn chip_document(name_or_path: &str, files: &Files) -> Result<ChipDocument, Failure> {
    let directory = search_run::directory_of_run(Path::new(name_or_path));
    if directory.is_dir() {
        let text = SearchRun::read_chip(&directory).or_input()?;
        return ChipDocument::parse_chip_file(&text, &directory.join(search_run::CHIP).display().to_string())
            .or_input();
    }
    if name_or_path.ends_with(".toml") {
        let text = input::read_text_from(name_or_path.as_ref(), "a chip file (.toml)", files)?;
        return ChipDocument::parse_chip_file(&text, name_or_path).or_input();
    }
    ChipDocument::of_built_in_chip(name_or_path).or_input()
}

/// Builds the space's fabrics, cut to the study's devices.
fn space_fabrics(
    name: &str,
    files: &Files,
    study: &Study,
    space: &Space,
    base: &str,
    own: &Fabric,
) -> Result<Vec<Fabric>, Failure> {
    let build = |settings: Vec<(String, FieldValue)>| {
        if settings.is_empty() {
            return Ok(own.clone());
        }
        let document = set_fabric(&study.cluster.fabric, files, base, &settings)
            .map_err(|why| format!("{}: {why}", Study::place(name, &why)))?;
        let words =
            || settings.iter().map(|(key, value)| format!("{FABRIC}{key} = {value}")).collect::<Vec<_>>().join(", ");
        let cut = document.build_fabric().and_then(|fabric| fabric.for_devices(study.cluster.devices));
        cut.map_err(|why| {
            let why = format!("space.dimensions: with {}: {why}", words());
            format!("{}: {why}", Study::place(name, &why))
        })
    };
    space.fabric_settings().into_iter().map(build).collect::<Result<_, _>>().map_err(failure::input_failure)
}

/// Reads a fabric's file and sets fields.
fn set_fabric(
    fabric: &str,
    files: &Files,
    base: &str,
    settings: &[(String, FieldValue)],
) -> Result<FabricDocument, String> {
    let mut document =
        FabricDocument::load_from(fabric, base, files).map_err(|why| format!("cluster.fabric: {why}"))?;
    for (key, value) in settings {
        document.set_field(key, value).map_err(|fault| format!("space.dimensions.{FABRIC}{fault}"))?;
    }
    Ok(document)
}

impl SearchQuestion {
    /// True if a design's fabric has a file of its own in the run directory.
    pub fn has_fabric_file(&self, id: search::space::DesignId) -> bool {
        self.file_of_fabric(id, "").is_ok_and(|file| file.is_some())
    }

    /// Returns the file of a design's fabric; `None` if other verbs can load the fabric by name or path.
    pub fn file_of_fabric(&self, id: search::space::DesignId, source: &str) -> Result<Option<String>, Failure> {
        let Chips::Grid(_) = &self.study.space.chips else { return Ok(None) };
        let settings = self.space.fabric_settings().swap_remove(self.space.fabric_of_design(id));
        let base = name_for_fabric(&self.study, &self.reference, &self.asked.files);
        // A fabric from another program's file needs no file of its own, because other verbs load it by its path.
        let Ok(mut document) = set_fabric(&self.study.cluster.fabric, &self.asked.files, base, &settings) else {
            return Ok(None);
        };
        document.set_name(&self.fabric.name);
        document.set_source(source);
        document.to_text().map(Some).or_input()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_digest_counts_every_value_of_the_stack_and_the_chip() {
        let request = SearchRequest::of_model("opt-350m", Some(&"smoke".to_owned()), None, None);
        let load = || SearchQuestion::load_again(request.question().unwrap()).unwrap();
        let (first, mut stack, mut chip) = (load().digest_of_question(0), load(), load());
        assert_eq!(load().digest_of_question(0), first);
        assert_ne!(load().digest_of_question(1), first);
        stack.stack.overlap.pipeline += 0.01;
        assert_ne!(stack.digest_of_question(0), first);
        chip.reference.hbm.capacity += Bytes(1);
        assert_ne!(chip.digest_of_question(0), first);
    }
}
