//! Simulation of speculative decoding over a known completion.

use std::time::Duration;

use super::{Acceptance, DraftStats, Drafter, MAX_DRAFTS, Trials, allocate};

/// A completion, as the scheduler would have decoded it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Replay {
    /// Steps after the first token.
    pub steps: u64,
    /// Drafts that the steps verified.
    pub drafts: DraftStats,
    /// Time of the steps.
    pub time: Duration,
    /// Time of single steps for the same tokens.
    pub plain_time: Duration,
}

impl Replay {
    /// Throughput relative to single steps.
    pub fn gain(&self) -> f64 {
        self.plain_time.as_secs_f64() / self.time.as_secs_f64()
    }
}

/// Decodes a known completion of a prompt, drafting from repeated text as a request alone would, with steps that take
/// `step_times`, by rows less one. `None` if there is no second token, or no time of a single row.
pub fn replay(prompt: &[u32], completion: &[u32], step_times: &[Duration]) -> Option<Replay> {
    let (mut drafter, mut acceptance, mut trials) =
        (Drafter::default(), Acceptance::default(), Trials::default());
    let single = *step_times.first()?;
    let mut replay = Replay::default();
    let mut done = 1;
    while done < completion.len() {
        let (generated, following) = completion.split_at(done);
        let mut drafts = drafter.draft(prompt, generated, &[]);
        drafts.truncate((following.len() - 1).min(MAX_DRAFTS));
        let survival = drafter.survival(&acceptance, &drafts);
        let seconds = |rows: usize| step_times.get(rows - 1).map(Duration::as_secs_f64);
        let count = match allocate(&[survival], step_times.len(), seconds)[0] {
            0 => trials.next(drafts.len()),
            count => count,
        };
        drafts.truncate(count.min(step_times.len() - 1));
        let accepted =
            drafts.iter().zip(following).take_while(|(draft, token)| draft.token == **token).count();
        if drafts.is_empty() {
            trials.record_steps(1);
        } else {
            trials.record_verify_step(accepted > 0);
            drafter.record(&drafts, accepted);
            acceptance.record(&drafts, accepted);
        }
        replay.steps += 1;
        replay.time += step_times[drafts.len()];
        replay.plain_time += single * (accepted as u32 + 1);
        done += accepted + 1;
    }
    replay.drafts = drafter.stats;
    (replay.steps > 0).then_some(replay)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DraftCounts;

    const MILLISECOND: Duration = Duration::from_millis(1);

    #[test]
    fn copied_text_takes_few_steps_and_new_text_no_more_time_than_without() {
        let prompt: Vec<u32> = (0..400).collect();
        let free = [MILLISECOND; 8];
        let copied = replay(&prompt, &prompt[10..331], &free).unwrap();
        let DraftCounts { drafted, accepted } = copied.drafts.total();
        assert_eq!((drafted, accepted + copied.steps), (accepted, 320));
        assert!(copied.steps < 50 && copied.gain() > 6.0, "{copied:?}");
        let new: Vec<u32> = (1000..1321).collect();
        let plain = replay(&prompt, &new, &free).unwrap();
        assert_eq!((plain.steps, plain.gain(), plain.drafts), (320, 1.0, DraftStats::default()));
    }

    #[test]
    fn there_is_nothing_to_replay_without_a_second_token_or_a_time() {
        assert_eq!(replay(&[1], &[1], &[MILLISECOND]), None);
        assert_eq!(replay(&[1], &[1, 2, 3], &[]), None);
        assert_eq!(replay(&[1], &[1, 2, 3], &[MILLISECOND]).unwrap().steps, 2);
    }
}
