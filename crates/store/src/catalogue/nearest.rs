//! Suggestions for names that are not in the catalogue.

use super::MODELS;

/// Maximum number of suggestions.
const MAX_SUGGESTIONS: usize = 3;

/// Longest name that is compared: the distance takes quadratic time.
const MAX_LEN: usize = 64;

/// Names of the catalogue that resemble `name`, best first: at most a third of the characters differ.
pub fn nearest(name: &str) -> Vec<&'static str> {
    let name: Vec<char> = name.to_lowercase().chars().take(MAX_LEN).collect();
    let names = MODELS.iter().flat_map(|model| {
        let aliases = model.aliases.iter().map(move |alias| (*alias, model.name));
        std::iter::once((model.name, model.name)).chain(aliases)
    });
    let mut found: Vec<(usize, &str)> = names
        .map(|(spelling, name_of)| (distance(&name, &spelling.chars().collect::<Vec<_>>()), name_of))
        .filter(|(distance, _)| *distance * 3 <= name.len().max(3))
        .collect();
    // Stable: of equally close names, the catalogue's order decides.
    found.sort_by_key(|(distance, _)| *distance);
    let mut names: Vec<&str> = Vec::new();
    for (_, name) in found {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.truncate(MAX_SUGGESTIONS);
    names
}

/// Number of insertions, deletions, replacements and swaps of neighbours between two texts.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before_last = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.iter().enumerate() {
        let mut row = vec![i + 1; b.len() + 1];
        for (j, to) in b.iter().enumerate() {
            let replaced = last[j] + usize::from(from != to);
            row[j + 1] = replaced.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *from == b[j - 1] && a[i - 1] == *to {
                row[j + 1] = row[j + 1].min(before_last[j - 1] + 1);
            }
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_errors_are_corrected() {
        for (typed, expected) in [
            ("gema3:27b", "gemma3:27b"),
            ("gemma-3:27b", "gemma3:27b"),
            ("lama3.1:8b", "llama3.1:8b"),
            ("qwen2.5-codr:7b", "qwen2.5-coder:7b"),
            ("Mistrall:7B", "mistral:7b"),
            ("smolm2", "smollm2:135m"),
        ] {
            assert_eq!(nearest(typed).first(), Some(&expected), "{typed}: {:?}", nearest(typed));
        }
        for strange in ["", "x", "../../etc/passwd", "gpt-4"] {
            assert_eq!(nearest(strange), [""; 0], "{strange}");
        }
        assert!(nearest(&"q".repeat(10_000)).is_empty());
        assert!(nearest("qwen3:9b").len() <= MAX_SUGGESTIONS);
    }
}
