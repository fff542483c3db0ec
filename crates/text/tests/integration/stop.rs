//! Stop strings, compared with a search of the complete text.

use proptest::prelude::*;
use text::{Error, StopMatcher};

/// Feeds a text in pieces; returns the emitted text and whether it stopped.
fn run<'a>(stops: &[&str], pieces: impl IntoIterator<Item = &'a str>) -> (String, bool) {
    let (text, found) = find(stops, pieces);
    (text, found.is_some())
}

/// Feeds a text in pieces; returns the emitted text and the index of the stop string that ended it.
fn find<'a>(stops: &[&str], pieces: impl IntoIterator<Item = &'a str>) -> (String, Option<usize>) {
    let mut matcher = StopMatcher::new(stops).expect("no stop string is empty");
    let mut text = String::new();
    for piece in pieces {
        let (out, stopped) = matcher.push(piece);
        text.push_str(&out);
        assert_eq!(stopped, matcher.stopped());
    }
    let (out, stopped) = matcher.finish();
    text.push_str(&out);
    assert_eq!(stopped, matcher.found().is_some());
    (text, matcher.found())
}

#[test]
fn no_part_of_a_stop_string_is_emitted() {
    let mut matcher = StopMatcher::new(&["\n\nUser:"]).unwrap();
    assert_eq!(matcher.push("Hello\n"), ("Hello".into(), false));
    assert_eq!(matcher.push("x\n"), ("\nx".into(), false));
    assert_eq!(matcher.push("\nUs"), (String::new(), false));
    assert_eq!(matcher.push("er: and more"), (String::new(), true));
    assert_eq!(matcher.push("even more"), (String::new(), true));
    assert_eq!(matcher.finish(), (String::new(), true));
}

#[test]
fn held_text_is_emitted_at_the_end() {
    assert_eq!(run(&["stop"], ["a sto"]), ("a sto".into(), false));
    assert_eq!(run(&[], ["anything"]), ("anything".into(), false));
}

#[test]
fn the_match_that_starts_first_wins() {
    // "bc" is complete before "abcd", but starts later.
    assert_eq!(run(&["bc", "abcd"], ["xab", "c", "d"]), ("x".into(), true));
    assert_eq!(run(&["bc", "abcd"], ["xab", "c", "e"]), ("xa".into(), true));
    assert_eq!(run(&["bc", "abcd"], ["xabc"]), ("xa".into(), true));
}

#[test]
fn the_stop_string_that_was_found_is_known() {
    assert_eq!(find(&["x", "bc", "abcd"], ["xab"]).1, Some(0));
    assert_eq!(find(&["bc", "abcd"], ["ab", "c", "d"]).1, Some(1));
    assert_eq!(find(&["bc", "abcd"], ["ab", "c"]).1, Some(0));
    // The shortest of those that start at the same place, and the first of equal ones.
    assert_eq!(find(&["abc", "ab", "ab"], ["abc"]).1, Some(1));
    assert_eq!(find(&["abc"], ["ab"]).1, None);
}

#[test]
fn characters_are_not_split() {
    // Both start with the same two bytes.
    assert_eq!(run(&["€"], ["a₭", "€b"]), ("a₭".into(), true));
}

#[test]
fn empty_stop_strings_are_rejected() {
    assert!(matches!(StopMatcher::new(&["a", ""]), Err(Error::EmptyStopString(1))));
}

#[test]
fn near_misses_take_linear_time() {
    let stop = "a".repeat(100_000) + "b";
    let text = "a".repeat(1_000_000);
    assert_eq!(run(&[&stop, "ab"], [&*text, "c"]).0.len(), text.len() + 1);
}

proptest! {
    #[test]
    fn matching_equals_a_search_of_the_complete_text(
        stops in proptest::collection::vec("[abé]{1,5}", 0..4),
        pieces in proptest::collection::vec("[abcé]{0,4}", 0..12),
    ) {
        let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
        let text = pieces.concat();
        let starts = stops.iter().enumerate().filter_map(|(index, stop)| Some((text.find(stop)?, stop.len(), index)));
        let first = starts.min();
        let expected = text[..first.map_or(text.len(), |(start, ..)| start)].to_owned();
        let found = first.map(|(.., index)| index);
        prop_assert_eq!(find(&stops, pieces.iter().map(String::as_str)), (expected, found));
    }
}
