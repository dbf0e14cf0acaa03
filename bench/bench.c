/* bench.c: how fast attn_run is beside the machine's limit and beside others, for the rows of shapes.txt.
 * SPDX-License-Identifier: MIT
 *
 * usage: attn_bench [options]; --help lists them. Exit status 1 when a result of attn's own was wrong. docs/performance.md says how it measures.
 */
#define _GNU_SOURCE
#include "bench.h"
#include <getopt.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] = "usage: attn_bench [options]\n"
                            "  --list            names the rows and leaves\n"
                            "  --only PATTERN    only rows whose name contains PATTERN, or matches it where it has one of * ? [\n"
                            "  --threads N       N threads instead of those of the table\n"
                            "  --seconds S       about S seconds for each row (default 4), but at least 5 rounds\n"
                            "  --rounds N        N rounds instead, at most 64\n"
                            "  --isa NAME        attn with this instruction set too; may be given several times\n"
                            "  --quick           the small rows `quick`, 2 rounds: shows that the bench works, measures nothing\n"
                            "  --json FILE       writes the results to FILE as well\n"
                            "  --table FILE      the table of shapes (default bench/shapes.txt)\n";

static double positive(const char *text, const char *option, double most)
{
    char  *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value > 0 && value <= most)) {
        fprintf(stderr, "bench: %s is %s, which is not a number above 0 and up to %g\n", option, text, most);
        exit(2);
    }
    return value;
}

static struct options parse(int argc, char **argv)
{
    static const struct option known[] = {{"list", 0, NULL, 'l'},    {"only", 1, NULL, 'o'},   {"threads", 1, NULL, 't'},
                                          {"seconds", 1, NULL, 's'}, {"rounds", 1, NULL, 'r'}, {"isa", 1, NULL, 'i'},
                                          {"quick", 0, NULL, 'q'},   {"json", 1, NULL, 'j'},   {"table", 1, NULL, 'f'},
                                          {"help", 0, NULL, 'h'},    {NULL, 0, NULL, 0}};
    struct options             o = {.table = "bench/shapes.txt", .seconds = 4, .window = 0.02};
    for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) switch (c) {
        case 'l':
            o.list = 1;
            break;
        case 'o':
            o.only = optarg;
            break;
        case 't':
            o.threads = (int)positive(optarg, "--threads", 1024);
            break;
        case 's':
            o.seconds = positive(optarg, "--seconds", 1e6);
            break;
        case 'r':
            o.rounds = (int)positive(optarg, "--rounds", MOST_ROUNDS);
            break;
        case 'q':
            o.quick = 1, o.window = 0.002;
            break;
        case 'j':
            o.json = optarg;
            break;
        case 'f':
            o.table = optarg;
            break;
        case 'h':
            fputs(usage, stdout);
            exit(0);
        case 'i':
            if (o.isas < (int)(sizeof o.isa / sizeof *o.isa)) {
                o.isa[o.isas++] = optarg;
                break;
            } /* fall through */
        default:
            fputs(usage, stderr);
            exit(2);
        }
    if (optind < argc) fputs(usage, stderr), exit(2);
    return o;
}

/* The rows that the options ask for; with --threads each shape once. */
static int wanted(const struct options *o, struct row *row, const struct row *before)
{
    if (o->quick != !strcmp(row->group, "quick")) return 0;
    if (o->threads) {
        row->threads = o->threads;
        row_rename(row);
        if (before && !strcmp(row->name, before->name)) return 0;
    }
    return !o->only || bench_matches(row->name, o->only);
}

int main(int argc, char **argv)
{
    /* OpenBLAS reads its override before main; it must choose its kernels itself to be a yardstick. */
    if (getenv("OPENBLAS_CORETYPE")) {
        unsetenv("OPENBLAS_CORETYPE");
        execv("/proc/self/exe", argv);
    }
    struct options o = parse(argc, argv);
    struct row    *rows;
    int            count = bench_rows(o.table, &rows), ran = 0, wrong = 0;
    /* Buffers stay with the process: others would pay for fresh pages at each call. */
    mallopt(M_MMAP_THRESHOLD, 1 << 30), mallopt(M_TRIM_THRESHOLD, 1 << 30);
    if (!o.list) report_open(o.json);
    for (int i = 0; i < count; i++) {
        if (!wanted(&o, &rows[i], i ? &rows[i - 1] : NULL)) continue;
        ran++;
        if (o.list) {
            puts(rows[i].name);
            continue;
        }
        struct result *r = measure_row(&rows[i], &o);
        report_row(r);
        for (int c = 0; c < r->count; c++) wrong |= r->contender[c].refused && !strncmp(r->contender[c].name, "attn", 4);
        free(r);
    }
    free(rows);
    if (!ran) fputs("bench: no row matches\n", stderr);
    return ran ? wrong : 2;
}
