// Finishes a row: writes its output and the state of the next step. One thread calls it. Needs COUNTS and
// push.

void finish(uint row, uint token, LogSum raw) {
    uint step_row = push.rows.data[row];
    float logprob = uintBitsToFloat(0x7fc00000u);
    // A row without a token stops too.
    bool stops = token == NO_TOKEN;
    if (token != NO_TOKEN) {
        logprob = (push.logits.data[row * push.vocab + token] - raw.largest) - log(raw.sum);
        if (COUNTS) {
            atomicAdd(push.counts.data[push.slots.data[step_row] * push.vocab + token], 1);
        }
        // Without a branch, so that all loads are in flight at once.
        uint matched = 0;
        [[unroll]] for (uint i = 0; i < MAX_STOP_TOKENS; i++) {
            matched |= uint(push.stop_tokens.data[row * MAX_STOP_TOKENS + i] == token);
        }
        stops = matched != 0;
    }
    uint position = push.positions.data[step_row];
    push.next_tokens.data[row] = token;
    push.next_positions.data[row] = position + 1;

    // Every row finishes once per step, so the number of finished rows gives the step, and whether this is
    // its last row.
    uint rows = push.active_rows.rows;
    uint before = atomicAdd(push.run.finished, stops ? 1 + STOPPED_ROW : 1);
    uint finished = before % STOPPED_ROW;
    uint entry = finished / rows * rows + row;
    if (entry < push.entries) {
        push.sampled.data[entry] = Sampled(token, logprob, uint[2](0, 0));
    }
    // Only after the last row: until then no dispatch of this step may be skipped.
    if (finished % rows == rows - 1 && (stops || before >= STOPPED_ROW)) {
        push.run.running = 0;
    }
}
