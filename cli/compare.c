/* compare.c: two results beside each other: how far apart, where, in how many rows.
 * SPDX-License-Identifier: MIT
 */
#include "cli.h"

#include <math.h>

void compare_tolerance(int32_t dtype, double *absolute, double *relative)
{
    static const double table[][2] = {
        [ATTN_F32] = {2e-6, 1e-5}, [ATTN_F64] = {1e-13, 1e-12}, [ATTN_F16] = {1e-3, 2e-3}, [ATTN_BF16] = {8e-3, 1e-2}};
    *absolute = table[dtype][0];
    *relative = table[dtype][1];
}

static double element(const cli_view *v, const int64_t at[4])
{
    return io_get(&v->array, at[0] * v->stride[0] + at[1] * v->stride[1] + at[2] * v->stride[2] + at[3] * v->stride[3]);
}

/* The next place in C order over size; 0 after the last. Only the first `axes` axes move. */
static int next(const int64_t size[4], int64_t at[4], int axes)
{
    for (int a = axes - 1; a >= 0; a--) {
        if (++at[a] < size[a]) return 1;
        at[a] = 0;
    }
    return 0;
}

double compare_largest(const cli_view *v)
{
    double  largest = 0;
    int64_t at[4] = {0};
    if (v->size[0] * v->size[1] * v->size[2] * v->size[3] == 0) return 0;
    do {
        const double x = fabs(element(v, at));
        if (isfinite(x) && x > largest) largest = x;
    } while (next(v->size, at, 4));
    return largest;
}

/* Adds the element at `at` to d: how far apart, and whether that is too far. */
static void compare_element(double got, double want, const int64_t at[4], double unit, cli_difference *d)
{
    double error = fabs(got - want);
    int    wrong;
    if (isfinite(got) && isfinite(want)) {
        wrong = !(error <= d->absolute * unit + d->relative * fabs(want));
    } else {
        wrong = !(got == want || (isnan(got) && isnan(want)));
        error = wrong ? NAN : 0;
        d->nan_only_got += isnan(got) && !isnan(want);
        d->nan_only_want += isnan(want) && !isnan(got);
        d->infinity_differs += wrong && !isnan(got) && !isnan(want);
    }
    d->wrong += wrong;
    if (!isnan(d->largest) && (isnan(error) || error > d->largest)) {
        d->largest = error, d->got = got, d->want = want;
        memcpy(d->at, at, sizeof d->at);
    }
}

void compare_block(const cli_view *got, const cli_view *want, double unit, const int64_t origin[3], cli_difference *d,
                   void (*wrong_row)(void *to, const cli_difference *row), void *to)
{
    const int64_t *size = got->size, rows = size[0] * size[1] * size[2];
    int64_t        at[4] = {0};
    d->rows += rows;
    for (int64_t row = 0; row < rows; row++, next(size, at, 3)) {
        cli_difference r = {.absolute = d->absolute, .relative = d->relative};
        int64_t        place[4] = {at[0] + origin[0], at[1] + origin[1], at[2] + origin[2], 0};
        memcpy(r.at, place, sizeof place);
        for (at[3] = 0; at[3] < size[3]; at[3]++) {
            place[3] = at[3];
            compare_element(element(got, at), element(want, at), place, unit, &r);
        }
        at[3] = 0;
        d->wrong += r.wrong, d->rows_wrong += r.wrong > 0;
        d->nan_only_got += r.nan_only_got, d->nan_only_want += r.nan_only_want, d->infinity_differs += r.infinity_differs;
        if (!isnan(d->largest) && (isnan(r.largest) || r.largest > d->largest)) {
            d->largest = r.largest, d->got = r.got, d->want = r.want;
            memcpy(d->at, r.at, sizeof d->at);
        }
        if (r.wrong && wrong_row) wrong_row(to, &r);
    }
}

void compare_arrays(const cli_view *got, const cli_view *want, cli_difference *d, void (*wrong_row)(void *to, const cli_difference *row),
                    void *to)
{
    static const int64_t origin[3] = {0};
    *d = (cli_difference){.absolute = d->absolute, .relative = d->relative};
    compare_block(got, want, compare_largest(want), origin, d, wrong_row, to);
}
