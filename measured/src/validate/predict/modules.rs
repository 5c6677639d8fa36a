//! The column `recompute_modules`.

use super::PreparedInputs;
use crate::validate::row::MeasuredRow;
use workloads::Techniques;

/// The column.
pub(super) const MODULES: &str = "recompute_modules";

/// Notes the parts of the column that no plan can express.
pub(super) fn note_unsupported(prepared: &mut PreparedInputs, row: &MeasuredRow<'_>) {
    let Some(text) = row.cell(MODULES) else { return };
    if !["full_layers:", "cpu_offload_layers:"].iter().any(|known| text.starts_with(known))
        && parse_modules(text).is_none()
    {
        let text = text.escape_debug();
        prepared.note_assumption(format!("{MODULES} `{text}` is not modelled, taken as the policy of `recompute`"));
    }
}

/// Returns Megatron-LM's recomputed modules, separated by commas, semicolons, plus signs or blanks; `None` if one is
/// unknown.
pub(super) fn parse_modules(text: &str) -> Option<Techniques> {
    let name = |module: &str| format!("recompute-{}", module.trim().replace('_', "-")).parse().ok();
    text.split([',', ';', '+', ' ']).filter(|module| !module.is_empty()).map(name).collect()
}
