//! Reads the layers of pipeline chunks in the notation of frameworks.

/// Returns the chunks of a layout of Megatron-LM, such as `Et*3|(tt|)*29,m|L`, each as its letters. Source:
/// `megatron/core/transformer/pipeline_parallel_layer_layout.py`, core 0.13.
///
/// # Errors
/// The part that cannot be read.
pub(super) fn chunks_of_layout(layout: &str) -> Result<Vec<String>, String> {
    let text: Vec<char> = layout.chars().filter(|c| !c.is_whitespace() && *c != ',').collect();
    let (expanded, rest) = expand(&text)?;
    if !rest.is_empty() {
        return Err("has a parenthesis that nothing opens; correct it".to_owned());
    }
    let chunks: Vec<String> = expanded.split('|').map(str::to_owned).collect();
    match chunks.iter().flat_map(|chunk| chunk.chars()).find(|c| !"EtmL".contains(*c)) {
        Some(other) => Err(format!("has {other:?}; E, t, m and L stand for what a stage can hold")),
        None => Ok(chunks),
    }
}

/// Largest number of letters of a layout.
const MOST_LETTERS: usize = 1 << 16;

fn expand(mut text: &[char]) -> Result<(String, &[char]), String> {
    let mut out = String::new();
    while let Some((first, rest)) = text.split_first() {
        let (unit, after) = match first {
            ')' => return Ok((out, text)),
            '(' => {
                let (inside, after) = expand(rest)?;
                let after = after.strip_prefix(&[')']).ok_or("has a parenthesis that nothing closes; close it")?;
                (inside, after)
            }
            c => (c.to_string(), rest),
        };
        text = after;
        let times = match text.strip_prefix(&['*']) {
            None => 1,
            Some(rest) => {
                let end = rest.iter().position(|c| !c.is_ascii_digit()).unwrap_or(rest.len());
                let digits: String = rest[..end].iter().collect();
                text = &rest[end..];
                digits.parse::<usize>().map_err(|_| "has a * without a number behind it; give one".to_owned())?
            }
        };
        if unit.len().saturating_mul(times) + out.len() > MOST_LETTERS {
            return Err(format!("has more than {MOST_LETTERS} letters; shorten it"));
        }
        out.push_str(&unit.repeat(times));
    }
    Ok((out, text))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn layouts_are_expanded_as_megatron_does() {
        let of = |layout: &str| chunks_of_layout(layout).unwrap();
        let deepseek = of("Et*3|(tt|)*29,m|L");
        assert_eq!((deepseek.len(), &*deepseek[0], &*deepseek[1], &*deepseek[29]), (32, "Ettt", "tt", "tt"));
        assert_eq!((&*deepseek[30], &*deepseek[31]), ("m", "L"));
        assert_eq!(of("E,t*2|t|tL"), ["Ett", "t", "tL"]);
        assert!(chunks_of_layout("Et*|L").unwrap_err().contains('*'));
        assert!(chunks_of_layout("E(t|L").unwrap_err().contains("closes"));
        assert!(chunks_of_layout("Et)|L").unwrap_err().contains("opens"));
        assert!(chunks_of_layout("Ex|L").unwrap_err().contains("'x'"));
        assert!(chunks_of_layout("((t*999)*999)*999").is_err());
    }
}
