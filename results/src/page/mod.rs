//! A run or an answer as one self-contained HTML page: the question, the answer and its evidence. The page contains
//! Apache ECharts, which draws the figures. `assets/page.js` draws the contents of [`Page`].

mod designs;
mod die;
mod evidence;
mod replay;
mod serving;
mod sources;
mod subject;
mod words;

pub use designs::PageDesigns;
pub use die::{DiePart, PageDie};
pub use evidence::{FigureWithInterval, PageEvidence, UnmeasuredGround};
pub use replay::{DrawnKernel, DrawnStage, MemoryRoof, PageRoofline, PlanReplay, StepTimeline};
pub use sources::SourceFile;
pub use subject::{AnsweringVerb, FoundPlan, JobNames, PageSubject, SubjectError};

use crate::answer::comparison::{ComparisonEntry, GainSplit, unit_of_objective};
use crate::answer::decision::DecisionRecord;
use crate::answer::plan::{NeighbourRow, StageRow};
use crate::answer::step::NamedShare;
use crate::answer::timeline::TimelineRow;
use serde::Serialize;

const SKELETON: &str = include_str!("assets/page.html");
const STYLE: &str = include_str!("assets/page.css");
const SCRIPT: &str = include_str!("assets/page.js");
/// The part of the script that draws kernels under their roofs.
const ROOFLINE: &str = include_str!("assets/roofline.js");
/// Apache ECharts 6.1.0, `dist/echarts.min.js` of its npm package (Apache 2.0, `assets/LICENSE-ECharts.txt`; SHA-256
/// `b66b25aeb4df84e33199dc21694014d336d222cbd9deb0e5a7c14bd6aa0d0fd0`).
const CHARTS: &str = include_str!("assets/echarts-6.1.0.min.js");

/// A figure of the answer, or a row of a table with two columns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PageFact {
    /// The name of the figure.
    pub name: String,
    /// The value with its unit.
    pub value: String,
    /// A note for the reader.
    pub note: Option<String>,
}

impl PageFact {
    fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self { name: name.into(), value: value.into(), note: None }
    }
}

/// A section with a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PageTable {
    /// The section's heading.
    pub title: String,
    /// A note above the table.
    pub note: Option<String>,
    /// The heads of the columns.
    pub heads: Vec<String>,
    /// The rows.
    pub rows: Vec<Vec<String>>,
}

/// A section with a figure that was already drawn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PageDrawing {
    /// The section's heading.
    pub title: String,
    /// The caption.
    pub caption: String,
    /// The figure as SVG.
    pub svg: String,
}

/// The contents of a page. Names have units. Parts that the run lacks are empty or `null`, and `left_out` has the
/// reasons.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Page {
    /// The heading.
    pub title: String,
    /// The question in words.
    pub question: Vec<String>,
    /// The answer in words.
    pub answer: Vec<String>,
    /// The figures of the answer.
    pub facts: Vec<PageFact>,
    /// Notes for the reader.
    pub notes: Vec<String>,
    /// Figures that were already drawn; empty for a training run.
    pub drawings: Vec<PageDrawing>,
    /// Further sections with tables; empty for a training run.
    pub tables: Vec<PageTable>,
    /// The intervals and grades, if the run has them.
    pub evidence: PageEvidence,
    /// The chip beside others, with the areas of its parts.
    pub dies: Vec<PageDie>,
    /// The designs of a search.
    pub designs: Option<PageDesigns>,
    /// True if the search ranked designs by the bad end of the step's interval.
    pub robust: bool,
    /// The best design beside others. Empty if there is no comparison.
    pub comparison: Vec<ComparisonEntry>,
    /// The unit of the objective in the comparison.
    pub comparison_unit: String,
    /// For each entry of the comparison: the factor by which the design that it is compared with is better.
    pub leads: Vec<Option<f64>>,
    /// The causes of the lead over a reference chip.
    pub gain: Option<GainSplit>,
    /// Confidence in the choice under draws of uncertain constants.
    pub decision: Option<DecisionRecord>,
    /// The step's time in seconds.
    pub step_s: Option<f64>,
    /// Shares of the step's time, by part.
    pub shares: Vec<NamedShare>,
    /// The kernels of the step, if it was replayed.
    pub roofline: Option<PageRoofline>,
    /// The passes of the step, if it was replayed.
    pub timeline: Option<StepTimeline>,
    /// The activity of each stage over the step.
    pub stages_over_a_step: Vec<TimelineRow>,
    /// The memory of every stage.
    pub memory: Vec<StageRow>,
    /// The memory of a device that programs may use, in GiB.
    pub capacity_gib: Option<f64>,
    /// The plans that differ from the shown one in a single decision.
    pub decisions: Vec<NeighbourRow>,
    /// The state of the proof, in words.
    pub proof: Vec<String>,
    /// The counts behind the proof.
    pub certificate: Vec<PageFact>,
    /// Parts of the model's file that are not modelled.
    pub assumptions: Vec<String>,
    /// The sources of the constants, by file.
    pub sources: Vec<SourceFile>,
    /// Missing parts of the page, with reasons.
    pub left_out: Vec<String>,
    /// The program that wrote the page.
    pub made_by: String,
}

