// The logarithm of a sum of exponentials in parts that can be joined: sum · exp(max). Needs common.glsl.
struct LogSum {
    float largest;
    float sum;
};

// Finite, so that the difference of two empty parts is a number.
const float LOWEST = -3.402823466e38;

LogSum no_logits() {
    return LogSum(LOWEST, 0.0);
}

// exp(a) + exp(b) + …; minus infinity adds nothing.
LogSum add_logits(LogSum part, vec4 logits) {
    float largest = max(max(max(logits.x, logits.y), max(logits.z, logits.w)), part.largest);
    vec4 terms = exp(logits - largest);
    float sum = part.sum * exp(part.largest - largest) + ((terms.x + terms.y) + (terms.z + terms.w));
    return LogSum(largest, sum);
}

LogSum join_logits(LogSum a, LogSum b) {
    float largest = max(a.largest, b.largest);
    return LogSum(largest, a.sum * exp(a.largest - largest) + b.sum * exp(b.largest - largest));
}

// Not a number, or plus infinity: nothing that a model may say. By its bits, because compilers may assume that there are no
// such floats.
bool is_bad(float logit) {
    uint bits = floatBitsToUint(logit);
    return (bits & 0x7fffffffu) >= 0x7f800000u && bits != 0xff800000u;
}
