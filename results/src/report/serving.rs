//! The answer of `coplace serve` as text.

use super::serving_beside::predictions_beside;
use super::serving_space::describe_space;
use crate::answer::serving::{PoolRecord, ServingChoice, ServingReport};
use crate::answer::serving_method::{InferenceRecord, MethodRecord};
use crate::text::{
    ColumnAlign, TextTable, format_assumptions, format_count, format_fields, format_heading, format_percent,
    format_significant,
};
use serving::best::ServingBound;

/// Returns the whole report. Empty if nothing serves.
#[must_use]
pub fn serving_report(report: &ServingReport) -> String {
    let Some(best) = report.choices.first() else { return String::new() };
    let number = |value: f64| format_significant(value, 4);
    let mut fields = vec![("serves", served(report, best))];
    let inverse = |value: f64| match report.objective.as_str() {
        "energy-per-token" => format!(", {} J a token", number(1.0 / value)),
        _ => String::new(),
    };
    fields.extend(best.value.filter(|_| report.objective != THROUGHPUT).map(|value| {
        let text = format!("{}: {} {}{}", report.objective, number(value), report.unit, inverse(value));
        ("objective", text)
    }));
    fields.extend([
        (
            "first token",
            time_line(best.ttft_ms, report.ttft_limit_ms, best.limited_by == ServingBound::TimeToFirstToken),
        ),
        (
            "each next",
            time_line(best.tpot_ms, report.tpot_limit_ms, best.limited_by == ServingBound::TimePerOutputToken),
        ),
        ("requests", requests_line(report, best)),
        ("plan", plan_line(best)),
        ("memory", memory_line(&best.decode)),
        ("iteration", iteration_line(best)),
        ("power", power_line(best)),
        ("how sure", how_sure(report)),
    ]);
    if let Some(method) = &report.method {
        fields.push(("method", method_line(method, &best.decode)));
    }
    let mut text = format_fields(&fields);
    text.push_str(&report.space.as_ref().map_or_else(String::new, |space| describe_space(report, space, best)));
    if !report.baselines.is_empty() {
        text.push_str(&baselines_text(report, best));
    }
    text.push_str(&format_heading(&format!("Deployments, by {}", named_objective(report))));
    let table = choices_table(report).render();
    text.push_str(&table);
    if table.contains(BINDS) {
        text.push_str("*  the limit that keeps it from serving more; elsewhere a load of 95 %, or the power\n");
    }
    text.push_str(&format!(
        "{} of replicas and pools priced; {} not serve{}\n",
        count_of(report.plans, "plan"),
        if report.refused == 1 { "1 does".to_owned() } else { format!("{} do", format_count(report.refused)) },
        report.nearest_refusal.as_ref().map_or_else(String::new, |why| format!(", the nearest: {why}"))
    ));
    text.extend(report.beside.as_ref().map(predictions_beside));
    text.push_str(&format_assumptions(&report.assumptions));
    text
}

/// Returns a count with its noun.
fn count_of(count: u64, noun: &str) -> String {
    format!("{} {noun}{}", format_count(count), if count == 1 { "" } else { "s" })
}

/// The objective whose value the report shows anyway.
const THROUGHPUT: &str = "throughput";

fn named_objective(report: &ServingReport) -> String {
    match report.objective.as_str() {
        THROUGHPUT => "output tokens per second".to_owned(),
        _ => format!("output {}", report.unit),
    }
}

/// Returns a table of the built chips, with their values relative to the best chip.
fn baselines_text(report: &ServingReport, best: &ServingChoice) -> String {
    let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format_significant(value, 4));
    let ratio = |value: Option<f64>| match (value, best.value) {
        (Some(value), Some(best)) => format_significant(value / best, 3),
        _ => "-".to_owned(),
    };
    let mut table = TextTable::new(["chip", "products", "same form", "of the best", "fitted", "note"])
        .align_column(0, ColumnAlign::Left)
        .align_column(1, ColumnAlign::Left)
        .align_column(5, ColumnAlign::Left);
    for baseline in &report.baselines {
        table.add_row([
            baseline.chip.clone(),
            baseline.products.clone(),
            number(baseline.same_form),
            ratio(baseline.same_form),
            number(baseline.fitted),
            baseline.note.clone().unwrap_or_default(),
        ]);
    }
    let heading = format!("Built chips at this level, {}", report.unit);
    format!(
        "{}{}same form: as efficient as the space's chips; fitted: by the chip's own file; each on its own fabric\n",
        format_heading(&heading),
        table.render()
    )
}

