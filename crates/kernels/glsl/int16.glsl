// The int16 encoder of activations: q · scale, 16 values per scale, q as two signed bytes (see
// VectorData::Int16 in vectors.rs). Needs common.glsl.
// The largest q: 127 in both bytes.
const float INT16_MAX_Q = 32639.0;
// Half groups of 16 values per quad.
const uint INT16_SCALES = 8;

// The factor that quantises values with this largest magnitude. Below the bound the factor would not be
// finite; such values become zero, which loses nothing.
float int16_factor(uint largest) {
    return largest < floatBitsToUint(1e-30) ? 0.0 : INT16_MAX_Q / uintBitsToFloat(largest);
}

// NaN where one of the values is NaN, which marks all 16.
float int16_scale(uint largest) {
    return largest < floatBitsToUint(1e-30) ? 0.0 : uintBitsToFloat(largest) / INT16_MAX_Q;
}

// Same as int16_scale_at in vectors.rs, by half group.
uint int16_scale_at(uint half_group) {
    return half_group / 8 * 8 + half_group % 2 * 4 + half_group % 8 / 2;
}

// Rounds to the nearest integer. The factor costs one division per 16 values instead of one per value. The
// result stays within 0.51 quantisation steps, and the largest magnitude becomes ±32,639 exactly, so no
// clamp is needed. roundEven, because the rounding direction of halves is device-defined in `round`.
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
// Packs the values of four neighbouring threads into a word of high bytes and a word of low bytes; thread
// i % 4 passes its own q. All four get both words.
uvec2 int16_shuffled_words(int q, uint i) {
    uint high = uint((q + 128) >> 8 & 0xff) << i % 4 * 8;
    uint low = uint(q & 0xff) << i % 4 * 8;
    [[unroll]] for (uint mask = 1; mask < 4; mask *= 2) {
        high |= subgroupShuffleXor(high, mask);
        low |= subgroupShuffleXor(low, mask);
    }
    return uvec2(high, low);
}
#endif
