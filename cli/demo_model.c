/* demo_model.c: finds and reads the file of the demonstration.
 * SPDX-License-Identifier: MIT
 */
#include "demo.h"

#include <stdlib.h>
#include <unistd.h>

#ifndef ATTN_DATA_DIR
#define ATTN_DATA_DIR "/usr/local/share/attn"
#endif

enum { PATH_BYTES = 4096 };

/* Beside the program, in the source tree that it was built in, where it was installed. */
static const char *const places[] = {"", "../examples/", "../../examples/", "../share/attn/"};

static int find(char path[PATH_BYTES])
{
    static const char file[] = "minilm-layer.safetensors";
    char              folder[PATH_BYTES];
    const ssize_t     got = readlink("/proc/self/exe", folder, sizeof folder - 1);
    folder[got < 0 ? 0 : got] = 0;
    char *slash = strrchr(folder, '/');
    if (slash) slash[1] = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (snprintf(path, PATH_BYTES, "%s%s%s", folder, places[i], file) < PATH_BYTES && access(path, R_OK) == 0) return CLI_OK;
    snprintf(path, PATH_BYTES, "%s/%s", ATTN_DATA_DIR, file);
    if (access(path, R_OK) == 0) return CLI_OK;
    out_fail(CLI_INPUT, "%s is neither in %s, its neighbours examples/ and share/attn/, nor in %s", file, folder, ATTN_DATA_DIR);
    out_fix("name the file with --data FILE");
    return CLI_INPUT;
}

static int read_tokens(demo_model *m, const char *path)
{
    const char *text = io_store_metadata(m->store, "tokens");
    json_t     *list = text ? json_loads(text, 0, NULL) : NULL;
    const int   code = labels_from(list, path, &m->token, &m->n);
    json_decref(list);
    return code;
}

static const char *words(const demo_model *m, const char *key)
{
    const char *text = io_store_metadata(m->store, key);
    return text ? text : "";
}

static int find_array(const demo_model *m, const char *path, const char *name, int rank, const int64_t *shape, io_array *a)
{
    char text[2][160];
    if (!io_store_find(m->store, name, a)) return out_fail(CLI_FIT, "%s holds no tensor named %s", path, name);
    if (a->dtype == IO_F32 && a->rank == rank && memcmp(a->shape, shape, (size_t)rank * sizeof *shape) == 0) return CLI_OK;
    return out_fail(CLI_FIT, "%s: %s is %s %s, f32 %s is needed", path, name, io_dtype_name(a->dtype),
                    out_shape(text[0], a->shape, a->rank), out_shape(text[1], shape, rank));
}

int demo_open(demo_model *m, const char *path)
{
    char       found[PATH_BYTES];
    io_error   ie;
    attn_error e;
    memset(m, 0, sizeof *m);
    if (!path && find(found)) return CLI_INPUT;
    if (!path) path = found;
    out_note("reading %s", path);
    m->store = io_store_open(path, &ie);
    if (!m->store) return out_io(&ie);
    int code = read_tokens(m, path);
    if (code) return code;
    m->sentence = words(m, "sentence"), m->source = words(m, "source"), m->computed_by = words(m, "computed_by");
    m->layer = strtoll(words(m, "layer"), NULL, 10), m->head = strtoll(words(m, "head"), NULL, 10);
    if (attn_layer_load(path, m->layer, NULL, &m->checkpoint, &e)) return out_library(&e);
    const attn_layer_checkpoint *l = m->checkpoint;
    const int64_t                hidden[] = {m->n, l->width}, weights[] = {l->heads, m->n, m->n}, output[] = {m->n, l->out_width};
    code = find_array(m, path, "hidden_states", 2, hidden, &m->hidden);
    if (!code) code = find_array(m, path, "attention_weights", 3, weights, &m->want_weights);
    if (!code) code = find_array(m, path, "attention_output", 2, output, &m->want_output);
    return code;
}

void demo_close(demo_model *m)
{
    labels_free(m->token, m->n);
    attn_layer_free(m->checkpoint);
    if (m->store) io_store_close(m->store);
}
