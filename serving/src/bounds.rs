//! Upper bounds on the rate that a chip serves in any deployment, for searches over chips.

use crate::ServingEngine;
use crate::lengths::LengthClass;
use crate::plan::ServedProduct;
use crate::question::ServingQuestion;
use sim::hardware::{Accelerator, lower_clock, lowest_clock};
use sim::kernel::DataType;
use sim::units::{Joules, Watts};
use workloads::serving::CacheSize;

/// Upper bounds on the rates of one device in any deployment of a question, whatever its plan and clock.
///
/// - Products: a request has at least 2 operations per token and active weight of the layers.
/// - Memory: an iteration of n sequences per device reads at least the active weights, divided by all devices, and n
///   caches. Each sequence gains its accepted drafts besides one token. With more sequences, a token reads fewer bytes.
///   The memory and the limit on the time per output token bound n.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceBounds {
    /// Highest number of tokens per second for which the arrays can multiply the products.
    tokens: f64,
    /// Highest number of tokens per second that decoding iterations can make.
    decoded: f64,
    /// Static power. `token` is the least energy of a token's products.
    standing: Watts,
    token: Joules,
    /// Mean number of computed tokens of a prompt. `output` is the mean number of tokens of an answer.
    input: f64,
    output: f64,
}

impl DeviceBounds {
    /// Returns the bounds on a chip under an engine.
    #[must_use]
    pub fn of_chip(question: &ServingQuestion<'_>, chip: &Accelerator, engine: &ServingEngine) -> Self {
        let (model, lengths, formats) = (question.model, &question.lengths, &question.formats);
        let mut served = model.clone();
        served.variations.further_tokens = 0;
        let active = served.active_matrix_parameters(0) as f64;
        let bytes = formats.products.bytes_of_weight().min(formats.experts.bytes_of_weight()) * active
            / f64::from(question.devices);
        let operands = [formats.products, formats.experts].map(ServedProduct::operand);
        let peaks = operands.into_iter().filter_map(|operand| chip.peak_flops(operand)).map(|peak| peak.0);
        // Only fractions above 1 change an upper bound: an engine's file may state that its kernels are faster than the
        // library's.
        let kernels = &engine.kernels;
        let peak = peaks.fold(0.0, f64::max) * kernels.product_fraction.max(1.0);
        let macs = operands.map(|operand| lowest_mac_energy(chip, operand).0);
        let method = &question.method;
        let size = CacheSize::of_model(model, 1, formats.cache);
        let cache = size.of_sequence(method.mean_context(lengths) as u64).as_f64();
        let elsewhere = |input: u64| input - method.own_tokens(input);
        let own = size.of_sequence(lengths.mean_context_after(elsewhere) as u64).as_f64();
        let gained = method.tokens_per_pass();
        let rate = chip.hbm.read_bandwidth.0 * kernels.product_fraction.max(kernels.decode_fraction).max(1.0);
        let readable = question.level.time_per_output_token.map_or(f64::INFINITY, |limit| limit.0 * gained * rate);
        let capacity = if method.away.is_some() { f64::INFINITY } else { chip.hbm.capacity.as_f64() };
        let that_fit = |room: f64, each: f64| (room - bytes).max(0.0) / each.max(1.0);
        let sequences = that_fit(capacity, own).min(that_fit(readable, cache));
        let computed = |class: &LengthClass| class.share * method.computed_tokens(class.input);
        Self {
            tokens: peak / (2.0 * active),
            decoded: if cache > 0.0 { rate * gained / (bytes / sequences + cache) } else { f64::INFINITY },
            standing: chip.energy.static_power,
            token: Joules(active * macs.into_iter().fold(f64::INFINITY, f64::min)),
            input: lengths.classes().iter().map(computed).sum(),
            output: lengths.mean_output(),
        }
    }

    /// Returns an upper bound on the requests per second of a device that prefills and decodes.
    #[must_use]
    pub fn requests(&self) -> f64 {
        (self.tokens / (self.input + self.output)).min(self.decoded / self.steps())
    }

    /// Returns an upper bound on the requests per second of a device in a pool for prompts.
    #[must_use]
    pub fn prompts(&self) -> f64 {
        self.tokens / self.input
    }

    /// Returns an upper bound on the requests per second of a device in a pool for decoding.
    #[must_use]
    pub fn decoding(&self) -> f64 {
        self.tokens.min(self.decoded) / self.steps()
    }

    /// Returns an upper bound on the output tokens per joule of a device that prefills and decodes. A request takes at
    /// least the energy of its products, and the static energy of its time at the highest rate.
    #[must_use]
    pub fn tokens_per_joule(&self) -> f64 {
        let request = self.standing.0 / self.requests() + self.token.0 * (self.input + self.steps());
        self.output / request
    }

    /// Returns the mean number of an answer's tokens that decoding makes. The prompt makes the first token.
    fn steps(&self) -> f64 {
        self.output - 1.0
    }
}

/// Returns the least energy of a multiply-accumulate over the clocks at which a chip may run.
fn lowest_mac_energy(chip: &Accelerator, operand: DataType) -> Joules {
    lower_clock(chip, lowest_clock(chip)).energy.macs_energy(operand, 1)
}

/// Returns an upper bound on the output tokens per second of every deployment of the question on `chip` under `engine`.
#[must_use]
pub fn bound_of_chip(question: &ServingQuestion<'_>, chip: &Accelerator, engine: &ServingEngine) -> f64 {
    let bounds = DeviceBounds::of_chip(question, chip, engine);
    f64::from(question.devices) * bounds.requests() * bounds.output
}
