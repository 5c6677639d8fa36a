#![allow(clippy::unwrap_used)]
use super::*;
use proptest::prelude::*;
use sim::hardware::Accelerator;

const SYSTOLIC: &str = "id,layer,rows,cols,dataflow,m,n,k,array_cycles,reported_total_cycles,mapping_efficiency_pct,\
ifmap_sram_reads,filter_sram_reads,ofmap_sram_writes,source\n";
/// SCALE-Sim v3 at 1d62b68, CALC mode, 64/64/32 kB SRAM, gemm.
const ROWS: [&str; 2] = [
    "ss_0000,synthetic,8,8,os,1,1,1,15,14,1.5625,1,1,17,x\n",
    "ss_0002,synthetic,8,8,os,1,64,1,120,119,12.5,8,64,192,x\n",
];

pub(super) fn check(text: &str) -> FileReport {
    validate_contents(Path::new("data.csv"), text.as_bytes(), &ValidateOptions::default()).unwrap()
}

fn refused(text: &str) -> String {
    validate_contents(Path::new("data.csv"), text.as_bytes(), &ValidateOptions::default()).unwrap_err().to_string()
}

#[test]
fn scale_sim_rows_are_exact() {
    let report = check(&format!("{SYSTOLIC}{}{}", ROWS[0], ROWS[1]));
    assert_eq!((report.rows, report.predictions.len()), (2, 12));
    assert!(report.groups.iter().all(|g| g.exact == 2 && g.n == 2 && g.mape_pct == Some(0.0)), "{:?}", report.groups);
}

#[test]
fn a_faulty_row_is_named_and_the_others_are_scored() {
    let faults = [
        ("a,l,8,8,xs,1,1,1,15,14,1.5625,1,1,17,x", "data.csv:2: dataflow = xs: must be os, ws or is; correct it"),
        (
            "a,l,0,8,os,1,1,1,15,14,1.5,1,1,17,x",
            "data.csv:2: rows = 0: must be a whole number from 1 to 2^53; correct or remove the row",
        ),
        (
            "a,l,8,8,os,1,1,1,NaN,14,1.5,1,1,17,x",
            "data.csv:2: array_cycles = NaN: must be a finite number; an empty cell means unknown",
        ),
        (
            "a,l,8,8,os,1,1,1,0,14,1.5,1,1,17,x",
            "data.csv:2: array_cycles = 0: must be above 0; an empty cell means unknown",
        ),
        ("a,l,8,8,os,1,1,,15,14,1.5,1,1,17,x", "data.csv:2: k = (empty): must not be empty; fill it in"),
        (",l,8,8,os,1,1,1,15,14,1.5,1,1,17,x", "data.csv:2: id = (empty): must not be empty; fill it in"),
        ("a,l,8", "data.csv:2: row = (empty): the row has 3 cells, the header 15; write one cell per column"),
    ];
    for (row, expected) in faults {
        let report = check(&format!("{SYSTOLIC}{row}\n{}", ROWS[0]));
        let errors: Vec<String> = report.row_errors.iter().map(ToString::to_string).collect();
        assert_eq!(errors, [expected]);
        assert_eq!((report.rows, report.predictions.len()), (2, 6), "{row}");
    }
}

#[test]
fn lines_are_counted_whatever_ends_them() {
    let text = format!("{SYSTOLIC}{}a,l,8\n", ROWS[0]).replace('\n', "\r\n");
    let report = check(&text);
    assert_eq!((report.predictions[0].line, report.row_errors[0].line), (2, 3));
}

#[test]
fn a_row_that_is_not_utf8_is_named() {
    let mut text = format!("{SYSTOLIC}{}", ROWS[0]).into_bytes();
    text.extend_from_slice(b"\xff,l,8,8,os,1,1,1,15,14,1.5,1,1,17,x\n");
    let report = validate_contents(Path::new("data.csv"), &text, &ValidateOptions::default()).unwrap();
    assert_eq!((report.predictions.len(), report.row_errors.len()), (6, 1));
    assert_eq!(report.row_errors[0].line, 3);
}

