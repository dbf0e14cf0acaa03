/* support.c: seeded numbers, element types, guarded memory and views for the tests.
 * SPDX-License-Identifier: MIT
 */
#include "support.h"

#include <assert.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* ---- seeds and random numbers ------------------------------------------------------------------------------------------------------ */

uint64_t test_seed(void)
{
    static uint64_t seed;
    static int      known;
    if (!known) {
        const char *given = getenv("ATTN_SEED");
        seed = given && *given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL) ^ (uint64_t)getpid() << 20;
        known = 1;
        fprintf(stderr, "ATTN_SEED=%" PRIu64 "\n", seed);
    }
    return seed;
}

int64_t test_count(int64_t full)
{
    const char *given = getenv("ATTN_TEST_SCALE");
    double      scaled = (double)full * (given && *given ? strtod(given, NULL) : 1.0);
    return scaled < 1 ? 1 : (int64_t)scaled;
}

int test_case_wanted(int64_t at)
{
    const char *only = getenv("ATTN_CASE");
    return !only || !*only || strtoll(only, NULL, 0) == at;
}

/* splitmix64 (Steele, Lea, Flood 2014): any state is a good state, so streams may start from a hash. */
uint64_t rng_bits(rng *r)
{
    uint64_t z = r->state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

rng rng_make(const char *test, int64_t at)
{
    rng r = {test_seed()};
    for (; *test; test++) r.state = rng_bits(&r) ^ (unsigned char)*test;
    r.state = rng_bits(&r) ^ (uint64_t)at;
    return r;
}

int64_t rng_range(rng *r, int64_t low, int64_t high)
{
    return low + (int64_t)(rng_bits(r) % ((uint64_t)(high - low) + 1));
}

int rng_percent(rng *r, int percent)
{
    return rng_range(r, 0, 99) < percent;
}

double rng_unit(rng *r)
{
    return (double)(rng_bits(r) >> 11) * 0x1p-53;
}

double rng_normal(rng *r)
{
    double u = rng_unit(r), v = rng_unit(r);
    return sqrt(-2 * log(1 - u)) * cos(6.283185307179586 * v);
}

int64_t rng_pick(rng *r, const int64_t *from, size_t count)
{
    return from[rng_range(r, 0, (int64_t)count - 1)];
}

/* ---- element types ----------------------------------------------------------------------------------------------------------------- */

double half_to_double(uint16_t bits)
{
    int    exponent = bits >> 10 & 31, fraction = bits & 1023;
    double size = exponent == 31 ? (fraction ? NAN : INFINITY) : exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return bits >> 15 ? -size : size;
}

/* rint() is exact in the target's own unit: the value is scaled so that one unit in its last place is 1. */
static double round_to(double value, int digits, int lowest)
{
    int exponent;
    frexp(value, &exponent);
    int unit = exponent - digits > lowest ? exponent - digits : lowest;
    return ldexp(rint(ldexp(value, -unit)), unit);
}

uint16_t half_from_double(double value)
{
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    if (isnan(value)) return sign | 0x7E00;
    double size = isinf(value) ? INFINITY : fabs(round_to(value, 11, -24));
    if (size > 65504) return sign | 0x7C00;
    int exponent;
    frexp(size, &exponent);
    if (size < 0x1p-14) return sign | (uint16_t)ldexp(size, 24);
    return sign | (uint16_t)((exponent + 14) << 10 | ((int)ldexp(size, 11 - exponent) & 1023));
}

double brain_to_double(uint16_t bits)
{
    uint32_t word = (uint32_t)bits << 16;
    float    value;
    memcpy(&value, &word, sizeof value);
    return value;
}

uint16_t brain_from_double(double value)
{
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    if (isnan(value)) return sign | 0x7FC0;
    double size = isinf(value) ? INFINITY : fabs(round_to(value, 8, -133));
    if (size > element_max(ATTN_BF16)) return sign | 0x7F80;
    float    exact = (float)size;
    uint32_t word;
    memcpy(&word, &exact, sizeof word);
    return sign | (uint16_t)(word >> 16);
}

size_t element_bytes(int32_t dtype)
{
    static const size_t bytes[] = {0, 4, 8, 2, 2, 1, 8};
    return bytes[dtype];
}

double element_max(int32_t dtype)
{
    return dtype == ATTN_F64 ? DBL_MAX : dtype == ATTN_F32 ? FLT_MAX : dtype == ATTN_F16 ? 65504 : 0x1.FEp127;
}

double element_get(const void *data, int32_t dtype, int64_t at)
{
    const char *from = (const char *)data + at * (int64_t)element_bytes(dtype);
    float       single;
    double      wide;
    uint16_t    bits;
    switch (dtype) {
    case ATTN_F32:
        memcpy(&single, from, sizeof single);
        return single;
    case ATTN_F64:
        memcpy(&wide, from, sizeof wide);
        return wide;
    case ATTN_F16:
        memcpy(&bits, from, sizeof bits);
        return half_to_double(bits);
    case ATTN_BF16:
        memcpy(&bits, from, sizeof bits);
        return brain_to_double(bits);
    default:
        return *(const unsigned char *)from;
    }
}

void element_set(void *data, int32_t dtype, int64_t at, double value)
{
    char    *to = (char *)data + at * (int64_t)element_bytes(dtype);
    float    single;
    uint16_t bits;
    switch (dtype) {
    case ATTN_F32:
        single = (float)value, memcpy(to, &single, sizeof single);
        break;
    case ATTN_F64:
        memcpy(to, &value, sizeof value);
        break;
    case ATTN_F16:
        bits = half_from_double(value), memcpy(to, &bits, sizeof bits);
        break;
    case ATTN_BF16:
        bits = brain_from_double(value), memcpy(to, &bits, sizeof bits);
        break;
    default:
        *(unsigned char *)to = (unsigned char)value;
        break;
    }
}

/* ---- guarded memory ---------------------------------------------------------------------------------------------------------------- */

/*     | no access | fill .. | bytes (flush above) | no access |      or      | no access | bytes (flush below) | .. fill | no access |     */
void guarded_make(guarded *g, size_t size, int side, unsigned char fill)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (size + page - 1) / page * page;
    memset(g, 0, sizeof *g);
    g->size = size;
    g->fill = fill;
    if (side == GUARD_HEAP) {
        g->bytes = malloc(size ? size : 1);
        assert(g->bytes);
        memset(g->bytes, fill, size);
        return;
    }
    g->map_bytes = room + 2 * page;
    g->map = mmap(NULL, g->map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g->map == MAP_FAILED || (room && mprotect(g->map + page, room, PROT_READ | PROT_WRITE))) {
        perror("guarded memory");
        exit(70);
    }
    memset(g->map + page, fill, room);
    g->bytes = g->map + page + (side == GUARD_ABOVE ? room - size : 0);
}

