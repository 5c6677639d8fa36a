//! Prediction errors averaged inside groups of measurements, so that a large group does not outweigh a small one in a
//! fit.

/// The error of one group before and after a fit.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupError {
    /// The group.
    pub group: String,
    /// Measurements in it.
    pub count: usize,
    /// Mean absolute relative error with the scalars at the start.
    pub before: f64,
    /// Mean absolute relative error with the fitted scalars.
    pub after: f64,
}

/// The groups of a list of measurements, sorted by name.
#[derive(Debug)]
pub(crate) struct MeasurementGroups {
    names: Vec<String>,
    of: Vec<usize>,
    counts: Vec<usize>,
}

impl MeasurementGroups {
    /// Builds the groups from each measurement's group name.
    pub fn new<'a>(measurements: impl Iterator<Item = &'a str> + Clone) -> Self {
        let mut names: Vec<String> = measurements.clone().map(str::to_owned).collect();
        names.sort();
        names.dedup();
        let mut counts = vec![0; names.len()];
        let place = |group: &str| names.partition_point(|name| name.as_str() < group);
        let of: Vec<usize> = measurements.map(place).collect();
        for &group in &of {
            counts[group] += 1;
        }
        Self { names, of, counts }
    }

    /// The group index of each measurement.
    pub fn group_of_each(&self) -> &[usize] {
        &self.of
    }

    /// Returns the number of groups.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Returns the mean error of each group, in order of the groups. `errors` has one entry per measurement, in order.
    pub fn group_means(&self, errors: impl Iterator<Item = f64>) -> Vec<f64> {
        let mut sums = vec![0.0; self.names.len()];
        for (error, &group) in errors.zip(&self.of) {
            sums[group] += error;
        }
        sums.iter().zip(&self.counts).map(|(sum, count)| sum / *count as f64).collect()
    }

    /// Returns each group's count, and its mean errors before and after the fit.
    pub fn report_groups(&self, before: &[f64], after: &[f64]) -> Vec<GroupError> {
        let groups = self.names.iter().zip(&self.counts).zip(before.iter().zip(after));
        groups
            .map(|((group, &count), (&before, &after))| GroupError { group: group.clone(), count, before, after })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_is_averaged_by_itself() {
        let groups = MeasurementGroups::new(["b", "a", "b", "b"].into_iter());
        assert_eq!((groups.group_of_each(), groups.len()), (&[1, 0, 1, 1][..], 2));
        assert_eq!(groups.group_means([0.3, 0.5, 0.0, 0.6].into_iter()), [0.5, 0.3]);
        let [a, b] = &groups.report_groups(&[0.5, 0.3], &[0.1, 0.2])[..] else { unreachable!("two groups") };
        assert_eq!((a.group.as_str(), a.count, a.before, a.after), ("a", 1, 0.5, 0.1));
        assert_eq!((b.group.as_str(), b.count, b.before, b.after), ("b", 3, 0.3, 0.2));
    }
}
