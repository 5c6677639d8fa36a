//! The search against exhaustive search, faults of files, and writing and reading back.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::{
    PiperChoice, PiperEdge, PiperInstance, PiperNode, PiperPlan, PiperStage, evaluate_piper_plan, place_graph,
};
use proptest::prelude::*;
use sim::status::SolveStatus;
use std::collections::{BTreeMap, BTreeSet};

const GRAPH: &str = include_str!("../../tests/piper/small.json");

fn read(text: &str) -> PiperInstance {
    PiperInstance::from_json_str(text, "graph.json").unwrap()
}

/// Reproducible pseudo-random numbers.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn one_of(&mut self, from: &[f64]) -> f64 {
        from[self.below(from.len() as u64) as usize]
    }
}

/// A small graph: layers in an order, forward edges, one or two degrees with one to three choices.
fn random(seed: u64) -> PiperInstance {
    let mut r = Numbers(seed);
    let layers = 2 + r.below(3) as i64;
    let mut edges = Vec::new();
    for source in 0..layers {
        for destination in source + 1..layers {
            if destination == source + 1 && r.below(4) > 0 || r.below(5) == 0 {
                edges.push(PiperEdge { source, destination, bytes: r.one_of(&[0.0, 1e6, 5e6, 2e7]) });
            }
        }
    }
    // About half of the graphs have equal layers, because the search gathers equal layers into classes.
    let alike = r.below(2) == 0;
    let mut first: Option<BTreeMap<u32, Vec<PiperChoice>>> = None;
    let nodes = (0..layers)
        .map(|id| {
            let mut choices =
                if let (true, Some(choices)) = (alike, &first) { choices.clone() } else { choices(&mut r, layers) };
            first.get_or_insert_with(|| choices.clone());
            for (t, list) in &mut choices {
                for choice in list {
                    let sync = |r: &mut Numbers| if *t == 1 { 0.0 } else { r.one_of(&[0.0, 1e6, 1e7]) };
                    choice.sync_forward =
                        edges.iter().filter(|e| e.destination == id).map(|e| (e.source, sync(&mut r))).collect();
                    choice.sync_backward =
                        edges.iter().filter(|e| e.source == id).map(|e| (e.destination, sync(&mut r))).collect();
                }
            }
            PiperNode { id, name: None, choices }
        })
        .collect();
    PiperInstance {
        max_memory_per_device: r.one_of(&[6e8, 1e9, 2e9, 4e9]),
        max_devices: 1 + r.below(4) as u32,
        bandwidth: 1e9,
        micro_batches: [1, 2, 4, 6][r.below(4) as usize],
        nodes,
        edges,
    }
}

fn choices(r: &mut Numbers, layers: i64) -> BTreeMap<u32, Vec<PiperChoice>> {
    // Graphs of four layers have one degree, because an exhaustive search over two degrees would take minutes.
    let degrees: &[u32] = [&[1][..], &[1, 2], &[2]][if layers > 3 { 0 } else { r.below(3) as usize }];
    let mut choice = |t: u32, l: u64| PiperChoice {
        id: format!("way {l}"),
        time_per_sample: (10.0 + r.below(30) as f64) * 1e-3 / f64::from(t),
        parameter_bytes: r.one_of(&[0.0, 1e8, 4e8]),
        memory_a: r.one_of(&[1e7, 1e8, 3e8]),
        memory_b: r.one_of(&[1e8, 4e8]),
        sync_forward: BTreeMap::new(),
        sync_backward: BTreeMap::new(),
    };
    degrees.iter().map(|&t| (t, (0..1 + u64::from(t)).map(|l| choice(t, l)).collect())).collect()
}

/// The least time of all plans, by exhaustive search.
fn by_trying(instance: &PiperInstance) -> Option<f64> {
    let ids: Vec<i64> = instance.nodes.iter().map(|node| node.id).collect();
    let mut best = None;
    extend(instance, &ids, &mut PiperPlan { stages: Vec::new() }, &mut best);
    best
}

