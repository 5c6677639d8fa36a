//! An assignment with the placement of every group. Moves change it in place.

use super::price::{CollectivePrices, SEND};
use super::traffic::{NetworkTable, StepTraffic};
use sim::kernel::CollectiveKind;
use sim::network::{Fabric, GroupPlacement, GroupSpread, LinkMatrix, PlacementFinder};
use std::collections::HashMap;
use step::{ChipTimes, Communication, StepError, StepTime};

/// Weight of the mean group in the annealing energy, beside the slowest group. It rewards moves that improve a group
/// that is not the slowest.
const MEAN_SHARE: f64 = 0.02;

/// Limit on cached step times.
const MEMORY: usize = 1 << 17;

/// Everything that the step time depends on. It has the distinct spreads of each line with their slowest link, the same
/// for sends by tier, and the tiers that neighbouring stages cross. Sends come after the lines.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Signature {
    places: Vec<(usize, GroupSpread, u64)>,
    tiers: Vec<usize>,
}

impl Signature {
    /// Adds a group's placement. Only the slowest link of equal spreads is kept.
    fn add_place(&mut self, from: usize, line: usize, place: GroupPlacement) {
        let same = self.places[from..].iter_mut().find(|(l, spread, _)| *l == line && *spread == place.spread);
        match same {
            Some((_, _, link)) if f64::from_bits(*link) <= place.link.0 => {}
            Some((_, _, link)) => *link = place.link.0.to_bits(),
            None => self.places.push((line, place.spread, place.link.0.to_bits())),
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct MappingState<'a> {
    traffic: &'a StepTraffic<'a>,
    fabric: &'a Fabric,
    chip: ChipTimes,
    prices: CollectivePrices<'a>,
    places: PlacementFinder<'a>,
    /// The device of each rank.
    pub devices: Vec<u32>,
    /// The ranks of each group: groups of the lines first, then the pairs of each boundary.
    groups: Vec<Vec<u32>>,
    /// Index of the first group of each line, then of each boundary, then the end.
    first: Vec<usize>,
    /// The groups of each rank.
    of_rank: Vec<Vec<usize>>,
    /// The line of each group.
    line: Vec<usize>,
    lying: Vec<GroupPlacement>,
    /// The tier on which the two members of a boundary's pair meet; 0 for other groups.
    meeting: Vec<usize>,
    /// The placements and tiers of the changed groups before the last change.
    undo: Vec<(usize, GroupPlacement, usize)>,
    stamp: Vec<u64>,
    clock: u64,
    known: HashMap<Signature, f64>,
    /// By line, then for sends: seconds of energy per unit of the line's burden (seconds of a byte).
    weights: Vec<f64>,
}

/// A rank and a device for it.
#[derive(Debug, Clone, Copy)]
pub(super) struct RankMove {
    pub rank: usize,
    pub device: u32,
}

impl<'a> MappingState<'a> {
    /// Places all groups under an assignment. `None` if the fabric has no measured links.
    pub fn new(traffic: &'a StepTraffic<'a>, fabric: &'a Fabric, devices: Vec<u32>) -> Option<Self> {
        let (mut groups, mut line, mut first) = (Vec::new(), Vec::new(), vec![0]);
        let lines = traffic.lines.iter().map(|line| line.groups.clone());
        let boundaries = traffic.boundaries.iter().map(|pairs| pairs.iter().map(|pair| pair.to_vec()).collect());
        for (at, members) in lines.chain(boundaries).enumerate() {
            groups.extend(members);
            line.resize(groups.len(), at);
            first.push(groups.len());
        }
        let mut of_rank = vec![Vec::new(); devices.len()];
        for (group, ranks) in groups.iter().enumerate() {
            for &rank in ranks {
                of_rank[rank as usize].push(group);
            }
        }
        let nowhere = GroupPlacement {
            spread: GroupSpread { members: 1, units: 1, most: 1, least: 1, stride: 1 },
            link: sim::units::BytesPerSecond(f64::INFINITY),
        };
        let count = groups.len();
        let mut state = Self {
            traffic,
            fabric,
            chip: traffic.own_cost_model(),
            prices: CollectivePrices::new(traffic, fabric),
            places: PlacementFinder::of_fabric(fabric)?,
            devices,
            groups,
            first,
            of_rank,
            line,
            lying: vec![nowhere; count],
            meeting: vec![0; count],
            undo: Vec::new(),
            stamp: vec![0; count],
            clock: 0,
            known: HashMap::new(),
            weights: vec![0.0; traffic.lines.len() + 1],
        };
        (0..count).for_each(|group| state.update_spreads(group));
        Some(state)
    }

    /// The recorded traffic.
    pub fn traffic(&self) -> &'a StepTraffic<'a> {
        self.traffic
    }

    /// The fabric.
    pub fn fabric(&self) -> &'a Fabric {
        self.fabric
    }

    /// The measured links between units.
    pub fn links(&self) -> &'a LinkMatrix {
        self.places.links()
    }