#[test]
fn an_empty_measured_cell_is_still_predicted() {
    let report = check(&format!("{SYSTOLIC}a,l,8,8,os,1,1,1,,,,,,,x\n"));
    assert_eq!(report.predictions.len(), 6);
    assert!(report.predictions.iter().all(|p| p.measured.is_none()) && report.groups.is_empty());
    let csv = String::from_utf8(predictions_csv(&[report]).unwrap()).unwrap();
    assert!(csv.starts_with("id,quantity,measured,predicted,low,high,grade,stack\na,array_cycles,,15,,,,\n"), "{csv}");
}

#[test]
fn a_file_of_no_data_set_is_refused() {
    assert!(refused("id,a,b\n1,2,3\n").starts_with(
        "data.csv: columns id, a, b belong to no known data set; known are kernel_energy (kernel, energy_mj), kernels"
    ));
    assert_eq!(
        refused("id,collective,measured_us\n1,2,3\n"),
        "data.csv: a collectives file needs the columns chip, fabric, ranks, nodes, bytes; add them (an empty cell \
        means unknown)"
    );
    assert!(refused("1,2,3\n4,5,6\n").contains("its first line has numbers where the columns' names belong"));
    assert!(refused("id,id\n1,2\n").contains("column `id` occurs twice"));
    assert!(refused("").contains("it is empty"));
    let memory = refused("id,chip,chips,global_batch,peak_gib\n1,a,8,16,1.5\n");
    assert!(
        memory.starts_with("data.csv: a memory_peaks file needs the columns layers, hidden, ffn_hidden, "),
        "{memory}"
    );
}

#[test]
fn unknown_columns_are_ignored_and_named() {
    let report = check("id,rows,cols,dataflow,m,n,k,array_cycles,weather\nx,8,8,os,1,1,1,15,fair\n");
    assert_eq!(report.ignored_columns, ["weather"]);
    assert_eq!(report.predictions.len(), 1);
}

const COLLECTIVES: &str =
    "id,dataset,chip,fabric,collective,ranks,nodes,bytes,measured_us,bus_gbytes_per_s,algo,source\n";

#[test]
fn collectives_that_are_unknown_are_counted_and_named() {
    let report = check(&format!(
        "{COLLECTIVES}a,d,a100_80gb_sxm,nvlink3_node,all_reduce,8,1,1048576,40,,,\n\
         b,d,a100_80gb_sxm,carrier_pigeon,all_reduce,8,1,1048576,40,,,\n\
         c,d,a100_80gb_sxm,nvlink3_node,all_hands,8,1,1048576,40,,,\n\
         e,d,a100_80gb_sxm,nvlink3_node,all_reduce,1,1,1048576,40,,,\n"
    ));
    assert_eq!((report.predictions.len(), report.unpredicted.len(), report.row_errors.len()), (1, 2, 1));
    let why = &report.unpredicted[1].why;
    assert!(why.contains("unknown collective `all_hands`"), "{why}");
    let json = reports_json(&[report]);
    assert_eq!(json["files"][0]["dataset"], "collectives");
    assert_eq!(json["files"][0]["unpredicted"][0]["id"], "b");
}

#[test]
fn one_rank_per_node_crosses_nodes_only() {
    let time = |ranks: u32, nodes: u32| {
        let row = format!("a,d,a100_80gb_sxm,selene_hdr200x8,all_gather,{ranks},{nodes},1073741824,40,,,\n");
        let report = check(&format!("{COLLECTIVES}{row}"));
        assert_eq!(report.predictions.len(), 1, "{report:?}");
        report.predictions[0].predicted
    };
    assert!(time(8, 8) > 2.0 * time(8, 1), "eight nodes are slower than one");
}

