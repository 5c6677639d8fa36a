//! The schedules of a pipeline, and what sets each apart.
//!
//! A new schedule in a V is a variant of [`VSchedule`], a row of [`SCHEDULES`], its [`VFacts`], and its order of passes.

use super::dual_pipe::dual_pipe_v_order;
use super::pass::PassOrder;
use serde::{Deserialize, Serialize};

/// The order in which devices work on micro-batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PipelineSchedule {
    /// All forward passes, then all backward passes (Huang et al., NeurIPS 2019).
    GPipe,
    /// One forward, one backward (PipeDream-Flush; Narayanan et al., SC 2021): stage `k` of `p` keeps `min(m, p - k)`
    /// micro-batches alive.
    OneForwardOneBackward,
    /// 1F1B over `chunks` model chunks per device (Narayanan et al., SC 2021, section 2.2); `m` is a multiple of the
    /// devices.
    Interleaved {
        /// Model chunks per device, at least 2.
        chunks: u32,
    },
    /// Zero bubble H1 (Qi et al., ICLR 2024): 1F1B with separate weight gradients that fill the bubble. Device `k`
    /// delays them by `k` micro-batches, so every device has the peak memory of 1F1B's first device. If it is faster,
    /// no device delays them. The schedule never takes longer than 1F1B with the same passes.
    ZbH1,
    /// Two chunks per device in a V: device `k` of `p` holds virtual stages `k` and `2p - 1 - k`.
    #[serde(untagged)]
    InV(VSchedule),
}

/// A schedule with two chunks per device in a V.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VSchedule {
    /// Zero bubble V (Qi et al., ICLR 2024), within the memory of 1F1B's first stage. It takes the fastest of a few
    /// orders of passes that are decided beforehand.
    ZbV,
    /// V-Half (Qi et al., *Pipeline Parallelism with Controllable Memory*, NeurIPS 2024): ZB-V within about half of its
    /// memory, `p / 2 + 1` micro-batches.
    VHalf,
    /// V-Min (same paper): ZB-V within about a third of its memory, `p / 3 + 1` micro-batches.
    VMin,
    /// DualPipeV (deepseek-ai/DualPipe): the chunks of ZB-V in DeepSeek-V3's order, in which a forward and a backward
    /// pass run as one; at least two micro-batches per device. DualPipe over `2 p` stages takes its time over `p`.
    DualPipeV,
}

/// The schedules that a question may name: word, meaning and schedule. The number of chunks is a separate choice, so
/// [`PipelineSchedule::Interleaved`] has no row.
pub const SCHEDULES: [(&str, &str, PipelineSchedule); 7] = [
    (
        "1f1b",
        "One forward, one backward; interleaved where stages hold several chunks",
        PipelineSchedule::OneForwardOneBackward,
    ),
    ("gpipe", "All forward passes first", PipelineSchedule::GPipe),
    ("zb-h1", "Zero bubble H1", PipelineSchedule::ZbH1),
    ("zb-v", "Zero bubble V", PipelineSchedule::ZB_V),
    ("v-half", "Zero bubble V within half of 1F1B's activation memory", PipelineSchedule::V_HALF),
    ("v-min", "Zero bubble V within a third of 1F1B's activation memory", PipelineSchedule::V_MIN),
    ("dualpipe-v", "DualPipeV, which is DualPipe over half as many stages", PipelineSchedule::DUAL_PIPE_V),
];

/// Properties of a schedule in a V on `p` devices.
struct VFacts {
    /// Its usual name in publications.
    name: &'static str,
    /// The most passes in flight on a device, passes through both chunks counted.
    most_passes: fn(p: u32) -> u32,
    /// The fewest micro-batches for which its order is defined.
    least_micro_batches: fn(p: u32) -> u32,
    /// Its published order for numbers of devices and micro-batches. Without one, orders are decided within
    /// `most_passes`.
    published_order: Option<fn(devices: usize, micro_batches: usize) -> PassOrder>,
}

impl VSchedule {
    /// Every schedule in a V.
    pub const ALL: [Self; 4] = [Self::ZbV, Self::VHalf, Self::VMin, Self::DualPipeV];

    fn facts(self) -> VFacts {
        match self {
            Self::ZbV => {
                VFacts { name: "ZB-V", most_passes: |p| 2 * p, least_micro_batches: |_| 1, published_order: None }
            }
            Self::VHalf => VFacts {
                name: "V-Half",
                most_passes: |p| 2 * (p.div_ceil(2) + 1).min(p),
                least_micro_batches: |_| 1,
                published_order: None,
            },
            Self::VMin => VFacts {
                name: "V-Min",
                most_passes: |p| 2 * (p.div_ceil(3) + 1).min(p),
                least_micro_batches: |_| 1,
                published_order: None,
            },
            Self::DualPipeV => VFacts {
                name: "DualPipeV",
                // One pass more than ZB-V: a backward pass runs beside the forward pass that follows it.
                most_passes: |p| 2 * p + 1,
                least_micro_batches: |p| 2 * p,
                published_order: Some(dual_pipe_v_order),
            },
        }
    }

