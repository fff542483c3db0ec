//! How many drafts a step verifies: as many as raise the expected throughput, by acceptance rates and measured step times.

/// Gain of throughput below which nothing is drafted: less is within the noise of the measurements.
const MIN_GAIN: f64 = 1.02;

/// Relative time of a step with more rows than have been measured: high, since its program may have to be compiled, but low
/// enough for promising drafts to try it.
const UNKNOWN_COST: f64 = 1.5;

/// Steps without a draft after which one is tried although it is not expected to pay: rates and step times that nobody
/// measures could stay wrong for ever.
const TRIAL_INTERVAL: u32 = 64;

/// Steps after an accepted draft in which decode runs are short: the next match would otherwise wait for the end of a run.
const SHORT_RUNS_INTERVAL: u32 = 16;

/// Steps of a short run: as many tokens as a match takes.
const SHORT_RUN_STEPS: usize = 2;

/// Every eighth trial verifies all drafts. The others verify one, which costs at most a second row.
const FULL_TRIAL_INTERVAL: u32 = 8;

/// The number of drafts of each sequence with the highest expected throughput, or none if that is hardly higher than without
/// drafts.
///
/// `survival` has a list per sequence of the step: the probability that each of its drafts is accepted with all before it,
/// which falls from draft to draft. `step_seconds` is the measured time of a step by its rows. A number of rows that has
/// not been measured is taken to cost [`UNKNOWN_COST`] times as much as the next smaller one that has.
pub(crate) fn allocate(
    survival: &[Vec<f64>],
    max_rows: usize,
    step_seconds: impl Fn(usize) -> Option<f64>,
) -> Vec<usize> {
    best_allocation(survival, max_rows, step_seconds, 0.0).0
}

/// Number of draft-model steps before the next verify step with the highest expected throughput; 0 if its drafts are not
/// expected to pay.
///
/// Each step adds one draft to every sequence with `from_model`. `survival` is as in [`allocate`], for those sequences that
/// of the draft model; `draft_seconds` is the time of one of its steps.
pub(crate) fn draft_steps(
    survival: &[Vec<f64>],
    from_model: &[bool],
    max_rows: usize,
    step_seconds: impl Fn(usize) -> Option<f64>,
    draft_seconds: f64,
) -> usize {
    let available = survival.iter().zip(from_model).filter(|(_, from_model)| **from_model);
    let max_steps = available.map(|(list, _)| list.len()).max().unwrap_or(0);
    let throughput = |steps: usize| {
        let limited = survival.iter().zip(from_model).map(|(list, from_model)| {
            let count = if *from_model { steps.min(list.len()) } else { list.len() };
            list[..count].to_vec()
        });
        let (_, best) = best_allocation(
            &limited.collect::<Vec<_>>(),
            max_rows,
            &step_seconds,
            steps as f64 * draft_seconds,
        );
        best
    };
    let (mut best, mut steps) = (throughput(0), 0);
    for count in 1..=max_steps {
        let found = throughput(count);
        if found > best {
            (best, steps) = (found, count);
        }
    }
    steps
}