const KERNELS: &str = "id,dataset,chip,kernel,m,n,k,batch,elements,dtype,measured_us,spread_pct,timing,source\n";

#[test]
fn kernels_are_predicted_or_named() {
    let report = check(&format!(
        "{KERNELS}a,d,a100_80gb_sxm,gemm,4096,4096,4096,1,,fp16,600,,device,\n\
         b,d,a100_80gb_sxm,gemm,4096,4096,4096,1,,fp16,600,,host,\n\
         c,d,abacus,gemm,64,64,64,1,,fp16,1,,device,\n\
         e,d,a100_80gb_sxm,knead,64,64,64,1,,fp16,1,,device,\n\
         f,d,a100_80gb_sxm,gemm,64,64,64,1,,fp17,1,,device,\n\
         g,d,a100_80gb_sxm,gemm,64,64,,1,,fp16,1,,device,\n\
         h,d,a100_80gb_sxm,relu,,,,,4096,fp16,1,,sundial,\n"
    ));
    assert_eq!((report.predictions.len(), report.unpredicted.len(), report.row_errors.len()), (2, 3, 2));
    // 2 x 4096^3 FLOPs take 440 us at the 312 TFLOP/s of the A100's datasheet. No prediction may be below.
    let (device, host) = (report.predictions[0].predicted, report.predictions[1].predicted);
    assert!(device > 440.0 && host >= device, "{device} {host}");
    let groups: Vec<&str> = report.groups.iter().map(|g| g.group.as_str()).collect();
    assert!(groups.contains(&"d a100_80gb_sxm gemm >=1024 (host)"), "{groups:?}");
    let text = format!("{:?} {:?}", report.unpredicted, report.row_errors);
    for part in ["knead", "abacus", "fp17", "gemm needs it", "must be device or host"] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn a_kernel_of_an_absurd_size_and_an_id_given_twice_are_named() {
    let row = |id: &str, m: &str| format!("{id},d,a100_80gb_sxm,gemm,{m},64,64,1,,fp16,20,,device,\n");
    let report = check(&format!(
        "{KERNELS}{}{}{}{}",
        row("a", "64"),
        row("b", "1000000000000"),
        row("a", "128"),
        row("c", "2147483647")
    ));
    let errors: Vec<String> = report.row_errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        errors,
        [
            "data.csv:3: m = 1000000000000: a side of a matrix product is at most 2147483647; correct or remove the \
            row",
            "data.csv:4: id = a: the row of line 2 has it; give every row an id of its own",
        ]
    );
    assert_eq!((report.rows, report.predictions.len()), (4, 2));
}

#[test]
fn die_areas_are_predicted_or_named() {
    let report = check(
        "id,chip,level,component,measured_mm2,source\n\
         a,A100_GA100,die,TOTAL,822.72,x\n\
         b,A100_GA100,die,ballroom,1,x\n\
         c,A100_GA100,die,offchip_link_ctrl,0,x\n\
         e,A100_GA100,die,TOTAL,-1,x\n\
         f,A100_GA100,die,TOTAL,1e-300,x\n",
    );
    assert_eq!((report.predictions.len(), report.unpredicted.len(), report.row_errors.len()), (2, 1, 2));
    assert!(report.groups[0].mape_pct.is_some_and(|e| e < 10.0), "{:?}", report.groups);
}

