//! Checks the workload of a study: the cluster and its models.

use super::{Study, StudyError};

/// Checks the sizes and batches of the cluster and of every model, and the models' weights.
pub(super) fn check(study: &Study, file: &str) -> Result<(), StudyError> {
    let fail = |key, value: String, limit, cure| Err(StudyError::Value { file: file.into(), key, value, limit, cure });
    let c = &study.cluster;
    let given =
        [("cluster.devices", "cluster.global_batch_sequences", Some(c.devices), Some(c.global_batch_sequences))];
    let own = study
        .workloads
        .iter()
        .map(|w| ("workload.devices", "workload.global_batch_sequences", w.devices, w.global_batch_sequences));
    for (devices_key, batch_key, devices, batch) in given.into_iter().chain(own) {
        if let Some(value) = devices.filter(|devices| *devices == 0 || *devices > 1 << 20) {
            let cure = "give the accelerators of the cluster";
            return fail(devices_key, value.to_string(), "must be from 1 to 1048576", cure);
        }
        if let Some(value) = batch.filter(|batch| *batch == 0 || *batch > 1 << 24) {
            return fail(batch_key, value.to_string(), "must be from 1 to 16777216", "give the sequences of a step");
        }
    }
    if let Some(w) = study.workloads.iter().find(|w| !(w.weight > 0.0 && w.weight <= 1e6)) {
        let (limit, cure) =
            ("must be above 0 and at most 1e6", "say what the model counts beside the others, or remove it");
        return fail("workload.weight", w.weight.to_string(), limit, cure);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::ask::WorkloadSpec;

    const WORKLOAD: &str = "[[workload]]\nmodel = \"llama2-7b\"\nweight = 2.5\ndevices = 64\n";

    #[test]
    fn models_of_a_study_have_weights_and_clusters_of_their_own() {
        let text = super::super::Study::text("smoke").unwrap();
        let study =
            Study::parse("s.toml", &format!("over = \"mean\"\n{text}\n{WORKLOAD}[[workload]]\nmodel = \"opt-350m\"\n"))
                .unwrap();
        assert_eq!(study.over, crate::objective::MeasureMean::Mean);
        let [first, second] = &study.workloads[..] else { unreachable!() };
        assert_eq!((first.weight, first.devices, first.global_batch_sequences), (2.5, Some(64), None));
        assert_eq!(*second, WorkloadSpec::of("opt-350m"));
        let error = |of: &str, by: &str| {
            Study::parse("s.toml", &format!("{text}\n{}", WORKLOAD.replace(of, by))).unwrap_err().to_string()
        };
        assert_eq!(
            error("2.5", "0"),
            "s.toml, line 54: workload.weight = 0: must be above 0 and at most 1e6; say what the model counts beside the others, or remove it"
        );
        assert!(error("64", "0").starts_with("s.toml, line 55: workload.devices = 0: must be from 1 to 1048576"));
        assert!(error("weight", "wieght").contains("unknown field `wieght`"));
    }
}