/// The allocation with the highest expected throughput, and that throughput, if the step is preceded by `draft_seconds` of
/// drafting. If no drafts pay, the throughput is [`MIN_GAIN`] times that of a plain step: the bar that drafts must pass.
fn best_allocation(
    survival: &[Vec<f64>],
    max_rows: usize,
    step_seconds: impl Fn(usize) -> Option<f64>,
    draft_seconds: f64,
) -> (Vec<usize>, f64) {
    let sequences = survival.len();
    let mut drafts = vec![0; sequences];
    let Some(base_seconds) = step_seconds(sequences) else { return (drafts, 0.0) };
    // Since survival falls from draft to draft, the most probable drafts are the first ones of each sequence.
    let with_sequence =
        |(index, list): (usize, &Vec<f64>)| list.iter().map(move |p| (*p, index)).collect::<Vec<_>>();
    let mut candidates: Vec<(f64, usize)> = survival.iter().enumerate().flat_map(with_sequence).collect();
    candidates.sort_by(|a, b| b.0.total_cmp(&a.0));
    candidates.truncate(max_rows.saturating_sub(sequences));

    let base = sequences as f64 / base_seconds;
    let (mut best, mut count) = (base * MIN_GAIN, 0);
    let (mut tokens, mut known) = (sequences as f64, base_seconds);
    for (index, (survival, _)) in candidates.iter().enumerate() {
        tokens += survival;
        let measured = step_seconds(sequences + index + 1);
        known = measured.unwrap_or(known);
        let seconds = measured.unwrap_or(UNKNOWN_COST * known) + draft_seconds;
        if tokens / seconds > best {
            (best, count) = (tokens / seconds, index + 1);
        }
    }
    for (_, sequence) in &candidates[..count] {
        drafts[*sequence] += 1;
    }
    (drafts, best)
}

/// When to try drafts that are not expected to pay, and when not to draft at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Trials {
    /// Steps since drafts were last verified.
    steps: u32,
    trials: u32,
    /// Whether the last verify step failed, for lack of memory for example.
    failed: bool,
    /// Whether it accepted a draft.
    accepted: bool,
}

impl Trials {
    /// Records a step that verified drafts, and whether it accepted any.
    pub fn record_verify_step(&mut self, accepted: bool) {
        (self.steps, self.failed, self.accepted) = (0, false, accepted);
    }

    /// Records that drafts were made, whatever comes of them.
    pub fn record_attempt(&mut self) {
        (self.steps, self.failed) = (0, false);
    }

    /// Records a step that failed to.
    pub fn record_failure(&mut self) {
        (self.steps, self.failed, self.accepted) = (0, true, false);
    }

    /// Whether nothing should be drafted: the next attempt would probably fail too, and has cost time.
    pub fn are_paused(self) -> bool {
        self.failed && !self.is_due()
    }

    /// Records steps without drafts.
    pub fn record_steps(&mut self, steps: usize) {
        self.steps = self.steps.saturating_add(steps as u32);
    }

    /// Steps of the next decode run, which would have `usual` otherwise.
    pub fn run_steps(self, usual: usize) -> usize {
        let short = self.accepted && self.steps < SHORT_RUNS_INTERVAL;
        if short { usual.min(SHORT_RUN_STEPS) } else { usual }
    }

    /// Whether a draft is to be tried.
    pub fn is_due(self) -> bool {
        self.steps >= TRIAL_INTERVAL
    }

    /// The number of drafts to try in the next step, where `available` drafts of a sequence are not expected to pay.
    pub fn next(&mut self, available: usize) -> usize {
        if available == 0 || !self.is_due() {
            return 0;
        }
        self.trials = self.trials.wrapping_add(1);
        if self.trials.is_multiple_of(FULL_TRIAL_INTERVAL) { available } else { 1 }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, option, prelude::*};

    use super::*;

    /// Expected tokens per second of these numbers of drafts.
    fn throughput(survival: &[Vec<f64>], drafts: &[usize], seconds: &[f64]) -> f64 {
        let rows = survival.len() + drafts.iter().sum::<usize>();
        let accepted: f64 =
            survival.iter().zip(drafts).map(|(list, count)| list[..*count].iter().sum::<f64>()).sum();
        (survival.len() as f64 + accepted) / seconds[rows - 1]
    }

    /// All numbers of drafts that fit.
    fn choices(survival: &[Vec<f64>], max_rows: usize) -> Vec<Vec<usize>> {
        let mut all = vec![vec![]];
        for list in survival {
            let extend =
                |chosen: Vec<usize>| (0..=list.len()).map(move |count| [&chosen[..], &[count]].concat());
            all = all.into_iter().flat_map(extend).collect();
        }
        all.retain(|drafts| survival.len() + drafts.iter().sum::<usize>() <= max_rows.max(survival.len()));
        all
    }

