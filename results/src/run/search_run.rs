//! Run directories: `search` writes them; `compare` and `pareto` read them.

use crate::answer::comparison::ComparisonEntry;
use crate::figure::{
    AxisScale, DesignPoint, Figure, FigureError, NamedDesign, ParetoPlot, RunSeries, draw_pareto, draw_tornado,
};
use crate::run::front::{DesignMeasures, FrontAxes, FrontQuantity, MeanRatios, StepScope};
use crate::run::record::{BestDesign, ModelPlan, Proof, RECORD, RecordError, SearchRecord};
use crate::store::design::DesignRow;
use crate::store::design_file::{self, StoreError};
use crate::store::files::{self, Unwritable, WriteError};
use crate::store::sums::{self, DigestError, DigestList, SUMS};
use crate::text::{format_count, format_significant};
use search::objective::{FrontAxis, MeasureMean, ObjectiveKind, Term};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The file name of the store of designs.
pub const DESIGNS: &str = "designs.parquet";
/// The file name of the figure, without its extension.
pub const PARETO: &str = "pareto";
/// The files of the figure of the front.
const PARETO_FILES: [&str; 2] = ["pareto.svg", "pareto.png"];
/// The files of the figure of the constants that affect the choice. They exist only if constants were drawn.
const TORNADO_FILES: [&str; 2] = ["tornado.svg", "tornado.png"];
/// The file of the best chip.
pub const CHIP: &str = "best.toml";
/// The file of the fabric of the best chip, unless it is built in.
pub const FABRIC: &str = "fabric.toml";
/// The file of the progress of the proof.
pub(crate) const PROGRESS: &str = "progress.csv";
/// Every file that a run may have, in the order in which they are put in place.
pub const FILES: [&str; 10] = [
    SUMS,
    DESIGNS,
    PARETO_FILES[0],
    PARETO_FILES[1],
    TORNADO_FILES[0],
    TORNADO_FILES[1],
    CHIP,
    FABRIC,
    PROGRESS,
    RECORD,
];

/// The found design in the form of files that other commands accept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FoundFiles {
    /// The text of the chip's file.
    pub chip: Option<String>,
    /// The text of the fabric's file, unless the fabric is built in.
    pub fabric: Option<String>,
    /// The progress of the proof as comma-separated values.
    pub progress: Option<String>,
}

