// Sum over a workgroup, in an order that depends only on THREADS and the subgroup size. Needs THREADS and
// common.glsl.
#if TIER >= 1
// A subgroup has at least 4 threads on every device that has tier T1.
shared float reduce_partials[THREADS / 4];
#else
shared float reduce_partials[THREADS];
#endif

float workgroup_sum(float value) {
#if TIER >= 1
    value = subgroupAdd(value);
    if (gl_SubgroupInvocationID == 0) {
        reduce_partials[gl_SubgroupID] = value;
    }
    barrier();
    float sum = 0.0;
    for (uint i = 0; i < gl_NumSubgroups; i++) {
        sum += reduce_partials[i];
    }
#else
    reduce_partials[gl_LocalInvocationIndex] = value;
    barrier();
    // THREADS is a power of two here, which the policies guarantee.
    for (uint stride = THREADS / 2; stride > 0; stride /= 2) {
        if (gl_LocalInvocationIndex < stride) {
            reduce_partials[gl_LocalInvocationIndex] += reduce_partials[gl_LocalInvocationIndex + stride];
        }
        barrier();
    }
    float sum = reduce_partials[0];
#endif
    // The next sum must not overwrite partial sums that another thread still reads.
    barrier();
    return sum;
}
