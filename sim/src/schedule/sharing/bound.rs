//! A lower bound on every schedule whose operators share ports.
//!
//! At every instant a *configuration* runs: a set of operators, each on one core or across all cores. No precedence
//! holds between these operators, and the cores suffice for all of them. Each runs at the speed that the ports leave
//! it. A schedule is a sequence of configurations, and an operator is done when its configurations have done all of it.
//! Ignoring their order leaves a linear program over configurations:
//!
//! ```text
//! minimise  sum of x_c   where for each operator i   sum over c with i  x_c speed_c,i / length_i  >= 1
//! ```
//!
//! Take prices for operators such that no configuration earns more than one per tick. Their sum bounds every schedule,
//! even if the program was not solved to the end, because every configuration is checked. The program's value is at
//! least the critical path, the work per core and the busiest port. Operators that may run in parallel, directly or
//! through others, form one program. An operator that runs in parallel with nothing takes its shorter latency.

use super::super::bounds::{OperatorBitset, first_operators, set_members};
use super::super::{Exclusivity, OperatorKind};
use super::simplex::{ColumnEntry, CoveringProgram};
use super::{PortSharing, length_in_mode, speed_under_contention, sum_port_demand};

/// Most operators, and most operator modes: one bit each.
const MOST: usize = 128;
/// Most configurations of one program.
const CONFIGURATIONS: usize = 4_096;
/// Pivots of one program, per operator.
const PIVOTS: usize = 12;
/// The program counts as solved if no configuration earns more than 1 plus this margin.
const DEARER: f64 = 1e-11;
/// Relative margin for rounding.
const SLACK: f64 = 1e-12;

/// An operator in one of its modes.
struct OperatorMode<'s> {
    op: usize,
    need: [u32; 3],
    length: f64,
    asks: &'s [f64],
}

/// The operators in their modes, and the pairs that may run in parallel.
struct OperatorModes<'s> {
    list: Vec<OperatorMode<'s>>,
    beside: Vec<OperatorBitset>,
    /// Cores of each kind, and links.
    cores: [u32; 3],
    ports: usize,
}

impl PortSharing<'_> {
    /// Returns a lower bound in ticks on every schedule under port sharing, whatever its order. `None` if there are too
    /// many operators, modes or configurations.
    #[must_use]
    pub fn lower_bound(&self) -> Option<f64> {
        let items = OperatorModes::of_sharing(self)?;
        let (mut left, mut least) = (first_operators(items.list.len()), 0.0);
        while left != 0 {
            let part = items.connected_modes(left.trailing_zeros() as usize);
            left &= !part;
            least += items.lower_bound_of_part(part)?;
        }
        Some(least * (1.0 - SLACK))
    }

    /// True if an operator may gain from running across all cores: it is shorter, or needs less of a port.
    fn gains_across_cores(&self, i: usize) -> bool {
        let operator = &self.problem.operators()[i];
        let less = || self.port_demand(i, true).iter().zip(self.port_demand(i, false)).any(|(all, one)| all < one);
        operator.exclusive_latency.is_some_and(|across| across < operator.latency || less())
    }

    /// Returns the set of all ancestors of each operator. `None` if there are more operators than bits.
    fn ancestor_sets(&self) -> Option<Vec<OperatorBitset>> {
        let n = self.problem.operators().len();
        if n > MOST {
            return None;
        }
        let mut direct: Vec<OperatorBitset> = vec![0; n];
        for &(earlier, later) in self.problem.edges() {
            direct[later as usize] |= 1 << earlier;
        }
        let mut all: Vec<OperatorBitset> = vec![0; n];
        for &i in self.problem.topological_order() {
            let i = i as usize;
            all[i] = set_members(direct[i]).fold(direct[i], |set, earlier| set | all[earlier]);
        }
        Some(all)
    }
}

impl<'s> OperatorModes<'s> {
    fn of_sharing(sharing: &'s PortSharing<'_>) -> Option<Self> {
        let ancestors = sharing.ancestor_sets()?;
        let cores = sharing.problem.cores();
        let counts = [cores.tensor_cores, cores.vector_cores, cores.network_links];
        let mut list = Vec::new();
        for (op, operator) in sharing.problem.operators().iter().enumerate() {
            if operator.shortest_latency() == 0 {
                continue;
            }
            let uses =
                [operator.kind.uses_tensor(), operator.kind.uses_vector(), operator.kind == OperatorKind::Network];
            for across in [false, true] {
                if across && !sharing.gains_across_cores(op) {
                    continue;
                }
                let all = cores.exclusivity == Exclusivity::AllCores;
                let need = if across {
                    [if all || uses[0] { counts[0] } else { 0 }, if all || uses[1] { counts[1] } else { 0 }, 0]
                } else {
                    uses.map(u32::from)
                };
                let length = length_in_mode(operator, across) as f64;
                list.push(OperatorMode { op, need, length, asks: sharing.port_demand(op, across) });
            }
        }
        if list.len() > MOST {
            return None;
        }
        let may = |a: &OperatorMode<'_>, b: &OperatorMode<'_>| {
            let ordered = a.op == b.op || ancestors[a.op] >> b.op & 1 == 1 || ancestors[b.op] >> a.op & 1 == 1;
            !ordered && (0..3).all(|k| a.need[k] + b.need[k] <= counts[k])
        };
        let beside = list
            .iter()
            .map(|a| (0..list.len()).filter(|&k| may(a, &list[k])).fold(0, |set: OperatorBitset, k| set | 1 << k));
        Some(Self { beside: beside.collect(), list, cores: counts, ports: sharing.port_count() })
    }

