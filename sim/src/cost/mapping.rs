//! The mapper: cuts a contraction into tiles for the memories, the cores and the arrays.
//!
//! A *unit* is the part (um, un) of one product's result that one core computes at a time, over all of K. A unit fits
//! into a local buffer if one of three residents fits: its accumulators (operands then stream in double-buffered
//! chunks), its rows of the left operand, or its columns of the right operand. In each case a unit fetches um x K and K
//! x un once. So the left operand crosses the port ceil(N/un) times and the right one ceil(M/um) times. Edges are exact
//! (imperfect factors). The same closed form gives the traffic into every shared level from the next outer one.
//!
//! Sums that leave the arrays before K is done cross the ports of `local_ports`. Operands take the fastest route
//! through the shared levels (`shared_traffic`). Results are used once, and bypass every level that has a path around
//! it.
//!
//! Time = launch + latencies + max(fill + compute + drain, every port). Compute runs in waves of units over the cores;
//! units of edge size form waves of their own. Two terms are added: the sum of partial results if K is split, and the
//! exposed part of computing and moving that a chip's software stack does not overlap (`overlap_fraction`).
//!
//! The mapper is monotone in three ways: a candidate's time never rises with bandwidth, a feasible candidate stays
//! feasible with more capacity, and more effort only adds candidates.

use super::level_rates::LevelBytes;
use super::local_ports::{CoreUnit, LocalPorts, PlacedSums, time_of_unit};
use super::machine::{Machine, SpanResources};
use super::mapping_problem::{MappingProblem, chunk_length, fits_capacity};
use super::shared_traffic::{OuterTraffic, SharedPortTimes, SharedTraffic, least_shared_time, time_shared_ports};
use super::tensor_core::{ACCUMULATOR, ceil_div, ceil_nonnegative};
use super::tiles::{MappingEffort, TileSizes};

/// A mapping's time and traffic.
#[derive(Debug, Clone, Copy)]
pub(super) struct MappingCost {
    pub(super) time: f64,
    /// Seconds of the arrays, the lanes or the cores' own ports, whichever takes longest.
    pub(super) work: f64,
    /// The level of the slowest of the cores' own ports, as its position in
    /// [`crate::hardware::Accelerator::memory_levels`]. `None` if the arrays or the lanes take longer than every such
    /// port.
    pub(super) own_level: Option<usize>,
    /// Seconds of the slowest shared port.
    pub(super) slowest_port: f64,
    /// Position in `SpanResources::shared` of the level with the slowest port.
    pub(super) slowest_level: usize,
    /// The time of the busiest port, the cores' own included.
    busiest_port: f64,
    /// Joules of the shared levels' traffic, without the rereading of partial results.
    shared_energy: f64,
    pub(super) shared: SharedTraffic,
    /// Operand bytes from the cores' innermost memory into the arrays.
    pub(super) into_arrays: f64,
    /// Bytes of sums, written and read: at the cores' innermost memory and at the accumulators.
    pub(super) local_sums: f64,
    pub(super) accumulated: f64,
}

/// A mapping up to this factor slower than the fastest is preferred if its traffic takes less energy. The reported time
/// is the fastest mapping's; traffic and energy are those of the preferred mapping.
const THRIFT: f64 = 1.01;

/// Most waves that are tried beyond the number that all workers need. This limits the effort. Under this limit, more
/// cores slow a kernel by a fraction of at most 1e-4 on random chips.
const MOST_WAVES: f64 = 256.0;

/// The aim of a search over mappings.
enum SearchGoal {
    /// The least time.
    LeastTime,
    /// The least energy of traffic among mappings up to [`THRIFT`] slower than `fastest`, which is the least time.
    LeastEnergy,
}

/// The best mapping so far.
pub(super) struct BestMapping {
    /// The least time so far.
    pub(super) fastest: f64,
    /// The chosen mapping and its cost for the goal.
    chosen: Option<(MappingCost, TrafficCost)>,
    goal: SearchGoal,
    /// A lower bound on the arrays' time over all cuts. `None` if candidates that cannot win are tried too.
    least_compute: Option<f64>,
}

