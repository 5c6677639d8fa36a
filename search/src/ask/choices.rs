//! The plans to choose from: a list of values for each decision.

use super::decision::{DECISIONS, Decision, DecisionValues};
use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sim::pipeline::PipelineSchedule;
use std::fmt;
use step::{MixKind, TrainingPlan};
use workloads::training::ContextMethod;
use workloads::{ActivationPolicy, LayerEnds, RankOrder, ZeroStage};

/// Which values each decision may take; `None` is every value that obeys the rules.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PlanSpace {
    /// Tensor-parallel widths.
    pub tensor: Option<Vec<u32>>,
    /// Pipeline stages.
    pub pipeline: Option<Vec<u32>>,
    /// Context-parallel widths; `None` is 1, the powers of two up to 8 for sequences of 8,192 tokens, and every power of two for longer ones.
    pub context: Option<Vec<u32>>,
    /// How attention reaches the rest of a sequence that is split; `None` is both.
    pub context_methods: Option<Vec<ContextMethod>>,
    /// Expert-parallel widths, for models with experts.
    pub expert: Option<Vec<u32>>,
    /// Devices over which every expert is split by width, for models with experts; `None` is what follows from the other degrees, with
    /// expert-parallel widths that divide the data-parallel ranks.
    pub expert_tensor: Option<Vec<u32>>,
    /// Model chunks per stage.
    pub virtual_stages: Option<Vec<u32>>,
    /// What data-parallel ranks share; `None` is all four without a pipeline, and ZeRO-0 to ZeRO-2 with one (ZeRO-3 would communicate in every
    /// micro-batch; ZeRO-2 reduces gradients once per step there, as FSDP did for Llama 3 405B, The Llama 3 Herd of Models, 2024, section 3.3.2).
    pub zero: Option<Vec<ZeroStage>>,
    /// How ranks lie on the devices; `None` is both orders where they differ. On links that differ, where the mapping orders the ranks, only the
    /// first.
    pub orders: Option<Vec<RankOrder>>,
    /// How layers are split into stages; `None` is [`Splits::Near`].
    pub splits: Option<Splits>,
    /// Whether norms, dropout and residual sums are split along the sequence over tensor-parallel devices; `None` is both.
    pub sequence_parallel: Option<Vec<bool>>,
    /// Sequences per micro-batch.
    pub micro_batch: Option<Vec<u64>>,
    /// What layers keep; `None` is nothing recomputed, the attention core, everything.
    pub activations: Option<Vec<ActivationPolicy>>,
    /// How far what is kept may differ from stage to stage, best chosen; `None` is not at all.
    pub mixes: Option<MixKind>,
    /// Pipeline schedules; `None` is 1F1B, interleaved where there are several model chunks. ZB-V needs two.
    pub schedules: Option<Vec<PipelineSchedule>>,
}

/// How the layers of a plan may be split into stages.
#[derive(Debug, Clone, PartialEq)]
pub enum Splits {
    /// Evenly, or so that the ends are lighter by a few layers; in any other way where that may make the fastest plan faster by more than
    /// half a percent.
    Near,
    /// As is fastest and fits, for every plan of the list.
    Best,
    /// [`Splits::Near`] for the fastest plans of those that are split evenly, and for those that are of this space as well, which differs in contexts,
    /// ZeRO stages, schedules and policies at most; evenly for the others.
    NearOf(Box<PlanSpace>),
    /// In one of these ways: evenly (`None`), or with so many layers in the first and the last model chunk and the longer ones between where stated.
    Listed(Vec<Option<LayerEnds>>),
}

impl PlanSpace {
    /// This space, with `other`'s values where it names none.
    #[must_use]
    pub fn or(mut self, other: Self) -> Self {
        DECISIONS.iter().for_each(|decision| (decision.access.complete)(&mut self, &other));
        self
    }

    /// The space that holds one plan: every decision has the plan's value.
    #[must_use]
    pub fn of_plan(plan: &TrainingPlan) -> Self {
        let mut space = Self::default();
        DECISIONS.iter().for_each(|decision| (decision.access.fix)(&mut space, plan));
        space
    }

