// Sum over a workgroup, in an order that depends only on THREADS and the subgroup size. Needs THREADS and
// common.glsl.
#if TIER >= 1
// A subgroup has at least 4 threads on every device that has tier T1.
shared float reduce_parts[THREADS / 4];
#else
shared float reduce_parts[THREADS];
#endif

float workgroup_sum(float value) {
#if TIER >= 1
    value = subgroupAdd(value);
    if (gl_SubgroupInvocationID == 0) {
        reduce_parts[gl_SubgroupID] = value;
    }
    barrier();
    float sum = 0.0;
    for (uint i = 0; i < gl_NumSubgroups; i++) {
        sum += reduce_parts[i];
    }
#else
    reduce_parts[gl_LocalInvocationIndex] = value;
    barrier();
    // THREADS is a power of two here, which the policies guarantee.
    for (uint half_way = THREADS / 2; half_way > 0; half_way /= 2) {
        if (gl_LocalInvocationIndex < half_way) {
            reduce_parts[gl_LocalInvocationIndex] += reduce_parts[gl_LocalInvocationIndex + half_way];
        }
        barrier();
    }
    float sum = reduce_parts[0];
#endif
    // The next sum must not overwrite partial sums that another thread still reads.
    barrier();
    return sum;
}
