//! Memory techniques from the outside.

use crate::away::CLUSTER;
use crate::support::coplace;

fn evaluate(more: &[&str]) -> Vec<String> {
    let call = ["evaluate", "llama2-7b"]
        .iter()
        .chain(&CLUSTER)
        .chain(&["1", "--micro-batch", "2", "--zero", "1", "--recompute", "none"])
        .chain(more);
    call.map(|word| (*word).to_owned()).collect()
}

fn called(words: &[String]) -> crate::support::Called {
    coplace(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn all_techniques_run_side_by_side() {
    let answer = coplace(&[
        "techniques",
        "llama2-7b",
        "--chip",
        "a100_80gb_sxm",
        "--sequence-length",
        "2048",
        "--nvme",
        "6.4:1600",
        "--format",
        "json",
    ]);
    let answer = answer.json();
    let rows = answer["rows"].as_array().unwrap();
    assert!(rows.len() >= 40 && rows[0]["technique"] == "none");
    for row in rows {
        assert!(row["refused"].is_null() && row["result"]["step_s"].as_f64().unwrap() > 0.0, "{row}");
    }
    let need = |name: &str| rows.iter().find(|r| r["technique"] == name).unwrap()["result"]["need_gib"].as_f64().unwrap();
    assert!(need("lomo") < need("adam8bit") && need("adam8bit") < need("none"));
}

#[test]
fn what_has_nowhere_to_go_is_refused_and_what_is_too_much_is_marked() {
    let call = |more: &[&str]| {
        let all = ["techniques", "llama2-7b", "--chip", "a100_80gb_sxm", "--sequence-length", "2048", "--technique", "memory3"];
        coplace(&all.into_iter().chain(more.iter().copied()).collect::<Vec<_>>())
    };
    let refused = call(&[]).refusal();
    assert!(refused.contains("memory3: a100_80gb_sxm has nothing to move it to") && refused.contains("--nvme"), "{refused}");
    let text = call(&["--nvme", "6.4:100"]).result();
    let row = text.lines().find(|line| line.starts_with("memory3")).unwrap();
    assert!(row.contains("390.62 !") && text.contains("!  more than there is"), "{text}");
}

#[test]
fn plans_have_techniques_and_say_what_was_allowed() {
    let plain = called(&evaluate(&["--format", "json"])).json();
    let refused = called(&evaluate(&["--technique", "galore"])).refusal();
    assert!(refused.contains("--allow galore,step_multiplier=X"), "{refused}");
    let allowed = ["--technique", "galore,rank=512", "--allow", "galore,step_multiplier=1.5", "--format", "json"];
    let answer = called(&evaluate(&allowed)).json();
    assert_eq!(answer["job"]["techniques"][0]["technique"], "galore,rank=512");
    assert_eq!(answer["job"]["techniques"][0]["step_multiplier"], 1.5);
    let states = |answer: &serde_json::Value| answer["result"]["stages"][0]["classes_gib"]["optimizer states"].as_f64().unwrap();
    assert!(states(&answer) < states(&plain));
    let text = called(&evaluate(&allowed[..4])).result();
    assert!(text.contains("divided by 1.500 times as many steps"), "{text}");
}

#[test]
fn impossible_techniques_are_refused_with_their_reason() {
    let refusal = |more: &[&str]| called(&evaluate(more)).refusal();
    assert!(refusal(&["--technique", "galor"]).contains("did you mean `galore`?"));
    assert!(refusal(&["--technique", "ssdtrain"]).contains("[storage]"));
    assert!(refusal(&["--technique", "memo,fraction=2"]).contains("must be from 0 to 1"));
    assert!(refusal(&["--allow", "lomo"]).contains("not among the techniques"));
    let both = ["--technique", "lomo", "--technique", "galore", "--allow", "lomo", "--allow", "galore"];
    assert!(refusal(&both).contains("LOMO keeps no states"));
}

#[test]
fn what_has_nowhere_to_go_is_refused_and_the_others_answered() {
    let answer =
        coplace(&["techniques", "llama2-7b", "--chip", "h100_80gb_sxm", "--sequence-length", "2048", "--format", "json"]).json();
    let rows = answer["rows"].as_array().unwrap();
    let refused: Vec<_> = rows.iter().filter(|row| !row["refused"].is_null()).collect();
    assert!(!refused.is_empty() && refused.len() < 5, "{refused:?}");
    assert!(refused.iter().all(|row| row["refused"].as_str().unwrap().contains("[storage]")), "{refused:?}");
}
