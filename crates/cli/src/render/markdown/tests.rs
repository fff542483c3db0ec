use proptest::prelude::*;

use super::{super::canvas::testing::Recorder, *};

fn rendered(pieces: &[&str], columns: usize) -> Recorder {
    let mut markdown = Markdown::new(Recorder::default(), move || columns);
    pieces.iter().for_each(|piece| markdown.push(piece));
    markdown.finish();
    std::mem::take(markdown.canvas())
}

#[test]
fn lists_hang_and_code_does_not_wrap() {
    let text = "# A long heading here\n\nSome words of text.\n- one two three four\n  - nested item wraps\n\
                10. ten and more words\n```rust\nlet a_long_line = of + code; // stays\n```\n| a | table | stays as it is |\n";
    let expected = "# A long heading\n  here\n\nSome words of\ntext.\n- one two three\n  four\n  - nested item\n    wraps\n\
                    10. ten and more\n    words\n```rust\nlet a_long_line = of + code; // stays\n```\n\
                    | a | table | stays as it is |\n";
    let found = rendered(&[text], 16);
    assert_eq!(found.screen, expected);
    assert_eq!(found.text, text);
}

#[test]
fn blocks_are_styled() {
    let text = "## Title\n1. **one**\n```python\nreturn 1\n```\nx ```y``` z\n---\n> quote";
    let found = rendered(&[text], 80);
    assert_eq!(found.with(Style::BOLD), "Titleone");
    assert_eq!(found.with(MARKER), "1.");
    assert_eq!(found.with(Style::coloured(Colour::Magenta)), "return");
    assert_eq!(found.with(Style::coloured(Colour::Cyan)), "y");
    assert_eq!(found.with(Style::DIM), "##****```python```".to_owned() + "``````---" + ">");
}

#[test]
fn a_block_ends_only_with_a_fence_as_long_as_its_own() {
    let found = rendered(&["````text\n```\n**a**\n```\n````\n**b**"], 80);
    assert_eq!(found.with(Style::BOLD), "b");
    let found = rendered(&["~~~\n```\n**a**"], 80);
    assert_eq!(found.with(Style::BOLD), "");
    // One line with three backticks at both ends is a code span.
    let found = rendered(&["```a``` **b**"], 80);
    assert_eq!(found.with(Style::BOLD), "b");
}

#[test]
fn a_block_of_markdown_is_markdown() {
    let found = rendered(&["```markdown\n- **a** long item\n```\n**b**\n```\n**c**"], 12);
    assert_eq!(found.with(Style::BOLD), "ab");
    assert_eq!(found.screen, "```markdown\n- **a** long\n  item\n```\n**b**\n```\n**c**");
}

#[test]
fn control_characters_are_pictures() {
    let found = rendered(&["a\x1b[2Jb\u{9b}\x07"], 80);
    assert_eq!(found.screen, "a␛[2Jb\u{fffd}␇");
}

/// Text of the kind that models write, and other text.
fn text() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        "[ab]{1,12}",
        " {1,3}",
        Just("\n".to_owned()),
        "[*_`~#>|+-]{1,4}",
        "\n[-*+] ",
        "\n[0-9]{1,3}[.)] ",
        "\n```(rust|python|md|)\n",
        "\\PC{1,3}",
        Just("漢字、".to_owned()),
        Just("\"it's\" // # 12 return".to_owned()),
    ];
    prop::collection::vec(part, 0..40).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn pieces_do_not_matter_and_nothing_is_lost(
        text in text(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20), columns in 1..80_usize,
    ) {
        let whole = rendered(&[&text], columns);
        prop_assert_eq!(&whole.text, &text);
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
        at.retain(|at| text.is_char_boundary(*at));
        at.extend([0, text.len()]);
        at.sort_unstable();
        let pieces: Vec<&str> = at.windows(2).map(|ends| &text[ends[0]..ends[1]]).collect();
        let split = rendered(&pieces, columns);
        prop_assert_eq!(&split.screen, &whole.screen);
        prop_assert_eq!(&split.styled, &whole.styled);
    }

    #[test]
    fn text_without_code_fits_the_width(words in prop::collection::vec("[a-z漢*_`.-]{1,30}", 0..60), columns in 8..80_usize) {
        let text = words.join(" ");
        prop_assume!(!text.contains("```") && !text.starts_with('|'));
        let found = rendered(&[&text], columns);
        for line in found.screen.lines() {
            prop_assert!(unicode_width::UnicodeWidthStr::width(line) <= columns, "{line:?}");
        }
    }
}
