//! The plans of a space that a software stack's framework runs.

use crate::ask::PlanSpace;
use sim::pipeline::{PipelineSchedule, SCHEDULES};
use step::{MixKind, SoftwareStack};
use workloads::ActivationPolicy;

impl PlanSpace {
    /// Drops the schedules and policies that a stack's framework does not run. If it runs none of the schedules, the
    /// framework's own schedules replace them, or pipelines are ruled out if it has none. Returns a short description
    /// of the changes; `None` if nothing changed.
    ///
    /// # Errors
    /// The framework runs none of the policies.
    pub fn narrow_to(&mut self, stack: &SoftwareStack) -> Result<Option<String>, String> {
        let mut changes = Vec::new();
        changes.extend(self.narrow_schedules(stack));
        changes.extend(self.narrow_policies(stack)?);
        Ok((!changes.is_empty()).then(|| changes.join("; ")))
    }

    fn narrow_schedules(&mut self, stack: &SoftwareStack) -> Option<String> {
        let runs = |schedule: &PipelineSchedule| [1, 2].iter().any(|chunks| stack.runs_schedule(*schedule, *chunks));
        let asked = self.schedules.clone().unwrap_or_else(|| vec![PipelineSchedule::OneForwardOneBackward]);
        let mut run: Vec<PipelineSchedule> = asked.iter().copied().filter(runs).collect();
        if run.is_empty() {
            run = SCHEDULES.iter().map(|(.., schedule)| *schedule).filter(runs).collect();
        }
        if run.is_empty() {
            self.pipeline = Some(vec![1]);
            return Some("no pipeline".to_owned());
        }
        if run == asked {
            return None;
        }
        let names = |list: &[PipelineSchedule]| list.iter().map(|one| one.word()).collect::<Vec<_>>().join(", ");
        let change = format!("schedules {} in place of {}", names(&run), names(&asked));
        self.schedules = Some(run);
        Some(change)
    }

    fn narrow_policies(&mut self, stack: &SoftwareStack) -> Result<Option<String>, String> {
        let mixed = self.mixes == Some(MixKind::PerStage);
        // If only policies by stage are requested, no single policy is.
        let asked = if mixed { self.activations.clone().unwrap_or_default() } else { self.policies() };
        let (kept, left_out): (Vec<ActivationPolicy>, Vec<ActivationPolicy>) =
            asked.into_iter().partition(|policy| stack.runs_policy(policy));
        let keeps_mixes = mixed && stack.framework.mixes == MixKind::PerStage;
        let names = left_out.iter().map(ToString::to_string);
        let left_out: Vec<String> = names.chain((mixed && !keeps_mixes).then(|| "best".to_owned())).collect();
        if kept.is_empty() && !keeps_mixes {
            let none = left_out.join(", ");
            return Err(format!("recompute: the framework of stack {} has none of {none}", stack.name));
        }
        if left_out.is_empty() {
            return Ok(None);
        }
        self.activations = Some(kept).filter(|kept| !kept.is_empty());
        if mixed && !keeps_mixes {
            self.mixes = None;
        }
        Ok(Some(format!("no recompute {}", left_out.join(", "))))
    }
}
