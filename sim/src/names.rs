//! Names of what is built in: found whatever their case, and the nearest one named where none is meant exactly.

/// A name as it is compared: case, and the difference between `-`, `_` and a blank, do not matter.
fn fold_name(name: &str) -> String {
    name.trim().to_lowercase().replace(['_', ' '], "-")
}

/// Whether two names are of one thing.
#[must_use]
pub fn are_same_name(a: &str, b: &str) -> bool {
    fold_name(a) == fold_name(b)
}

/// The candidate nearest to `word`, where Levenshtein's distance is small enough to suggest a typing mistake: at most a third of the longer word's
/// letters.
pub fn find_nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let wanted = fold_name(word);
    candidates
        .map(|candidate| (strsim::levenshtein(&wanted, &fold_name(candidate)), candidate))
        .filter(|(distance, candidate)| distance * 3 <= word.chars().count().max(candidate.chars().count()))
        .min()
        .map(|(_, candidate)| candidate)
}

/// The candidate that `word` is a slip of the pen for: one letter off, or two of at least ten. Words that differ in their digits alone are versions of
/// each other.
pub fn find_mistyped<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let letters = |s: &str| s.chars().filter(|c| !c.is_ascii_digit()).collect::<String>().to_lowercase();
    candidates
        .filter(|candidate| letters(candidate) != letters(word))
        .map(|candidate| (strsim::levenshtein(&word.to_lowercase(), candidate), candidate))
        .filter(|(distance, _)| *distance <= if word.chars().count() < 10 { 1 } else { 2 })
        .min()
        .map(|(_, candidate)| candidate)
}

/// Letters from which on a word counts as the beginning of a name, and names that are no more than it is a help to name.
const BEGINNING: usize = 2;
const FEW: usize = 4;

/// What to say to a name that is not among `known` (`a, b, c`), introduced by `are`: the nearest one, where there is one, else those that it is the
/// beginning of, and all.
#[must_use]
pub fn hint(word: &str, known: &str, are: &str) -> String {
    let wanted = fold_name(word);
    let begun = |name: &&str| wanted.chars().count() >= BEGINNING && fold_name(name).starts_with(&wanted);
    let near: Vec<String> = match find_nearest(word, known.split(", ")) {
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
        let known = "a100_80gb_sxm, h100_80gb_sxm, h100_96gb";
        let begun = format!("did you mean `h100_80gb_sxm` or `h100_96gb`? Built in are {known}");
        assert_eq!(hint("H10", known, "built in are"), begun);
        assert_eq!(hint("h", known, "built in are"), format!("built in are {known}"));
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
