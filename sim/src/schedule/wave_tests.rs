//! Narrow waves that continue where the last one stopped, against one wave over the whole space.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::bounds::{PrecedenceSets, chain_tails, find_only_across};
use super::list::{ExclusivePolicy, list_schedule};
use super::piece;
use super::problem::{Cores, Exclusivity, Operator, OperatorKind, Pairing, Problem};
use super::search::Exploration;
use super::state::Searcher;

/// Draws a number below `below` from a small generator (`SplitMix64`).
fn draw(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (z ^ (z >> 29)) % below
}

fn problem(seed: u64) -> Problem {
    let mut state = seed;
    let mut draw = |below: u64| draw(&mut state, below);
    let (links, operators) = (draw(2) as u32, 6 + draw(8));
    let cores = Cores {
        tensor_cores: 1 + draw(3) as u32,
        vector_cores: 1 + draw(3) as u32,
        network_links: links,
        pairing: if draw(2) == 0 { Pairing::AnyPair } else { Pairing::SameIndex },
        exclusivity: if draw(2) == 0 { Exclusivity::AllCores } else { Exclusivity::OwnKind },
    };
    let mut list = Vec::new();
    let mut edges = Vec::new();
    for i in 0..operators as u32 {
        let kind = match draw(8) {
            0 | 1 => OperatorKind::TensorVector,
            2..5 => OperatorKind::Tensor,
            5 | 6 => OperatorKind::Vector,
            _ if links > 0 => OperatorKind::Network,
            _ => OperatorKind::Vector,
        };
        let latency = 2 + draw(60);
        let across = latency.div_ceil(3) + draw(latency / 2 + 1);
        let exclusive_latency = (kind != OperatorKind::Network).then_some(across);
        list.push(Operator { kind, latency, exclusive_latency });
        edges.extend((0..i).filter(|_| draw(5) == 0).map(|before| (before, i)));
    }
    Problem::new(cores, list, edges).unwrap()
}

#[test]
fn narrow_waves_end_where_one_wide_wave_does() {
    let mut most = 0;
    for seed in 0..1_000 {
        for cut in piece::as_one_piece(&problem(seed)) {
            let piece = &cut.piece;
            let searcher = Searcher::new(piece, find_only_across(piece, &PrecedenceSets::of_piece(piece)));
            let listed = list_schedule(piece, &chain_tails(piece), ExclusivePolicy::Alone).makespan + 1;
            let wide = Exploration::new(&searcher).search_wave(listed, usize::MAX, u64::MAX);
            let optimum = wide.found.map_or(listed, |found| found.makespan);
            assert_eq!(wide.lower_bound, optimum, "seed {seed}");
            let mut narrow = Exploration::new(&searcher);
            let (mut best, mut waves) = (listed, 0);
            let width = 1 + seed as usize % 4;
            let budget = if seed % 3 == 0 { 1 + seed % 7 } else { u64::MAX };
            loop {
                let wave = narrow.search_wave(best, width, budget);
                best = wave.found.map_or(best, |found| found.makespan);
                waves += 1;
                assert!(
                    wave.lower_bound <= optimum && optimum <= best,
                    "seed {seed}: {} {optimum} {best}",
                    wave.lower_bound
                );
                if wave.lower_bound >= best {
                    break;
                }
                assert!(waves < 100_000, "seed {seed}");
            }
            assert_eq!(best, optimum, "seed {seed} after {waves} waves");
            most = most.max(waves);
        }
    }
    assert!(most > 50, "{most}");
}
