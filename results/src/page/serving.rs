//! The page of a run of `coplace serve`: the question, the answer, the binding limit, the alternatives and the built
//! chips.

use super::{Page, PageDrawing, PageEvidence, PageFact, PageTable, made_by};
use crate::answer::serving::{PoolRecord, ServingChoice, ServingReport};
use crate::figure::{FigureError, draw_pareto};
use crate::run::serving::{ServedAxis, ServedCase, ServingRun, format_or_dash, plot_of_fronts};
use crate::text::{format_count, format_percent, format_significant};
use serving::best::ServingBound;

impl Page {
    /// Returns the page of a run of `serve`. The answer shown is that of the combination with the highest value of the
    /// objective.
    ///
    /// # Errors
    /// Errors of the drawing library.
    pub fn of_serving(run: &ServingRun) -> Result<Self, FigureError> {
        let record = &run.record;
        let best = record.best_case();
        let plot = plot_of_fronts(&[(&run.name, &record.asked, &run.points)], ServedAxis::default());
        let drawing = PageDrawing {
            title: "Every deployment".to_owned(),
            caption: "tokens/s per device against tokens/s per user: each point is a plan at its highest rate within \
                the limits, and the line joins those that none exceeds along both"
                .to_owned(),
            svg: draw_pareto(&plot)?.svg().to_owned(),
        };
        let mut page = Self::empty(format!("Serving {}", record.asked.model));
        page.question = question_text(run);
        let refused = record.cases.iter().filter_map(|case| Some((case, case.why.as_ref()?)));
        page.notes = refused.map(|(case, why)| format!("{}: {why}.", case.words())).collect();
        page.drawings = vec![drawing];
        if record.cases.len() > 1 {
            page.tables.push(cases_table(&record.cases));
        }
        if let Some((case, answer)) = best
            && let Some(choice) = answer.choices.first()
        {
            page.answer = answer_text((case, answer, choice), record.cases.len() > 1);
            page.facts = figure_facts(answer, choice);
            page.assumptions.clone_from(&answer.assumptions);
            page.tables.extend([memory_table(choice), iteration_table(choice), choices_table(answer)]);
            page.tables.extend(baselines_table(answer));
        }
        Ok(page)
    }

    fn empty(title: String) -> Self {
        Self {
            title,
            question: Vec::new(),
            answer: Vec::new(),
            facts: Vec::new(),
            notes: Vec::new(),
            drawings: Vec::new(),
            tables: Vec::new(),
            evidence: PageEvidence::default(),
            dies: Vec::new(),
            designs: None,
            robust: false,
            comparison: Vec::new(),
            comparison_unit: String::new(),
            leads: Vec::new(),
            gain: None,
            decision: None,
            step_s: None,
            shares: Vec::new(),
            roofline: None,
            timeline: None,
            stages_over_a_step: Vec::new(),
            memory: Vec::new(),
            capacity_gib: None,
            decisions: Vec::new(),
            proof: Vec::new(),
            certificate: Vec::new(),
            assumptions: Vec::new(),
            sources: Vec::new(),
            left_out: Vec::new(),
            made_by: made_by(),
        }
    }
}

fn number(value: f64) -> String {
    format_significant(value, 4)
}

fn question_text(run: &ServingRun) -> Vec<String> {
    let asked = &run.record.asked;
    let chips = match (&asked.study, &asked.chips[..]) {
        (Some(study), []) => format!("the chips of study {study}"),
        (Some(study), chips) => format!("{} and the chips of study {study}", chips.join(", ")),
        (None, chips) => chips.join(", "),
    };
    let mut text = vec![format!(
        "Which deployment of {} on {} x {chips} under {} serves most, by {}?",
        asked.model,
        format_count(asked.devices),
        asked.engine,
        asked.objective
    )];
    match &run.record.cases[..] {
        [case] => text.push(format!("Service level: {}.", case.words())),
        cases => text.push(format!("{} service levels; the table below has each.", format_count(cases.len() as u64))),
    }
    text
}

fn answer_text((case, answer, best): (&ServedCase, &ServingReport, &ServingChoice), several: bool) -> Vec<String> {
    let binds = match best.limited_by {
        ServingBound::TimeToFirstToken => "The limit on the time to the first token binds.".to_owned(),
        ServingBound::TimePerOutputToken => "The limit on the time per output token binds.".to_owned(),
        ServingBound::Load => {
            "The load of 95 % binds: above it queues grow faster than any forecast of arrivals holds.".to_owned()
        }
        ServingBound::Power => "The limit on the mean power of a device binds.".to_owned(),
    };
    let mut text = vec![format!(
        "{} output tokens/s with {} on {}: {} a device.",
        number(best.tokens_per_s),
        best.plan_words(),
        best.chip_words(),
        number(best.tokens_per_s_per_device)
    )];
    text.extend(several.then(|| format!("This is the combination that serves most: {}.", case.words())));
    text.push(binds);
    for pool in [Some(&best.decode), best.prefill.as_ref()].into_iter().flatten() {
        if let Some(limit) = pool.power_limit_w.filter(|_| pool.clock_mhz < pool.full_clock_mhz) {
            text.push(format!(
                "Power binds too: {} runs at {} of {} MHz, within {} W.",
                pool.chip,
                format_count(pool.clock_mhz as u64),
                format_count(pool.full_clock_mhz as u64),
                number(limit)
            ));
        }
    }
    text.extend(answer.nearest_refusal.as_ref().map(|why| {
        format!(
            "{} of {} plans do not serve; the nearest: {why}.",
            format_count(answer.refused),
            format_count(answer.plans)
        )
    }));
    text.extend(answer.space.as_ref().map(|space| {
        let values = space.best_values.iter().map(|(key, value)| format!("{key} {value}")).collect::<Vec<_>>();
        format!(
            "The chip is the best of {} within the limits of study {}: {}; gap {}.",
            format_count(space.chips),
            space.study,
            values.join(", "),
            format_percent(space.gap)
        )
    }));
    text
}

