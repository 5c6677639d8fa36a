//! `coplace search` of a study with a table `[serve]` is answered as `coplace serve --study`.

use super::asked::GivenDeployment;
use super::{AnswerForm, answer_deployments};
use crate::call::Call;
use crate::failure::{self, Failure, OrInput};
use crate::verb::search::{SearchArguments, run_search};
use search::study::Study;

/// Largest number of deployments that are shown.
const SHOWN: u32 = 8;

/// Runs `search`: a study with a table `[serve]` is asked for its deployment, any other question for its design.
pub fn run_search_or_serve(arguments: &SearchArguments, call: &Call) -> Result<(), Failure> {
    let Some(asked) = arguments.study_search()? else { return run_search(arguments, call) };
    if Study::load_from(&asked.study, &asked.files).or_input()?.serve.is_none() {
        return run_search(arguments, call);
    }
    if !asked.is_plain || asked.models.len() > 1 {
        let limit = "has a table [serve], and search takes no other options of such a study than --out and --format";
        let cure = "set its values in a copy of the study (coplace init FILE.toml --study NAME), or use coplace serve \
            --study; without [serve] its chips are searched for training alone";
        return Err(failure::file_failure(&asked.study, limit, cure));
    }
    let model = asked.models.first().cloned();
    let given = GivenDeployment { model, study: Some(asked.study.clone()), ..GivenDeployment::default() };
    let question = given.question(&asked.files)?;
    let show = AnswerForm { top: SHOWN, format: asked.format, beside: None };
    answer_deployments(&question, show, asked.out.as_deref(), call)
}