/// An error of writing or reading a run directory.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A file or directory cannot be written.
    #[error(transparent)]
    Directory(#[from] WriteError),
    /// An error of the record.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// An error of the store of designs.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An error of a figure.
    #[error(transparent)]
    Figure(#[from] FigureError),
    /// An error of the digests.
    #[error(transparent)]
    Sums(#[from] DigestError),
    /// The directory holds no run.
    #[error("{}: is a directory without a run of coplace; give the directory of a run that found a chip, or in its \
        place a chip's file or name (coplace list chips)", directory.display())]
    NoRun {
        /// The directory.
        directory: PathBuf,
    },
    /// The run has no chip.
    #[error("{}: no {CHIP} in it: its search found no design that runs the model, or is of an older version; run a \
        search, or give a chip", directory.display())]
    NoChip {
        /// The run's directory.
        directory: PathBuf,
    },
}

impl Unwritable for RunError {
    fn write_error(&self) -> Option<&WriteError> {
        match self {
            Self::Directory(error) | Self::Store(StoreError::Write(error)) => Some(error),
            Self::Figure(error) => error.write_error(),
            Self::Record(_) | Self::Store(_) | Self::Sums(_) | Self::NoRun { .. } | Self::NoChip { .. } => None,
        }
    }
}

/// Returns the name of the run in a directory.
pub(crate) fn run_name(directory: &Path) -> String {
    directory.file_name().unwrap_or(directory.as_os_str()).to_string_lossy().into_owned()
}

/// Returns the directory of a run, given the directory or the record in it. Any other path is returned unchanged.
#[must_use]
pub fn directory_of_run(path: &Path) -> PathBuf {
    let is_record = path.file_name().is_some_and(|name| name == RECORD) && path.is_file();
    match path.parent().filter(|parent| is_record && parent.join(SUMS).is_file()) {
        Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
        Some(parent) => parent.to_path_buf(),
        None => path.to_path_buf(),
    }
}

/// Reads the record of a search or a sweep, and verifies its digest.
///
/// # Errors
/// A record that is missing, damaged or of another version, or whose digest does not match.
pub fn read_record(directory: &Path) -> Result<SearchRecord, RunError> {
    let record = SearchRecord::read_from(&directory.join(RECORD))?;
    verify_file(directory, RECORD)?;
    Ok(record)
}

/// True if the digests of a directory list a file.
pub(crate) fn has_digest_of(directory: &Path, file: &str) -> Result<bool, RunError> {
    Ok(DigestList::read_from(directory)?.lists_all(&[file]))
}

/// Verifies the digest of a file in a directory.
pub(crate) fn verify_file(directory: &Path, file: &str) -> Result<(), RunError> {
    Ok(DigestList::read_from(directory)?.verify_file(directory, file)?)
}

/// A function that returns a figure for one model: its value on the reference chip, and its value for a baseline.
type Pair<'a> = &'a dyn Fn(&ModelPlan, &ComparisonEntry) -> Option<(f64, f64)>;

/// A finished run of a search.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchRun {
    /// The name of the directory.
    pub name: String,
    /// The record.
    pub record: SearchRecord,
    /// All designs of the search.
    pub designs: Vec<DesignRow>,
}

impl SearchRun {
    /// Returns the kind of mean over several models.
    pub(crate) fn scoring_over_models(&self) -> MeasureMean {
        if self.record.study.objective.ends_with(&format!("({})", MeasureMean::Mean)) {
            MeasureMean::Mean
        } else {
            MeasureMean::Geomean
        }
    }

    /// Writes the run into `directory`, and creates it if needed. The order is: digests, store, figures as SVG and PNG,
    /// found files, record. Therefore a directory with a record is complete, and digests reveal a mix of two runs. All
    /// files are encoded and on the disk before the first one appears under its name. Returns the paths, the record's
    /// first.
    ///
    /// # Errors
    /// Errors of the system; a value that is not finite. If writing fails before the first file is put in place, no
    /// file of the run is there, and an older run is whole.
    pub fn write_run(&self, directory: &Path, found: &FoundFiles) -> Result<Vec<PathBuf>, RunError> {
        let path = |name: &str| directory.join(name);
        let mut files = vec![(path(DESIGNS), design_file::to_bytes(&path(DESIGNS), self.designs.iter().cloned())?)];
        // A search that ranks by bad ends has no front.
        if !self.record.certificate.robust {
            let figure = front_figure(std::slice::from_ref(self), self.axes_of_front())?;
            files.extend(PARETO_FILES.map(path).into_iter().zip([figure.svg().as_bytes().to_vec(), figure.png()?]));
        }
        if let Some(decision) = &self.record.decision {
            let figure = draw_tornado(decision)?;
            files.extend(TORNADO_FILES.map(path).into_iter().zip([figure.svg().as_bytes().to_vec(), figure.png()?]));
        }
        let named = [(CHIP, &found.chip), (FABRIC, &found.fabric), (PROGRESS, &found.progress)];
        files.extend(named.iter().filter_map(|(name, text)| Some((path(name), text.as_ref()?.clone().into_bytes()))));
        files.push((path(RECORD), self.record.to_json()?.into_bytes()));
        files.insert(0, (path(SUMS), sums::digest_lines(&files).into_bytes()));
        let unwritable = |why| WriteError { file: directory.into(), why };
        std::fs::create_dir_all(directory).map_err(unwritable)?;
        // An older run may have files that this run does not have. They are removed, because the new digests do not
        // list them.
        let missing = named.iter().filter(|(_, text)| text.is_none()).map(|(name, _)| *name);
        let missing = missing.chain(PARETO_FILES.into_iter().filter(|_| self.record.certificate.robust));
        let missing = missing.chain(TORNADO_FILES.into_iter().filter(|_| self.record.decision.is_none()));
        files::replace_files(&files, &missing.map(path).collect::<Vec<_>>())?;
        Ok(files.into_iter().rev().map(|(path, _)| path).collect())
    }

    /// Reads the designs of a search and adds them to its record. The digest is verified before the store is decoded.
    /// The figure is not verified, because `pareto` may have replaced it.
    pub(crate) fn read_designs(directory: &Path, record: SearchRecord) -> Result<Self, RunError> {
        verify_file(directory, DESIGNS)?;
        let designs = design_file::read_designs(&directory.join(DESIGNS), record.certificate.designs)?;
        Ok(Self { name: run_name(directory), record, designs })
    }

    /// Reads the file of the found chip. Verifies its digest, and that of the fabric's file.
    ///
    /// # Errors
    /// A run without a chip, or a file that is missing, damaged, or of another run.
    pub fn read_chip(directory: &Path) -> Result<String, RunError> {
        if [SUMS, RECORD, CHIP].iter().all(|name| !directory.join(name).exists()) {
            return Err(RunError::NoRun { directory: directory.into() });
        }
        let sums = DigestList::read_from(directory)?;
        if !sums.lists_all(&[CHIP]) {
            return Err(RunError::NoChip { directory: directory.into() });
        }
        for name in [CHIP, FABRIC] {
            if sums.lists_all(&[name]) {
                sums.verify_file(directory, name)?;
            }
        }
        let file = directory.join(CHIP);
        Ok(sim::files::text::read_text(&file).map_err(|why| DigestError::Unreadable { file, why })?)
    }

    /// Returns the axes of the front: the objective against the requested quantities.
    #[must_use]
    pub fn axes_of_front(&self) -> FrontAxes {
        FrontAxes::of_search(
            &self.designs,
            &self.record.study,
            &self.record.certificate.objective,
            self.of_several_models(),
        )
    }

    /// Returns the designs on the front.
    #[must_use]
    pub fn designs_on_front(&self) -> Vec<&DesignRow> {
        self.axes_of_front().front_designs(&self.designs, &self.step_scope())
    }

    /// Returns the work of a step of this run.
    #[must_use]
    pub fn step_scope(&self) -> StepScope {
        StepScope::of_study(&self.record.study, self.of_several_models())
    }

    /// Describes the study in one line: `study phaze, 1,024 x phaze_flat, 4,096 sequences per step`.
    fn setting_line(&self) -> String {
        let s = &self.record.study;
        let (devices, batch) = (format_count(s.devices), format_count(s.global_batch_sequences));
        format!("study {}, {devices} x {}, {batch} sequences per step", s.name, s.fabric)
    }

    /// True if the run has several models. Its throughputs are then relative to a reference.
    #[must_use]
    pub fn of_several_models(&self) -> bool {
        // Without a best design, the name of the objective shows it: it ends in the kind of mean, in parentheses.
        !self.models().is_empty() || self.record.study.objective.ends_with(')')
    }

    /// Returns the models on the best design; empty for one model.
    #[must_use]
    pub fn models(&self) -> &[ModelPlan] {
        self.record.best.as_ref().map_or(&[], |best| &best.models)
    }

    /// Returns what to call the non-dominated designs along `axes`. They are the Pareto front if every design is
    /// decided, and the search either looked for the front along these axes or pruned no design. If the search pruned
    /// designs under a tolerance, the name of the front states the tolerance.
    #[must_use]
    pub fn front_words(&self, axes: FrontAxes) -> String {
        let (certificate, options) = (&self.record.certificate, &self.record.study.options);
        let (own, decided) = (self.axes_of_front(), certificate.open == 0);
        // Records without this option are of searches that all looked for the front.
        let searched = options
            .get("front")
            .is_none_or(|axes| axes.split(',').any(|name| FrontQuantity::from_name(name).is_some()));
        // A front of three quantities contains the fronts of any two of them.
        let along = axes.all_quantities().all(|quantity| own.all_quantities().any(|known| known == quantity));
        let within = options.get("within_percent").and_then(|percent| percent.parse::<f64>().ok()).unwrap_or(0.0);
        if decided && (certificate.pruned == 0 || (searched && along && within == 0.0)) {
            "Pareto front".to_owned()
        } else if decided && searched && along {
            format!("Pareto front within {within} %")
        } else {
            "non-dominated of the designs evaluated".to_owned()
        }
    }

    fn proof_note(&self) -> String {
        let certificate = &self.record.certificate;
        match (certificate.proof, certificate.gap) {
            (Proof::Proven, _) => "best proven".into(),
            (Proof::Infeasible, _) => "proven infeasible".into(),
            (Proof::Gap, Some(gap)) => format!("best within {} %", format_significant(gap * 100.0, 3)),
            (Proof::Gap, None) => "best not proven".into(),
        }
    }

    /// Returns the process node of the designs, if all have the same.
    fn common_node(&self) -> Option<&String> {
        let mut nodes = self.designs.iter().map(|row| row.node.as_ref());
        let first = nodes.next()?;
        nodes.all(|node| node == first).then_some(first)?
    }

    /// Lists the process nodes of the designs: `4 nm`, `3 nm, 7 nm`. Empty if none is known.
    #[must_use]
    pub fn node_names(&self) -> String {
        let nodes: BTreeSet<&String> = self.designs.iter().filter_map(|row| row.node.as_ref()).collect();
        nodes.into_iter().map(String::as_str).collect::<Vec<_>>().join(", ")
    }

    /// Returns the upper limit of a quantity, if the question has one.
    fn largest_allowed(&self, quantity: FrontQuantity) -> Option<f64> {
        let key = match quantity {
            FrontQuantity::Cost(FrontAxis::Area) => "max_area_mm2",
            FrontQuantity::Cost(FrontAxis::Power) => "max_power_w",
            FrontQuantity::Cost(FrontAxis::Cost) => "max_cost_usd",
            FrontQuantity::Objective(objective) if objective.kind() == ObjectiveKind::Time => "max_step_s",
            _ => return None,
        };
        self.record.study.options.get(key)?.parse().ok()
    }

    /// Returns the chips that the figure names: those of the comparison, or only the best design. For several models,
    /// the rates are means relative to the reference.
    fn known_chips(&self) -> Vec<(String, Option<&String>, DesignMeasures)> {
        let best = self.record.best.as_ref();
        let entry = |e: &'_ ComparisonEntry| DesignMeasures::from(e);
        let of_design = |best: &'_ BestDesign| DesignMeasures::from(&best.design);
        if let Some(best) = best.filter(|_| self.of_several_models()) {
            let mut known = vec![("best found".to_owned(), best.design.node.as_ref(), of_design(best))];
            let baselines = best.models.first().into_iter().flat_map(|model| model.comparison.entries.iter().skip(1));
            let baselines = baselines.filter(|entry| entry.is_drawn());
            known.extend(baselines.filter_map(|e| {
                Some((e.label.clone(), e.node.as_ref(), entry(e).with_means(&self.means_of_baseline(best, &e.label)?)))
            }));
            return known;
        }
        match (&self.record.comparison, best) {
            (Some(comparison), _) => {
                let drawn = comparison.entries.iter().filter(|e| e.is_drawn());
                drawn.map(|e| (e.label.clone(), e.node.as_ref(), entry(e))).collect()
            }
            (None, Some(best)) => vec![("best found".to_owned(), best.design.node.as_ref(), of_design(best))],
            (None, None) => Vec::new(),
        }
    }

    /// Returns the means of a baseline over the models, relative to the reference. `None` if it cannot run one of the
    /// models.
    pub(crate) fn means_of_baseline(&self, best: &BestDesign, label: &str) -> Option<MeanRatios> {
        self.means_of_entry(best, label, &self.step_scope())
    }

    /// As [`Self::means_of_baseline`], of any entry, with the price of energy of `scope`.
    pub(crate) fn means_of_entry(&self, best: &BestDesign, label: &str, scope: &StepScope) -> Option<MeanRatios> {
        let entry = |model: &'_ ModelPlan| model.comparison.entries.iter().position(|entry| entry.label == label);
        let runs: Vec<(&ModelPlan, &ComparisonEntry)> = best
            .models
            .iter()
            .map(|model| Some((model, &model.comparison.entries[entry(model)?])))
            .collect::<Option<_>>()?;
        let over = self.scoring_over_models();
        // `pair` returns the value on the reference chip and the entry's value, for one model.
        let value = |pair: Pair<'_>| {
            let pairs: Vec<(f64, f64)> = runs.iter().map(|(model, entry)| pair(model, entry)).collect::<Option<_>>()?;
            let term = |((model, _), (reference, _)): (&(&ModelPlan, &ComparisonEntry), &(f64, f64))| Term {
                share: model.share,
                reference: *reference,
            };
            let terms: Vec<Term> = runs.iter().zip(&pairs).map(term).collect();
            Some(over.combine_measures(&terms, &pairs.iter().map(|(_, own)| *own).collect::<Vec<_>>()))
        };
        let tokens = |model: &ModelPlan| model.global_batch_sequences as f64 * model.sequence_tokens as f64;
        let seconds = |model: &ModelPlan, entry: &ComparisonEntry| {
            Some((tokens(model) / model.reference_tokens_per_s, tokens(model) / entry.throughput_tokens_per_s?))
        };
        let paid = |model: &ModelPlan, entry: &ComparisonEntry| {
            let ((reference, own), watt) = (seconds(model, entry)?, scope.usd_per_cluster_watt(model.devices)?);
            Some((reference, scope.paid_usd(entry)? * own + watt * entry.energy_per_step_j?))
        };
        Some(MeanRatios {
            times_reference: 1.0 / value(&seconds)?,
            energy_times_reference: value(&|model, entry| {
                Some((model.reference_energy_per_step_j?, entry.energy_per_step_j?))
            }),
            times_reference_per_usd: value(&paid).map(|value| 1.0 / value),
        })
    }

    /// Returns the named chips of the figure, and the chips that cannot be drawn. The label has the process node if it
    /// differs from `common`.
    fn named_chips(&self, axes: FrontAxes, common: Option<&String>) -> (Vec<NamedDesign>, Vec<String>) {
        let (mut drawn, mut left_out) = (Vec::new(), Vec::new());
        for (at, (label, node, measured)) in self.known_chips().into_iter().enumerate() {
            let of = |quantity: FrontQuantity| quantity.value_of(&measured, &self.step_scope());
            match (of(axes.x), of(axes.y)) {
                (Some(x), Some(y)) => {
                    let other = node.filter(|node| Some(*node) != common);
                    let label = other.map_or_else(|| label.clone(), |node| format!("{label} ({node})"));
                    drawn.push(NamedDesign { chip: label.clone(), label, run: None, x, y, best: at == 0 });
                }
                // A chip that runs nothing is not drawn; the comparison lists it.
                (None, Some(_)) => left_out.push(label),
                _ => {}
            }
        }
        (drawn, left_out)
    }
}

