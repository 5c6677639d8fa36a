//! The output of nccl-tests (`all_reduce_perf` and its kin) and of rccl-tests, which prints the same.
//!
//! A log has a line per device (`#  Rank  0 Group  0 Pid ... on HOST device  0 [...] NAME`), a header of columns and a
//! line per size. Only the times out of place are taken. The bandwidths are checked by the formulas of nccl-tests'
//! `doc/PERFORMANCE.md`; a log whose bandwidths are those of another collective is refused. Lines that are no part of a
//! table (messages of `mpirun` or NCCL) are passed over.

use super::{LogContext, chip_of_device, write_rows};
use sim::files::FileFault;
use sim::hardware::ChipTemplate;
use std::collections::BTreeSet;

/// A test: its name, the collective's name, and the ratio of bus bandwidth to algorithm bandwidth by number of ranks.
type TestedCollective = (&'static str, &'static str, fn(f64) -> f64);

/// The collectives: the test's name, the name in measured data, and the bus bandwidth over the algorithm's for `n`
/// ranks. Names without a counterpart here stay as they are, and their rows are not predicted.
const COLLECTIVES: [TestedCollective; 9] = [
    ("all_reduce", "all_reduce", |n| 2.0 * (n - 1.0) / n),
    ("all_gather", "all_gather", |n| (n - 1.0) / n),
    ("reduce_scatter", "reduce_scatter", |n| (n - 1.0) / n),
    ("alltoall", "all_to_all", |n| (n - 1.0) / n),
    ("broadcast", "broadcast", |_| 1.0),
    ("sendrecv", "send_recv", |_| 1.0),
    ("reduce", "reduce", |_| 1.0),
    ("gather", "gather", |n| (n - 1.0) / n),
    ("scatter", "scatter", |n| (n - 1.0) / n),
];

/// Relative difference that rounding of a printed time cannot explain.
const SLACK: f64 = 2e-3;

/// The columns of a row.
const COLUMNS: &str = "id,dataset,chip,fabric,collective,ranks,nodes,bytes,measured_us,bus_gbytes_per_s,algo,source";

/// True if a line of the text is the header of a table of nccl-tests.
pub(super) fn is_log(text: &str) -> bool {
    text.lines().any(|line| header_of(line).is_some())
}

/// Returns the columns of a header line; `None` for another line.
fn header_of(line: &str) -> Option<Vec<&str>> {
    let columns: Vec<&str> = line.trim_start().strip_prefix('#')?.split_whitespace().collect();
    let has = |name: &str| columns.contains(&name);
    (columns.first() == Some(&"size") && has("algbw") && has("busbw")).then_some(columns)
}

/// Returns the rows of a log as CSV.
pub(super) fn read_log(text: &str, file: &str, context: LogContext<'_>) -> Result<Vec<u8>, FileFault> {
    let mut log = LogReader { context, test: None, library: String::new(), devices: Vec::new(), tail: None };
    let named = test_in(file.rsplit(['/', '\\']).next().unwrap_or_default());
    let mut rows = Vec::new();
    for (at, line) in text.lines().enumerate().map(|(at, line)| (at + 1, line)) {
        log.read_comment(line, at)?;
        if log.tail.is_some() && line.trim_start().starts_with(|first: char| first.is_ascii_digit()) {
            rows.push((at, log.read_measurement(line, at, named)?));
        }
    }
    if rows.is_empty() {
        let cure = "give the whole output of a test that ended";
        return Err(FileFault::new("log", "0 measurements", "must have lines of sizes and times", cure));
    }
    Ok(write_rows(COLUMNS, rows.iter().map(|(at, row)| (Some(*at), row.cells()))))
}

/// Returns the first test that a word of the text names (`all_reduce_perf`, also behind a path), as an index of
/// [`COLLECTIVES`].
fn test_in(text: &str) -> Option<usize> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter_map(|word| COLLECTIVES.iter().position(|(name, ..)| word.strip_suffix("_perf") == Some(name))).next()
}

/// A device of a log, with its host.
struct RankLine {
    host: String,
    device: String,
}

/// A measured size of a log.
struct Measurement {
    line: usize,
    chip: String,
    fabric: String,
    test: usize,
    ranks: usize,
    nodes: usize,
    bytes: u64,
    time: String,
    bus: String,
    library: String,
    source: String,
}

