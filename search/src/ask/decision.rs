//! The decisions of a plan, each declared once. The command line, studies, JSON, error messages and records read this
//! table.
//!
//! A new decision is a field of [`PlanSpace`], a row of [`DECISIONS`], and its rule in the enumeration of plans.

use super::choices::{PlanSpace, Splits};
use sim::pipeline::{PipelineSchedule, SCHEDULES};
use step::{MixKind, TrainingPlan};
use workloads::limits::MAX_LAYERS;
use workloads::training::ContextMethod;
use workloads::{ActivationPolicy, LayerEnds, Layout, RankOrder, ZeroStage};

/// A value with its word and the word's meaning: (word, meaning, value).
type Named<T> = (&'static str, &'static str, T);

/// Methods of context parallelism.
const METHODS: [Named<ContextMethod>; 2] = [
    ("ring", "Keys and values pass around a ring", ContextMethod::Ring),
    ("ulysses", "All-to-alls turn from tokens to heads and back (DeepSpeed-Ulysses)", ContextMethod::Ulysses),
];

/// Orders of ranks.
const ORDERS: [Named<RankOrder>; 2] = [
    ("t-d-p", "The copies of a stage side by side", RankOrder::DataFirst),
    ("t-p-d", "The stages of a copy side by side (Megatron-LM's --use-tp-pp-dp-mapping)", RankOrder::PipelineFirst),
];

/// The word for a choice that the planner makes for every stage or every plan.
const BEST: &str = "best";
/// The prefix of the word for a number of recomputed layers.
const BLOCK: &str = "block:";
/// The word for layers that are split evenly.
const EVEN: &str = "even";

/// The kind of values that a decision has.
#[derive(Debug, Clone, Copy)]
pub enum DecisionValues {
    /// Whole numbers from the first to the second.
    Numbers(u32, u32),
    /// Words, each with its meaning.
    Words(fn() -> Vec<(&'static str, &'static str)>),
    /// `true` or `false`.
    Switch,
    /// Texts in their own grammar, which `set` parses. The character separates them on the command line.
    Texts(char),
}

/// A degree of a layout.
#[derive(Debug, Clone, Copy)]
pub struct Degree {
    /// The list of its values in a space.
    pub list: fn(&mut PlanSpace) -> &mut Option<Vec<u32>>,
    /// Its value in a layout.
    pub value: fn(&Layout) -> u32,
}

/// Functions that read the values of a decision from a space and write them into one.
#[derive(Debug, Clone, Copy)]
pub struct Access {
    /// The values of a space as words; `None` if all are open.
    pub get: fn(&PlanSpace) -> Option<Vec<String>>,
    /// Sets the values of a space from words. Fails for a word that is no value.
    pub set: fn(&mut PlanSpace, &[String]) -> Result<(), String>,
    /// Takes another space's values if the first has none.
    pub complete: fn(&mut PlanSpace, &PlanSpace),
    /// Sets the single value that a plan has. Opens the decision if the plan has none.
    pub fix: fn(&mut PlanSpace, &TrainingPlan),
}

/// A decision of a plan.
#[derive(Debug, Clone, Copy)]
pub struct Decision {
    /// Its name in rules and in data, for example `tp`.
    pub key: &'static str,
    /// Its option on the command line, without dashes.
    pub flag: &'static str,
    /// Its key in study files and in JSON.
    pub file: &'static str,
    /// Its name in a sentence.
    pub name: &'static str,
    /// The words in a sentence if every value is open. `None` leaves the decision out of the sentence.
    pub open: Option<&'static str>,
    /// Help for the command line and for editors.
    pub doc: &'static str,
    /// The kind of its values.
    pub values: DecisionValues,
    /// Access to its values in a space.
    pub access: Access,
    /// Access as a number, if it is a degree of the layout.
    pub degree: Option<Degree>,
}

/// A value of a decision, read from a word and written as one.
trait DecisionValue: Sized {
    fn read(word: &str) -> Result<Self, String>;
    fn write(&self) -> String;
}

macro_rules! plain_values {
    ($($type:ty),*) => {$(
        impl DecisionValue for $type {
            fn read(word: &str) -> Result<Self, String> {
                word.trim().parse().map_err(|_| format!("`{word}` is no {}", stringify!($type)))
            }
            fn write(&self) -> String {
                self.to_string()
            }
        }
    )*};
}
plain_values!(u32, u64, bool);