/// The largest relative distance at which a chip of several runs stands in one place: less than a pixel of a figure.
const SAME_PLACE: f64 = 1e-3;

/// Returns the named chips of a figure of several runs, each point once, and the chips that cannot be drawn.
fn named_chips_of_runs(
    runs: &[SearchRun],
    axes: FrontAxes,
    common: Option<&String>,
) -> (Vec<NamedDesign>, Vec<String>) {
    let (mut references, mut left_out): (Vec<NamedDesign>, Vec<String>) = (Vec::new(), Vec::new());
    let near = |a: f64, b: f64| (a - b).abs() <= SAME_PLACE * a.abs().max(b.abs());
    for (at, run) in runs.iter().enumerate() {
        let (drawn, not_drawn) = run.named_chips(axes, common);
        left_out.extend(not_drawn);
        for own in drawn {
            let same = |known: &&mut NamedDesign| {
                !own.best && known.chip == own.chip && near(known.x, own.x) && near(known.y, own.y)
            };
            match references.iter_mut().find(same) {
                // A chip that lies at the same place in several runs has a label without a run.
                Some(known) => (known.label, known.run) = (own.label, None),
                None if runs.len() > 1 => {
                    let label = format!("{}: {}", run.name, own.label);
                    references.push(NamedDesign { label, run: Some(at), ..own });
                }
                None => references.push(own),
            }
        }
    }
    left_out.sort();
    left_out.dedup();
    (references, left_out)
}

