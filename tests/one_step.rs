//! One model of a step: every verb gives a plan the same figures.
#![allow(clippy::unwrap_used)]

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use results::answer::evaluation::EvaluateAnswer;
use results::answer::plan::{PlanRow, PlannedAnswer};
use results::answer::step::{ExplainedPlan, StepRecord};
use results::run::conversion::fill_plan;
use results::store::design::{DesignDimensions, DesignRow};
use search::design::DesignEvaluation;
use search::planner::{Job, NO_MARGIN, PlanSpace, RankedPlan, search_plans};
use sim::hardware::Accelerator;
use sim::network::Fabric;
use sim::status::SolveStatus;
use step::{ChipTimes, DeviceMemory, SoftwareStack, step_memory, step_time};
use workloads::Model;
use workloads::footprint::{Optimizer, Precision};
use workloads::training::Attention;

/// Returns an undecided design.
fn blank() -> DesignRow {
    let dimensions = DesignDimensions {
        tensor_cores: 8,
        vector_cores: 2,
        arrays_per_core: 1,
        vector_lanes: 128,
        array_width: 128,
        array_depth: 64,
        global_buffer_mib: 128.0,
        hbm_gib: 32.0,
        area_mm2: 278.8,
    };
    DesignRow::new_undecided(0, dimensions)
}

/// The choices of a random job.
#[derive(Debug)]
struct Asked {
    model: &'static str,
    /// The chip, and a fabric with figures for it.
    hardware: (&'static str, &'static str),
    stack: String,
    devices: u32,
    micro_batches: u64,
    pipeline: u32,
    sequence_length: u64,
}

fn asked() -> impl Strategy<Value = Asked> {
    let models = proptest::sample::select(vec!["bert-large", "gpt2-xl", "opt-350m", "llama2-7b"]);
    let hardware = proptest::sample::select(vec![
        ("a100_80gb_sxm", "selene_hdr200x8"),
        ("h100_80gb_sxm", "eos_ndr400x8"),
        ("tpu_v4", "tpu_v4_ici"),
        ("tpu_v5p", "tpu_v5p_ici"),
        ("phaze_tpuv4", "phaze_flat"),
        ("tpu_v4", "ideal_switch"),
    ]);
    // Half of the draws are the ideal stack, and half are any built-in stack.
    let stacks = proptest::prop_oneof![
        proptest::strategy::Just("ideal".to_owned()),
        proptest::sample::select(SoftwareStack::built_in_names())
    ];
    let degrees = (0_u32..7, 1_u64..9, 0_u32..3, proptest::sample::select(vec![512_u64, 1024]));
    (models, hardware, stacks, degrees).prop_map(
        |(model, hardware, stack, (devices, micro_batches, pipeline, sequence_length))| Asked {
            model,
            hardware,
            stack,
            devices: 1 << devices,
            micro_batches,
            pipeline: 1 << pipeline.min(devices),
            sequence_length,
        },
    )
}

/// Number of compared jobs with a plan.
const JOBS: usize = 100;

