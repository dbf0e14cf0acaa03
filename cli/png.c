/* png.c: writes an image as PNG.
 * SPDX-License-Identifier: MIT
 */
#include "cli.h"

#include <errno.h>
#include <png.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

int png_write(const char *path, const cli_image *picture)
{
    const size_t length = strlen(path);
    char        *temporary = malloc(length + 8);
    if (!temporary) return out_fail(CLI_OUTPUT, "no memory to write %s", path);
    memcpy(temporary, path, length);
    memcpy(temporary + length, ".XXXXXX", 8);
    png_image    image = {.version = PNG_IMAGE_VERSION,
                          .width = (png_uint_32)picture->width,
                          .height = (png_uint_32)picture->height,
                          .format = PNG_FORMAT_RGB};
    const mode_t mask = umask(0);
    umask(mask);
    const int fd = mkstemp(temporary);
    FILE     *file = fd < 0 ? NULL : fdopen(fd, "wb");
    int       good = file != NULL && fchmod(fd, 0666 & ~mask) == 0;
    if (good && !png_image_write_to_stdio(&image, file, 0, picture->rgb, 0, NULL)) good = 0;
    if (file && fclose(file) != 0) good = 0;
    if (good && rename(temporary, path) != 0) good = 0;
    const int why = errno;
    if (!good && fd >= 0) unlink(temporary);
    free(temporary);
    if (good) return CLI_OK;
    return out_fail(CLI_OUTPUT, "%s cannot be written: %s", path, *image.message ? image.message : strerror(why));
}
