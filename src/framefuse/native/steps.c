/* Runs one step of a plan: a kernel in as many threads as pay, or what another file runs. */
#include "steps.h"

#include "call.h"
#include "launch.h"
#include "matmul.h"
#include "memory.h"
#include "numbers.h"
#include "plan.h"
#include "rewind.h"
#include "threads.h"

PyObject *Declined;

/* Measured on two cores: a parallel region pays off above some 8 us of serial work, and giving up the GIL above some
   20 us. */
static const int64_t PARALLEL_NS = 8000, RELEASE_GIL_NS = 20000;

static int run_kernel(PlanProgram *plan, Frame *frame, const KernelInfo *info, char **buffers)
{
    int64_t arguments[info->number_count + 1];
    for (int32_t i = 0; i < info->buffer_count; i++)
        buffers[i] = slot_data(plan, frame, info->buffers[i]);
    gather(info->numbers, info->number_count, frame->numbers, arguments);
    int64_t extent = frame->numbers[info->extent], work = frame->numbers[info->work], answer;
    if (LIKELY(work <= PARALLEL_NS))
        return info->kernel(buffers, arguments, 0, extent) ? -1 : 0;
    int threads = info->parallel && extent > 1 ? threads_usable() : 1;
    if (work <= RELEASE_GIL_NS)
        return threads_run(info->kernel, buffers, arguments, extent, threads) ? -1 : 0;
    Py_BEGIN_ALLOW_THREADS
    answer = threads_run(info->kernel, buffers, arguments, extent, threads);
    Py_END_ALLOW_THREADS
    return answer ? -1 : 0;
}

/* Behind a step that cannot run twice no launch may decline. */
static bool may_go_on(const PlanProgram *plan, const Frame *frame, const Step *step)
{
    for (; step < plan->steps + plan->step_count; step++)
        if (step->kind == STEP_LAUNCH && !launch_may(plan, frame, step->as.launch))
            return false;
    return true;
}

int step_run(PlanProgram *plan, Frame *frame, const Step *step, char **buffers)
{
    if (UNLIKELY(plan->any_late) && memory_reach(plan, frame, step) < 0)
        return -1;
    switch (step->kind) {
    case STEP_KERNEL:
        return run_kernel(plan, frame, &step->as.kernel, buffers);
    case STEP_ALLOC:
        return memory_alloc(plan, frame, step->slot);
    case STEP_MATMUL: {
        const MatmulInfo *info = &step->as.matmul;
        return matmul_run(info, frame->numbers, slot_data(plan, frame, info->out), slot_data(plan, frame, info->a),
                          slot_data(plan, frame, info->c), &plan->slots[info->out]);
    }
    case STEP_LAUNCH:
        return launch_run(plan, frame, step->as.launch);
    case STEP_CALL:
        if (step->as.call->commits && !frame->committed && !may_go_on(plan, frame, step + 1))
            return -1;
        frame->committed |= step->as.call->commits;
        if (call_run(plan, frame, step->as.call) < 0) {
            rewind_raised(plan, frame, step);
            return -1;
        }
        frame->behind |= step->as.call->commits;
        return 0;
    case STEP_NUMBERS:
        for (int32_t i = 0; i < step->own_count; i++)
            if (!number_run(&step->own[i], frame->numbers))
                return -1;
        return 0;
    default:
        for (int32_t i = 0; i < step->slot_count; i++)
            if (LIKELY(!plan->slots[step->slots[i]].kept))
                Py_CLEAR(frame->tensors[step->slots[i]]);
        return 0;
    }
}
