//! Turns a row of Calculon's format (application, execution, system) into a step of this project: a model, a plan, a
//! chip, the networks of the parallel axes, and a software stack with the overlaps and fusions of the row.

use crate::calculon::job::{CalculonApplication, CalculonExecution};
use crate::calculon::system::{CalculonAxis, CalculonSystem};
use sim::files::FileError;
use sim::hardware::Accelerator;
use sim::network::Fabric;
use sim::pipeline::PipelineSchedule;
use step::{
    ChipTimes, DeviceMemory, PieceProfile, SoftwareStack, StepError, StepMemory, StepProfile, StepTime, TrainingPlan,
    step_memory, step_time_of,
};
use workloads::Model;
use workloads::footprint::{BytesPerParameter, Optimizer};
use workloads::training::Attention;

/// A row, ready to run.
#[derive(Debug, Clone)]
pub struct CalculonRow {
    /// The model.
    pub model: Model,
    /// The plan.
    pub plan: TrainingPlan,
    /// The chip of every device.
    pub chip: Accelerator,
    /// The networks of the parallel axes, cut to the row's devices.
    pub fabric: Fabric,
    /// The software, with the row's own options.
    pub stack: SoftwareStack,
    /// Assumptions where the files give no value, one line each.
    pub assumed: Vec<String>,
    /// Parts of the files that this model does not have, one line each.
    pub not_modelled: Vec<String>,
}

/// The result of a row.
#[derive(Debug, Clone)]
pub struct CalculonOutcome {
    /// The step of the whole model.
    pub step: StepTime,
    /// Its memory.
    pub memory: StepMemory,
    /// The step of the blocks alone, without embedding and head, as Calculon times it.
    pub blocks: StepTime,
    /// One micro-batch on one device.
    profile: StepProfile,
}

/// Makes a row from its files. The model gets a vocabulary of `vocabulary` rows.
///
/// # Errors
/// Degrees that do not divide the model or fit the networks, or a data type that an engine does not have.
pub fn assemble_row(
    application: &CalculonApplication,
    execution: &CalculonExecution,
    system: &CalculonSystem,
    stack: &SoftwareStack,
    vocabulary: u64,
) -> Result<CalculonRow, FileError> {
    execution.check_against_application(application)?;
    let [tensor, pipeline, data] = execution.networks;
    let axis = |key, degree, network_key, network| CalculonAxis { key, degree, network_key, network };
    let fabric = system.to_fabric_of_axes(
        &execution.file,
        &[
            axis("tensor_par", execution.tensor_par, "tensor_par_net", tensor),
            axis("data_par", execution.data_par, "data_par_net", data),
            axis("pipeline_par", execution.pipeline_par, "pipeline_par_net", pipeline),
        ],
    )?;
    let chip = system.to_chip(Some(execution.data_type))?.accelerator;
    let mut stack = stack.clone();
    let hidden = |on: bool| if on { 1.0 } else { 0.0 };
    stack.kernels.elementwise_fusion = execution.fused_activation;
    stack.overlap.tensor = hidden(execution.tensor_par_overlap);
    stack.overlap.data_reduction = hidden(execution.data_par_overlap);
    let plan = TrainingPlan {
        layout: execution.to_layout(),
        batch: execution.to_batch(application),
        activations: execution.activation_policy().into(),
        attention: Attention::Unfused,
        precision: stack.precision_of_run(execution.number_formats()),
        optimizer: Optimizer::Adam,
        schedule: PipelineSchedule::OneForwardOneBackward,
        techniques: workloads::Techniques::default(),
    };
    let assumed = vec![
        format!(
            "an embedding and a tied head of {vocabulary} rows, learned positions and a final norm: the application has none"
        ),
        "Adam in mixed precision, attention operator by operator, causal, dropout: what Calculon counts".to_owned(),
        format!(
            "launches, rates under load and memory of the software stack {}; overlaps and fusion of the execution",
            stack.name
        ),
    ];
    let not_modelled =
        [execution.describe_differences(), system.list_unmodelled_of_chip(), system.list_unmodelled_of_fabric()]
            .concat();
    Ok(CalculonRow {
        model: application.to_model(vocabulary, execution.multiquery),
        plan,
        chip,
        fabric,
        stack,
        assumed,
        not_modelled,
    })
}

