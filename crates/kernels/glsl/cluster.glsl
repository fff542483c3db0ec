// Sums over a cluster: LANES (a power of two) neighbouring threads of a workgroup. Needs THREADS, LANES,
// CLUSTER_SUMS (the maximum number of sums per call) and common.glsl. From T1 on a cluster lies within a
// subgroup and needs no barrier; at T0 every thread of the workgroup must call it.
#if TIER < 1
shared float cluster_partials[THREADS * CLUSTER_SUMS];
#endif

#if TIER >= 1 && defined(BROADCAST_SUMS)
// For subgroups of 16 threads.
float cluster_sum(float value) {
    float sum = 0.0;
    [[unroll]] for (uint first = 0; first < 16; first += LANES) {
        float own = 0.0;
        [[unroll]] for (uint lane = 0; lane < LANES; lane++) {
            own += subgroupBroadcast(value, first + lane);
        }
        sum = gl_SubgroupInvocationID / LANES == first / LANES ? own : sum;
    }
    return sum;
}
#elif TIER >= 1
float cluster_sum(float value) {
    [[unroll]] for (uint mask = 1; mask < LANES; mask *= 2) {
        value += subgroupShuffleXor(value, mask);
    }
    return value;
}
#endif

void cluster_sums(inout float values[CLUSTER_SUMS]) {
#if TIER >= 1
    [[unroll]] for (uint i = 0; i < CLUSTER_SUMS; i++) {
        values[i] = cluster_sum(values[i]);
    }
#else
    if (LANES == 1) {
        return;
    }
    uint thread = gl_LocalInvocationIndex;
    [[unroll]] for (uint i = 0; i < CLUSTER_SUMS; i++) {
        cluster_partials[i * THREADS + thread] = values[i];
    }
    barrier();
    uint first = thread / LANES * LANES;
    [[unroll]] for (uint i = 0; i < CLUSTER_SUMS; i++) {
        float value = 0.0;
        [[dont_unroll]] for (uint lane = 0; lane < LANES; lane++) {
            value += cluster_partials[i * THREADS + first + lane];
        }
        values[i] = value;
    }
    // The next sums must not overwrite partial sums that another thread still reads.
    barrier();
#endif
}

#if TIER < 1
float cluster_sum(float value) {
    float values[CLUSTER_SUMS];
    [[unroll]] for (uint i = 0; i < CLUSTER_SUMS; i++) {
        values[i] = i == 0 ? value : 0.0;
    }
    cluster_sums(values);
    return values[0];
}
#endif