/// Marks a time whose limit keeps a deployment from serving more.
const BINDS: &str = "*";

/// The known error of the serving model (measured/README.md, "Serving").
const SURE: &str = "means, not percentiles; of 649 measured points on H100 and H200, on which engines were fitted, \
    times per output token are 6 % off in the median and 17 % at the ninth of ten, times to the first token 23 % in \
    the median; no other chip was measured";

/// Returns the known error, and the reasons why it may not hold for this answer.
fn how_sure(report: &ServingReport) -> String {
    let mut text = SURE.to_owned();
    if report.engine == "ideal" {
        text.push_str("; all of them ran under an engine: without one these rates are a bound");
    }
    if report.method.is_some() {
        text.push_str("; none of them had drafts, held prefixes, a cache off the device or a technique");
    }
    text
}

fn served(report: &ServingReport, best: &ServingChoice) -> String {
    format!(
        "{} output tokens/s of {} on {} of {} devices, {} each",
        format_significant(best.tokens_per_s, 4),
        report.model,
        format_count(best.devices),
        format_count(report.devices),
        format_significant(best.tokens_per_s_per_device, 4)
    )
}

fn time_line(time_ms: f64, limit_ms: Option<f64>, binds: bool) -> String {
    let limit = match (limit_ms, binds) {
        (Some(limit), true) => format!(", the limit of {} binds", format_significant(limit, 4)),
        (Some(limit), false) => format!(", {} allowed", format_significant(limit, 4)),
        (None, _) => String::new(),
    };
    format!("{} ms in the mean{limit}", format_significant(time_ms, 4))
}

fn requests_line(report: &ServingReport, best: &ServingChoice) -> String {
    let lengths: Vec<String> = report
        .lengths
        .iter()
        .map(|class| {
            let share =
                if report.lengths.len() > 1 { format!(" ({})", format_percent(class.share)) } else { String::new() };
            format!("{} + {} tokens{share}", format_count(class.input), format_count(class.output))
        })
        .collect();
    format!(
        "{} per second at random, {}; load {}",
        format_significant(best.requests_per_s, 4),
        lengths.join(", "),
        format_percent(best.load)
    )
}

fn plan_of_pool(pool: &PoolRecord) -> String {
    format!("{} on {}", pool.plan_words(), pool.chip)
}

/// Returns the mean power, and tokens per joule if they are known.
fn power_line(best: &ServingChoice) -> String {
    let power = power_of_pools(best);
    if best.tokens_per_joule == 0.0 {
        return power;
    }
    format!("{power}; {} tokens per joule", format_significant(best.tokens_per_joule, 4))
}

/// Returns the mean power of a device of each pool, and the clock if the power limit lowers it or keeps the deployment
/// from serving more.
fn power_of_pools(best: &ServingChoice) -> String {
    let held = best.limited_by == ServingBound::Power;
    let of = |pool: &PoolRecord| {
        let lowered = pool.power_limit_w.filter(|_| held || pool.clock_mhz < pool.full_clock_mhz).map(|limit| {
            format!(
                " at {} of {} MHz, within its limit of {} W",
                format_count(pool.clock_mhz as u64),
                format_count(pool.full_clock_mhz as u64),
                format_significant(limit, 4)
            )
        });
        if pool.device_w == 0.0 {
            return format!("not known: the file of {} states no energy", pool.chip);
        }
        format!("{} W a device{}", format_significant(pool.device_w, 4), lowered.unwrap_or_default())
    };
    match &best.prefill {
        None => of(&best.decode),
        Some(prefill) => format!("prompts {}, decoding {}", of(prefill), of(&best.decode)),
    }
}

fn plan_line(best: &ServingChoice) -> String {
    let mut formats = format!("{} products, {} cache", best.decode.products, best.decode.cache);
    if best.decode.most_tokens > 0 {
        formats.push_str(&format!(", at most {} tokens an iteration", format_count(best.decode.most_tokens)));
    }
    match &best.prefill {
        None => format!("{}; {formats}", plan_of_pool(&best.decode)),
        Some(prefill) => format!(
            "prompts {}; decoding {}; the cache moves in {} ms; {formats}",
            plan_of_pool(prefill),
            plan_of_pool(&best.decode),
            format_significant(best.transfer_ms, 3)
        ),
    }
}

