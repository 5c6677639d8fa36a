//! Options for the decisions of a plan, made from the table of decisions.

use crate::failure::{Failure, structured_failure};
use crate::numbers::whole_number_in;
use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Arg, ArgAction, ArgMatches, Command};
use search::ask::{DECISIONS, Decision, DecisionValues, PlanSpace};
use sim::files::FaultParts;

/// Choices of plans. A decision whose option is not given is left to the planner.
#[derive(Debug, Clone, Default)]
pub struct SpaceArguments {
    given: Vec<(&'static Decision, Vec<String>)>,
}

impl SpaceArguments {
    /// Returns the space of plans that the options ask for.
    ///
    /// # Errors
    /// A text that is no value of its decision.
    pub fn plan_space(&self) -> Result<PlanSpace, Failure> {
        let mut space = PlanSpace::default();
        for (decision, words) in &self.given {
            let given = words.join(&decision.separator().to_string());
            decision.set(&mut space, words).map_err(|why| {
                let parts = FaultParts::of_key(format!("--{}", decision.flag), given, &why, "");
                structured_failure(format!("--{}: {why}", decision.flag), parts)
            })?;
        }
        Ok(space)
    }
}

impl clap::FromArgMatches for SpaceArguments {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |decision: &'static Decision| Some((decision, matches.get_many(decision.flag)?.cloned().collect()));
        Ok(Self { given: DECISIONS.iter().filter_map(given).collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for SpaceArguments {
    fn augment_args(command: Command) -> Command {
        command.args(DECISIONS.iter().map(option_of_decision))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// Returns the option of a decision.
fn option_of_decision(decision: &'static Decision) -> Arg {
    let option = Arg::new(decision.flag).long(decision.flag).help(decision.doc).action(ArgAction::Append);
    match decision.values {
        DecisionValues::Numbers(least, most) => {
            let number = whole_number_in::<u32>(least..=most);
            let checked = move |text: &str| number(text).map(|_| text.to_owned());
            option.value_name("LIST").value_delimiter(',').value_parser(checked).allow_hyphen_values(true)
        }
        DecisionValues::Words(words) => {
            let values = words().into_iter().map(|(name, meaning)| PossibleValue::new(name).help(meaning));
            option.value_name("LIST").value_delimiter(',').value_parser(PossibleValuesParser::new(values))
        }
        DecisionValues::Switch => {
            option.value_name("BOOL").action(ArgAction::Set).value_parser(PossibleValuesParser::new(["true", "false"]))
        }
        DecisionValues::Texts(separator) => option.value_name("LIST").value_delimiter(separator),
    }
}

/// Returns the option that restricts the decision with this key; `None` if no option does.
pub fn option_of_rule(key: &str) -> Option<String> {
    match key {
        "global_batch" => Some("--global-batch".to_owned()),
        "devices" => Some("--devices".to_owned()),
        _ => Decision::of_key(key).map(|decision| format!("--{}", decision.flag)),
    }
}
