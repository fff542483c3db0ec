// The end of a row's sampling: what comes out, and the state of the next step. By one thread. Needs COUNTS and push.

void finish(uint row, uint token, LogSum raw) {
    uint step_row = push.rows.data[row];
    float logprob = uintBitsToFloat(0x7fc00000u);
    if (token != NO_TOKEN) {
        logprob = (push.logits.data[row * push.vocab + token] - raw.largest) - log(raw.sum);
        if (COUNTS) {
            atomicAdd(push.counts.data[push.slots.data[step_row] * push.vocab + token], 1);
        }
    }
    uint position = push.positions.data[step_row];
    push.sampled.data[row] = Sampled(token, logprob, uint[2](0, 0));
    push.next_tokens.data[row] = token;
    push.next_positions.data[row] = position + 1;
}
