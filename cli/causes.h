/* causes.h: the known ways to go wrong with attention, and how one is tried on rows of somebody else's result.
 * SPDX-License-Identifier: MIT
 */
#ifndef ATTN_CLI_CAUSES_H
#define ATTN_CLI_CAUSES_H

#include "explain.h"

/* What the other side may do that no option says. */
enum {
    TWIST_TILED = 1,       /* query head h reads key head h % kv_heads */
    TWIST_INVERTED = 2,    /* the mask's true means the other thing */
    TWIST_CAP_LAST = 4,    /* softcap after the masks: -inf becomes -cap, and is seen */
    TWIST_CAP_BIAS = 8,    /* softcap after bias and ALiBi, what is hidden stays so */
    TWIST_SCALE_BIAS = 16, /* the bias is scaled too */
    TWIST_ALIBI = 32,      /* ALiBi with the other sign */
    TWIST_ZERO_SCORE = 64, /* what is hidden gets the score 0 and is seen */
    TWIST_LATE = 128,      /* softmax over all keys, then hidden weights become 0 */
    TWIST_MEAN = 256,      /* a row that sees nothing: the mean of all values */
    TWIST_MEAN_USED = 512, /* ... of the keys in use */
    TWIST_NAN = 1024,      /* ... NaN */
    TWIST_SINK = 2048,     /* one more term exp(0) in the sum */
    TWIST_EXP2 = 4096,     /* 2^x in place of e^x */
    TWIST_OVER_QUERIES = 8192,
    TWIST_OVER_HEADS = 16384,
    TWIST_LSE_2 = 32768,      /* lse in base 2 */
    TWIST_LSE_SUM = 65536,    /* ln of the sum without the maximum */
    TWIST_LSE_PLUS = 131072,  /* lse of a row that sees nothing is +inf */
    TWIST_LSE_ALIBI = 262144, /* ALiBi as slope * key: the same weights, another lse */
    TWIST_F16 = 524288,       /* sums in 16 bits */
    TWIST_BF16 = 1048576,
    TWIST_STAGE_SCALED = 2097152, /* the "weights" are scores of a step before */
    TWIST_STAGE_CAPPED = 4194304,
    TWIST_STAGE_BIASED = 8388608
};

/* One other reading of the same call: its descriptor, twists, and the other side's results as it sees them. */
typedef struct attempt {
    attn_desc desc;
    cli_view  out, lse, weights; /* array.data NULL: not given */
    unsigned  twist;
    int       swapped; /* other rows than the call's: rows are chosen anew */
    int64_t  *counts;  /* room for a list of its own, batch entries */
} attempt;

typedef struct cause {
    const char *name, *said; /* one word; a sentence */
    unsigned    twist;
    int (*change)(attempt *t); /* 0 where it does not apply */
} cause;

extern const cause causes[]; /* the likelier first; ended by a name of NULL */

/* What is accepted: |got - want| <= absolute + relative * |want|, absolute in the unit of each result. */
typedef struct bound {
    double out, lse, weights, relative;
} bound;

enum { SAMPLE = 48 };

typedef struct sample {
    int64_t at[SAMPLE][3]; /* batch, head, query */
    int     count;
} sample;

/* 1 when the other side's rows are what this reading gives; -1 with a sentence said when there is no memory. */
int attempt_fits(const attempt *t, const sample *rows, const bound *accepted);

#endif
