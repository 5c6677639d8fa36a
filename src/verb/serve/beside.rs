//! `coplace serve --beside`: shows AIConfigurator's predictions beside coplace's for the same configurations.

use super::loaded::LoadedDeployment;
use crate::failure::{Failure, OrInput};
use crate::input;
use interop::aiconfigurator_rows::{
    PredictedDeployment, PredictedPool, chip_of_system, engine_of_backend, read_predicted_rows,
};
use results::answer::serving_beside::{PredictionBeside, PredictionsBeside, ServedFigures};
use serving::best::{ServingHardware, ServingQuestion};
use serving::costs::{PromptPool, iteration_costs, prompts_together};
use serving::in_flight::{closed_loop, closed_loop_apart};
use serving::lengths::RequestLengths;
use serving::method::HeldPrefixes;
use serving::plan::{ServedProduct, ServingFormats};
use serving::steady::SteadyState;
use serving::{PassTimes, ServingMethod, ServingPlan};
use sim::kernel::DataType;
use sim::names::are_same_name;
use std::path::Path;

/// Prices the rows of a file.
pub fn price_rows(
    loaded: &LoadedDeployment<'_>,
    question: &ServingQuestion<'_>,
    file: &Path,
) -> Result<PredictionsBeside, Failure> {
    let name = file.display().to_string();
    let what = "rows of AIConfigurator (best_config_topn.csv)";
    let text = input::read_text_from(file, what, &loaded.question().files)?;
    let read = read_predicted_rows(&text, &name).or_input()?;
    let rows = read.rows.iter().map(|row| {
        let own = RowPricing { loaded, question, row }.price();
        PredictionBeside {
            line: row.line,
            system: row.decode.system.clone(),
            plan: plan_words(row, loaded.model.experts.is_some()),
            input: row.input,
            output: row.output,
            concurrency: row.concurrency,
            predicted: ServedFigures {
                ttft_ms: row.ttft_ms,
                tpot_ms: row.tpot_ms,
                tokens_per_s_per_device: row.tokens_per_s_per_device,
            },
            own: own.as_ref().ok().copied(),
            note: own.err(),
        }
    });
    Ok(PredictionsBeside { file: name, rows: rows.collect(), unread_columns: read.unknown })
}

fn plan_words(row: &PredictedDeployment, experts: bool) -> String {
    let of = |pool: &PredictedPool| {
        let further = [("pp", pool.pipeline), ("attention dp", pool.attention_data), ("ep", pool.expert)];
        let further = further.into_iter().filter(|(_, degree)| *degree > 1);
        let words = further.map(|(name, degree)| format!(", {name} {degree}"));
        let formats = [
            ("gemm", &pool.products, true),
            ("moe", &pool.experts, experts && pool.experts != pool.products),
            ("kvcache", &pool.cache, true),
        ];
        let told = formats.into_iter().filter(|(_, label, used)| *used && !BF16.contains(&label.as_str()));
        let formats = told.map(|(column, label, _)| format!(", {column} {label}"));
        let words: String = words.chain(formats).collect();
        format!("{} x tp {}{words}", pool.workers, pool.tensor)
    };
    match &row.prefill {
        None => of(&row.decode),
        Some(prefill) => format!("prompts {}, decoding {}", of(prefill), of(&row.decode)),
    }
}

/// Labels of the default formats, which a plan's description omits.
const BF16: [&str; 2] = ["bfloat16", "float16"];

/// Returns the format of products for AIConfigurator's label; an error in words for an unknown label.
fn product_of_label(column: &str, label: &str) -> Result<ServedProduct, String> {
    match label {
        "bfloat16" | "float16" => Ok(ServedProduct::Bf16),
        "fp8" | "fp8_block" | "fp8_static" => Ok(ServedProduct::Fp8),
        "nvfp4" => Ok(ServedProduct::Nvfp4),
        "int4_wo" => Ok(ServedProduct::Int4Weights),
        "w4a16_mxfp4" => Ok(ServedProduct::Mxfp4Weights),
        _ => Err(format!("{column} = {label}: is no format here")),
    }
}

/// A row that is priced under AIConfigurator's assumption: a constant number of requests in flight.
struct RowPricing<'a> {
    loaded: &'a LoadedDeployment<'a>,
    question: &'a ServingQuestion<'a>,
    row: &'a PredictedDeployment,
}

