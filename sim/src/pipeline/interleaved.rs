//! The time of interleaved 1F1B by a recurrence.

use super::StageWork;
use crate::units::Seconds;

/// Returns the exact time of the passes of interleaved 1F1B with `chunks` chunks per device, for any virtual stages and
/// sends. It equals the event simulation's. The recurrence takes `2 p (m chunks + p chunks)` steps. `m` must be a
/// multiple of the devices.
///
/// With `w = 2 (p - 1 - k) + (chunks - 1) p` device `k` runs its forward pass `w + n` before its backward pass `n`,
/// both counted in its own order. Let it run forward pass `t - k` and then backward pass `t - k - w` in round `t`. The
/// input of a pass then comes from the previous round. A neighbour supplies the pass with the same number. If the way
/// wraps around, the device at the other end supplies the pass `p` before. So the ends of each device's latest pass in
/// both directions are enough.
#[must_use]
pub fn interleaved_exact_time(stages: &[StageWork], sends: &[Seconds], chunks: u32, m: u32) -> Seconds {
    let chunks = (chunks as usize).max(1);
    let p = stages.len() / chunks;
    let Some(last) = p.checked_sub(1) else { return Seconds::ZERO };
    let passes = m as usize * chunks;
    let send = |k: usize| sends.get(k).map_or(0.0, |c| c.0);
    // The first virtual stage of the chunk of each forward pass; backward passes go through the chunks in reverse.
    let starts: Vec<usize> = (0..passes).map(|i| i / p % chunks * p).collect();
    let (mut free, mut forward_end, mut backward_end) = (vec![0.0_f64; p], vec![0.0_f64; p], vec![0.0_f64; p]);
    for round in 0..passes + 2 * last + stages.len() - p {
        // Later devices come first, because they need the previous round's values of earlier ones.
        let around = forward_end[last];
        for k in (0..p.min(round + 1)).rev() {
            let Some(start) = starts.get(round - k) else { break };
            let stage = start + k;
            let end = if k == 0 { around } else { forward_end[k - 1] };
            let arrival = if stage == 0 { 0.0 } else { end + send(stage - 1) };
            free[k] = free[k].max(arrival) + stages[stage].forward.0;
            forward_end[k] = free[k];
        }
        let around = backward_end[0];
        let ahead = 2 * last + stages.len() - p;
        for k in ahead.saturating_sub(round)..p {
            let Some(start) = starts.get(round + k - ahead) else { break };
            let stage = stages.len() - p - start + k;
            let end = if k == last { around } else { backward_end[k + 1] };
            let arrival = if stage + 1 == stages.len() { 0.0 } else { end + send(stage) };
            free[k] = free[k].max(arrival) + stages[stage].backward.0;
            backward_end[k] = free[k];
        }
    }
    Seconds(free.iter().copied().fold(0.0, f64::max))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::pipeline::{Pipeline, PipelineSchedule, PipelineStage};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn the_recurrence_is_the_simulation(
            (p, chunks, rounds) in (1_u32..8, 2_u32..6, 1_u32..6),
            passes in prop::collection::vec((0_u32..9, 0_u32..9, 0_u32..5), 40),
        ) {
            let n = (p * chunks) as usize;
            let time = |x: u32| Seconds(f64::from(x) / 2.0);
            let work: Vec<StageWork> =
                passes[..n].iter().map(|(f, b, _)| StageWork { forward: time(*f), backward: time(*b) }).collect();
            let stage = |w: &StageWork| PipelineStage { forward: w.forward, backward_input: w.backward, ..PipelineStage::default() };
            // On one device nothing is sent.
            let sends: Vec<Seconds> = passes[1..n].iter().map(|(.., c)| if p > 1 { time(*c) } else { Seconds::ZERO }).collect();
            let schedule = PipelineSchedule::Interleaved { chunks };
            let uniform = Pipeline::with_uniform_stages(PipelineStage::default(), n, p * rounds, schedule);
            let pipeline = Pipeline { stages: work.iter().map(stage).collect(), sends: sends.clone(), ..uniform };
            let simulated = pipeline.simulate_without_records().unwrap().passes_end;
            prop_assert_eq!(interleaved_exact_time(&work, &sends, chunks, p * rounds), simulated);
        }
    }
}
