/* api.c: the exported functions: read the descriptor in, check, plan, run; names of codes.
 * SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* Every function that computes does so in the default floating-point environment: round to nearest, subnormals kept, no traps. */
static int32_t leave(uint64_t caller, int32_t status)
{
    attn_cpu_leave(caller);
    return status;
}

static int32_t make(const attn_desc *desc, int data, struct attn_plan *plan, attn_error *error)
{
    const uint64_t caller = attn_cpu_enter();
    int32_t        status = attn_check_desc(desc, &plan->d, data, error);
    return leave(caller, status ? status : attn_plan_make(plan, error));
}

ATTN_API int32_t attn_run(const attn_desc *desc, attn_error *error)
{
    struct attn_plan plan;
    int32_t          status = make(desc, 1, &plan, error);
    if (status || plan.tasks == 0) return status;
    if (!plan.d.value_dim && !plan.d.lse.data && !(plan.d.weights.data && plan.d.keys)) return ATTN_OK; /* nothing to write */
    if (plan.d.work && plan.d.work_bytes < plan.work_bytes)
        return attn_fail(error, ATTN_E_WORK, "work_bytes is %zu, less than the %zu that attn_work_bytes() says", plan.d.work_bytes,
                         plan.work_bytes);
    void *work = plan.d.work ? plan.d.work : malloc(plan.work_bytes);
    if (!work) return attn_fail(error, ATTN_E_MEMORY, "no memory for %zu bytes of scratch", plan.work_bytes);
    attn_exec(&plan, work);
    if (!plan.d.work) free(work);
    return ATTN_OK;
}

static int32_t make_backward(const attn_desc *desc, const attn_backward_desc *grad, int data, struct attn_backward_plan *plan,
                             attn_error *error)
{
    const uint64_t caller = attn_cpu_enter();
    int32_t        status = attn_check_backward(desc, grad, &plan->run.d, &plan->g, data, error);
    return leave(caller, status ? status : attn_backward_plan_make(plan, error));
}

ATTN_API int32_t attn_backward(const attn_desc *desc, const attn_backward_desc *grad, attn_error *error)
{
    struct attn_backward_plan plan;
    int32_t                   status = make_backward(desc, grad, 1, &plan, error);
    if (status) return status;
    if (plan.g.work && plan.g.work_bytes < plan.work_bytes)
        return attn_fail(error, ATTN_E_WORK, "work_bytes is %zu, less than the %zu that attn_backward_work_bytes() says", plan.g.work_bytes,
                         plan.work_bytes);
    void *work = plan.g.work ? plan.g.work : malloc(plan.work_bytes);
    if (!work) return attn_fail(error, ATTN_E_MEMORY, "no memory for %zu bytes of scratch", plan.work_bytes);
    attn_backward_exec(&plan, work);
    if (!plan.g.work) free(work);
    return ATTN_OK;
}

ATTN_API int32_t attn_backward_work_bytes(const attn_desc *desc, const attn_backward_desc *grad, size_t *bytes, attn_error *error)
{
    struct attn_backward_plan plan;
    int32_t                   status = make_backward(desc, grad, 0, &plan, error);
    if (status) return status;
    if (!bytes) return attn_fail(error, ATTN_E_ARGUMENT, "bytes is NULL");
    *bytes = plan.work_bytes;
    return ATTN_OK;
}

ATTN_API int32_t attn_check(const attn_desc *desc, attn_error *error)
{
    struct attn_plan plan;
    return make(desc, 1, &plan, error);
}

ATTN_API int32_t attn_work_bytes(const attn_desc *desc, size_t *bytes, attn_error *error)
{
    struct attn_plan plan;
    int32_t          status = make(desc, 0, &plan, error);
    if (status) return status;
    if (!bytes) return attn_fail(error, ATTN_E_ARGUMENT, "bytes is NULL");
    *bytes = plan.work_bytes;
    return ATTN_OK;
}

ATTN_API int32_t attn_plan_describe(const attn_desc *desc, attn_plan_info *info, attn_error *error)
{
    struct attn_plan plan;
    attn_plan_info   ours = attn_plan_info_new();
    int32_t          status = make(desc, 0, &plan, error);
    if (!status) status = attn_check_info(info, error);
    if (status) return status;
    if (!attn_describe_plan(&plan, &ours))
        return attn_fail(error, ATTN_E_MEMORY, "no memory to play %lld threads through", (long long)plan.slots);
    const size_t size = info->size;
    memset(info, 0, size); /* what the caller's version has and this library does not is 0 */
    memcpy(info, &ours, size < sizeof ours ? size : sizeof ours);
    info->size = size;
    return ATTN_OK;
}

