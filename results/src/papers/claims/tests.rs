#![allow(clippy::unwrap_used)]
use super::*;

const HEADER: &str = "system,model,hardware,setting,metric,value,unit,source(section/table),confidence\n";

fn predicted(rows: &str) -> ClaimReport {
    predict_claims("claims.csv", &format!("{HEADER}{rows}")).unwrap()
}

fn tried(rows: &str) -> Vec<PredictedClaim> {
    predicted(rows).claims
}

#[test]
fn files_are_told_by_their_columns() {
    assert!(is_claims_header(HEADER));
    assert!(!is_claims_header("id,chip,kernel,measured_us\n"));
}

#[test]
fn other_sizes_of_a_paper_are_computed_like_those_of_the_reference() {
    let all = tried(
        "LOMO,LLaMA-13B,-,s=512 b=8 AdamW,params/grads/states,24.24 / 24.24 / 145.46,GB(GiB),x,x\n\
         LOMO,LLaMA-13B,-,s=512 b=8 LOMO,params/grads/states,24.24 / 0.31 / 0,GB(GiB),x,x\n\
         GaLore,LLaMA-1B,estimate bf16,Full-Rank / GaLore,weights+optimizer,,GB,x,x\n",
    );
    // LLaMA-13B has 40 layers with four matrices of 5120 x 5120, three of 5120 x 13824 and two norms. With embedding
    // and head of 32000 rows and a last norm, these are 13,015,864,320 parameters. With AdamW, each has 2 bytes of
    // weights, 2 of gradients and 12 of states. LOMO holds the gradient of one matrix; the largest is the embedding's.
    assert_eq!(40 * (4 * 5120 * 5120 + 3 * 5120 * 13_824 + 2 * 5120) + 2 * 32_000 * 5120 + 5120, 13_015_864_320_u64);
    assert_eq!(all[0].predicted, "24.24 / 24.24 / 145.5");
    assert!(all[0].error_pct.unwrap() < 0.1, "{:?}", all[0]);
    assert_eq!(all[1].predicted, "24.24 / 0.3052 / 0");
    // A claim without a value is predicted, but has no error. Weights and states of 1.339 billion parameters take 6
    // bytes each.
    let (full, projected) = all[2].predicted.split_once(" / ").unwrap();
    assert!((full.parse::<f64>().unwrap() - 1.339 * 6.0 / 1.0737).abs() < 0.01, "{full}");
    assert!(projected.parse::<f64>().unwrap() < full.parse::<f64>().unwrap());
    assert_eq!(all[2].error_pct, None);
}

#[test]
fn a_claim_is_a_study_with_its_whole_setting() {
    let all = tried(
        "LOMO,LLaMA-7B,8xRTX3090,\"s=1024 b=2, ZeRO-3, AC\",peak memory,20,GiB,x,x\n\
         LOMO,LLaMA-7B,1xRTX3090,\"s=1024 b=2, AC\",peak memory,20,GiB,x,x\n\
         LoRA,LLaMA-7B,1xA100-80GB,s=512 b=4 bf16 qlora / lora,peak memory,10 / 20,GiB,x,x\n\
         LOMO,LLaMA-7B,8xA100-80GB,\"s=512 b=1, gradient accumulation 4\",peak memory,20,GiB,x,x\n",
    );
    let number = |at: usize| all[at].predicted.parse::<f64>().unwrap();
    // Eight devices share the weights.
    assert!(number(0) < 0.5 * number(1), "{} {}", all[0].predicted, all[1].predicted);
    assert!(all[0].read_as[0].contains("on 8 rtx_3090") && all[0].read_as[0].contains("ZeRO-3"), "{:?}", all[0]);
    assert!(all[0].read_as[0].contains("recompute full") && all[0].read_as[0].contains("1024 tokens"));
    let (narrow, wide) = all[2].predicted.split_once(" / ").unwrap();
    assert!(narrow.parse::<f64>().unwrap() + 7.0 < wide.parse::<f64>().unwrap(), "{}", all[2].predicted);
    // LOMO updates in the backward pass, so it cannot accumulate gradients.
    assert!(all[3].predicted.is_empty() && all[3].why.as_deref().unwrap().contains("micro-batches"), "{:?}", all[3]);
}

