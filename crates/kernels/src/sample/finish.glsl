// The end of a row's sampling: what comes out, and the state of the next step. By one thread. Needs COUNTS and push.

void finish(uint row, uint token, LogSum raw) {
    uint step_row = push.rows.data[row];
    float logprob = uintBitsToFloat(0x7fc00000u);
    // A row without a token ends too.
    bool ends = token == NO_TOKEN;
    if (token != NO_TOKEN) {
        logprob = (push.logits.data[row * push.vocab + token] - raw.largest) - log(raw.sum);
        if (COUNTS) {
            atomicAdd(push.counts.data[push.slots.data[step_row] * push.vocab + token], 1);
        }
        // Without a branch, so that all loads are under way at once.
        uint met = 0;
        [[unroll]] for (uint i = 0; i < MAX_STOP_TOKENS; i++) {
            met |= uint(push.stop_tokens.data[row * MAX_STOP_TOKENS + i] == token);
        }
        ends = met != 0;
    }
    uint position = push.positions.data[step_row];
    push.next_tokens.data[row] = token;
    push.next_positions.data[row] = position + 1;

    // Every row finishes once a step, so the rows before this one tell which step it is, and whether it is the step's last.
    uint rows = push.active_rows.rows;
    uint before = atomicAdd(push.run.finished, ends ? 1 + ENDED : 1);
    uint finished = before % ENDED;
    uint entry = finished / rows * rows + row;
    if (entry < push.entries) {
        push.sampled.data[entry] = Sampled(token, logprob, uint[2](0, 0));
    }
    // Not before the last row: while the word is not zero, nothing of this step is skipped.
    if (finished % rows == rows - 1 && (ends || before >= ENDED)) {
        push.run.running = 0;
    }
}
