/* picture_terminal.c: one map of attention weights as text, in the colours that a terminal has or in ASCII.
 * SPDX-License-Identifier: MIT
 */
#include "cli.h"

#include <math.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

int picture_colours(int asked)
{
    const char *colour = getenv("COLORTERM"), *term = getenv("TERM");
    if (asked > 1) return asked - 1; /* the option's first word is auto */
    if (!out_colour()) return PICTURE_PLAIN;
    if (colour && (strcmp(colour, "truecolor") == 0 || strcmp(colour, "24bit") == 0)) return PICTURE_TRUE;
    return term && strstr(term, "256") ? PICTURE_256 : PICTURE_16;
}

int picture_columns(void)
{
    struct winsize size;
    if (!isatty(STDOUT_FILENO) || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 132;
    return size.ws_col < 40 ? 40 : size.ws_col; /* less shows nothing */
}

/* The nearest colour of the 6 x 6 x 6 cube that terminals number from 16. */
static int cube(const uint8_t rgb[3])
{
    static const int step[6] = {0, 95, 135, 175, 215, 255};
    int              index = 0;
    for (int i = 0; i < 3; i++) {
        int best = 0;
        for (int s = 1; s < 6; s++)
            if (abs(step[s] - rgb[i]) < abs(step[best] - rgb[i])) best = s;
        index = 6 * index + best;
    }
    return 16 + index;
}

/* The background of one cell; of the 16 colours those whose lightness falls like the ramp's: white, yellow, green, cyan, blue, black. */
static void background(double x, int colours)
{
    static const int sixteen[] = {107, 103, 102, 46, 44, 40};
    uint8_t          rgb[3];
    picture_colour(x, rgb);
    if (colours == PICTURE_TRUE)
        printf("\x1b[48;2;%d;%d;%dm", rgb[0], rgb[1], rgb[2]);
    else if (colours == PICTURE_256)
        printf("\x1b[48;5;%dm", cube(rgb));
    else
        printf("\x1b[%dm", isnan(x) ? 41 : sixteen[x >= 1 ? 5 : x > 0 ? (int)(6 * x) : 0]);
}

/* The first 10 characters of a label, and blanks up to there. */
static void label(const char *words)
{
    int letters = 0;
    for (const char *c = words; *c; c++) {
        letters += (*c & 0xC0) != 0x80;
        if (letters > 10) break;
        putchar(*c);
    }
    printf("%*s", letters < 10 ? 10 - letters : 0, "");
}

static void heading(int64_t columns, int width)
{
    printf("%15s", "");
    for (int64_t j = 0; j < columns; j++)
        if (width == 3)
            printf("%3lld", (long long)(j % 100));
        else
            printf("%*s", width, j % 10 ? "" : "|"); /* a mark at every tenth column */
    printf("\n");
}

void picture_terminal(const cli_maps *maps, int64_t panel, int colours)
{
    static const char shade[] = " .:-=+*#%@";
    cli_maps          m = *maps;
    const int64_t     room = picture_columns() - 17;
    const int         width = 3 * m.columns <= room ? 3 : 2 * m.columns <= room ? 2 : 1;
    const float      *cell = m.cell + panel * m.rows * m.columns;
    int64_t           unknown = 0;
    m.top = picture_top(maps);
    heading(m.columns, width);
    for (int64_t i = 0; i < m.rows; i++, cell += m.columns) {
        if (m.named)
            printf("  %2lld ", (long long)(i % 100));
        else
            printf("     ");
        label(m.row_label[i]);
        putchar(' ');
        for (int64_t j = 0; j < m.columns; j++) {
            const double x = picture_level(&m, cell[j]);
            const char   c = isnan(x) ? '?' : shade[x >= 1 ? 9 : x > 0 ? (int)(10 * x) : 0];
            unknown += isnan(x);
            if (colours != PICTURE_PLAIN) background(x, colours);
            for (int n = 0; n < width; n++) putchar(colours == PICTURE_PLAIN && (n || width == 1) ? c : ' ');
        }
        printf("%s\n", colours != PICTURE_PLAIN ? "\x1b[0m" : "|");
    }
    printf("  (%s %s to %.3g)\n", colours != PICTURE_PLAIN ? "light to dark:" : "shades ' .:-=+*#%@':", m.log ? "1/10000 of it" : "0",
           m.top);
    if (unknown) printf("  (%s: NaN, in %lld cells)\n", colours != PICTURE_PLAIN ? "red" : "?", (long long)unknown);
}
