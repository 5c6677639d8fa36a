//! Checks a study's values against their rules.

use super::{Study, StudyError, grid, serve, workload};
use crate::ask::Splits;
use crate::space::Chips;
use step::MixKind;

impl Study {
    pub(super) fn check(&self, file: &str) -> Result<(), StudyError> {
        self.check_plans(file)?;
        let fail =
            |key, value: String, limit, cure| Err(StudyError::Value { file: file.into(), key, value, limit, cure });
        if let Chips::Phaze(grid) = &self.space.chips {
            grid::check(file, grid)?;
        }
        let limits = &self.space.limits;
        for (key, limit) in [
            ("space.max_area_mm2", limits.max_area_mm2),
            ("space.max_power_w", limits.max_power_w),
            ("space.max_cost_usd", limits.max_cost_usd),
            ("space.min_hbm_gib", limits.min_hbm_gib),
            ("space.max_hbm_gib", limits.max_hbm_gib),
            ("space.min_hbm_gb_per_s", limits.min_hbm_gb_per_s),
        ] {
            if let Some(value) = limit.filter(|value| !(value.is_finite() && *value > 0.0)) {
                return fail(key, value.to_string(), "must be positive and finite", "give a limit, or leave it out");
            }
        }
        if let Some(why) = limits.find_contradiction(|limit| format!("space.{} = ", limit.key())) {
            return Err(StudyError::Dimension { place: file.into(), why });
        }
        let fit = self.plan.fit;
        if !(fit > 0.0 && fit < 1.0) {
            let (limit, cure) = ("must be greater than 0 and less than 1", "use 0.9, or 0.5 to keep no margin");
            return fail("plan.fit", fit.to_string(), limit, cure);
        }
        workload::check(self, file)?;
        serve::check(self, file)?;
        if let Some((key, value, limit)) = self.operation.first_invalid_figure() {
            let key = match key {
                "years" => "operation.years",
                "usd_per_kwh" => "operation.usd_per_kwh",
                "pue" => "operation.pue",
                _ => "operation.utilisation",
            };
            return fail(key, value.to_string(), limit, "correct it, or leave it out");
        }
        let within = self.limits.within_percent;
        if !(0.0..=100.0).contains(&within) {
            let (limit, cure) = ("must be from 0 to 100", "say by how much a design may be better than the best found");
            return fail("limits.within_percent", within.to_string(), limit, cure);
        }
        if self.limits.evaluations == 0 {
            return fail("limits.evaluations", "0".into(), "must be at least 1", "allow at least one evaluation");
        }
        Ok(())
    }

    /// Refuses block-wise recomputation, and policies by stage together with the best split of the layers.
    fn check_plans(&self, file: &str) -> Result<(), StudyError> {
        let plans = &self.plan.choices;
        if let Some(count) = plans.blocks.first() {
            return Err(StudyError::Value {
                file: file.into(),
                key: "plan.recompute",
                value: format!("block:{count}"),
                limit: "is for the plans of one chip",
                cure: "write \"best\", \"full\" or \"none\"; plan and evaluate take blocks",
            });
        }
        if plans.mixes != Some(MixKind::PerStage) || plans.splits != Some(Splits::Best) {
            return Ok(());
        }
        Err(StudyError::Value {
            file: file.into(),
            key: "plan.recompute",
            value: "best".into(),
            limit: "chooses policies stage by stage under even splits of the layers only",
            cure: "write layer_split = \"even\", or list policies",
        })
    }
}