static int32_t inspect_make(const attn_desc *desc, const attn_inspect_desc *what, int data, struct attn_inspection *to, attn_error *error)
{
    const uint64_t caller = attn_cpu_enter();
    int32_t        status = attn_check_inspect(desc, what, &to->plan.d, &to->w, data, error);
    return leave(caller, status ? status : attn_inspect_plan(to, error));
}

ATTN_API int32_t attn_inspect(const attn_desc *desc, const attn_inspect_desc *what, attn_error *error)
{
    struct attn_inspection s;
    int32_t                status = inspect_make(desc, what, 1, &s, error);
    if (status || s.tasks == 0) return status;
    if (s.w.work && s.w.work_bytes < s.work_bytes)
        return attn_fail(error, ATTN_E_WORK, "work_bytes is %zu, less than the %zu that attn_inspect_work_bytes() says", s.w.work_bytes,
                         s.work_bytes);
    void *work = s.w.work ? s.w.work : malloc(s.work_bytes);
    if (!work) return attn_fail(error, ATTN_E_MEMORY, "no memory for %zu bytes of scratch", s.work_bytes);
    attn_inspect_run(&s, work);
    if (!s.w.work) free(work);
    return ATTN_OK;
}

ATTN_API int32_t attn_inspect_work_bytes(const attn_desc *desc, const attn_inspect_desc *what, size_t *bytes, attn_error *error)
{
    struct attn_inspection s;
    int32_t                status = inspect_make(desc, what, 0, &s, error);
    if (status) return status;
    if (!bytes) return attn_fail(error, ATTN_E_ARGUMENT, "bytes is NULL");
    *bytes = s.work_bytes;
    return ATTN_OK;
}

ATTN_API int32_t attn_dropout_mask(const attn_dropout_block *block, attn_error *error)
{
    attn_dropout_block b;
    const uint64_t     caller = attn_cpu_enter();
    int32_t            status = attn_check_dropout(block, &b, error);
    if (!status) attn_dropout_fill(&b);
    return leave(caller, status);
}

ATTN_API int32_t attn_merge(const attn_merge_desc *desc, attn_error *error)
{
    attn_merge_desc d;
    const uint64_t  caller = attn_cpu_enter();
    int32_t         status = attn_check_merge(desc, &d, error);
    if (!status) attn_merge_run(&d);
    return leave(caller, status);
}

ATTN_API int32_t attn_alibi_slopes(int64_t heads, float *slopes, attn_error *error)
{
    int64_t power = 1;
    attn_fail(error, ATTN_OK, "%s", "");
    if (heads < 0) return attn_fail(error, ATTN_E_ARGUMENT, "heads is %" PRId64 ", and must not be negative", heads);
    if (heads && !slopes) return attn_fail(error, ATTN_E_ARGUMENT, "slopes is NULL");
    const uint64_t caller = attn_cpu_enter();
    while (power <= heads / 2) power *= 2;
    for (int64_t h = 0; h < heads; h++) {
        double step = h < power ? (double)(h + 1) / (double)power : (double)(2 * (h - power) + 1) / (double)(2 * power);
        slopes[h] = (float)exp2(-8 * step);
    }
    return leave(caller, ATTN_OK);
}

ATTN_API uint32_t attn_version(void)
{
    return 10000 * ATTN_VERSION_MAJOR + 100 * ATTN_VERSION_MINOR + ATTN_VERSION_PATCH;
}

ATTN_API const char *attn_version_text(void)
{
    return ATTN_VERSION;
}

ATTN_API const char *attn_status_name(int32_t status)
{
    static const char *const name[] = {"ok", "argument", "unsupported", "too new", "memory", "work", "thread"};
    return status >= 0 && status <= ATTN_E_THREAD ? name[status] : "unknown";
}

ATTN_API const char *attn_dtype_name(int32_t dtype)
{
    static const char *const name[] = {"none", "f32", "f64", "f16", "bf16", "bool", "i64"};
    return dtype > 0 && dtype <= ATTN_I64 ? name[dtype] : "unknown";
}

ATTN_API size_t attn_dtype_bytes(int32_t dtype)
{
    return (size_t)attn_width(dtype);
}
