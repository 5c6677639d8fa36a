//! Why a design is the best of its run, and what its neighbours and a little more of everything would give.

use crate::design::DesignRow;
use crate::record::{BestDesign, Share};
use crate::report::{Align, Table, heading, significant};
use search::design::Evaluation;
use search::planner::Job;
use search::sensitivity::{MORE, Marginal, Resource, Step};
use search::space::{Figures, Why};
use search::sweep::Fate;
use serde::Serialize;

/// Kernels that are named.
const KERNELS: usize = 8;

/// Why a design is the best of its run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explained {
    /// The run's directory.
    pub run: String,
    /// The design.
    pub best: DesignRow,
    /// What it uses of its limits.
    pub limits: Vec<Limit>,
    /// Where the step's time goes, largest first.
    pub time_shares: Vec<Share>,
    /// The stage whose devices are busy longest, from 0.
    pub slowest_stage: u32,
    /// The kernels that take most of that stage's time.
    pub kernels: Vec<Held>,
    /// One step along each dimension.
    pub steps: Vec<StepRow>,
    /// What a little more of each resource is worth.
    pub worth: Vec<Worth>,
}

/// A limit, and what the design uses of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Limit {
    /// `area`, `power`, `cost`, `memory`.
    pub name: &'static str,
    /// What the design takes, in `unit`.
    pub uses: f64,
    /// What it may take.
    pub allowed: f64,
    /// The unit of both.
    pub unit: &'static str,
}

/// A kernel that holds the slowest stage up.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Held {
    /// Its segment and pass.
    pub pass: String,
    /// The kernel.
    pub kernel: String,
    /// Its share of all kernels' time in the stage.
    pub share: f64,
    /// What takes most of its time.
    pub bound: String,
}

/// A step along a dimension, and what it changes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StepRow {
    /// The dimension.
    pub dimension: String,
    /// Its value in the best design.
    pub from: String,
    /// Its value after the step.
    pub to: String,
    /// `within` the limits, `over_area`, `over_power`, `over_cost` or `no_chip`.
    pub limits: &'static str,
    /// Why it is no chip, or has no plan.
    pub reason: Option<String>,
    /// Throughput of the best plan, in tokens per second over the whole cluster.
    pub tokens_per_s: Option<f64>,
    /// How much more that is, as a fraction.
    pub change: Option<f64>,
    /// More area, in mm².
    pub area_mm2: Option<f64>,
    /// More power under the heaviest sustained load, in W.
    pub peak_power_w: Option<f64>,
    /// More dollars a chip.
    pub cost_usd: Option<f64>,
    /// Tokens per second of the cluster gained for each mm² of a chip that it takes more.
    pub tokens_per_s_per_mm2: Option<f64>,
}

/// What a little more of a resource is worth.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Worth {
    /// The resource.
    pub resource: String,
    /// What a device has of it, in `unit`.
    pub has: f64,
    /// The unit.
    pub unit: &'static str,
    /// How much more throughput a tenth more gives, as a fraction.
    pub change: f64,
    /// Tokens per second of the cluster gained for each unit of it in every device.
    pub tokens_per_s_per_unit: f64,
}

/// The design that is explained.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// The job on it.
    pub job: Job<'a>,
    /// What it takes.
    pub figures: Figures,
    /// Its fastest step in seconds.
    pub step_s: f64,
}

impl Subject<'_> {
    fn rate(&self, evaluation: &Evaluation) -> Option<f64> {
        let step = evaluation.outcome.as_ref().ok()?.time.total.0;
        Some(self.tokens() / step)
    }

    fn tokens(&self) -> f64 {
        self.job.global_batch as f64 * self.job.sequence_length as f64
    }

    fn own_rate(&self) -> f64 {
        self.tokens() / self.step_s
    }

    /// A step in figures.
    #[must_use]
    pub fn step(&self, step: &Step) -> StepRow {
        let (own, figures) = (self.own_rate(), step.built().map(|built| built.figures));
        let tokens_per_s = step.evaluation().and_then(|evaluation| self.rate(evaluation));
        let area_mm2 = figures.map(|figures| figures.area.0 - self.figures.area.0);
        let rejected = step.evaluation().and_then(|evaluation| evaluation.outcome.as_ref().err().map(ToString::to_string));
        let (limits, refusal) = match &step.fate {
            Fate::NoChip(why) => ("no_chip", Some(why.clone())),
            Fate::Outside(Why::Area, _) => ("over_area", None),
            Fate::Outside(Why::Power, _) => ("over_power", None),
            Fate::Outside(Why::Cost, _) => ("over_cost", None),
            Fate::Evaluated(..) => ("within", None),
        };
        StepRow {
            dimension: step.key.clone(),
            from: step.from.to_string(),
            to: step.to.to_string(),
            limits,
            reason: refusal.or(rejected),
            tokens_per_s,
            change: tokens_per_s.map(|rate| rate / own - 1.0),
            area_mm2,
            peak_power_w: figures.map(|figures| figures.peak_power.0 - self.figures.peak_power.0),
            cost_usd: figures.and_then(|figures| Some(figures.cost_usd? - self.figures.cost_usd?)),
            tokens_per_s_per_mm2: tokens_per_s
                .zip(area_mm2)
                .filter(|(_, area)| *area > 1e-9)
                .map(|(rate, area)| (rate - own) / area),
        }
    }

    /// What a tenth more of a resource is worth; `None` where no plan is left.
    #[must_use]
    pub fn worth(&self, marginal: &Marginal) -> Option<Worth> {
        let (resource, unit, scale) = match &marginal.resource {
            Resource::HbmBandwidth => ("HBM bandwidth".to_owned(), "GB/s", 1e9),
            Resource::HbmCapacity => ("HBM capacity".to_owned(), "GiB", 1_073_741_824.0),
            Resource::BufferBandwidth(name) => (format!("bandwidth of {name}"), "GB/s", 1e9),
            Resource::BufferCapacity(name) => (format!("capacity of {name}"), "MiB", 1_048_576.0),
            Resource::LinkBandwidth(name) => (format!("bandwidth of {name}"), "GB/s", 1e9),
            Resource::Clock => ("clock".to_owned(), "MHz", 1e6),
        };
        let gained = self.rate(&marginal.evaluation)? - self.own_rate();
        let has = marginal.has / scale;
        let worth = gained / (has * (MORE - 1.0));
        Some(Worth { resource, has, unit, change: gained / self.own_rate(), tokens_per_s_per_unit: worth })
    }
}

