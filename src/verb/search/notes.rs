//! Notes for a reader of the best design, beside its figures.

use super::PlannedModel;
use super::models::NEARLY;
use super::question::SearchQuestion;
use results::run::record::Certificate;
use results::store::design::DesignRow;

use search::design::{Aim, DesignAnswer};
use search::planner::{Job, PlanSpace, search_plans};
use search::space::{ChipFigures, DesignId, PowerLimit};
use sim::hardware::{lower_clock, lowest_clock, sustained_power};
use sim::units::{Hertz, SquareMillimeters, Watts};

/// The note on a choice that no draw moves.
pub(super) const UNDECIDED: &str = "How sure: no constant that is drawn (coplace list constants) moves this choice.";

/// A note names unused area if the best chip uses less than this fraction of the allowed area.
const USED: f64 = 0.95;
/// A chip counts as smaller if its area is less than this fraction of the best chip's area.
const SMALLER: f64 = 0.98;

/// Returns notes on the best design. `complete` is true if all other designs are decided.
pub(super) fn notes_on_best(question: &SearchQuestion, id: DesignId, row: &DesignRow, complete: bool) -> Vec<String> {
    let notes = [
        note_on_unused_area(question, row, complete),
        note_on_lowered_clock(question, id, row),
        note_on_mean_power(row),
        note_on_ends(question, id).filter(|_| complete),
        note_on_free_silicon(question, id),
    ];
    notes.into_iter().flatten().collect()
}

fn note_on_unused_area(question: &SearchQuestion, row: &DesignRow, complete: bool) -> Option<String> {
    let most = question.space.max_area.filter(|most| row.area_mm2 < USED * most.0)?;
    let left = most.0 - row.area_mm2;
    let why = match complete {
        true => "no larger chip of this grid is better by more than the gap; a finer grid might be",
        false => "the search stopped before it had decided all larger chips",
    };
    Some(format!("{left:.1} of {:.1} mm² ({:.0} %) are unused: {why}.", most.0, 100.0 * left / most.0))
}

/// Names the smallest chip of the front that is nearly as good as the best one.
pub(super) fn note_on_smaller(answer: &DesignAnswer, rows: &[DesignRow]) -> Option<String> {
    let best = answer.best?;
    let smaller = answer.smallest_on_front_within(NEARLY).filter(|index| *index != best)?;
    let worse = answer.value_of_design(smaller) / answer.value_of_design(best) - 1.0;
    let (own, of_best) = (&rows[smaller], &rows[best]);
    (own.area_mm2 < SMALLER * of_best.area_mm2).then(|| {
        format!(
            "A chip of {:.1} mm² instead of {:.1} is {:.2} % worse: {}.",
            own.area_mm2,
            of_best.area_mm2,
            100.0 * worse,
            own.describe_chip()
        )
    })
}

fn note_on_lowered_clock(question: &SearchQuestion, id: DesignId, row: &DesignRow) -> Option<String> {
    let chip = question.space.chip_of_design(id).ok()?;
    let lowered = chip.lowered?;
    let limits = question.space.limits();
    let PowerLimit { most, by_cooling } = limits.power_limit(&chip, SquareMillimeters(row.area_mm2))?;
    let watts = if most.0.fract() == 0.0 { format!("{:.0}", most.0) } else { format!("{:.1}", most.0) };
    let why = match (limits.lower_to_w == Some(most.0), by_cooling) {
        (true, _) => "where it is best".to_owned(),
        (false, true) => format!(
            "at a higher clock the heaviest load takes more than {watts} W, which is what its dies can be cooled at"
        ),
        (false, false) => format!("at a higher clock the heaviest load takes more than {watts} W"),
    };
    Some(format!(
        "The clock is lowered from {:.0} to {:.0} MHz, and the voltage to {:.2} of the design value: {why}.",
        lowered.from.0 / 1e6,
        chip.clock.0 / 1e6,
        lowered.voltage_fraction,
    ))
}

