//! The progress of a search over plans.

use crate::progress::{ProgressDisplay, RemainingTime, TimeLeft};
use search::planner::{PlanPart, PlanProgress};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Reports the progress of a search over plans to [`ProgressDisplay`]: the fraction done, plans per second, the best so
/// far, the time left.
pub struct PlanSearchReporter<'p> {
    progress: &'p ProgressDisplay,
    start: Instant,
    part: Mutex<Option<(PlanPart, RemainingTime)>>,
}

impl<'p> PlanSearchReporter<'p> {
    pub fn new(progress: &'p ProgressDisplay) -> Self {
        Self { progress, start: Instant::now(), part: Mutex::new(None) }
    }

    pub fn report_progress(&self, now: PlanProgress) {
        let mut part = self.part.lock().unwrap_or_else(PoisonError::into_inner);
        if part.as_ref().is_none_or(|(known, _)| *known != now.part) {
            *part = Some((now.part, RemainingTime::towards(0.0)));
        }
        let open = 1.0 - now.done as f64 / now.all.max(1) as f64;
        let left = part
            .as_mut()
            .and_then(|(_, pace)| pace.left_at_value(open))
            .map(|left| TimeLeft::about_seconds(left, "to this part's end"));
        self.progress.say_progress(search_line(now, self.start.elapsed().as_secs_f64()), left);
    }
}

/// Describes a search over plans in one line, after `seconds` of it.
fn search_line(now: PlanProgress, seconds: f64) -> String {
    let count = results::text::format_count;
    let (done, all) = (count(now.done as u64), count(now.all as u64));
    let part = match now.part {
        PlanPart::Lots => {
            let rate = count((now.plans as f64 / seconds.max(f64::MIN_POSITIVE)) as u64);
            format!("{done} of {all} groups, {} plans evaluated, {rate} a second", count(now.plans as u64))
        }
        PlanPart::Played => format!("schedules played, {done} of at most {all}"),
        PlanPart::Splits => format!("other splits of the layers, {done} of {all} groups"),
        PlanPart::Mixes => format!("what stages keep, {done} of at most {all} layouts"),
    };
    let best =
        now.best.map_or_else(String::new, |best| format!(", best {} s", results::text::format_significant(best.0, 4)));
    format!("{part}{best}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use sim::units::Seconds;

    #[test]
    fn a_line_has_the_rate_and_the_best() {
        let now = PlanProgress { part: PlanPart::Lots, done: 30, all: 1200, plans: 9000, best: None };
        assert_eq!(search_line(now, 4.5), "30 of 1,200 groups, 9,000 plans evaluated, 2,000 a second");
        let later = PlanProgress { part: PlanPart::Mixes, done: 16, all: 64, best: Some(Seconds(12.3456)), ..now };
        assert_eq!(search_line(later, 5.0), "what stages keep, 16 of at most 64 layouts, best 12.35 s");
    }
}
