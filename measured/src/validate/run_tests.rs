//! Rows of whole training runs: their rules, their sizes, their network.
#![allow(clippy::unwrap_used, clippy::panic)]
use super::tests::check;
use super::*;
use proptest::prelude::*;

const RUNS: &str = "id,dataset,model,layers,hidden,ffn_hidden,heads,kv_heads,head_dim,vocab,seq,gated_mlp,attention,chip,chips,\
                    chips_per_node,fabric,tp,pp,dp,cp,virtual_stages,sequence_parallel,zero_stage,micro_batch,global_batch,recompute,\
                    precision,optimizer,iteration_s,tied_embeddings\n";

#[test]
fn training_rows_that_break_a_rule_are_named() {
    let row = |id: &str, chips: u32, tp: u32, dp: u32, batch: u32, recompute: &str| {
        format!(
            "{id},d,gpt,24,1024,4096,16,16,64,51200,1024,0,unfused,a100_80gb_sxm,{chips},8,nvlink3_node,{tp},1,{dp},1,1,0,0,2,{batch},\
             {recompute},fp16,adam,0.5,1\n"
        )
    };
    let rows = [
        row("good", 8, 2, 4, 16, "full"),
        row("heads", 3, 3, 1, 16, "full"),
        row("batch", 8, 2, 4, 12, "full"),
        row("chips", 4, 2, 4, 16, "full"),
        row("policy", 8, 2, 4, 16, "sometimes"),
        row("long", 8, 2, 4, 16, "full").replace("51200,1024,", "51200,1000000000,"),
    ];
    let report = check(&format!("{RUNS}{}", rows.concat()));
    assert_eq!(report.predictions.iter().map(|p| p.id.as_str()).collect::<Vec<_>>(), ["good"]);
    let faults: Vec<String> = report.row_errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        faults,
        [
            "data.csv:3: tp = 3: must be a divisor of the 16 heads and of the MLP width 4096, and a divisor or a \
            multiple of the 16 key/value heads; use tp = 2 or 4",
            "data.csv:4: global_batch = 12: must be a multiple of micro_batch x dp = 2 x 4 = 8; use 8 or 16",
            "data.csv:5: chips = 4: must be tp x pp x dp x cp = 8; correct the degrees or the number of chips",
            "data.csv:7: seq = 1000000000: must be at most 16777216; give the tokens of one sequence",
        ]
    );
    assert!(report.unpredicted.len() == 1 && report.unpredicted[0].id == "policy", "{:?}", report.unpredicted);
    // Groups are by data set and chip, and within them by model size. This model has 0.3 billion parameters.
    let groups: Vec<(&str, usize, usize)> =
        report.groups.iter().filter(|g| g.n > 0).map(|g| (g.group.as_str(), g.n, g.unpredicted)).collect();
    assert_eq!(groups, [("d a100_80gb_sxm", 1, 1), ("d a100_80gb_sxm <1B", 1, 1)]);
    let (id, step) = &report.steps[0];
    let parts: f64 = step.named_parts()[1..].iter().map(|(_, part)| part.0).sum();
    assert!(id == "good" && (parts / step.total.0 - 1.0).abs() < 1e-9, "{step:?}");
}

