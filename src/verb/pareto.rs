//! `coplace pareto`: draws and lists the Pareto front of one quantity against another.

mod serving;

use super::compare::read_runs;
use crate::answer::{self, Format, Versioned};
use crate::call::Call;
use crate::failure::{self, Failure, OrOther, OrUnwritable};
use crate::verb::job::run::run_path;
use crate::written_path::WrittenPath;
use results::compare::runs::{describe_difference, rescale_to_first_reference};
use results::figure::Figure;
use results::run::front::{DesignMeasures, FrontAxes, FrontQuantity, StepScope};
use results::run::front_table::write_front_table;
use results::run::record::FrontRecord;
use results::run::search_run::{self, PARETO, SearchRun};
use results::run::serving::{ServedAxis, ServingRun};
use results::store::design::DesignRow;
use results::text::{ColumnAlign, TextTable, fold_line, format_significant};
use search::pareto::FrontScales;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Draw one or more runs along the axes of their front, and list the designs on it
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  coplace pareto runs/llama2-7b-phaze runs/llama2-7b-phaze_ici --out figures\n  \
    coplace pareto runs/frugal --x power --y per-watt --out figures\n  \
    coplace pareto runs/serve-h100 runs/serve-h200 --out figures\n\n\
    Axes: area, power, cost, energy (of a step), throughput, step-time, per-mm2, per-watt, per-dollar (a\n\
    device's throughput divided by its own dies, power or cost), energy-per-token.\n\n\
    Of runs of serve the vertical axis is tokens/s per device; --x is per-user (tokens/s per user, the default),\n\
    tpot or ttft. Each chip and length has a front of the deployments that none exceeds along both.\n\n\
    Writes pareto.svg, pareto.png and pareto.csv (every design on the fronts, with the columns of designs.parquet)\n\
    into the directory. A design is on the front of its run if no other\n\
    evaluated design of the run is as good in everything. Along the axes of its search (the default) this is the\n\
    exact front of the space. Along other axes it may lack designs that the search had no reason to evaluate; a\n\
    sweep evaluates all. Runs of search --robust have no front.\n\n\
    Hypervolume: the dominated fraction of a box, which spans from the best of each axis over all fronts shown\n\
    to a reference point a tenth of the range beyond the worst. Knee: the design with the least sum of its axes,\n\
    each scaled from 0 at the best to 1 at the worst over all fronts shown. With two axes it is the design\n\
    farthest from the line between the ends of the front.\n\n\
    JSON: {\"written\": [paths], \"runs\": [{\"run\", \"axes\": {\"x\", \"y\", \"z\"}, \"hypervolume\", \"knee\": \
    index, \"front\":\n\
    [designs]}]}, the best along x first; a design has the columns of designs.parquet. Of runs of serve {\"written\",\n\
    \"runs\": [{\"run\", \"axis\", \"fronts\": [{\"chip\", \"lengths\", \"points\"}]}]}.")]
pub struct ParetoArguments {
    /// Run directories of `coplace search`, `coplace sweep` or `coplace serve`
    #[arg(required = true, value_name = "DIR", value_parser = run_path())]
    directories: Vec<PathBuf>,
    /// Horizontal axis [default: the first axis of the first run's front]
    #[arg(long, value_name = "AXIS", value_parser = parse_axis)]
    x: Option<String>,
    /// Vertical axis [default: the first run's objective]
    #[arg(long, value_name = "AXIS", value_parser = parse_axis)]
    y: Option<String>,
    /// A third quantity of the front [default: the second axis of the first run's front, if neither --x nor --y is
    /// given]
    #[arg(long, value_name = "AXIS", value_parser = parse_axis)]
    z: Option<String>,
    /// Directory of the figures, which is created if needed
    #[arg(long, value_name = "DIR")]
    out: WrittenPath,
    /// Format of the answer
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// Checks the name of an axis of designs or of deployments.
fn parse_axis(name: &str) -> Result<String, String> {
    let of_designs = FrontQuantity::all().map(|quantity| quantity.to_string());
    let known: Vec<String> = of_designs.chain(ServedAxis::NAMES.map(|(name, _)| name.to_owned())).collect();
    match known.iter().any(|known| known == name) {
        true => Ok(name.to_owned()),
        false => Err(sim::names::hint(name, &known.join(", "), "use one of")),
    }
}

/// Returns the quantity of designs that an option names; `None` without the option.
fn quantity_of(flag: &str, name: Option<&String>) -> Result<Option<FrontQuantity>, Failure> {
    let Some(name) = name else { return Ok(None) };
    let known = || FrontQuantity::all().map(|quantity| quantity.to_string()).collect::<Vec<_>>().join(", ");
    FrontQuantity::from_name(name).map(Some).ok_or_else(|| {
        let cure = format!("use one of {}", known());
        failure::option_failure(flag, name, "is an axis of deployments, and these are runs of search or sweep", cure)
    })
}

/// Largest number of designs of a front that are listed, in addition to the knee.
const LISTED: usize = 7;

#[derive(Serialize)]
struct ParetoAnswer<'a> {
    written: Vec<String>,
    runs: Vec<RunFront<'a>>,
}

#[derive(Serialize)]
struct RunFront<'a> {
    run: &'a str,
    axes: AxesNamed,
    hypervolume: Option<f64>,
    knee: Option<i64>,
    front: Vec<&'a DesignRow>,
}

