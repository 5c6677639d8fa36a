//! Simulated annealing over assignments of ranks to devices.

use super::state::{MappingState, RankMove};
use crate::random::SeededRandom;

/// The first temperature, as a fraction of the time above the bound, and the last, as a fraction of the first.
const HOT: f64 = 0.1;
const COLD: f64 = 1e-4;
/// Limit on the length of a reversed run, in blocks.
const RUN: u64 = 6;

/// The best assignment of a run, its seconds, and the number of moves tried.
#[derive(Debug)]
pub(super) struct AnnealedMapping {
    pub time: f64,
    pub devices: Vec<u32>,
    pub moves: u64,
}

/// Improves `state` by up to `moves` moves. The result is never slower than the start. Stops early if the bound is
/// reached.
pub(super) fn anneal_mapping(mut state: MappingState<'_>, seed: u64, moves: u32, bound: f64) -> AnnealedMapping {
    state.weigh_lines();
    let mut best = AnnealedMapping { time: state.step_seconds(), devices: state.devices.clone(), moves: 0 };
    let mut sizes = block_sizes(state.devices.len() as u64, state.unit_size().into());
    let mut ranks: Vec<usize> = (0..state.devices.len()).collect();
    if state.fabric().has_places_inside_units() {
        // Blocks of ranks on one unit stay together.
        sizes.retain(|size| size.is_multiple_of(state.unit_size().into()));
        ranks.sort_by_key(|rank| state.devices[*rank]);
    }
    let mut random = SeededRandom(seed);
    let mut energy = state.annealing_energy();
    let hot = (best.time - bound).max(0.0) * HOT;
    while best.moves < u64::from(moves) && best.time > bound * (1.0 + 1e-12) {
        let temperature = hot * COLD.powf(best.moves as f64 / f64::from(moves));
        best.moves += 1;
        let changes = propose_move(&mut random, &state, &ranks, &sizes);
        if changes.is_empty() {
            continue;
        }
        let now = |change: &RankMove| RankMove { device: state.devices[change.rank], ..*change };
        let before: Vec<RankMove> = changes.iter().map(now).collect();
        state.assign_ranks(&changes);
        let tried = state.annealing_energy();
        if tried <= energy || random.next_unit() < ((energy - tried) / temperature).exp() {
            energy = tried;
            let time = state.step_seconds();
            if time < best.time {
                best.time = time;
                best.devices.clone_from(&state.devices);
            }
        } else {
            state.revert_assignment(&before);
        }
    }
    best
}

/// Sizes of blocks of ranks that move together: sizes that divide the ranks and are divisors or multiples of a unit.
fn block_sizes(ranks: u64, unit: u64) -> Vec<u64> {
    (1..=ranks / 2)
        .filter(|b| ranks.is_multiple_of(*b) && (b.is_multiple_of(unit) || unit.is_multiple_of(*b)))
        .collect()
}

/// Proposes new devices for some ranks: swaps two blocks of `order`, or reverses a run of blocks. Empty if no rank
/// would change its unit.
fn propose_move(random: &mut SeededRandom, state: &MappingState<'_>, order: &[usize], sizes: &[u64]) -> Vec<RankMove> {
    if sizes.is_empty() {
        return Vec::new();
    }
    let size = sizes[random.next_below(sizes.len() as u64) as usize];
    let blocks = order.len() as u64 / size;
    let (first, reverse) = (random.next_below(blocks), random.next_below(2) == 0);
    let pairs: Vec<(u64, u64)> = if reverse && blocks > 2 {
        let run = 2 + random.next_below(RUN.min(blocks - 1));
        (0..run / 2).map(|i| ((first + i) % blocks, (first + run - 1 - i) % blocks)).filter(|(a, b)| a != b).collect()
    } else {
        vec![(first, (first + 1 + random.next_below(blocks - 1)) % blocks)]
    };
    let mut changes = Vec::new();
    for (a, b) in pairs {
        for i in 0..size {
            let (x, y) = (order[(a * size + i) as usize], order[(b * size + i) as usize]);
            changes.push(RankMove { rank: x, device: state.devices[y] });
            changes.push(RankMove { rank: y, device: state.devices[x] });
        }
    }
    let unit = state.unit_size();
    let stays = |change: &RankMove| state.devices[change.rank] / unit == change.device / unit;
    if changes.iter().all(stays) { Vec::new() } else { changes }
}
