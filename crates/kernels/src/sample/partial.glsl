// Merging of partial states over a row's tokens. Needs THREADS, common.glsl, logsum.glsl and sample.glsl.

Partial no_tokens() {
    return Partial(no_logits(), no_logits(), NOTHING, NO_TOKEN);
}

Partial join(Partial a, Partial b, float scale) {
    bool second = b.key > a.key || b.key == a.key && b.token < a.token;
    return Partial(
        join_logits(a.raw, b.raw, 1.0),
        join_logits(a.scaled, b.scaled, scale),
        second ? b.key : a.key,
        second ? b.token : a.token);
}

#if TIER >= 1
shared Partial partials[THREADS / 4];

Partial shuffled(Partial part, uint far) {
    return Partial(
        LogSum(subgroupShuffleXor(part.raw.largest, far), subgroupShuffleXor(part.raw.sum, far)),
        LogSum(subgroupShuffleXor(part.scaled.largest, far), subgroupShuffleXor(part.scaled.sum, far)),
        subgroupShuffleXor(part.key, far),
        subgroupShuffleXor(part.token, far));
}
#else
shared Partial partials[THREADS];
#endif

// Merges the states of all threads, for every thread, in an order that depends only on THREADS and the
// subgroup size.
Partial workgroup_join(Partial part, float scale) {
#if TIER >= 1
    for (uint far = 1; far < gl_SubgroupSize; far *= 2) {
        part = join(part, shuffled(part, far), scale);
    }
    if (gl_SubgroupInvocationID == 0) {
        partials[gl_SubgroupID] = part;
    }
    barrier();
    part = partials[0];
    for (uint i = 1; i < gl_NumSubgroups; i++) {
        part = join(part, partials[i], scale);
    }
    return part;
#else
    uint thread = gl_LocalInvocationIndex;
    partials[thread] = part;
    barrier();
    // THREADS is a power of two, which the policy guarantees.
    for (uint far = THREADS / 2; far > 0; far /= 2) {
        if (thread < far) {
            partials[thread] = join(partials[thread], partials[thread + far], scale);
        }
        barrier();
    }
    return partials[0];
#endif
}
