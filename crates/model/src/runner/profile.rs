//! Steps with timestamps, and sequences that skip ahead: for [`crate::measure`].

use gpu::{TimestampMode, Timing};

use super::Runner;
use crate::{
    DecodeRow, Result,
    bucket::bucket,
    pages::Sequence,
    programs::Output,
    sampling::RowSampling,
    state::{RowCounts, TIMEOUT},
};

impl Runner {
    /// Lengthens a sequence by `rows` positions without computing them.
    pub(crate) fn skip(&mut self, sequence: &mut Sequence, rows: u32) -> Result<()> {
        self.cache.extend(sequence, rows)?;
        sequence.advance_blindly(rows);
        Ok(())
    }

    /// A decode step with a program recorded for it alone, in one segment, with timestamps.
    pub(crate) fn decode_timed(
        &mut self,
        batch: &mut [DecodeRow<'_>],
        timestamps: TimestampMode,
    ) -> Result<Vec<Timing>> {
        let rows = self.decode_rows(batch, 1)?;
        let samplings: Vec<RowSampling<'_>> = batch.iter().map(DecodeRow::row_sampling).collect();
        let output = Output::Sample { rows: bucket(rows.len()) };
        let output_rows: Vec<u32> = (0..rows.len() as u32).collect();
        let counts = RowCounts::new(rows.len(), 0);
        let key = self.key(counts, output, &samplings);
        self.write_inputs(&rows, counts, 1, output, &output_rows, &samplings)?;
        let (programs, mut sources) = self.programs_and_sources();
        let program = programs.record_timed(&mut sources, key, timestamps)?;
        program.run(TIMEOUT)?;
        for row in batch.iter_mut() {
            self.cache.advance(row.sequence, &[row.token]);
        }
        Ok(program.timings()?)
    }

    /// One prefill chunk with timestamps.
    pub(crate) fn prompt_timed(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        timestamps: TimestampMode,
    ) -> Result<Vec<Timing>> {
        self.check(sequence, tokens)?;
        let rows = self.extend(sequence, tokens)?;
        let counts = RowCounts::new(0, rows.len());
        let key = self.key(counts, Output::None, &[]);
        self.write_inputs(&rows, counts, 1, Output::None, &[], &[])?;
        // In segments, as it would be submitted: all at once might take longer than a driver allows.
        let (programs, mut sources) = self.programs_and_sources();
        let segments = programs.record_segments_timed(&mut sources, key, timestamps)?;
        let mut timings: Vec<Timing> = Vec::new();
        for program in segments {
            program.run(TIMEOUT)?;
            let level = timings.last().map_or(0, |timing| timing.level + 1);
            timings.extend(
                program.timings()?.into_iter().map(|timing| Timing { level: timing.level + level, ..timing }),
            );
        }
        self.cache.advance(sequence, tokens);
        Ok(timings)
    }
}
