/* test_csv.c: .csv files: one matrix whatever separates its numbers, the same in every locale; what is ambiguous is refused.
 * SPDX-License-Identifier: MIT
 */
#include "io_check.h"

#include <locale.h>
#include <math.h>

static int32_t parse(const char *text, size_t size, io_array *array, io_error *error)
{
    bytes b = {0};
    put(&b, text, size);
    put(&b, "", 1);
    io_clear(error);
    int32_t status = io_csv_parse((const char *)b.at, size, "t.csv", array, error);
    free(b.at);
    return status;
}

static void expect_matrix(const char *text, int64_t rows, int64_t columns, const double *values)
{
    io_array a;
    io_error error;
    expect_good(parse(text, strlen(text), &a, &error), &error);
    assert_true(a.dtype == IO_F64 && a.rank == 2 && a.shape[0] == rows && a.shape[1] == columns);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) {
            double want = values[i * columns + j], got = at(&a, i, j, 0);
            assert_true(isnan(want) ? isnan(got) : got == want);
        }
    io_free(&a);
}

static void refuse(const char *text, const char *sentence)
{
    io_array a;
    io_error error;
    char     want[256];
    snprintf(want, sizeof want, "t.csv: %s", sentence);
    expect_refusal(parse(text, strlen(text), &a, &error), &a, &error, IO_E_READ, want);
}

static void reads_every_separator(void **state)
{
    static const char *const texts[] = {
        "1,2\n3,4\n",
        "1,2\n3,4",
        "1;2\r\n3;4\r\n",
        "1 2\n3 4\n",
        "1\t2\r3 \t 4\r",
        "  1 ,2 \n\n3\t, 4  \n",
        "\xef\xbb\xbf\x31;2\n3;4\n",
        "# a title, with words\n1,2 # first\n   # nothing\n\n3,4#last",
        "\n\r\n \t \n1 2\n\n\n3 4\n\n",
        "+1,2e0\n30e-1,0x4\n",
    };
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) expect_matrix(texts[i], 2, 2, (const double[]){1, 2, 3, 4});
    expect_matrix("5", 1, 1, (const double[]){5});
    expect_matrix("5\n6\n7\n", 3, 1, (const double[]){5, 6, 7});
}

static void reads_every_number(void **state)
{
    (void)state;
    expect_matrix("nan,inf,-inf,NaN,Infinity\n-0.1,1e300,4.9e-324,.5,5.", 2, 5,
                  (const double[]){NAN, INFINITY, -INFINITY, NAN, INFINITY, -0.1, 1e300, 4.9e-324, 0.5, 5});
    expect_matrix("1e-999", 1, 1, (const double[]){0});
}

static void refuses_what_is_no_matrix(void **state)
{
    (void)state;
    refuse("", "holds no numbers");
    refuse("\n# 1 2\n", "holds no numbers");
    refuse("1,2\n\n3\n", "line 3 has 1 numbers, the lines before it 2");
    refuse("1,2\r\n3,4,5\r\n", "line 2 has 3 numbers, the lines before it 2");
    refuse("a,b\n1,2\n", "line 1: 'a' is not a number");
    refuse("1,2\n3,\"4\"\n", "line 2: '\"4\"' is not a number");
    refuse("1,2x\n", "line 1: '2x' is not a number");
    refuse("1,,2\n", "line 1: '' is not a number");
    refuse(",1\n", "line 1: '' is not a number");
    refuse("1,2,\n", "line 1 ends with a separator");
    refuse("1e999\n", "line 1: '1e999' does not fit f64");
    refuse("0x\n", "line 1: '0x' is not a number");
    refuse("1-2\n", "line 1: '1-2' is not a number");
    refuse("\x1b[2J\n", "line 1: '?[2J' is not a number");
    refuse("01234567890123456789012345678901234567890123456789x", "line 1: '0123456789012345678901234567890123456789' is not a number");
}