    /// Devices in a unit.
    pub fn unit_size(&self) -> u32 {
        self.places.unit_devices()
    }

    /// A copy with another assignment.
    pub fn with_assignment(&self, devices: &[u32]) -> Self {
        let mut state = self.clone();
        state.place_ranks(devices);
        state
    }

    /// Assigns all ranks to devices.
    pub fn place_ranks(&mut self, devices: &[u32]) {
        self.devices.copy_from_slice(devices);
        (0..self.groups.len()).for_each(|group| self.update_spreads(group));
    }

    fn update_spreads(&mut self, group: usize) {
        let (devices, lines) = (&self.devices, self.traffic.lines.len());
        let members = &self.groups[group];
        let line = self.line[group];
        let exchange = self.traffic.lines.get(line).is_some_and(|line| line.exchange);
        let kind = if exchange { CollectiveKind::AllToAll } else { CollectiveKind::AllReduce };
        self.lying[group] = self.places.place_group(kind, members.iter().map(|rank| devices[*rank as usize]));
        if line >= lines {
            let at = |i: usize| devices[members[i] as usize];
            self.meeting[group] = self.fabric.meeting_tier(at(0), at(1));
        }
    }

    fn compute_signature(&self) -> Signature {
        let (mut signature, lines) = (Signature::default(), self.traffic.lines.len());
        for line in 0..lines {
            let from = signature.places.len();
            for place in &self.lying[self.first[line]..self.first[line + 1]] {
                signature.add_place(from, line, *place);
            }
        }
        let from = signature.places.len();
        for boundary in lines..self.first.len() - 1 {
            let pairs = self.first[boundary]..self.first[boundary + 1];
            let tier = self.meeting[pairs.clone()].iter().copied().max().unwrap_or(0);
            signature.tiers.push(tier);
            for place in &self.lying[pairs] {
                signature.add_place(from, lines + tier, *place);
            }
        }
        // The order depends on the group that has a spread first. Sorting gives equal signatures to assignments with
        // the same spreads and links.
        signature.places.sort_unstable();
        signature
    }

