#![allow(clippy::unwrap_used)]
use super::*;

#[test]
fn every_built_in_study_loads() {
    assert!(Study::names().contains(&"phaze".to_owned()));
    for name in Study::names() {
        Study::load(&name).unwrap();
    }
}

#[test]
fn errors_name_the_key_the_value_and_the_cure() {
    let text = STUDIES.get_file("phaze.toml").unwrap().contents_utf8().unwrap();
    let zero = text.replace("devices = 1024", "devices = 0");
    assert_eq!(
        Study::parse("s.toml", &zero).unwrap_err().to_string(),
        "s.toml: cluster.devices = 0: must be from 1 to 1048576; give the accelerators of the cluster"
    );
    let nan = text.replace("min_area_fraction = 0.3", "min_area_fraction = nan");
    assert!(Study::parse("s.toml", &nan).unwrap_err().to_string().contains("min_area_fraction = NaN"));
    let from = text.find("recompute = [").unwrap();
    let list = &text[from..=from + text[from..].find(']').unwrap()];
    let best = text.replace(list, "recompute = [\"full\", \"best\"]");
    assert!(Study::parse("s.toml", &best).unwrap_err().to_string().starts_with(
        "s.toml: plan.recompute = best: chooses policies stage by stage under even splits of the layers only; write layer_split"
    ));
    let plan = Study::parse("s.toml", &best.replace("layer_split = \"best\"", "layer_split = \"even\"")).unwrap().plan;
    let space = plan.space();
    assert_eq!((space.activations, space.mixes), (Some(vec![ActivationPolicy::Full]), Some(MixKind::PerStage)));
    assert!(plan.words().contains("recompute full or best"), "{}", plan.words());
    let typo = text.replace("devices =", "device =");
    assert!(Study::parse("s.toml", &typo).unwrap_err().to_string().contains("unknown field `device`"));
    assert!(
        Study::load("phase")
            .unwrap_err()
            .to_string()
            .starts_with("unknown study `phase`: did you mean `phaze`? Built in are edge_of_memory, gpu, gpu_wide, phaze")
    );
}