fn extend(instance: &PiperInstance, left: &[i64], plan: &mut PiperPlan, best: &mut Option<f64>) {
    if left.is_empty() {
        let evaluation = evaluate_piper_plan(instance, plan);
        if evaluation.faults.is_empty() {
            *best = Some(best.map_or(evaluation.time_per_sample, |b: f64| b.min(evaluation.time_per_sample)));
        }
        return;
    }
    for chosen in 1_u32..1 << left.len() {
        let (nodes, rest): (Vec<i64>, Vec<i64>) = {
            let inside = |i: &usize| chosen >> i & 1 == 1;
            let (a, b): (Vec<usize>, Vec<usize>) = (0..left.len()).partition(inside);
            (a.into_iter().map(|i| left[i]).collect(), b.into_iter().map(|i| left[i]).collect())
        };
        for t in [1, 2] {
            for d in (1..=instance.micro_batches).filter(|d| instance.micro_batches.is_multiple_of(*d)) {
                for choices in assignments(instance, &nodes, t) {
                    plan.stages.push(PiperStage {
                        nodes: nodes.clone(),
                        data_parallel: d,
                        tensor_parallel: t,
                        choices,
                    });
                    if plan.device_count() <= u64::from(instance.max_devices) {
                        extend(instance, &rest, plan, best);
                    }
                    plan.stages.pop();
                }
            }
        }
    }
}

