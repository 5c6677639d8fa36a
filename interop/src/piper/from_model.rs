//! Writes a model on a chip as one of Piper's graphs: a chain of the embedding, the layers and the head.
//!
//! Piper's terms are computed as follows:
//!
//! - `timePerSample`: kernels and tensor-parallel collectives of one micro-batch, forward, recomputation and backward,
//!   without exposed launches;
//! - `parameterSize`: bytes of the gradients of one device;
//! - `memoryUsageA`: bytes that one micro-batch keeps for its backward pass;
//! - `memoryUsageB`: weights, gradients and optimizer states, and with recomputation the rebuilt tensors of every
//!   layer, as in Piper's own files;
//! - `communicationCost`: bytes of the activations between two pieces, equal for all degrees;
//! - sync costs of degree `t`: the time of gathering the activations from `t` devices, as bytes at the bandwidth,
//!   because Piper knows only one bandwidth;
//! - `maxMemoryPerDevice`: the device's memory less driver, libraries, communicators of three axes, and fragmentation;
//! - `bandwidth`: achieved by a device on the fabric's outermost tier.

use super::{PiperChoice, PiperEdge, PiperError, PiperInstance, PiperNode};
use search::planner::Job;
use sim::kernel::{Collective, CollectiveKind, RankGroup};
use sim::pipeline::PipelineSchedule;
use std::collections::BTreeMap;
use step::{ChipTimes, PieceProfile, StepError, lower_plan};
use workloads::parallel::tensor_parallel_degrees;
use workloads::{ActivationPolicy, Batch, Layout, Segment, SegmentKind, Treatment};

const GIB: f64 = 1_073_741_824.0;
const MIB: f64 = 1_048_576.0;
/// Communicators of a device: tensor, data, pipeline.
const COMMUNICATORS: f64 = 3.0;
/// The choices, by the names of Piper's own files.
const CHOICES: [(&str, ActivationPolicy); 2] =
    [("vanilla", ActivationPolicy::None), ("activation recomp", ActivationPolicy::Full)];

/// The costs of a piece (embedding, layer or head) at one tensor-parallel degree and under one policy.
#[derive(Debug, Clone)]
struct PiperPiece {
    id: &'static str,
    time: f64,
    parameters: f64,
    kept: f64,
    held: f64,
}

/// Returns the graph of a job with micro-batches of `micro_batch` sequences. `tensor` gives the tensor-parallel
/// degrees; without it, the graph has all degrees that the model allows inside one unit of the fabric's innermost tier.
///
/// # Errors
/// A micro-batch that does not divide the batch, a degree that the model does not allow, or a chip that the cost model
/// cannot use.
pub fn piper_graph_of_job(
    job: &Job<'_>,
    micro_batch: u64,
    tensor: Option<&[u32]>,
) -> Result<PiperInstance, PiperError> {
    if micro_batch == 0 || !job.global_batch.is_multiple_of(micro_batch) {
        return Err(PiperError::Value {
            what: "micro_batch".to_owned(),
            value: micro_batch.to_string(),
            limit: format!("must divide the {} sequences of a step", job.global_batch),
            cure: "use one that divides them".to_owned(),
        });
    }
    let inside = job.fabric.fast_domain_devices().min(job.devices);
    let degrees = tensor.map_or_else(|| tensor_parallel_degrees(job.model, inside), <[u32]>::to_vec);
    let outer = job.fabric.tiers.last();
    let bandwidth = outer.map_or(0.0, |tier| tier.bandwidth.0 * tier.achieved_fraction);
    let mut chip = ChipTimes::new(job.chip, job.stack)?;
    let mut by_degree = BTreeMap::new();
    for t in degrees {
        by_degree.insert(t, PiperDegree::new(job, &mut chip, t, micro_batch, bandwidth)?);
    }
    let layers = i64::try_from(job.model.layers).unwrap_or(i64::MAX - 2);
    let kind = |id: i64| match id {
        0 => SegmentKind::Embedding,
        _ if id > layers => SegmentKind::Head,
        _ => SegmentKind::Layer,
    };
    let node = |id: i64| {
        let choices =
            by_degree.iter().map(|(t, degree)| (*t, degree.choices_of_piece(kind(id), id, layers + 1))).collect();
        PiperNode { id, name: Some(kind(id).to_string()), choices }
    };
    let bytes = by_degree.values().next().map_or(0.0, |degree| degree.boundary);
    Ok(PiperInstance {
        max_memory_per_device: usable_memory(job),
        max_devices: job.devices,
        bandwidth,
        micro_batches: u32::try_from(job.global_batch / micro_batch).unwrap_or(u32::MAX),
        nodes: (0..=layers + 1).map(node).collect(),
        edges: (0..=layers).map(|id| PiperEdge { source: id, destination: id + 1, bytes }).collect(),
    })
}