#[derive(Serialize)]
struct AxesNamed {
    x: String,
    y: String,
    z: Option<String>,
}

/// Runs the verb: reads the runs, draws and lists.
pub fn run_pareto(arguments: &ParetoArguments, call: &Call) -> Result<(), Failure> {
    if arguments.directories.iter().any(|directory| ServingRun::is_in(directory)) {
        return serving::draw_serving_fronts(arguments, call);
    }
    let mut runs = read_runs(&arguments.directories)?;
    if let Some(run) = runs.iter().find(|run| run.record.certificate.robust) {
        return Err(failure::file_failure(
            &run.name,
            "is a run of search --robust, which looks for the best at the bad end of its step's interval and for no \
            front",
            format!(
                "search without --robust for one (its --front names the axes), or see coplace compare {}",
                run.name
            ),
        ));
    }
    rescale_to_first_reference(&mut runs).map_err(failure::input_failure)?;
    let axes = requested_axes(arguments, &runs)?;
    let figure = search_run::front_figure(&runs, axes).or_other()?;
    let mut written = write_figure(arguments, &figure)?;
    let fronts = fronts_of_runs(&runs, axes);
    let rows: Vec<(&SearchRun, &[&DesignRow])> = runs.iter().zip(fronts.iter().map(|of| &of.front[..])).collect();
    let table = write_front_table(&arguments.out, &rows, axes).or_unwritable()?;
    written.push(table.display().to_string());
    let answer = ParetoAnswer { written, runs: fronts };
    answer::write_answer(call, arguments.format, &Versioned::with_schema_one(&answer), |_| {
        answer_text(&answer, &runs, axes)
    })
}

/// Writes the figure into the directory, and returns its files.
fn write_figure(arguments: &ParetoArguments, figure: &Figure) -> Result<Vec<String>, Failure> {
    let out = &arguments.out;
    if out.exists() && !out.is_dir() {
        return Err(failure::option_failure("--out", out.display(), "is a file", "give a directory"));
    }
    std::fs::create_dir_all(out).map_err(|e| {
        failure::write_failure(
            &e,
            format!("--out {}: cannot be made: {e}; give a directory you may write to", out.display()),
        )
    })?;
    let written = figure.write_files(out, PARETO).or_unwritable()?;
    Ok(written.iter().map(|path| path.display().to_string()).collect())
}

/// Returns the requested axes. Fails if two are equal, or if no design has a value on an axis.
fn requested_axes(arguments: &ParetoArguments, runs: &[SearchRun]) -> Result<FrontAxes, Failure> {
    let own = runs
        .first()
        .map_or(FrontAxes { x: FrontQuantity::AREA, y: FrontQuantity::THROUGHPUT, z: None }, SearchRun::axes_of_front);
    let given = [("--x", &arguments.x), ("--y", &arguments.y), ("--z", &arguments.z)];
    let [x, y, z] = given.map(|(flag, name)| quantity_of(flag, name.as_ref()));
    let (x, y, z) = (x?, y?, z?);
    let chosen = x.is_some() || y.is_some();
    let (x, y) = (x.unwrap_or(own.x), y.unwrap_or(own.y));
    let axes = FrontAxes { x, y, z: z.or(own.z.filter(|_| !chosen)) };
    if x == y || axes.z.is_some_and(|z| z == x || z == y) {
        let all: Vec<String> = axes.all_quantities().map(|quantity| quantity.to_string()).collect();
        return Err(failure::option_failure(
            "--x, --y, --z",
            "",
            format!("{}: one is there twice", all.join(", ")),
            "give different ones",
        ));
    }
    for (flag, quantity) in [("--x", Some(x)), ("--y", Some(y)), ("--z", axes.z)] {
        let Some(quantity) = quantity else { continue };
        let without = runs.iter().find(|run| {
            let mut designs = run
                .designs
                .iter()
                .filter(|row| row.outcome == results::store::design::DesignStatus::Evaluated)
                .peekable();
            designs.peek().is_some()
                && !designs.any(|row| quantity.value_of(&DesignMeasures::from(row), &run.step_scope()).is_some())
        });
        if let Some(run) = without {
            let cure = "use area, power, cost or throughput";
            return Err(failure::option_failure(flag, quantity, format!("no design of {} has it", run.name), cure));
        }
    }
    Ok(axes)
}