macro_rules! named_values {
    ($($type:ty: $table:ident),*) => {$(
        impl DecisionValue for $type {
            fn read(word: &str) -> Result<Self, String> {
                let found = $table.iter().find(|(name, ..)| *name == word);
                found.map(|(.., value)| *value).ok_or_else(|| {
                    sim::names::hint(word, &$table.map(|(name, ..)| name).join(", "), "use one of")
                })
            }
            fn write(&self) -> String {
                $table.iter().find(|(.., value)| value == self).map_or_else(String::new, |(name, ..)| (*name).to_owned())
            }
        }
    )*};
}
named_values!(ContextMethod: METHODS, RankOrder: ORDERS, PipelineSchedule: SCHEDULES);

impl DecisionValue for ZeroStage {
    fn read(word: &str) -> Result<Self, String> {
        let stage = word.trim().parse().ok().and_then(Self::from_number);
        stage.ok_or_else(|| format!("{word}: needs stages from 0 to 3"))
    }
    fn write(&self) -> String {
        (*self as u8).to_string()
    }
}

fn read_list<T: DecisionValue>(words: &[String]) -> Result<Vec<T>, String> {
    words.iter().map(|word| T::read(word)).collect()
}

fn write_list<T: DecisionValue>(list: &[T]) -> Vec<String> {
    list.iter().map(T::write).collect()
}

/// The first two columns of a table of words.
fn words_of<T>(table: &[Named<T>]) -> Vec<(&'static str, &'static str)> {
    table.iter().map(|(name, meaning, _)| (*name, *meaning)).collect()
}

/// Access to a field that is a list. `$plan` gives a plan's value.
macro_rules! list {
    ($field:ident, $plan:expr) => {
        Access {
            get: |space| space.$field.as_deref().map(write_list),
            set: |space, words| {
                space.$field = Some(read_list(words)?);
                Ok(())
            },
            complete: |space, other| {
                if space.$field.is_none() {
                    space.$field.clone_from(&other.$field);
                }
            },
            fix: |space, plan| space.$field = $plan(plan).map(|value| vec![value]),
        }
    };
}

/// Access to a degree as a number.
macro_rules! degree {
    ($field:ident, $value:expr) => {
        Some(Degree { list: |space| &mut space.$field, value: $value })
    };
}

/// Limit on degrees and micro-batches that are read.
const WIDEST: u32 = 1 << 16;
/// Limit on data-parallel copies that are read.
const MOST_COPIES: u32 = 1 << 20;
/// Limit on model chunks per stage that are read.
const MOST_CHUNKS_READ: u32 = 1024;