fn assignments(instance: &PiperInstance, nodes: &[i64], t: u32) -> Vec<BTreeMap<i64, String>> {
    let mut all = vec![BTreeMap::new()];
    for id in nodes {
        let node = instance.nodes.iter().find(|node| node.id == *id).unwrap();
        let list = node.choices.get(&t).map(Vec::as_slice).unwrap_or_default();
        all = all
            .into_iter()
            .flat_map(|map: BTreeMap<i64, String>| {
                list.iter().map(move |choice| {
                    let mut map = map.clone();
                    map.insert(*id, choice.id.clone());
                    map
                })
            })
            .collect();
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn no_plan_of_a_small_graph_is_faster(seed in any::<u64>()) {
        let instance = random(seed);
        let solution = place_graph(&instance).unwrap();
        match (by_trying(&instance), solution.time_per_sample) {
            (Some(best), Some(found)) => {
                prop_assert!((found / best - 1.0).abs() <= 1e-9, "{found} against {best}: {:?}", solution.plan);
                prop_assert_eq!(solution.status, SolveStatus::Optimal);
                let evaluation = evaluate_piper_plan(&instance, &solution.plan.unwrap());
                prop_assert!(evaluation.faults.is_empty(), "{:?}", evaluation.faults);
            }
            (None, None) => {
                let infeasible = matches!(solution.status, SolveStatus::Infeasible { .. });
                prop_assert!(infeasible);
            }
            (best, found) => prop_assert!(false, "{best:?} by trying, {found:?} found"),
        }
    }

    #[test]
    fn what_is_written_is_read_back(seed in any::<u64>()) {
        let instance = random(seed);
        prop_assert_eq!(read(&instance.to_json_string()), instance);
    }
}

#[test]
fn the_random_graphs_are_of_every_kind() {
    let (mut chains, mut branches, mut fitting, mut several) = (0, 0, 0, 0);
    for seed in 0..200 {
        let instance = random(seed * 7919);
        let solution = place_graph(&instance).unwrap();
        if solution.cuts == instance.nodes.len() + 1 {
            chains += 1
        } else {
            branches += 1
        }
        fitting += usize::from(solution.plan.is_some());
        several += usize::from(solution.plan.is_some_and(|plan| plan.stages.len() > 1));
    }
    assert!(
        chains > 20 && branches > 20 && (20..180).contains(&fitting) && several > 20,
        "{chains} {branches} {fitting} {several}"
    );
}

#[test]
fn piper_s_terms_are_those_of_its_formulas() {
    let instance = read(GRAPH);
    let stage = |nodes: &[i64], d, t, choice: &str| PiperStage {
        nodes: nodes.to_vec(),
        data_parallel: d,
        tensor_parallel: t,
        choices: nodes.iter().map(|id| (*id, choice.to_owned())).collect(),
    };
    let plan = PiperPlan { stages: vec![stage(&[0, 1], 2, 1, "vanilla"), stage(&[2, 3], 1, 2, "activation recomp")] };
    let evaluation = evaluate_piper_plan(&instance, &plan);
    assert!(evaluation.faults.is_empty(), "{:?}", evaluation.faults);
    let near = |got: f64, expected: f64| assert!((got / expected - 1.0).abs() < 1e-12, "{got} {expected}");
    let [first, second] = evaluation.stages[..] else { panic!("{evaluation:?}") };
    // The stage has two copies, each with half of the samples. The edge of 1 MB is crossed forward and backward.
    near(first.computing, (0.010 + 0.020) / 2.0);
    near(first.edges, 2.0 * 1e6 / 2.0 / 10e9);
    near(first.gradients, 4.0 * 0.5 * (2e8 + 4e8) / 16.0 / 10e9);
    // This stage has 2 copies and the stage after it has 1, so ceil(3 / 2) = 2 micro-batches are in flight.
    near(first.memory, 2.0 * (1e8 + 2e8) + 4e8 + 8e8);
    near(second.computing, 0.014 + 0.008);
    near(second.edges, 2.0 * (1e6 + 1e6) / 10e9);
    assert!(second.gradients == 0.0);
    near(second.memory, (2e7 + 1e7) + (6e8 + 3e8));
    near(evaluation.time_per_sample, first.time_per_sample);
}

#[test]
fn the_verifier_names_every_broken_rule() {
    let instance = read(GRAPH);
    let solution = place_graph(&instance).unwrap();
    let plan = solution.plan.unwrap();
    let faults = |change: &dyn Fn(&mut PiperPlan)| {
        let mut plan = plan.clone();
        change(&mut plan);
        evaluate_piper_plan(&instance, &plan).faults.join("; ")
    };
    assert_eq!(faults(&|_| ()), "");
    assert!(faults(&|p| p.stages.reverse()).contains("leads back") || plan.stages.len() == 1);
    assert!(faults(&|p| p.stages[0].data_parallel = 3).contains("do not divide 16 micro-batches"));
    assert!(faults(&|p| p.stages[0].data_parallel = 16).contains("devices are used of"));
    assert!(faults(&|p| p.stages[0].nodes.truncate(0)).contains("is in no stage"));
    assert!(faults(&|p| p.stages[0].choices.clear()).contains("has no such choice"));
}

#[test]
fn what_fits_nowhere_says_what_is_lacking() {
    let tight = PiperInstance { max_memory_per_device: 3e8, ..read(GRAPH) };
    let why = place_graph(&tight).unwrap().status.to_string();
    assert!(
        why.starts_with("infeasible: layer 1 needs ") && why.contains("even alone, a device has 300000000"),
        "{why}"
    );
    let few = PiperInstance { max_memory_per_device: 1.0e9, max_devices: 1, ..read(GRAPH) };
    let why = place_graph(&few).unwrap().status.to_string();
    assert!(why.contains("no split into stages fits 1 such devices"), "{why}");
}

#[test]
fn branches_that_run_side_by_side_are_refused_with_the_cure() {
    let node = |id| PiperNode { id, name: None, choices: read(GRAPH).nodes[0].choices.clone() };
    let wide = PiperInstance { nodes: (0..13).map(node).collect(), edges: Vec::new(), ..read(GRAPH) };
    let error = place_graph(&wide).unwrap_err().to_string();
    assert!(error.starts_with("the graph of 13 layers and 0 edges can be cut in more than 4096 ways: "), "{error}");
}

#[test]
fn slower_links_fewer_devices_and_less_memory_never_help() {
    let time = |instance: PiperInstance| place_graph(&instance).unwrap().time_per_sample.unwrap_or(f64::INFINITY);
    let whole = time(read(GRAPH));
    assert!(time(PiperInstance { bandwidth: 1e9, ..read(GRAPH) }) >= whole);
    let mut last = f64::INFINITY;
    for devices in 1..=8 {
        let now = time(PiperInstance { max_devices: devices, ..read(GRAPH) });
        assert!(now <= last, "{devices}: {now} {last}");
        last = now;
    }
    assert!(time(PiperInstance { max_memory_per_device: 1.2e9, ..read(GRAPH) }) >= whole);
}

#[test]
fn faults_of_a_file_name_key_value_limit_and_cure() {
    let error = |from: &str, to: &str| {
        assert!(GRAPH.contains(from), "{from}");
        PiperInstance::from_json_str(&GRAPH.replacen(from, to, 1), "g.json").unwrap_err().to_string()
    };
    let cases: BTreeSet<(&str, &str, &str)> = BTreeSet::from([
        (
            "\"maxDevices\": 4",
            "\"maxDevices\": -4",
            "maxDevices = -4: must be a whole number between 1 and 10000; correct it",
        ),
        ("\"maxDevices\": 4,", "", "maxDevices = nothing: this key is needed; add it"),
        (
            "\"bandwidth\": 10e9",
            "\"bandwidth\": \"fast\"",
            "bandwidth = \"fast\": must be a number; write it without quotes",
        ),
        (
            "\"bandwidth\": 10e9",
            "\"bandwith\": 10e9",
            "bandwith = 10000000000.0: is not a key; there are maxMemoryPerDevice, ",
        ),
        (
            "\"timePerSample\": 0.01",
            "\"timePerSample\": -0.01",
            "nodes[0].TMPCs.1[0].timePerSample = -0.01: must lie between 0 and 1e30",
        ),
        ("\"id\": 1,", "\"id\": 0,", "nodes[1].id = 0: another layer has this number; give every layer its own"),
        ("\"destId\": 1", "\"destId\": 9", "edges[0].destId = 9: no layer has this number; name a layer of `nodes`"),
        (
            "\"communicationCost\": 2e6",
            "\"communicationCost\": -1",
            "edges[0].communicationCost = -1: must lie between 0 and 1e30",
        ),
        (
            "\"syncTimeBw\": {\"1\": 0.0}",
            "\"syncTimeBw\": {\"3\": 0.0}",
            "nodes[0].TMPCs.1[0].syncTimeBw.3 = 0: there is no such edge",
        ),
        ("\"id\": \"vanilla\"", "\"id\": \"\"", "nodes[0].TMPCs.1[0].id = \"\": must not be empty; name it"),
        (
            "\"TMPCs\": {\"1\"",
            "\"TMPCs\": {\"zero\"",
            "nodes[0].TMPCs.zero = its key: a tensor-parallel degree is a whole number",
        ),
    ]);
    for (from, to, expected) in cases {
        let found = error(from, to);
        assert!(found.starts_with(&format!("g.json: {expected}")), "{found}");
    }
}

#[test]
fn circles_are_named_and_refused() {
    let mut circle = read(GRAPH);
    circle.edges.push(PiperEdge { source: 3, destination: 0, bytes: 0.0 });
    for (id, sync) in [(0, true), (3, false)] {
        let node = circle.nodes.iter_mut().find(|node| node.id == id).unwrap();
        for choice in node.choices.values_mut().flatten() {
            if sync {
                choice.sync_forward.insert(3, 0.0)
            } else {
                choice.sync_backward.insert(0, 0.0)
            };
        }
    }
    let error = PiperInstance::from_json_str(&circle.to_json_string(), "g.json").unwrap_err().to_string();
    assert_eq!(error, "g.json: edges = layers 0 -> 1 -> 2 -> 3 -> 0: must not lead in a circle; remove an edge of it");
    // A cycle is reported with and without sync times; so is an edge from a layer to itself.
    let mut bare = read(GRAPH);
    bare.edges.push(PiperEdge { source: 3, destination: 0, bytes: 0.0 });
    assert_eq!(PiperInstance::from_json_str(&bare.to_json_string(), "g.json").unwrap_err().to_string(), error);
    let mut own = read(GRAPH);
    own.edges.push(PiperEdge { source: 2, destination: 2, bytes: 0.0 });
    let error = PiperInstance::from_json_str(&own.to_json_string(), "g.json").unwrap_err().to_string();
    let at = own.edges.len() - 1;
    assert_eq!(error, format!("g.json: edges[{at}] = layer 2 to itself: must lead to another layer; remove it"));
}
