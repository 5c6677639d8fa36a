//! The memory that `plan` suggests if nothing fits.

use crate::support::run_coplace;

/// The suggested headroom is exact: a plan fits with it, and none fits with a larger one. This holds for named policies
/// and for policies tensor by tensor.
#[test]
fn the_memory_that_is_said_to_be_enough_is() {
    let job = "plan llama2-7b --chip a100_80gb_sxm --fabric selene_hdr200x8 --devices 8 --global-batch 8 \
        --sequence-length 32768 --tensor 8 --zero 0 --top 1 --format json";
    for recompute in ["none;selective;full", "best"] {
        let with = |headroom: &str| {
            let more = ["--recompute", recompute, "--headroom-gib", headroom];
            run_coplace(&job.split_whitespace().chain(more).collect::<Vec<_>>())
        };
        // A headroom that no plan leaves is wrong input.
        let why = with("76").expect_refusal();
        assert!(why.starts_with("error: --headroom-gib 76: no plan fits; the nearest, "), "{why}");
        let flag = why.split_once("(--headroom-gib ").and_then(|(_, rest)| rest.split_once(')')).unwrap().0;
        assert!(!with(flag).expect_json()["plans"].as_array().unwrap().is_empty(), "{recompute}: {why}");
        let less = format!("{:.2}", flag.parse::<f64>().unwrap() + 0.01);
        assert!(with(&less).expect_refusal().contains("no plan fits"), "{recompute}: {less} of {why}");
        let evaluate: Vec<&str> =
            job.split_whitespace().map(|word| if word == "plan" { "evaluate" } else { word }).collect();
        let evaluate = evaluate.into_iter().filter(|word| !["--top", "1"].contains(word));
        let other =
            run_coplace(&evaluate.chain(["--recompute", recompute, "--headroom-gib", "76"]).collect::<Vec<_>>())
                .expect_refusal();
        assert_eq!(other, why, "{recompute}");
    }
}

/// A headroom is an error only if it is the reason why no plan fits. A model that is too large even without headroom is
/// a result, not an error.
#[test]
fn a_budget_is_named_only_if_it_is_the_cause() {
    let job = "plan llama3-70b --chip h200 --fabric h200_400g --devices 1 --global-batch 8 --sequence-length 1024 \
        --format json";
    for headroom in ["0", "1"] {
        let words = job.split_whitespace().chain(["--headroom-gib", headroom]).collect::<Vec<_>>();
        let answer = run_coplace(&words).expect_json();
        assert!(answer["plans"].as_array().unwrap().is_empty());
        assert!(answer["why"].as_str().unwrap().starts_with("no plan fits; the nearest, "), "{answer}");
    }
}