/// Joules of a mapping's traffic, then operand bytes into the cores and bytes of partial results.
type TrafficCost = (f64, f64);

impl BestMapping {
    /// Returns a search for the least time below `limit` seconds. `least_compute` prunes it.
    pub(super) fn below_limit(limit: f64, least_compute: Option<f64>) -> Self {
        Self { fastest: limit, chosen: None, goal: SearchGoal::LeastTime, least_compute }
    }

    /// True if a mapping was found.
    pub(super) fn is_found(&self) -> bool {
        self.chosen.is_some()
    }

    /// True if no mapping whose shared ports are busy for `seconds` can win.
    #[inline]
    fn prunes_ports(&self, seconds: f64) -> bool {
        match self.goal {
            _ if self.least_compute.is_none() => false,
            SearchGoal::LeastTime => seconds >= self.fastest,
            // The reported time is the fastest mapping's, so no port may be busy for longer.
            SearchGoal::LeastEnergy => seconds > self.fastest,
        }
    }

    /// True if no mapping whose arrays take `seconds` can win.
    #[inline]
    fn prunes_work(&self, seconds: f64) -> bool {
        match self.goal {
            _ if self.least_compute.is_none() => false,
            SearchGoal::LeastTime => seconds >= self.fastest,
            SearchGoal::LeastEnergy => seconds > self.fastest * THRIFT,
        }
    }

    /// Returns the places of sums to try: the fastest alone if only the time counts.
    #[inline]
    fn places_to_try(&self, sums: &PlacedSums) -> impl Iterator<Item = LocalPorts> + use<> {
        let other = sums.other.filter(|_| matches!(self.goal, SearchGoal::LeastEnergy));
        std::iter::once(sums.fastest).chain(other)
    }

    /// True if no mapping whose traffic takes at least `joules` can win.
    #[inline]
    fn prunes_energy(&self, joules: f64) -> bool {
        let cheaper = |(_, (energy, _)): &(MappingCost, TrafficCost)| *energy < joules;
        self.least_compute.is_some()
            && matches!(self.goal, SearchGoal::LeastEnergy)
            && self.chosen.as_ref().is_some_and(cheaper)
    }

    /// Takes the candidate if it is better. `energy` returns the joules of its traffic.
    fn offer_mapping(&mut self, candidate: MappingCost, energy: impl FnOnce(&MappingCost) -> f64) {
        match self.goal {
            SearchGoal::LeastTime => {
                if candidate.time <= self.fastest {
                    self.fastest = candidate.time;
                    self.chosen = Some((candidate, (0.0, 0.0)));
                }
            }
            SearchGoal::LeastEnergy => {
                if candidate.time > self.fastest * THRIFT || candidate.busiest_port > self.fastest {
                    return;
                }
                let cost = (energy(&candidate), candidate.shared.into_cores + candidate.shared.partials);
                if self.chosen.as_ref().is_none_or(|(_, least)| cost < *least) {
                    self.chosen = Some((candidate, cost));
                }
            }
        }
    }
}

/// Returns the rows and columns of units to try.
fn unit_sizes(machine: &Machine, p: &MappingProblem, effort: MappingEffort, prune: bool) -> (TileSizes, TileSizes) {
    let (granule_m, granule_n) = machine.arrays.spatial_granules();
    let of = |dimension, granule: Option<f64>| TileSizes::new(dimension, effort, granule.filter(|_| prune));
    (of(p.m, granule_m), of(p.n, granule_n))
}

