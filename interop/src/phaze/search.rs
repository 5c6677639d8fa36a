//! The search over tensor widths, and the arithmetic over data-parallel degrees that prunes it.
//!
//! PHAZE fills a table over (suffix, devices, stages). Here, the number of *narrow* stages replaces the devices. A
//! narrow stage has no tensor-parallel layer and takes one device instead of `t`. The number matters only in a graph
//! that mixes both kinds of layers. If all layers without tensor parallelism are at the ends of the chain, no table is
//! needed ([`super::sweep`]).
//!
//! Other widths, and widths that probes do not decide, keep a table ([`super::width`]) of the least bottleneck per
//! (suffix, stages), filled by rising number of stages. Two exact rules prune it. A stage is skipped if its load cannot
//! beat the best known time at any degree. The number of stages stops rising once a bound on the bottleneck proves that
//! more stages cannot be better.

use super::PhazePlan;
use super::degrees::{BestPlacement, DataParallelDegrees};
use super::evaluate;
use super::instance::PhazeInstance;
use super::sweep::{self, LineWidth};
use super::width::WidthSearch;

/// Returns the optimal plan and its time; `None` if no plan fits.
pub(super) fn find_optimum(instance: &PhazeInstance) -> Option<(f64, PhazePlan)> {
    let degrees = DataParallelDegrees::new(instance);
    let mut best = BestPlacement { time: f64::INFINITY, chain: 0, degree: 0, ranges: Vec::new() };
    let mut lines = Vec::with_capacity(instance.chains.len());
    // Widths that need a table. The single-stage plans of all widths come first.
    let mut tables = Vec::new();
    for (index, chain) in instance.chains.iter().enumerate() {
        if let Some(line) = LineWidth::new(instance, chain, index) {
            line.take_single_stage(&degrees, &mut best);
            lines.push(line);
        } else {
            let table = WidthSearch::new(instance, chain, index, &degrees);
            table.take_single_stage(&mut best);
            tables.push(table);
        }
    }
    sweep::sweep_widths(&mut lines, &degrees, instance.micro_batches, &mut best);
    let undecided = lines.iter().filter_map(LineWidth::undecided_width);
    tables.extend(undecided.map(|index| WidthSearch::new(instance, &instance.chains[index], index, &degrees)));
    // The most promising width comes first, because its plan prunes the search at the others.
    tables.sort_by(|a, b| a.promise.total_cmp(&b.promise));
    for table in &mut tables {
        table.search_width(&mut best);
    }
    let chain = instance.chains.get(best.chain)?;
    (best.degree > 0).then(|| evaluate::realise_split(instance, chain, best.degree, &best.ranges))
}
