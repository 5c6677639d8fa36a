//! An older run of the same question in the directory of a new one. A better proof, more draws and the progress are
//! kept.

use crate::run::record::{Proof, SearchRecord};
use crate::run::search_run::{self, FoundFiles, PROGRESS};
use crate::text::format_percent;
use search::ask::Question;
use std::path::Path;

/// An older run of the same question whose record is intact.
#[derive(Debug)]
pub struct OlderRun {
    record: SearchRecord,
    progress: Option<String>,
}

impl OlderRun {
    /// Reads the older run in a directory. `None` if there is no run with an intact record, or if its question differs
    /// from that of `new` in more than the limits at which a search stops.
    #[must_use]
    pub fn read_from(directory: &Path, new: &SearchRecord) -> Option<Self> {
        let question = |record: &SearchRecord| Question { limits: None, ..record.asked.clone() }.canonical();
        let is_same = |old: &SearchRecord| old.question == new.question || question(old) == question(new);
        let record = search_run::read_record(directory).ok().filter(is_same)?;
        let progress = search_run::verify_file(directory, PROGRESS).ok();
        let progress = progress.and_then(|()| sim::files::text::read_text(&directory.join(PROGRESS)).ok());
        Some(Self { record, progress })
    }

    /// Returns the reason why the older run is not overwritten, for the reader. `None` if `new` proves at least as
    /// much.
    #[must_use]
    pub fn reason_to_stay(&self, new: &SearchRecord, directory: &Path) -> Option<String> {
        let [old, new] = [&self.record, new].map(gap_of_record);
        let gap =
            |gap: f64| if gap.is_finite() { format!("a gap of {}", format_percent(gap)) } else { "no bound".into() };
        let stays = old < new;
        stays.then(|| {
            format!(
                "Not written: the run in {} has {} for this question, and this one {}.",
                directory.display(),
                gap(old),
                gap(new)
            )
        })
    }

    /// Copies to a new run with the same best design what only the older run has: more draws, the comparison with built
    /// chips, and the progress of the proof.
    pub fn add_to(self, new: &mut SearchRecord, found: &mut FoundFiles) {
        let design = |record: &SearchRecord| record.best.as_ref().map(|best| best.design.clone());
        if design(&self.record) != design(new) {
            return;
        }
        let draws = |record: &SearchRecord| record.decision.as_ref().map_or(0, |decision| decision.draws);
        if draws(&self.record) > draws(new) {
            new.decision = self.record.decision;
        }
        new.comparison = new.comparison.take().or(self.record.comparison);
        found.progress = found.progress.take().or(self.progress);
    }
}

/// Returns the gap of a record: 0 if it is proven, infinite if it has no bound.
fn gap_of_record(record: &SearchRecord) -> f64 {
    match record.certificate.proof {
        Proof::Proven | Proof::Infeasible => 0.0,
        Proof::Gap => record.certificate.gap.unwrap_or(f64::INFINITY),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::run::record::{example, example_of_several};

    fn with_gap(gap: Option<f64>) -> SearchRecord {
        let mut record = example();
        (record.certificate.proof, record.certificate.gap) = (Proof::Gap, gap);
        record
    }

    #[test]
    fn the_narrower_gap_stays() {
        let directory = Path::new("run");
        let stays = |old: SearchRecord, new: &SearchRecord| {
            OlderRun { record: old, progress: None }.reason_to_stay(new, directory)
        };
        let said = stays(with_gap(Some(0.01)), &with_gap(Some(0.02))).unwrap();
        assert_eq!(
            said,
            "Not written: the run in run has a gap of 1.0 % for this question, and this one a gap of 2.0 %."
        );
        assert!(stays(with_gap(Some(0.01)), &with_gap(None)).unwrap().contains("and this one no bound"));
        for (old, new) in [(Some(0.02), Some(0.01)), (Some(0.01), Some(0.01)), (None, None)] {
            assert_eq!(stays(with_gap(old), &with_gap(new)), None);
        }
    }

    #[test]
    fn draws_and_progress_of_the_same_design_are_kept() {
        let mut old = example();
        old.decision = Some(crate::answer::decision::example());
        let older = || OlderRun { record: old.clone(), progress: Some("seconds,gap\n".to_owned()) };
        let (mut new, mut found) = (example(), FoundFiles::default());
        older().add_to(&mut new, &mut found);
        assert_eq!((&new.decision, found.progress.as_deref()), (&old.decision, Some("seconds,gap\n")));
        // Draws about another design say nothing of this one.
        let mut other = example_of_several();
        older().add_to(&mut other, &mut FoundFiles::default());
        assert_eq!(other.decision, None);
    }
}
