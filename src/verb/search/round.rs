//! The searches of one call. The clock is a choice where energy counts: the space is searched again under lower limits
//! of power, which lower the clocks of its chips, and the best answer is the call's.

use super::question::SearchQuestion;
use super::{
    RecordContext, SearchArguments, conclude_search, decide_answer, models_of_design, notes, prepare_and_search,
    report_with_progress, search_line, within, write_and_print,
};
use crate::call::Call;
use crate::failure::{self, Failure};
use crate::progress::{self, RemainingTime, TimeLeft};
use crate::verb::stop;
use results::report;
use results::run::claim::DirectoryClaim;
use results::run::conversion::SearchedModelSet;
use results::run::progress::ProgressTable;
use search::design::{DecisionEffort, DesignAnswer, DesignSearch, DesignWatch};
use search::runner::{CandidateOutcome, RunnerProgress, SearchMoment};
use std::collections::BTreeMap;
use std::time::Instant;

/// The ratio of a power limit to the next lower one. A smaller ratio takes more searches. It was chosen on one study of
/// eight chips, together with the fractions of a rung that `descend` tries: the chips' energy per token changes by at
/// most 1.6 % between 274 and 296 W.
const RUNG: f64 = 1.15;
/// Number of limits in a row without a better design after which lower limits are not tried. Five limits go down to
/// half of the best power, where chips of other sizes may be the best. Chosen on PHAZE's small space, where two limits
/// missed chips with half of the tensor cores.
const MOST_MISSES: u32 = 5;
/// Largest number of searches, in each of two steps, under the power that a best chip takes at its own best clock.
const MOST_MOVES: usize = 3;

/// The searches of one call.
pub(super) struct SearchRound<'a> {
    pub(super) arguments: &'a SearchArguments,
    pub(super) call: &'a Call,
    pub(super) limit: &'a stop::StopLimit,
    pub(super) out: &'a DirectoryClaim,
    /// The digest of the question as it was asked.
    pub(super) digest: &'a str,
    pub(super) start: Instant,
}

/// An answer, and how its gap closed over time.
struct SearchedDesigns {
    answer: DesignAnswer,
    grown: ProgressTable,
}

/// Power of a best design in W.
struct BestPower {
    power: f64,
    /// The same design at its best clock, if that clock is lower.
    slower: Option<SlowerBest>,
}

/// A best design at the lower clock at which its own plans cost least.
#[derive(Clone, Copy)]
struct SlowerBest {
    /// Its power in W.
    power: f64,
    /// The saved fraction of its value.
    gain: f64,
}

/// An answer and its question, whose chips may run at lower clocks than the call asked for.
struct AnsweredQuestion {
    question: SearchQuestion,
    found: SearchedDesigns,
    /// The value of the best design, minimised; infinite without one.
    value: f64,
    /// `None` without a best design.
    power: Option<BestPower>,
}

impl AnsweredQuestion {
    fn new(question: SearchQuestion, found: SearchedDesigns, power: Option<BestPower>) -> Self {
        let answer = &found.answer;
        let value = answer.best.map_or(f64::INFINITY, |best| answer.value_of_design(best));
        Self { question, found, value, power }
    }

    /// Returns the value of the best design at its own best clock, and its power there in W; `None` if no lower clock
    /// is better.
    fn value_at_best_clock(&self) -> Option<(f64, f64)> {
        let slower = self.power.as_ref()?.slower?;
        Some((self.value * (1.0 - slower.gain), slower.power))
    }

    /// Returns the power of the best design in W.
    fn best_power(&self) -> Option<f64> {
        self.power.as_ref().map(|power| power.power)
    }
}

/// True if energy counts, and one design is asked for. A front is of chips of all sizes, each at its own highest clock.
fn chooses_clock(question: &SearchQuestion) -> bool {
    let aim = question.aim;
    (aim.objective.saves_power() || aim.pays_energy()) && aim.axes.named_axes().count() == 0
}