    fn survival() -> impl Strategy<Value = Vec<Vec<f64>>> {
        let product = |rates: Vec<f64>| {
            let accumulate = |all: &mut f64, rate: f64| {
                *all *= rate;
                Some(*all)
            };
            rates.into_iter().scan(1.0, accumulate).collect::<Vec<f64>>()
        };
        vec(vec(0.0..=1.0_f64, 0..5).prop_map(product), 1..4)
    }

    proptest! {
        #[test]
        fn no_other_allocation_is_faster(
            survival in survival(),
            max_rows in 1..10_usize,
            seconds in vec(0.5..4.0_f64, 16),
        ) {
            let drafts = allocate(&survival, max_rows, |rows| Some(seconds[rows - 1]));
            let speed = |drafts: &[usize]| throughput(&survival, drafts, &seconds);
            let base = speed(&vec![0; survival.len()]);
            let best = choices(&survival, max_rows).iter().map(|drafts| speed(drafts)).fold(0.0, f64::max);
            prop_assert!(survival.iter().zip(&drafts).all(|(list, count)| *count <= list.len()));
            prop_assert!(survival.len() + drafts.iter().sum::<usize>() <= max_rows.max(survival.len()));
            if best > 1.0201 * base {
                prop_assert!(speed(&drafts) >= best * (1.0 - 1e-9), "{:?}: {} < {best}", drafts, speed(&drafts));
            } else if best < 1.0199 * base {
                prop_assert_eq!(drafts.iter().sum::<usize>(), 0);
            }
        }

        #[test]
        fn unknown_step_times_are_guessed_from_fewer_rows(
            survival in survival(),
            seconds in vec(option::of(0.5..4.0_f64), 16),
        ) {
            let drafts = allocate(&survival, 16, |rows| seconds[rows - 1]);
            let mut guessed = seconds.clone();
            let mut known = seconds[survival.len() - 1];
            for time in &mut guessed[survival.len()..] {
                known = time.or(known);
                *time = time.or(known.map(|known| UNKNOWN_COST * known));
            }
            let expected = match guessed[survival.len() - 1] {
                None => vec![0; survival.len()],
                Some(_) => allocate(&survival, 16, |rows| guessed[rows - 1]),
            };
            prop_assert_eq!(drafts, expected);
        }
    }

    proptest! {
        #[test]
        fn no_other_number_of_draft_steps_is_faster(
            survival in survival(),
            from_model in vec(any::<bool>(), 3),
            seconds in vec(0.5..4.0_f64, 16),
            draft_seconds in 0.0..0.5_f64,
        ) {
            let from_model = &from_model[..survival.len()];
            let found = draft_steps(&survival, from_model, 16, |rows| Some(seconds[rows - 1]), draft_seconds);
            // Of every number of steps, the best choice that has a draft of each of them.
            let base = throughput(&survival, &vec![0; survival.len()], &seconds);
            let speed = |drafts: &[usize], steps: usize| {
                let rows = survival.len() + drafts.iter().sum::<usize>();
                throughput(&survival, drafts, &seconds) * seconds[rows - 1]
                    / (seconds[rows - 1] + steps as f64 * draft_seconds)
            };
            let steps_of = |drafts: &[usize]| {
                drafts.iter().zip(from_model).filter(|(_, by)| **by).map(|(count, _)| *count).max().unwrap_or(0)
            };
            let best = choices(&survival, 16)
                .iter()
                .map(|drafts| (speed(drafts, steps_of(drafts)), steps_of(drafts)))
                .fold((base * MIN_GAIN, 0), |best, next| if next.0 > best.0 * (1.0 + 1e-9) { next } else { best });
            let of_found = choices(&survival, 16)
                .iter()
                .filter(|drafts| steps_of(drafts) <= found)
                .map(|drafts| speed(drafts, found))
                .fold(if found == 0 { base * MIN_GAIN } else { 0.0 }, f64::max);
            prop_assert!(of_found >= best.0 * (1.0 - 1e-6), "{found} steps: {of_found}, {best:?}");
        }
    }

