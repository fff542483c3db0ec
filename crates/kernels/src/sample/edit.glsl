// Edits a block's logits before sampling: bias, then penalties, then the grammar's token mask. Every
// operation is precise: steps 1 and 3 of sampling compute the same values and must agree. Needs THREADS,
// VEC4_LOADS, COUNTS, BIASES, MASK and push.

// As MAX_BIASES (params.rs).
const uint MAX_BIASES = 512;
// Biases at or below this ban a token.
const float BAN = -100.0;
const uint IN_PROMPT = 0x80000000u;

shared float block_biases[BIASES ? BLOCK : 1];

bool has_penalties(Params params) {
    return params.repetition != 1.0 || params.presence != 0.0 || params.frequency != 0.0;
}

// Scatters the row's biases over the block that starts at `first`.
void load_biases(Params params, uint row, uint first) {
    if (BIASES) {
        for (uint i = gl_LocalInvocationIndex; i < BLOCK; i += THREADS) {
            block_biases[i] = 0.0;
        }
        barrier();
        for (uint i = gl_LocalInvocationIndex; i < min(params.bias_count, MAX_BIASES); i += THREADS) {
            Bias bias = push.biases.data[row * MAX_BIASES + i];
            if (bias.token - first < BLOCK) {
                block_biases[bias.token - first] = bias.bias;
            }
        }
        barrier();
    }
}

// Four logits, minus infinity past the end of the vocabulary.
vec4 load4(uint row, uint token) {
    uint at = row * push.vocab + token;
    if (VEC4_LOADS) {
        return Floats4(push.logits).data[at / 4];
    }
    vec4 logits = vec4(MINUS_INFINITY);
    for (uint i = 0; i < min(push.vocab - token, 4); i++) {
        logits[i] = push.logits.data[at + i];
    }
    return logits;
}

float penalize(Params params, float logit, uint count) {
    precise float penalized = logit;
    if (count != 0) {
        penalized = logit > 0.0 ? logit / params.repetition : logit * params.repetition;
    }
    uint generated = count & ~IN_PROMPT;
    if (generated > 0) {
        precise float frequency_penalty = params.frequency * float(generated);
        precise float penalty = params.presence + frequency_penalty;
        penalized = penalized - penalty;
    }
    return penalized;
}

// Tokens token to token + 3 of a row whose sequence has slot `slot`.
vec4 edit4(Params params, uint row, uint slot, uint token, vec4 logits) {
    if (BIASES) {
        [[unroll]] for (uint i = 0; i < 4; i++) {
            float bias = block_biases[token % BLOCK + i];
            precise float biased = logits[i] + bias;
            logits[i] = bias <= BAN ? MINUS_INFINITY : biased;
        }
    }
    if (COUNTS && has_penalties(params)) {
        [[unroll]] for (uint i = 0; i < 4; i++) {
            uint count = push.counts.data[slot * push.vocab + min(token + i, push.vocab - 1)];
            logits[i] = penalize(params, logits[i], count);
        }
    }
    if (MASK && params.masked != 0) {
        uint allowed_bits = push.mask.data[row * ((push.vocab + 31) / 32) + token / 32] >> token % 32;
        [[unroll]] for (uint i = 0; i < 4; i++) {
            logits[i] = (allowed_bits >> i & 1) != 0 ? logits[i] : MINUS_INFINITY;
        }
    }
    return logits;
}
