//! Shards of a space's combinations, equal on every machine.

use std::fmt;
use std::str::FromStr;

/// Consecutive combinations in one shard.
const RUN: u64 = 64;

/// One of several shards of a sweep. Runs of combinations are dealt in turn, so every shard has combinations from all
/// regions of the space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// The shard's number, from 1.
    pub part: u32,
    /// The number of shards.
    pub of: u32,
}

impl Shard {
    /// The whole sweep.
    pub const WHOLE: Self = Self { part: 1, of: 1 };

    /// True if a combination belongs to the shard.
    #[must_use]
    pub fn contains(self, number: u64) -> bool {
        number / RUN % u64::from(self.of) == u64::from(self.part - 1)
    }

    /// The number of combinations below `total` that belong to the shard.
    #[must_use]
    pub fn size_of(self, total: u64) -> u64 {
        let (round, own) = (RUN * u64::from(self.of), RUN * u64::from(self.part - 1));
        total / round * RUN + (total % round).saturating_sub(own).min(RUN)
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.part, self.of)
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "write PART/PARTS, for example 1/8".to_owned();
        let (part, of) = text.split_once('/').ok_or_else(wrong)?;
        let number = |text: &str| text.trim().parse::<u32>().map_err(|_| wrong());
        let shard = Self { part: number(part)?, of: number(of)? };
        if shard.part == 0 || shard.part > shard.of || shard.of > 1 << 16 {
            return Err(format!("PART must be from 1 to PARTS, and PARTS at most 65536; {}", wrong()));
        }
        Ok(shard)
    }
}