fn note_on_mean_power(row: &DesignRow) -> Option<String> {
    let (mean, peak) = row.mean_power_w.zip(row.peak_power_w).filter(|(mean, peak)| mean > peak)?;
    Some(format!(
        "A step's mean power, {mean:.0} W, is above the peak power, {peak:.0} W: the step runs matrix products and \
        streams through HBM at the same time, and peak power is that of the heavier one alone."
    ))
}

fn note_on_ends(question: &SearchQuestion, id: DesignId) -> Option<String> {
    let lowered = question.space.chip_of_design(id).is_ok_and(|chip| chip.lowered.is_some());
    let ends: Vec<String> = question
        .space
        .at_the_end(id)
        .into_iter()
        // If a limit on power lowered the clock, the clock is not at an end of its list.
        .filter(|(key, ..)| !lowered || key != "clock_mhz")
        .map(|(key, value, largest)| format!("{key} = {value} ({})", if largest { "largest" } else { "smallest" }))
        .collect();
    (!ends.is_empty())
        .then(|| format!("At the edge of the search range: {}. A wider range may have a better chip.", ends.join(", ")))
}

fn note_on_free_silicon(question: &SearchQuestion, id: DesignId) -> Option<String> {
    let free = question.space.dimensions_without_area(id);
    (!free.is_empty()).then(|| {
        format!(
            "No area follows from {}: the study's chips have more or less of it on the same area, which may decide the \
            choice. Give the space an area.* dimension that refers to it (coplace list dimensions).",
            free.join(", ")
        )
    })
}

/// Says why a complete search ends above the gap that was asked for.
pub(super) fn note_on_wide_gap(question: &SearchQuestion, certificate: &Certificate) -> Option<String> {
    let (asked, gap) = (question.aim.gap, certificate.gap.filter(|_| certificate.open == 0)?);
    // The search ends by the gap relative to the best value. Half a thousandth of a percent is below what is printed.
    (gap / (1.0 + gap) > asked + 5e-6).then(|| {
        format!(
            "The gap, {:.3} %, is above the {} % that was asked for, though no design is left: operator schedules of \
            the best plan are not proven best, and are counted at their bounds.",
            100.0 * gap,
            (1e8 * asked).round() / 1e6
        )
    })
}

/// Smaller gains by a slower clock, as a fraction of the cost, are not mentioned.
const LEAST_GAIN: f64 = 0.002;

/// A lower clock of a chip at which its plans cost less.
pub struct SlowerClock {
    /// The clock.
    pub clock: Hertz,
    /// Power under the heaviest sustained load at that clock.
    pub power: Watts,
    /// The saved fraction of the cost.
    pub gain: f64,
}