#[test]
fn the_width_of_an_expert_s_split_is_read() {
    let header = RUNS.replace("tied_embeddings", "tied_embeddings,experts,top_k,ep,etp");
    let row = |id: &str, [tp, dp, ep]: [u32; 3], etp: &str| {
        format!(
            "{id},d,mixtral,4,1024,2048,16,16,64,32000,1024,1,flash,h100_80gb_sxm,8,8,nvlink4_node,{tp},1,{dp},1,1,0,1,1,64,none,bf16,adam,\
             0.5,0,8,2,{ep},{etp}\n"
        )
    };
    let rows = [
        row("alone", [1, 8, 8], "1"),
        row("shared", [2, 4, 4], "2"),
        // The eight expert-parallel devices are four data-parallel times two tensor-parallel ones. None is left to
        // split an expert.
        row("within", [2, 4, 8], "1"),
        row("untold", [2, 4, 4], ""),
        row("other", [2, 4, 4], "1").replace(",1,1,0,1,1,64", ",1,1,1,1,1,64"),
        row("doubled", [2, 4, 4], "1"),
        row("odd", [2, 4, 4], "3"),
        row("half", [1, 8, 8], "1.5"),
    ];
    let report = check(&format!("{header}{}", rows.concat()));
    assert_eq!(report.ignored_columns, [""; 0]);
    let predicted: Vec<&str> = report.predictions.iter().map(|p| p.id.as_str()).collect();
    assert_eq!(predicted, ["alone", "shared", "within", "untold", "other"], "{:?}", report.row_errors);
    let faults: Vec<String> = report.row_errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        faults,
        [
            "data.csv:7: etp = 1: must be 2 without sequence parallelism; use sequence parallelism",
            "data.csv:8: etp = 3: must be a divisor of the 2 ranks that ep = 4 leaves of a stage and of the experts' \
            width 2048, and a divisor or a multiple of tp = 2; use etp = 2",
            "data.csv:9: etp = 1.5: must be a whole number from 1 to 2^53; correct or remove the row",
        ]
    );
    // A dense model has no experts to split.
    let dense = row("dense", [2, 4, 1], "1").replace(",8,2,1,1\n", ",,,,1\n");
    assert_eq!(check(&format!("{header}{dense}")).predictions.len(), 1);
}

/// Returns the row of a run with these numbers: layers, hidden, ffn_hidden, heads, head_dim, vocab, seq, tp, pp, dp,
/// micro_batch and global_batch.
fn sized(id: &str, d: [u64; 12]) -> String {
    let [layers, hidden, ffn, heads, dim, vocab, seq, tp, pp, dp, micro, batch] = d;
    format!(
        "{id},d,gpt,{layers},{hidden},{ffn},{heads},{heads},{dim},{vocab},{seq},0,flash,a100_80gb_sxm,{},8,selene_hdr200x8,{tp},{pp},{dp},1,\
         1,0,0,{micro},{batch},full,bf16,adam,0.5,1\n",
        tp.saturating_mul(pp).saturating_mul(dp)
    )
}

/// The largest count that a row may hold.
const EXACT: u64 = 1 << 53;
const USUAL: [u64; 12] = [24, 1024, 4096, 16, 64, 51200, 1024, 2, 2, 2, 2, 16];

#[test]
fn rows_beyond_what_is_costed_are_named_and_the_others_predicted() {
    let names = [
        "layers",
        "hidden",
        "ffn_hidden",
        "heads",
        "head_dim",
        "vocab",
        "seq",
        "tp",
        "pp",
        "dp",
        "micro_batch",
        "global_batch",
    ];
    let most = [1 << 12, 1 << 20, 1 << 24, 1 << 16, 1 << 20, 1 << 24, 1 << 24];
    for (i, name) in names.into_iter().enumerate() {
        let with = |value: u64| {
            let mut dimensions = USUAL;
            dimensions[i] = value;
            let report = check(&format!("{RUNS}{}{}", sized("odd", dimensions), sized("good", USUAL)));
            assert!(report.steps.last().is_some_and(|(id, _)| id == "good"), "{name} = {value}");
            report.row_errors.first().map(ToString::to_string)
        };
        for value in [EXACT, 1_000_000_000_000_000, 100_000_000_000_000, 1 << 50] {
            let fault = with(value).unwrap_or_default();
            assert!(
                fault.starts_with(&format!("data.csv:2: {name} = {value}: must be")),
                "{name} = {value}: {fault:?}"
            );
        }
        // The largest value of each cell alone can be costed.
        if let Some(most) = most.get(i) {
            assert_eq!(with(*most), None, "{name}");
            assert!(with(2 * most).is_some_and(
                |fault| fault.contains(&format!("at most {most}")) || fault.contains(&format!("to {most};"))
            ));
        }
    }
}