fn usable_memory(job: &Job<'_>) -> f64 {
    let memory = &job.stack.memory;
    let outside = (memory.driver_reserved_gib + memory.context_gib + memory.workspace_gib) * GIB;
    let free = job.chip.memory_capacity().as_f64() - outside - COMMUNICATORS * memory.communicator_mib * MIB;
    (free / (1.0 + memory.fragmentation)).floor().max(1.0)
}

/// The pieces of a model at one tensor-parallel degree.
struct PiperDegree {
    embedding: Vec<PiperPiece>,
    layer: Vec<PiperPiece>,
    head: Vec<PiperPiece>,
    /// Bytes between two pieces.
    boundary: f64,
    /// Time of gathering these bytes from the devices of a degree, as bytes at the bandwidth.
    sync: f64,
}

impl PiperDegree {
    fn new(job: &Job<'_>, chip: &mut ChipTimes, t: u32, micro_batch: u64, bandwidth: f64) -> Result<Self, PiperError> {
        let layout = Layout { tensor: t, ..Layout::default() };
        let batch = Batch { micro_batch, global_batch: micro_batch, sequence_length: job.sequence_length };
        layout.check_model_and_batch(job.model, &batch).map_err(StepError::from)?;
        let mut degree = Self { embedding: Vec::new(), layer: Vec::new(), head: Vec::new(), boundary: 0.0, sync: 0.0 };
        for (id, policy) in CHOICES {
            let plan = job.make_plan(layout, batch, policy, PipelineSchedule::OneForwardOneBackward);
            let graph = lower_plan(job.model, &plan, job.stack)?;
            let profile = chip.profile_lowered(job.model, &graph, job.fabric, &plan)?;
            for segment in &graph.segments {
                let (list, costs, copied) = match segment.kind {
                    SegmentKind::Embedding => (&mut degree.embedding, profile.embedding, 0),
                    SegmentKind::Layer => (&mut degree.layer, profile.layer, 0),
                    SegmentKind::Head => (&mut degree.head, profile.head, profile.tied_parameters),
                };
                // Policies apply to layers; the embedding and the head have one choice.
                if segment.kind == SegmentKind::Layer || list.is_empty() {
                    let treatment = plan
                        .activations
                        .first_layer_policy()
                        .treatment_with_extent(&segment.graph, job.stack.replay_extent());
                    list.push(make_piece(id, segment, &treatment, &costs, copied));
                }
            }
            let gather = Collective {
                kind: CollectiveKind::AllGather,
                bytes: profile.boundary,
                group: RankGroup { ranks: t, stride: 1 },
            };
            degree.boundary = profile.boundary.as_f64();
            degree.sync = if t > 1 { chip.cost_of_collective(job.fabric, &gather).time.0 * bandwidth } else { 0.0 };
        }
        Ok(degree)
    }

    fn choices_of_piece(&self, kind: SegmentKind, id: i64, last: i64) -> Vec<PiperChoice> {
        let pieces = match kind {
            SegmentKind::Embedding => &self.embedding,
            SegmentKind::Layer => &self.layer,
            SegmentKind::Head => &self.head,
        };
        let edge = |neighbour: i64| (0..=last).contains(&neighbour).then_some((neighbour, self.sync));
        let choice = |piece: &PiperPiece| PiperChoice {
            id: piece.id.to_owned(),
            time_per_sample: piece.time,
            parameter_bytes: piece.parameters,
            memory_a: piece.kept,
            memory_b: piece.held,
            sync_forward: edge(id - 1).into_iter().collect(),
            sync_backward: edge(id + 1).into_iter().collect(),
        };
        pieces.iter().map(choice).collect()
    }
}

