//! Solves one stage exactly: selects a choice for each of its layers.
//!
//! Layers of a class are equal, so only the number of layers per option matters. Classes are added one after the other.
//! Partial solutions are kept only if they are Pareto-optimal in time and memory, and can still end within both limits.
//! At the end, the fastest one is the exact solution of the multiple-choice knapsack.

use super::prepared::{ClassOption, LayerClass, least_stage_memory};

/// Limit on partial solutions. Equal layers make few. A stage with more is not solved exactly, and widens the bounds of
/// the answer.
const MOST_WAYS: usize = 50_000;

/// Constants of every stage.
#[derive(Debug, Clone, Copy)]
pub(super) struct StageContext {
    /// Copies of the stage.
    pub copies: f64,
    /// Bytes per second.
    pub bandwidth: f64,
    /// Micro-batches of a batch.
    pub micro_batches: f64,
    /// Bytes of a device.
    pub memory: f64,
    /// True if a stage with too many partial solutions counts as fitting at its fastest (for a lower bound); otherwise
    /// it counts as not fitting.
    pub optimistic: bool,
}

impl StageContext {
    /// Returns the seconds per micro-batch that an option adds to the stage.
    fn seconds_of_option(&self, way: &ClassOption) -> f64 {
        let d = self.copies;
        (way.time + way.border / self.bandwidth) / d
            + 4.0 * (d - 1.0) / d * way.parameters / self.micro_batches / self.bandwidth
    }
}

/// The fastest solution of a stage.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct FastestStage {
    /// Seconds per micro-batch.
    pub time: f64,
    /// Per class, how many of its layers take each option.
    pub taken: Vec<Vec<u32>>,
    /// True if the solution is exact.
    pub exact: bool,
}

/// A partial solution: time, memory, and the choices behind them.
#[derive(Debug, Clone, Copy)]
struct Partial {
    time: f64,
    memory: f64,
    /// Index in the level before, and the split of this class.
    parent: u32,
    split: u32,
}

/// Returns the fastest solution with `in_flight` micro-batches in memory and at most `limit` seconds; `None` if there
/// is none. With too many partial solutions, [`StageContext::optimistic`] decides the result.
pub(super) fn fastest_stage(
    classes: &[LayerClass],
    setting: &StageContext,
    in_flight: f64,
    limit: f64,
) -> Option<FastestStage> {
    let memory_of = |way: &ClassOption| way.memory.0 * in_flight + way.memory.1;
    let quickest: Vec<usize> = classes
        .iter()
        .map(|class| {
            let key = |i: &usize| (setting.seconds_of_option(&class.options[*i]), memory_of(&class.options[*i]));
            let order = |a: &usize, b: &usize| key(a).0.total_cmp(&key(b).0).then(key(a).1.total_cmp(&key(b).1));
            (0..class.options.len()).min_by(order).unwrap_or_default()
        })
        .collect();
    let sum = |of: &dyn Fn(&ClassOption) -> f64| -> f64 {
        classes.iter().zip(&quickest).map(|(class, &i)| of(&class.options[i]) * f64::from(class.count)).sum()
    };
    let time = sum(&|way| setting.seconds_of_option(way));
    if time > limit {
        return None;
    }
    let all_quickest = |exact| {
        let take = |(class, &i): (&LayerClass, &usize)| {
            let mut taken = vec![0; class.options.len()];
            taken[i] = class.count;
            taken
        };
        Some(FastestStage { time, taken: classes.iter().zip(&quickest).map(take).collect(), exact })
    };
    if sum(&memory_of) <= setting.memory {
        return all_quickest(true);
    }
    if least_stage_memory(classes, in_flight) > setting.memory {
        return None;
    }
    match solve_knapsack(classes, setting, in_flight, limit) {
        Ok(found) => found,
        Err(TooManyChoices) if setting.optimistic => all_quickest(false),
        Err(TooManyChoices) => None,
    }
}

/// The error of more partial solutions than the limit.
pub(super) struct TooManyChoices;

/// Returns the largest number of micro-batches in flight, up to `most`, with which the stage fits and takes at most
/// `limit` seconds; 0 if none. More in flight never take less memory, so all smaller numbers fit too.
pub(super) fn most_in_flight(classes: &[LayerClass], setting: &StageContext, limit: f64, most: u32) -> u32 {
    let least_time: f64 =
        classes.iter().map(|class| least_of_class(class, &|way| setting.seconds_of_option(way))).sum();
    if least_time > limit {
        return 0;
    }
    let fits = |y: u32| stage_fits(classes, setting, f64::from(y), limit);
    if fits(most) {
        return most;
    }
    if !fits(1) {
        return 0;
    }
    let (mut fit, mut over) = (1, most);
    while over - fit > 1 {
        let middle = fit + (over - fit) / 2;
        if fits(middle) { fit = middle } else { over = middle }
    }
    fit
}