#[test]
fn measurements_are_those_of_one_chip() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kernels.csv");
    let rows = "a,d,A100,gemm,4096,4096,4096,1,,fp16,600,,device,\n\
                b,d,tpu_v4,gemm,64,64,64,1,,fp16,1,,device,\n\
                c,d,a100_80gb_sxm,knead,64,64,64,1,,fp16,1,,device,\n\
                e,d,a100_80gb_sxm,gemm,64,64,64,1,,fp16,,,device,\n\
                f,d,a100_80gb_sxm,gemm,64,64,64,1,,fp16,0,,device,\n";
    std::fs::write(&path, format!("{KERNELS}{rows}")).unwrap();
    let found =
        read_measurements(&path, &std::fs::read(&path).unwrap(), &Accelerator::built_in("a100_80gb_sxm").unwrap())
            .unwrap();
    assert_eq!((found.rows.len(), found.other_chips, found.row_errors.len(), found.unpredicted.len()), (1, 1, 1, 2));
    assert!((found.rows[0].time.micros() - 600.0).abs() < 1e-9);
    std::fs::write(&path, format!("{SYSTOLIC}{}", ROWS[0])).unwrap();
    let error =
        read_measurements(&path, &std::fs::read(&path).unwrap(), &Accelerator::built_in("a100_80gb_sxm").unwrap())
            .unwrap_err()
            .to_string();
    assert!(error.contains("this is a systolic_cycles file"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// For any file contents, every row is scored, reported as unpredictable, or reported as faulty. Nothing panics.
    #[test]
    fn no_row_is_dropped(
        header in prop::sample::select(vec![SYSTOLIC, COLLECTIVES, KERNELS]),
        rows in prop::collection::vec(
            prop::collection::vec(
                prop_oneof![
                    Just("a100_80gb_sxm".to_owned()), Just("nvlink3_node".to_owned()), Just("all_reduce".to_owned()),
                    Just("gemm".to_owned()), Just("fp16".to_owned()), Just("device".to_owned()), Just("ws".to_owned()),
                    Just(String::new()), Just("-1".to_owned()), Just("1e300".to_owned()), Just("9007199254740992".to_owned()),
                    Just("8".to_owned()), Just("inf".to_owned()), "\\PC{0,8}",
                ],
                1..30,
            ),
            0..8,
        ),
    ) {
        // Two rows of three have the width of the header; the others have any width.
        let width = header.split(',').count();
        let rows: Vec<Vec<String>> = rows.into_iter().enumerate().map(|(i, mut row)| {
            if i % 3 > 0 { row.resize(width, "8".into()); }
            row
        }).collect();
        let mut text = header.as_bytes().to_vec();
        let mut writer = csv::WriterBuilder::new().flexible(true).from_writer(&mut text);
        for row in &rows {
            writer.write_record(row).unwrap();
        }
        drop(writer);
        let report = validate_contents(Path::new("data.csv"), &text, &ValidateOptions::default()).unwrap();
        let mut lines: Vec<u64> = report.predictions.iter().map(|p| p.line).collect();
        lines.dedup();
        prop_assert_eq!(lines.len() + report.unpredicted.len() + report.row_errors.len(), report.rows);
        prop_assert!(report.predictions.iter().all(|p| p.predicted.is_finite()));
    }
}

const MEMORY: &str = "id,dataset,layers,hidden,ffn_hidden,heads,kv_heads,head_dim,vocab,seq,gated_mlp,attention,chip,chips,chips_per_node,fabric,\
tp,pp,dp,cp,ep,virtual_stages,sequence_parallel,zero_stage,micro_batch,global_batch,recompute,precision,optimizer,peak_gib,allocator,\
fits,tied_embeddings,source\n";

fn memory_row(id: &str, chip: &str, micro_batch: u64, peak: &str, fits: u8) -> String {
    format!(
        "{id},t,32,4096,16384,32,8,128,131200,8192,0,,{chip},8,8,nvlink3_node,1,4,2,1,1,8,0,1,{micro_batch},{},none,bf16,adam,{peak},\
         torch max_memory_allocated,{fits},0,made up\n",
        8 * micro_batch
    )
}

#[test]
fn memory_is_predicted_with_what_fits() {
    // 7.0B parameters over four stages: 22 GiB of weights, gradients and states per stage, 29 chunk passes of 1 GiB, 6
    // bytes per logit.
    let rows = [
        memory_row("small", "a100_80gb_sxm", 1, "56.0", 1),
        memory_row("large", "a100_80gb_sxm", 2, "", 0),
        memory_row("short", "a100_40gb_sxm", 1, "", 0),
    ];
    let report = check(&format!("{MEMORY}{}", rows.concat()));
    assert!(
        report.row_errors.is_empty() && report.unpredicted.is_empty(),
        "{:?} {:?}",
        report.row_errors,
        report.unpredicted
    );
    let score = report.groups.iter().find(|g| g.quantity == "peak_gib" && g.n > 0).unwrap();
    assert!(score.mape_pct.is_some_and(|e| e < 2.0), "{score:?}");
    let small = report.out_of_memory.iter().find(|o| o.group == "t a100_80gb_sxm >=1B").unwrap();
    assert_eq!((small.ran, small.false_alarms, small.failed, small.caught), (1, 0, 1, 1));
    assert!(
        report.out_of_memory.iter().all(|o| o.precision == Some(1.0) && o.recall == Some(1.0) && o.wrong.is_empty())
    );
    assert!(reports_json(&[report])["files"][0]["out_of_memory"][0]["caught"].is_u64());
    let two = check(&format!("{MEMORY}{}", memory_row("two", "a100_80gb_sxm", 1, "56.0", 2)));
    assert_eq!(two.row_errors[0].to_string(), "data.csv:2: fits = 2: must be 0 or 1; an empty cell means unknown");
    let odd = memory_row("odd", "a100_80gb_sxm", 1, "56.0", 1).replace(",32,8,128,", ",32,7,128,");
    let odd = check(&format!("{MEMORY}{odd}"));
    let why = "data.csv:2: kv_heads = 7: must be a divisor of heads = 32; an empty cell means as many";
    assert_eq!(odd.row_errors[0].to_string(), why);
    let twice = memory_row("one", "a100_80gb_sxm", 1, "56.0", 1).repeat(2);
    let twice = check(&format!("{MEMORY}{twice}"));
    let why = "data.csv:3: id = one: the row of line 2 has it; give every row an id of its own";
    assert_eq!(twice.row_errors[0].to_string(), why);
}

#[test]
fn collectives_on_nodes_that_a_fabric_has_not_are_refused() {
    let head = "id,chip,fabric,collective,ranks,nodes,bytes,measured_us\n";
    let row = |rest: &str| check(&format!("{head}a,a100_80gb_sxm,{rest},1e6,100\n"));
    let cases = [
        (
            "selene_hdr200x8,all_reduce,16,1",
            "nodes = 1: a node of selene_hdr200x8 has 8 chips, the row 16 ranks; give the nodes",
        ),
        (
            "vivaldi_mpigraph_0,all_reduce,64,4",
            "nodes = 4: vivaldi_mpigraph_0 has measured links between 16 nodes of 8; give",
        ),
        (
            "vivaldi_mpigraph_0,all_reduce,32,32",
            "nodes = 32: vivaldi_mpigraph_0 has measured links between 16 nodes of 8; give",
        ),
    ];
    for (rest, expected) in cases {
        let error = row(rest).row_errors.first().map(ToString::to_string).unwrap_or_default();
        assert!(error.starts_with(&format!("data.csv:2: {expected}")), "{error}");
    }
    for rest in
        ["selene_hdr200x8,all_reduce,16,2", "vivaldi_mpigraph_0,all_reduce,16,16", "selene_hdr200x8,all_reduce,4,1"]
    {
        let report = row(rest);
        assert!(report.predictions.len() == 1 && report.assumed.is_empty(), "{rest}");
    }
    assert_eq!(
        row("selene_hdr200x8,all_reduce,64,4").assumed.first().map(|assumption| assumption.what.as_str()),
        Some("16 ranks of a node go before the 8 chips of one of selene_hdr200x8, one network joins so many")
    );
}