/// Describes in one line how the questions of several runs differ, with the value of each run.
fn describe_questions(runs: &[SearchRun]) -> String {
    let facts = |run: &SearchRun| {
        let study = &run.record.study;
        let mut facts = vec![
            ("model".to_owned(), study.model.clone()),
            ("study".to_owned(), study.name.clone()),
            ("devices".to_owned(), format!("{} x {}", format_count(study.devices), study.fabric)),
            ("sequences per step".to_owned(), format_count(study.global_batch_sequences)),
            ("tokens per sequence".to_owned(), format_count(study.sequence_tokens)),
            ("stack".to_owned(), study.stack.clone()),
            ("searched for".to_owned(), study.objective.clone()),
            ("plans".to_owned(), study.plans.clone()),
        ];
        facts.extend(study.options.iter().map(|(key, value)| (key.replace('_', " "), value.clone())));
        facts
    };
    let of_runs: Vec<Vec<(String, String)>> = runs.iter().map(facts).collect();
    let mut names: Vec<&String> = Vec::new();
    for (name, _) in of_runs.iter().flatten() {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let value_of = |facts: &'_ [(String, String)], name: &String| {
        facts.iter().find(|fact| fact.0 == *name).map_or_else(|| "none".to_owned(), |fact| fact.1.clone())
    };
    let difference = |name: &String| {
        let values: Vec<String> = of_runs.iter().map(|facts| value_of(facts, name)).collect();
        if values.iter().all(|value| *value == values[0]) {
            return None;
        }
        let each = runs.iter().zip(&values).map(|(run, value)| format!("{value} ({})", run.name));
        Some(format!("{name}: {}", each.collect::<Vec<_>>().join(", ")))
    };
    let differences: Vec<String> = names.into_iter().filter_map(difference).collect();
    match differences.is_empty() {
        true => format!("{} runs of one question", runs.len()),
        false => format!("{} runs. {}", runs.len(), differences.join("; ")),
    }
}