impl Measurement {
    /// Returns the cells in the order of [`COLUMNS`].
    fn cells(&self) -> [String; 12] {
        let collective = COLLECTIVES[self.test].1;
        let (ranks, nodes, bytes) = (self.ranks, self.nodes, self.bytes);
        [
            format!("{collective}_{ranks}_on_{nodes}_{bytes}_line{}", self.line),
            "nccl_tests_log".to_owned(),
            self.chip.clone(),
            self.fabric.clone(),
            collective.to_owned(),
            ranks.to_string(),
            nodes.to_string(),
            bytes.to_string(),
            self.time.clone(),
            self.bus.clone(),
            self.library.clone(),
            self.source.clone(),
        ]
    }
}

/// The facts from the lines so far: the test, the library, the devices and the header.
struct LogReader<'a> {
    context: LogContext<'a>,
    test: Option<usize>,
    library: String,
    devices: Vec<RankLine>,
    /// Number of words of a data line from the first `time` column on; `None` before a header.
    tail: Option<usize>,
}

impl LogReader<'_> {
    fn read_comment(&mut self, line: &str, at: usize) -> Result<(), FileFault> {
        if line.contains("Collective test starting") || line.contains("nThread ") {
            (self.devices, self.tail) = (Vec::new(), None);
        }
        if let Some(test) = test_in(line) {
            self.test = Some(test);
        }
        if let Some(code) = line.split("nccl-library=").nth(1).and_then(|rest| rest.split_whitespace().next()) {
            self.library = code.parse().map(name_library).unwrap_or_default();
        }
        self.read_rank(line, at)?;
        if let Some(columns) = header_of(line) {
            if columns.contains(&"cputime") {
                let cure = "run the test without -C";
                return Err(FileFault::new(format!("line {at}"), "cputime", "must be the time on the device", cure));
            }
            let first = columns.iter().position(|column| *column == "time").unwrap_or(columns.len());
            // The column of time stamps holds two words.
            let stamp = usize::from(columns.contains(&"timestamp"));
            self.tail = Some(columns.len() - first + stamp);
        }
        Ok(())
    }

    /// Reads a line if it describes a device. Fails if its rank is not the next one.
    fn read_rank(&mut self, line: &str, at: usize) -> Result<(), FileFault> {
        let Some(rest) = line.trim_start().strip_prefix('#').map(str::trim_start) else { return Ok(()) };
        let Some(rest) = rest.strip_prefix("Rank ") else { return Ok(()) };
        let (Some((_, place)), Some((_, device))) = (rest.split_once(" on "), rest.split_once("] ")) else {
            return Ok(());
        };
        let host = place.split_whitespace().next().unwrap_or_default().to_owned();
        let rank = rest.split_whitespace().next().unwrap_or_default();
        if rank.parse() != Ok(self.devices.len()) {
            let limit = format!("must be rank {}, the next one", self.devices.len());
            let cure = "a test that was built without MPI runs every process alone: build it with MPI=1, and give the \
                whole output";
            return Err(FileFault::new(format!("line {at}: Rank"), rank, limit, cure));
        }
        self.devices.push(RankLine { host, device: device.trim().to_owned() });
        Ok(())
    }

    fn read_measurement(&self, line: &str, at: usize, named: Option<usize>) -> Result<Measurement, FileFault> {
        let place = |what: &str| format!("line {at}: {what}");
        let words: Vec<&str> = line.split_whitespace().collect();
        let tail = self.tail.unwrap_or_default();
        let Some(first) = words.len().checked_sub(tail).filter(|first| (3..=5).contains(first)) else {
            let limit = format!("must be size, count, type, redop, root and {tail} more, as the header says");
            return Err(FileFault::new(place("columns"), words.len(), limit, "give the output as nccl-tests wrote it"));
        };
        let Some(test) = self.test.or(named) else {
            let limit = "the log must name its test";
            let cure = "keep the line `# Collective test starting: all_reduce_perf`, or name the file so \
                (all_reduce_perf.log)";
            return Err(FileFault::new(place("test"), "unknown", limit, cure));
        };
        let first_device = self.devices.first().filter(|_| self.devices.len() > 1).ok_or_else(|| {
            let cure = "keep the lines `#  Rank  0 ... device  0 [...] NAME` of a run on two devices or more";
            FileFault::new(place("ranks"), self.devices.len(), "must be at least 2", cure)
        })?;
        if let Some(other) = self.devices.iter().find(|rank| rank.device != first_device.device) {
            let limit = format!("must be {}, as on the other ranks", first_device.device);
            return Err(FileFault::new("device", &other.device, limit, "give a log of devices of one kind"));
        }
        let ranks = self.devices.len();
        let measured = [(words[first], "time"), (words[first + 1], "algbw"), (words[first + 2], "busbw")];
        for (word, what) in measured {
            if !word.parse().is_ok_and(|value: f64| value.is_finite() && value >= 0.0) {
                let cure = "give the output of a run that ended";
                return Err(FileFault::new(place(what), word, "must be a number of at least 0", cure));
            }
        }
        let bytes = words[0].parse().map_err(|_| {
            FileFault::new(place("size"), words[0], "must be a number of bytes", "give the output as it was written")
        })?;
        if words.get(first + 3).is_some_and(|wrong| wrong.parse::<f64>().is_ok_and(|wrong| wrong != 0.0)) {
            let cure = "a collective with wrong results was not measured: mend the run";
            return Err(FileFault::new(place("#wrong"), words[first + 3], "must be 0", cure));
        }
        check_bandwidths(measured, (bytes, test, ranks), at)?;
        let nodes: BTreeSet<&str> = self.devices.iter().map(|rank| rank.host.as_str()).collect();
        let chip = chip_of_device(&first_device.device, self.context);
        let usual =
            || ChipTemplate::find_built_in(&chip).ok().and_then(|chip| chip.accelerator.origin.usual_fabric.clone());
        Ok(Measurement {
            line: at,
            fabric: self.context.fabric.map(str::to_owned).or_else(usual).unwrap_or_default(),
            chip,
            test,
            ranks,
            nodes: nodes.len(),
            bytes,
            time: measured[0].0.to_owned(),
            bus: measured[2].0.to_owned(),
            library: self.library.clone(),
            source: format!("nccl-tests, {}_perf, {}, out of place", COLLECTIVES[test].0, first_device.device),
        })
    }
}