/// Tries mappings and offers them to `best`. Units of work go to cores, or to single arrays.
pub(super) fn search_mappings(
    machine: &Machine,
    view: &SpanResources,
    p: &MappingProblem,
    outer: &OuterTraffic,
    effort: MappingEffort,
    best: &mut BestMapping,
) {
    let (ms, ns) = unit_sizes(machine, p, effort, best.least_compute.is_some());
    let chunk = chunk_length(machine, p.k);
    let capacity = view.local.first().map_or(0.0, |level| level.capacity);
    let floor = machine.arrays.rows.min(machine.arrays.columns);
    let fit = |um: f64, un: f64, arrays: f64| {
        (um <= floor && un <= floor) || fits_capacity(capacity / arrays, um, un, p.k, chunk, p.operand)
    };
    let rising = best.least_compute.is_some() && effort.sizes_only_fall();
    if rising && let Some((um, un)) = largest_square_unit(&ms, &ns, p, |um, un| fit(um, un, 1.0)) {
        try_unit(machine, view, p, outer, UnitSize { um, un }, &fit, best);
    }
    for um in ms.iter(rising) {
        // Narrower units and splits of K never reduce the ports' traffic.
        if best.prunes_ports(least_shared_time(view, p, outer, p.bytes_into_cores(ceil_div(p.m, um), 1.0))) {
            continue;
        }
        for un in ns.iter(rising) {
            if fit(um, un, 1.0) {
                try_unit(machine, view, p, outer, UnitSize { um, un }, &fit, best);
            } else if rising {
                // Wider units do not fit either.
                break;
            }
        }
    }
}

/// Returns the largest near-square unit that fits, or `None`. If only the fastest time is needed, trying this unit
/// first prunes most others.
fn largest_square_unit(
    ms: &TileSizes,
    ns: &TileSizes,
    p: &MappingProblem,
    fit: impl Fn(f64, f64) -> bool,
) -> Option<(f64, f64)> {
    ms.iter(false).find_map(|um| {
        let near = ns.iter(false).find(|&un| un <= 2.0 * um && fit(um, un))?;
        (2.0 * near >= um || near == p.n).then_some((um, near))
    })
}

/// Rows and columns of a unit.
#[derive(Clone, Copy)]
struct UnitSize {
    um: f64,
    un: f64,
}

/// Tries a unit size that fits: with all arrays of a core on one unit, and with one unit per array if that fits into
/// the array's part of the core's memory.
#[inline]
fn try_unit(
    machine: &Machine,
    view: &SpanResources,
    p: &MappingProblem,
    outer: &OuterTraffic,
    UnitSize { um, un }: UnitSize,
    fit: &impl Fn(f64, f64, f64) -> bool,
    best: &mut BestMapping,
) {
    let (tm, tn) = (ceil_div(p.m, um), ceil_div(p.n, un));
    let into_cores = p.bytes_into_cores(tm, tn);
    if best.prunes_ports(least_shared_time(view, p, outer, into_cores)) {
        return;
    }
    let count = machine.arrays.count;
    for independent in [false, true] {
        if !independent || (count > 1.0 && fit(um, un, count)) {
            let tile = UnitTile { um, un, tm, tn, split: 1.0, independent, into_cores };
            try_splits(machine, view, p, outer, tile, best);
        }
    }
}

/// Tries a unit size with K whole, then with K in twice as many parts each time while some workers have no unit.
fn try_splits(
    machine: &Machine,
    view: &SpanResources,
    p: &MappingProblem,
    outer: &OuterTraffic,
    mut tile: UnitTile,
    best: &mut BestMapping,
) {
    let workers = if tile.independent { view.cores * machine.arrays.count } else { view.cores };
    loop {
        let units = p.batch * tile.tm * tile.tn * tile.split;
        try_parks(machine, view, p, outer, &tile, best);
        tile.split *= 2.0;
        if units >= workers || tile.split * machine.arrays.rows > p.k || tile.split > 64.0 {
            break;
        }
    }
}

/// The mappings of a contraction on one span.
pub(super) struct ChosenMappings {
    /// The fastest mapping, for the time and its bound.
    pub(super) fastest: MappingCost,
    /// The mapping for traffic and energy. It has the least energy among the mappings that are up to [`THRIFT`] slower
    /// and whose ports are busy for at most the least time.
    pub(super) thrifty: MappingCost,
}