/// Describes drafts, held prefixes, a cache off the device, and the inference technique.
fn method_line(method: &MethodRecord, pool: &PoolRecord) -> String {
    let mut parts = Vec::new();
    if let (Some(drafted), Some(accepted), Some(model)) = (method.drafted, method.accepted, &method.draft_model) {
        let tokens = if drafted == 1 { "1 token" } else { &format!("{drafted} tokens") };
        let accepted = format_significant(accepted, 3);
        parts.push(format!("{tokens} drafted for a pass by {model}, {accepted} accepted in the mean (given)"));
    }
    if let Some(hit) = method.prefix_hit {
        let gib = format_significant(pool.prefixes_gib, 3);
        parts.push(format!("{} of every prompt held (given), in {gib} GiB of a device", format_percent(hit)));
    }
    if let (Some(place), Some(away)) = (&method.cache_place, method.cache_away) {
        parts.push(format!("{} of keys and values on the {place}", format_percent(away)));
    }
    parts.extend(method.technique.as_ref().map(technique_words));
    parts.join("; ")
}

/// Describes an inference technique beside plain serving.
fn technique_words(technique: &InferenceRecord) -> String {
    let number = |value: f64| format_significant(value, 3);
    let mut words = format!(
        "{}: a prompt alone takes {} ms and {} GiB of keys and values, plain {} ms and {} GiB",
        technique.name,
        number(technique.prompt_ms),
        number(technique.peak_gib),
        number(technique.plain_prompt_ms),
        number(technique.plain_peak_gib)
    );
    if technique.stored_gib > 0.0 {
        words.push_str(&format!(
            "; storage holds {} GiB a device and gives {} KiB a token",
            number(technique.stored_gib),
            number(technique.read_kib_per_token)
        ));
    }
    words
}

fn memory_line(pool: &PoolRecord) -> String {
    let gib = |value: f64| format_significant(value, 3);
    format!(
        "{} GiB of weights, {} at work, {} left for the cache at {} KiB per token, of {} GiB",
        gib(pool.weights_gib),
        gib(pool.working_gib),
        gib(pool.cache_gib),
        gib(pool.cache_kib_per_token),
        gib(pool.usable_gib)
    )
}

fn iteration_line(best: &ServingChoice) -> String {
    let i = &best.iteration;
    let parts: Vec<String> =
        i.list_parts().iter().map(|(name, ms)| format!("{name} {}", format_significant(*ms, 3))).collect();
    format!(
        "{} ms for {} sequences: {}; prompts take {} of the time",
        format_significant(i.total_ms, 4),
        format_significant(best.decoding, 3),
        parts.join(", "),
        format_percent(best.prompt_fraction)
    )
}

fn choices_table(report: &ServingReport) -> TextTable {
    let by_figure = ![THROUGHPUT, "energy-per-token"].contains(&report.objective.as_str());
    let last = if by_figure { report.unit.as_str() } else { "tokens/J" };
    let mut table = TextTable::new(["plan", "devices", "tokens/s", "each", "first ms", "next ms", last])
        .align_column(0, ColumnAlign::Left);
    for choice in &report.choices {
        let plan = match &choice.prefill {
            None => plan_of_pool(&choice.decode),
            Some(prefill) => format!("{} + {}", plan_of_pool(prefill), plan_of_pool(&choice.decode)),
        };
        let number = |value: f64| format_significant(value, 4);
        let marked = |value: f64, bound: ServingBound| {
            format!("{}{}", number(value), if choice.limited_by == bound { BINDS } else { "" })
        };
        table.add_row([
            plan,
            format_count(choice.devices),
            number(choice.tokens_per_s),
            number(choice.tokens_per_s_per_device),
            marked(choice.ttft_ms, ServingBound::TimeToFirstToken),
            marked(choice.tpot_ms, ServingBound::TimePerOutputToken),
            match choice.value.filter(|_| by_figure).or((!by_figure).then_some(choice.tokens_per_joule)) {
                Some(figure) if figure > 0.0 => number(figure),
                _ => "-".to_owned(),
            },
        ]);
    }
    table
}
