//! Items that each go to several members of a group: the fraction of them that crosses a tier.
//!
//! Sent copy by copy (an all-to-all), an item crosses a tier once for every part behind the tier. Alternatively it is
//! sent once into every unit that holds any of its parts, and is forwarded inside. DeepSeek-V3 does so: over InfiniBand
//! to every node, then over NVLink (Technical Report, arXiv:2412.19437, section 3.2.2). The item then crosses the tier
//! once per unit. The mean number of units follows from the choice of parts, with all sets equally likely.

use super::level::GroupLevel;
use crate::kernel::PartChoice;

/// Returns the share of a member's buffer that leaves its unit through a level's tier in a group of `n` members, and
/// the number of messages.
pub(super) fn share_leaving_unit(level: &GroupLevel, n: f64, choice: Option<PartChoice>) -> (f64, f64) {
    let (below, members) = (f64::from(level.members_below), f64::from(level.members));
    match choice {
        None => ((members - below) / n, members - below),
        // All units are equally likely as an item's origin, or as the unit in which it has arrived.
        Some(choice) => {
            let copies = f64::from(choice.chosen.max(1));
            (choice.units_reached(below / n) * (1.0 - below / members) / copies, (members / below).ceil() - 1.0)
        }
    }
}

impl PartChoice {
    /// Returns the mean number of network units that an item goes to. Units are contiguous, and each holds `share` of
    /// the parts.
    #[must_use]
    pub fn units_reached(&self, share: f64) -> f64 {
        let parts = u64::from(self.parts.max(1));
        let unit = ((parts as f64 * share).round() as u64).clamp(1, parts);
        let group = (parts / u64::from(self.groups.max(1))).max(1);
        // The number of distinct offsets of units in groups.
        let ways = group / common_divisor(group, unit);
        let missed: f64 = (0..ways).map(|way| self.miss_probability(way * unit % group, unit, group)).sum();
        (1.0 - missed / ways as f64) * parts as f64 / unit as f64
    }

    /// Returns the probability that no part of a unit is chosen. The unit has `unit` parts and begins at part `from` of
    /// a group of `group` parts.
    fn miss_probability(&self, from: u64, unit: u64, group: u64) -> f64 {
        let first = (group - from).min(unit) % group;
        let (whole, last) = ((unit - first) / group, (unit - first) % group);
        let partial = [first, last].map(|parts| u64::from(parts > 0));
        let (groups, taken) = (u64::from(self.groups.max(1)), u64::from(self.groups_chosen.max(1)));
        let others = groups.saturating_sub(whole + partial[0] + partial[1]);
        let mut missed = 0.0;
        for (a, b) in [(0, 0), (0, 1), (1, 0), (1, 1)].into_iter().filter(|(a, b)| *a <= partial[0] && *b <= partial[1])
        {
            for inside in 0..=whole.min(taken.saturating_sub(a + b)) {
                let ways = log_choices(whole, inside) + log_choices(others, taken.saturating_sub(a + b + inside))
                    - log_choices(groups, taken);
                if a + b + inside <= taken && ways.is_finite() {
                    missed +=
                        ways.exp() * self.probability_none_chosen(taken * group, a * first + b * last + inside * group);
                }
            }
        }
        missed
    }

    /// Returns the probability that none of `parts` parts is chosen out of `all`.
    fn probability_none_chosen(&self, all: u64, parts: u64) -> f64 {
        (0..u64::from(self.chosen))
            .map(|i| all.saturating_sub(parts + i) as f64 / all.saturating_sub(i).max(1) as f64)
            .product()
    }
}

/// Returns the logarithm of the binomial coefficient n over k; minus infinity if it is zero.
fn log_choices(n: u64, k: u64) -> f64 {
    if k > n { f64::NEG_INFINITY } else { (1..=k).map(|i| ((n - k + i) as f64 / i as f64).ln()).sum() }
}

