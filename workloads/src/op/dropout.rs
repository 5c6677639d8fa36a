//! Dropout with its mask kept, one byte per number (Korthikanti et al. 2022).

use super::{Shape, elementwise, input_chain, step};
use crate::graph::{GraphBuilder, NewOperator, TensorId};
use sim::kernel::{Direction, Function};
use sim::units::Bytes;

/// Adds dropout over `elements` numbers; returns what is left.
pub(crate) fn add(graph: &mut GraphBuilder, shape: &Shape, name: &str, elements: u64, input: TensorId) -> TensorId {
    let output = graph.activation(&format!("{name}.out"), elements);
    let mask = graph.constant(&format!("{name}.mask"), Bytes(elements));
    let (size, mask_size) = (shape.bytes(elements), Bytes(elements));
    let forward = elementwise(Function::Dropout, Direction::Forward, elements, size, size + mask_size);
    let backward = elementwise(Function::Dropout, Direction::Backward, elements, size + mask_size, size);
    graph.add(NewOperator {
        name: name.to_owned(),
        inputs: vec![input],
        outputs: vec![output, mask],
        forward: vec![step("forward", forward)],
        backward: vec![input_chain(&[input], &[mask], vec![step("backward_input", backward)])],
        ..NewOperator::default()
    });
    output
}