impl<'a> RowPricing<'a> {
    fn price(&self) -> Result<ServedFigures, String> {
        let row = self.row;
        if !row.refused.is_empty() {
            return Err(format!("{}: is not modelled here", row.refused.join(", ")));
        }
        let asked = self.loaded.question();
        let name = row.model.rsplit('/').next().unwrap_or(&row.model);
        if !are_same_name(name, &asked.model) && !are_same_name(name, &self.loaded.model.name) {
            return Err(format!("is of model {}, and asked is {}", row.model, asked.model));
        }
        let lengths = RequestLengths::uniform(row.input, row.output).map_err(|why| why.to_string())?;
        let hit = row.held as f64 / row.input.max(1) as f64;
        let prefixes = (row.held > 0).then(|| HeldPrefixes::new(hit, None)).transpose();
        let method = ServingMethod { prefixes: prefixes.map_err(|why| why.to_string())?, ..self.question.method };
        let state = match &row.prefill {
            None => self.price_together(&lengths, method)?,
            Some(prefill) => self.price_apart(prefill, &lengths, method)?,
        };
        let tokens = state.requests_per_second * lengths.mean_output();
        Ok(ServedFigures {
            ttft_ms: state.time_to_first_token.0 * 1e3,
            tpot_ms: state.time_per_output_token.0 * 1e3,
            tokens_per_s_per_device: tokens / f64::from(row.devices),
        })
    }

    /// Returns the pass times of a pool's replica. Fails if the pool's engine or chip is not the question's.
    fn times(&self, pool: &PredictedPool, method: ServingMethod<'a>) -> Result<PassTimes<'a>, String> {
        let engine = &self.loaded.engine.name;
        let own = engine_of_backend(&pool.backend);
        if !are_same_name(own, engine) {
            return Err(format!("is of {}, and asked is {engine}; give --engine {own}", pool.backend));
        }
        let chip = chip_of_system(&pool.system);
        let side: Option<ServingHardware<'a>> = chip.and_then(|chip| self.loaded.side_of_chip(chip));
        let side = side.ok_or_else(|| {
            let cure = chip.map_or_else(String::new, |chip| format!("; give --chip {chip}"));
            format!("is on {}, and that is none of the chips asked for{cure}", pool.system)
        })?;
        let group = pool.tensor.saturating_mul(pool.attention_data);
        let experts = self.loaded.model.experts.is_some();
        if experts && pool.attention_data > 1 && pool.expert != group {
            return Err(format!("moe_tp = {}: experts are whole beside data-parallel attention", pool.expert_tensor));
        }
        let plan = ServingPlan {
            tensor: pool.tensor,
            pipeline: pool.pipeline,
            attention_data: pool.attention_data,
            expert: if experts { pool.expert } else { 1 },
            context: 1,
            formats: ServingFormats {
                products: product_of_label("gemm", &pool.products)?,
                experts: product_of_label("moe", &pool.experts)?,
                cache: match product_of_label("kvcache", &pool.cache)? {
                    ServedProduct::Bf16 => DataType::Bf16,
                    ServedProduct::Fp8 => DataType::Fp8,
                    other => return Err(format!("kvcache = {other}: is no format of a cache here")),
                },
            },
        };
        let times = PassTimes::new(&self.loaded.model, side.chip, side.fabric, side.engine, plan);
        times.and_then(|times| times.with_method(method)).map_err(|why| why.to_string())
    }

    fn price_together(&self, lengths: &RequestLengths, method: ServingMethod<'a>) -> Result<SteadyState, String> {
        let mut times = self.times(&self.row.decode, method)?;
        let memory = times.memory(lengths).map_err(|why| why.to_string())?;
        let costs = iteration_costs(&mut times, &memory, lengths, self.row.concurrency);
        let costs = costs.map_err(|why| why.to_string())?;
        Ok(closed_loop(&costs, self.row.concurrency, prompts_together(&times, self.row.input)))
    }

    fn price_apart(
        &self,
        prefill: &PredictedPool,
        lengths: &RequestLengths,
        method: ServingMethod<'a>,
    ) -> Result<SteadyState, String> {
        let (decode, concurrency) = (&self.row.decode, self.row.concurrency);
        let mut times = self.times(decode, method)?;
        let memory = times.memory(lengths).map_err(|why| why.to_string())?;
        let share = concurrency.div_ceil(decode.workers.into());
        let mut costs = iteration_costs(&mut times, &memory, lengths, share).map_err(|why| why.to_string())?;
        costs.most_sequences = costs.most_sequences.min(decode.batch * u64::from(decode.attention_data));
        let mut prompts = self.times(prefill, method)?;
        let pool = PromptPool::of_replicas(&mut prompts, prefill.workers, self.row.input, prefill.batch);
        let pool = pool.map_err(|why| why.to_string())?;
        Ok(closed_loop_apart(&pool, &costs, decode.workers, concurrency))
    }
}
