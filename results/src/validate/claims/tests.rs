#![allow(clippy::unwrap_used)]
use super::*;

const HEADER: &str = "system,model,hardware,setting,metric,value,unit,source(section/table),confidence\n";

fn tried(rows: &str) -> Vec<PredictedClaim> {
    claims(Path::new("claims.csv"), format!("{HEADER}{rows}").as_bytes()).unwrap().claims
}

#[test]
fn files_are_told_by_their_columns() {
    assert!(is_claims(HEADER.as_bytes()));
    assert!(!is_claims(b"id,chip,kernel,measured_us\n"));
}

#[test]
fn other_sizes_of_a_paper_are_computed_like_those_of_the_reference() {
    let all = tried(
        "LOMO,LLaMA-13B,-,s=512 b=8 AdamW,params/grads/states,24.24 / 24.24 / 145.46,GB(GiB),x,x\n\
         LOMO,LLaMA-13B,-,s=512 b=8 LOMO,params/grads/states,24.24 / 0.31 / 0,GB(GiB),x,x\n\
         GaLore,LLaMA-1B,estimate bf16,Full-Rank / GaLore,weights+optimizer,,GB,x,x\n",
    );
    // 40 layers of four matrices of 5120 x 5120, three of 5120 x 13824 and two norms, embedding and head of 32000 rows, a norm: 13,015,864,320
    // parameters, in 2, 2 and 12 bytes; the largest matrix is the embedding's.
    assert_eq!(40 * (4 * 5120 * 5120 + 3 * 5120 * 13_824 + 2 * 5120) + 2 * 32_000 * 5120 + 5120, 13_015_864_320_u64);
    assert_eq!(all[0].predicted, "24.2439 / 24.2439 / 145.464");
    assert!(all[0].error_pct.unwrap() < 0.1, "{:?}", all[0]);
    assert_eq!(all[1].predicted, "24.2439 / 0.305176 / 0");
    // No value: still predicted, without an error. 1.339 billion parameters in 6 bytes.
    let (full, projected) = all[2].predicted.split_once(" / ").unwrap();
    assert!((full.parse::<f64>().unwrap() - 1.339 * 6.0 / 1.0737).abs() < 0.01, "{full}");
    assert!(projected.parse::<f64>().unwrap() < full.parse::<f64>().unwrap());
    assert_eq!(all[2].error_pct, None);
}

#[test]
fn metrics_without_a_setting_of_their_own_and_parts_that_cannot_be_are_told() {
    let all = tried(
        "MEMO,GPT-13B,8xA800,1M tokens,skeletal activations total,6400,GB,x,x\n\
         MEMO,GPT-7B,-,skeletal activations per layer,elements,16*b*s*h,-,x,x\n\
         Mesa,DeiT-S,1 GPU,\"b=128 224x224, baseline -> Mesa 8-bit\",train memory,8459 -> 3840,MB,x,x\n\
         LoRA-FA,LLaMA-7B,A100-40GB,s=512 b=1 full FT -> LoRA-FA,peak memory,60 -> 20,GB,x,x\n\
         HOMER,Llama-2,-,optimised order,memory vs input length,O(log N),-,x,x\n\
         GaLore,LLaMA-60M,-,Full-Rank / LoRA,weights,0.12 / 0.2,GB,x,x\n",
    );
    // 40 layers of 16 x 2 bytes x 2^20 x 5120.
    assert_eq!((all[0].predicted.as_str(), all[1].predicted.as_str()), ("6400", "16"));
    assert!(all[2].predicted.is_empty() && all[2].why.as_deref().unwrap().contains("vision"));
    let (before, after) = all[3].predicted.split_once(" -> ").unwrap();
    assert!(before.parse::<f64>().unwrap() > 2.0 * after.parse::<f64>().unwrap(), "{}", all[3].predicted);
    assert!(all[4].why.is_some() && all[4].predicted.is_empty());
    assert!(all[5].predicted.ends_with(" / ?") && all[5].why.as_deref().unwrap().contains("adapters"));
    assert!(all[5].error_pct.unwrap() < 15.0);
}

#[test]
fn what_is_written_has_every_claim_with_its_prediction() {
    let report = claims(Path::new("c.csv"), format!("{HEADER}PHAZE,all,-,code,x,y,-,z,w\n").as_bytes()).unwrap();
    let text = String::from_utf8(claims_csv(&[report]).unwrap()).unwrap();
    assert_eq!(
        text.lines().next().unwrap(),
        "id,system,model,hardware,setting,metric,value,unit,source,confidence,predicted,error_pct,why"
    );
    assert!(text.lines().nth(1).unwrap().starts_with("line-2,PHAZE,all,-,code,x,y,-,z,w,,,"), "{text}");
}
