/* half.h: rows of a 16-bit type, over the widen() and narrow() that the file which includes this names.
 * SPDX-License-Identifier: MIT */
static void load_f32(float *to, const void *from, int64_t stride, int64_t n)
{
    const uint16_t *x = from;
    if (stride == 1)
        for (int64_t i = 0; i < n; i++) to[i] = widen(x[i]);
    else
        for (int64_t i = 0; i < n; i++) to[i] = widen(x[i * stride]);
}

static void store_f32(void *to, int64_t stride, const float *from, int64_t n)
{
    uint16_t *x = to;
    if (stride == 1)
        for (int64_t i = 0; i < n; i++) x[i] = narrow(from[i]);
    else
        for (int64_t i = 0; i < n; i++) x[i * stride] = narrow(from[i]);
}