/// Every decision of a plan, in the order in which records name them.
pub static DECISIONS: [Decision; 16] = [
    Decision {
        key: "tp",
        flag: "tensor",
        file: "tensor_parallel",
        name: "tensor parallel",
        open: Some("any that divides"),
        doc: "Tensor-parallel widths to choose from",
        values: DecisionValues::Numbers(1, WIDEST),
        access: list!(tensor, |plan: &TrainingPlan| Some(plan.layout.tensor)),
        degree: degree!(tensor, |layout| layout.tensor),
    },
    Decision {
        key: "pp",
        flag: "pipeline",
        file: "pipeline_parallel",
        name: "pipeline parallel",
        open: Some("any that divides"),
        doc: "Pipeline stages to choose from",
        values: DecisionValues::Numbers(1, WIDEST),
        access: list!(pipeline, |plan: &TrainingPlan| Some(plan.layout.pipeline)),
        degree: degree!(pipeline, |layout| layout.pipeline),
    },
    Decision {
        key: "dp",
        flag: "data",
        file: "data_parallel",
        name: "data parallel",
        open: None,
        doc: "Data-parallel copies to choose from; the product of all degrees is --devices",
        values: DecisionValues::Numbers(1, MOST_COPIES),
        access: Access {
            // A plan's other degrees decide it. A neighbour of the plan has other degrees, and so other copies.
            fix: |space, _| space.data = None,
            ..list!(data, |plan: &TrainingPlan| Some(plan.layout.data))
        },
        degree: degree!(data, |layout| layout.data),
    },
    Decision {
        key: "cp",
        flag: "context",
        file: "context_parallel",
        name: "context parallel",
        open: Some("any that divides"),
        doc: "Context-parallel widths to choose from",
        values: DecisionValues::Numbers(1, WIDEST),
        access: list!(context, |plan: &TrainingPlan| Some(plan.layout.context)),
        degree: degree!(context, |layout| layout.context),
    },
    Decision {
        key: "context_method",
        flag: "context-method",
        file: "context_methods",
        name: "context method",
        open: None,
        doc: "How attention reaches the rest of a split sequence, to choose from [default: both]",
        values: DecisionValues::Words(|| words_of(&METHODS)),
        access: list!(context_methods, |plan: &TrainingPlan| {
            Some(plan.layout.context_method).filter(|_| plan.layout.context > 1)
        }),
        degree: None,
    },
    Decision {
        key: "ep",
        flag: "expert",
        file: "expert_parallel",
        name: "expert parallel",
        open: Some("any that divides"),
        doc: "Expert-parallel widths to choose from",
        values: DecisionValues::Numbers(1, WIDEST),
        access: list!(expert, |plan: &TrainingPlan| Some(plan.layout.expert)),
        degree: degree!(expert, |layout| layout.expert),
    },
    Decision {
        key: "etp",
        flag: "expert-tensor",
        file: "expert_tensor_parallel",
        name: "expert-tensor parallel",
        open: None,
        doc: "Devices that split every expert by width, to choose from: Megatron-LM's --expert-tensor-parallel-size. It times \
              --expert divides tp x cp x dp. A width other than --tensor needs sequence parallelism [default: the \
              tensor-parallel width]",
        values: DecisionValues::Numbers(1, WIDEST),
        access: list!(expert_tensor, |plan: &TrainingPlan| plan.layout.expert_tensor),
        degree: degree!(expert_tensor, |layout| layout.expert_tensor_degree().unwrap_or(layout.tensor)),
    },
    Decision {
        key: "virtual_stages",
        flag: "virtual-stages",
        file: "virtual_stages",
        name: "chunks per stage",
        open: Some("any that divides"),
        doc: "Model chunks per stage to choose from",
        values: DecisionValues::Numbers(1, MOST_CHUNKS_READ),
        access: list!(virtual_stages, |plan: &TrainingPlan| Some(plan.layout.virtual_stages)),
        degree: degree!(virtual_stages, |layout| layout.virtual_stages),
    },
    Decision {
        key: "schedule",
        flag: "schedule",
        file: "schedules",
        name: "schedule",
        open: Some("1f1b"),
        doc: "Pipeline schedules to choose from; plans of one stage run none of them",
        values: DecisionValues::Words(|| words_of(&SCHEDULES)),
        access: list!(schedules, |plan: &TrainingPlan| {
            Some(plan.schedule.without_chunks()).filter(|_| plan.layout.pipeline > 1)
        }),
        degree: None,
    },
    Decision {
        key: "zero",
        flag: "zero",
        file: "zero",
        name: "ZeRO",
        open: Some("any that divides"),
        doc: "ZeRO stages to choose from, 0 to 3",
        values: DecisionValues::Numbers(0, 3),
        access: list!(zero, |plan: &TrainingPlan| Some(plan.layout.zero)),
        degree: None,
    },
    Decision {
        key: "shards",
        flag: "shards",
        file: "shards",
        name: "shards of a copy",
        open: None,
        doc: "Data-parallel ranks that share one copy of what ZeRO shards, to choose from; the other ranks hold further \
              copies (hybrid sharding). They divide dp x cp [default: all, or those of a fast domain where the stack shards \
              inside domains]",
        values: DecisionValues::Numbers(1, WIDEST),
        access: list!(shards, |plan: &TrainingPlan| plan.layout.shards),
        degree: degree!(shards, |layout| layout.shards.unwrap_or(layout.data.saturating_mul(layout.context))),
    },
    Decision {
        key: "micro_batch",
        flag: "micro-batch",
        file: "micro_batch_sequences",
        name: "micro-batch",
        open: Some("any that divides"),
        doc: "Sequences per micro-batch and data-parallel rank, to choose from",
        values: DecisionValues::Numbers(1, WIDEST),
        access: list!(micro_batch, |plan: &TrainingPlan| Some(plan.batch.micro_batch)),
        degree: None,
    },
    Decision {
        key: "recompute",
        flag: "recompute",
        file: "recompute",
        name: "recompute",
        open: Some("any that divides"),
        doc: "Recomputation to choose from, separated by `;`: none, selective, full, MaxText's names, \
              custom:offload(a)+device(b), or tensors:offload(a)+device(b) with the operators' own names (`a*0.5`: a part of \
              its tokens; with `+rest(recompute)` behind it the others run again). `block:4` recomputes the first 4 \
              layers of every stage's chunk, and keeps the others (Megatron-LM's --recompute-method block). `best` is \
              the fastest choice for every stage, tensor by tensor, whether the stack's framework can run it or not \
              (not the addresses: --technique planned-addresses plans them) [default: none, selective, full; and as \
              different from stage to stage as the stack's framework can]",
        values: DecisionValues::Texts(';'),
        access: Access { get: recompute_words, set: set_recompute, complete: complete_recompute, fix: fix_recompute },
        degree: None,
    },
    Decision {
        key: "sequence_parallel",
        flag: "sequence-parallel",
        file: "sequence_parallel",
        name: "sequence parallelism",
        open: Some("on or off"),
        doc: "Megatron sequence parallelism beside tensor parallelism [default: both]",
        values: DecisionValues::Switch,
        access: list!(sequence_parallel, |plan: &TrainingPlan| Some(plan.layout.sequence_parallel)),
        degree: None,
    },
    Decision {
        key: "layer_split",
        flag: "layer-split",
        file: "layer_split",
        name: "layers split",
        open: None,
        doc: "Splits of the layers among the stages to choose from. `even`; or the layers of the first and of the last model \
              chunk (7:9), the rest shared equally, or with one layer more in neighbouring chunks, the first of them or those \
              behind the given number (7:9@2). `best` alone takes every listed plan's fastest split that fits [default: even \
              or with ends lighter by a few layers, any other where it makes a plan more than 0.5 % faster than the first; \
              with --everything so for the plans that there are without it and for the fastest, even for the others]",
        values: DecisionValues::Texts(','),
        access: Access {
            get: split_words,
            set: set_splits,
            complete: |space, other| {
                if space.splits.is_none() {
                    space.splits.clone_from(&other.splits);
                }
            },
            fix: |space, plan| space.splits = Some(Splits::Listed(vec![plan.layout.ends])),
        },
        degree: None,
    },
    Decision {
        key: "order",
        flag: "order",
        file: "orders",
        name: "order of ranks",
        open: None,
        doc: "Orders of ranks on devices to choose from",
        values: DecisionValues::Words(|| words_of(&ORDERS)),
        access: list!(orders, |plan: &TrainingPlan| Some(plan.layout.order)),
        degree: None,
    },
];