/// Returns the chosen mappings. Without a mapping their time is zero. `least_compute` prunes the search.
pub(super) fn choose_mappings(
    machine: &Machine,
    view: &SpanResources,
    p: &MappingProblem,
    outer: &OuterTraffic,
    effort: MappingEffort,
    least_compute: Option<f64>,
) -> ChosenMappings {
    let mut search = BestMapping::below_limit(f64::INFINITY, least_compute);
    search_mappings(machine, view, p, outer, effort, &mut search);
    let Some((fastest, _)) = search.chosen.filter(|_| search.fastest.is_finite()) else {
        let nothing = MappingCost::of_nothing(view);
        return ChosenMappings { fastest: nothing, thrifty: nothing };
    };
    let mut search = BestMapping { chosen: None, goal: SearchGoal::LeastEnergy, ..search };
    search_mappings(machine, view, p, outer, effort, &mut search);
    ChosenMappings { fastest, thrifty: search.chosen.map_or(fastest, |(chosen, _)| chosen) }
}

impl MappingCost {
    fn of_nothing(view: &SpanResources) -> Self {
        let route = view.routes.first().copied().unwrap_or_default();
        Self {
            time: 0.0,
            work: 0.0,
            own_level: None,
            slowest_port: 0.0,
            slowest_level: 0,
            busiest_port: 0.0,
            shared_energy: 0.0,
            shared: SharedTraffic { route, into_cores: 0.0, partials: 0.0, park: 0 },
            into_arrays: 0.0,
            local_sums: 0.0,
            accumulated: 0.0,
        }
    }

    /// Returns the bytes read from and written to level `i` of `SpanResources::local`.
    pub(super) fn bytes_through_local(&self, view: &SpanResources, p: &MappingProblem, i: usize) -> LevelBytes {
        let shared = &self.shared;
        // If K is cut, partial results leave the cores.
        let whole = shared.partials == 0.0;
        let results = if whole { p.written_bytes() } else { shared.partials + p.epilogue_written };
        let (inward, sums) = match i + 1 == view.local.len() {
            true => (self.into_arrays, self.local_sums),
            false => (shared.into_cores, 0.0),
        };
        let beside = results + p.epilogue_read + sums;
        LevelBytes { read: inward + beside, written: shared.into_cores + beside }
    }

    /// Returns the joules of the traffic at all levels.
    fn traffic_energy(&self, machine: &Machine, view: &SpanResources, p: &MappingProblem) -> f64 {
        let reread =
            view.shared.get(self.shared.park).map_or(0.0, |level| level.traffic_energy(self.shared.partials, 0.0));
        let local = view.local.iter().enumerate().map(|(i, level)| {
            let LevelBytes { read, written } = self.bytes_through_local(view, p, i);
            level.traffic_energy(read, written)
        });
        let sums = self.accumulated * machine.arrays.sums.energy_per_byte();
        self.shared_energy + reread + local.sum::<f64>() + sums
    }
}

/// A unit size, and the distribution of the units.
#[derive(Debug, Clone, Copy)]
struct UnitTile {
    um: f64,
    un: f64,
    /// Rows and columns of units.
    tm: f64,
    tn: f64,
    /// Parts of K on different workers.
    split: f64,
    /// True if each array works on a unit of its own.
    independent: bool,
    /// Operand bytes into the cores.
    into_cores: f64,
}

