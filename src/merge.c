/* merge.c: joins partial results over disjoint keys, element by element, in f64.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "internal.h"

static double read_one(const attn_in *t, int64_t offset)
{
    const char *at = (const char *)t->data + offset * attn_width(t->dtype);
    double      x;
    float       f;
    if (t->dtype == ATTN_F64) {
        memcpy(&x, at, sizeof x);
        return x;
    }
    attn_plan_convert(t->dtype)->load_f32(&f, at, 1, 1);
    return (double)f;
}

/* Rounds once: 16-bit types go through a float that is rounded to odd, which the second rounding cannot tell from the double. */
static void write_one(const attn_out *t, int64_t offset, double x)
{
    char *at = (char *)t->data + offset * attn_width(t->dtype);
    if (t->dtype == ATTN_F64 || t->dtype == ATTN_F32) {
        attn_plan_convert(t->dtype)->store_f64(at, 1, &x, 1);
        return;
    }
    float    f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if (isfinite(x) && (double)f != x) {
        if (isinf(f) || fabs((double)f) > fabs(x)) bits--; /* towards zero */
        bits |= 1;
        memcpy(&f, &bits, sizeof f);
    }
    attn_plan_convert(t->dtype)->store_f32(at, 1, &f, 1);
}

static int64_t at3(const int64_t *stride, int64_t b, int64_t h, int64_t i)
{
    return b * stride[0] + h * stride[1] + i * stride[2];
}

/* Weights first, then sums: parts near the largest number stay in range. */
static void merge_row(const attn_merge_desc *d, int64_t b, int64_t h, int64_t i)
{
    double top = -INFINITY, sum = 0;
    for (int64_t r = 0; r < d->parts; r++) {
        double lse = read_one(&d->part_lse[r], at3(d->part_lse[r].stride, b, h, i));
        if (!(lse <= top)) top = isnan(top) ? top : lse; /* NaN stays */
    }
    for (int64_t r = 0; r < d->parts; r++) {
        double lse = read_one(&d->part_lse[r], at3(d->part_lse[r].stride, b, h, i));
        if (lse != -INFINITY) sum += exp(lse - top);
    }
    for (int64_t c = 0; c < d->value_dim; c++) {
        double out = 0;
        for (int64_t r = 0; r < d->parts; r++) {
            double lse = read_one(&d->part_lse[r], at3(d->part_lse[r].stride, b, h, i));
            if (lse != -INFINITY)
                out += exp(lse - top) / sum * read_one(&d->part_out[r], at3(d->part_out[r].stride, b, h, i) + c * d->part_out[r].stride[3]);
        }
        write_one(&d->out, at3(d->out.stride, b, h, i) + c * d->out.stride[3], out);
    }
    if (d->lse.data) write_one(&d->lse, at3(d->lse.stride, b, h, i), top == -INFINITY ? top : top + log(sum));
}

void attn_merge_run(const attn_merge_desc *d)
{
    if (!d->heads || !d->queries || (!d->value_dim && !d->lse.data)) return; /* nothing to write, however many there are of the others */
    for (int64_t b = 0; b < d->batch; b++)
        for (int64_t h = 0; h < d->heads; h++)
            for (int64_t i = 0; i < d->queries; i++) merge_row(d, b, h, i);
}
