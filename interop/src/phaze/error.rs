//! Errors in instances. Most name the place, the value, the limit and the cure.

use sim::files::strict;
use std::path::PathBuf;
use thiserror::Error;

/// Why an instance could not be read or is inconsistent. `at` is the path of the value inside the problem, as in
/// `nodes."4"[3].parameterSize`.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// The file could not be read.
    #[error("cannot read {}: {source}; check the path and its permissions", path.display())]
    Unreadable {
        /// The requested file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file was read, but its content is invalid.
    #[error("{}: {source}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// The fault in its content.
        source: Box<PlacementError>,
    },
    /// Not JSON, or a repeated key. JSON has no NaN and no Infinity, so a file with them ends here.
    #[error("not valid JSON: {source}; {}", strict::cure_for_refusal(.source, "write plain JSON, in which numbers are finite"))]
    NotJson {
        /// The parser's message, with line and column.
        source: serde_json::Error,
    },
    /// A required key is missing.
    #[error("{at} is missing; add it ({expected})")]
    Missing {
        /// The path of the missing value.
        at: String,
        /// The expected value.
        expected: &'static str,
    },
    /// An unknown key, most likely a typing error.
    #[error("{at} is not a known key; known here: {known}. Remove it or correct its name")]
    UnknownKey {
        /// The path of the key.
        at: String,
        /// The keys known at this place.
        known: String,
    },
    /// A value of the wrong JSON type.
    #[error("{at} is {found}, expected {expected}")]
    WrongType {
        /// The path of the value.
        at: String,
        /// The value found, shortened.
        found: String,
        /// The expected type.
        expected: &'static str,
    },
    /// A number outside its limits.
    #[error("{at} is {value}, but {limit}; {cure}")]
    OutOfRange {
        /// The path of the value.
        at: String,
        /// The value found.
        value: String,
        /// The limit it breaks.
        limit: String,
        /// The cure.
        cure: &'static str,
    },
    /// Two layers of one graph have the same id.
    #[error("{at}: layer id {id} occurs twice; give every layer its own id")]
    RepeatedId {
        /// The path of the second layer.
        at: String,
        /// The id.
        id: i64,
    },
    /// An edge names a layer that does not exist.
    #[error("{at} is {id}, but no layer has that id; name one of the {layers} layers in `nodes`")]
    EdgeToNowhere {
        /// The path of the end of the edge.
        at: String,
        /// The id it names.
        id: i64,
        /// The number of layers.
        layers: usize,
    },
    /// An edge occurs twice, or leads from a layer to itself.
    #[error("{at} leads from layer {from} to layer {to} {how}; {cure}")]
    BadEdge {
        /// The path of the edge.
        at: String,
        /// Its source.
        from: i64,
        /// Its destination.
        to: i64,
        /// `a second time` or `itself`.
        how: &'static str,
        /// The cure.
        cure: &'static str,
    },
    /// The graphs of two tensor widths do not describe the same model.
    #[error(
        "the graph of tensor width {width} has {what} that width {first} has not, or the reverse: {which}; every width needs the same \
         layers and edges"
    )]
    WidthsDiffer {
        /// The width at fault.
        width: usize,
        /// The width it is compared with.
        first: usize,
        /// `layers`, `edges` or `a graph`.
        what: &'static str,
        /// The first difference.
        which: String,
    },
    /// A layer is marked tensor parallel in the graph of width 1.
    #[error("{at} is true at tensor width 1, where nothing is split; set it to false")]
    TensorParallelAtWidthOne {
        /// The path of the flag.
        at: String,
    },
    /// The layers depend on each other in a cycle.
    #[error(
        "the edges form a cycle through layer {layer} ({remaining} layers are on or behind it); remove an edge of it"
    )]
    Cycle {
        /// A layer on or behind the cycle.
        layer: i64,
        /// Layers that no order can reach.
        remaining: usize,
    },
    /// The layers do not form a chain.
    #[error(
        "the layer graph branches: layers {first} and {second} depend on neither the other; only a chain of layers, with or without skip \
         edges, can be placed: merge the branches into one layer"
    )]
    Branching {
        /// One of two layers without an order.
        first: i64,
        /// The other.
        second: i64,
    },
}
