#![allow(clippy::unwrap_used)]
use super::*;
use search::design::{DecidedDesigns, PartDecision};
use search::runner::{BoundSource, DecisionCounts};

fn facts_of(part: u32) -> PartFacts {
    PartFacts::for_part("0123abcd".into(), crate::run::record::example_question(), 0, Shard { part, of: 2 })
}

fn point(id: usize, first: f64, second: f64) -> FrontPoint {
    FrontPoint { costs: [first, 0.0], value: second, id }
}

fn found() -> PartAnswer {
    let pruned = PartDecision::Pruned { bound: f64::INFINITY, by: 7, shown: BoundSource::Plans };
    PartAnswer {
        decided: vec![(DecidedDesigns::One(7), PartDecision::Evaluated(0.1 + 0.2)), (DecidedDesigns::One(3), pruned)],
        front: vec![point(7, 1.0, 0.1 + 0.2)],
        heard: Vec::new(),
        lower_bound: Some(0.1 + 0.2),
        counts: DecisionCounts::default(),
    }
}

#[test]
fn parts_are_read_as_they_were_written_and_a_lost_or_damaged_one_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let all = [at("2"), at("1"), at("none")];
    assert!(SearchParts::open_all(&all).unwrap_err().to_string().contains("no directory is given"));
    for part in [1, 2] {
        std::fs::create_dir(at(&part.to_string())).unwrap();
    }
    write_part(&at("2"), &facts_of(2), &found()).unwrap();
    let lost = SearchParts::open_all(&all).unwrap_err().to_string();
    assert!(
        lost.contains("1 of 2 parts: none of the directories holds 1/2; run it with --shard 1/2, and merge again"),
        "{lost}"
    );
    write_part(&at("1"), &PartFacts { seconds: 2.5, ..facts_of(1) }, &found()).unwrap();
    let parts = SearchParts::open_all(&all).unwrap();
    assert_eq!((parts.answers, parts.seconds), (vec![found(), found()], 2.5));
    let other = PartFacts { question: "ffff0000".into(), ..facts_of(1) };
    write_part(&at("1"), &other, &found()).unwrap();
    assert!(SearchParts::open_all(&all).unwrap_err().to_string().contains("hold parts of different searches"));
    write_part(&at("1"), &facts_of(1), &found()).unwrap();
    let mut bytes = std::fs::read(at("1").join(DECIDED)).unwrap();
    bytes[3] ^= 1;
    std::fs::write(at("1").join(DECIDED), bytes).unwrap();
    assert!(SearchParts::open_all(&all).unwrap_err().to_string().contains("decided.bin: its SHA-256 digest is"));
}

#[test]
fn parts_tell_each_other_exactly_and_only_those_of_the_same_search() {
    let dir = tempfile::tempdir().unwrap();
    let best = dir.path().join("best");
    let [mut one, mut two] = [1, 2].map(|part| BestKnown::new(&best, &facts_of(part)).unwrap());
    let own = [point(5, 1.0 / 3.0, 0.1 + 0.2)];
    assert_eq!(one.exchange_results(&own), []);
    assert_eq!(two.exchange_results(&[]), own);
    // At its end, a part writes even within the pause after its last exchange.
    one.send_last(&[own[0], point(4, 2.0, 0.25)]);
    assert_eq!(BestKnown::new(&best, &facts_of(2)).unwrap().exchange_results(&[]).len(), 2);
    // Within the pause after its last exchange, a part reads nothing.
    assert_eq!(two.exchange_results(&[]), []);
    let other = PartFacts { question: "ffff0000".into(), ..facts_of(2) };
    assert_eq!(BestKnown::new(&best, &other).unwrap().exchange_results(&[]), []);
    std::fs::write(best.join("1-of-2.json"), "{\"facts\"").unwrap();
    assert_eq!(BestKnown::new(&best, &facts_of(2)).unwrap().exchange_results(&[]), []);
}