    #[test]
    fn a_draft_model_pays_where_it_is_fast_and_right() {
        let seconds = |rows: usize| Some(1.0 + 0.02 * rows as f64);
        let survival = [vec![0.8, 0.64, 0.51, 0.41]];
        assert_eq!(draft_steps(&survival, &[true], 8, seconds, 0.01), 4);
        assert_eq!(draft_steps(&survival, &[true], 8, seconds, 0.9), 0);
        assert_eq!(draft_steps(&survival, &[false], 8, seconds, 0.0), 0, "it has drafts");
        assert_eq!(draft_steps(&[vec![0.001; 4]], &[true], 8, seconds, 0.01), 0);
    }

    #[test]
    fn rows_that_fill_a_bucket_anyway_are_free() {
        // Buckets of 1, 2, 4 and 8 rows.
        let seconds = |rows: usize| Some([1.0, 1.1, 1.2, 1.2, 1.4, 1.4, 1.4, 1.4][rows - 1]);
        assert_eq!(allocate(&[vec![0.5, 0.25, 0.01]], 8, seconds), [3]);
        assert_eq!(allocate(&[vec![0.05]], 8, seconds), [0]);
        assert_eq!(allocate(&[vec![0.9], vec![], vec![0.1]], 8, seconds), [1, 0, 0], "no bucket for both");
    }

    #[test]
    fn rows_that_were_never_measured_are_tried_with_promising_drafts() {
        let single = |rows: usize| (rows == 1).then_some(1.0);
        assert_eq!(allocate(&[vec![0.3, 0.09]], 8, single), [0]);
        let known = |rows: usize| (rows <= 2).then_some(1.0 + 0.1 * rows as f64);
        assert_eq!(allocate(&[vec![0.9, 0.8, 0.7]], 8, known), [3]);
        assert_eq!(allocate(&[vec![0.9, 0.8, 0.7]], 2, known), [1]);
        assert_eq!(allocate(&[vec![1.0]], 8, |_| None), [0], "not before a plain step was measured");
    }

    #[test]
    fn a_draft_that_does_not_pay_is_tried_now_and_then() {
        let mut trials = Trials::default();
        let mut tried = vec![];
        for step in 0..TRIAL_INTERVAL * FULL_TRIAL_INTERVAL * 2 {
            match trials.next(5) {
                0 => trials.record_steps(1),
                drafts => {
                    tried.push((step, drafts));
                    trials.record_verify_step(false);
                }
            }
        }
        assert_eq!(tried.len(), 15, "{tried:?}");
        assert_eq!(tried.iter().filter(|(_, drafts)| *drafts == 5).count(), 1);
        assert!(tried.windows(2).all(|pair| pair[1].0 - pair[0].0 > TRIAL_INTERVAL));
        assert_eq!(trials.next(0), 0);
    }

    #[test]
    fn a_failed_step_is_not_repeated_at_once() {
        let mut trials = Trials::default();
        assert!(!trials.are_paused());
        trials.record_failure();
        assert!(trials.are_paused());
        trials.record_steps(TRIAL_INTERVAL as usize);
        assert!(!trials.are_paused());
        trials.record_verify_step(false);
        assert!(!trials.are_paused());
    }

    #[test]
    fn runs_are_short_for_some_steps_after_an_accepted_draft() {
        let mut trials = Trials::default();
        assert_eq!(trials.run_steps(32), 32);
        trials.record_verify_step(true);
        assert_eq!((trials.run_steps(32), trials.run_steps(1)), (SHORT_RUN_STEPS, 1));
        trials.record_steps(SHORT_RUNS_INTERVAL as usize);
        assert_eq!(trials.run_steps(32), 32);
        trials.record_verify_step(false);
        assert_eq!(trials.run_steps(32), 32);
    }
}
