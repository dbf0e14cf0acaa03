/* examples.c: calls the examples of attn.h and compares them with the formula, in double.
 * SPDX-License-Identifier: MIT
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>

int decode(int64_t heads, int64_t kv_heads, int64_t dim, int64_t capacity, int64_t used, const float *q, const float *k, const float *v,
           float *out);
int encode(int64_t batch, int64_t tokens, int64_t heads, int64_t dim, const int64_t *length, const float *q, const float *k, const float *v,
           float *out);

int look(int64_t heads, int64_t tokens, int64_t dim, const float *q, const float *k, int64_t head);

int train(int64_t batch, int64_t heads, int64_t n, int64_t dim, const float *q, const float *k, const float *v, float *out,
          const float *d_out, float *dq, float *dk, float *dv);

enum { HEADS = 4, GROUPS = 2, DIM = 5, CAPACITY = 9, USED = 6, BATCH = 2, TOKENS = 4 };

static uint32_t state = 1;

static void fill(float *to, int count)
{
    for (int i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        to[i] = (float)(state >> 8) / 8388608.0f - 1.0f;
    }
}

/* One row: out[c] over `keys` keys whose rows are `step` floats apart. */
static int row_is_right(const char *what, const float *q, const float *k, const float *v, int keys, int step, const float *got)
{
    double top = -INFINITY, sum = 0, want[DIM] = {0}, score[CAPACITY];
    for (int j = 0; j < keys; j++) {
        score[j] = 0;
        for (int c = 0; c < DIM; c++) score[j] += (double)q[c] * k[j * step + c] / sqrt(DIM);
        top = fmax(top, score[j]);
    }
    for (int j = 0; j < keys; j++) {
        double p = exp(score[j] - top);
        sum += p;
        for (int c = 0; c < DIM; c++) want[c] += p * v[j * step + c];
    }
    for (int c = 0; c < DIM; c++) {
        double w = keys ? want[c] / sum : 0;
        if (!(fabs(got[c] - w) <= 1e-5)) {
            printf("%s: got %.9g, want %.9g\n", what, got[c], w);
            return 0;
        }
    }
    return 1;
}

/* The example's dv[0, 0, 0, 0], against the difference of two of its runs. */
static int gradient_is_right(float *q, float *k, float *v)
{
    enum { COUNT = HEADS * TOKENS * DIM };
    static float d_out[COUNT], out[COUNT], moved[COUNT], dq[COUNT], dk[COUNT], dv[COUNT], other[3][COUNT];
    double       sum = 0;
    fill(d_out, COUNT);
    if (train(1, HEADS, TOKENS, DIM, q, k, v, out, d_out, dq, dk, dv) != 0) return 0;
    v[0] += 1;
    if (train(1, HEADS, TOKENS, DIM, q, k, v, moved, d_out, other[0], other[1], other[2]) != 0) return 0;
    for (int i = 0; i < COUNT; i++) sum += ((double)moved[i] - (double)out[i]) * (double)d_out[i];
    if (fabs(sum - dv[0]) <= 1e-5) return 1; /* out is linear in v */
    printf("gradients: got %.9g, want %.9g\n", dv[0], sum);
    return 0;
}

int main(void)
{
    static float q[BATCH * TOKENS * HEADS * DIM], k[GROUPS * CAPACITY * DIM * 2], v[GROUPS * CAPACITY * DIM * 2],
        out[BATCH * TOKENS * HEADS * DIM];
    int ok = 1;
    fill(q, HEADS * DIM);
    fill(k, GROUPS * CAPACITY * DIM);
    fill(v, GROUPS * CAPACITY * DIM);
    for (int g = 0; g < GROUPS; g++)
        for (int e = USED * DIM; e < CAPACITY * DIM; e++) k[g * CAPACITY * DIM + e] = v[g * CAPACITY * DIM + e] = NAN;
    if (decode(HEADS, GROUPS, DIM, CAPACITY, USED, q, k, v, out) != 0) return 1;
    for (int h = 0; h < HEADS; h++) {
        int at = h / (HEADS / GROUPS) * CAPACITY * DIM;
        ok &= row_is_right("decode", q + h * DIM, k + at, v + at, USED, DIM, out + h * DIM);
    }

    const int64_t length[BATCH] = {3, 4};
    fill(q, BATCH * TOKENS * HEADS * DIM);
    fill(k, BATCH * TOKENS * HEADS * DIM);
    fill(v, BATCH * TOKENS * HEADS * DIM);
    if (encode(BATCH, TOKENS, HEADS, DIM, length, q, k, v, out) != 0) return 1;
    for (int b = 0; b < BATCH; b++)
        for (int i = 0; i < TOKENS; i++)
            for (int h = 0; h < HEADS; h++) {
                int head = b * TOKENS * HEADS * DIM + h * DIM, at = head + i * HEADS * DIM;
                ok &= row_is_right("encode", q + at, k + head, v + head, i < length[b] ? (int)length[b] : 0, HEADS * DIM, out + at);
            }
    ok &= gradient_is_right(q, k, v);
    puts(ok ? "the examples of attn.h agree with the formula" : "the examples of attn.h are wrong");
    /* the first worked row of the lesson, as the second head's last position: examples.sh looks at what it prints */
    const float one[8] = {0, 0, 0, 0, 0, 0, 1, 0}, two[8] = {0, 0, 0, 0, 1, 0, 0, 1};
    if (look(2, 2, 2, one, two, 1)) return 1;
    return !ok;
}