impl SearchRound<'_> {
    /// Searches a question's space, and again at lower clocks where the objective counts energy. Writes the run
    /// directory of the best answer and prints its report.
    ///
    /// # Errors
    /// Those of the first search, and of the files. A lower limit that leaves no chip ends the descent.
    pub(super) fn run(&self, question: SearchQuestion) -> Result<(), Failure> {
        let chooses = chooses_clock(&question);
        let first = prepare_and_search(&question, |searched, search| {
            let prepared = self.start.elapsed().as_secs_f64();
            let found = self.search_designs(&question, searched, search)?;
            if chooses {
                return Ok(Some((power_of_best(&question, searched, &found.answer), found, prepared)));
            }
            self.write_answer(&question, searched, search, &found, prepared)?;
            Ok(None)
        })?;
        let Some((power, found, prepared)) = first else { return Ok(()) };
        let best = self.descend(AnsweredQuestion::new(question, found, power));
        prepare_and_search(&best.question, |searched, search| {
            self.write_answer(&best.question, searched, search, &best.found, prepared)
        })
    }

    /// Searches under ever lower limits of power, and returns the best answer. A limit between two that were tried may
    /// give a better answer, by an unknown amount. A search that fails under a lower limit ends the descent.
    fn descend(&self, first: AnsweredQuestion) -> AnsweredQuestion {
        let asked = first.question.asked.clone();
        let search_within = |watts: f64| {
            let lowered = SearchQuestion::load_again(asked.clone()).ok()?;
            // The limit is slightly higher, so that rounding does not exclude a chip that takes exactly this power.
            let question = lowered.with_clocks_lowered_to(Some(watts * (1.0 + 1e-9)), &self.arguments.posed).ok()?;
            let (power, found) = prepare_and_search(&question, |searched, search| {
                let found = self.search_designs(&question, searched, search)?;
                Ok((power_of_best(&question, searched, &found.answer), found))
            })
            .ok()?;
            Some(AnsweredQuestion::new(question, found, power))
        };
        // A chip that is best under a limit may be better still at a clock of its own, below that limit.
        let mut slower: Vec<(f64, f64)> = first.value_at_best_clock().into_iter().collect();
        let (mut rung, mut misses, mut best) = (first.best_power(), 0, first);
        while let Some(power) = rung.filter(|_| misses < MOST_MISSES && !self.limit.is_reached()) {
            let Some(found) = search_within(power / RUNG) else { break };
            rung = found.best_power().map(|own| own.min(power / RUNG));
            slower.extend(found.value_at_best_clock());
            if found.value < best.value {
                (best, misses) = (found, 0);
            } else {
                misses += 1;
            }
        }
        slower.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (_, power) in slower.into_iter().take(MOST_MOVES) {
            if !self.limit.is_reached() {
                best = search_within(power).filter(|found| found.value < best.value).unwrap_or(best);
            }
        }
        // Half and a quarter of a rung to either side: another chip or plan may be the best there.
        for part in [-0.5, 0.5, -0.25, 0.25] {
            let side = RUNG.powf(part);
            let Some(power) = best.best_power().filter(|_| !self.limit.is_reached()) else { break };
            best = search_within(power * side).filter(|found| found.value < best.value).unwrap_or(best);
        }
        for _ in 0..MOST_MOVES {
            let slower = best.value_at_best_clock().filter(|_| !self.limit.is_reached());
            let Some((_, power)) = slower else { break };
            let Some(found) = search_within(power).filter(|found| found.value < best.value) else { break };
            best = found;
        }
        best
    }

    /// Asks how sure an answer is, writes the run directory and prints the report.
    fn write_answer(
        &self,
        question: &SearchQuestion,
        searched: &SearchedModelSet<'_>,
        search: &DesignSearch<'_>,
        SearchedDesigns { answer, grown }: &SearchedDesigns,
        prepared: f64,
    ) -> Result<(), Failure> {
        let Self { arguments, call, limit, start, .. } = self;
        let searched_for = start.elapsed().as_secs_f64() - prepared;
        let mut times = BTreeMap::from([("prepare".to_owned(), prepared), ("search".to_owned(), searched_for)]);
        let stopped = limit.stopped_by();
        let (deciding, seed) = (Instant::now(), arguments.seed);
        let progress = progress::ProgressDisplay::begin_phase(call, "asking how sure the choice is");
        let effort = DecisionEffort { draws: arguments.draws as usize, seed, ..DecisionEffort::default() };
        let decision = decide_answer(search, answer, effort, &|| limit.is_reached());
        times.insert("decide".to_owned(), deciding.elapsed().as_secs_f64());
        progress.next_phase("explaining the best chip and comparing it");
        let (digest, start) = (self.digest.to_owned(), *start);
        let undecided = decision.is_none() && effort.draws > 0 && search.robust.is_none() && !limit.is_reached();
        let grown_csv = Some(grown.to_csv());
        let about = RecordContext { digest, seed, stopped, decision, undecided, grown: grown_csv, start, times };
        let found = conclude_search(question, searched, answer, about, call)?;
        drop(progress);
        write_and_print(call, self.out, arguments.format, found, |record| match arguments.details {
            true => report_with_progress(record, grown),
            false => report::run_summary(record, &self.out.path().display().to_string()),
        })
    }

    fn search_designs(
        &self,
        question: &SearchQuestion,
        searched: &SearchedModelSet<'_>,
        search: &DesignSearch<'_>,
    ) -> Result<SearchedDesigns, Failure> {
        let progress = progress::ProgressDisplay::begin_phase(self.call, "bounding chips and planning for the first");
        let (searching, aim) = (Instant::now(), question.aim);
        let mut grown = ProgressTable::new(aim.objective, searched.objective_scale(), searched.space)
            .with_bad_ends(searched.robust);
        // The search decides chips in the order of their bounds, so the gap predicts the time to the proof. After the
        // proof it completes the front; the share of undecided chips predicts the time for that.
        let (mut proving, mut deciding) = (RemainingTime::towards(aim.gap), None);
        let mut told = |now: RunnerProgress, moment: SearchMoment| {
            grown.add_moment(searching.elapsed().as_secs_f64(), &moment);
            progress.next_phase("searching");
            let gap = now.best.map(|best| 1.0 - now.bound / best);
            let left = match gap {
                Some(gap) if gap <= aim.gap => {
                    let open = 1.0 - now.decided as f64 / now.total as f64;
                    deciding
                        .get_or_insert_with(|| RemainingTime::towards(0.0))
                        .left_at_value(open)
                        .map(|left| TimeLeft::about_seconds(left, "left"))
                }
                gap => gap.and_then(|gap| proving.left_at_slowing_value(gap, "to the proof")),
            };
            progress.say_progress(search_line(now, gap, aim.objective, searched.objective_scale()), left);
        };
        let watch = DesignWatch { stop: &|| self.limit.is_reached(), told: &mut told };
        let answer = search.run_design_search(watch).map_err(|why| failure::file_failure(&question.name, why, ""))?;
        let outside = &answer.outside;
        // For a space of boxes, only the finished search shows that all chips are outside the limits.
        if search.space.whole_region().is_some()
            && outside.total() == search.space.chip_count()
            && outside.refused < outside.total()
        {
            progress.next_phase("searching the limits that would leave a chip");
            return Err(within::nothing_within_limits(&question.name, &self.arguments.posed.asked, searched.space));
        }
        grown.finish_with(&answer);
        Ok(SearchedDesigns { answer, grown })
    }
}

fn power_of_best(
    question: &SearchQuestion,
    searched: &SearchedModelSet<'_>,
    answer: &DesignAnswer,
) -> Option<BestPower> {
    let found = &answer.designs[answer.best?];
    let CandidateOutcome::Evaluated { evaluation, .. } = &found.outcome else { return None };
    let chip = searched.space.chip_of_design(found.id).ok()?;
    let power = sim::hardware::sustained_power(&chip).peak_power().0;
    let models = models_of_design(question, searched, found.id, &chip, evaluation)?;
    let slower = notes::find_slower_clock(&question.aim, &models);
    Some(BestPower { power, slower: slower.map(|of| SlowerBest { power: of.power.0, gain: of.gain }) })
}
