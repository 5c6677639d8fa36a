//! SCALE-Sim's own files as input, its own report as output. SCALE-Sim 3.0.0 (PyPI) wrote the reports in
//! `data/scale_sim` for the topologies and the configuration in the same folder, with its dataflow set to os, ws and
//! is.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use coplace_interop::scale_sim::{
    LayerReport, REPORT_HEADER, ScaleSimConfig, TopologyKind, read_topology, write_compute_report,
};
use std::path::PathBuf;

fn data(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/scale_sim").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn reports(topology: &str, dataflow: &str) -> Vec<LayerReport> {
    let text = data("array_8x4.cfg").replace("Dataflow : os", &format!("Dataflow : {dataflow}"));
    let config = ScaleSimConfig::from_cfg_str(&text, "array_8x4.cfg").unwrap();
    assert!(config.beyond.is_empty(), "{:?}", config.beyond);
    let layers = read_topology(&data(&format!("{topology}.csv")), topology, None).unwrap();
    layers.iter().map(|layer| config.run_layer(layer)).collect()
}

/// A report as cells, without the column that only version 3 has.
fn cells(report: &str) -> Vec<Vec<String>> {
    let split = |line: &str| line.trim_end_matches(',').split(", ").map(str::to_owned).collect::<Vec<_>>();
    let mut rows: Vec<Vec<String>> = report.lines().map(split).collect();
    if let Some(extra) = rows[0].iter().position(|name| name == "Total Cycles (incl. prefetch)") {
        rows.iter_mut().for_each(|row| drop(row.remove(extra)));
    }
    rows
}

#[test]
fn reports_are_those_of_scale_sim() {
    for topology in ["convolutions", "products"] {
        for dataflow in ["os", "ws", "is"] {
            let ours = cells(&write_compute_report(&reports(topology, dataflow)));
            let theirs = cells(&data(&format!("{topology}_{dataflow}.report.csv")));
            assert_eq!(ours[0], theirs[0], "the header");
            assert_eq!(ours.len(), theirs.len(), "{topology} {dataflow}: layers");
            for (ours, theirs) in ours.iter().zip(&theirs).skip(1) {
                // Layer numbers and cycles are equal. Percentages may differ by rounding, because they are summed in
                // another order.
                assert_eq!(ours[..3], theirs[..3], "{topology} {dataflow}");
                for (a, b) in ours[3..].iter().zip(&theirs[3..]) {
                    let (a, b): (f64, f64) = (a.parse().unwrap(), b.parse().unwrap());
                    assert!((a - b).abs() <= 1e-12 * b, "{topology} {dataflow}, layer {}: {a} {b}", ours[0]);
                }
            }
        }
    }
    let text = write_compute_report(&reports("products", "os"));
    assert_eq!(text.lines().next(), Some(REPORT_HEADER));
    assert!(text.lines().nth(1).unwrap().starts_with("0, 257, 0, 34."), "{text}");
}

#[test]
fn a_depth_wise_layer_is_a_layer_per_channel() {
    let layers = read_topology(&data("convolutions.csv"), "c.csv", None).unwrap();
    let names: Vec<&str> = layers.iter().map(|layer| layer.name.as_str()).collect();
    assert_eq!(
        names,
        ["Conv1", "Conv2", "Conv2DPChannel_0", "Conv2DPChannel_1", "Conv2DPChannel_2", "Conv2DPChannel_3", "FC"]
    );
    assert_eq!((layers[2].m, layers[2].n, layers[2].k), (36, 1, 9));
}

#[test]
fn lines_are_read_as_users_write_them() {
    let product = |text: &str| read_topology(text, "t.csv", None).unwrap();
    let plain = product("Layer, M, N, K,\nA, 3, 5, 7,\n");
    for text in ["\u{feff}layer,m,n,k\r\nA,3,5,7\r\n\r\n", "Layer name, M, N, K, Sparsity,\nA, 3, 5, 7, 2:4,\n"] {
        assert_eq!(product(text), plain, "{text:?}");
    }
    let forced = read_topology("whatever\nA, 3, 5, 7,\n", "t.csv", Some(TopologyKind::Gemm)).unwrap();
    assert_eq!(forced, plain);
    let header = "Layer name, IFMAP Height, IFMAP Width, Filter Height, Filter Width, Channels, Num Filter, Stride H, Stride W,\n";
    let strided = product(&format!("{header}A, 10, 10, 3, 3, 2, 4, 2, 1,\n"));
    // ceil((10 - 3 + 2) / 2) = 5 rows of ceil((10 - 3 + 1) / 1) = 8 pixels.
    assert_eq!((strided[0].m, strided[0].n, strided[0].k), (40, 4, 18));
}

