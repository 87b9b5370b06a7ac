// reduce.glsl - reductions and prefix sums over a workgroup. Integer sums use subgroup operations where
// the device has them; float sums keep one order on every device and are compensated.

#ifdef TRIA_SUBGROUP
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#endif

shared uint scan_words[WG];

// Inclusive prefix sum; `total` is the sum over the workgroup.
uint workgroup_scan(uint value, out uint total)
{
    uint tid = gl_LocalInvocationID.x;
#ifdef TRIA_SUBGROUP
    uint sum = subgroupInclusiveAdd(value);
    if (gl_SubgroupInvocationID == gl_SubgroupSize - 1u) {
        scan_words[gl_SubgroupID] = sum;
    }
    barrier();
    uint before = 0u;
    total = 0u;
    for (uint i = 0u; i < gl_NumSubgroups; i++) {
        before += i < gl_SubgroupID ? scan_words[i] : 0u;
        total += scan_words[i];
    }
    barrier();
    return before + sum;
#else
    scan_words[tid] = value;
    barrier();
    for (uint step = 1u; step < WG; step *= 2u) {
        uint other = tid >= step ? scan_words[tid - step] : 0u;
        barrier();
        scan_words[tid] += other;
        barrier();
    }
    total = scan_words[WG - 1u];
    uint sum = scan_words[tid];
    barrier();
    return sum;
#endif
}
