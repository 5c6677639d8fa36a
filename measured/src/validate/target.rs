//! Predicted columns, and the valid measured values in them.

/// A column whose value is predicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TargetColumn {
    /// The column's name.
    pub column: &'static str,
    /// The quantity, for axis labels.
    pub quantity: &'static str,
    /// The unit; empty for counts.
    pub unit: &'static str,
    /// The valid values.
    pub range: TargetRange,
}

/// The valid values of a measured quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetRange {
    /// Above zero: times.
    Positive,
    /// Zero or above: counts, areas.
    NotNegative,
    /// Zero or one: no or yes.
    Flag,
}

impl TargetColumn {
    pub(super) const fn new(
        column: &'static str,
        quantity: &'static str,
        unit: &'static str,
        range: TargetRange,
    ) -> Self {
        Self { column, quantity, unit, range }
    }
}
