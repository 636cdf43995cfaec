/* Splits a range over the threads of the libgomp that torch runs, so that both share one pool. */
#include "threads.h"

#include <pthread.h>

#include "torch_abi.h"

static bool forked_child; /* libgomp's pool did not survive the fork, and waits for ever */
static void in_child(void) { forked_child = true; }
void threads_watch_forks(void) { pthread_atfork(NULL, NULL, in_child); }

int threads_usable(void)
{
    if (!abi.parallel || forked_child)
        return 1;
    int count = abi_thread_count();
    return count > 0 ? count : 1;
}

typedef struct {
    Piece piece;
    void *context;
    int64_t extent, step;
    int64_t next; /* atomic: pieces are claimed, so a team smaller than asked for still does them all */
} Region;

static void work_of_thread(void *argument)
{
    Region *region = argument;
    for (;;) {
        int64_t begin = __atomic_fetch_add(&region->next, region->step, __ATOMIC_RELAXED);
        if (begin >= region->extent)
            return;
        int64_t end = begin + region->step;
        region->piece(region->context, begin, end < region->extent ? end : region->extent);
    }
}

void threads_each(Piece piece, void *context, int64_t extent, int threads)
{
    if (threads > extent)
        threads = (int)extent;
    if (threads <= 1) {
        piece(context, 0, extent);
        return;
    }
    int64_t step = (extent + threads - 1) / threads;
    if (step > 256) /* whole vectors and cache lines for each thread */
        step = (step + 63) / 64 * 64;
    Region region = {piece, context, extent, step, 0};
    abi.parallel(work_of_thread, &region, (unsigned)threads, 0);
}

typedef struct {
    Kernel kernel;
    char **buffers;
    const int64_t *numbers;
    int64_t answer;
} KernelCall;

static void kernel_piece(void *argument, int64_t begin, int64_t end)
{
    KernelCall *call = argument;
    int64_t answer = call->kernel(call->buffers, call->numbers, begin, end), none = 0;
    if (answer)
        __atomic_compare_exchange_n(&call->answer, &none, answer, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

int64_t threads_run(Kernel kernel, char **buffers, const int64_t *numbers, int64_t extent, int threads)
{
    if (threads <= 1)
        return kernel(buffers, numbers, 0, extent);
    KernelCall call = {kernel, buffers, numbers, 0};
    threads_each(kernel_piece, &call, extent, threads);
    return call.answer;
}