void guarded_free(guarded *g)
{
    if (g->map)
        munmap(g->map, g->map_bytes);
    else
        free(g->bytes);
    memset(g, 0, sizeof *g);
}

const char *guarded_broken(const guarded *g)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (!g->map) return NULL; /* the address sanitizer looks after those */
    for (const unsigned char *at = g->map + page; at < g->bytes; at++)
        if (*at != g->fill) return "below";
    for (const unsigned char *at = g->bytes + g->size; at < g->map + g->map_bytes - page; at++)
        if (*at != g->fill) return "above";
    return NULL;
}

/* ---- views ------------------------------------------------------------------------------------------------------------------------- */

static void strides_strange(view *w, rng *r, const int broadcast[4])
{
    static const int usual[4][4] = {{0, 1, 2, 3}, {0, 2, 1, 3}, {2, 0, 1, 3}, {1, 0, 3, 2}};
    int              order[4];
    memcpy(order, usual[rng_range(r, 0, 3)], sizeof order);
    if (rng_percent(r, 30))
        for (int a = 3; a > 0; a--) {
            int other = (int)rng_range(r, 0, a), swap = order[a];
            order[a] = order[other], order[other] = swap;
        }
    int64_t step = rng_percent(r, 70) ? 1 : rng_range(r, 2, 3);
    for (int at = 3; at >= 0; at--) {
        int a = order[at];
        if (broadcast[a]) continue;
        w->stride[a] = step;
        if (!w->output && rng_percent(r, 5))
            w->stride[a] = 0;
        else if (!w->output && rng_percent(r, 4))
            w->stride[a] = rng_range(r, 1, 9);
        else
            step *= w->shape[a] ? w->shape[a] : 1;
        if (!w->output && rng_percent(r, 15)) w->stride[a] = -w->stride[a];
        if (rng_percent(r, 25)) step += rng_range(r, 1, 5);
        if (w->shape[a] == 1 && rng_percent(r, 20)) w->stride[a] = INT64_C(1) << rng_range(r, 0, 62); /* such a stride is never stepped */
    }
}