fn figure_facts(answer: &ServingReport, best: &ServingChoice) -> Vec<PageFact> {
    let with_limit = |name: &str, value: f64, limit: Option<f64>| PageFact {
        note: limit.map(|limit| format!("{} allowed", number(limit))),
        ..PageFact::new(name, format!("{} ms", number(value)))
    };
    let mut facts = vec![
        PageFact::new("tokens/s", number(best.tokens_per_s)),
        PageFact::new("tokens/s per device", number(best.tokens_per_s_per_device)),
        PageFact::new("tokens/s per user", number(best.tokens_per_s_per_user())),
        with_limit("to the first token", best.ttft_ms, answer.ttft_limit_ms),
        with_limit("per output token", best.tpot_ms, answer.tpot_limit_ms),
        PageFact::new("load", format_percent(best.load)),
        PageFact::new("devices in use", format_count(best.devices)),
    ];
    if answer.objective != "throughput" {
        facts.insert(0, PageFact::new(answer.unit.clone(), format_or_dash(best.value)));
    }
    if best.decode.device_w > 0.0 {
        let note = best.decode.power_limit_w.map(|limit| format!("{} allowed", number(limit)));
        facts.push(PageFact {
            note,
            ..PageFact::new("a device's power", format!("{} W", number(best.decode.device_w)))
        });
    }
    facts
}

fn table<const N: usize>(title: &str, heads: [&str; N], rows: Vec<Vec<String>>) -> PageTable {
    PageTable { title: title.to_owned(), note: None, heads: heads.map(str::to_owned).into(), rows }
}

fn memory_table(best: &ServingChoice) -> PageTable {
    let row = |(name, pool): (&str, &PoolRecord)| {
        let gib = |value: f64| format_significant(value, 3);
        vec![
            name.to_owned(),
            pool.chip.clone(),
            pool.plan_words(),
            gib(pool.weights_gib),
            gib(pool.working_gib),
            gib(pool.prefixes_gib),
            gib(pool.cache_gib),
            gib(pool.usable_gib),
        ]
    };
    let decode = if best.prefill.is_some() { "decoding" } else { "prompts and decoding" };
    let pools = best.prefill.iter().map(|pool| ("prompts", pool)).chain([(decode, &best.decode)]);
    let heads = ["pool", "chip", "plan", "weights", "at work", "held prefixes", "left for the cache", "usable"];
    table("Memory of a device, GiB", heads, pools.map(row).collect())
}

fn iteration_table(best: &ServingChoice) -> PageTable {
    let i = &best.iteration;
    let row = |(name, ms): &(&str, f64)| vec![(*name).to_owned(), number(*ms), format_percent(ms / i.total_ms)];
    let mut made = table("One decoding iteration", ["part", "ms", "share"], i.list_parts().iter().map(row).collect());
    made.note = Some(format!(
        "{} ms for {} sequences; prompts take {} of the time.",
        number(i.total_ms),
        format_significant(best.decoding, 3),
        format_percent(best.prompt_fraction)
    ));
    made
}

fn choices_table(answer: &ServingReport) -> PageTable {
    let row = |choice: &ServingChoice| {
        vec![
            choice.chip_words(),
            choice.plan_words(),
            format_count(choice.devices),
            format_or_dash(choice.value),
            number(choice.tokens_per_s),
            number(choice.tokens_per_s_per_device),
            number(choice.ttft_ms),
            number(choice.tpot_ms),
            choice.limited_by.words().to_owned(),
        ]
    };
    let heads = ["chip", "plan", "devices", "value", "tokens/s", "per device", "first ms", "next ms", "what binds"];
    let mut made = table("The alternatives", heads, answer.choices.iter().map(row).collect());
    made.note = Some(format!("The value is in {}.", answer.unit));
    made
}

fn baselines_table(answer: &ServingReport) -> Option<PageTable> {
    let rows = answer.baselines.iter().map(|built| {
        vec![
            built.chip.clone(),
            built.fabric.clone().unwrap_or_default(),
            built.products.clone(),
            format_or_dash(built.same_form),
            format_or_dash(built.fitted),
            built.note.clone().unwrap_or_default(),
        ]
    });
    let heads = ["chip", "fabric", "products", "same form", "fitted", "note"];
    let title = format!("Built chips at this level, {}", answer.unit);
    (!answer.baselines.is_empty()).then(|| table(&title, heads, rows.collect()))
}

fn cases_table(cases: &[ServedCase]) -> PageTable {
    let heads =
        ["lengths", "ttft limit", "tpot limit", "chip", "plan", "tokens/s", "per device", "first ms", "next ms"];
    table(
        "Every combination of lengths and limits",
        heads,
        cases.iter().map(|case| case.list_cells().to_vec()).collect(),
    )
}
