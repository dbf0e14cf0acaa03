/* install_layer.c: uses an installed attn_layer: one head, identity projections, the worked example of two keys.
 * SPDX-License-Identifier: MIT
 */
#include <attn/attn_layer.h>
#include <math.h>
#include <stdio.h>

int main(void)
{
    const float x[] = {1, 0, 0, 1}, eye[] = {1, 0, 0, 1}, ten[] = {10, 0, 0, 10};
    float       out[4] = {0};
    attn_error  error;

    attn_layer_desc d = attn_layer_desc_new();
    d.batch = d.heads = d.kv_heads = 1, d.queries = d.keys = d.dim = d.value_dim = 2;
    d.width = d.key_width = d.value_width = d.out_width = 2;
    d.x = attn_layer_tokens(x, 2, 2);
    d.w_q = d.w_k = d.w_o = attn_layer_linear(eye, 2);
    d.w_v = attn_layer_linear(ten, 2);
    d.out = attn_layer_tokens_out(out, 2, 2);
    if (attn_layer_run(&d, &error) != ATTN_OK) {
        printf("%s\n", error.message);
        return 1;
    }
    if (fabs(out[0] - 6.6976155) > 1e-4 || fabs(out[1] - 3.3023845) > 1e-4) {
        printf("out is %g %g, not 6.698 3.302\n", out[0], out[1]);
        return 1;
    }
    attn_layer_checkpoint *c = NULL;
    if (attn_layer_load("there is no such file.safetensors", 0, NULL, &c, &error) == ATTN_OK || !error.message[0]) return 1;
    return 0;
}