impl CalculonRow {
    /// Computes the step, its memory, and the step of the blocks alone.
    ///
    /// # Errors
    /// A plan that the model cannot be lowered for, or a chip that the cost model cannot use.
    pub fn run_row(&self) -> Result<CalculonOutcome, StepError> {
        let (model, plan, fabric) = (&self.model, &self.plan, &self.fabric);
        plan.layout.check_model_and_batch(model, &plan.batch)?;
        let mut chip = ChipTimes::new(&self.chip, &self.stack)?;
        let profile = chip.profile_plan(model, fabric, plan)?;
        let step = step_time_of(&mut chip, model, fabric, plan, &profile)?;
        let mut blocks = profile.clone();
        (blocks.embedding, blocks.head, blocks.tied_parameters) = (PieceProfile::default(), PieceProfile::default(), 0);
        let blocks = step_time_of(&mut chip, model, fabric, plan, &blocks)?;
        let domain = step::sharing_domain(&self.stack, fabric.fast_domain_devices(), &plan.layout);
        let memory = step_memory(model, plan, &self.stack, DeviceMemory::of_chip(&self.chip), domain)?;
        Ok(CalculonOutcome { step, memory, blocks, profile })
    }
}

impl CalculonOutcome {
    /// Returns the figures of Calculon's output that have the same meaning here, by Calculon's names. They cover the
    /// blocks alone. Times are in seconds, sizes in bytes per device, and the rate in sequences per second.
    ///
    /// Calculon's `bubble_time` and `pp_comm_exposed_time` are one figure here. Its activation and gradient sizes count
    /// buffers differently, so they have no counterpart.
    #[must_use]
    pub fn calculon_figures(&self, row: &CalculonRow) -> Vec<(&'static str, f64)> {
        let (time, layer) = (&self.blocks, &self.profile.layer);
        // The number of forward block passes in the slowest device's time: its blocks times the micro-batches.
        let passes = if layer.forward.device.0 > 0.0 { time.forward.0 / layer.forward.device.0 } else { 0.0 };
        let again = layer.recompute.tensor.0 * passes;
        let layout = &row.plan.layout;
        let blocks = row.model.layers.div_ceil(u64::from(layout.pipeline));
        let parameters = (layer.parameters * blocks) as f64;
        let per = BytesPerParameter::new(row.plan.optimizer, &row.plan.precision);
        let shards = if layout.zero == workloads::ZeroStage::None { 1.0 } else { f64::from(layout.data) };
        vec![
            ("block_fw_time", layer.forward.device.0),
            ("block_re_time", layer.recompute.device.0),
            ("fw_time", time.forward.0),
            ("bw_time", time.backward.0),
            ("recompute_time", time.recompute.0),
            ("optim_step_time", time.optimizer.0),
            ("tp_comm_exposed_time", time.tensor.0 - again),
            ("recomm_exposed_time", again),
            ("dp_comm_exposed_time", (time.data + time.tied).0),
            ("fw_offload_exposed_time", layer.forward.offload.0 * passes),
            ("bw_offload_exposed_time", layer.backward.offload.0 * passes),
            ("total_time", time.total.0),
            ("sample_rate", row.plan.batch.global_batch as f64 / time.total.0),
            ("weight_space", parameters * per.weight.as_f64()),
            ("optimizer_space", parameters * (per.master + per.state).as_f64() / shards),
        ]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::calculon::job::VOCABULARY;

    const MODEL: &str = include_str!("../../tests/calculon/model.json");
    const EXECUTION: &str = include_str!("../../tests/calculon/execution.json");
    const SYSTEM: &str = include_str!("../../tests/calculon/system.json");

    /// The embedded row with changes in the texts of execution and system.
    fn changed(execution: &[(&str, &str)], system: &[(&str, &str)]) -> CalculonRow {
        let with = |text: &str, changes: &[(&str, &str)]| {
            changes.iter().fold(text.to_owned(), |text, (from, to)| {
                assert!(text.contains(from), "{from}");
                text.replacen(from, to, 1)
            })
        };
        let application = CalculonApplication::from_json_str(MODEL, "model.json").unwrap();
        let execution = CalculonExecution::from_json_str(&with(EXECUTION, execution), "run.json").unwrap();
        let system = CalculonSystem::from_json_str(&with(SYSTEM, system), "system.json").unwrap();
        assemble_row(&application, &execution, &system, &SoftwareStack::load("megatron").unwrap(), VOCABULARY).unwrap()
    }

    fn figures(row: &CalculonRow) -> (CalculonOutcome, std::collections::BTreeMap<&'static str, f64>) {
        let outcome = row.run_row().unwrap();
        let figures = outcome.calculon_figures(row).into_iter().collect();
        (outcome, figures)
    }

    #[test]
    fn figures_of_the_blocks_are_those_of_one_block_times_blocks_and_micro_batches() {
        let row = changed(&[], &[]);
        let (outcome, figures) = figures(&row);
        let near =
            |name: &str, expected: f64| assert!((figures[name] / expected - 1.0).abs() < 1e-9, "{name}: {figures:?}");
        // A device has 12 blocks (24 over 2 stages) and 16 micro-batches (64 sequences, 2 each, over 2 ranks).
        near("fw_time", figures["block_fw_time"] * 12.0 * 16.0);
        near("recompute_time", figures["block_re_time"] * 12.0 * 16.0);
        let (h, f) = (2048.0, 8192.0);
        // Tensor parallelism over 4 devices splits the matrices and the biases of column-parallel products. The biases
        // of row-parallel products (2 h) and the norms (4 h) stay whole.
        let block = (4.0 * h * h + 2.0 * h * f + 3.0 * h + f) / 4.0 + 2.0 * h + 4.0 * h;
        near("weight_space", block * 12.0 * 2.0);
        near("optimizer_space", block * 12.0 * 12.0 / 2.0);
        near("sample_rate", 64.0 / figures["total_time"]);
        assert!(figures["total_time"] < outcome.step.total.0, "the blocks alone take less than the model");
        assert!(figures["fw_offload_exposed_time"] == 0.0 && figures["tp_comm_exposed_time"] > 0.0, "{figures:?}");
    }

    #[test]
    fn options_of_the_execution_act() {
        let total = |execution: &[(&str, &str)]| changed(execution, &[]).run_row().unwrap().step.total.0;
        let whole = total(&[]);
        for (from, to) in [
            ("\"data_par_overlap\": true", "\"data_par_overlap\": false"),
            ("\"tensor_par_overlap\": \"ring\"", "\"tensor_par_overlap\": \"none\""),
            ("\"fused_activation\": true", "\"fused_activation\": false"),
        ] {
            assert!(total(&[(from, to)]) > whole, "{to}: {} is not above {whole}", total(&[(from, to)]));
        }
        let full = [
            ("\"activation_recompute\": \"attn_only\"", "\"activation_recompute\": \"full\""),
            ("\"seq_par_ag_redo\": true", "\"seq_par_ag_redo\": false"),
        ];
        assert!(total(&full) > whole);
        let bubble = |execution: &[(&str, &str)]| changed(execution, &[]).run_row().unwrap().step.bubble;
        assert!(bubble(&[("\"pipeline_interleaving\": 2", "\"pipeline_interleaving\": 1")]) > bubble(&[]));
        let peak = |row: &CalculonRow| row.run_row().unwrap().memory.stages[0].bytes_needed();
        assert!(peak(&changed(&full, &[])) < peak(&changed(&[], &[])));
        let host = [full[0], full[1], ("\"activations_offload\": false", "\"activations_offload\": true")];
        assert!(peak(&changed(&host, &[])) < peak(&changed(&full, &[])));
    }

    #[test]
    fn figures_of_the_system_act() {
        let total = |system: &[(&str, &str)]| changed(&[], system).run_row().unwrap();
        let whole = total(&[]).step.total.0;
        for (from, to) in [
            ("\"tflops\": 200", "\"tflops\": 100"),
            ("\"GBps\": 1500", "\"GBps\": 700"),
            ("\"bandwidth\": 250", "\"bandwidth\": 50"),
            ("\"bandwidth\": 25,", "\"bandwidth\": 5,"),
            ("\"efficiency\": 0.7", "\"efficiency\": 0.3"),
            ("\"latency\": 0.000003", "\"latency\": 0.0003"),
        ] {
            assert!(total(&[(from, to)]).step.total.0 > whole, "{to}");
        }
        let small = total(&[("\"GiB\": 64", "\"GiB\": 3")]);
        assert!(small.memory.check_fits().is_err() && total(&[]).memory.check_fits().is_ok());
    }
}
