//! `*.csv`: the layers, as convolutions or as matrix products.

use serde::Serialize;
use sim::files::FileError;
use sim::hardware::FileFault;

/// The form of a topology's layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopologyKind {
    /// `Layer name, IFMAP Height, IFMAP Width, Filter Height, Filter Width, Channels, Num Filter, Strides,`
    Convolution,
    /// `Layer, M, N, K,`
    Gemm,
}

/// A layer as the product (m, k) x (k, n) on the array. A convolution has a row per output pixel and a column per
/// filter, and contracts its window (im2col).
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

/// The figures of a convolution, in the order of their columns.
const CONVOLUTION: [&str; 7] =
    ["IFMAP Height", "IFMAP Width", "Filter Height", "Filter Width", "Channels", "Num Filter", "Strides"];
const GEMM: [&str; 3] = ["M", "N", "K"];
/// Most multiplications of a layer: counts up to 2^53 are exact in every tool that reads them.
const MOST_WORK: u128 = 1 << 53;
/// Largest accepted dimension.
const LARGEST: u64 = 1 << 32;
/// Most channels of a depth-wise convolution; each channel becomes a layer.
const MOST_CHANNELS: u64 = 1 << 16;

/// Reads a topology; `file` names it in errors. The first line gives the kind, unless `kind` does (SCALE-Sim's `-i`). A
/// layer with `DP` in its name is a depth-wise convolution: one product per channel, named as in SCALE-Sim. Accepted
/// variations are a trailing comma, empty lines, a ninth column with the stride along the width, and a tenth column
/// `N:M`. The tenth column is sparsity, which SCALE-Sim ignores unless its configuration asks for it.
///
/// # Errors
/// A header of neither kind, or rows with missing or impossible figures; all of them are listed by line and column.
pub fn read_topology(text: &str, file: &str, kind: Option<TopologyKind>) -> Result<Vec<TopologyLayer>, FileError> {
    let mut faults = Vec::new();
    let mut layers = Vec::new();
    let mut lines = text.trim_start_matches('\u{feff}').lines().enumerate();
    let header = lines.next().map_or("", |(_, line)| line);
    match kind.or_else(|| kind_of_header(header)) {
        None => {
            let limit = "begins neither as `Layer, M, N, K,` nor as `Layer name, IFMAP Height, ...,`";
            faults.push(FileFault::new(
                "line 1",
                header.trim(),
                limit,
                "give the header line, or say which it is (--input)",
            ));
        }
        Some(kind) => {
            for (index, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
                TopologyRow::new(index + 1, line, &mut faults).read_layers(kind, &mut layers);
            }
            if layers.is_empty() && faults.is_empty() {
                faults.push(FileFault::new(
                    "layers",
                    "none",
                    "a topology has at least one",
                    "add a line per layer below the header",
                ));
            }
        }
    }
    if faults.is_empty() { Ok(layers) } else { Err(FileError { file: file.to_owned(), faults }) }
}

fn kind_of_header(header: &str) -> Option<TopologyKind> {
    let cells: Vec<String> = header.split(',').map(|cell| cell.trim().to_lowercase()).collect();
    match cells.get(1..4)? {
        [m, n, k] if m == "m" && n == "n" && k == "k" => Some(TopologyKind::Gemm),
        [height, ..] if height.starts_with("ifmap") => Some(TopologyKind::Convolution),
        _ => None,
    }
}

/// One line; its faults are added to the file's.
struct TopologyRow<'a> {
    line: usize,
    cells: Vec<&'a str>,
    faults: &'a mut Vec<FileFault>,
}

impl<'a> TopologyRow<'a> {
    fn new(line: usize, text: &'a str, faults: &'a mut Vec<FileFault>) -> Self {
        let mut cells: Vec<&str> = text.split(',').map(str::trim).collect();
        if cells.last().is_some_and(|cell| cell.is_empty()) {
            cells.pop();
        }
        // Version 3's sparsity column.
        if cells.last().is_some_and(|cell| cell.contains(':')) && cells.len() > 4 {
            cells.pop();
        }
        Self { line, cells, faults }
    }

    fn add_fault(&mut self, column: &str, value: &str, limit: &str, cure: &str) {
        self.faults.push(FileFault::new(format!("line {}, {column}", self.line), value, limit, cure));
    }

    /// The figures in the columns after the name; `None` if one is wrong.
    fn read_figures<const N: usize>(&mut self, columns: [&str; N], optional: usize) -> Option<[u64; N]> {
        let found = self.cells.len().saturating_sub(1);
        if !(N..=N + optional).contains(&found) {
            let limit = format!("the row has {found} figures after its name, not {N}");
            self.add_fault("row", &self.cells.join(", "), &limit, &format!("write Layer, {}", columns.join(", ")));
            return None;
        }
        let mut figures = [0; N];
        let mut sound = true;
        for (i, column) in columns.into_iter().enumerate() {
            let cell = self.cells[i + 1];
            match self.read_figure(column, cell) {
                Some(value) => figures[i] = value,
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

    fn read_layers(mut self, kind: TopologyKind, layers: &mut Vec<TopologyLayer>) {
        let name = self.cells.first().copied().unwrap_or_default().to_owned();
        match kind {
            TopologyKind::Gemm => {
                if let Some([m, n, k]) = self.read_figures(GEMM, 0) {
                    self.take_layer(TopologyLayer { name, m, n, k }, layers);
                }
            }
            TopologyKind::Convolution => self.layer_of_convolution(name, layers),
        }
    }

    fn layer_of_convolution(mut self, name: String, layers: &mut Vec<TopologyLayer>) {
        let Some([height, width, filter_height, filter_width, channels, filters, stride]) =
            self.read_figures(CONVOLUTION, 1)
        else {
            return;
        };
        let across = match self.cells.get(8).copied() {
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