/// The schedule with this name: 1f1b (interleaved if there are several chunks), gpipe, zb-h1, and so on. `None` for
/// another name.
#[must_use]
pub fn schedule_of(name: &str) -> Option<PipelineSchedule> {
    SCHEDULES.iter().find(|(known, ..)| *known == name).map(|(.., schedule)| *schedule)
}

/// The words of a space's policies. `best` stands for policies that differ from stage to stage. `None` if there are
/// none.
fn recompute_words(space: &PlanSpace) -> Option<Vec<String>> {
    let named = space.activations.iter().flatten().map(ToString::to_string);
    let blocks = space.blocks.iter().map(|count| format!("{BLOCK}{count}"));
    let best = space.mixes.filter(|kind| *kind != MixKind::None).map(|_| BEST.to_owned());
    let words: Vec<String> = named.chain(blocks).chain(best).collect();
    (!words.is_empty()).then_some(words)
}

fn set_recompute(space: &mut PlanSpace, words: &[String]) -> Result<(), String> {
    let policy = |text: &String| {
        let several = text.split_once(',').filter(|(first, _)| first.parse::<ActivationPolicy>().is_ok());
        match several {
            Some((first, rest)) => Err(format!(
                "{text}: policies are separated by `;`, as `,` separates tensors of one; use '{first};{}'",
                rest.replace(',', ";")
            )),
            None => text.parse::<ActivationPolicy>().map_err(|e| e.to_string()),
        }
    };
    let block = |digits: &str| match digits.parse::<u64>() {
        Ok(count) if count <= MAX_LAYERS => Ok(count),
        _ => {
            Err(format!("{BLOCK}{digits}: must be from 0 to {MAX_LAYERS} layers of every model chunk; write {BLOCK}4"))
        }
    };
    let digits = |text: &String| text.strip_prefix(BLOCK).map(str::to_owned);
    space.blocks = words.iter().filter_map(digits).map(|text| block(&text)).collect::<Result<_, _>>()?;
    let others = words.iter().filter(|text| digits(text).is_none());
    let named: Vec<ActivationPolicy> = others.filter(|text| *text != BEST).map(policy).collect::<Result<_, _>>()?;
    space.activations = Some(named).filter(|list| !list.is_empty());
    space.mixes = Some(if words.iter().any(|text| text == BEST) { MixKind::PerStage } else { MixKind::None });
    Ok(())
}

