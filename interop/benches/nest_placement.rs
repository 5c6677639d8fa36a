//! Time of the placement search on NEST's instance files, next to the time of NEST's own run as published.
//!
//! `cargo bench -p coplace-interop --bench nest_placement`. For each instance it prints the first and the fastest of a
//! few searches, in milliseconds, without reading the file. `-- FOLDER` takes the instances of another folder.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use coplace_interop::nest::{self, NestInstance};
use std::hint::black_box;
use std::time::Instant;

const RUNS: usize = 15;

fn main() {
    let folder = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let folder = folder.unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/reference/nest").into());
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    println!("{:<24} {:>9} {:>9} {:>9}", "instance", "first_ms", "best_ms", "nest_s");
    for path in &files {
        let name = path.file_stem().unwrap().to_string_lossy();
        let instance = NestInstance::from_json_str(&std::fs::read_to_string(path).unwrap(), &name).unwrap();
        let times: Vec<f64> = (0..RUNS)
            .map(|_| {
                let start = Instant::now();
                black_box(nest::place_nest_chain(black_box(&instance))).unwrap();
                start.elapsed().as_secs_f64() * 1e3
            })
            .collect();
        let best = times.iter().copied().fold(f64::INFINITY, f64::min);
        let published = instance.record.nest_wall_seconds.map_or_else(|| "-".to_owned(), |s| format!("{s:.0}"));
        println!("{name:<24} {:>9.3} {best:>9.3} {published:>9}", times[0]);
    }
}
