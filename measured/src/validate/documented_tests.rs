use super::Dataset;

const README: &str = include_str!("../../README.md");

#[test]
fn every_data_set_is_described() {
    for dataset in Dataset::ALL {
        let line = README.lines().find(|line| line.starts_with(&format!("| {dataset} |"))).unwrap_or_default();
        let columns = dataset.identifying_columns().iter().chain(dataset.required_columns());
        let missing: Vec<&&str> = columns.filter(|c| !line.contains(&format!("`{c}`"))).collect();
        assert!(missing.is_empty(), "{dataset}: {missing:?}");
    }
}
