//! What must hold of a study's values.

use super::{LayerSplitChoice, Study, StudyError, grid, workload};
use crate::planner::schedule_of;
use crate::space::Chips;

impl Study {
    pub(super) fn check(&self, file: &str) -> Result<(), StudyError> {
        self.check_plans(file)?;
        let anything = vec![1];
        let listed = |list: &'_ Option<Vec<u32>>| list.clone().unwrap_or_else(|| anything.clone());
        let fail = |key, value: String, limit, cure| Err(StudyError::Value { file: file.into(), key, value, limit, cure });
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
        for (key, values, most) in [
            ("plan.tensor_parallel", listed(&self.plan.tensor_parallel), 65_536),
            ("plan.pipeline_parallel", listed(&self.plan.pipeline_parallel), 65_536),
            ("plan.context_parallel", listed(&self.plan.context_parallel), 65_536),
            ("plan.expert_parallel", listed(&self.plan.expert_parallel), 65_536),
            ("plan.virtual_stages", listed(&self.plan.virtual_stages), 1024),
            ("plan.micro_batch_sequences", listed(&self.plan.micro_batch_sequences), 65_536),
        ] {
            if values.is_empty() {
                return fail(key, "[]".into(), "at least one value is needed", "list the values to try");
            }
            if let Some(v) = values.iter().find(|&&v| v == 0 || v > most) {
                let limit = if most == 1024 { "must be from 1 to 1024" } else { "must be from 1 to 65536" };
                return fail(key, v.to_string(), limit, "remove it");
            }
        }
        workload::check(self, file)?;
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

    /// What the plans' words mean.
    fn check_plans(&self, file: &str) -> Result<(), StudyError> {
        let fail = |key, value: String, limit, cure| Err(StudyError::Value { file: file.into(), key, value, limit, cure });
        let p = &self.plan;
        if let Some(zero) = p.zero.as_ref().filter(|list| list.is_empty() || list.iter().any(|stage| *stage > 3)) {
            return fail("plan.zero", format!("{zero:?}"), "needs stages from 0 to 3", "list ZeRO stages, or leave the key out");
        }
        if let Some(names) = p.schedules.as_ref().filter(|l| l.is_empty() || l.iter().any(|name| schedule_of(name).is_none())) {
            let cure = "list 1f1b, gpipe, zb-h1 or zb-v, or leave the key out";
            return fail("plan.schedules", format!("{names:?}"), "needs names of pipeline schedules", cure);
        }
        if p.mixes() && p.layer_split == LayerSplitChoice::Best {
            let limit = "chooses policies stage by stage under even splits of the layers only";
            return fail("plan.recompute", "best".into(), limit, "write layer_split = \"even\", or list policies");
        }
        if p.recompute.as_ref().is_some_and(Vec::is_empty) {
            return fail("plan.recompute", "[]".into(), "at least one value is needed", "list policies, or leave the key out");
        }
        Ok(())
    }
}