#[test]
fn savings_speeds_and_lack_of_memory_are_quantities() {
    let all = tried(
        "GaLore,LLaMA-7B,1xA100-80GB,s=512 b=1,memory saving,20,%,x,x\n\
         MST,Llama3-8B,1xA100-80GB,MST / vanilla s=4K,peak memory,2,x,x,x\n\
         LOMO,LLaMA-7B,1xA100-80GB,s=512 b=1,throughput,1000,tokens/s,x,x\n\
         Megatron,22B,8xA100-80GB,full recompute / SP+selective,throughput,1.3,x,x,x\n\
         LOMO,LLaMA-7B,1xRTX3090,s=512 b=1 AdamW / LOMO,peak memory,OOM / 15,GiB,x,x\n",
    );
    let number = |at: usize| all[at].predicted.parse::<f64>().unwrap();
    assert!((1.0..80.0).contains(&number(0)), "{}", all[0].predicted);
    assert!(all[0].read_as[1].contains("without techniques"));
    assert!(number(1) > 1.2, "{}", all[1].predicted);
    assert!((100.0..20_000.0).contains(&number(2)), "{}", all[2].predicted);
    assert!(number(3) < 1.0, "{}", all[3].predicted);
    assert!(all[4].predicted.starts_with("OOM / "), "{}", all[4].predicted);
}

#[test]
fn words_that_are_not_read_refuse_the_claim() {
    let report = predicted(
        "LOMO,LLaMA-7B,-,s=512 b=8 AdamW on Tuesdays,weights,12.55,GB,x,x\n\
         LOMO,LLaMA-7B,a toaster,s=512 b=8,weights,12.55,GB,x,x\n\
         LOMO,,-,s=512 b=8,weights,12.55,GB,x,x\n\
         Banana,LLaMA-7B,-,s=512 b=8,weights,12.55,GB,x,x\n\
         LOMO,LLaMA-7B,-,s=512 b=8 AdamW,weights,-5,GB,x,x\n\
         LOMO,LLaMA-7B,-,s=512 b=8 AdamW,weights,12.55,GB,x,x\n",
    );
    let faults: Vec<(&str, &str)> = report.faults.iter().map(|f| (f.key.as_str(), f.value.as_str())).collect();
    let wanted = [
        ("setting", "on tuesdays"),
        ("hardware", "a toaster"),
        ("model", "(empty)"),
        ("system", "Banana"),
        ("value", "-5"),
    ];
    assert_eq!(faults, wanted);
    assert_eq!(report.claims.len(), 1);
    let first = report.describe_faults().next().unwrap();
    assert!(first.starts_with("claims.csv:2: setting = on tuesdays: these words are not read"), "{first}");
}

#[test]
fn what_belongs_to_inference_or_is_no_quantity_says_so() {
    let all = tried(
        "HOMER,llama2-7b,-,optimised order,memory,1,GiB,x,x\n\
         VeLoRA,LLaMA-7B,-,,MMLU 5-shot,38.6,%,x,x\n\
         LOMO,LLaMA-7B,-,s=512 b=8,weights,12.55,parsec,x,x\n\
         LOMO,Banana-7B,-,s=512 b=8,weights,12.55,GB,x,x\n",
    );
    let why = |at: usize| all[at].why.clone().unwrap();
    assert!(why(0).contains("inference") && why(1).contains("no quantity of a run"));
    assert!(why(2).contains("unit parsec") && why(3).contains("no such model"), "{} {}", why(2), why(3));
    assert!(all.iter().all(|claim| claim.predicted.is_empty()));
}

#[test]
fn what_is_written_has_every_claim_with_its_prediction() {
    let report = predicted("HOMER,llama2-7b,-,x,memory,1,GiB,x,x\n");
    let text = String::from_utf8(claims_csv(&[report]).unwrap()).unwrap();
    let head = "id,system,model,hardware,setting,metric,value,unit,predicted,error_pct,why,read_as";
    assert_eq!(text.lines().next().unwrap(), head);
    assert!(text.lines().nth(1).unwrap().starts_with("line-2,HOMER,llama2-7b,-,x,memory,1,GiB,,,"), "{text}");
}
