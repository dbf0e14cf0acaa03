/* picture.c: maps of attention weights: the colour ramp, all heads as an image, one head as text.
 * SPDX-License-Identifier: MIT
 */
#include "cli.h"
#include "font.h"

#include <math.h>
#include <stdlib.h>

/* ---- colour ----------------------------------------------------------------------------------------------------------------------- */

/* Paper white to deep violet by way of yellow, green and blue. Lightness falls evenly in OKLab (Ottosson 2020, https://bottosson.github.io/posts/oklab),
 * so that the order survives grey print and every kind of colour blindness, and hue adds steps for those who see it. */
void picture_colour(double x, uint8_t rgb[3])
{
    x = !(x > 0) ? 0 : x > 1 ? 1 : x;
    const double light = 0.985 - 0.705 * x, hue = (100 + 195 * x) * 3.14159265358979 / 180, chroma = 0.14 * sqrt(x) * (1 - 0.15 * x);
    const double a = chroma * cos(hue), b = chroma * sin(hue);
    const double l = pow(light + 0.3963377774 * a + 0.2158037573 * b, 3), m = pow(light - 0.1055613458 * a - 0.0638541728 * b, 3),
                 s = pow(light - 0.0894841775 * a - 1.2914855480 * b, 3);
    const double linear[3] = {4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
                              -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
                              -0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s};
    for (int i = 0; i < 3; i++) {
        const double u = linear[i] < 0 ? 0 : linear[i] > 1 ? 1 : linear[i];
        rgb[i] = (uint8_t)(255 * (u <= 0.0031308 ? 12.92 * u : 1.055 * pow(u, 1 / 2.4) - 0.055) + 0.5);
    }
}

/* ---- drawing ---------------------------------------------------------------------------------------------------------------------- */

static void fill(cli_image *image, int64_t x, int64_t y, int64_t width, int64_t height, const uint8_t rgb[3])
{
    for (int64_t row = y; row < y + height; row++)
        for (int64_t column = x; column < x + width; column++)
            if (row >= 0 && row < image->height && column >= 0 && column < image->width)
                memcpy(image->rgb + 3 * (row * image->width + column), rgb, 3);
}

static const uint8_t ink[3] = {38, 38, 44}, soft[3] = {110, 110, 120}, frame[3] = {214, 214, 218};

/* Text from (x, y), the top left of its first letter; upright 0: running up the page, (x, y) being the bottom left. */
static void text(cli_image *image, int64_t x, int64_t y, int scale, int upright, const char *words, const uint8_t rgb[3])
{
    for (const char *c = words; *c; c++) {
        const uint8_t *glyph = font[*c >= 32 && *c < 127 ? *c - 32 : '?' - 32];
        if ((*c & 0xC0) == 0x80) continue; /* one mark for each character that is not ASCII */
        for (int row = 0; row < FONT_HEIGHT; row++)
            for (int dot = 0; dot < FONT_WIDTH; dot++) {
                if (!(glyph[row] >> (FONT_WIDTH - 1 - dot) & 1)) continue;
                if (upright)
                    fill(image, x + dot * scale, y + row * scale, scale, scale, rgb);
                else
                    fill(image, x + row * scale, y - (dot + 1) * scale, scale, scale, rgb);
            }
        if (upright)
            x += (FONT_WIDTH + 1) * scale;
        else
            y -= (FONT_WIDTH + 1) * scale;
    }
}

static int64_t text_width(const char *words, int scale)
{
    int64_t letters = 0;
    for (const char *c = words; *c; c++) letters += (*c & 0xC0) != 0x80;
    return letters ? letters * (FONT_WIDTH + 1) * scale - scale : 0;
}

/* ---- all heads -------------------------------------------------------------------------------------------------------------------- */

/*            margin
 *            title
 *   +--------------------+
 *   |       head h       |   a panel: labels left and above, `side` = n * cell
 *   |        | | | |     |
 *   | token [] [] [] []  |
 *   +--------------------+
 *            scale bar          */
typedef struct sheet {
    int64_t n, heads, columns, rows;
    int64_t cell, side, label, panel_width, panel_height, margin, head;
    int     scale; /* pixels of a dot of the font */
    int64_t every; /* tokens from one label to the next */
    float   top;   /* the weight of the darkest colour */
} sheet;

enum { LABEL_LETTERS = 12 };

static void cut_label(char to[3 * LABEL_LETTERS + 1], const char *token)
{
    snprintf(to, 3 * LABEL_LETTERS + 1, "%s", token);
    int letters = 0;
    for (char *c = to; *c; c++)
        if ((*c & 0xC0) != 0x80 && ++letters > LABEL_LETTERS) *c-- = 0;
}

static sheet plan(const float *weights, int64_t heads, int64_t n, char **token)
{
    sheet s = {.n = n, .heads = heads, .margin = 28, .head = 100};
    s.cell = 300 / (n ? n : 1) > 17 ? 17 : 300 / (n ? n : 1) < 2 ? 2 : 300 / n;
    s.scale = s.cell >= 14 ? 2 : 1;
    s.every = (FONT_BASE * s.scale + s.scale + s.cell) / s.cell; /* rounded up */
    if (s.every * s.cell - s.cell >= FONT_BASE * s.scale + s.scale) s.every--;
    if (s.every < 1) s.every = 1;
    s.side = n * s.cell;
    for (int64_t i = 0; i < n; i++) {
        char label[3 * LABEL_LETTERS + 1];
        cut_label(label, token[i]);
        const int64_t width = text_width(label, s.scale);
        if (width > s.label) s.label = width;
    }
    s.columns = 1;
    while (s.columns * s.columns * 3 < heads * 4) s.columns++; /* about 4 to 3 */
    s.rows = (heads + s.columns - 1) / s.columns;
    s.panel_width = s.label + 8 + s.side + 28;
    s.panel_height = 24 + s.label + 8 + s.side + 26;
    for (int64_t i = 0; i < heads * n * n; i++)
        if (weights[i] > s.top) s.top = weights[i];
    return s;
}

