/* report.c: what was measured, as a table for people and as JSON for scripts (tables.py).
 * SPDX-License-Identifier: MIT
 */
#include "bench.h"
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double quantile(const double *values, int count, double at)
{
    double sorted[MOST_ROUNDS], place = at * (count - 1);
    if (count < 1 || isnan(values[0])) return NAN;
    memcpy(sorted, values, (size_t)count * sizeof *values);
    qsort(sorted, (size_t)count, sizeof *sorted, by_size);
    int below = (int)place;
    return below + 1 < count ? sorted[below] + (place - below) * (sorted[below + 1] - sorted[below]) : sorted[count - 1];
}

int result_ratios(const struct result *r, int at, double *speedups, double *times)
{
    const struct contender *ours = &r->contender[0], *c = &r->contender[at];
    int                     count = ours->samples < c->samples ? ours->samples : c->samples;
    for (int i = 0; i < count; i++) {
        times[i] = ours->seconds[i] / c->seconds[i];
        speedups[i] = bench_flop(&r->row) / bench_flop(&c->problem_row) / times[i];
    }
    return count;
}

/* ---- table ------------------------------------------------------------------------------------------------------------------------ */

static void print_amount(const char *label, double value, const char *format)
{
    if (isnan(value) || value < 0) return;
    printf("  %s ", label);
    printf(format, value);
}

static void print_contender(const struct result *r, int at)
{
    const struct contender *c = &r->contender[at];
    double                  speedups[MOST_ROUNDS], times[MOST_ROUNDS], seconds = quantile(c->seconds, c->samples, 0.5);
    double                  flop = bench_flop(&c->problem_row);
    printf("    %-32s %11.3f us  %7.1f GFLOP/s", c->name, seconds * 1e6, flop / seconds * 1e-9);
    print_amount("of FMA", quantile(c->fraction, c->samples, 0.5), "%.3f");
    if (c->burst_high > 0) print_amount("max/max", flop / c->fastest / c->burst_high, "%.3f");
    if (c->reads_high > 0) {
        print_amount("K+V", bench_kv_bytes(&c->problem_row) / seconds * 1e-9, "%.1f GB/s");
        print_amount("of reads", quantile(c->of_reads, c->samples, 0.5), "%.3f");
        print_amount("of roofline", quantile(c->of_roof, c->samples, 0.5), "%.3f");
    }
    if (at) {
        int count = result_ratios(r, at, speedups, times);
        printf("  attn is %.2fx [%.2f..%.2f]", quantile(speedups, count, 0.5), quantile(speedups, count, 0.25),
               quantile(speedups, count, 0.75));
        if (c->variant) printf(", takes %.2f of the time", quantile(times, count, 0.5));
    }
    if (c->work_bytes) print_amount("workspace", (double)c->work_bytes / 1048576, "%.2f MiB");
    print_amount("peak", c->peak_bytes / 1048576, "%.1f MiB");
    print_amount("error", c->worst, "%.1e");
    printf("\n");
}

static void print_row(const struct result *r)
{
    const struct contender *c = &r->contender[0];
    printf("%s  %.3f GFLOP, %d rounds, FMA burst %.0f..%.0f GFLOP/s", r->row.name, bench_flop(&r->row) * 1e-9, r->rounds,
           c->burst_low * 1e-9, c->burst_high * 1e-9);
    if (c->reads_high > 0) printf(", reads %.1f..%.1f GB/s", c->reads_low * 1e-9, c->reads_high * 1e-9);
    printf("\n");
    for (int i = 0; i < r->count; i++)
        if (!r->contender[i].refused) print_contender(r, i);
    int absent = 0;
    for (int i = 0; i < r->count; i++)
        if (r->contender[i].refused) printf("%s%s (%s)", absent++ ? "; " : "    not here: ", r->contender[i].name, r->contender[i].refused);
    if (absent) printf("\n");
    fflush(stdout);
}

/* ---- JSON ------------------------------------------------------------------------------------------------------------------------- */

static json_t     *everything;
static const char *json_path;

static json_t *number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *numbers(const double *values, int count)
{
    json_t *list = json_array();
    for (int i = 0; i < count; i++) json_array_append_new(list, number(values[i]));
    return list;
}