#[test]
fn columns_are_found_by_their_names() {
    let read = |text: &str| read_topology(text, "t.csv", None).unwrap();
    let usual = "Layer name, IFMAP Height, IFMAP Width, Filter Height, Filter Width, Channels, Num Filter, Strides,\n";
    let plain = read(&format!("{usual}A, 10, 12, 3, 2, 5, 4, 2,\n"));
    assert_eq!((plain[0].m, plain[0].n, plain[0].k), (30, 4, 30));
    for text in [
        "LAYER_NAME,ifmap_height,ifmap_width,filter_height,filter_width,channels,num_filters,stride\n\
         A,10,12,3,2,5,4,2\n",
        "Strides, Num Filter, Channels, Filter W, Filter H, IFMAP W, IFMAP H, Layer,\n2, 4, 5, 2, 3, 12, 10, A,\n",
        // A column without values changes nothing.
        "Layer, IFMAP H, IFMAP W, Filter H, Filter W, Channels, Num Filter, Strides, Comment,\n\
         A, 10, 12, 3, 2, 5, 4, 2,\n",
    ] {
        assert_eq!(read(text), plain, "{text}");
    }
    let products = read("Layer, K, N, M,\nA, 7, 5, 3,\n");
    assert_eq!((products[0].m, products[0].n, products[0].k), (3, 5, 7));
    // SCALE-Sim 2 reads a ninth cell below the usual header as the stride along the width.
    let ninth = read(&format!("{usual}A, 10, 12, 3, 2, 5, 4, 2, 1,\n"));
    assert_eq!(ninth[0].m, 5 * 11);
    assert_eq!(read(&format!("{usual}A, 10, 12, 3, 2, 5, 4, 2, 2:4,\n")), plain);
}

#[test]
fn columns_of_other_names_are_refused_by_name() {
    let refusal = |text: &str| read_topology(text, "t.csv", None).unwrap_err().to_string();
    let figures = "Layer name, IFMAP Height, IFMAP Width, Filter Height, Filter Width, Channels, Num Filter, Strides";
    let batch = refusal(&format!("{figures}, Batch Size,\nA, 9, 9, 1, 1, 3, 4, 1, 1,\nB, 9, 9, 1, 1, 3, 4, 1, 8,\n"));
    let known = format!("{figures}, Stride Width, Sparsity");
    let expected = format!(
        "t.csv: line 1, Batch Size = 1: SCALE-Sim has no batches; the columns are {known}; \
         give a layer once per image, without it"
    );
    assert_eq!(batch, expected);
    let products = refusal("Layer, M, N, K, Batch,\nA, 3, 5, 7, 2,\n");
    assert!(products.starts_with("t.csv: line 1, Batch = 2: SCALE-Sim has no batches; the columns are"), "{products}");
    let kind = refusal(&format!("{}\nA, conv, 9, 9, 1, 1, 3, 4, 1,\n", figures.replace("name", "name, Type")));
    assert!(kind.starts_with("t.csv: line 1, Type = conv: SCALE-Sim has no such column; the columns are"), "{kind}");
    let slip = refusal(&format!("{}\nA, 9, 9, 1, 1, 3, 4, 1,\n", figures.replace("Filter Width", "Fliter Width")));
    let expected = "t.csv: line 1, Filter Width = nothing: this column is needed; rename column `Fliter Width`";
    assert_eq!(slip, expected);
    let twice = refusal("Layer, M, N, K, m,\nA, 3, 5, 7, 2,\n");
    assert_eq!(twice, "t.csv: line 1, column 5 = m: column 2 is `M` already; remove one");
    let sparsity = refusal("Layer, M, N, K, Sparsity,\nA, 3, 5, 7, 2,\n");
    assert_eq!(sparsity, "t.csv: line 2, Sparsity = 2: must be N:M; write 2:4, for instance");
}