static void draw_head(cli_image *image, const sheet *s, int64_t x, int64_t y, int64_t head, const float *weights, char **token)
{
    const int64_t left = x + s->label + 8, top = y + 24 + s->label + 8, gap = s->cell >= 8;
    char          label[3 * LABEL_LETTERS + 1];
    snprintf(label, sizeof label, "head %lld", (long long)head);
    text(image, left, y + 2, 2, 1, label, ink);
    fill(image, left - 1, top - 1, s->side + 2 - gap, s->side + 2 - gap, frame);
    for (int64_t i = 0; i < s->n; i++) {
        for (int64_t j = 0; j < s->n; j++) {
            uint8_t rgb[3];
            picture_colour(s->top > 0 ? weights[i * s->n + j] / s->top : 0, rgb);
            fill(image, left + j * s->cell, top + i * s->cell, s->cell - gap, s->cell - gap, rgb);
        }
        if (i % s->every) continue;
        const int64_t middle = i * s->cell + (s->cell - gap - FONT_BASE * s->scale) / 2;
        cut_label(label, token[i]);
        text(image, left - 6 - text_width(label, s->scale), top + middle, s->scale, 1, label, soft);
        text(image, left + middle, top - 6, s->scale, 0, label, soft);
    }
}

static void draw_scale(cli_image *image, const sheet *s, int64_t x, int64_t y)
{
    char value[16];
    for (int i = 0; i < 240; i++) {
        uint8_t rgb[3];
        picture_colour(i / 239.0, rgb);
        fill(image, x + i, y, 1, 16, rgb);
    }
    fill(image, x - 1, y - 1, 242, 1, frame), fill(image, x - 1, y + 16, 242, 1, frame);
    fill(image, x - 1, y - 1, 1, 18, frame), fill(image, x + 240, y - 1, 1, 18, frame);
    for (int i = 0; i <= 2; i++) {
        snprintf(value, sizeof value, i ? "%.2f" : "%.0f", i * s->top / 2);
        text(image, x + 120 * i - text_width(value, 2) / 2, y + 22, 2, 1, value, soft);
    }
}

int picture_heads(cli_image *image, const float *weights, int64_t heads, int64_t n, char **token, const char *title, const char *said)
{
    const sheet s = plan(weights, heads, n, token);
    const char *under = "row: the query token; column: the key token it reads from; every row sums to one";
    const char *last = "Weights show where values were read, not why a model decided.";
    image->width = 2 * s.margin + s.columns * s.panel_width - 28;
    const char *const lines[] = {title, said, under};
    int64_t           wide = 0;
    for (int i = 0; i < 3; i++)
        if (text_width(lines[i], 2) > wide) wide = text_width(lines[i], 2);
    wide += 2 * s.margin;
    if (image->width < wide) image->width = wide;
    image->height = s.margin + s.head + s.rows * s.panel_height + 60;
    image->rgb = malloc((size_t)(3 * image->width * image->height));
    if (!image->rgb) return 0;
    memset(image->rgb, 255, (size_t)(3 * image->width * image->height));
    text(image, s.margin, s.margin - 4, 2, 1, title, ink);
    text(image, s.margin, s.margin + 22, 2, 1, said, ink);
    text(image, s.margin, s.margin + 48, 2, 1, under, soft);
    for (int64_t h = 0; h < heads; h++)
        draw_head(image, &s, s.margin + h % s.columns * s.panel_width, s.margin + s.head + h / s.columns * s.panel_height, h,
                  weights + h * n * n, token);
    const int64_t bottom = image->height - 64;
    draw_scale(image, &s, image->width - s.margin - 254, bottom);
    if (text_width(last, 2) + 2 * s.margin + 300 < image->width) text(image, s.margin, bottom, 2, 1, last, soft);
    return 1;
}

/* ---- one head as text ------------------------------------------------------------------------------------------------------------- */

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

void picture_terminal(const float *weights, int64_t n, char **token, int colour)
{
    static const char shade[] = " .:-=+*#%@";
    float             top = 0;
    for (int64_t i = 0; i < n * n; i++)
        if (weights[i] > top) top = weights[i];
    printf("%15s", "");
    for (int64_t j = 0; j < n; j++) printf("%3lld", (long long)(j % 100));
    printf("\n");
    for (int64_t i = 0; i < n; i++) {
        printf("  %2lld %-10.10s ", (long long)i, token[i]);
        for (int64_t j = 0; j < n; j++) {
            const double x = top > 0 ? weights[i * n + j] / top : 0;
            uint8_t      rgb[3];
            picture_colour(x, rgb);
            const char c = shade[(int)(x >= 1 ? 9 : 10 * x)];
            if (colour)
                printf("\x1b[48;5;%dm   ", cube(rgb));
            else
                printf(" %c%c", c, c);
        }
        printf("%s\n", colour ? "\x1b[0m" : "|");
    }
    printf("  (%s 0 to %.3f)\n", colour ? "light to dark:" : "shades ' .:-=+*#%@':", top);
}
