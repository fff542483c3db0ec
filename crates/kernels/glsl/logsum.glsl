// Log-sum-exp as mergeable partial states: sum = Σ exp((logit − largest) · scale).
struct LogSum {
    float largest;
    float sum;
};

// Finite, so that the difference of two empty states is not NaN.
const float LOWEST = -3.402823466e38;
const float MINUS_INFINITY = uintBitsToFloat(0xff800000u);

LogSum no_logits() {
    return LogSum(LOWEST, 0.0);
}

// Adds four logits; minus infinity adds nothing.
LogSum add_logits(LogSum state, vec4 logits, float scale) {
    float largest = max(max(max(logits.x, logits.y), max(logits.z, logits.w)), state.largest);
    vec4 terms = exp((logits - largest) * scale);
    float sum = state.sum * exp((state.largest - largest) * scale) + ((terms.x + terms.y) + (terms.z + terms.w));
    return LogSum(largest, sum);
}

LogSum join_logits(LogSum a, LogSum b, float scale) {
    float largest = max(a.largest, b.largest);
    float sum = a.sum * exp((a.largest - largest) * scale) + b.sum * exp((b.largest - largest) * scale);
    return LogSum(largest, sum);
}

// Whether a logit is NaN or plus infinity. Tested on the bits, because compilers may assume that no float is.
bool is_invalid(float logit) {
    uint bits = floatBitsToUint(logit);
    return (bits & 0x7fffffffu) >= 0x7f800000u && bits != 0xff800000u;
}
