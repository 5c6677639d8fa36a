//! Finds a topology's columns by the names in its header.

use sim::hardware::FileFault;
use sim::names;

/// A column: its usual name, and its other names in SCALE-Sim. Case, blanks and punctuation make no difference.
struct TopologyColumn {
    name: &'static str,
    others: &'static [&'static str],
}

const fn column(name: &'static str, others: &'static [&'static str]) -> TopologyColumn {
    TopologyColumn { name, others }
}

const LAYER: TopologyColumn = column("Layer name", &["layer", "layers", "name"]);
const STRIDE_WIDTH: TopologyColumn = column("Stride Width", &["stride w", "strides width", "strides w"]);
const SPARSITY: TopologyColumn = column("Sparsity", &["sparsity ratio"]);

/// The figures of a convolution, in the order in which they are read.
const CONVOLUTION: [TopologyColumn; 7] = [
    column("IFMAP Height", &["ifmap h"]),
    column("IFMAP Width", &["ifmap w"]),
    column("Filter Height", &["filter h"]),
    column("Filter Width", &["filter w"]),
    column("Channels", &["channel", "num channels", "num channel"]),
    column("Num Filter", &["num filters", "number of filters", "filters"]),
    column("Strides", &["stride", "stride height", "stride h", "strides height", "strides h"]),
];
const GEMM: [TopologyColumn; 3] = [column("M", &[]), column("N", &[]), column("K", &[])];

/// Names that other tools give to a number of images.
const BATCH: TopologyColumn = column("Batch Size", &["batch", "batches", "num batches", "batch count"]);

/// The cell after the usual columns of a convolution. SCALE-Sim 2 reads it as the stride along the width, although its
/// header does not name it.
const UNNAMED_STRIDE_WIDTH: usize = CONVOLUTION.len() + 1;

/// The meaning of a cell of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CellMeaning {
    /// The layer's name.
    Layer,
    /// The figure whose name is at this place of [`TopologyColumns::names_of_figures`].
    Figure(usize),
    /// The stride along the width, if it differs from the stride along the height.
    StrideWidth,
    /// `N:M`, which SCALE-Sim ignores unless its configuration asks for it.
    Sparsity,
    /// A cell below a name that no column has.
    Unknown(String),
    /// A cell below no name.
    Unnamed,
}

/// The form of a topology's layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopologyKind {
    /// `Layer name, IFMAP Height, IFMAP Width, Filter Height, Filter Width, Channels, Num Filter, Strides,`
    Convolution,
    /// `Layer, M, N, K,`
    Gemm,
}

/// The columns of a topology, in the order of its header.
pub(super) struct TopologyColumns {
    pub(super) kind: TopologyKind,
    cells: Vec<CellMeaning>,
}

/// True if a cell is `N:M`.
pub(super) fn is_ratio(cell: &str) -> bool {
    cell.contains(':')
}

/// Returns a name in lower case, without blanks and punctuation.
fn fold_column_name(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

impl TopologyColumn {
    fn has_name(&self, name: &str) -> bool {
        let name = fold_column_name(name);
        fold_column_name(self.name) == name || self.others.iter().any(|other| fold_column_name(other) == name)
    }
}

fn figures_of_kind(kind: TopologyKind) -> &'static [TopologyColumn] {
    match kind {
        TopologyKind::Convolution => &CONVOLUTION,
        TopologyKind::Gemm => &GEMM,
    }
}

impl TopologyColumns {
    /// Finds the columns in a header line. The names in it give the kind, unless `kind` does. A line without any known
    /// name, under a given kind, stands for the usual columns in their usual order. Faults of the header are added to
    /// `faults`; `None` if rows cannot be read.
    pub(super) fn from_header(line: &str, kind: Option<TopologyKind>, faults: &mut Vec<FileFault>) -> Option<Self> {
        let kinds = kind.map_or(vec![TopologyKind::Gemm, TopologyKind::Convolution], |kind| vec![kind]);
        let readings = kinds.into_iter().map(|kind| Self::name_cells(line, kind));
        let best = readings.max_by_key(Self::count_figures).filter(|columns| columns.count_figures() > 0);
        let Some(columns) = best else {
            if let Some(kind) = kind {
                return Some(Self::in_usual_order(kind));
            }
            let limit = "begins neither as `Layer, M, N, K,` nor as `Layer name, IFMAP Height, ...,`";
            let cure = "give the header line, or say which it is (--input)";
            faults.push(FileFault::new("line 1", line.trim(), limit, cure));
            return None;
        };
        let sound = faults.len();
        columns.find_faults(line, faults);
        (faults.len() == sound).then_some(columns)
    }

    fn in_usual_order(kind: TopologyKind) -> Self {
        let figures = (0..figures_of_kind(kind).len()).map(CellMeaning::Figure);
        Self { kind, cells: [CellMeaning::Layer].into_iter().chain(figures).collect() }
    }