/// Checks the printed bandwidths by their formulas. The algorithm's bandwidth is size over time; the bus bandwidth is
/// that times the collective's factor.
fn check_bandwidths(
    measured: [(&str, &'static str); 3],
    (bytes, test, ranks): (u64, usize, usize),
    at: usize,
) -> Result<(), FileFault> {
    let (name, _, factor) = COLLECTIVES[test];
    let [(time, _), bandwidths @ ..] = measured;
    let us: f64 = time.parse().unwrap_or_default();
    for ((word, what), factor) in bandwidths.into_iter().zip([1.0, factor(ranks as f64)]) {
        let printed: f64 = word.parse().unwrap_or_default();
        let formula = factor * bytes as f64 / us / 1e3;
        let rounding = 0.5 * last_digit(word) + formula * (0.5 * last_digit(time) / us + SLACK);
        if us > 0.0 && (printed - formula).abs() > rounding {
            let limit = format!("must be {formula:.2} GB/s, that of {name} of {bytes} B on {ranks} ranks in {time} us");
            let cure = "name the test that ran (`# Collective test starting: NAME_perf`), and keep every rank's line";
            return Err(FileFault::new(format!("line {at}: {what}"), word, limit, cure));
        }
    }
    Ok(())
}

/// Returns the value of one unit of the last printed digit: 0.01 for `13.92`, 1 for `12345`.
fn last_digit(word: &str) -> f64 {
    let (digits, power) = word.split_once(['e', 'E']).unwrap_or((word, "0"));
    let decimals = digits.split_once('.').map_or(0, |(_, after)| after.len()) as i32;
    10.0_f64.powi(power.parse::<i32>().unwrap_or(0).clamp(-30, 30) - decimals.min(30))
}

/// Returns the version of NCCL from its code: 2.18.3 is 21803 (`NCCL_VERSION` in nccl.h, from 2.9 on).
fn name_library(code: u32) -> String {
    format!("NCCL {}.{}.{}", code / 10_000, code / 100 % 100, code % 100)
}