fn common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a.max(1) } else { common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::kernel::{Collective, CollectiveKind, RankGroup};
    use crate::network::Fabric;
    use crate::units::Bytes;
    use proptest::prelude::*;

    /// Returns all sets of `k` of the numbers below `n`.
    fn sets(n: u32, k: u32) -> Vec<u32> {
        (0..1_u32 << n).filter(|set| set.count_ones() == k).collect()
    }

    /// Returns the mean number of units reached, by enumerating every choice.
    fn counted(choice: PartChoice, units: u32) -> f64 {
        let (group, unit) = (choice.parts / choice.groups, choice.parts / units);
        let (mut reached, mut tried) = (0, 0);
        for groups in sets(choice.groups, choice.groups_chosen) {
            let of: Vec<u32> = (0..choice.parts).filter(|part| groups >> (part / group) & 1 == 1).collect();
            for set in sets(of.len() as u32, choice.chosen) {
                let parts = of.iter().enumerate().filter(|(at, _)| set >> at & 1 == 1).map(|(_, part)| part / unit);
                reached += parts.fold(0_u32, |seen, unit| seen | 1 << unit).count_ones();
                tried += 1;
            }
        }
        f64::from(reached) / f64::from(tried)
    }

    #[test]
    fn units_are_those_of_all_choices() {
        for (parts, groups) in [(12, 1), (12, 2), (12, 3), (12, 4), (12, 6), (12, 12), (8, 4), (10, 5)] {
            for groups_chosen in 1..=groups {
                for chosen in 1..=(parts / groups * groups_chosen).min(5) {
                    let choice = PartChoice { parts, chosen, groups, groups_chosen };
                    for units in (1..=parts).filter(|units| parts % units == 0) {
                        let (got, exact) = (choice.units_reached(1.0 / f64::from(units)), counted(choice, units));
                        assert!((got - exact).abs() < 1e-9, "{choice:?} on {units} units: {got}, not {exact}");
                    }
                }
            }
        }
    }

    /// DeepSeek-V3's experts on eight nodes: 8 of 256, in 4 of 8 groups; at most 4 nodes (section 2.1.2), 3.2 experts
    /// per node.
    #[test]
    fn a_token_goes_to_few_nodes() {
        let free = PartChoice { parts: 256, chosen: 8, groups: 1, groups_chosen: 1 };
        let limited = PartChoice { groups: 8, groups_chosen: 4, ..free };
        let [free, limited] = [free, limited].map(|choice| choice.units_reached(1.0 / 8.0));
        assert!((5.2..5.4).contains(&free), "{free}");
        assert!((3.6..3.7).contains(&limited), "{limited}");
    }

    fn choices() -> impl Strategy<Value = PartChoice> {
        (0_u32..4, 0_u32..5, 1_u32..9, any::<prop::sample::Index>()).prop_map(|(groups, size, chosen, at)| {
            let (groups, size) = (1 << groups, 1 << size);
            let chosen = chosen.min(groups * size);
            let least = chosen.div_ceil(size);
            PartChoice {
                parts: groups * size,
                chosen,
                groups,
                groups_chosen: least + at.index((groups - least + 1) as usize) as u32,
            }
        })
    }

    proptest! {
        /// A limit on groups never sends more, on any tier and in any group of devices. Sending once instead of copy by
        /// copy never sends more between nodes either.
        #[test]
        fn limited_groups_send_no_more(choice in choices(), ranks in 1_u32..8, stride in 0_u32..3) {
            let ranks = ranks.min(choice.parts.trailing_zeros());
            let fabric = Fabric::built_in("eos_ndr400x8").unwrap();
            let group = RankGroup { ranks: 1 << ranks, stride: 1 << stride };
            let of = |kind| fabric.cost_of_collective(&Collective { kind, bytes: Bytes(1 << 30), group });
            let free = PartChoice { groups: 1, groups_chosen: 1, ..choice };
            let (limited, free) = (of(CollectiveKind::Dispatch(choice)), of(CollectiveKind::Dispatch(free)));
            for (less, more) in limited.link_bytes.iter().zip(&free.link_bytes) {
                prop_assert!(less.0 <= more.0 + 1, "{limited:?} {free:?}");
            }
            let copies = of(CollectiveKind::AllToAll);
            prop_assert!(free.link_bytes[1].0 <= copies.link_bytes[1].0 + 1, "{free:?} {copies:?}");
        }
    }

    /// With one part per item there is nothing to send once.
    #[test]
    fn one_part_is_an_all_to_all_between_the_units() {
        let fabric = Fabric::built_in("eos_ndr400x8").unwrap();
        let choice = PartChoice { parts: 64, chosen: 1, groups: 1, groups_chosen: 1 };
        let group = RankGroup { ranks: 64, stride: 1 };
        let of = |kind| fabric.cost_of_collective(&Collective { kind, bytes: Bytes(1 << 30), group }).link_bytes;
        let [once, copies] = [CollectiveKind::Dispatch(choice), CollectiveKind::AllToAll].map(of);
        assert_eq!(once[1], copies[1]);
        // All data that arrives at a node is forwarded inside it, like the data that stays there.
        assert_eq!(once[0].0, 8 * copies[0].0);
    }
}