    /// Returns the most passes in flight on any of `p` devices, passes through both chunks counted.
    #[must_use]
    pub fn most_passes(self, p: u32) -> u32 {
        (self.facts().most_passes)(p)
    }

    /// Returns the published order of passes; `None` if orders are decided within [`Self::most_passes`].
    pub(super) fn published_order(self, devices: usize, micro_batches: usize) -> Option<PassOrder> {
        self.facts().published_order.map(|order| order(devices, micro_batches))
    }
}

impl PipelineSchedule {
    /// [`VSchedule::ZbV`].
    pub const ZB_V: Self = Self::InV(VSchedule::ZbV);
    /// [`VSchedule::VHalf`].
    pub const V_HALF: Self = Self::InV(VSchedule::VHalf);
    /// [`VSchedule::VMin`].
    pub const V_MIN: Self = Self::InV(VSchedule::VMin);
    /// [`VSchedule::DualPipeV`].
    pub const DUAL_PIPE_V: Self = Self::InV(VSchedule::DualPipeV);
    /// The number of kinds, whatever the number of chunks.
    pub const KINDS: usize = 4 + VSchedule::ALL.len();

    /// Returns the number of the schedule's kind, below [`Self::KINDS`].
    #[must_use]
    pub fn kind_index(self) -> usize {
        match self {
            Self::GPipe => 0,
            Self::OneForwardOneBackward => 1,
            Self::Interleaved { .. } => 2,
            Self::ZbH1 => 3,
            Self::InV(schedule) => 4 + schedule as usize,
        }
    }

    /// True if device `k` of `p` holds virtual stages `k` and `2p - 1 - k`.
    #[must_use]
    pub fn is_in_v(self) -> bool {
        matches!(self, Self::InV(_))
    }

    /// Its word in questions and files, whatever the number of chunks; `interleaved` has no row in [`SCHEDULES`].
    #[must_use]
    pub fn word(self) -> &'static str {
        SCHEDULES.iter().find(|(.., schedule)| *schedule == self).map_or("interleaved", |(word, ..)| word)
    }

    /// Its usual name in publications.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::GPipe => "GPipe",
            Self::OneForwardOneBackward => "1F1B",
            Self::Interleaved { .. } => "interleaved",
            Self::ZbH1 => "ZB-H1",
            Self::InV(schedule) => schedule.facts().name,
        }
    }

    /// Returns the fewest micro-batches for which the schedule's order is defined on `p` devices.
    #[must_use]
    pub fn least_micro_batches(self, p: u32) -> u32 {
        if let Self::InV(schedule) = self { (schedule.facts().least_micro_batches)(p) } else { 1 }
    }

    /// The schedule without its number of chunks, which is a separate choice.
    #[must_use]
    pub fn without_chunks(self) -> Self {
        if let Self::Interleaved { .. } = self { Self::OneForwardOneBackward } else { self }
    }

    /// Model chunks per device.
    #[must_use]
    pub fn chunks_per_device(self) -> u32 {
        match self {
            Self::Interleaved { chunks } => chunks,
            Self::InV(_) => 2,
            Self::GPipe | Self::OneForwardOneBackward | Self::ZbH1 => 1,
        }
    }

    /// True if weight gradients are separate passes.
    #[must_use]
    pub fn splits_backward(self) -> bool {
        self == Self::ZbH1 || self.is_in_v()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_schedule_in_a_v_has_a_word() {
        for v in VSchedule::ALL {
            assert!(SCHEDULES.iter().any(|(.., known)| *known == PipelineSchedule::InV(v)), "{v:?} has no word");
        }
    }

    #[test]
    fn every_kind_has_its_own_index_word_and_text() {
        let asked = SCHEDULES.map(|(.., schedule)| schedule);
        let all: Vec<_> = asked.into_iter().chain([PipelineSchedule::Interleaved { chunks: 2 }]).collect();
        let indices: BTreeSet<usize> = all.iter().map(|schedule| schedule.kind_index()).collect();
        assert!(indices.into_iter().eq(0..PipelineSchedule::KINDS));
        let words: BTreeSet<&str> = all.iter().map(|schedule| schedule.word()).collect();
        assert_eq!(words.len(), PipelineSchedule::KINDS);
        for schedule in all {
            let text = serde_json::to_string(&schedule).unwrap();
            assert_eq!(serde_json::from_str::<PipelineSchedule>(&text).unwrap(), schedule, "{text}");
        }
        assert_eq!(serde_json::to_string(&PipelineSchedule::V_HALF).unwrap(), "\"v_half\"");
    }
}