/// True if [`fastest_stage`] has an answer. The caller must know that the least time is within the limit.
fn stage_fits(classes: &[LayerClass], setting: &StageContext, in_flight: f64, limit: f64) -> bool {
    let memory_of = |way: &ClassOption| way.memory.0 * in_flight + way.memory.1;
    let of_quickest = |class: &LayerClass| {
        let key = |way: &ClassOption| (setting.seconds_of_option(way), memory_of(way));
        let better = |a: (f64, f64), b: (f64, f64)| if (b.0, b.1) < (a.0, a.1) { b } else { a };
        class.options.iter().map(key).fold((f64::INFINITY, f64::INFINITY), better).1 * f64::from(class.count)
    };
    // The quickest options meet the time limit. Usually they also fit the memory, or no options fit.
    if classes.iter().map(of_quickest).sum::<f64>() <= setting.memory {
        return true;
    }
    if least_stage_memory(classes, in_flight) > setting.memory {
        return false;
    }
    fastest_stage(classes, setting, in_flight, limit).is_some()
}

/// Returns the least value of a figure over a class's options, times the number of layers.
fn least_of_class(class: &LayerClass, of: &dyn Fn(&ClassOption) -> f64) -> f64 {
    class.options.iter().map(of).fold(f64::INFINITY, f64::min) * f64::from(class.count)
}

fn solve_knapsack(
    classes: &[LayerClass],
    setting: &StageContext,
    in_flight: f64,
    limit: f64,
) -> Result<Option<FastestStage>, TooManyChoices> {
    let memory_of = |way: &ClassOption| way.memory.0 * in_flight + way.memory.1;
    // The least time and memory of the classes still to come.
    let (mut time_left, mut memory_left) = (vec![0.0; classes.len() + 1], vec![0.0; classes.len() + 1]);
    for (i, class) in classes.iter().enumerate().rev() {
        time_left[i] = time_left[i + 1] + least_of_class(class, &|way| setting.seconds_of_option(way));
        memory_left[i] = memory_left[i + 1] + least_of_class(class, &memory_of);
    }
    let mut levels: Vec<Vec<Partial>> = vec![vec![Partial { time: 0.0, memory: 0.0, parent: 0, split: 0 }]];
    let mut splits: Vec<Vec<Vec<u32>>> = Vec::new();
    for (i, class) in classes.iter().enumerate() {
        let (of_class, parents) = (compositions(class.count, class.options.len())?, &levels[i]);
        let mut next = Vec::new();
        for (split, taken) in of_class.iter().enumerate() {
            let add = |of: &dyn Fn(&ClassOption) -> f64| -> f64 {
                taken.iter().zip(&class.options).filter(|(n, _)| **n > 0).map(|(n, way)| f64::from(*n) * of(way)).sum()
            };
            let (time, memory) = (add(&|way| setting.seconds_of_option(way)), add(&memory_of));
            for (parent, p) in parents.iter().enumerate() {
                let (time, memory) = (p.time + time, p.memory + memory);
                // Allows for rounding, because a dropped solution is never reconsidered.
                let room = 1.0 + 1e-12;
                if time + time_left[i + 1] <= limit * room && memory + memory_left[i + 1] <= setting.memory * room {
                    next.push(Partial { time, memory, parent: parent as u32, split: split as u32 });
                }
            }
            if next.len() > 4 * MOST_WAYS {
                keep_unbeaten(&mut next);
            }
        }
        keep_unbeaten(&mut next);
        if next.len() > MOST_WAYS {
            return Err(TooManyChoices);
        }
        levels.push(next);
        splits.push(of_class);
    }
    let last = levels.last().map(Vec::as_slice).unwrap_or_default();
    let fits = |p: &&Partial| p.time <= limit && p.memory <= setting.memory;
    let Some(best) = last.iter().filter(fits).min_by(|a, b| a.time.total_cmp(&b.time)) else { return Ok(None) };
    let mut taken = Vec::new();
    let mut at = *best;
    for i in (0..classes.len()).rev() {
        taken.push(splits[i][at.split as usize].clone());
        at = levels[i][at.parent as usize];
    }
    taken.reverse();
    Ok(Some(FastestStage { time: best.time, taken, exact: true }))
}

/// Keeps the Pareto-optimal solutions in time and memory.
fn keep_unbeaten(ways: &mut Vec<Partial>) {
    ways.sort_by(|a, b| a.time.total_cmp(&b.time).then(a.memory.total_cmp(&b.memory)));
    let mut least = f64::INFINITY;
    ways.retain(|way| {
        let kept = way.memory < least;
        least = least.min(way.memory);
        kept
    });
}

/// Returns all ways to distribute `count` layers over `options` options. Fails if there are too many.
fn compositions(count: u32, options: usize) -> Result<Vec<Vec<u32>>, TooManyChoices> {
    let mut all: Vec<Vec<u32>> = vec![Vec::new()];
    for option in 0..options {
        let mut next = Vec::new();
        for begun in &all {
            let left = count - begun.iter().sum::<u32>();
            let least = if option + 1 == options { left } else { 0 };
            for n in least..=left {
                next.push(begun.iter().copied().chain([n]).collect());
            }
            if next.len() > MOST_WAYS {
                return Err(TooManyChoices);
            }
        }
        all = next;
    }
    Ok(all)
}
