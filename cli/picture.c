/* picture.c: maps of attention weights: the colour ramp, and all heads as an image of pixels or of shapes.
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
    if (isnan(x)) { /* off the ramp: a fault must show */
        memcpy(rgb, (uint8_t[3]){208, 0, 0}, 3);
        return;
    }
    x = x < 0 ? 0 : x > 1 ? 1 : x;
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

/* ---- values to colours -------------------------------------------------------------------------------------------------------------- */

float picture_top(const cli_maps *m)
{
    float top = 0;
    if (m->top > 0) return (float)m->top;
    for (int64_t i = 0; i < m->panels * m->rows * m->columns; i++)
        if (m->cell[i] > top) top = m->cell[i];
    return top;
}

double picture_level(const cli_maps *m, float value)
{
    const double x = m->top > 0 || isnan(value) ? value / m->top : 0;
    if (isnan(x)) return NAN;
    if (!m->log) return x;
    return x > 0 ? 1 + log10(x) / PICTURE_DECADES : 0; /* below the last decade: white, as 0 is */
}

/* ---- drawing ---------------------------------------------------------------------------------------------------------------------- */

/* What is drawn on: pixels, or the text of an SVG file. */
typedef struct sheet_paper {
    cli_image *image;
    FILE      *svg;
} sheet_paper;

static void fill(const sheet_paper *paper, int64_t x, int64_t y, int64_t width, int64_t height, const uint8_t rgb[3])
{
    if (paper->svg) {
        fprintf(paper->svg, "<path fill=\"#%02x%02x%02x\" d=\"M%lld %lldh%lldv%lldh-%lldz\"/>\n", rgb[0], rgb[1], rgb[2], (long long)x,
                (long long)y, (long long)width, (long long)height, (long long)width);
        return;
    }
    cli_image *image = paper->image;
    for (int64_t row = y; row < y + height; row++)
        for (int64_t column = x; column < x + width; column++)
            if (row >= 0 && row < image->height && column >= 0 && column < image->width)
                memcpy(image->rgb + 3 * (row * image->width + column), rgb, 3);
}

static const uint8_t ink[3] = {38, 38, 44}, soft[3] = {110, 110, 120}, frame[3] = {214, 214, 218};

/* Text as XML: markup as entities; controls, which XML has no way to say, as '?'. */
static void xml(FILE *to, const char *words)
{
    for (const unsigned char *c = (const unsigned char *)words; *c; c++)
        if (*c == '<' || *c == '&' || *c == '"')
            fprintf(to, "&#%d;", *c);
        else
            fputc(*c < 32 || *c == 127 ? '?' : *c, to);
}