fn complete_recompute(space: &mut PlanSpace, other: &PlanSpace) {
    if space.activations.is_none() && space.blocks.is_empty() {
        space.activations.clone_from(&other.activations);
        space.blocks.clone_from(&other.blocks);
    }
    space.mixes = space.mixes.or(other.mixes);
}

fn fix_recompute(space: &mut PlanSpace, plan: &TrainingPlan) {
    space.activations = plan.activations.uniform_policy().map(|policy| vec![policy.clone()]);
    let block = plan.activations.full_recompute_layers_per_chunk().filter(|_| space.activations.is_none());
    space.blocks = block.into_iter().collect();
    let alike = space.activations.is_some() || !space.blocks.is_empty();
    space.mixes = Some(if alike { MixKind::None } else { MixKind::PerStage });
}

fn split_words(space: &PlanSpace) -> Option<Vec<String>> {
    match space.splits.as_ref()? {
        Splits::Best => Some(vec![BEST.to_owned()]),
        Splits::Listed(list) => {
            let word = |ends: &Option<LayerEnds>| ends.as_ref().map_or_else(|| EVEN.to_owned(), ToString::to_string);
            Some(list.iter().map(word).collect())
        }
        Splits::Near | Splits::NearOf(_) => None,
    }
}

fn set_splits(space: &mut PlanSpace, words: &[String]) -> Result<(), String> {
    let ends = |text: &String| match text.as_str() {
        EVEN => Ok(None),
        text => text.parse::<LayerEnds>().map(Some).map_err(|e| e.to_string()),
    };
    space.splits = Some(match words {
        [word] if word == BEST => Splits::Best,
        list => Splits::Listed(list.iter().map(ends).collect::<Result<_, _>>()?),
    });
    Ok(())
}

impl Decision {
    /// The character that separates values on the command line.
    #[must_use]
    pub fn separator(&self) -> char {
        if let DecisionValues::Texts(letter) = self.values { letter } else { ',' }
    }

    /// Sets the values of a space from words, after checking their number and range.
    ///
    /// # Errors
    /// No value; a word that is none of the decision's values; a number outside its range.
    pub fn set(&self, space: &mut PlanSpace, words: &[String]) -> Result<(), String> {
        if words.is_empty() {
            return Err("at least one value is needed; list the values to try, or leave it out".to_owned());
        }
        if let DecisionValues::Numbers(least, most) = self.values {
            let within =
                |word: &String| word.trim().parse::<u32>().is_ok_and(|number| (least..=most).contains(&number));
            if let Some(word) = words.iter().find(|word| !within(word)) {
                return Err(format!("{word}: must be a whole number from {least} to {most}"));
            }
        }
        (self.access.set)(space, words)
    }

    /// The decision with this key; `None` for another key.
    #[must_use]
    pub fn of_key(key: &str) -> Option<&'static Self> {
        DECISIONS.iter().find(|decision| decision.key == key)
    }

    /// Describes the decision in a sentence: `tensor parallel 4 or 8`. `None` if every value is open and the decision
    /// has no words for that.
    #[must_use]
    pub fn phrase(&self, space: &PlanSpace) -> Option<String> {
        let shown = |word: String| match (self.values, word.as_str()) {
            (DecisionValues::Switch, "true") => "on".to_owned(),
            (DecisionValues::Switch, "false") => "off".to_owned(),
            (DecisionValues::Texts(','), EVEN) => "evenly".to_owned(),
            (DecisionValues::Texts(','), BEST) => "as is fastest".to_owned(),
            _ => word,
        };
        let Some(words) = (self.access.get)(space) else {
            return self.open.map(|open| format!("{} {open}", self.name));
        };
        let words: Vec<String> = words.into_iter().map(shown).collect();
        let listed = match words.split_last() {
            Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
            _ => words.concat(),
        };
        Some(format!("{} {listed}", self.name))
    }
}
