//! The searched space of a serving report as text.

use crate::answer::serving::{ServedSpaceRecord, ServingChoice, ServingReport, TrainAndServe, TwoChips};
use crate::text::{format_count, format_fields, format_percent, format_significant};

/// Describes the space, the values of its best chip, and the gain from two kinds of chips.
pub(super) fn describe_space(report: &ServingReport, space: &ServedSpaceRecord, best: &ServingChoice) -> String {
    let mut fields = vec![
        (
            "space",
            format!(
                "{} chips within the limits of study {}, of {} combinations; {}",
                format_count(space.chips),
                space.study,
                format_count(space.combinations),
                describe_pricing(space, &report.unit)
            ),
        ),
        ("its best", format!("{}; {} W", join_values(&space.best_values), format_significant(best.decode.device_w, 4))),
    ];
    if let Some((reference, value)) = space.reference.zip(best.value) {
        let text = format!(
            "{} {} on the base chip in the same form: the best has {} times as much",
            format_significant(reference, 4),
            report.unit,
            format_significant(value / reference, 3)
        );
        fields.push(("beside", text));
    }
    fields.extend(space.both.iter().flat_map(list_training_fields));
    if let Some(apart) = &space.apart {
        fields.extend(list_fields_of_two_chips(apart));
        fields.extend(describe_cluster(apart, report.devices).map(|text| ("on these", text)));
    }
    format!("\n{}", format_fields(&fields))
}

/// Joins keys and values: `hbm_gib 96, tensor_cores 8`.
fn join_values(values: &[(String, String)]) -> String {
    values.iter().map(|(key, value)| format!("{key} {value}")).collect::<Vec<_>>().join(", ")
}

/// Describes how many chips of a space were priced, and the proof for the others.
fn describe_pricing(space: &ServedSpaceRecord, unit: &str) -> String {
    if let Some(both) = &space.both {
        format!(
            "{} of them trained and {} priced; by their bounds no other does both as well",
            format_count(both.priced_training),
            format_count(both.priced_serving)
        )
    } else if space.priced == space.chips {
        "all of them priced".to_owned()
    } else if space.gap == 0.0 {
        format!("{} of them priced; by their bounds no other is as good", format_count(space.priced))
    } else {
        format!(
            "{} of them priced; no other has more than {} {unit} by its bound, {} above the best",
            format_count(space.priced),
            format_significant(space.bound, 4),
            format_percent(space.gap)
        )
    }
}

/// Returns the lines about a chip that trains and serves, beside the best chip for each alone.
fn list_training_fields(both: &TrainAndServe) -> [(&'static str, String); 3] {
    [
        (
            "trains too",
            format!(
                "{} at {} tokens/s a chip, {} of the best chip for training; it serves {} of the best for serving",
                both.trains_model,
                format_significant(both.training_tokens_per_s, 4),
                format_percent(both.trains),
                format_percent(both.serves)
            ),
        ),
        (
            "to train",
            format!(
                "best alone; it serves {} ({})",
                format_percent(both.training_chip_serves),
                join_values(&both.training_values)
            ),
        ),
        (
            "to serve",
            format!(
                "best alone; it trains {} ({})",
                format_percent(both.serving_chip_trains),
                join_values(&both.serving_values)
            ),
        ),
    ]
}

/// Returns the lines about two kinds of chips on many devices.
fn list_fields_of_two_chips(apart: &TwoChips) -> [(&'static str, String); 3] {
    let number = |value: f64| format_significant(value, 4);
    [
        ("prompts by", join_values(&apart.prefill_values)),
        ("decoding by", join_values(&apart.decode_values)),
        (
            "two kinds",
            format!(
                "{} tokens/s a device on many devices, the most of all pairs; {} with one kind in both pools, {} with \
                one kind together",
                number(apart.two_kinds),
                number(apart.one_kind),
                number(apart.together)
            ),
        ),
    ]
}

/// Describes the best two chips on the requested devices; `None` if these are too few for two pools.
fn describe_cluster(apart: &TwoChips, devices: u32) -> Option<String> {
    let cluster = apart.cluster.as_ref()?;
    let same = cluster.prefill_values == apart.prefill_values && cluster.decode_values == apart.decode_values;
    let chips = if same {
        "with these two".to_owned()
    } else {
        format!(
            "prompts by {}; decoding by {}",
            join_values(&cluster.prefill_values),
            join_values(&cluster.decode_values)
        )
    };
    Some(format!(
        "{} tokens/s on {} devices, {chips}; of {} pairs in every split none serves more ({} tried, the others are \
        bounded); many devices would serve {} more each",
        format_significant(cluster.tokens_per_s, 4),
        format_count(devices),
        format_count(cluster.pairs),
        format_count(cluster.tried),
        format_percent(cluster.below_many)
    ))
}
