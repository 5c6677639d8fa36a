//! The table of errors.

/// The columns of a table of residuals.
pub const COLUMNS: [&str; 20] = [
    "quantity",
    "dataset",
    "id",
    "ranking",
    "measured",
    "chip",
    "chip_kind",
    "fabric",
    "fabric_kind",
    "stack",
    "stack_kind",
    "mechanisms",
    "chips",
    "in_sample",
    "by_model",
    "by_nodes",
    "by_chip",
    "by_stack",
    "model_fold",
    "nodes_fold",
];
