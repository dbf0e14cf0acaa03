/* png.c: writes an image as PNG.
 * SPDX-License-Identifier: MIT
 */
#include "cli.h"

#include <png.h>

int png_write(const char *path, const cli_image *picture)
{
    io_output output;
    io_error  error;
    png_image image = {.version = PNG_IMAGE_VERSION,
                       .width = (png_uint_32)picture->width,
                       .height = (png_uint_32)picture->height,
                       .format = PNG_FORMAT_RGB};
    if (io_output_open(&output, path, &error)) return out_fail(CLI_OUTPUT, "%s", error.message);
    if (!png_image_write_to_stdio(&image, output.file, 0, picture->rgb, 0, NULL)) {
        io_output_discard(&output);
        return out_fail(CLI_OUTPUT, "%s cannot be written: %s", path, image.message);
    }
    if (io_output_commit(&output, &error)) return out_fail(CLI_OUTPUT, "%s", error.message);
    return CLI_OK;
}
