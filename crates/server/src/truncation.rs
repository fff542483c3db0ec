//! Which messages of a conversation that is too long are left out.

use std::ops::Range;

use text::{Content, Message};

/// Groups of messages in the order in which they are left out: first the turns of the user with all that follows each,
/// the oldest first, and then the tool calls of the last turn with their results. Never messages of the system, which
/// divide groups, nor the last turn's own message, nor the last group.
pub(crate) fn droppable(messages: &[Message]) -> Vec<Range<usize>> {
    let is = |index: usize, role: &str| messages[index].role == role;
    let last_turn = (0..messages.len()).rev().find(|index| is(*index, "user")).unwrap_or(0);
    let mut groups: Vec<Range<usize>> = Vec::new();
    for index in 0..messages.len() {
        let starts = match index < last_turn {
            true => is(index, "user"),
            // Results follow their call.
            false => !is(index, "tool"),
        };
        match groups.last_mut() {
            _ if is(index, "system") || index == last_turn && is(index, "user") => {}
            Some(last) if last.end == index && index != last_turn && !starts => last.end += 1,
            _ => groups.push(index..index + 1),
        }
    }
    // What the model is to answer: the last results, if the conversation does not end with the turn's own message.
    if groups.last().is_some_and(|last| last.end == messages.len()) {
        groups.pop();
    }
    groups
}

/// A conversation without these groups, which are in order. Its `pictures` are in the order of the messages.
pub(crate) fn without<T: Clone>(
    groups: &[Range<usize>],
    messages: &[Message],
    pictures: &[T],
) -> (Vec<Message>, Vec<T>) {
    let (mut kept, mut kept_pictures, mut pictures) = (Vec::new(), Vec::new(), pictures.iter());
    let mut groups = groups.iter().peekable();
    for (index, message) in messages.iter().enumerate() {
        let count = message.content.as_ref().map_or(0, Content::image_count);
        let own = pictures.by_ref().take(count);
        while groups.next_if(|group| group.end <= index).is_some() {}
        match groups.peek().is_some_and(|group| group.contains(&index)) {
            true => own.for_each(drop),
            false => {
                kept_pictures.extend(own.cloned());
                kept.push(message.clone());
            }
        }
    }
    (kept, kept_pictures)
}

/// The smallest number up to `count` that `fits`, or `count`. If a number fits, so do all above it.
pub(crate) fn smallest_fitting<E>(
    count: usize,
    mut fits: impl FnMut(usize) -> Result<bool, E>,
) -> Result<usize, E> {
    let mut range = 0..count;
    while !range.is_empty() {
        let middle = range.start + range.len() / 2;
        match fits(middle)? {
            true => range.end = middle,
            false => range.start = middle + 1,
        }
    }
    Ok(range.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Groups of a conversation given by the first letters of its roles.
    fn groups(roles: &str) -> Vec<(usize, usize)> {
        let role = |letter| match letter {
            's' => "system",
            'u' => "user",
            'a' => "assistant",
            _ => "tool",
        };
        let messages: Vec<Message> = roles.chars().map(|letter| Message::new(role(letter), "x")).collect();
        droppable(&messages).into_iter().map(|group| (group.start, group.end)).collect()
    }

    #[test]
    fn whole_turns_are_left_out_before_calls_of_the_last_one() {
        assert!(groups("u").is_empty());
        assert!(groups("su").is_empty());
        assert_eq!(groups("suau"), [(1, 3)]);
        assert_eq!(groups("suauau"), [(1, 3), (3, 5)]);
        assert_eq!(groups("uattau"), [(0, 5)]);
        // Calls of the last turn, each with its results.
        assert_eq!(groups("uauattatat"), [(0, 2), (3, 6), (6, 8)]);
        assert!(groups("uat").is_empty());
        // A message of the system within a turn stays.
        assert_eq!(groups("suasau"), [(1, 3), (4, 5)]);
        // A conversation that starts with the assistant.
        assert_eq!(groups("auau"), [(0, 1), (1, 3)]);
        assert!(groups("").is_empty());
    }

    #[test]
    fn the_smallest_fitting_number_is_found() {
        for count in 0..20 {
            for wanted in 0..=count {
                let found = smallest_fitting(count, |number| Ok::<_, ()>(number >= wanted));
                assert_eq!(found, Ok(wanted));
            }
        }
    }
}
