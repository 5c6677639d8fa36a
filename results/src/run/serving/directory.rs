//! The directory of a run of `coplace serve`.

use super::case::ServedCase;
use super::point::{DEPLOYMENTS, ServedAxis, ServedPoint, fronts_of_points, plot_of_fronts};
use super::record::ServingRecord;
use super::verify::verify_run;
use crate::figure::draw_pareto;
use crate::run::record::{RECORD, RecordError};
use crate::run::search_run::{CHIP, FABRIC, FoundFiles, RunError, run_name};
use crate::store::files::{self, Unwritable, WriteError};
use crate::store::sums::{self, DigestError, DigestList, SUMS};
use std::path::{Path, PathBuf};

/// The first columns of the file of deployments.
const FIRST_COLUMNS: &str = "case,lengths,ttft_limit_ms,tpot_limit_ms,";
/// The files of the figure. They have the same names as those of a search.
const FRONT_FILES: [&str; 2] = ["pareto.svg", "pareto.png"];

/// Every file that a run may have.
pub const FILES: [&str; 7] = [SUMS, DEPLOYMENTS, FRONT_FILES[0], FRONT_FILES[1], CHIP, FABRIC, RECORD];

/// An error of writing or reading a run of `serve`.
#[derive(Debug, thiserror::Error)]
pub enum ServingRunError {
    /// An error of the record, of the figure, or of writing a file.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A file that is damaged or missing, or rows that cannot be encoded.
    #[error("{}: {why}; run serve again, or give another directory", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// The fault.
        why: String,
    },
}

impl Unwritable for ServingRunError {
    fn write_error(&self) -> Option<&WriteError> {
        match self {
            Self::Run(error) => error.write_error(),
            Self::Damaged { .. } => None,
        }
    }
}

/// A run of `serve` with all its deployments.
#[derive(Debug, Clone, PartialEq)]
pub struct ServingRun {
    /// The name of the directory.
    pub name: String,
    /// The record.
    pub record: ServingRecord,
    /// Every deployment of every case.
    pub points: Vec<ServedPoint>,
}

impl ServingRun {
    /// Returns the deployments of cases as points, and marks those on a front.
    #[must_use]
    pub fn points_of_cases(cases: &[ServedCase]) -> Vec<ServedPoint> {
        let of_case = |(place, case): (usize, &ServedCase)| {
            let choices = case.answer.iter().flat_map(|answer| &answer.choices);
            choices.map(|choice| ServedPoint::of_choice(place, case, choice)).collect::<Vec<_>>()
        };
        let mut points: Vec<ServedPoint> = cases.iter().enumerate().flat_map(of_case).collect();
        let fronts = fronts_of_points(&points, ServedAxis::default());
        for point in &mut points {
            let same = |other: &ServedPoint| ServedPoint { on_front: false, ..other.clone() } == *point;
            let of_point = fronts.iter().filter(|front| front.chip == point.chip && front.lengths == point.lengths);
            point.on_front = of_point.flat_map(|front| &front.points).any(same);
        }
        points
    }

    /// Writes the run into `directory`, which is created if needed. Returns the paths of the files, the record's first.
    ///
    /// The files are the record, the deployments as CSV, the figure as SVG and PNG, the found chip and its fabric if
    /// there are any, and the digests of all these. An earlier run's chip or fabric is removed if this run has none.
    ///
    /// # Errors
    /// Errors of the system; a value that is not finite.
    pub fn write_run(&self, directory: &Path, found: &FoundFiles) -> Result<Vec<PathBuf>, ServingRunError> {
        let path = |name: &str| directory.join(name);
        let mut files = vec![(path(DEPLOYMENTS), self.to_csv(&path(DEPLOYMENTS))?)];
        let plot = plot_of_fronts(&[(&self.name, &self.record.asked, &self.points)], ServedAxis::default());
        let figure = draw_pareto(&plot).map_err(RunError::Figure)?;
        let drawn = [figure.svg().as_bytes().to_vec(), figure.png().map_err(RunError::Figure)?];
        files.extend(FRONT_FILES.map(path).into_iter().zip(drawn));
        let named = [(CHIP, &found.chip), (FABRIC, &found.fabric)];
        files.extend(named.iter().filter_map(|(name, text)| Some((path(name), text.as_ref()?.clone().into_bytes()))));
        files.push((path(RECORD), self.record.to_json().map_err(RunError::Record)?.into_bytes()));
        files.insert(0, (path(SUMS), sums::digest_lines(&files).into_bytes()));
        let unwritable = |why| RunError::Directory(WriteError { file: directory.into(), why });
        std::fs::create_dir_all(directory).map_err(unwritable)?;
        let stale: Vec<PathBuf> = named.iter().filter(|(_, text)| text.is_none()).map(|(name, _)| path(name)).collect();
        files::replace_files(&files, &stale).map_err(RunError::Directory)?;
        Ok(files.into_iter().rev().map(|(path, _)| path).collect())
    }

    fn to_csv(&self, file: &Path) -> Result<Vec<u8>, ServingRunError> {
        let fault = |why: String| ServingRunError::Damaged { file: file.into(), why };
        let mut writer = csv::Writer::from_writer(Vec::new());
        for point in &self.points {
            writer.serialize(point).map_err(|why| fault(why.to_string()))?;
        }
        writer.into_inner().map_err(|why| fault(why.to_string()))
    }

    /// True if a directory holds a run of `serve`. Its digests, its record in any format, or the columns of its
    /// deployments show this. One is enough, because the others may be damaged or lost.
    #[must_use]
    pub fn is_in(directory: &Path) -> bool {
        let sealed = || DigestList::read_from(directory).is_ok_and(|sums| sums.lists_all(&[RECORD, DEPLOYMENTS]));
        let listed = || {
            let text = sim::files::text::read_text(&directory.join(DEPLOYMENTS));
            text.is_ok_and(|text| text.starts_with(FIRST_COLUMNS))
        };
        sealed() || ServingRecord::is_in(directory) || listed()
    }

    /// Reads a run. First verifies the digests of the record and of the deployments, then their values.
    ///
    /// # Errors
    /// A file that is missing, damaged or of another version, or whose digest does not match; an impossible value.
    pub fn read_from(directory: &Path) -> Result<Self, ServingRunError> {
        let damaged = |error: DigestError| {
            let (file, why) = error.into_fault();
            ServingRunError::Damaged { file, why }
        };
        let digests = DigestList::read_from(directory).map_err(damaged)?;
        for name in [RECORD, DEPLOYMENTS] {
            digests.verify_file(directory, name).map_err(damaged)?;
        }
        let record = ServingRecord::read_from(&directory.join(RECORD)).map_err(|error| match error {
            RecordError::Malformed { file, why } => ServingRunError::Damaged { file, why },
            error => RunError::Record(error).into(),
        })?;
        let file = directory.join(DEPLOYMENTS);
        let fault = |why: String| ServingRunError::Damaged { file: file.clone(), why };
        let text = sim::files::text::read_text(&file).map_err(|why| fault(why.to_string()))?;
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let points = reader.deserialize().collect::<Result<Vec<ServedPoint>, _>>();
        let points = points.map_err(|why| fault(why.to_string()))?;
        verify_run(&record, &points)
            .map_err(|(name, why)| ServingRunError::Damaged { file: directory.join(name), why: why.to_string() })?;
        Ok(Self { name: run_name(directory), record, points })
    }
}