/// Draws one or more runs along the axes of a front. With several runs, each is a series under its name, and the labels
/// of its chips contain that name.
///
/// # Errors
/// Errors of the drawing library.
pub fn front_figure(runs: &[SearchRun], axes: FrontAxes) -> Result<Figure, FigureError> {
    let several = runs.len() > 1;
    let mut models: Vec<&str> = runs.iter().map(|r| r.record.study.model.as_str()).collect();
    models.dedup();
    let subtitle = match runs {
        [run] => format!("{}; {}", run.setting_line(), run.proof_note()),
        _ => describe_questions(runs),
    };
    let node = runs
        .first()
        .and_then(SearchRun::common_node)
        .filter(|node| runs.iter().all(|run| run.common_node() == Some(*node)));
    let scale = |quantity: FrontQuantity| {
        let unit = quantity.unit(runs.iter().all(SearchRun::of_several_models));
        let of_node =
            node.filter(|_| quantity == FrontQuantity::AREA).map_or_else(String::new, |node| format!(" at {node}"));
        AxisScale {
            label: format!("{} ({unit}{of_node})", quantity.label()),
            more_is_better: quantity.more_is_better(),
        }
    };
    let series = |run: &SearchRun| {
        let of = |row: &DesignRow| {
            let measured = DesignMeasures::from(row);
            let of = |quantity: FrontQuantity| quantity.value_of(&measured, &run.step_scope());
            (of(axes.x), of(axes.y))
        };
        let point = |row: &DesignRow| {
            let (x, y) = of(row);
            Some(DesignPoint { x: x?, outcome: row.outcome, y })
        };
        let third = |z: FrontQuantity| {
            let places =
                axes.front_designs(&run.designs, &run.step_scope()).into_iter().map(of).filter_map(|(x, y)| x.zip(y));
            (z.plain_name().to_owned(), places.collect())
        };
        let nodes = Some(run.node_names()).filter(|nodes| node.is_none() && !nodes.is_empty());
        let name = nodes.map_or_else(|| run.name.clone(), |nodes| format!("{} ({nodes})", run.name));
        RunSeries {
            name: if several { name } else { String::new() },
            points: run.designs.iter().filter_map(point).collect(),
            front: run.front_words(axes),
            largest_x: run.largest_allowed(axes.x),
            third: axes.z.map(third),
        }
    };
    let (references, left_out) = named_chips_of_runs(runs, axes, node);
    let left_out = (!left_out.is_empty()).then(|| format!("no {} known of {}", axes.x.label(), left_out.join("; ")));
    draw_pareto(&ParetoPlot {
        noun: "design",
        title: format!("{}: {}", models.join(", "), axes.describe_axes()),
        subtitle,
        x: scale(axes.x),
        y: scale(axes.y),
        series: runs.iter().map(series).collect(),
        references,
        left_out,
    })
}

#[cfg(test)]
#[path = "search_run_tests.rs"]
mod tests;