static void strides_plain(view *w, const int broadcast[4])
{
    int64_t step = 1;
    for (int a = 3; a >= 0; a--) {
        if (broadcast[a]) continue;
        w->stride[a] = step;
        step *= w->shape[a];
    }
}

void view_make(view *w, rng *r, int32_t dtype, const int64_t shape[4], const int broadcast[4], int style, int output)
{
    int64_t low = 0, high = 0;
    memset(w, 0, sizeof *w);
    memcpy(w->shape, shape, sizeof w->shape);
    w->dtype = dtype;
    w->output = output;
    if (style == VIEW_PLAIN)
        strides_plain(w, broadcast);
    else
        strides_strange(w, r, broadcast);
    for (int a = 0; a < 4; a++) {
        int64_t reach = shape[a] > 1 ? (shape[a] - 1) * w->stride[a] : 0;
        *(reach < 0 ? &low : &high) += reach;
    }
    int empty = !shape[0] || !shape[1] || !shape[2] || !shape[3];
    w->origin = empty ? 0 : -low;
    guarded_make(&w->memory, empty ? 0 : (size_t)(high - low + 1) * element_bytes(dtype), (int)rng_range(r, 0, 2), output ? 0xA5 : 0xFF);
}

void view_free(view *w)
{
    guarded_free(&w->memory);
}

static int64_t place(const view *w, int64_t b, int64_t h, int64_t i, int64_t c)
{
    const int64_t at[4] = {b, h, i, c};
    int64_t       sum = w->origin;
    for (int a = 0; a < 4; a++)
        if (at[a]) sum += at[a] * w->stride[a];
    return sum;
}

double view_get(const view *w, int64_t b, int64_t h, int64_t i, int64_t c)
{
    return element_get(w->memory.bytes, w->dtype, place(w, b, h, i, c));
}

void view_set(view *w, int64_t b, int64_t h, int64_t i, int64_t c, double value)
{
    element_set(w->memory.bytes, w->dtype, place(w, b, h, i, c), value);
}

attn_in view_in(const view *w)
{
    attn_in t = attn_in_strided(w->memory.bytes + w->origin * (int64_t)element_bytes(w->dtype), w->dtype, w->stride);
    return t;
}

attn_out view_out(const view *w)
{
    return attn_out_strided(w->memory.bytes + w->origin * (int64_t)element_bytes(w->dtype), w->dtype, w->stride);
}

void view_refill(view *w)
{
    memset(w->memory.bytes, w->memory.fill, w->memory.size);
}

int view_touched(const view *w)
{
    for (size_t at = 0; at < w->memory.size; at++)
        if (w->memory.bytes[at] != w->memory.fill) return 1;
    return guarded_broken(&w->memory) != NULL;
}

const char *view_broken(const view *w)
{
    const char *side = guarded_broken(&w->memory);
    if (side || !w->memory.size) return side;
    size_t         bytes = element_bytes(w->dtype);
    unsigned char *ours = calloc(w->memory.size / bytes, 1);
    assert(ours);
    for (int64_t b = 0; b < w->shape[0]; b++)
        for (int64_t h = 0; h < w->shape[1]; h++)
            for (int64_t i = 0; i < w->shape[2]; i++)
                for (int64_t c = 0; c < w->shape[3]; c++) ours[place(w, b, h, i, c)] = 1;
    for (size_t at = 0; at < w->memory.size; at++)
        if (!ours[at / bytes] && w->memory.bytes[at] != w->memory.fill) side = "between";
    free(ours);
    return side;
}