#[test]
fn every_fault_of_a_topology_is_named_by_line_and_column() {
    let text = "Layer, IFMAP Height, IFMAP Width, Filter Height, Filter Width, Channels, Num Filter, Strides,\n\
                a, 0, 8, 3, 3, 3, 8, 1,\nb, 8, 8, 9, 3, 3, 8, 1,\nc, 8, 8, 3, 3, 3, -8, x,\nd, 8, 8,\n";
    let expected = "net.csv: line 2, IFMAP Height = 0: must be a whole number from 1 to 2^32; correct it or remove the layer\n  \
                    line 3, Filter Height = 9: exceeds the IFMAP Height 8; pad the feature map, or correct one of the two\n  \
                    line 4, Num Filter = -8: must be a whole number from 1 to 2^32; correct it or remove the layer\n  \
                    line 4, Strides = x: must be a whole number from 1 to 2^32; correct it or remove the layer\n  \
                    line 5, row = d, 8, 8: the row has 2 figures after its name, not 7; write Layer, IFMAP Height, IFMAP Width, \
                    Filter Height, Filter Width, Channels, Num Filter, Strides";
    assert_eq!(read_topology(text, "net.csv", None).unwrap_err().to_string(), expected);
    let header = read_topology("a, b\n", "net.csv", None).unwrap_err().to_string();
    assert!(header.starts_with("net.csv: line 1 = a, b: begins neither as"), "{header}");
    let empty = read_topology("Layer, M, N, K,\n", "net.csv", None).unwrap_err().to_string();
    assert!(empty.starts_with("net.csv: layers = none"), "{empty}");
    let wide = text.lines().next().unwrap().to_owned() + "\nDPwide, 8, 8, 3, 3, 99999, 1, 1,\n";
    assert!(
        read_topology(&wide, "net.csv", None).unwrap_err().to_string().contains("Channels = 99999: a depth-wise layer")
    );
}

#[test]
fn every_fault_of_a_configuration_is_named_by_its_key() {
    let good = data("array_8x4.cfg");
    let refused = |from: &str, to: &str| {
        assert!(good.contains(from), "{from}");
        ScaleSimConfig::from_cfg_str(&good.replace(from, to), "a.cfg").unwrap_err().to_string()
    };
    assert_eq!(
        refused("ArrayHeight:    8\n", ""),
        "a.cfg: [architecture_presets] ArrayHeight = nothing: this figure is needed; add `ArrayHeight: 32`, for instance"
    );
    for (from, to, expected) in [
        ("ArrayWidth:     4", "ArrayWidth: 0", "ArrayWidth = 0: must be a whole number from 1"),
        ("Dataflow : os", "Dataflow : rs", "Dataflow = rs: must be os, ws or is; correct it"),
        ("InterfaceBandwidth: CALC", "InterfaceBandwidth: FAST", "InterfaceBandwidth = FAST: must be CALC or USER"),
        ("OfmapSramSzkB:   32", "OfmapSramSzkB: -1", "OfmapSramSzkB = -1: must be a whole number from 1"),
        ("Dataflow : os", "Dataflow : os\ndataflow = ws", "line 15 = dataflow: is given twice in its section"),
        ("[general]\n", "", "line 1 = run_name = RUN: a key belongs to a section"),
        ("MemoryBanks:   1", "MemoryBanks", "line 15 = MemoryBanks: must be `[section]`"),
    ] {
        let text = refused(from, to).replace("array_8x4", "RUN");
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn what_is_not_modelled_is_said() {
    let good = data("array_8x4.cfg");
    let beyond = |from: &str, to: &str| ScaleSimConfig::from_cfg_str(&good.replace(from, to), "a.cfg").unwrap().beyond;
    assert!(ScaleSimConfig::from_cfg_str(&good, "a.cfg").unwrap().unknown.is_empty());
    let odd = good.replace("SparseRep", "SparseReps").replace("ReadRequestBuffer", "ReadRequests");
    let odd = ScaleSimConfig::from_cfg_str(&odd, "a.cfg").unwrap().unknown;
    assert_eq!(odd, ["[architecture_presets] readrequests", "[sparsity] sparsereps"]);
    let fault =
        |from: &str, to: &str| ScaleSimConfig::from_cfg_str(&good.replace(from, to), "a.cfg").unwrap_err().to_string();
    assert!(
        fault("SparsitySupport : false", "SparsitySupport : zz")
            .contains("[sparsity] SparsitySupport = zz: must be True or False")
    );
    assert!(
        fault("\nBandwidth : 10", "\nBandwidth : -1")
            .contains("[architecture_presets] Bandwidth = -1: must be words per cycle")
    );
    assert_eq!(beyond("InterfaceBandwidth: CALC", "InterfaceBandwidth: USER"), ["InterfaceBandwidth = USER"]);
    assert_eq!(beyond("SparsitySupport : false", "SparsitySupport : true"), ["SparsitySupport = true"]);
    assert_eq!(beyond("IfmapCustomLayout: False", "IfmapCustomLayout: True"), ["IfmapCustomLayout = True"]);
}