/// Returns the lower clock at which a chip takes least energy, is fastest per watt, or costs least with its energy, by
/// the objective. The models keep their plans and shares. `None` if the objective counts neither power nor energy, or
/// if no lower clock saves enough.
pub fn find_slower_clock(aim: &Aim, models: &[PlannedModel<'_>]) -> Option<SlowerClock> {
    /// Number of clocks that are tried, from the lowest possible clock up to below the chip's own.
    const STEPS: u32 = 20;
    if !(aim.objective.saves_power() || aim.pays_energy()) {
        return None;
    }
    let own = &models.first()?.job;
    let system_usd = aim.counted_system_usd(own.fabric, &own.chip.constants);
    let paid_usd = ChipFigures::of_chip(own.chip).ok()?.with_system(system_usd).paid_usd();
    let power_at = |clock: Hertz| sustained_power(&lower_clock(own.chip, clock)).peak_power();
    let cost_of = |job: &Job<'_>, plan: &PlanSpace, clock: Hertz| {
        let chip = lower_clock(job.chip, clock);
        let answer = search_plans(&Job { chip: &chip, ..*job }, plan, 1).ok()?;
        let found = answer.best.first()?;
        let (seconds, joules) = (found.time.total.0, found.energy.0);
        if aim.pays_energy() {
            return Some(aim.cost_of_step(paid_usd?, (seconds, joules), f64::from(job.devices)));
        }
        Some(if aim.objective.minimises_energy() { joules } else { seconds * power_at(clock).0 })
    };
    let cost_at = |clock: Hertz| {
        let costs =
            models.iter().map(|of| Some(cost_of(&of.job, &PlanSpace::of_plan(&of.ranked.plan), clock)?.powf(of.share)));
        costs.product::<Option<f64>>()
    };
    let (lowest, own) = (lowest_clock(own.chip), own.chip.clock);
    // Lowered clocks are whole numbers of MHz.
    let at = |step: u32| {
        let clock = lowest.0 + (own.0 - lowest.0) * f64::from(step) / f64::from(STEPS);
        Hertz(own.0.min((clock / 1e6).ceil() * 1e6))
    };
    let known = cost_at(own)?;
    let slower = (0..STEPS).filter_map(|step| Some((at(step), cost_at(at(step))?)));
    let (clock, least) = slower.min_by(|a, b| a.1.total_cmp(&b.1))?;
    let gain = 1.0 - least / known;
    (gain > LEAST_GAIN).then(|| SlowerClock { clock, power: power_at(clock), gain })
}

/// Returns notes on clocks: those at which chips were searched, a lower one at which the found chip would cost less,
/// and how much slower it would be at the reference chip's clock.
pub(super) fn notes_on_slower_clocks(
    question: &SearchQuestion,
    models: &[PlannedModel<'_>],
) -> impl Iterator<Item = String> {
    let aim = &question.aim;
    let unit = match (aim.objective.minimises_energy(), aim.pays_energy()) {
        (true, _) => "energy",
        (_, true) => "dollars",
        _ => "watts per token and second",
    };
    let lowered = question.space.limits().lower_to_w.map(|watts| {
        format!(
            "The clock is a choice here: every chip runs at the highest clock that its limits and {watts:.0} W allow, \
            the best of the limits of power that were tried, each some 13 % below the last. The proof is of \
            these clocks."
        )
    });
    let slower = find_slower_clock(aim, models).map(|slower| {
        format!(
            "At {:.0} MHz this chip takes {:.1} % less {unit} under the same plan: every chip is tried at the highest \
            clock that its limits allow, and the proof is of these clocks. Lower clock_mhz or --max-power to go on.",
            slower.clock.0 / 1e6,
            100.0 * slower.gain
        )
    });
    [lowered, slower, note_on_reference_clock(question, models)].into_iter().flatten()
}

/// Says how much slower the found chip would be at the reference chip's clock, if its own clock is higher. In this
/// model a higher clock costs no area.
fn note_on_reference_clock(question: &SearchQuestion, models: &[PlannedModel<'_>]) -> Option<String> {
    /// Smaller differences between clocks, as a fraction, are not mentioned.
    const LEAST_DIFFERENCE: f64 = 0.01;
    let own = &models.first()?.job;
    let clock = question.reference.clock;
    if own.chip.clock.0 <= clock.0 * (1.0 + LEAST_DIFFERENCE) {
        return None;
    }
    let slowing = models.iter().map(|PlannedModel { job, ranked, share }| {
        let chip = lower_clock(job.chip, clock);
        let answer = search_plans(&Job { chip: &chip, ..*job }, &PlanSpace::of_plan(&ranked.plan), 1).ok()?;
        Some((answer.best.first()?.time.total.0 / ranked.time.total.0).powf(*share))
    });
    Some(format!(
        "At the clock of {}, {:.0} MHz in place of {:.0}, it would take {:.2} times as long under the same plan. A \
        higher clock costs power; in this model it costs no area, and lets the network on the die be narrower.",
        question.reference.known_name(),
        clock.0 / 1e6,
        own.chip.clock.0 / 1e6,
        slowing.product::<Option<f64>>()?
    ))
}