/// Offers the mapping of a tile on its fastest route, for each level that can hold partial results. The device's memory
/// always can; an on-chip level can if they fit.
fn try_parks(
    machine: &Machine,
    view: &SpanResources,
    p: &MappingProblem,
    outer: &OuterTraffic,
    tile: &UnitTile,
    best: &mut BestMapping,
) {
    let partials = if tile.split > 1.0 { p.batch * p.m * p.n * tile.split * ACCUMULATOR } else { 0.0 };
    let (mut compute, mut placed) = (None, None);
    for (park, level) in view.shared.iter().enumerate() {
        if park > 0 && !(partials > 0.0 && level.capacity >= partials) {
            continue;
        }
        for route in &view.routes {
            let shared = SharedTraffic { route: *route, into_cores: tile.into_cores, partials, park };
            let ports = time_shared_ports(view, p, outer, &shared);
            if best.prunes_ports(ports.slowest) || best.prunes_energy(ports.energy) {
                continue;
            }
            // The bound adds the first fill and the last drain, which the arrays do not hide.
            let bounded = |least| best.prunes_work(tile.least_time(machine, view, p, least));
            if best.least_compute.is_some_and(bounded) {
                break;
            }
            let compute = *compute.get_or_insert_with(|| compute_time(machine, view, p, tile, f64::INFINITY));
            if best.prunes_work(compute.seconds) {
                break;
            }
            let sums = placed.get_or_insert_with(|| time_of_unit(machine, view, p, &tile.core_unit(machine, p)));
            for own in best.places_to_try(sums) {
                let candidate =
                    cost_from_times(machine, view, p, tile, CoreTime { arrays: compute, own }, &ports, shared);
                best.offer_mapping(candidate, |mapping| mapping.traffic_energy(machine, view, p));
            }
        }
    }
}

impl UnitTile {
    /// Returns the cores or arrays that can have a unit of their own.
    #[inline]
    fn worker_count(&self, machine: &Machine, view: &SpanResources) -> f64 {
        if self.independent { view.cores * machine.arrays.count } else { view.cores }
    }

    /// Returns the number of units of work, and the most units in progress at a time.
    #[inline]
    fn unit_counts(&self, machine: &Machine, view: &SpanResources, p: &MappingProblem) -> (f64, f64) {
        let units = p.batch * self.tm * self.tn * self.split;
        (units, units.min(self.worker_count(machine, view)))
    }

    /// Returns a lower bound on the arrays' time with the first fill and the last drain, given a bound on the time of
    /// all arrays over all cuts. In k waves of U units, fewer than U / (k - 1) workers compute, and U / k units are
    /// filled and drained at a time.
    #[inline]
    fn least_time(&self, machine: &Machine, view: &SpanResources, p: &MappingProblem, least_compute: f64) -> f64 {
        let (units, _) = self.unit_counts(machine, view, p);
        let workers = self.worker_count(machine, view);
        let wave = least_compute * workers / units;
        let all_ends = units * time_at_the_ends(view, p, self, machine.arrays.rows, 1.0);
        // Beyond this number of waves, the waves take longer than the bound on all arrays.
        let waves = 1.0 + units / workers;
        let fastest = (all_ends / wave).sqrt();
        if fastest <= waves { least_compute + all_ends / waves } else { 2.0 * (wave * all_ends).sqrt() - wave }
    }
}

/// Returns the seconds to read the first operands and to write the last results of the units in progress. Nothing is
/// computed meanwhile.
#[inline]
fn time_at_the_ends(view: &SpanResources, p: &MappingProblem, tile: &UnitTile, rows: f64, active: f64) -> f64 {
    let Some(level) = view.shared.first() else { return 0.0 };
    let k = ceil_div(p.k, tile.split);
    let first = active * (tile.um + tile.un) * k.min(rows) * p.operand;
    level.busy_seconds(first, 0.0) + level.busy_seconds(0.0, active * tile.um * tile.un * p.result)
}

/// The time of the arrays.
#[derive(Debug, Clone, Copy)]
struct ArrayTime {
    seconds: f64,
    /// The sum of the seconds of all units.
    of_units: f64,
}

/// The time of the arrays, and of a unit at its core's own ports.
#[derive(Debug, Clone, Copy)]
struct CoreTime {
    arrays: ArrayTime,
    own: LocalPorts,
}

