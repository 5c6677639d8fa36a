//! Tries all assignments if there are few of them.

use super::MappingSearch;
use super::state::MappingState;
use super::traffic::AxisOrder;

/// All assignments of ranks to units; the device inside a unit does not matter. If whole units are moved: all
/// assignments of units to the blocks of every order of the axes.
pub(super) struct AllAssignments<'o> {
    /// Assignments to permute.
    orders: Vec<&'o [u32]>,
    /// Devices that stay together: a unit's devices if whole units are moved, otherwise 1.
    block: u32,
    count: u64,
}

impl<'o> AllAssignments<'o> {
    /// The assignments of a state's ranks; `None` if there are more than `most`.
    pub fn new_up_to(state: &MappingState<'_>, orders: &'o [AxisOrder], whole: bool, most: u32) -> Option<Self> {
        let (ranks, unit) = (state.devices.len() as u32, state.unit_size());
        let block = if whole { unit } else { 1 };
        let orders: Vec<&[u32]> =
            orders.iter().take(if whole { orders.len() } else { 1 }).map(|order| &order.devices[..]).collect();
        // Counts assignments of blocks to units. The places of a unit are alike, so the count is a multinomial
        // coefficient, computed as a product of binomial coefficients.
        let mut count = orders.len() as u64;
        let held = unit / block;
        for blocks in (1..=ranks / unit).map(|units| units * held) {
            for i in 1..=held {
                // The division is exact, because the product of i consecutive factors is a multiple of i!.
                count = count.checked_mul(u64::from(blocks - held + i))? / u64::from(i);
            }
            if count > u64::from(most) {
                return None;
            }
        }
        Some(Self { orders, block, count })
    }

    /// Evaluates all assignments and returns the fastest.
    pub fn find_best_assignment(&self, state: &MappingState<'_>) -> MappingSearch {
        let mut state = state.clone();
        let (ranks, unit) = (state.devices.len(), state.unit_size());
        let units = ranks as u32 / unit;
        let held = unit / self.block;
        let (mut found, mut least) = (state.devices.clone(), f64::INFINITY);
        for order in &self.orders {
            let mut try_one = |places: &[u32]| {
                let devices: Vec<u32> = order
                    .iter()
                    .map(|device| places[(device / self.block) as usize] * self.block + device % self.block)
                    .collect();
                state.place_ranks(&devices);
                let time = state.step_seconds();
                if time < least {
                    (least, found) = (time, devices);
                }
            };
            let mut tried = PlacedBlocks { places: Vec::new(), free: vec![held; units as usize], held };
            tried.place_remaining(ranks / self.block as usize, &mut try_one);
        }
        MappingSearch { found, moves: self.count, least: Some(least) }
    }
}

/// The blocks placed so far.
struct PlacedBlocks {
    places: Vec<u32>,
    /// Free places on each unit.
    free: Vec<u32>,
    held: u32,
}

impl PlacedBlocks {
    fn place_remaining(&mut self, blocks: usize, try_one: &mut impl FnMut(&[u32])) {
        if self.places.len() == blocks {
            return try_one(&self.places);
        }
        for unit in 0..self.free.len() {
            if self.free[unit] > 0 {
                self.free[unit] -= 1;
                self.places.push(unit as u32 * self.held + self.free[unit]);
                self.place_remaining(blocks, try_one);
                self.places.pop();
                self.free[unit] += 1;
            }
        }
    }
}