/* Text from (x, y), the top left of its first letter; upright 0: running up the page, (x, y) being the bottom left. */
static void text(const sheet_paper *paper, int64_t x, int64_t y, int scale, int upright, const char *words, const uint8_t rgb[3])
{
    if (paper->svg) {
        const int64_t base = FONT_BASE * scale;
        fprintf(paper->svg, "<text fill=\"#%02x%02x%02x\" font-size=\"%d\" transform=\"translate(%lld %lld)%s\">", rgb[0], rgb[1], rgb[2],
                10 * scale, (long long)(upright ? x : x + base), (long long)(upright ? y + base : y), upright ? "" : " rotate(-90)");
        xml(paper->svg, words);
        fprintf(paper->svg, "</text>\n");
        return;
    }
    for (const char *c = words; *c; c++) {
        const uint8_t *glyph = font[*c >= 32 && *c < 127 ? *c - 32 : '?' - 32];
        if ((*c & 0xC0) == 0x80) continue; /* one mark for each character that is not ASCII */
        for (int row = 0; row < FONT_HEIGHT; row++)
            for (int dot = 0; dot < FONT_WIDTH; dot++) {
                if (!(glyph[row] >> (FONT_WIDTH - 1 - dot) & 1)) continue;
                if (upright)
                    fill(paper, x + dot * scale, y + row * scale, scale, scale, rgb);
                else
                    fill(paper, x + row * scale, y - (dot + 1) * scale, scale, scale, rgb);
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

/* ---- all panels -------------------------------------------------------------------------------------------------------------------- */

/*            margin
 *            title
 *   +--------------------+
 *   |       head h       |   a panel: labels left (`left` wide) and above (`above` high), columns * cell wide
 *   |        | | | |     |
 *   | token [] [] [] []  |
 *   +--------------------+
 *            scale bar          */
typedef struct sheet {
    const cli_maps *m;
    int64_t         columns, rows; /* of panels */
    int64_t         cell, wide, high, left, above, panel_width, panel_height, margin, head, width, height;
    int             scale; /* pixels of a dot of the font */
    int64_t         every; /* rows or columns from one label to the next */
    int64_t         last;  /* height of the last line where it does not fit beside the scale bar, else 0 */
} sheet;

enum { LABEL_LETTERS = 12 };

static void cut_label(char to[3 * LABEL_LETTERS + 1], const char *token)
{
    snprintf(to, 3 * LABEL_LETTERS + 1, "%s", token);
    int letters = 0;
    for (char *c = to; *c; c++)
        if ((*c & 0xC0) != 0x80 && ++letters > LABEL_LETTERS) *c-- = 0;
}

static int64_t label_width(char **label, int64_t count, int scale)
{
    int64_t widest = 0;
    for (int64_t i = 0; i < count; i++) {
        char cut[3 * LABEL_LETTERS + 1];
        cut_label(cut, label[i]);
        const int64_t width = text_width(cut, scale);
        if (width > widest) widest = width;
    }
    return widest;
}

static sheet plan(const cli_maps *m)
{
    sheet         s = {.m = m, .margin = 28, .head = 100};
    const int64_t n = m->rows > m->columns ? m->rows : m->columns, room = m->panels == 1 ? 600 : 300;
    s.cell = n == 0 || room / n > 17 ? 17 : room / n < 2 ? 2 : room / n;
    s.scale = s.cell >= 14 ? 2 : 1;
    s.every = (FONT_BASE * s.scale + s.scale + s.cell) / s.cell; /* rounded up */
    if (s.every * s.cell - s.cell >= FONT_BASE * s.scale + s.scale) s.every--;
    if (s.every < 1) s.every = 1;
    if (!m->named && n > 40 && s.every < 40 / s.cell) s.every = 40 / s.cell; /* numbers need no more than that */
    s.wide = m->columns * s.cell, s.high = m->rows * s.cell;
    s.left = label_width(m->row_label, m->rows, s.scale), s.above = label_width(m->column_label, m->columns, s.scale);
    s.columns = m->across ? m->across : 1;
    while (!m->across && s.columns < m->panels && s.columns * s.columns * 3 < m->panels * 4) s.columns++; /* about 4 to 3 */
    s.rows = (m->panels + s.columns - 1) / s.columns;
    s.panel_width = s.left + 8 + s.wide + 28;
    for (int64_t p = 0; p < m->panels; p++) /* the heading is at least as wide as its place */
        if (s.left + 8 + text_width(m->panel_label[p], 2) + 28 > s.panel_width)
            s.panel_width = s.left + 8 + text_width(m->panel_label[p], 2) + 28;
    s.panel_height = 24 + s.above + 8 + s.high + 26;
    s.width = 2 * s.margin + s.columns * s.panel_width - 28;
    const char *const lines[] = {m->title, m->said, m->under, m->last};
    int64_t           wide = 254;
    for (int i = 0; i < 4; i++)
        if (text_width(lines[i], 2) > wide) wide = text_width(lines[i], 2);
    wide += 2 * s.margin;
    if (s.width < wide) s.width = wide;
    s.last = *m->last && text_width(m->last, 2) + 2 * s.margin + 300 >= s.width ? 26 : 0;
    s.height = s.margin + s.head + s.rows * s.panel_height + 60 + s.last;
    return s;
}

static void draw_cells(const sheet_paper *paper, const sheet *s, int64_t left, int64_t top, const float *cell)
{
    const int64_t gap = s->cell >= 8, columns = s->m->columns;
    for (int64_t i = 0; i < s->m->rows; i++)
        for (int64_t j = 0; j < columns; j++) {
            uint8_t rgb[3], next[3];
            int64_t run = 1;
            picture_colour(picture_level(s->m, cell[i * columns + j]), rgb);
            while (!gap && j + run < columns) { /* cells that touch and look alike are one shape */
                picture_colour(picture_level(s->m, cell[i * columns + j + run]), next);
                if (memcmp(rgb, next, 3)) break;
                run++;
            }
            fill(paper, left + j * s->cell, top + i * s->cell, run * s->cell - gap, s->cell - gap, rgb);
            j += run - 1;
        }
}

static void draw_panel(const sheet_paper *paper, const sheet *s, int64_t x, int64_t y, int64_t panel)
{
    const cli_maps *m = s->m;
    const int64_t   left = x + s->left + 8, top = y + 24 + s->above + 8, gap = s->cell >= 8;
    char            label[3 * LABEL_LETTERS + 1];
    text(paper, left, y + 2, 2, 1, m->panel_label[panel], ink);
    fill(paper, left - 1, top - 1, s->wide + 2 - gap, s->high + 2 - gap, frame);
    draw_cells(paper, s, left, top, m->cell + panel * m->rows * m->columns);
    for (int64_t i = 0; i < (m->rows > m->columns ? m->rows : m->columns); i += s->every) {
        const int64_t middle = i * s->cell + (s->cell - gap - FONT_BASE * s->scale) / 2;
        if (i < m->rows) {
            cut_label(label, m->row_label[i]);
            text(paper, left - 6 - text_width(label, s->scale), top + middle, s->scale, 1, label, soft);
        }
        if (i < m->columns) {
            cut_label(label, m->column_label[i]);
            text(paper, left + middle, top - 6, s->scale, 0, label, soft);
        }
    }
}

static void draw_scale(const sheet_paper *paper, const sheet *s, int64_t x, int64_t y)
{
    char value[24];
    for (int i = 0; i < 240; i++) {
        uint8_t rgb[3];
        picture_colour(i / 239.0, rgb);
        fill(paper, x + i, y, 1, 16, rgb);
    }
    fill(paper, x - 1, y - 1, 242, 1, frame), fill(paper, x - 1, y + 16, 242, 1, frame);
    fill(paper, x - 1, y - 1, 1, 18, frame), fill(paper, x + 240, y - 1, 1, 18, frame);
    for (int i = 0; i <= 2; i++) {
        const double top = s->m->top, at = s->m->log ? top * pow(10, (i - 2) * PICTURE_DECADES / 2.0) : i * top / 2;
        if (s->m->log)
            snprintf(value, sizeof value, "%.2g", at);
        else
            snprintf(value, sizeof value, i == 0 ? "%.0f" : top < 0.1 ? "%.2g" : "%.2f", at);
        text(paper, x + 120 * i - text_width(value, 2) / 2, y + 22, 2, 1, value, soft);
    }
}

static void draw(const sheet_paper *paper, const sheet *s)
{
    const cli_maps *m = s->m;
    text(paper, s->margin, s->margin - 4, 2, 1, m->title, ink);
    text(paper, s->margin, s->margin + 22, 2, 1, m->said, ink);
    text(paper, s->margin, s->margin + 48, 2, 1, m->under, soft);
    for (int64_t p = 0; p < m->panels; p++)
        draw_panel(paper, s, s->margin + p % s->columns * s->panel_width, s->margin + s->head + p / s->columns * s->panel_height, p);
    const int64_t bottom = s->height - 64 - s->last;
    draw_scale(paper, s, s->width - s->margin - 254, bottom);
    text(paper, s->margin, bottom + 2 * s->last, 2, 1, m->last, soft);
}

int picture_draw(cli_image *image, const cli_maps *m)
{
    cli_maps with_top = *m;
    with_top.top = picture_top(m);
    const sheet       s = plan(&with_top);
    const sheet_paper paper = {image, NULL};
    image->width = s.width, image->height = s.height;
    image->rgb = malloc((size_t)(3 * image->width * image->height));
    if (!image->rgb) return 0;
    memset(image->rgb, 255, (size_t)(3 * image->width * image->height));
    draw(&paper, &s);
    return 1;
}

int picture_svg(const char *path, const cli_maps *m)
{
    cli_maps  with_top = *m;
    io_output output;
    io_error  error;
    with_top.top = picture_top(m);
    const sheet s = plan(&with_top);
    if (io_output_open(&output, path, &error)) return out_io(&error);
    const sheet_paper paper = {NULL, output.file};
    fprintf(output.file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%lld\" height=\"%lld\" viewBox=\"0 0 %lld %lld\" font-family=\"monospace\" "
            "shape-rendering=\"crispEdges\" xml:space=\"preserve\">\n<path fill=\"#fff\" d=\"M0 0h%lldv%lldh-%lldz\"/>\n",
            (long long)s.width, (long long)s.height, (long long)s.width, (long long)s.height, (long long)s.width, (long long)s.height,
            (long long)s.width);
    draw(&paper, &s);
    fprintf(output.file, "</svg>\n");
    return io_output_commit(&output, &error) ? out_io(&error) : CLI_OK;
}