    /// Returns the modes connected to mode `first` by running in parallel, directly or through others, with all modes
    /// of each operator.
    fn connected_modes(&self, first: usize) -> OperatorBitset {
        let (mut all, mut new): (OperatorBitset, OperatorBitset) = (0, 1 << first);
        while new != 0 {
            let k = new.trailing_zeros() as usize;
            all |= 1 << k;
            let same = (0..self.list.len())
                .filter(|&l| self.list[l].op == self.list[k].op)
                .fold(0, |set: OperatorBitset, l| set | 1 << l);
            new = (new | self.beside[k] | same) & !all;
        }
        all
    }

    /// Returns a lower bound on a connected part. A single operator takes at least its shortest latency; several
    /// operators have the bound of the linear program. `None` if the part has too many configurations or no prices were
    /// found.
    fn lower_bound_of_part(&self, part: OperatorBitset) -> Option<f64> {
        let first = part.trailing_zeros() as usize;
        if set_members(part).all(|k| self.list[k].op == self.list[first].op) {
            let alone = |k: usize| self.list[k].length / speed_under_contention(self.list[k].asks, self.list[k].asks);
            return Some(set_members(part).map(alone).fold(f64::INFINITY, f64::min));
        }
        let mut rows: Vec<usize> = set_members(part).map(|k| self.list[k].op).collect();
        rows.dedup();
        let unit = set_members(part).map(|k| self.list[k].length).fold(0.0, f64::max);
        let mut columns = Vec::new();
        self.visit_configurations(part, &mut Vec::new(), self.cores, &mut |chosen: &[usize]| {
            let together = sum_port_demand(self.ports, chosen.iter().map(|&k| self.list[k].asks));
            let entry = |&k: &usize| {
                let item = &self.list[k];
                let row = rows.binary_search(&item.op).unwrap_or(usize::MAX);
                ColumnEntry { row, per: unit * speed_under_contention(item.asks, &together) / item.length }
            };
            columns.push(chosen.iter().map(entry).collect::<Vec<_>>());
            columns.len() <= CONFIGURATIONS
        })?;
        solve_covering_program(rows.len(), &columns).map(|value| value * unit)
    }

    /// Calls `take` with every configuration of a part that extends `chosen`; `None` as soon as `take` returns false.
    fn visit_configurations(
        &self,
        mut candidates: OperatorBitset,
        chosen: &mut Vec<usize>,
        free: [u32; 3],
        take: &mut impl FnMut(&[usize]) -> bool,
    ) -> Option<()> {
        while candidates != 0 {
            let k = candidates.trailing_zeros() as usize;
            candidates &= !(1 << k);
            let need = self.list[k].need;
            if (0..3).any(|kind| need[kind] > free[kind]) {
                continue;
            }
            chosen.push(k);
            if !take(chosen) {
                return None;
            }
            let rest = [free[0] - need[0], free[1] - need[1], free[2] - need[2]];
            self.visit_configurations(candidates & self.beside[k], chosen, rest, take)?;
            chosen.pop();
        }
        Some(())
    }
}

/// Returns a lower bound on the program's value; `None` if no prices were found.
fn solve_covering_program(rows: usize, columns: &[Vec<ColumnEntry>]) -> Option<f64> {
    let mut alone: Vec<Option<ColumnEntry>> = vec![None; rows];
    for column in columns.iter().filter(|column| column.len() == 1) {
        let known = &mut alone[column[0].row];
        if known.is_none_or(|known| known.per < column[0].per) {
            *known = Some(column[0]);
        }
    }
    let mut program = CoveringProgram::new(&alone.into_iter().collect::<Option<Vec<_>>>()?);
    let mut best: Option<f64> = None;
    for _ in 0..PIVOTS * rows {
        let pays = program.shadow_prices();
        if let Some(row) = pays.iter().position(|&pays| pays < -SLACK) {
            if !program.enter_column(&[ColumnEntry { row, per: -1.0 }], 0.0) {
                break;
            }
            continue;
        }
        let does = |column: &Vec<ColumnEntry>| column.iter().map(|entry| pays[entry.row] * entry.per).sum::<f64>();
        let Some((most, dearest)) =
            columns.iter().map(|column| (does(column), column)).max_by(|a, b| a.0.total_cmp(&b.0))
        else {
            break;
        };
        let value = pays.iter().sum::<f64>() / most.max(1.0);
        best = Some(best.map_or(value, |best| best.max(value)));
        if most <= 1.0 + DEARER || !program.enter_column(dearest, 1.0) {
            break;
        }
    }
    best
}