/* "1,5;2,5" is two numbers to half of the world. */
static void refuses_two_separators(void **state)
{
    const char *sentence = "line 1 mixes commas, semicolons and blanks as separators (decimal commas are not handled)";
    (void)state;
    refuse("1,5;2,5\n", sentence);
    refuse("1;2,5\n", sentence);
    refuse("1,5 2,5\n", sentence);
    refuse("1 2,5\n", sentence);
    refuse("1,5\n2;5\n", "line 2 mixes commas, semicolons and blanks as separators (decimal commas are not handled)");
    refuse("1,5\n2 5\n", "line 2 mixes commas, semicolons and blanks as separators (decimal commas are not handled)");
}

static void refuses_zero_bytes(void **state)
{
    io_array a;
    io_error error;
    (void)state;
    expect_refusal(parse("1,\0", 3, &a, &error), &a, &error, IO_E_READ, "t.csv: line 1: '' is not a number");
    assert_int_equal(parse("1\0,2\n", 5, &a, &error), IO_E_READ);
    assert_int_equal(parse("\0", 1, &a, &error), IO_E_READ);
}

static void reads_many(void **state)
{
    enum { ROWS = 3000, COLUMNS = 7 };
    char    *text = malloc(ROWS * COLUMNS * 8);
    size_t   n = 0;
    io_array a;
    io_error error;
    (void)state;
    assert_non_null(text);
    for (int i = 0; i < ROWS * COLUMNS; i++) n += (size_t)sprintf(text + n, "%d%c", i, i % COLUMNS == COLUMNS - 1 ? '\n' : ',');
    expect_good(parse(text, n, &a, &error), &error);
    assert_true(a.shape[0] == ROWS && a.shape[1] == COLUMNS);
    for (int i = 0; i < ROWS * COLUMNS; i++) assert_true(io_get(&a, i) == i);
    io_free(&a);
    free(text);
}

/* Where no locale with a decimal comma is installed, one is made, if the system has its sources. */
static int decimal_comma(void)
{
    char command[700];
    if (setlocale(LC_ALL, "de_DE.UTF-8")) return 1;
    snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 >%s/log 2>&1", folder, folder);
    if (system(command) != 0) return 0;
    setenv("LOCPATH", folder, 1);
    return setlocale(LC_ALL, "de_DE.UTF-8") != NULL;
}

static void is_the_same_in_every_locale(void **state)
{
    io_array a;
    io_error error;
    char     command[400], *text = NULL;
    size_t   size = 0;
    (void)state;
    if (!decimal_comma()) {
        fputs("skipped: no locale with a decimal comma, and none can be made\n", stderr);
        skip();
    }
    assert_string_equal(localeconv()->decimal_point, ",");
    expect_matrix("1.5,2.25\n", 1, 2, (const double[]){1.5, 2.25});
    expect_good(parse("1.5 2.25", 8, &a, &error), &error);
    FILE *file = open_memstream(&text, &size);
    assert_int_equal(io_csv_write(file, &a, "t.csv", &error), IO_OK);
    fclose(file);
    assert_string_equal(text, "1.5,2.25\n");
    assert_string_equal(localeconv()->decimal_point, ","); /* the caller's is back */
    free(text);
    io_free(&a);
    setlocale(LC_ALL, "C");
    snprintf(command, sizeof command, "rm -rf %s/de_DE.UTF-8", folder);
    assert_int_equal(system(command), 0);
}

static void reads_files(void **state)
{
    io_array a;
    io_error error;
    char     want[700];
    (void)state;
    save(in_folder("a.csv"), "1,2\n3,4\n", 8);
    expect_good(io_read(in_folder("a.csv"), &a, &error), &error);
    assert_true(a.shape[0] == 2 && at(&a, 1, 0, 0) == 3);
    io_free(&a);
    save(in_folder("b.csv"), "", 0);
    snprintf(want, sizeof want, "%s: holds no numbers", in_folder("b.csv"));
    expect_refusal(io_read(in_folder("b.csv"), &a, &error), &a, &error, IO_E_READ, want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_every_separator),       cmocka_unit_test(reads_every_number), cmocka_unit_test(refuses_what_is_no_matrix),
        cmocka_unit_test(refuses_two_separators),      cmocka_unit_test(refuses_zero_bytes), cmocka_unit_test(reads_many),
        cmocka_unit_test(is_the_same_in_every_locale), cmocka_unit_test(reads_files),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