    fn network_table(&mut self, signature: &Signature) -> NetworkTable<'a> {
        let (mut table, lines) = (self.traffic.silent_network(), self.traffic.lines.len());
        table.tiers.clone_from(&signature.tiers);
        for &(line, spread, link) in &signature.places {
            let link = f64::from_bits(link);
            if let Some(tier) = line.checked_sub(lines) {
                table.sends[tier] = table.sends[tier].at_most(self.prices.price_of(SEND, spread, link));
                continue;
            }
            for &ask in &self.traffic.lines[line].asks {
                table.times[ask] = table.times[ask].at_most(self.prices.price_of(ask, spread, link));
            }
        }
        table
    }

    /// The network's answers to the step's requests under this assignment.
    pub fn known_network(&mut self) -> NetworkTable<'a> {
        let signature = self.compute_signature();
        self.network_table(&signature)
    }

    /// Seconds of the step, as in [`StepTraffic::step_seconds_on`]; cached by signature.
    pub fn step_seconds(&mut self) -> f64 {
        let signature = self.compute_signature();
        if let Some(known) = self.known.get(&signature) {
            return *known;
        }
        let table = self.network_table(&signature);
        let time = self.traffic.step_seconds_on(&mut self.chip, &table);
        if self.known.len() >= MEMORY {
            self.known.clear();
        }
        self.known.insert(signature, time);
        time
    }

    /// Simulates the step event by event.
    pub fn play_step(&mut self) -> Result<StepTime, StepError> {
        let table = self.known_network();
        self.traffic.step_on_network(&mut self.chip, &table)
    }

    /// Simulates the step event by event, as if sends between stages took no time.
    pub fn play_step_without_sends(&mut self) -> Result<StepTime, StepError> {
        let mut table = self.known_network();
        table.sends = Default::default();
        self.traffic.step_on_network(&mut self.chip, &table)
    }

    /// Mean seconds per byte over groups. The rate of a group is its link's rate times the members in its emptiest
    /// unit.
    fn burden_of_line(&self, groups: std::ops::Range<usize>) -> f64 {
        let count = groups.len().max(1) as f64;
        self.lying[groups].iter().map(|place| 1.0 / (place.link.0 * f64::from(place.spread.least))).sum::<f64>() / count
    }

    fn line_burdens(&self) -> Vec<f64> {
        let lines = self.traffic.lines.len();
        let pairs = self.first[lines]..self.first[self.first.len() - 1];
        (0..lines)
            .map(|line| self.first[line]..self.first[line + 1])
            .chain([pairs])
            .map(|groups| self.burden_of_line(groups))
            .collect()
    }

    /// Weighs each line by the time that the step would save without it.
    pub fn weigh_lines(&mut self) {
        let (time, table, burdens) = (self.step_seconds(), self.known_network(), self.line_burdens());
        for (line, burden) in burdens.into_iter().enumerate() {
            let mut without = table.clone();
            match self.traffic.lines.get(line) {
                Some(line) => line.asks.iter().for_each(|ask| without.times[*ask] = Communication::default()),
                None => without.sends = Default::default(),
            }
            let saved = (time - self.traffic.step_seconds_on(&mut self.chip, &without)).max(0.0);
            self.weights[line] = if burden > 0.0 { saved / burden } else { 0.0 };
        }
    }

    /// The step time in seconds, plus a small fraction of the mean time of groups, which includes groups that do not
    /// decide.
    pub fn annealing_energy(&mut self) -> f64 {
        let mean: f64 = self.line_burdens().iter().zip(&self.weights).map(|(burden, weight)| burden * weight).sum();
        self.step_seconds() + MEAN_SHARE * mean
    }

    /// Moves ranks to other devices. The new devices must be a permutation of the ranks' own devices.
    pub fn assign_ranks(&mut self, changes: &[RankMove]) {
        self.clock += 1;
        self.undo.clear();
        for &RankMove { rank, device } in changes {
            self.devices[rank] = device;
        }
        for &RankMove { rank, .. } in changes {
            for i in 0..self.of_rank[rank].len() {
                let group = self.of_rank[rank][i];
                if self.stamp[group] != self.clock {
                    self.stamp[group] = self.clock;
                    self.undo.push((group, self.lying[group], self.meeting[group]));
                    self.update_spreads(group);
                }
            }
        }
    }

    /// Undoes the last [`Self::assign_ranks`]. `before` holds the ranks' previous devices.
    pub fn revert_assignment(&mut self, before: &[RankMove]) {
        for &RankMove { rank, device } in before {
            self.devices[rank] = device;
        }
        for &(group, place, meeting) in &self.undo {
            (self.lying[group], self.meeting[group]) = (place, meeting);
        }
    }
}