    /// The space in a sentence.
    #[must_use]
    pub fn phrase(&self) -> String {
        DECISIONS.iter().filter_map(|decision| decision.phrase(self)).collect::<Vec<_>>().join("; ")
    }

    /// The space as options of the command line, each with its value.
    #[must_use]
    pub fn options(&self) -> Vec<(&'static Decision, String)> {
        let option = |decision: &'static Decision| {
            let words = (decision.access.get)(self)?;
            Some((decision, words.join(&decision.separator().to_string())))
        };
        DECISIONS.iter().filter_map(option).collect()
    }
}

impl Serialize for PlanSpace {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        self.serialize_entries(&mut map)?;
        map.end()
    }
}

impl PlanSpace {
    /// Writes every decision that is not open as an entry of a map: numbers and switches as such, other words as texts.
    pub(crate) fn serialize_entries<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        for decision in &DECISIONS {
            let Some(words) = (decision.access.get)(self) else { continue };
            match decision.values {
                DecisionValues::Numbers(..) => {
                    let numbers: Vec<u64> = words.iter().filter_map(|word| word.parse().ok()).collect();
                    map.serialize_entry(decision.file, &numbers)?;
                }
                DecisionValues::Switch => {
                    let flags: Vec<bool> = words.iter().filter_map(|word| word.parse().ok()).collect();
                    map.serialize_entry(decision.file, &flags)?;
                }
                DecisionValues::Words(_) | DecisionValues::Texts(_) => map.serialize_entry(decision.file, &words)?,
            }
        }
        Ok(())
    }
}

/// The words of a decision's value in a file: one value, or a list of values.
pub(crate) struct Words(pub Vec<String>);

impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfWords;
        impl<'de> Visitor<'de> for OfWords {
            type Value = Words;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, a word, a flag, or a list of them")
            }
            fn visit_bool<E>(self, flag: bool) -> Result<Words, E> {
                Ok(Words(vec![flag.to_string()]))
            }
            fn visit_u64<E>(self, number: u64) -> Result<Words, E> {
                Ok(Words(vec![number.to_string()]))
            }
            fn visit_i64<E>(self, number: i64) -> Result<Words, E> {
                Ok(Words(vec![number.to_string()]))
            }
            fn visit_f64<E>(self, number: f64) -> Result<Words, E> {
                Ok(Words(vec![number.to_string()]))
            }
            fn visit_str<E>(self, word: &str) -> Result<Words, E> {
                Ok(Words(vec![word.to_owned()]))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Words, A::Error> {
                let mut words = Vec::new();
                while let Some(Words(more)) = list.next_element()? {
                    words.extend(more);
                }
                Ok(Words(words))
            }
        }
        deserializer.deserialize_any(OfWords)
    }
}

/// The decision that a file's key names. An unknown key is an error at the key's own place.
pub(crate) struct OfKey;

impl<'de> DeserializeSeed<'de> for OfKey {
    type Value = &'static Decision;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for OfKey {
    type Value = &'static Decision;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a decision of plans")
    }

    fn visit_str<E: de::Error>(self, key: &str) -> Result<Self::Value, E> {
        let known = || DECISIONS.iter().map(|decision| decision.file).collect::<Vec<_>>().join(", ");
        let found = DECISIONS.iter().find(|decision| decision.file == key);
        found.ok_or_else(|| E::custom(format!("unknown field `{key}`: {}", sim::names::hint(key, &known(), "decisions are"))))
    }
}

impl<'de> Deserialize<'de> for PlanSpace {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfDecisions;
        impl<'de> Visitor<'de> for OfDecisions {
            type Value = PlanSpace;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("values of decisions")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PlanSpace, A::Error> {
                let mut space = PlanSpace::default();
                while let Some(decision) = map.next_key_seed(OfKey)? {
                    let Words(words) = map.next_value()?;
                    let set = decision.set(&mut space, &words);
                    set.map_err(|why| de::Error::custom(format!("{}: {why}", decision.file)))?;
                }
                Ok(space)
            }
        }
        deserializer.deserialize_map(OfDecisions)
    }
}