/// Returns the time of the arrays, on at most `most` workers.
fn compute_time(machine: &Machine, view: &SpanResources, p: &MappingProblem, tile: &UnitTile, most: f64) -> ArrayTime {
    let a = &machine.arrays;
    let per_unit = if tile.independent { 1.0 } else { a.count };
    let workers = tile.worker_count(machine, view).min(most);
    let k = ceil_div(p.k, tile.split);
    let (cycles, of_units) = count_waves(p, tile, workers, |m, n| a.tile_cycles(m, n, k, per_unit));
    // Filling and draining run at the clock, whatever fraction of their peak the streaming arrays achieve.
    let fill = a.fill_cycles(tile.um.min(p.m), tile.un.min(p.n), k) / machine.clock;
    ArrayTime { seconds: cycles / p.rate + fill, of_units: of_units / p.rate }
}

/// A mapping's time and traffic from its arrays' and its ports' times.
fn cost_from_times(
    machine: &Machine,
    view: &SpanResources,
    p: &MappingProblem,
    tile: &UnitTile,
    CoreTime { arrays: compute, own }: CoreTime,
    ports: &SharedPortTimes,
    shared: SharedTraffic,
) -> MappingCost {
    let results = p.batch * p.m * p.n;
    let (units, active) = tile.unit_counts(machine, view, p);
    // Partial results are reread for their sum after the last one is written.
    let partials = shared.partials;
    let reread = view.shared.get(shared.park).map_or(0.0, |level| level.busy_seconds(partials, 0.0));
    let reduce = if partials > 0.0 { reread + results * tile.split / machine.lane_rate(view) } else { 0.0 };
    let moving = ports.slowest;
    let run = UnitRun { machine, view, p, tile, ports, of_unit: own.seconds, units };
    let after = RunEnd { reduce, latency: shared.route.extra_latency };
    let waves = ceil_div(units, active);
    let first = run.time_on_workers(active, ceil_div(units, waves), compute.seconds, after);
    let best = run.fastest_on_fewer_workers(waves, first, compute.of_units, after);
    MappingCost {
        time: best.time,
        work: best.work,
        own_level: best.waits_for_port.then_some(own.level),
        slowest_port: moving,
        slowest_level: ports.level,
        busiest_port: (moving + reread).max(best.local),
        shared_energy: ports.energy,
        shared,
        into_arrays: units * own.traffic.into_arrays,
        local_sums: units * own.traffic.local_sums,
        accumulated: units * own.traffic.accumulated,
    }
}

/// The times of a mapping on some workers.
#[derive(Clone, Copy)]
struct WorkerTimes {
    /// The whole time.
    time: f64,
    /// Seconds of the work, with the first fill and the last drain.
    total: f64,
    work: f64,
    /// The time of the busiest core's own ports.
    local: f64,
    /// True if these ports take longer than the arrays and the lanes.
    waits_for_port: bool,
}

/// Seconds that follow the units' work: the sum of partial results, and the route's latency.
#[derive(Clone, Copy)]
struct RunEnd {
    reduce: f64,
    latency: f64,
}

/// A mapping's units, which workers take in waves.
struct UnitRun<'a> {
    machine: &'a Machine,
    view: &'a SpanResources,
    p: &'a MappingProblem,
    tile: &'a UnitTile,
    ports: &'a SharedPortTimes,
    /// Seconds of a unit at its core's own ports.
    of_unit: f64,
    units: f64,
}

