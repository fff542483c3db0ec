// Memory layout of keys and values in the cache (see attention/kv.rs). A line is the key, or the value, of
// one KV head at one position. Needs KV_BITS, HEAD_DIM, PAGE_SIZE, common.glsl and half.glsl.
const bool F16 = KV_BITS == 16;
const bool INT8 = KV_BITS == 8;

// int8: words (4 values) per line, words (2 scales) per line, and words per page and KV head.
const uint INT8_WORDS = HEAD_DIM / 4;
const uint INT8_SCALE_WORDS = (HEAD_DIM + 63) / 64;
const uint INT8_PAGE_WORDS = PAGE_SIZE * (INT8_WORDS + INT8_SCALE_WORDS);
// Words that share a scale.
const uint INT8_GROUP = 8;

// First word of a line's values, and of its scales.
uint int8_at(uint line) {
    return line / PAGE_SIZE * INT8_PAGE_WORDS + line % PAGE_SIZE * INT8_WORDS;
}

uint int8_scales_at(uint line) {
    return line / PAGE_SIZE * INT8_PAGE_WORDS + PAGE_SIZE * INT8_WORDS + line % PAGE_SIZE * INT8_SCALE_WORDS;
}

// The scale, as f16, of a group with this largest magnitude. NaN gives a NaN scale.
uint int8_scale(uint largest) {
    return half_bits(uintBitsToFloat(largest) * (1.0 / 127.0));
}

// The scale of word `word` of a line, from the word that contains it.
uint int8_scale_of(uint scales, uint word) {
    return scales >> word / INT8_GROUP % 2 * 16 & 0xffff;
}

// Four values quantised and packed into a word. With a scale of zero or NaN the word is zero.
uint int8_word(vec4 values, uint scale) {
    bool has_scale = scale != 0 && scale < 0x7c00;
    vec4 q = clamp(roundEven(values / unpackHalf2x16(has_scale ? scale : 0x3c00).x), -127.0, 127.0);
    return has_scale ? pack_bytes(ivec4(q)) : 0;
}

// Dequantises a word. Exact: 7 bits times 11.
vec4 int8_values(uint word, uint scale) {
    return bytes_to_floats(word) * unpackHalf2x16(scale).x;
}