/// Makes a piece from a segment's costs. `copied` counts parameters of another piece, of which this piece keeps a copy.
fn make_piece(
    id: &'static str,
    segment: &Segment,
    treatment: &Treatment,
    costs: &PieceProfile,
    copied: u64,
) -> PiperPiece {
    let per = segment.bytes_per_parameter();
    let own = costs.parameters + costs.expert_parameters;
    let states = (per.weight + per.gradient + per.master + per.state).as_f64() * (own + copied) as f64;
    let rebuilt = if id == CHOICES[0].0 { 0.0 } else { treatment.rebuilt_bytes(&segment.graph).as_f64() };
    PiperPiece {
        id,
        time: (costs.forward.busy_time() + costs.recompute.busy_time() + costs.backward.busy_time()).0,
        parameters: per.gradient.as_f64() * own as f64,
        kept: treatment.kept_bytes(&segment.graph).as_f64(),
        held: states + rebuilt,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::super::place_graph;
    use super::*;
    use sim::hardware::Accelerator;
    use sim::network::Fabric;
    use step::SoftwareStack;
    use workloads::Model;
    use workloads::footprint::{Optimizer, Precision};
    use workloads::training::Attention;

    fn with<T>(devices: u32, run: impl FnOnce(&Job<'_>) -> T) -> T {
        let model = Model::load("gpt2-xl").unwrap();
        let chip = Accelerator::built_in("a100_80gb_sxm").unwrap();
        let fabric = Fabric::built_in("selene_hdr200x8").unwrap().for_devices(devices).unwrap();
        let stack = SoftwareStack::load("megatron").unwrap();
        run(&Job {
            model: &model,
            chip: &chip,
            fabric: &fabric,
            stack: &stack,
            devices,
            global_batch: 64,
            sequence_length: 1024,
            attention: Attention::Fused,
            precision: Precision::MIXED_BF16,
            optimizer: Optimizer::Adam,
            headroom: sim::units::Bytes::ZERO,
            fit: search::planner::NO_MARGIN,
            techniques: workloads::Techniques::none(),
        })
    }

    #[test]
    fn a_model_is_a_chain_whose_costs_add_up_to_its_own() {
        with(16, |job| {
            let instance = piper_graph_of_job(job, 2, None).unwrap();
            let again = PiperInstance::from_json_str(&instance.to_json_string(), "gpt2.json").unwrap();
            assert_eq!(again, instance, "what is written is read back");
            assert_eq!((instance.nodes.len(), instance.edges.len(), instance.micro_batches), (50, 49, 32));
            let degrees: Vec<u32> = instance.nodes[3].choices.keys().copied().collect();
            assert_eq!(degrees, tensor_parallel_degrees(job.model, 8));
            let batch = Batch { micro_batch: 2, global_batch: 2, sequence_length: 1024 };
            let plan = job.make_plan(
                Layout::default(),
                batch,
                ActivationPolicy::None,
                PipelineSchedule::OneForwardOneBackward,
            );
            let mut chip = ChipTimes::new(job.chip, job.stack).unwrap();
            let profile = chip.profile_plan(job.model, job.fabric, &plan).unwrap();
            let busy = |piece: &PieceProfile| {
                (piece.forward.busy_time() + piece.recompute.busy_time() + piece.backward.busy_time()).0
            };
            let whole = busy(&profile.embedding) + busy(&profile.layer) * 48.0 + busy(&profile.head);
            let sum =
                |of: fn(&PiperChoice) -> f64| instance.nodes.iter().map(|node| of(&node.choices[&1][0])).sum::<f64>();
            assert!((sum(|c| c.time_per_sample) / whole - 1.0).abs() < 1e-12);
            // Every parameter has a gradient of two bytes. The matrix that embedding and head share counts once.
            assert!((sum(|c| c.parameter_bytes) / (2.0 * job.model.parameters() as f64) - 1.0).abs() < 1e-3);
            let layer = &instance.nodes[1].choices[&1];
            assert!(
                layer[1].time_per_sample > 1.25 * layer[0].time_per_sample
                    && layer[1].memory_a < 0.2 * layer[0].memory_a
            );
            assert!(instance.nodes[1].choices[&1][0].sync_forward[&0] == 0.0);
            assert!(degrees.len() == 1 || instance.nodes[1].choices[&degrees[1]][0].sync_forward[&0] > 0.0);
        });
    }

    #[test]
    fn a_written_model_is_placed_with_proof() {
        with(16, |job| {
            let instance = piper_graph_of_job(job, 2, None).unwrap();
            let solution = place_graph(&instance).unwrap();
            assert_eq!((solution.status, solution.cuts), (sim::status::SolveStatus::Optimal, 51));
            let plan = solution.plan.unwrap();
            assert!(plan.device_count() <= 16 && super::super::evaluate_piper_plan(&instance, &plan).faults.is_empty());
        });
    }

    #[test]
    fn a_micro_batch_that_does_not_divide_and_a_degree_that_the_model_refuses() {
        with(16, |job| {
            let error = piper_graph_of_job(job, 3, None).unwrap_err().to_string();
            assert_eq!(error, "micro_batch = 3: must divide the 64 sequences of a step; use one that divides them");
            let error = piper_graph_of_job(job, 2, Some(&[2])).unwrap_err().to_string();
            assert!(error.starts_with("tp = 2: must be a divisor of the 25 heads"), "{error}");
        });
    }
}
