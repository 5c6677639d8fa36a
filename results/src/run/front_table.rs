//! The fronts of runs as comma-separated values.

use crate::run::front::{DesignMeasures, FrontAxes, FrontQuantity};
use crate::run::search_run::{PARETO, SearchRun};
use crate::store::design::{DesignRow, StoreCell};
use crate::store::files::{self, WriteError};
use std::path::{Path, PathBuf};

/// Writes `pareto.csv` into a directory, and returns its path. A row is a design on the front of a run: the run's name,
/// the values along the axes, and the columns of the store of designs.
///
/// # Errors
/// Errors of the system; a path that is a link.
pub fn write_front_table(
    directory: &Path,
    fronts: &[(&SearchRun, &[&DesignRow])],
    axes: FrontAxes,
) -> Result<PathBuf, WriteError> {
    let path = directory.join(format!("{PARETO}.csv"));
    files::refuse_link(&path)?;
    let table = front_csv(fronts, axes).map_err(|why| WriteError { file: path.clone(), why: why.into() })?;
    files::write_files(&[(path.clone(), table)])?;
    Ok(path)
}

fn front_csv(fronts: &[(&SearchRun, &[&DesignRow])], axes: FrontAxes) -> Result<Vec<u8>, csv::Error> {
    let quantities: Vec<_> = [Some(axes.x), Some(axes.y), axes.z].into_iter().flatten().collect();
    let several = fronts.iter().any(|(run, _)| run.of_several_models());
    let mut heads = vec!["run".to_owned()];
    heads.extend(quantities.iter().map(|quantity| format!("{quantity} ({})", quantity.unit(several))));
    heads.extend(DesignRow::COLUMNS.iter().map(|column| column.name.to_owned()));
    let mut table = csv::Writer::from_writer(Vec::new());
    table.write_record(&heads)?;
    for (run, front) in fronts {
        for row in *front {
            let measured = DesignMeasures::from(*row);
            let value = |quantity: &FrontQuantity| quantity.value_of(&measured, &run.step_scope());
            let mut cells = vec![run.name.clone()];
            cells.extend(quantities.iter().map(|of| value(of).map_or_else(String::new, |value| value.to_string())));
            cells.extend(row.cells().iter().map(StoreCell::csv_text));
            table.write_record(&cells)?;
        }
    }
    table.into_inner().map_err(|why| csv::Error::from(why.into_error()))
}