impl UnitRun<'_> {
    /// Returns the times on `workers` workers with `in_progress` units in progress. The arrays take `compute` seconds.
    #[inline]
    fn time_on_workers(&self, workers: f64, in_progress: f64, compute: f64, end: RunEnd) -> WorkerTimes {
        let moving = self.ports.slowest;
        let local = self.of_unit * ceil_nonnegative(self.units / workers.min(self.view.cores));
        let units = compute.max(self.p.epilogue_time);
        let work = units.max(local);
        let total = work + time_at_the_ends(self.view, self.p, self.tile, self.machine.arrays.rows, in_progress);
        let time = total.max(moving)
            + self.view.exposed * (self.ports.in_turn + work - moving.max(work))
            + end.reduce
            + end.latency;
        WorkerTimes { time, total, work, local, waits_for_port: local > units }
    }

    /// Returns the fastest of `first` and the times on fewer workers. More waves of fewer units take longer to compute,
    /// but less time to fill and drain. So leaving workers idle may be faster.
    #[inline]
    fn fastest_on_fewer_workers(&self, waves: f64, first: WorkerTimes, of_units: f64, end: RunEnd) -> WorkerTimes {
        let of_one = time_at_the_ends(self.view, self.p, self.tile, self.machine.arrays.rows, 1.0);
        let (mut best, mut more) = (first, waves);
        while best.total > self.ports.slowest && more < self.units.min(waves + MOST_WAVES) {
            more += 1.0;
            // The most workers that need this many waves.
            let workers = ceil_div(self.units, more - 1.0) - 1.0;
            let in_progress = ceil_div(self.units, more);
            let least = (of_units / workers).max(best.work.min(self.p.epilogue_time));
            if least + of_one >= best.total {
                break;
            }
            if workers < in_progress || least + of_one * in_progress >= best.total {
                continue;
            }
            let compute = compute_time(self.machine, self.view, self.p, self.tile, workers).seconds;
            let idle = self.time_on_workers(workers, in_progress, compute, end);
            if idle.time < best.time {
                best = idle;
            }
        }
        best
    }
}

impl UnitTile {
    /// Returns the unit as a core's memories see it.
    fn core_unit(&self, machine: &Machine, p: &MappingProblem) -> CoreUnit {
        let count = machine.arrays.count;
        let (arrays, in_core) = if self.independent { (1.0, count) } else { (count, 1.0) };
        let (m, n, k) = (self.um.min(p.m), self.un.min(p.n), ceil_div(p.k, self.split));
        CoreUnit { m, n, k, arrays, in_core, split: self.split }
    }
}

/// Returns the cycles of waves of units over the workers, and the cycles of all units. Units of one size are dealt
/// before the next smaller size; a wave takes as long as its largest unit.
#[inline]
fn count_waves(p: &MappingProblem, tile: &UnitTile, workers: f64, cycles: impl Fn(f64, f64) -> f64) -> (f64, f64) {
    let (tm, tn) = (tile.tm, tile.tn);
    let (edge_m, edge_n) = (p.m - (tm - 1.0) * tile.um, p.n - (tn - 1.0) * tile.un);
    let parts = p.batch * tile.split;
    let (whole_m, whole_n) = if edge_m == tile.um { (tm, 0.0) } else { (tm - 1.0, 1.0) };
    let (full_n, part_n) = if edge_n == tile.un { (tn, 0.0) } else { (tn - 1.0, 1.0) };
    let mut classes = [
        (parts * whole_m * full_n, tile.um, tile.un, 0.0),
        (parts * whole_m * part_n, tile.um, edge_n, 0.0),
        (parts * whole_n * full_n, edge_m, tile.un, 0.0),
        (parts * whole_n * part_n, edge_m, edge_n, 0.0),
    ];
    for class in &mut classes {
        if class.0 > 0.0 {
            class.3 = cycles(class.1, class.2);
        }
    }
    if classes[2].3 > classes[1].3 {
        classes.swap(1, 2);
    }
    let (mut dealt, mut waves, mut total, mut of_units) = (0.0, 0.0, 0.0, 0.0);
    for (count, _, _, time) in classes {
        dealt += count;
        let reached = ceil_div(dealt, workers);
        total += (reached - waves) * time;
        of_units += count * time;
        waves = reached;
    }
    (total, of_units)
}

#[cfg(test)]
#[path = "mapping_tests.rs"]
mod tests;
