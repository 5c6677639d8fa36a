//! Finds the best training plan for given hardware.
//!
//! Every plan of a [`PlanSpace`] is evaluated in closed form ([`step::Evaluator`]): the memory of the fullest device,
//! and the step's time. For some plans (zero-bubble schedules, end chunks lighter than the inner ones) only the event
//! simulation gives the time, and the closed form is a lower bound. Those of them that fit are simulated in the order
//! of their bounds, until no bound is below the last plan of the requested list. So the list is exact for the space
//! under this model. Nothing depends on the number of threads.
//!
//! A plan of the space does not fix the split of its layers into stages. It is counted and evaluated under the even
//! split. Then `splits` tries splits near the even one for every plan that may enter the list. It also looks for any
//! other split that makes a plan much faster than the first. With [`Splits::Best`], every plan of the list gets its
//! best split instead.
//!
//! A space that is too large for this ([`Splits::NearOf`]) contains a small space that is searched first. The times of
//! the small space's list prune most other plans by a bound on their work, before anything else about them is
//! evaluated.

mod attempt;
mod bounds;
mod chips;
#[cfg(test)]
mod documented_tests;
mod families;
mod fit;
mod job;
mod mapped;
mod mixes;
mod neighbours;
mod ranked;
mod search;
mod search_plans;
mod space;
mod splits;
#[cfg(test)]
mod tests;

pub use crate::ask::{PlanFamily, PlanSpace, Splits};
pub(crate) use attempt::PlanAttempt;
pub use chips::fastest::FastestPlan;
pub use chips::on_chip::{ChipKernels, GroupBounds};
pub use chips::prepared::PreparedJob;
pub use families::FamilyPlan;
pub use fit::{NO_MARGIN, USUAL_FIT};
pub use job::Job;
pub use mapped::{MapRanks, PlanMappingError, map_plans};
pub use neighbours::{Neighbour, NeighbourOutcome, neighbours};
pub use ranked::{ALIKE_MEMORY, ALIKE_TIME, MixStatistics, PlanAnswer, RankedPlan};
pub use search::watch::{PlanPart, PlanProgress, PlanWatch};
pub use search_plans::{add_discouraged, search_documented, search_plans, search_plans_watched};
pub use space::plan_space::SPLIT_TOLERANCE;
pub use space::policies::default_policies;
