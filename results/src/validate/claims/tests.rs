#![allow(clippy::unwrap_used)]
use super::*;

const HEADER: &str = "system,model,hardware,setting,metric,value,unit,source(section/table),confidence\n";

fn tried(rows: &str) -> Vec<PredictedClaim> {
    predict_claims(Path::new("claims.csv"), format!("{HEADER}{rows}").as_bytes()).unwrap().claims
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
    // 40 layers with four matrices of 5120 x 5120, three of 5120 x 13824 and two norms; embedding and head with 32000
    // rows; a norm: 13,015,864,320 parameters, in 2, 2 and 12 bytes. The largest matrix is the embedding's.
    assert_eq!(40 * (4 * 5120 * 5120 + 3 * 5120 * 13_824 + 2 * 5120) + 2 * 32_000 * 5120 + 5120, 13_015_864_320_u64);
    assert_eq!(all[0].predicted, "24.2439 / 24.2439 / 145.464");
    assert!(all[0].error_pct.unwrap() < 0.1, "{:?}", all[0]);
    assert_eq!(all[1].predicted, "24.2439 / 0.305176 / 0");
    // Without a value the claim is still predicted, without an error. 1.339 billion parameters in 6 bytes.
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
    // DeiT is in the reference of papers: the study is the same.
    let (whole, narrow) = all[2].predicted.split_once(" -> ").unwrap();
    assert!(whole.parse::<f64>().unwrap() > 2.0 * narrow.parse::<f64>().unwrap(), "{}", all[2].predicted);
    let reference =
        crate::papers::reproduce_figures().unwrap().into_iter().find(|figure| figure.id == "mesa_baseline_small").unwrap();
    assert_eq!(whole, to_six_digits(reference.predicted));
    let (before, after) = all[3].predicted.split_once(" -> ").unwrap();
    assert!(before.parse::<f64>().unwrap() > 2.0 * after.parse::<f64>().unwrap(), "{}", all[3].predicted);
    assert!(all[4].why.is_some() && all[4].predicted.is_empty());
    assert!(all[5].predicted.ends_with(" / ?") && all[5].why.as_deref().unwrap().contains("adapters"));
    assert!(all[5].error_pct.unwrap() < 15.0);
}

#[test]
fn what_is_written_has_every_claim_with_its_prediction() {
    let report = predict_claims(Path::new("c.csv"), format!("{HEADER}PHAZE,all,-,code,x,y,-,z,w\n").as_bytes()).unwrap();
    let text = String::from_utf8(claims_csv(&[report]).unwrap()).unwrap();
    assert_eq!(
        text.lines().next().unwrap(),
        "id,system,model,hardware,setting,metric,value,unit,source,confidence,predicted,error_pct,why"
    );
    assert!(text.lines().nth(1).unwrap().starts_with("line-2,PHAZE,all,-,code,x,y,-,z,w,,,"), "{text}");
}

#[test]
fn rows_that_are_wrong_are_named() {
    let rows = "LOMO,LLaMA-7B,-,s=512 b=8 AdamW,weights,nan,GB,x,x\n\
         LOMO,LLaMA-7B,-,s=512 b=8 AdamW,weights,-5,GB,x,x\n\
         LOMO,LLaMA-7B,-,s=512 b=8 AdamW,,12.55,GB,x,x\n\
         LOMO,LLaMA-7B,-,s=512 b=8 AdamW,weights,abc,GB,x,x\n\
         LOMO,LLaMA-7B,-,s=512 b=8 AdamW,weights,,GB,x,x\n";
    let report = predict_claims(Path::new("c.csv"), format!("{HEADER}{rows}").as_bytes()).unwrap();
    let errors: Vec<String> = report.row_errors.iter().map(ToString::to_string).collect();
    assert_eq!(errors.len(), 3, "{errors:?}");
    assert!(errors[0].starts_with("c.csv:2: value = nan: must be a finite number"), "{}", errors[0]);
    assert!(errors[1].starts_with("c.csv:3: value = -5: must not be negative"), "{}", errors[1]);
    assert!(errors[2].starts_with("c.csv:4: metric = (empty): must not be empty"), "{}", errors[2]);
    // Words of the paper and unknown values are predicted.
    assert!(report.claims.iter().all(|claim| !claim.predicted.is_empty() && claim.error_pct.is_none()));
    assert_eq!(report.claims[0].why.as_deref(), Some("abc: no number to score by"));
    assert_eq!(report.claims[1].why, None);
}

#[test]
fn systems_are_known_by_their_presets() {
    let all = tried(
        "TRAlgorithm,LLaMA-7B,A100,s=512 b=1,peak memory,,GB,x,x\n\
         Approx-BP/MS-BP,LLaMA-7B,A100,s=2048 b=8 baseline -> Approx-BP/MS-BP,peak memory,60 -> 50,GB,x,x\n\
         Approx-BP/MS-BP,ViT-B,A100,b=64,peak memory,,GB,x,x\n\
         Mesa,DeiT-S,1 GPU,b=128 384x384,train memory,,MB,x,x\n\
         PHAZE,LLaMA-7B,A100,s=512,peak memory,,GB,x,x\n",
    );
    let why = |at: usize| all[at].why.as_deref().unwrap_or_default();
    assert!(all[0].predicted.parse::<f64>().is_ok(), "{:?}", all[0]);
    let (before, after) = all[1].predicted.split_once(" -> ").unwrap();
    assert!(before.parse::<f64>().unwrap() > after.parse::<f64>().unwrap(), "{}", all[1].predicted);
    assert!(why(2).contains("of vision models DeiT-Ti and DeiT-S are built in"), "{}", why(2));
    assert!(why(3).contains("images of 384x384"), "{}", why(3));
    assert!(why(4).contains("PHAZE is no preset"), "{}", why(4));
}
