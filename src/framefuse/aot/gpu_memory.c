/* Memory on a device. A block that was given back is taken again by a call on the same stream: what was launched there
 * before is done when the call's own work begins. */

enum { MOST_STRANGE = 64 }; /* blocks that wait for other streams */

typedef struct block { char *data; int64_t bytes; void *stream; int device, used; struct block *next; } block;
static block *blocks; /* of all models, since a result may outlive its own */
static pthread_mutex_t lending = PTHREAD_MUTEX_INITIALIZER;

static char *room(int64_t bytes) {
    uint64_t made = 0;
    if (bytes < 0 || driver.allocate(&made, (size_t)(bytes ? bytes : 1)))
        return NULL;
    return (char *)(uintptr_t)made;
}

static void release(char *data) {
    if (data != NULL)
        driver.release((uint64_t)(uintptr_t)data); /* waits until nothing uses it */
}

/* Gives up what nobody uses of a device. */
static void give_up(int device) {
    for (block **each = &blocks; *each != NULL;) {
        block *old = *each;
        if (old->used || old->device != device) {
            each = &old->next;
            continue;
        }
        *each = old->next;
        release(old->data);
        free(old);
    }
}

/* The smallest block that is large enough and of which at least half is needed, or a new one, for which the largest of
 * the smaller ones is given up, so that calls of the same sizes soon need none. */
static char *take(framefuse_model *model, int64_t bytes) {
    block *best = NULL, *smaller = NULL;
    int strange = 0;
    pthread_mutex_lock(&lending);
    for (block *each = blocks; each != NULL; each = each->next) {
        strange += !each->used && each->device == model->device && each->stream != model->stream;
        if (each->used || each->device != model->device || each->stream != model->stream)
            continue;
        if (each->bytes >= bytes && each->bytes / 2 <= bytes && (best == NULL || each->bytes < best->bytes))
            best = each;
        else if (each->bytes < bytes && (smaller == NULL || each->bytes > smaller->bytes))
            smaller = each;
    }
    if (best == NULL && strange > MOST_STRANGE) { /* of streams that may be no more */
        give_up(model->device);
        smaller = NULL;
    }
    if (best == NULL && smaller != NULL && bytes >= 0) {
        driver.synchronize(model->stream);
        release(smaller->data);
        best = smaller;
        *best = (block){room(bytes), bytes, model->stream, model->device, 0, best->next};
    } else if (best == NULL && bytes >= 0 && (best = malloc(sizeof *best)) != NULL) {
        *best = (block){room(bytes), bytes, model->stream, model->device, 0, blocks};
        blocks = best;
    }
    if (best != NULL && best->data == NULL) {
        best->used = 1;
        give_up(model->device);
        best->data = room(bytes);
        if (best->data == NULL) {
            best->bytes = -1; /* a call that needs less may have it */
            best->used = 0;
            best = NULL;
        }
    }
    if (best != NULL)
        best->used = 1;
    pthread_mutex_unlock(&lending);
    return best ? best->data : NULL;
}

/* Where no model is left that could take it again, it is given up. */
static void let_go(char *data) {
    if (data == NULL)
        return;
    pthread_mutex_lock(&lending);
    for (block *each = blocks; each != NULL; each = each->next) {
        if (each->data != data)
            continue;
        void *context = gpus[each->device].context;
        each->used = 0;
        if (__atomic_load_n(&gpus[each->device].models, __ATOMIC_RELAXED) == 0 && !driver.push(context)) {
            give_up(each->device);
            driver.pop(&context);
        }
        break;
    }
    pthread_mutex_unlock(&lending);
}

static void give_back(framefuse_model *model, char *data) { (void)model; let_go(data); }

/* Memory for a result: what reads it is to be launched on the stream of its call before it is given back. */
static char *lasting(framefuse_model *model, int64_t bytes) { return take(model, bytes); }

static int arena(framefuse_model *model, int64_t bytes) {
    if (bytes <= model->arena_bytes)
        return 0;
    if (model->arena != NULL)
        driver.synchronize(model->stream);
    release(model->arena);
    model->arena = room(bytes);
    model->arena_bytes = model->arena ? bytes : 0;
    return model->arena ? 0 : fail(model, "there is no memory for %lld bytes on the GPU", (long long)bytes);
}