#[test]
fn a_plan_takes_the_same_listed_given_alone_and_explained() {
    let mut runner = TestRunner::deterministic();
    let mut compared = 0;
    for _ in 0..400 {
        if compared == JOBS {
            break;
        }
        let asked = asked().new_tree(&mut runner).unwrap().current();
        let (model, chip) = (Model::load(asked.model).unwrap(), Accelerator::built_in(asked.hardware.0).unwrap());
        let fabric = Fabric::load_for_chip(asked.hardware.1, &chip.name).unwrap().for_devices(asked.devices).unwrap();
        let stack = SoftwareStack::load(&asked.stack).unwrap();
        let job = Job {
            model: &model,
            chip: &chip,
            fabric: &fabric,
            stack: &stack,
            devices: asked.devices,
            global_batch: u64::from(asked.devices) * asked.micro_batches,
            sequence_length: asked.sequence_length.min(model.max_sequence),
            attention: Attention::Fused,
            precision: stack.precision_of_run(Precision::MIXED_BF16),
            optimizer: Optimizer::Adam,
            headroom: sim::units::Bytes::ZERO,
            fit: NO_MARGIN,
            techniques: workloads::Techniques::none(),
        };
        let space = PlanSpace { pipeline: Some(vec![asked.pipeline]), ..PlanSpace::default() };
        let answer = search_plans(&job, &space, 3).unwrap();
        let listed = PlannedAnswer::from_answer(&job, asked.model, &answer, &[]);
        for (ranked, as_listed) in answer.best.iter().zip(&listed.plans) {
            let alone = search_plans(&job, &PlanSpace::of_plan(&ranked.plan), 1).unwrap();
            // A plan that is searched alone has no similar plans beside it.
            assert_eq!(alone.best, [RankedPlan { alike: 0, ..ranked.clone() }], "{asked:?}");
            let mut times = ChipTimes::new(&chip, &stack).unwrap();
            assert_eq!(step_time(&mut times, &model, &fabric, &ranked.plan).unwrap(), ranked.time, "{asked:?}");
            if !stack.kernels.shard_within_domain {
                let memory = step_memory(&model, &ranked.plan, &stack, DeviceMemory::of_chip(&chip), None).unwrap();
                assert_eq!(memory, ranked.memory, "{asked:?}");
            }
            let explained = ExplainedPlan::explain_plan(&job, ranked).unwrap();
            assert_eq!(explained.why.time, ranked.time, "{asked:?}");
            let evaluated = EvaluateAnswer::new(&job, asked.model, &alone, Some(&explained)).result.unwrap();
            assert_eq!(evaluated.plan, PlanRow { alike: 0, ..as_listed.clone() }, "{asked:?}");
            let shares: f64 = evaluated.time_shares.iter().map(|share| share.fraction).sum();
            assert!((shares - 1.0).abs() < 1e-9, "{asked:?}: {shares}");
            let mut kept = blank();
            let status = SolveStatus::Optimal;
            fill_plan(&mut kept, &job, &DesignEvaluation { outcome: Ok(Box::new(ranked.clone())), status });
            let [t, d, p] = [kept.tensor_parallel, kept.data_parallel, kept.stages].map(Option::unwrap);
            let c = i64::from(ranked.plan.layout.context);
            assert_eq!(t * d * p * c, i64::from(asked.devices), "{asked:?}");
            assert_eq!((kept.step_time_s, kept.energy_per_step_j), (Some(ranked.time.total.0), Some(ranked.energy.0)));
            let text = serde_json::to_string(&evaluated).unwrap();
            assert_eq!(serde_json::from_str::<StepRecord>(&text).unwrap(), evaluated, "a record reads back as it was");
        }
        compared += usize::from(!answer.best.is_empty());
    }
    assert_eq!(compared, JOBS, "jobs with a plan");
}

#[test]
fn what_fits_nowhere_has_a_shortfall_and_no_result() {
    let (model, chip) = (Model::load("gpt3-175b").unwrap(), Accelerator::built_in("a100_80gb_sxm").unwrap());
    let fabric = Fabric::built_in("selene_hdr200x8").unwrap().for_devices(8).unwrap();
    let stack = SoftwareStack::load("megatron").unwrap();
    let job = Job {
        model: &model,
        chip: &chip,
        fabric: &fabric,
        stack: &stack,
        devices: 8,
        global_batch: 8,
        sequence_length: 2048,
        attention: Attention::Fused,
        precision: Precision::MIXED_BF16,
        optimizer: Optimizer::Adam,
        headroom: sim::units::Bytes::ZERO,
        fit: NO_MARGIN,
        techniques: workloads::Techniques::none(),
    };
    let evaluated =
        EvaluateAnswer::new(&job, "gpt3-175b", &search_plans(&job, &PlanSpace::default(), 1).unwrap(), None);
    let shortfall = evaluated.shortfall.unwrap();
    assert!(!evaluated.feasible && evaluated.result.is_none() && evaluated.why.unwrap().contains(&shortfall.plan));
    assert!(shortfall.lacking_bytes > 0 && shortfall.need_bytes - shortfall.have_bytes == shortfall.lacking_bytes);
}
