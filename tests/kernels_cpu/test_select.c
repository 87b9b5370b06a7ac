/* Radix selection against a sort by the specification's total order. */
#include "cpu/kernels.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_ROWS = 20000 };

static const tria_cpu_kernels *kernels; /* under test */
static uint64_t state = 11;
static float scores[MAX_ROWS];
static uint8_t is_protected[MAX_ROWS];
static int32_t rows[MAX_ROWS];
static int32_t order[MAX_ROWS];
static uint32_t scratch[MAX_ROWS];

static uint32_t bits(void)
{
    state = state * 6364136223846793005U + 1442695040888963407U;
    return (uint32_t)(state >> 32);
}

/* Higher first, NaN last, equal ones by index. */
static int compare(const void *a, const void *b)
{
    const int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    const float x = scores[i], y = scores[j];
    if (isnan(x) != isnan(y)) {
        return isnan(x) ? 1 : -1;
    }
    if (!isnan(x) && x != y) {
        return x > y ? -1 : 1;
    }
    return i < j ? -1 : i > j;
}

static float random_score(int kind)
{
    const uint32_t r = bits();
    float any;
    switch (kind) {
    case 0: /* any bits at all */
        memcpy(&any, &r, sizeof(any));
        return any;
    case 1: /* many ties */
        return (float)(r % 5) - 2.0F;
    case 2: /* zeros of both signs, infinities, NaN */
        return r % 4 == 0 ? 0.0F : r % 4 == 1 ? -0.0F : r % 4 == 2 ? NAN : r % 8 < 4 ? INFINITY : -INFINITY;
    case 3: /* close together: all but the lowest bits agree */
        return 1.0F + (float)(r % 64) * 1e-7F;
    default:
        return (float)(int32_t)r / 2147483648.0F;
    }
}

static void check(int32_t n, int32_t n_take, bool protect)
{
    int32_t n_candidates = 0, expected = 0;
    static bool keep[MAX_ROWS];
    memset(keep, 0, sizeof(keep));
    for (int32_t i = 0; i < n; i++) {
        if (protect && is_protected[i] != 0) {
            keep[i] = true;
            expected++;
        } else {
            order[n_candidates++] = i;
        }
    }
    qsort(order, (size_t)n_candidates, sizeof(order[0]), compare);
    for (int32_t i = 0; i < n_take && i < n_candidates; i++) {
        keep[order[i]] = true;
        expected++;
    }
    const int32_t count = tria_select_top(kernels, scores, protect ? is_protected : NULL, n - n_candidates,
                                          n, n_take, rows, scratch);
    assert_int_equal(count, expected);
    for (int32_t i = 0; i < count; i++) {
        assert_true(keep[rows[i]]);
        assert_true(i == 0 || rows[i - 1] < rows[i]);
    }
}

static void test_against_sort(void **test_state)
{
    (void)test_state;
    for (int i = 0; i < 2000; i++) {
        const int32_t n = 1 + (int32_t)(bits() % (i % 21 == 0 ? MAX_ROWS : 150));
        for (int32_t r = 0; r < n; r++) {
            scores[r] = random_score(i % 5);
            is_protected[r] = bits() % 4 == 0;
        }
        check(n, (int32_t)(bits() % (uint32_t)(n + 2)), bits() % 2 == 0);
    }
}

/* Scores in ascending or descending order of rows, or alternating: a sample of the rows says little. */
static void test_misleading_samples(void **test_state)
{
    (void)test_state;
    for (int kind = 0; kind < 4; kind++) {
        const int32_t n = MAX_ROWS;
        for (int32_t r = 0; r < n; r++) {
            const float x = (float)r;
            scores[r] = kind == 0   ? x
                        : kind == 1 ? -x
                        : kind == 2 ? (r % 2 == 0 ? x : NAN)
                                    : (r % 19 == 9 ? x : 0.0F);
            is_protected[r] = r % 7 == 0;
        }
        for (int32_t n_take = 1; n_take < n; n_take = 3 * n_take + 1) {
            check(n, n_take, false);
            check(n, n_take, true);
        }
    }
}

static void test_extremes(void **test_state)
{
    (void)test_state;
    for (int32_t r = 0; r < 100; r++) {
        scores[r] = NAN;
        is_protected[r] = 1;
    }
    check(100, 30, false);
    check(100, 30, true);
    check(100, 0, false);
    check(100, 100, false);
    check(1, 0, false);
    for (int32_t r = 0; r < 100; r++) {
        scores[r] = -FLT_MAX;
    }
    scores[50] = -INFINITY;
    check(100, 99, false);
    check(100, 1, false);
}

int main(void)
{
    const int32_t avx512 = TRIA_CPU_AVX2 | TRIA_CPU_AVX512;
    const int32_t masks[] = {
        0, TRIA_CPU_AVX2, avx512, avx512 | TRIA_CPU_VNNI, TRIA_CPU_NEON, TRIA_CPU_NEON | TRIA_CPU_DOT};
    int failed = 0;
    for (size_t m = 0; m < TRIA_ARRAY_LEN(masks); m++) {
        if ((masks[m] & ~tria_cpu_features()) == 0) {
            kernels = tria_cpu_kernels_for(masks[m]);
            const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_against_sort),
                cmocka_unit_test(test_misleading_samples),
                cmocka_unit_test(test_extremes),
            };
            failed += cmocka_run_group_tests_name(tria_cpu_kernels_name(kernels), tests, NULL, NULL);
        }
    }
    return failed;
}
