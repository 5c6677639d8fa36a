//! Time of the placement search on PHAZE's instance files, next to the time of PHAZE's own search.
//!
//! `cargo bench -p coplace-interop --bench phaze_placement`. For each instance it prints the fastest of a few batches,
//! in microseconds: the whole of `place_chain` with the plan and its evaluation, without reading the file. `-- FOLDER`
//! takes the instances of another folder.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use coplace_interop::phaze::{self, PhazeInstance, Recorded};
use std::hint::black_box;
use std::time::Instant;

/// Instances of at least this size count in the target, a geometric mean.
const LARGE: (usize, usize) = (40, 256);
const BATCHES: usize = 15;
const RUNS_PER_BATCH: usize = 100;

fn geometric_mean(ratios: &[f64]) -> f64 {
    (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp()
}

fn microseconds(instance: &PhazeInstance) -> (f64, f64) {
    let start = Instant::now();
    black_box(phaze::place_chain(black_box(instance)));
    let first = start.elapsed().as_secs_f64();
    let batch = || {
        let start = Instant::now();
        for _ in 0..RUNS_PER_BATCH {
            black_box(phaze::place_chain(black_box(instance)));
        }
        start.elapsed().as_secs_f64() / RUNS_PER_BATCH as f64
    };
    let best = (0..BATCHES).map(|_| batch()).fold(f64::INFINITY, f64::min);
    (best * 1e6, first * 1e6)
}

fn main() {
    let folder = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let folder = folder.unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/reference/phaze/placement").into());
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    println!(
        "{:<20} {:>6} {:>7} {:>9} {:>9} {:>9} {:>9}",
        "instance", "layers", "devices", "first_us", "best_us", "phaze_us", "ratio"
    );
    let (mut all, mut large) = (Vec::new(), Vec::new());
    for path in files.iter().filter(|path| path.extension().is_some_and(|extension| extension == "json")) {
        let instance = PhazeInstance::read_file(path).unwrap();
        let recorded = Recorded::from_json_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let phaze = recorded.and_then(|recorded| recorded.phaze_seconds).unwrap_or(f64::NAN) * 1e6;
        let (best, first) = microseconds(&instance);
        let ratio = phaze / best;
        all.push(ratio);
        if instance.layers() >= LARGE.0 && instance.devices() >= LARGE.1 {
            large.push(ratio);
        }
        let name = path.file_stem().unwrap().to_string_lossy();
        println!(
            "{name:<20} {:>6} {:>7} {first:>9.1} {best:>9.2} {phaze:>9.0} {ratio:>9.0}",
            instance.layers(),
            instance.devices()
        );
    }
    println!("geometric mean of the ratios, all {} instances: {:.0}", all.len(), geometric_mean(&all));
    println!(
        "geometric mean, {} instances of {LARGE:?} layers and devices or more: {:.0}",
        large.len(),
        geometric_mean(&large)
    );
}
