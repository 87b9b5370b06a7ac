// sums.glsl - compensated float sums over a workgroup: a value is carried as hi + lo.

shared vec2 sum_pairs[WG];

// The exact error of hi + x goes to lo (Knuth's two-sum).
void add_exact(inout vec2 sum, float x)
{
    precise float hi = sum.x + x;
    precise float part = hi - sum.x;
    precise float error = (sum.x - (hi - part)) + (x - part);
    precise float lo = sum.y + error;
    sum = vec2(hi, lo);
}

vec2 workgroup_sum(vec2 value)
{
    uint tid = gl_LocalInvocationID.x;
    sum_pairs[tid] = value;
    barrier();
    for (uint half_size = WG / 2u; half_size > 0u; half_size /= 2u) {
        if (tid < half_size) {
            vec2 sum = sum_pairs[tid];
            vec2 other = sum_pairs[tid + half_size];
            add_exact(sum, other.x);
            precise float lo = sum.y + other.y;
            sum_pairs[tid] = vec2(sum.x, lo);
        }
        barrier();
    }
    vec2 result = sum_pairs[0];
    barrier();
    return result;
}

float workgroup_max(float value)
{
    uint tid = gl_LocalInvocationID.x;
    sum_pairs[tid].x = value;
    barrier();
    for (uint half_size = WG / 2u; half_size > 0u; half_size /= 2u) {
        if (tid < half_size) {
            sum_pairs[tid].x = max(sum_pairs[tid].x, sum_pairs[tid + half_size].x);
        }
        barrier();
    }
    float result = sum_pairs[0].x;
    barrier();
    return result;
}
