// Shared by the steps of sampling: the parameters of a row, order-preserving keys, and the noise.

// As Params (params.rs).
struct Params {
    float temperature;
    uint top_k;
    float top_p;
    float min_p;
    float repetition;
    float presence;
    float frequency;
    uint seed_low;
    uint seed_high;
    uint bias_count;
    uint masked;
    // Number of most probable tokens to report.
    uint top;
    uint spare[4];
};

// Partial state over some of a row's tokens.
struct Partial {
    // Of the model's unedited logits.
    LogSum raw;
    // Of the edited logits over the temperature, where top-p needs it.
    LogSum scaled;
    // The best token and its key: ties to the lowest token.
    uint key;
    uint token;
};

// State of a row after its blocks are combined.
struct State {
    // Whether the filters apply: 0 when the token is already known.
    uint filtered;
    // Keys of the largest logit, of the lowest candidate, and of the min-p threshold.
    uint max_key;
    uint bound;
    uint min_p_key;
    // Σ exp((logit − largest) / temperature) over all tokens.
    float mass;
    LogSum raw;
    // Tokens at or above the bound.
    uint candidates;
};

// As (token, bias) pairs (params.rs).
struct Bias {
    uint token;
    float bias;
};

// As Sampled (params.rs).
struct Sampled {
    uint token;
    float logprob;
    uint spare[2];
};

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Floats { float data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Floats4 { vec4 data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Words { uint data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Active { uint rows; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer ParamsList { Params data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Biases { Bias data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer SampledList { Sampled data[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Next { uint data[]; };
// As Run (params.rs).
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Run {
    uint finished;
    uint running;
};
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Counts { uint data[]; };

// Tokens of a block, as BLOCK (policy.rs).
const uint BLOCK = 2048;
// As NO_TOKEN (params.rs).
const uint NO_TOKEN = 0xffffffffu;
// As MAX_TOP (params.rs).
const uint MAX_TOP = 20;
// As MAX_STOP_TOKENS (params.rs).
const uint MAX_STOP_TOKENS = 16;
// In `finished`: stopped rows are counted from this bit on, finished rows in the bits below.
const uint STOPPED_ROW = 0x10000u;
// Below this, dividing by the temperature might overflow: it counts as 0. As MIN_TEMPERATURE (params.rs).
const float MIN_TEMPERATURE = 1e-5;

// How a row's token is chosen.
const uint GREEDY = 0;
// Samples from all tokens in one pass.
const uint DRAW = 1;
// Samples from the tokens that top-k, top-p and min-p leave.
const uint FILTER = 2;

bool has_top_k(Params params, uint vocab) {
    return params.top_k > 0 && params.top_k < vocab;
}

uint mode_of(Params params, uint vocab) {
    // With only the best token, there is nothing to draw.
    if (!(params.temperature >= MIN_TEMPERATURE) || params.top_k == 1) {
        return GREEDY;
    }
    return has_top_k(params, vocab) || params.top_p < 1.0 || params.min_p > 0.0 ? FILTER : DRAW;
}

// Keys are integers that order like the floats. Both zeros have the same key. No float has NO_KEY.
const uint NO_KEY = 0;
const uint KEY_OF_MINUS_INFINITY = 0x007fffffu;
const uint INVALID_KEY = 0xffffffffu;

uint key_of(float value) {
    uint bits = floatBitsToUint(value);
    bits = bits == 0x80000000u ? 0 : bits;
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

float value_of(uint key) {
    return uintBitsToFloat((key & 0x80000000u) != 0 ? key ^ 0x80000000u : ~key);
}

// Philox4x32-10 (Salmon et al., 2011): four random words that depend only on counter and key.
uvec4 philox(uvec4 counter, uvec2 key) {
    for (uint i = 0; i < 10; i++) {
        uint high0, low0, high1, low1;
        umulExtended(0xd2511f53u, counter.x, high0, low0);
        umulExtended(0xcd9e8d57u, counter.z, high1, low1);
        counter = uvec4(high1 ^ counter.y ^ key.x, low1, high0 ^ counter.w ^ key.y, low0);
        key += uvec2(0x9e3779b9u, 0xbb67ae85u);
    }
    return counter;
}

// −log(E) with E = −log(1 − v) and v = (bits + ½) / 2³². The largest noise, from the smallest v, decides the
// sample, so small v use a series: 1 − v would round their digits away.
float gumbel(uint bits) {
    float v = (float(bits) + 0.5) * (1.0 / 4294967296.0);
    float complement = (float(~bits) + 0.5) * (1.0 / 4294967296.0);
    float series = v * (1.0 + v * (0.5 + v * (1.0 / 3.0 + v * 0.25)));
    return -log(v < 0.015625 ? series : -log(complement));
}

// The noise of tokens 4n to 4n + 3.
vec4 noise4(Params params, uint position, uint token_vec4) {
    uvec4 bits = philox(uvec4(token_vec4, position, 0, 0), uvec2(params.seed_low, params.seed_high));
    return vec4(gumbel(bits.x), gumbel(bits.y), gumbel(bits.z), gumbel(bits.w));
}

float noise(Params params, uint position, uint token) {
    uvec4 bits = philox(uvec4(token / 4, position, 0, 0), uvec2(params.seed_low, params.seed_high));
    return gumbel(bits[token % 4]);
}