static json_t *contender_json(const struct result *r, int at)
{
    const struct contender *c = &r->contender[at];
    double                  speedups[MOST_ROUNDS], times[MOST_ROUNDS], seconds = quantile(c->seconds, c->samples, 0.5);
    json_t                 *to = json_pack("{s:s, s:b, s:i}", "name", c->name, "variant", c->variant, "threads", c->threads);
    if (c->refused) {
        json_object_set_new(to, "refused", json_string(c->refused));
        return to;
    }
    double flop = bench_flop(&c->problem_row);
    json_object_set_new(to, "rounds", json_integer(c->samples));
    json_object_set_new(to, "seconds", number(seconds));
    json_object_set_new(to, "seconds_each", numbers(c->seconds, c->samples));
    json_object_set_new(to, "flop_per_second", number(flop / seconds));
    json_object_set_new(to, "burst_bits", json_integer(c->burst_bits));
    json_object_set_new(to, "of_burst", number(quantile(c->fraction, c->samples, 0.5)));
    json_object_set_new(to, "of_burst_max_max", number(flop / c->fastest / c->burst_high));
    json_object_set_new(to, "burst_low", number(c->burst_low));
    json_object_set_new(to, "burst_high", number(c->burst_high));
    if (c->reads_high > 0) {
        json_object_set_new(to, "kv_bytes_per_second", number(bench_kv_bytes(&c->problem_row) / seconds));
        json_object_set_new(to, "of_reads", number(quantile(c->of_reads, c->samples, 0.5)));
        json_object_set_new(to, "of_roofline", number(quantile(c->of_roof, c->samples, 0.5)));
        json_object_set_new(to, "reads_low", number(c->reads_low));
        json_object_set_new(to, "reads_high", number(c->reads_high));
    }
    json_object_set_new(to, "work_bytes", json_integer((json_int_t)c->work_bytes));
    json_object_set_new(to, "peak_bytes", c->peak_bytes < 0 ? json_null() : number(c->peak_bytes));
    json_object_set_new(to, "error", number(c->worst));
    if (at && r->contender[0].samples) {
        int count = result_ratios(r, at, speedups, times);
        json_object_set_new(to, "attn_speedup", number(quantile(speedups, count, 0.5)));
        json_object_set_new(to, "attn_speedup_quartiles",
                            json_pack("[o, o]", number(quantile(speedups, count, 0.25)), number(quantile(speedups, count, 0.75))));
        json_object_set_new(to, "attn_time_ratio", number(quantile(times, count, 0.5)));
    }
    return to;
}

static void cpu_name(char *to, size_t bytes)
{
    FILE *file = fopen("/proc/cpuinfo", "r");
    char  line[256];
    snprintf(to, bytes, "not known");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, "model name", 10) && strchr(line, ':')) {
            line[strcspn(line, "\n")] = 0;
            snprintf(to, bytes, "%s", strchr(line, ':') + 2);
        }
    if (file) fclose(file);
}

void report_open(const char *json)
{
    char   cpu[128], date[32];
    time_t now = time(NULL);
    cpu_name(cpu, sizeof cpu);
    strftime(date, sizeof date, "%Y-%m-%d", gmtime(&now));
    json_path = json;
    everything = json_pack("{s:s, s:s, s:s, s:s, s:s, s:[]}", "version", attn_version_text(), "compiler", __VERSION__, "cpu", cpu, "isa",
                           attn_isa_usable(0) ? attn_isa_name(0) : "", "date", date, "rows");
    printf("libattn %s, compiler %s, %s\n", attn_version_text(), __VERSION__, cpu);
    printf("Medians. of FMA: rate over the mean of the bursts before and after; max/max: best rate over best burst; attn is: its rate over "
           "the other's, "
           "round by round [quartiles].\n");
}

void report_row(const struct result *r)
{
    print_row(r);
    json_t *row = json_pack("{s:s, s:s, s:f, s:f, s:i, s:[]}", "row", r->row.name, "group", r->row.group, "flop", bench_flop(&r->row),
                            "kv_bytes", bench_kv_bytes(&r->row), "rounds", r->rounds, "contenders");
    for (int i = 0; i < r->count; i++) json_array_append_new(json_object_get(row, "contenders"), contender_json(r, i));
    json_array_append_new(json_object_get(everything, "rows"), row);
    if (json_path && json_dump_file(everything, json_path, JSON_INDENT(1))) {
        fprintf(stderr, "bench: %s cannot be written\n", json_path);
        exit(1);
    }
}