/// Returns the front of each run. The same scales apply to all fronts.
fn fronts_of_runs(runs: &[SearchRun], axes: FrontAxes) -> Vec<RunFront<'_>> {
    let fronts: Vec<Vec<&DesignRow>> =
        runs.iter().map(|run| axes.front_designs(&run.designs, &run.step_scope())).collect();
    let points: Vec<Vec<Vec<f64>>> =
        runs.iter().zip(&fronts).map(|(run, front)| axes.minimised_points(front, &run.step_scope())).collect();
    let scales = FrontScales::of_fronts(points.iter().flatten());
    let all = runs.iter().zip(fronts).zip(points);
    all.map(|((run, front), points)| {
        let measured = scales.as_ref().and_then(|scales| FrontRecord::from_points(axes, &front, &points, scales));
        RunFront {
            run: &run.name,
            axes: AxesNamed { x: axes.x.to_string(), y: axes.y.to_string(), z: axes.z.map(|z| z.to_string()) },
            hypervolume: measured.as_ref().map(|of| of.hypervolume),
            knee: measured.map(|of| of.knee.index),
            front,
        }
    })
    .collect()
}

/// Returns the answer as text: one table per run with its front, the best along x first.
fn answer_text(answer: &ParetoAnswer<'_>, runs: &[SearchRun], axes: FrontAxes) -> String {
    let mut text = String::new();
    let nodes: BTreeSet<String> = runs.iter().map(SearchRun::node_names).collect();
    for (front, run) in answer.runs.iter().zip(runs) {
        let (name, model) = (front.run, &run.record.study.model);
        if front.front.is_empty() {
            text.push_str(&format!("{name}: no design runs {model}\n\n"));
            continue;
        }
        let of = if nodes.len() > 1 { format!(" of {}", run.node_names()) } else { String::new() };
        text.push_str(&format!(
            "{name}: the front of {model}, {}, {} designs{of}\n",
            axes.describe_axes(),
            front.front.len()
        ));
        let own = run.axes_of_front();
        // A front of three quantities contains the fronts of any two of them.
        if !axes.all_quantities().all(|quantity| own.all_quantities().any(|of| of == quantity)) {
            text.push_str(&fold_line(&format!(
                "Searched for {}: these are the best of the designs that it evaluated, and no Pareto front.",
                own.describe_axes()
            )));
        }
        if let Some(note) = runs.first().and_then(|first| describe_difference(first, run)) {
            text.push_str(&format!("({note})\n"));
        }
        text.push_str(&front_list(front, axes, &run.step_scope()));
        if let (Some(hypervolume), Some(knee)) = (front.hypervolume, front.knee) {
            let covered = format_significant(hypervolume, 4);
            text.push_str(&fold_line(&format!(
                "Hypervolume {covered}; the knee is design {knee}. See --help for both."
            )));
        }
        text.push('\n');
    }
    if nodes.len() > 1 && axes.all_quantities().any(FrontQuantity::depends_on_area) {
        text.push_str("Areas belong to different process nodes and cannot be compared.\n");
    }
    text.push_str(&format!("Written: {}\n", answer.written.join(", ")));
    text
}

/// Returns a table of a front: its ends, its knee and designs between them.
fn front_list(front: &RunFront<'_>, axes: FrontAxes, work: &StepScope) -> String {
    let columns: Vec<FrontQuantity> = [Some(axes.x), Some(axes.y), axes.z].into_iter().flatten().collect();
    let heads = columns.iter().map(|quantity| quantity.column_head(work.several));
    let heads = std::iter::once("design".to_owned()).chain(heads).chain(std::iter::once("chip".to_owned()));
    let mut table = TextTable::new(heads).align_column(columns.len() + 1, ColumnAlign::Left);
    for row in front.front.iter().enumerate().filter(|(at, _)| is_listed(front, *at)).map(|(_, row)| row) {
        let measured = DesignMeasures::from(*row);
        let value = |quantity: &FrontQuantity| {
            quantity.value_of(&measured, work).map_or_else(String::new, |value| format_significant(value, 4))
        };
        let index = std::iter::once(row.index.to_string());
        table.add_row(index.chain(columns.iter().map(value)).chain(std::iter::once(row.describe_chip())));
    }
    let listed = (0..front.front.len()).filter(|at| is_listed(front, *at)).count();
    let all = front.front.len();
    let left_out =
        if listed < all { format!("{listed} of {all} designs; {PARETO}.csv has all.\n") } else { String::new() };
    table.render() + &left_out
}

/// True if the design at a position of a front is listed: the knee, the ends, and designs at equal distances between
/// them.
fn is_listed(front: &RunFront<'_>, at: usize) -> bool {
    let last = front.front.len() - 1;
    let place = |step: usize| step * last / (LISTED - 1);
    last < LISTED || front.knee == Some(front.front[at].index) || (0..LISTED).any(|step| place(step) == at)
}
