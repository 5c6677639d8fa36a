//! Waves that go on where the last one stopped, against one that goes through everything.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::bounds::{Relation, chain_tails, only_across};
use super::list::{Exclusive, list_schedule};
use super::modes::tests::problem;
use super::piece;
use super::search::{Aim, Exploration};
use super::state::Searcher;

#[test]
fn narrow_waves_end_where_one_wide_wave_does() {
    let mut most = 0;
    for seed in 0..1_000 {
        for cut in piece::whole(&problem(seed)) {
            let piece = &cut.piece;
            let searcher = Searcher::new(piece, only_across(piece, &Relation::of(piece)));
            let listed = list_schedule(piece, &chain_tails(piece), Exclusive::Alone).makespan + 1;
            let wide = Exploration::new(&searcher).wave(listed, usize::MAX, Aim::Bounds, u64::MAX);
            let optimum = wide.found.map_or(listed, |found| found.makespan);
            assert_eq!(wide.lower_bound, optimum, "seed {seed}");
            let mut narrow = Exploration::new(&searcher);
            let (mut best, mut waves) = (listed, 0);
            let width = 1 + seed as usize % 4;
            let budget = if seed % 3 == 0 { 1 + seed % 7 } else { u64::MAX };
            loop {
                let aim = if waves % 2 == 0 { Aim::Schedules } else { Aim::Bounds };
                let wave = narrow.wave(best, width, aim, budget);
                best = wave.found.map_or(best, |found| found.makespan);
                waves += 1;
                assert!(wave.lower_bound <= optimum && optimum <= best, "seed {seed}: {} {optimum} {best}", wave.lower_bound);
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