/// The kernels that take most of the slowest stage's time.
#[must_use]
pub fn kernels(best: &BestDesign) -> Vec<Held> {
    let passes = &best.step.passes;
    let of = |pass: &crate::step_record::PassRecord| {
        pass.kernels.iter().map(|kernel| kernel.latency_s).sum::<f64>() * pass.count as f64
    };
    let all: f64 = passes.iter().map(of).sum();
    let mut held: Vec<Held> = Vec::new();
    for pass in passes {
        for kernel in &pass.kernels {
            held.push(Held {
                pass: format!("{} {}", pass.segment, pass.pass),
                kernel: kernel.name.clone(),
                share: kernel.latency_s * pass.count as f64 / all,
                bound: kernel.bound.clone(),
            });
        }
    }
    held.retain(|kernel| kernel.share.is_finite());
    held.sort_by(|a, b| b.share.total_cmp(&a.share));
    held.truncate(KERNELS);
    held
}

/// In words.
#[must_use]
pub fn words(explained: &Explained) -> String {
    let mut text = heading("What binds");
    for limit in &explained.limits {
        let share = 100.0 * limit.uses / limit.allowed;
        let (uses, allowed) = (significant(limit.uses, 4), significant(limit.allowed, 4));
        text.push_str(&format!("  {:8} {uses} of {allowed} {} ({share:.0} %)\n", limit.name, limit.unit));
    }
    for share in explained.time_shares.iter().take(KERNELS) {
        text.push_str(&format!("  {:5.1} % of the step: {}\n", 100.0 * share.fraction, share.name));
    }
    text.push_str(&format!("\nThe kernels of the slowest stage, {}:\n", explained.slowest_stage));
    let mut table = Table::new(["share %", "pass", "kernel", "bound by"]).align(0, Align::Right);
    for held in &explained.kernels {
        table.row([format!("{:.1}", 100.0 * held.share), held.pass.clone(), held.kernel.clone(), held.bound.clone()]);
    }
    text.push_str(&table.render());
    text.push('\n');
    text.push_str(&heading("One step along each dimension"));
    let header = ["dimension", "from", "to", "tokens/s", "%", "mm²", "W", "USD", "tokens/s per mm²", "limits"];
    let mut table = Table::new(header);
    for column in 3..9 {
        table = table.align(column, Align::Right);
    }
    let signed = |value: Option<f64>, digits: usize| value.map_or_else(|| "-".to_owned(), |value| format!("{value:+.digits$}"));
    for step in &explained.steps {
        let rate = step.tokens_per_s.map_or_else(|| "-".to_owned(), |rate| significant(rate, 4));
        let said = match (&step.reason, step.limits) {
            (Some(reason), limits) => format!("{}: {}", limits.replace('_', " "), short(reason)),
            (None, limits) => limits.replace('_', " "),
        };
        table.row([
            step.dimension.clone(),
            step.from.clone(),
            step.to.clone(),
            rate,
            signed(step.change.map(|change| 100.0 * change), 2),
            signed(step.area_mm2, 1),
            signed(step.peak_power_w, 1),
            signed(step.cost_usd, 0),
            signed(step.tokens_per_s_per_mm2, 1),
            said,
        ]);
    }
    text.push_str(&table.render());
    text.push('\n');
    text.push_str(&heading("What a little more is worth"));
    let mut table = Table::new(["in every device", "has", "a tenth more gives %", "worth, tokens/s"]).align(2, Align::Right);
    for worth in &explained.worth {
        let has = format!("{} {}", significant(worth.has, 4), worth.unit);
        let per = format!("{} per {}", significant(worth.tokens_per_s_per_unit, 3), worth.unit);
        table.row([worth.resource.clone(), has, format!("{:+.2}", 100.0 * worth.change), per]);
    }
    text.push_str(&table.render());
    if let Some(area) = area(explained) {
        text.push_str(&area);
    }
    text
}

/// What a square millimetre is worth where it is used best.
fn area(explained: &Explained) -> Option<String> {
    let worth = |step: &&StepRow| step.tokens_per_s_per_mm2.unwrap_or(f64::NEG_INFINITY);
    let best = explained.steps.iter().max_by(|a, b| worth(a).total_cmp(&worth(b)))?;
    let per = best.tokens_per_s_per_mm2.filter(|per| *per > 0.0)?;
    let StepRow { dimension, from, to, .. } = best;
    Some(format!("A mm² is worth {} tokens/s where it is used best: {dimension} from {from} to {to}.\n", significant(per, 3)))
}

/// A reason's first part.
fn short(reason: &str) -> &str {
    reason.split([';', ',']).next().unwrap_or(reason)
}
