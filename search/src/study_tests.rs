#![allow(clippy::unwrap_used)]
use super::*;
use crate::ask::PlanSpace;
use sim::pipeline::PipelineSchedule;
use step::{MixKind, SoftwareStack};
use workloads::ActivationPolicy;

#[test]
fn every_built_in_study_loads() {
    assert!(Study::names().contains(&"phaze".to_owned()));
    for name in Study::names() {
        Study::load(&name).unwrap();
    }
}

#[test]
fn errors_name_the_key_the_value_and_the_cure() {
    let text = Study::text("phaze").unwrap();
    let zero = text.replace("devices = 1024", "devices = 0");
    assert_eq!(
        Study::parse("s.toml", &zero).unwrap_err().to_string(),
        "s.toml, line 17: cluster.devices = 0: must be from 1 to 1048576; give the accelerators of the cluster"
    );
    let nan = text.replace("min_area_fraction = 0.3", "min_area_fraction = nan");
    assert!(Study::parse("s.toml", &nan).unwrap_err().to_string().contains("min_area_fraction = NaN"));
    let from = text.find("recompute = [").unwrap();
    let list = &text[from..=from + text[from..].find(']').unwrap()];
    let best = text.replace(list, "recompute = [\"full\", \"best\"]");
    assert!(Study::parse("s.toml", &best).unwrap_err().to_string().contains(
        ": plan.recompute = best: chooses policies stage by stage under even splits of the layers only; write layer_split"
    ));
    let plan = Study::parse("s.toml", &best.replace("layer_split = \"best\"", "layer_split = \"even\"")).unwrap().plan;
    let space = plan.choices;
    assert_eq!((&space.activations, space.mixes), (&Some(vec![ActivationPolicy::Full]), Some(MixKind::PerStage)));
    assert!(space.phrase().contains("recompute full or best"), "{}", space.phrase());
    let tpu = Study::text("edge_of_memory").unwrap();
    let constants = |tables: &str| Study::parse("s.toml", &format!("{tpu}\n{tables}"));
    let phy = constants("[space.constants]\n\"hbm.phy\" = 11\n").unwrap();
    assert_eq!(phy.space.constants, [("hbm.phy".to_owned(), 11.0)].into());
    for (tables, why) in [
        ("[space.constants]\n\"hbm.phy\" = 100\n", "hbm.phy"),
        ("[space.constants]\n\"hbm.phz\" = 10\n", "hbm.phz"),
        ("[space.constants]\n\"hbm.phy\" = 11\n[constants]\n\"hbm.phy\" = 12\n", "keep one of the tables"),
    ] {
        assert!(constants(tables).unwrap_err().to_string().contains(why), "{tables}");
    }
    let typo = text.replace("devices =", "device =");
    assert!(Study::parse("s.toml", &typo).unwrap_err().to_string().contains("unknown field `device`"));
    assert!(
        Study::load("phase")
            .unwrap_err()
            .to_string()
            .starts_with("unknown study `phase`: did you mean `phaze`? Built in are edge_of_memory, gpu, phaze")
    );
}

/// A question is the same after it was written as JSON and read again, and so is its digest.
#[test]
fn questions_of_all_studies_survive_json() {
    for name in Study::names() {
        let question = Study::load(&name).unwrap().question(&name);
        let text = question.to_json().to_string();
        let again = Question::parse("question.json", &text).unwrap();
        assert_eq!(again, question, "{name}");
        assert_eq!(again.canonical(), question.canonical());
        assert_eq!(Study::of_question(&again).unwrap().question(&name), question);
    }
}

#[test]
fn an_unknown_key_of_a_question_is_refused_with_its_line() {
    let question = Study::load("smoke").unwrap().question("smoke");
    let text = serde_json::to_string_pretty(&question.to_json()).unwrap();
    for (of, by, line) in [
        ("\"cluster\": {", "\"clusters\": {", "unknown field `clusters`"),
        ("\"devices\": ", "\"device\": ", "unknown field `device`"),
        (
            "\"tensor_parallel\": [",
            "\"tensor_paralel\": [",
            "unknown field `tensor_paralel`: did you mean `tensor_parallel`?",
        ),
    ] {
        let at = 1 + text[..text.find(of).unwrap()].matches('\n').count();
        let error = Question::parse("question.json", &text.replacen(of, by, 1)).unwrap_err();
        assert!(error.starts_with("question.json: ") && error.contains(line), "{error}");
        assert!(error.contains(&format!(" at line {at} ")), "line {at}: {error}");
    }
}

#[test]
fn the_first_difference_of_two_questions_is_named() {
    let question = Study::load("smoke").unwrap().question("smoke");
    let mut other = question.clone();
    other.cluster.devices = 8;
    let said = question.difference_from(&other).unwrap();
    assert_eq!(said, format!("cluster.devices is {} there and 8 here", question.cluster.devices));
    // In a canonical question, a file's text replaces its path. So the spelling of the path does not matter.
    let with = |path: &str, text: &str| {
        let mut named = question.clone();
        named.cluster.fabric = path.to_owned();
        named.files.insert(path.as_ref(), text.to_owned());
        named
    };
    assert_eq!(with("f.toml", "name = 1").canonical(), with("./f.toml", "name = 1").canonical());
    assert_ne!(with("f.toml", "name = 1").canonical(), with("f.toml", "name = 2").canonical());
}

#[test]
fn plans_are_narrowed_to_what_the_stack_s_framework_runs() {
    let stack = |name: &str| SoftwareStack::load(name).unwrap();
    let phaze = || Study::load("phaze").unwrap().plan.choices;
    // The ideal stack runs all schedules and policies of PHAZE's study.
    let mut plan = phaze();
    assert_eq!(plan.narrow_to(&stack("ideal")), Ok(None));
    assert_eq!(plan, phaze());
    // MaxText runs GPipe instead of 1F1B, and only some of PHAZE's policies.
    let mut plan = phaze();
    let change = plan.narrow_to(&stack("maxtext")).unwrap().unwrap();
    assert!(change.contains("schedules gpipe in place of 1f1b") && change.contains("no recompute none"), "{change}");
    assert_eq!(plan.schedules, Some(vec![PipelineSchedule::GPipe]));
    let space = plan.clone();
    assert!(space.activations.unwrap().iter().all(|policy| stack("maxtext").runs_policy(policy)));
    assert!(space.schedules.unwrap().iter().all(|schedule| stack("maxtext").runs_schedule(*schedule, 1)));
    // A plan space that was narrowed before does not change.
    assert_eq!(plan.narrow_to(&stack("maxtext")), Ok(None));
    // A framework that runs none of the policies is an error.
    let mut plan = PlanSpace { activations: Some(vec![ActivationPolicy::None]), ..phaze() };
    let why = plan.narrow_to(&stack("maxtext")).unwrap_err();
    assert_eq!(why, "recompute: the framework of stack maxtext has none of none");
    // A framework that runs no pipelines leaves plans with one stage.
    let mut alone = stack("maxtext");
    alone.framework.schedules.clear();
    let mut plan = phaze();
    assert!(plan.narrow_to(&alone).unwrap().unwrap().starts_with("no pipeline; "));
    assert_eq!(plan.pipeline, Some(vec![1]));
}
