//! The layer graphs that searches schedule: every built-in model, lowered in every way of a study, on any chip.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use coplace_search::memory::{LayerTensors, OperatorSet, RecomputeSpace};
use sim::cost::CostModel;
use sim::costed::{CostsBySpan, Device};
use sim::hardware::Accelerator;
use sim::kernel::KernelGraph;
use sim::network::Fabric;
use sim::schedule::{Operator, Problem};
use step::KernelTable;
use workloads::parallel::tensor_parallel_degrees;
use workloads::training::Attention;
use workloads::{Lowering, Model, RecomputeSet, Segment, TrainingGraph};

/// Devices of the clusters for collective costs.
const DEVICES: u32 = 1024;
/// The widest tensor parallelism.
const WIDEST: u32 = 8;
/// Limit on the sequence length in tokens. An operator over a million tokens takes more ticks than a schedule can
/// count.
const LONGEST: u64 = 131_072;
/// A fabric with latency, and one without latency on which collectives take longest.
pub const FABRICS: [&str; 2] = ["ici_3d_torus", "phaze_flat"];

/// A model lowered in several ways.
pub struct LayerGraphs {
    pub model: String,
    /// How each graph was lowered, and the graph.
    pub graphs: Vec<(&'static str, TrainingGraph)>,
}

/// Lowers a model in the ways of studies. On one device: with fused and unfused attention. On the largest
/// tensor-parallel degree up to eight: with and without sequence parallelism, and with elementwise work in the
/// epilogues of products.
pub fn lower_model(model: &str) -> LayerGraphs {
    let model = Model::load(model).unwrap();
    let widest = tensor_parallel_degrees(&model, WIDEST).into_iter().max().unwrap();
    let one = Lowering::new(&model);
    let one = Lowering { sequence_length: one.sequence_length.min(LONGEST), ..one };
    let wide = Lowering { tensor_parallel: widest, ..one };
    let mut ways = vec![
        ("one device", one),
        ("one device, attention unfused", Lowering { attention: Attention::Unfused, ..one }),
        ("tensor parallel", wide),
        ("tensor parallel, epilogues", Lowering { epilogues: true, ..wide }),
        ("sequence parallel", Lowering { sequence_parallel: true, ..wide }),
    ];
    ways.retain(|(_, way)| {
        !way.sequence_parallel || widest > 1 && way.sequence_length.is_multiple_of(u64::from(way.tensor_parallel))
    });
    let graphs = ways.into_iter().map(|(name, way)| (name, TrainingGraph::new(&model, &way).unwrap())).collect();
    LayerGraphs { model: model.name.clone(), graphs }
}

/// A chip with the costs of a model's kernels.
pub struct CostedChip {
    device: Device,
    table: KernelTable,
    costs: Vec<Option<CostsBySpan>>,
}

impl CostedChip {
    pub fn new(chip: &Accelerator, fabric: &str) -> Self {
        let fabric = Fabric::load(fabric).unwrap().for_devices(DEVICES).unwrap();
        let device = Device { model: CostModel::new(chip.clone()).unwrap(), fabric };
        Self { device, table: KernelTable::default(), costs: Vec::new() }
    }

    fn cost(&mut self, kernel: u32) -> CostsBySpan {
        self.costs.resize(self.table.kernels().len(), None);
        let known = &mut self.costs[kernel as usize];
        *known.get_or_insert_with(|| self.device.costs(&self.table.kernels()[kernel as usize]))
    }

    /// The scheduling problem of a pass.
    pub fn pass_problem(&mut self, graph: &KernelGraph) -> Problem {
        let program = self.table.intern_graph(graph);
        let operators: Vec<Operator> = program
            .kernels
            .iter()
            .map(|&k| {
                let costs = self.cost(k);
                self.device.operator(&self.table.kernels()[k as usize], &costs)
            })
            .collect();
        Problem::new(self.device.cores(), operators, program.edges.clone()).unwrap()
    }

    /// The named passes of a segment: forward, backward, and backward with recomputation. Recomputation is taken
    /// halfway along the Pareto front of bytes kept against time on this chip, and at its end with the fewest bytes.
    pub fn passes_of_segment(&mut self, segment: &Segment) -> Vec<(&'static str, Problem)> {
        let mut passes = vec![
            ("forward", self.pass_problem(&segment.forward_graph())),
            ("backward", self.pass_problem(&segment.backward_graph(&RecomputeSet::none()))),
        ];
        for operators in self.recompute_choices(segment) {
            let graph = segment.backward_graph(&operators.recompute_set());
            passes.push(("backward, recomputing", self.pass_problem(&graph)));
        }
        passes
    }

    fn recompute_choices(&mut self, segment: &Segment) -> Vec<OperatorSet> {
        let mut time = |kernel| {
            let kernel = self.table.intern_kernel(kernel);
            self.cost(kernel).fastest_latency()
        };
        let times: Vec<_> =
            segment.operators().iter().map(|op| op.forward.iter().map(|step| time(step.kernel)).sum()).collect();
        let front = RecomputeSpace::new(LayerTensors::from_segment(segment)).unwrap().front(&times).unwrap();
        let mut chosen = vec![front[front.len() / 2].operators, front[front.len() - 1].operators];
        chosen.dedup();
        chosen.retain(|set| !set.is_empty());
        chosen
    }
}

/// Calls `each` with every pass of a model on a chip and its name, on each fabric that makes a difference.
pub fn for_each_pass(chip: &Accelerator, layers: &LayerGraphs, mut each: impl FnMut(&str, &'static str, &Problem)) {
    for (number, fabric) in FABRICS.into_iter().enumerate() {
        let mut on_chip = CostedChip::new(chip, fabric);
        for (lowered, graph) in layers.graphs.iter().filter(|(_, g)| number == 0 || g.lowering.tensor_parallel > 1) {
            for segment in &graph.segments {
                for (pass, problem) in on_chip.passes_of_segment(segment) {
                    let name =
                        format!("{} on {} by {fabric}, {lowered}: {} {pass}", layers.model, chip.name, segment.name);
                    each(&name, pass, &problem);
                }
            }
        }
    }
}
