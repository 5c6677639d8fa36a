//! Attention as a serving or training library runs it: tiles of queries in waves over the cores, with keys streamed
//! past them.
//!
//! The softmax of a tile lies between its two products. If a core works on two tiles in turn, products and softmax
//! overlap: the longer one counts, plus the exposed part of the shorter one. A causal tile of queries sees the keys up
//! to its own last token; a window limits them further. Decoding reads keys and values once for all query heads of a
//! group, on as many cores as there are groups or parts of the keys. The scalars are
//! [`crate::hardware::KernelLibrary`]'s; the constants (`sim/constants/library.toml`) agree on A100 and H100.

use super::attention_call::{AttentionCall, AttentionSoftware};
use super::library_model::LibraryModel;
use super::machine::SpanResources;
use super::tensor_core::ceil_div;
use super::{CostModel, vector_alignment};
use crate::kernel::Direction;

/// Keys per step.
const KEYS: f64 = 64.0;
/// Most query heads that share the keys they read; larger groups are read head by head.
const LARGEST_GROUP: u64 = 32;

/// Returns the seconds of a call that runs alone.
pub(super) fn time_alone(model: &CostModel, view: &SpanResources, library: &LibraryModel, call: &AttentionCall) -> f64 {
    if call.queries == 1 && call.direction == Direction::Forward && call.keys > 1 {
        return time_of_decode(view, library, call);
    }
    let tensors = match call.direction {
        Direction::Forward => 2.0,
        Direction::Backward => 4.0,
    };
    let numbers = tensors * (call.batch * call.queries * call.head_dim) as f64 * (call.heads + call.kv_heads) as f64;
    let bytes = numbers * call.operand.packed_bytes_per_number();
    let constants = &library.constants;
    match call.direction {
        Direction::Forward if call.software == AttentionSoftware::Serving => {
            constants.context_launch * 1e-6
                + time_of_cores(model, view, library, call)
                + constants.context_passes * bytes * library.read
        }
        _ => library.scalars.floor.0 + time_of_cores(model, view, library, call) + bytes * library.read,
    }
}

/// Returns the seconds of the cores, with the faster of the two tile heights of libraries.
fn time_of_cores(model: &CostModel, view: &SpanResources, library: &LibraryModel, call: &AttentionCall) -> f64 {
    [128.0, 64.0]
        .into_iter()
        .map(|height| time_of_tiles(model, view, library, call, height))
        .fold(f64::INFINITY, f64::min)
}

fn time_of_tiles(
    model: &CostModel,
    view: &SpanResources,
    library: &LibraryModel,
    call: &AttentionCall,
    height: f64,
) -> f64 {
    let machine = &model.machine;
    let rates = rates_of_call(library, call);
    let products = match call.direction {
        Direction::Forward => 2.0,
        Direction::Backward => 5.0,
    };
    let cycles = machine.constants.cycles_of_score(call.direction);
    let rows = count_tiles(call.queries, height);
    let units = (call.batch * call.heads) as f64 * rows;
    let (mean, most) = visible_keys(call, height, rows);
    let vector = vector_alignment(call.head_dim, call.operand.bytes());
    let tensor =
        products * height * KEYS * call.head_dim as f64 / (machine.core_peak(call.operand) * rates.issue * vector);
    let lanes = view.lanes / view.vector_cores * machine.clock * rates.softmax;
    let softmax = height * KEYS * cycles / lanes;
    let step = tensor.max(softmax) + rates.exposed * tensor.min(softmax);
    let waves = ceil_div(units, view.cores);
    let steps = (waves * ceil_div(mean, KEYS)).max(ceil_div(most, KEYS));
    steps * step + waves * rates.tile_overhead
}

/// The rates of a call's kernel.
struct AttentionRates {
    issue: f64,
    exposed: f64,
    softmax: f64,
    tile_overhead: f64,
}

fn rates_of_call(library: &LibraryModel, call: &AttentionCall) -> AttentionRates {
    let constants = &library.constants;
    let (issue, exposed) = match (call.software, call.direction) {
        (AttentionSoftware::Version(own), Direction::Forward) => (own.issue_fraction, own.exposed_fraction),
        (AttentionSoftware::Version(own), Direction::Backward) => {
            (own.backward_issue_fraction, own.backward_exposed_fraction)
        }
        (AttentionSoftware::Serving, Direction::Forward) => (constants.attention_issue, constants.attention_exposed),
        (AttentionSoftware::Training, Direction::Forward) => {
            (constants.training_attention_issue, constants.training_attention_exposed)
        }
        (_, Direction::Backward) => (constants.backward_attention_issue, constants.attention_exposed),
    };
    let (softmax, overhead) = match call.software {
        AttentionSoftware::Version(own) => (own.softmax_fraction, own.tile_overhead),
        _ => (library.scalars.softmax_fraction, library.scalars.attention_tile_overhead),
    };
    AttentionRates { issue, exposed, softmax, tile_overhead: overhead.0 }
}

/// Returns the mean and the largest number of keys that a tile of queries sees.
fn visible_keys(call: &AttentionCall, height: f64, rows: f64) -> (f64, f64) {
    let keys = call.keys as f64;
    // All tiles see the tokens before the new ones.
    let before = call.keys.saturating_sub(call.queries) as f64;
    let causal = if rows > 1.0 { (before + (rows + 1.0) / 2.0 * height).min(keys) } else { keys };
    let Some(window) = call.window else { return (causal, keys) };
    let most = ((window.min(call.keys)) as f64 + height).min(keys);
    // Tiles before the window is full see as many keys as a causal tile; the others see the window.
    let filling = (most / height).clamp(0.0, rows);
    let mean = (filling * (filling + 1.0) / 2.0 * height + (rows - filling) * most) / rows;
    (mean.min(causal), most)
}

/// Returns the seconds of decoding: one new token of each sequence.
fn time_of_decode(view: &SpanResources, library: &LibraryModel, call: &AttentionCall) -> f64 {
    let constants = &library.constants;
    let keys = call.window.map_or(call.keys, |window| window.min(call.keys)) as f64;
    let group = call.heads.div_ceil(call.kv_heads.max(1));
    let shared = group <= LARGEST_GROUP;
    let units = (call.batch * if shared { call.kv_heads } else { call.heads }) as f64;
    let width = call.head_dim as f64;
    let per_key = 2.0 * width * call.operand.packed_bytes_per_number();
    let parts = (view.cores / units).floor().min(ceil_div(keys, KEYS)).max(1.0);
    let waves = ceil_div(units * parts, view.cores);
    let stream = ceil_div(keys / parts, KEYS) * KEYS * per_key / (library.core_read_rate() * constants.decode_read);
    let start =
        if shared && group > 1 { constants.decode_group * (1.0 + width / 128.0) } else { constants.decode_head };
    let work = waves * (stream + start * 1e-6);
    let bytes = (call.batch * call.kv_heads) as f64 * keys * per_key;
    let read = library
        .scalars
        .decode
        .map_or(library.read / constants.decode_stream, |decode| library.peak / decode.read_fraction);
    let moving = bytes * read;
    let sum = if parts > 1.0 { constants.decode_split * 1e-6 } else { 0.0 };
    // Cores finish at different times. So if the cores' work and the memory traffic take equally long, neither hides
    // all of the other.
    let launch = library.scalars.decode.map_or(constants.decode_launch * 1e-6, |decode| decode.launch.0);
    launch + (work.powi(4) + moving.powi(4)).sqrt().sqrt() + sum
}

/// Returns the number of tiles of `size` that cover `length`.
fn count_tiles(length: u64, size: f64) -> f64 {
    ceil_div(length as f64, size)
}
