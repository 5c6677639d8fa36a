//! Reads `*.csv`: the layers, as convolutions or as matrix products.

use super::columns::{CellMeaning, TopologyColumns, TopologyKind, is_ratio};
use serde::Serialize;
use sim::files::FileError;
use sim::hardware::FileFault;

/// A layer as the product (m, k) x (k, n) on the array. A convolution has one row per output pixel and one column per
/// filter, and contracts over its window (im2col).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TopologyLayer {
    /// Its name in the topology.
    pub name: String,
    /// Rows: output pixels.
    pub m: u64,
    /// Columns: filters.
    pub n: u64,
    /// Contracted: filter height x filter width x channels.
    pub k: u64,
}

/// Largest number of multiplications of a layer: counts up to 2^53 are exact in every tool that reads them.
const MOST_WORK: u128 = 1 << 53;
/// Largest accepted dimension.
const LARGEST: u64 = 1 << 32;
/// Largest number of channels of a depth-wise convolution; each channel becomes a layer.
const MOST_CHANNELS: u64 = 1 << 16;

/// Reads a topology; `file` names it in errors. Columns are found by the names in the first line, which also give the
/// kind, unless `kind` does (SCALE-Sim's `-i`). Under a given kind the first line may lack names; then columns have
/// their usual order. A layer with `DP` in its name is a depth-wise convolution: one product per channel, named as in
/// SCALE-Sim. Accepted variations are the columns' order, a trailing comma, empty lines, a ninth column with the stride
/// along the width, and a column `N:M`. A column `N:M` is sparsity, which SCALE-Sim ignores unless its configuration
/// asks for it.
///
/// # Errors
/// A header of neither kind or without a needed column, a column with an unknown name that is not empty, or rows with
/// missing or impossible figures. All faults are listed by line and column.
pub fn read_topology(text: &str, file: &str, kind: Option<TopologyKind>) -> Result<Vec<TopologyLayer>, FileError> {
    let mut faults = Vec::new();
    let mut layers = Vec::new();
    let mut lines = text.trim_start_matches('\u{feff}').lines().enumerate();
    let header = lines.next().map_or("", |(_, line)| line);
    if let Some(columns) = TopologyColumns::from_header(header, kind, &mut faults) {
        let mut unknown: Vec<(usize, &str)> = Vec::new();
        for (index, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
            let row = TopologyRow::new(index + 1, line, &columns, &mut faults);
            unknown.extend(row.list_unknown_figures());
            row.read_layers(&mut layers);
        }
        let names = columns.list_unknown();
        let fault = |(at, name): (usize, &str)| {
            let (_, value) = unknown.iter().find(|(other, _)| *other == at)?;
            Some(columns.fault_of_unknown(name, value))
        };
        // A column with an unknown name may change the meaning of every row, so its fault comes first.
        faults.splice(0..0, names.filter_map(fault));
        if layers.is_empty() && faults.is_empty() {
            let (limit, cure) = ("a topology has at least one", "add a line per layer below the header");
            faults.push(FileFault::new("layers", "none", limit, cure));
        }
    }
    if faults.is_empty() { Ok(layers) } else { Err(FileError { file: file.to_owned(), faults }) }
}

/// One line of the file. Its faults are added to the file's faults.
struct TopologyRow<'a, 'f> {
    line: usize,
    columns: &'a TopologyColumns,
    cells: Vec<&'a str>,
    faults: &'f mut Vec<FileFault>,
}

impl<'a, 'f> TopologyRow<'a, 'f> {
    fn new(line: usize, text: &'a str, columns: &'a TopologyColumns, faults: &'f mut Vec<FileFault>) -> Self {
        let mut cells: Vec<&str> = text.split(',').map(str::trim).collect();
        if cells.last().is_some_and(|cell| cell.is_empty()) {
            cells.pop();
        }
        Self { line, columns, cells, faults }
    }

    fn add_fault(&mut self, column: &str, value: &str, limit: &str, cure: &str) {
        self.faults.push(FileFault::new(format!("line {}, {column}", self.line), value, limit, cure));
    }

    /// Returns the cells below unknown names that are not empty, each with its place.
    fn list_unknown_figures(&self) -> Vec<(usize, &'a str)> {
        let cell = |at: usize| self.cells.get(at).copied().filter(|cell| !cell.is_empty());
        self.columns.list_unknown().filter_map(|(at, _)| Some((at, cell(at)?))).collect()
    }

