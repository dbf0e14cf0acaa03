/* source.c: where bytes come from: regular files and memory; and lists of names for sentences.
 * SPDX-License-Identifier: MIT
 *
 * Apart from read.c, so that a program that only opens a store needs neither libzip nor the other formats.
 */
#include "io_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- names in sentences ----------------------------------------------------------------------------------------------------------- */

void io_names_add(io_names *names, const char *name)
{
    size_t used = strlen(names->text);
    names->count++;
    if (names->shown < names->count - 1) return;
    int n = snprintf(names->text + used, sizeof names->text - used - 24, "%s%s", used ? ", " : "", name);
    if (n >= 0 && (size_t)n < sizeof names->text - used - 24)
        names->shown++;
    else
        names->text[used] = 0;
}

const char *io_names_text(io_names *names)
{
    size_t used = strlen(names->text);
    if (names->shown < names->count)
        snprintf(names->text + used, sizeof names->text - used, "%s... (%lld)", used ? ", " : "", (long long)names->count);
    names->shown = names->count;
    return names->count ? names->text : "none";
}

/* ---- sources ---------------------------------------------------------------------------------------------------------------------- */

int io_open_regular(const char *path, int64_t *size, io_error *error)
{
    struct stat st;
    int         fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* nonblock: a FIFO must not hang here */
    if (fd < 0) {
        io_fail(error, IO_E_READ, "%s: %s", path, strerror(errno));
        return -1;
    }
    if (fstat(fd, &st) != 0)
        io_fail(error, IO_E_READ, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        io_fail(error, IO_E_READ, "%s: not a regular file", path);
    else {
        *size = st.st_size;
        return fd;
    }
    close(fd);
    return -1;
}

static int32_t read_fd(io_source *source, void *to, size_t bytes, io_error *error)
{
    enum { CHUNK = 1 << 30 }; /* Linux moves at most 2 GiB in one call */
    for (size_t done = 0; done < bytes;) {
        size_t  left = bytes - done;
        ssize_t n = read(source->fd, (char *)to + done, left < CHUNK ? left : CHUNK);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return io_fail(error, IO_E_READ, "%s: %s", source->shown, strerror(errno));
        if (n == 0) return io_fail(error, IO_E_READ, "%s: cut short: the file ends after %lld bytes", source->shown, (long long)source->at);
        done += (size_t)n;
        source->at += n;
    }
    return IO_OK;
}

static int32_t read_memory(io_source *source, void *to, size_t bytes, io_error *error)
{
    if (bytes > (size_t)(source->size - source->at))
        return io_fail(error, IO_E_READ, "%s: cut short: it ends after %lld bytes", source->shown, (long long)source->size);
    if (bytes) memcpy(to, source->memory + source->at, bytes);
    source->at += (int64_t)bytes;
    return IO_OK;
}

int32_t io_source_open(io_source *source, const char *path, io_error *error)
{
    *source = (io_source){.read = read_fd, .shown = path};
    source->fd = io_open_regular(path, &source->size, error);
    return source->fd < 0 ? IO_E_READ : IO_OK;
}

io_source io_source_memory(const void *bytes, size_t size, const char *shown)
{
    return (io_source){.read = read_memory, .shown = shown, .size = (int64_t)size, .memory = bytes};
}