/// Limits on combinations of numbers are reported.
#[test]
fn rows_whose_numbers_are_too_much_together_are_named() {
    let fault = |d: [u64; 12]| {
        check(&format!("{RUNS}{}", sized("odd", d))).row_errors.first().map(ToString::to_string).unwrap_or_default()
    };
    let [layers, hidden, ffn, heads, dim, vocab, seq, ..] =
        [1 << 12, 1 << 20, 1 << 24, 1 << 16, 1 << 20, 1 << 24, 1 << 24];
    let cases: [([u64; 12], &str); 5] = [
        (
            [layers, hidden, ffn, heads, dim, vocab, seq, 1, 1, 1, 1 << 20, EXACT],
            "layers = 4096: must be such that the model's matrices have",
        ),
        (
            [1, hidden, ffn, heads, 16, vocab, seq, 1, 1, 1, 1 << 20, 1 << 20],
            "micro_batch = 1048576: must be such that no tensor has more than",
        ),
        (
            [1, 1024, 1024, heads, dim, 1024, seq, 1, 1, 1, 1, 1],
            "seq = 16777216: must be such that no tensor has more than",
        ),
        (
            [1, 64, 64, 1, 64, 64, seq, 1, 1, 1, 1, 1 << 40],
            "global_batch = 1099511627776: must be such that a step has at most",
        ),
        (
            [24, 64, 64, 1, 64, 64, 64, 1, 2, 1, 1, 1 << 40],
            "global_batch = 1099511627776: must be such that at most 16777216 passes",
        ),
    ];
    for (dimensions, expected) in cases {
        let fault = fault(dimensions);
        assert!(fault.starts_with(&format!("data.csv:2: {expected}")), "{fault}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Powers of two from 1 to 2^53 in all cells: every row gets finite predictions, a fault, or an unknown subject.
    /// Overflowing sums and products fail the test.
    #[test]
    fn no_size_of_a_row_overflows(powers in proptest::array::uniform12(0_u32..54), usual in 0_u32..4096) {
        // Some of the numbers are common ones, so that later checks are reached too.
        let at = |i: usize| if usual >> i & 1 == 1 { USUAL[i] } else { 1 << powers[i] };
        let report = check(&format!("{RUNS}{}", sized("odd", std::array::from_fn(at))));
        prop_assert_eq!(report.steps.len() + report.unpredicted.len() + report.row_errors.len(), 1);
        prop_assert!(report.predictions.iter().all(|p| p.predicted.is_finite() && p.predicted >= 0.0));
    }
}

#[test]
fn the_bandwidth_that_a_row_states_goes_before_the_fabrics_own() {
    let head = RUNS.replace("fabric,tp", "fabric,inter_node_gbytes_per_s_per_chip,tp");
    let row = |id: &str, fabric: &str, between: &str| {
        format!(
            "{id},d,gpt,24,1024,4096,16,16,64,51200,1024,0,unfused,a100_80gb_sxm,32,8,{fabric},{between},2,1,16,1,1,0,0,2,64,full,fp16,adam,\
             0.5,1\n"
        )
    };
    let own = ["selene_hdr200x8,", "selene_hdr200x8,25", "selene_hdr200x8,5", "another,5"];
    let rows: String = own
        .iter()
        .enumerate()
        .map(|(i, of)| {
            let (fabric, between) = of.split_once(',').unwrap();
            row(&i.to_string(), fabric, between)
        })
        .collect();
    let report = check(&format!("{head}{rows}"));
    let of =
        |id: &str| report.predictions.iter().find(|p| p.id == id && p.quantity == "iteration_s").unwrap().predicted;
    assert!(
        of("0") == of("1") && of("2") > 1.05 * of("1") && of("3") == of("2"),
        "{} {} {}",
        of("1"),
        of("2"),
        of("3")
    );
}

const RUN: &str = "id,dataset,layers,hidden,ffn_hidden,heads,head_dim,vocab,seq,chip,chips,chips_per_node,fabric,\
inter_node_gbytes_per_s_per_chip,tp,pp,dp,virtual_stages,micro_batch,global_batch,recompute,iteration_s,framework\n";

/// Returns the row of a small run on A100s, with tensor parallelism over two chips and data parallelism over the pairs.
fn on(id: &str, chips: u32, network: &str) -> String {
    format!(
        "{id},mine,4,1024,4096,16,64,51200,1024,a100_80gb_sxm,{chips},{network},2,1,{},1,1,{},full,0.1,megatron_lm\n",
        chips / 2,
        chips / 2
    )
}

#[test]
fn what_rows_leave_open_is_noted_with_what_is_assumed() {
    let cases = [
        ("8,selene_hdr200x8,25", 16, None),
        ("8,selene_hdr200x8,", 4, None),
        (",selene_hdr200x8,", 16, None),
        (
            "8,mine,",
            16,
            Some(
                "fabric `mine` is not built in and no bandwidth between nodes is stated, taken as selene_hdr200x8, 25 \
                GB/s per chip",
            ),
        ),
        (
            "8,mine,12",
            16,
            Some(
                "fabric `mine` is not built in, taken as nodes of selene_hdr200x8 with the stated bandwidth between \
                them",
            ),
        ),
        ("8,,12", 8, Some("no fabric is named, taken as the network inside a node of selene_hdr200x8")),
        ("4,nvlink3_node,", 8, Some("chips_per_node is not used, nvlink3_node joins all chips in one network")),
        (
            "8,vivaldi_mpigraph_0,25",
            16,
            Some(
                "inter_node_gbytes_per_s_per_chip is not used, vivaldi_mpigraph_0 has measured links between its \
                nodes",
            ),
        ),
        (
            "16,selene_hdr200x8,25",
            32,
            Some("chips_per_node 16 goes before the 8 of selene_hdr200x8, one network joins so many chips"),
        ),
    ];
    for (network, chips, what) in cases {
        let report = check(&format!("{RUN}{}{}", on("a", chips, network), on("b", chips, network)));
        assert_eq!((report.predictions.len(), report.row_errors.len()), (2, 0), "{network}: {report:?}");
        let rows = || vec!["a".to_owned(), "b".to_owned()];
        let expected: Vec<RowAssumption> =
            what.into_iter().map(|what| RowAssumption { what: what.to_owned(), rows: rows() }).collect();
        assert_eq!(report.assumed, expected, "{network}");
    }
    let open = format!("{RUN}{}", on("a", 16, "8,selene_hdr200x8,25")).replace(",2,1,8,1,1,8,", ",2,2,4,,,8,");
    let noted: Vec<String> = check(&open).assumed.into_iter().map(|assumption| assumption.what).collect();
    assert_eq!(
        noted,
        ["micro_batch is empty, taken as 1", "virtual_stages is empty, taken as 1, the fastest of those that fit"]
    );
}

#[test]
fn nodes_that_a_run_cannot_have_are_refused() {
    let cases = [
        (
            ",vivaldi_mpigraph_0,",
            "chips_per_node = (empty): the 12 chips of the run are no whole nodes of 8, and vivaldi_mpigraph_0 joins \
            whole ones; give the chips of each of its equal nodes; an empty cell means the 8 of vivaldi_mpigraph_0",
        ),
        (
            "8,nvlink3_node,25",
            "fabric = nvlink3_node: nvlink3_node joins at most 8 chips, the run has 12; name the fabric that joins its \
            nodes",
        ),
        (
            "6,vivaldi_mpigraph_0,",
            "chips_per_node = 6: the links of vivaldi_mpigraph_0 are measured between nodes of 8; give 8",
        ),
        ("5000000000,selene_hdr200x8,25", "chips_per_node = 5000000000: must be below 2^32; correct it"),
        ("8,mine,1e9", "inter_node_gbytes_per_s_per_chip = 1e9: must be 0, or from 1e-3 to 1e5"),
        ("8,mine,1e-320", "inter_node_gbytes_per_s_per_chip = 1e-320: must be 0, or from 1e-3 to 1e5"),
    ];
    for (network, expected) in cases {
        let report = check(&format!("{RUN}{}", on("a", 12, network)));
        assert!(report.predictions.is_empty() && report.assumed.is_empty(), "{network}");
        let error = report.row_errors.first().map(ToString::to_string).unwrap_or_default();
        assert!(error.starts_with(&format!("data.csv:2: {expected}")), "{error}");
    }
    // Six chips are a part of a node; twelve chips are two nodes of six.
    for (chips, network) in [(6, "8,selene_hdr200x8,25"), (12, "6,selene_hdr200x8,25")] {
        assert_eq!(check(&format!("{RUN}{}", on("a", chips, network))).predictions.len(), 1, "{network}");
    }
    // A group that is neither a part of a node, nor whole nodes, nor all chips can lie on nodes in several ways.
    let halves = format!("{RUN}{}", on("a", 12, "8,selene_hdr200x8,25")).replace(",2,1,6,1,1,6,", ",1,2,6,1,1,6,");
    assert_eq!(
        check(&halves).row_errors.first().map(ToString::to_string).unwrap_or_default(),
        "data.csv:2: chips_per_node = 8: the 12 chips of the run are no whole nodes of 8, and the 6 chips of a dp \
        group would cross from node to \
         node; give the chips of each of its equal nodes; an empty cell means the 8 of selene_hdr200x8"
    );
    let torus = format!("{RUN}{}", on("a", 12, "8,ici_2d_torus_dcn,3")).replace("a100_80gb_sxm", "tpu_v5e");
    let error = check(&torus).row_errors.first().map(ToString::to_string).unwrap_or_default();
    assert!(error.contains("no whole nodes of 8, and ici_2d_torus_dcn joins whole ones; give"), "{error}");
    // The default node of a chip has no network beyond it, unless one is described.
    let v100 = format!("{RUN}{}", on("a", 16, "8,mine,10")).replace("a100_80gb_sxm", "v100_32gb");
    assert_eq!(
        check(&v100).unpredicted.first().map(|row| row.why.as_str()),
        Some(
            "fabric `mine` is not built in and the usual node does not hold the run: nvlink2_node joins at most 8 \
            chips, the run has 16"
        )
    );
}

/// Twelve chips on nodes of 8: the four ports of the second node carry the traffic of the first node's eight.
#[test]
fn a_last_node_that_is_filled_in_part_is_noted() {
    let time = |chips: u32, network: &str| {
        let report = check(&format!("{RUN}{}", on("a", chips, network)));
        let reduction =
            |(_, step): &(String, StepTime)| step.named_parts().iter().find(|(part, _)| *part == "data").map(|p| p.1.0);
        (
            report.steps.first().and_then(reduction).unwrap(),
            report.assumed.into_iter().map(|a| a.what).collect::<Vec<_>>(),
        )
    };
    for nodes in ["8", ""] {
        let (partly, assumed) = time(12, &format!("{nodes},selene_hdr200x8,25"));
        assert_eq!(
            assumed,
            ["the 12 chips of the run are no whole nodes of 8, taken as 2 nodes of which the last holds 4"],
            "{nodes}"
        );
        let (whole, none) = time(16, &format!("{nodes},selene_hdr200x8,25"));
        let (one, _) = time(12, "12,selene_hdr200x8,25");
        assert!(
            none.is_empty() && one < whole && whole < partly && partly < 2.0 * whole,
            "{nodes}: {one} {whole} {partly}"
        );
    }
}

#[test]
fn what_a_row_says_of_its_layers_counts_and_what_it_leaves_open_is_chosen() {
    const HEADER: &str = "id,dataset,layers,hidden,ffn_hidden,heads,kv_heads,head_dim,vocab,seq,gated_mlp,chip,chips,chips_per_node,fabric,tp,pp,dp,\
                          micro_batch,global_batch,recompute,recompute_modules,precision,iteration_s,peak_gib,fits,framework\n";
    let row = |id: &str, micro: u32, recompute: &str, modules: &str| {
        format!(
            "{id},d,32,4096,14336,32,8,128,128256,8192,1,h100_80gb_sxm,8,8,nvlink4_node,8,1,1,{micro},{},{recompute},{modules},bf16,1,50,1,\
             megatron_bridge\n",
            micro * 4
        )
    };
    let rows = [
        row("none", 16, "none", ""),
        row("small", 1, "", ""),
        row("open", 16, "", ""),
        row("five", 16, "", "full_layers:5"),
        row("away", 16, "", "cpu_offload_layers:16"),
        row("mlp", 16, "selective", "mlp"),
        row("other", 16, "none", "everything"),
        row("wrong", 16, "none", "full_layers:x"),
    ];
    let report = check(&format!("{HEADER}{}", rows.concat()));
    let value = |id: &str, quantity: &str| {
        report.predictions.iter().find(|p| p.id == id && p.quantity == quantity).map(|p| p.predicted).unwrap()
    };
    // Keeping everything does not fit. If recomputation is left open, the smallest amount that fits is chosen, which
    // takes longer.
    assert_eq!((value("none", "fits"), value("open", "fits"), value("small", "fits")), (0.0, 1.0, 1.0));
    assert!(value("open", "iteration_s") > value("none", "iteration_s"));
    let assumed = |id: &str| {
        let of_row = report.assumed.iter().filter(|a| a.rows.iter().any(|row| row == id)).map(|a| a.what.as_str());
        of_row.filter(|what| what.starts_with("recompute")).collect::<Vec<_>>().join(";")
    };
    assert_eq!(assumed("small"), "recompute is empty, taken as none");
    assert!(assumed("open").ends_with("fits"), "{}", assumed("open"));
    assert!(assumed("other").contains("`everything` is not modelled"));
    for told in ["five", "away", "mlp"] {
        assert_eq!(assumed(told), "");
        assert!(value(told, "peak_gib") < value("other", "peak_gib"), "{told}");
        assert!(value(told, "iteration_s") >= value("none", "iteration_s"), "{told}");
    }
    assert_eq!(value("other", "peak_gib"), value("none", "peak_gib"));
    assert_eq!(report.row_errors.len(), 1);
}

/// Rows with both kinds of peaks are compared with both.
#[test]
fn the_allocators_peak_is_predicted_beside_that_of_live_tensors() {
    let header = format!("{},peak_gib,peak_kind,peak_reserved_gib\n", RUNS.trim_end());
    let row = |id: &str, peaks: &str| sized(id, USUAL).replace('\n', &format!(",{peaks}\n"));
    let report = check(&format!("{header}{}{}", row("both", "3,allocated,4"), row("one", "3,allocated,")));
    assert!(report.row_errors.is_empty() && report.ignored_columns.is_empty(), "{:?}", report.row_errors);
    let of = |id: &str, quantity: &str| {
        let found = report.predictions.iter().find(|p| p.id == id && p.quantity == quantity);
        found.map(|p| (p.predicted, p.measured))
    };
    let (live, held) = (of("both", "peak_gib").unwrap().0, of("both", "peak_reserved_gib").unwrap());
    assert!(held.0 > live && held.1 == Some(4.0), "{live} {held:?}");
    assert_eq!(of("one", "peak_reserved_gib"), None);
}

/// The plan has 32 stages for 16 layers. At most 18 stages are modelled: one per layer, and one each for the embedding
/// and the head alone. The row's error says this, and does not call the number a typing error.
#[test]
fn more_stages_than_layers_are_said_to_be_so() {
    let mut dimensions = USUAL;
    (dimensions[0], dimensions[7], dimensions[8], dimensions[9], dimensions[11]) = (16, 1, 32, 1, 64);
    let report = check(&format!("{RUNS}{}", sized("deep", dimensions)));
    let told = report.row_errors[0].to_string();
    assert!(told.contains("pp = 32: must be such that pp x virtual_stages = 32 is at most 18"), "{told}");
    assert!(told.contains("a stated layer split leaves inner stages without layers); use pp = 18"), "{told}");
}

/// Returns a file with one small run on eight chips. `columns` has its framework, stack and stack options; an empty
/// text states nothing.
fn software(chip: &str, zero: u32, dataset: &str, columns: [&str; 3]) -> String {
    const HEADER: &str = "id,dataset,layers,hidden,ffn_hidden,heads,head_dim,vocab,seq,chip,chips,chips_per_node,\
                          fabric,tp,pp,dp,zero_stage,micro_batch,global_batch,recompute,iteration_s,peak_gib,\
                          framework,stack,stack_options,source\n";
    let columns = columns.join(",");
    format!(
        "{HEADER}a,{dataset},4,1024,4096,16,64,51200,1024,{chip},8,8,,1,1,8,{zero},1,8,none,0.1,3,\
         {columns},not compiled; torchtitan asyncTP\n"
    )
}

fn stack_of(text: &str) -> (String, f64) {
    let report = check(text);
    let found = report.predictions.iter().find(|p| p.quantity == "iteration_s");
    let found = found.unwrap_or_else(|| panic!("{:?} {:?}", report.row_errors, report.unpredicted));
    (found.stack.clone().unwrap_or_default(), found.predicted)
}

#[test]
fn a_row_s_columns_choose_its_stack_and_neither_its_data_set_s_name_nor_its_prose_does() {
    let named = |chip, zero, columns| stack_of(&software(chip, zero, "my_torchtitan_runs", columns)).0;
    assert_eq!(named("h100_80gb_sxm", 0, ["", "", ""]), "megatron_core");
    assert_eq!(named("a100_80gb_sxm", 0, ["megatron_lm", "", ""]), "megatron");
    assert_eq!(named("h100_80gb_sxm", 3, ["megatron_lm", "", ""]), "megatron_core");
    assert_eq!(named("h100_80gb_sxm", 3, ["", "", ""]), "pytorch_fsdp");
    assert_eq!(named("h100_80gb_sxm", 3, ["MaxText", "", ""]), "maxtext");
    assert_eq!(named("h100_80gb_sxm", 3, ["torchtitan", "", ""]), "torchtitan");
    assert_eq!(named("h100_80gb_sxm", 3, ["torchtitan", "torchtitan_async", ""]), "torchtitan_async");
    let options = "overlap.tensor=0.5 memory.gathered_layers=3";
    let with = named("h100_80gb_sxm", 3, ["", "torchtitan", options]);
    assert_eq!(with, "torchtitan with overlap.tensor=0.5 with memory.gathered_layers=3");
    // The name of the data set does not change the prediction.
    let columns = ["torchtitan", "torchtitan_eager", ""];
    let of = |dataset| stack_of(&software("h100_80gb_sxm", 3, dataset, columns));
    assert_eq!(of("torchtitan"), of("mine"));
}

#[test]
fn software_that_cannot_be_is_refused_with_the_column() {
    let cases = [
        (["pytorche", "", ""], "framework = pytorche: must be one of megatron_lm, "),
        (["other", "", ""], "framework = other: has no stack of its own; name the stack in the column `stack`"),
        (["nemo", "torchtitan", ""], "stack = torchtitan: is a stack of torchtitan, the row's framework"),
        (["", "torchtitn", ""], "stack = torchtitn: unknown software stack `torchtitn`: did you mean `torchtitan`"),
        (["", "torchtitan", "overlap.tensor"], "stack_options = overlap.tensor: `overlap.tensor`: must be"),
    ];
    for (columns, expected) in cases {
        let report = check(&software("h100_80gb_sxm", 3, "mine", columns));
        let error = report.row_errors.first().map(ToString::to_string).unwrap_or_default();
        assert!(error.starts_with(&format!("data.csv:2: {expected}")), "{error}");
    }
}
