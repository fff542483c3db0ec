// Merging of partial states over a row's tokens. Needs THREADS, common.glsl, logsum.glsl and sample.glsl.

Partial no_tokens() {
    return Partial(no_logits(), no_logits(), NO_KEY, NO_TOKEN);
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

Partial shuffled(Partial partial, uint distance) {
    return Partial(
        LogSum(subgroupShuffleXor(partial.raw.largest, distance), subgroupShuffleXor(partial.raw.sum, distance)),
        LogSum(subgroupShuffleXor(partial.scaled.largest, distance), subgroupShuffleXor(partial.scaled.sum, distance)),
        subgroupShuffleXor(partial.key, distance),
        subgroupShuffleXor(partial.token, distance));
}
#else
shared Partial partials[THREADS];
#endif

// Merges the states of all threads, for every thread, in an order that depends only on THREADS and the
// subgroup size.
Partial workgroup_join(Partial partial, float scale) {
#if TIER >= 1
    for (uint distance = 1; distance < gl_SubgroupSize; distance *= 2) {
        partial = join(partial, shuffled(partial, distance), scale);
    }
    if (gl_SubgroupInvocationID == 0) {
        partials[gl_SubgroupID] = partial;
    }
    barrier();
    partial = partials[0];
    for (uint i = 1; i < gl_NumSubgroups; i++) {
        partial = join(partial, partials[i], scale);
    }
    return partial;
#else
    uint thread = gl_LocalInvocationIndex;
    partials[thread] = partial;
    barrier();
    // THREADS is a power of two, which the policy guarantees.
    for (uint distance = THREADS / 2; distance > 0; distance /= 2) {
        if (thread < distance) {
            partials[thread] = join(partials[thread], partials[thread + distance], scale);
        }
        barrier();
    }
    return partials[0];
#endif
}
