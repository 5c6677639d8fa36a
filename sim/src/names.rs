//! Names of built-in things: compared without case, with the nearest one suggested for an unknown name.

use std::path::Path;

/// Returns a name in the form in which it is compared: trimmed, in lower case, and with `-` for `_` and blanks.
fn fold_name(name: &str) -> String {
    name.trim().to_lowercase().replace(['_', ' '], "-")
}

/// True if two names are equal up to case and to the choice of `-`, `_` or a blank.
#[must_use]
pub fn are_same_name(a: &str, b: &str) -> bool {
    fold_name(a) == fold_name(b)
}

/// Returns the candidate with the least Levenshtein distance to `word`. Returns `None` if that distance exceeds a third
/// of the longer word's letters, and so does not suggest a typing mistake.
pub fn find_nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let wanted = fold_name(word);
    candidates
        .map(|candidate| (strsim::levenshtein(&wanted, &fold_name(candidate)), candidate))
        .filter(|(distance, candidate)| distance * 3 <= word.chars().count().max(candidate.chars().count()))
        .min()
        .map(|(_, candidate)| candidate)
}

/// Returns the longest candidate with which `word` begins, up to a `-`, `_` or blank: `llama3-8b` for
/// `llama3-8B-instruct`.
pub fn find_beginning<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let word = fold_name(word);
    let begins = |candidate: &&str| word.strip_prefix(&fold_name(candidate)).is_some_and(|rest| rest.starts_with('-'));
    candidates.filter(begins).max_by_key(|candidate| candidate.len())
}

/// Returns the candidate that `word` misspells: one letter off, or two in words of at least ten letters. `None` if
/// there is none. Words that differ only in digits are different versions, not misspellings.
pub fn find_mistyped<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let letters = |s: &str| s.chars().filter(|c| !c.is_ascii_digit()).collect::<String>().to_lowercase();
    candidates
        .filter(|candidate| letters(candidate) != letters(word))
        .map(|candidate| (strsim::levenshtein(&word.to_lowercase(), candidate), candidate))
        .filter(|(distance, _)| *distance <= if word.chars().count() < 10 { 1 } else { 2 })
        .min()
        .map(|(_, candidate)| candidate)
}

/// Fewest letters of a word that a hint completes to names, and the most completions that it lists.
const BEGINNING: usize = 2;
const FEW: usize = 4;

/// Returns a hint for a name that is not among `known` (a list such as `a, b, c`). The hint suggests the nearest name
/// or, if none is near, the few names that begin with `word`. It then lists all known names, introduced by `are`. If
/// `word` is the path of a directory, the hint says so.
#[must_use]
pub fn hint(word: &str, known: &str, are: &str) -> String {
    if word.contains('/') && Path::new(word).is_dir() {
        return format!("it is a directory: give a file in it, or a name; {are} {known}");
    }
    let wanted = fold_name(word);
    let begun = |name: &&str| wanted.chars().count() >= BEGINNING && fold_name(name).starts_with(&wanted);
    let near = find_nearest(word, known.split(", ")).or_else(|| find_beginning(word, known.split(", ")));
    let near: Vec<String> = match near {
        Some(near) => vec![format!("`{near}`")],
        None => known.split(", ").filter(begun).map(|name| format!("`{name}`")).collect(),
    };
    if near.is_empty() || near.len() > FEW {
        return format!("{are} {known}");
    }
    let mut letters = are.chars();
    let first: String = letters.next().into_iter().flat_map(char::to_uppercase).collect();
    format!("did you mean {}? {first}{} {known}", near.join(" or "), letters.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_same_whatever_their_case_and_no_two_others_are() {
        for (a, b) in [("TPU_v4", "tpu_v4"), ("Llama2-7B", "llama2-7b"), ("fully sharded", "Fully_Sharded")] {
            assert!(are_same_name(a, b), "{a} {b}");
        }
        assert!(!are_same_name("opt-1.3b", "opt-13b") && !are_same_name("tpu_v4", "tpu_v4i"));
    }

    #[test]
    fn only_near_names_are_suggested() {
        let known = ["num_hidden_layers", "hidden_size"];
        assert_eq!(find_nearest("num_hiden_layers", known.iter().copied()), Some("num_hidden_layers"));
        assert_eq!(find_nearest("NUM-HIDDEN-LAYERS", known.iter().copied()), Some("num_hidden_layers"));
        assert_eq!(find_nearest("colour", known.iter().copied()), None);
        assert_eq!(hint("tpu_v44", "h100, tpu_v4", "built in are"), "did you mean `tpu_v4`? Built in are h100, tpu_v4");
        let models = ["llama3-8b", "llama3", "llama3-8b-it2"];
        let begun = |word| find_beginning(word, models.iter().copied());
        assert_eq!((begun("llama3-8B-instruct"), begun("llama3-80b")), (Some("llama3-8b"), Some("llama3")));
        assert_eq!(begun("llama31-8b"), None);
        let known = "a100_80gb_sxm, h100_80gb_sxm, h100_96gb";
        let begun = format!("did you mean `h100_80gb_sxm` or `h100_96gb`? Built in are {known}");
        assert_eq!(hint("H10", known, "built in are"), begun);
        assert_eq!(hint("h", known, "built in are"), format!("built in are {known}"));
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
        let said = "it is a directory: give a file in it, or a name; built in are h100, tpu_v4";
        assert_eq!(hint(directory, "h100, tpu_v4", "built in are"), said);
        assert_eq!(hint("abacus", "h100, tpu_v4", "built in are"), "built in are h100, tpu_v4");
    }

    #[test]
    fn a_slip_is_no_other_version_and_no_other_word() {
        let known = ["llama", "mixtral", "qwen3", "num_hidden_layers", "mlp_bias"];
        let slip = |word| find_mistyped(word, known.iter().copied());
        assert_eq!((slip("lama"), slip("num_hiden_layer")), (Some("llama"), Some("num_hidden_layers")));
        assert_eq!((slip("qwen4"), slip("mamba"), slip("qkv_bias")), (None, None, None));
    }
}