    /// Returns the first cell with a given meaning; `None` if the row has none.
    fn cell_with_meaning(&self, meaning: &CellMeaning) -> Option<&'a str> {
        let has = |(at, cell): &(usize, &&str)| self.columns.meaning_of_cell(*at, cell) == meaning;
        self.cells.iter().enumerate().find(has).map(|(_, cell)| *cell)
    }

    /// Checks the cells other than the figures: the row has as many as its columns, and sparsity is `N:M`.
    fn has_sound_length(&mut self) -> bool {
        let columns = self.columns;
        let meanings: Vec<_> =
            self.cells.iter().enumerate().map(|(at, cell)| columns.meaning_of_cell(at, cell)).collect();
        let mut sparsity = self.cells.iter().zip(&meanings).filter(|(_, meaning)| ***meaning == CellMeaning::Sparsity);
        if let Some((cell, _)) = sparsity.find(|(cell, _)| !cell.is_empty() && !is_ratio(cell)) {
            self.add_fault("Sparsity", cell, "must be N:M", "write 2:4, for instance");
            return false;
        }
        let surplus = |(cell, meaning): (&&str, &&CellMeaning)| **meaning == CellMeaning::Unnamed && !cell.is_empty();
        let surplus = self.cells.iter().zip(&meanings).any(surplus);
        let names: Vec<&str> = columns.names_of_figures().collect();
        let lacks = |at: usize| self.cell_with_meaning(&CellMeaning::Figure(at)).is_none();
        if surplus || (0..names.len()).any(lacks) {
            let is_figure = |meaning: &&&CellMeaning| !matches!(meaning, CellMeaning::Layer | CellMeaning::Sparsity);
            let figures = meanings.iter().filter(is_figure).count();
            let limit = format!("the row has {figures} figures after its name, not {}", names.len());
            self.add_fault("row", &self.cells.join(", "), &limit, &format!("write Layer, {}", names.join(", ")));
            return false;
        }
        true
    }

    /// Reads the figures of the row; `None` if one is wrong.
    fn read_figures<const N: usize>(&mut self) -> Option<[u64; N]> {
        if !self.has_sound_length() {
            return None;
        }
        let mut figures = [0; N];
        let mut sound = true;
        for (at, (figure, name)) in figures.iter_mut().zip(self.columns.names_of_figures()).enumerate() {
            let cell = self.cell_with_meaning(&CellMeaning::Figure(at)).unwrap_or_default();
            match self.read_figure(name, cell) {
                Some(value) => *figure = value,
                None => sound = false,
            }
        }
        sound.then_some(figures)
    }

    fn read_figure(&mut self, column: &str, cell: &str) -> Option<u64> {
        let value = cell.parse::<u64>().ok().filter(|value| (1..=LARGEST).contains(value));
        if value.is_none() {
            let shown = if cell.is_empty() { "nothing" } else { cell };
            self.add_fault(column, shown, "must be a whole number from 1 to 2^32", "correct it or remove the layer");
        }
        value
    }

    /// Adds a layer if its counts stay exact.
    fn take_layer(&mut self, layer: TopologyLayer, layers: &mut Vec<TopologyLayer>) {
        let work = [layer.m, layer.n, layer.k].into_iter().fold(1_u128, |product, d| product.saturating_mul(d.into()));
        if work > MOST_WORK {
            let shape = format!("{} x {} x {}", layer.m, layer.n, layer.k);
            self.add_fault("row", &shape, "is more than 2^53 multiplications", "correct it or remove the layer");
            return;
        }
        layers.push(layer);
    }

    fn read_layers(mut self, layers: &mut Vec<TopologyLayer>) {
        let name = self.cell_with_meaning(&CellMeaning::Layer).unwrap_or_default().to_owned();
        match self.columns.kind {
            TopologyKind::Gemm => {
                if let Some([m, n, k]) = self.read_figures() {
                    self.take_layer(TopologyLayer { name, m, n, k }, layers);
                }
            }
            TopologyKind::Convolution => self.layer_of_convolution(name, layers),
        }
    }

    fn layer_of_convolution(mut self, name: String, layers: &mut Vec<TopologyLayer>) {
        let Some([height, width, filter_height, filter_width, channels, filters, stride]) = self.read_figures() else {
            return;
        };
        let across = match self.cell_with_meaning(&CellMeaning::StrideWidth) {
            None => Some(stride),
            Some(cell) => self.read_figure("Stride Width", cell),
        };
        let Some(across) = across else { return };
        for (filter, map, which) in [(filter_height, height, "Height"), (filter_width, width, "Width")] {
            if filter > map {
                let limit = format!("exceeds the IFMAP {which} {map}");
                self.add_fault(
                    &format!("Filter {which}"),
                    &filter.to_string(),
                    &limit,
                    "pad the feature map, or correct one of the two",
                );
                return;
            }
        }
        // SCALE-Sim: ceil((map - filter + stride) / stride).
        let pixels = |map: u64, filter: u64, stride: u64| (map - filter + stride).div_ceil(stride);
        let m = pixels(height, filter_height, stride).saturating_mul(pixels(width, filter_width, across));
        let window = filter_height.saturating_mul(filter_width);
        if name.contains("DP") {
            if channels > MOST_CHANNELS {
                let limit = format!("a depth-wise layer (DP) has at most {MOST_CHANNELS} channels");
                self.add_fault("Channels", &channels.to_string(), &limit, "rename the layer if it is not depth-wise");
                return;
            }
            let channel = |i: u64| TopologyLayer { name: format!("{name}Channel_{i}"), m, n: filters, k: window };
            layers.extend((0..channels).map(channel));
        } else {
            self.take_layer(TopologyLayer { name, m, n: filters, k: window.saturating_mul(channels) }, layers);
        }
    }
}