    /// Finds the meaning of a header's cells in a topology of `kind`.
    fn name_cells(line: &str, kind: TopologyKind) -> Self {
        let meaning = |cell: &str| {
            if fold_column_name(cell).is_empty() {
                return CellMeaning::Unnamed;
            }
            match figures_of_kind(kind).iter().position(|figure| figure.has_name(cell)) {
                Some(at) => CellMeaning::Figure(at),
                None if LAYER.has_name(cell) => CellMeaning::Layer,
                None if SPARSITY.has_name(cell) => CellMeaning::Sparsity,
                None if kind == TopologyKind::Convolution && STRIDE_WIDTH.has_name(cell) => CellMeaning::StrideWidth,
                None => CellMeaning::Unknown(cell.to_owned()),
            }
        };
        let mut cells: Vec<CellMeaning> = line.split(',').map(str::trim).map(meaning).collect();
        // If no cell is named as the layers' column, an unknown word in the first cell stands above the layers' names.
        let named = cells.contains(&CellMeaning::Layer);
        if let Some(first @ (CellMeaning::Unnamed | CellMeaning::Unknown(_))) = cells.first_mut().filter(|_| !named) {
            *first = CellMeaning::Layer;
        }
        Self { kind, cells }
    }

    fn count_figures(&self) -> usize {
        self.cells.iter().filter(|cell| matches!(cell, CellMeaning::Figure(_))).count()
    }

    /// Adds the columns that are missing, and those that are named twice.
    fn find_faults(&self, line: &str, faults: &mut Vec<FileFault>) {
        let names: Vec<&str> = line.split(',').map(str::trim).collect();
        let named = |cell: &CellMeaning| !matches!(cell, CellMeaning::Unnamed | CellMeaning::Unknown(_));
        for (at, cell) in self.cells.iter().enumerate().filter(|(_, cell)| named(cell)) {
            if let Some(before) = self.cells[..at].iter().position(|other| other == cell) {
                let limit = format!("column {} is `{}` already", before + 1, names[before]);
                faults.push(FileFault::new(format!("line 1, column {}", at + 1), names[at], limit, "remove one"));
            }
        }
        let unknown: Vec<&str> = self.list_unknown().map(|(_, name)| name).collect();
        let wanted = self.names_of_figures().enumerate().map(|(at, name)| (CellMeaning::Figure(at), name));
        for (_, name) in [(CellMeaning::Layer, LAYER.name)].into_iter().chain(wanted).filter(|(w, _)| !self.has(w)) {
            let cure = match names::find_nearest(name, unknown.iter().copied()) {
                Some(near) => format!("rename column `{near}`"),
                None => format!("name it; the columns are {}", self.list_known()),
            };
            faults.push(FileFault::new(format!("line 1, {name}"), "nothing", "this column is needed", cure));
        }
    }

    fn has(&self, wanted: &CellMeaning) -> bool {
        self.cells.contains(wanted)
    }

    /// Returns the meaning of a row's cell. A cell `N:M` below no name is sparsity.
    pub(super) fn meaning_of_cell(&self, at: usize, cell: &str) -> &CellMeaning {
        match self.cells.get(at).unwrap_or(&CellMeaning::Unnamed) {
            CellMeaning::Unnamed if is_ratio(cell) => &CellMeaning::Sparsity,
            CellMeaning::Unnamed
                if self.kind == TopologyKind::Convolution
                    && at == UNNAMED_STRIDE_WIDTH
                    && !self.has(&CellMeaning::StrideWidth) =>
            {
                &CellMeaning::StrideWidth
            }
            meaning => meaning,
        }
    }

    /// Returns the names of the figures of each row, in the order in which they are read.
    pub(super) fn names_of_figures(&self) -> impl ExactSizeIterator<Item = &'static str> + use<> {
        figures_of_kind(self.kind).iter().map(|figure| figure.name)
    }

    /// Returns the columns with unknown names, each with its place.
    pub(super) fn list_unknown(&self) -> impl Iterator<Item = (usize, &str)> {
        self.cells.iter().enumerate().filter_map(|(at, cell)| match cell {
            CellMeaning::Unknown(name) => Some((at, name.as_str())),
            _ => None,
        })
    }

    fn list_known(&self) -> String {
        let mut known = vec![LAYER.name];
        known.extend(self.names_of_figures());
        known.extend((self.kind == TopologyKind::Convolution).then_some(STRIDE_WIDTH.name));
        known.push(SPARSITY.name);
        known.join(", ")
    }

    /// Returns the fault of a column with an unknown name, below which a row has `value`.
    pub(super) fn fault_of_unknown(&self, name: &str, value: &str) -> FileFault {
        let known = self.list_known();
        let (limit, cure) = if BATCH.has_name(name) {
            (format!("SCALE-Sim has no batches; the columns are {known}"), "give a layer once per image, without it")
        } else {
            let hint = names::hint(name, &known, "the columns are");
            (format!("SCALE-Sim has no such column; {hint}"), "correct its name or remove it")
        };
        FileFault::new(format!("line 1, {name}"), value, limit, cure)
    }
}
