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

ivec4 int16_of(vec4 values, float factor) {
    return ivec4(roundEven(values * factor));
}

// The low byte is signed: it runs from −128 to 127, and the high one makes up for it.
uint high_bytes(ivec4 q) {
    return pack_bytes((q + 128) >> 8);
}

uint low_bytes(ivec4 q) {
    return pack_bytes(q);
}