impl Page {
    /// Returns the script of Apache ECharts that pages contain.
    #[must_use]
    pub fn charts() -> &'static str {
        CHARTS
    }

    /// Returns the style sheet that all pages share.
    #[must_use]
    pub fn style() -> &'static str {
        STYLE
    }

    /// Returns the script that draws kernels under their roofs, which all pages share.
    #[must_use]
    pub fn roofline_script() -> &'static str {
        ROOFLINE
    }

    /// Makes the page of a subject. `replay` is its replayed step, if the replay was possible. `left_out` names the
    /// parts that are missing, with reasons.
    #[must_use]
    pub fn new(
        subject: &PageSubject,
        replay: Option<PlanReplay>,
        sources: Vec<SourceFile>,
        dies: Vec<PageDie>,
        left_out: Vec<String>,
    ) -> Self {
        let found = subject.found.as_ref();
        let record = subject.run.as_ref().map(|run| &run.record);
        let compared = record.and_then(|record| record.comparison.as_ref());
        let kept = found.map_or_else(Vec::new, |found| found.shares.clone());
        let (roofline, timeline, replayed, shares) = match replay {
            Some(replay) => (Some(replay.roofline), Some(replay.timeline), replay.decisions, replay.shares),
            None => (None, None, Vec::new(), kept),
        };
        let decisions = if subject.decisions.is_empty() { replayed } else { subject.decisions.clone() };
        Self {
            title: words::page_title(subject),
            question: words::question_text(subject),
            answer: words::answer_facts(subject),
            facts: words::figure_facts(subject),
            notes: record.and_then(|record| record.best.as_ref()).map_or_else(Vec::new, |best| best.notes.clone()),
            drawings: Vec::new(),
            tables: Vec::new(),
            evidence: evidence::evidence_of_subject(subject),
            dies,
            designs: subject.run.as_ref().map(PageDesigns::of_run),
            robust: record.is_some_and(|record| record.certificate.robust),
            comparison: compared.map_or_else(Vec::new, |c| c.entries.clone()),
            comparison_unit: compared.map_or("", |c| unit_of_objective(c.objective)).to_owned(),
            leads: compared.map_or_else(Vec::new, |c| c.entries.iter().map(|entry| c.lead_over(entry)).collect()),
            gain: compared.and_then(|c| c.gain.clone()),
            decision: record.and_then(|record| record.decision.clone()),
            step_s: found.map(|found| found.plan.step_s),
            shares,
            roofline,
            timeline,
            stages_over_a_step: found.map_or_else(Vec::new, |found| found.timeline.clone()),
            memory: found.map_or_else(Vec::new, |found| found.stages.clone()),
            capacity_gib: found.map(|found| found.capacity_gib),
            decisions,
            proof: words::proof_text(subject),
            certificate: words::certificate_facts(subject),
            assumptions: subject.assumptions.clone(),
            sources,
            left_out,
            made_by: made_by(),
        }
    }

    /// Returns the page as HTML that needs no external resources.
    ///
    /// # Errors
    /// A value that JSON cannot hold.
    pub fn to_html(&self) -> Result<String, serde_json::Error> {
        // A `<` in the data could end the script element. JSON has it only inside strings.
        let data = serde_json::to_string(self)?.replace('<', "\\u003c");
        let title = self.title.replace('&', "&amp;").replace('<', "&lt;");
        let parts = [
            ("<!--TITLE-->", title.as_str()),
            ("<!--STYLE-->", STYLE),
            ("<!--DATA-->", &data),
            ("<!--CHARTS-->", CHARTS),
            ("<!--ROOFLINE-->", ROOFLINE),
            ("<!--SCRIPT-->", SCRIPT),
        ];
        // Each part is inserted once, in the order of the skeleton. Therefore no mark is searched for inside an
        // inserted part.
        let (mut html, mut rest) = (String::with_capacity(CHARTS.len() + data.len() + 65_536), SKELETON);
        for (mark, part) in parts {
            let (before, after) = rest.split_once(mark).unwrap_or((rest, ""));
            html.push_str(before);
            html.push_str(part);
            rest = after;
        }
        html.push_str(rest);
        Ok(html)
    }
}

/// Returns the footer.
fn made_by() -> String {
    format!("Written by coplace {}. Charts: Apache ECharts 6.1.0 (Apache License 2.0).", env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn text_of_a_run_cannot_leave_its_element() {
        let record = crate::run::record::example();
        let mut subject = PageSubject::from_record("run", record);
        subject.assumptions = vec!["</script><!--SCRIPT--><b>".into()];
        let html = Page::new(&subject, None, Vec::new(), Vec::new(), vec!["all & <more>".into()]).to_html().unwrap();
        assert_eq!(html.matches("</script>").count(), 3, "data, library, page");
        let (_, data) = html.split_once("id=\"data\">").unwrap();
        let data: serde_json::Value = serde_json::from_str(data.split_once("</script>").unwrap().0).unwrap();
        assert_eq!(data["assumptions"][0], "</script><!--SCRIPT--><b>");
        assert_eq!(data["left_out"][0], "all & <more>");
        for mark in ["<!--TITLE-->", "<!--STYLE-->", "<!--DATA-->", "<!--CHARTS-->"] {
            assert!(!html.contains(mark), "{mark}");
        }
        assert!(html.trim_end().ends_with("</html>"));
    }

    #[test]
    fn the_library_is_the_one_that_was_published() {
        use sha2::{Digest, Sha256};
        let digest: String = Sha256::digest(CHARTS.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(digest, "b66b25aeb4df84e33199dc21694014d336d222cbd9deb0e5a7c14bd6aa0d0fd0");
        assert!(!CHARTS.contains("</script"));
    }
}
