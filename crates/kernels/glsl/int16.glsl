// Activations as int16: q · scale, 16 values a scale, q in two signed bytes (see VectorData::Int16 in vectors.rs). Needs
// common.glsl.
const float INT16_MOST = 32639.0;
// Half groups of 16 values in a quad.
const uint INT16_SCALES = 8;

// What values are multiplied with, of the largest magnitude among them. Below this bound it would not be a finite number; nothing is
// lost by calling that zero.
float int16_factor(uint largest) {
    return largest < floatBitsToUint(1e-30) ? 0.0 : INT16_MOST / uintBitsToFloat(largest);
}

// Where one of the values is not a number this is none either, and says so of all that share it.
float int16_scale(uint largest) {
    return largest < floatBitsToUint(1e-30) ? 0.0 : uintBitsToFloat(largest) / INT16_MOST;
}

// As int16_scale_at (vectors.rs), of a half group.
uint int16_scale_at(uint half_group) {
    return half_group / 8 * 8 + half_group % 2 * 4 + half_group % 8 / 2;
}

// To the nearest integer. One division per 16 values, in the factor, instead of one per value: the result stays within
// 0.51 of a step, and the largest magnitude becomes ±32,639 exactly, so that nothing needs a clamp. roundEven, because
// the direction in which `round` takes a half is the device's choice.
int int16_of(float value, float factor) {
    return int(roundEven(value * factor));
}

ivec4 int16_of(vec4 values, float factor) {
    return ivec4(roundEven(values * factor));
}

// The low byte is signed, −128 to 127, so the high byte is rounded up where the low one is negative.
uint high_bytes(ivec4 q) {
    return pack_bytes((q + 128) >> 8);
}

uint low_bytes(ivec4 q) {
    return pack_bytes(q);
}

#if TIER >= 1
// The words of high and low bytes of four neighbouring threads, thread i % 4 of which has q: every one of them gets both.
uvec2 int16_shuffled_words(int q, uint i) {
    uint high = uint((q + 128) >> 8 & 0xff) << i % 4 * 8;
    uint low = uint(q & 0xff) << i % 4 * 8;
    [[unroll]] for (uint other = 1; other < 4; other *= 2) {
        high |= subgroupShuffleXor(high, other);
        low |= subgroupShuffleXor(low, other);
    }
    return uvec2(high, low);
}
#endif
