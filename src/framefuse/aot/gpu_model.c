/* A model that runs on a GPU: its weights are copied there once, and shared by the models of the library. */
static pthread_mutex_t packing = PTHREAD_MUTEX_INITIALIZER;
static weights_file shared_file;
#ifndef WEIGHTS_FILE
#define WEIGHTS_BYTES 0
#endif

static void drop_file(weights_file *file) {
    if (file->data != NULL)
        munmap((void *)file->data, WEIGHTS_BYTES);
    *file = (weights_file){0};
}

#include "weights_file.c"

/* The context of a device, current until it is left; a negative number, and the reason in `error`, where there is none
 * for these kernels. */
static int enter(gpu *on, int device, char *error, size_t size) {
    int handle, major = 0, minor = 0, code = driver.device(&handle, device);
    if (!code && !(code = driver.attribute(&major, MAJOR, handle)))
        code = driver.attribute(&minor, MINOR, handle);
    if (!code && (major != CAPABILITY_MAJOR || minor < CAPABILITY_MINOR || (major > 8 && minor > CAPABILITY_MINOR))) {
        snprintf(error, size, "the program was exported for GPUs of compute capability %d.%d, and number %d has %d.%d",
                 CAPABILITY_MAJOR, CAPABILITY_MINOR, device, major, minor);
        return -1;
    }
    if (!code && on->context == NULL)
        code = driver.retain(&on->context, handle);
    if (!code)
        code = driver.push(on->context);
    if (code)
        snprintf(error, size, "the GPU number %d cannot be had: %s (code %d)", device, words_of(code), code);
    return code ? -1 : 0;
}

/* Codes of one image are one function. */
static int load_codes(gpu *on, char *error, size_t size) {
    int code = 0;
    for (int k = 0; k < CODES && code == 0; k++) {
        int same = 0;
        while (codes[same].image != codes[k].image)
            same++;
        if (on->functions[k] != NULL)
            continue;
        if (same == k && !(code = driver.load(&on->modules[k], codes[k].image)))
            code = driver.function(&on->functions[k], on->modules[k], codes[k].function);
        on->functions[k] = on->functions[same];
        if (!code && codes[k].shared > WITHOUT_LEAVE)
            code = driver.set(on->functions[k], MAX_DYNAMIC_SHARED_SIZE, codes[k].shared);
    }
    if (code)
        snprintf(error, size, "a kernel could not be loaded: %s (code %d)", words_of(code), code);
    return code ? -1 : 0;
}

enum { WEIGHT_APART = 256 };

/* How far from the first weight each begins on the device, and behind the last one all bytes: apart, since code for
 * addresses that are multiples of 16 is faster. */
static int64_t place_of(int which) {
    int64_t place = 0;
    for (int k = 0; k < which; k++)
        place += (constants[k].bytes + WEIGHT_APART - 1) / WEIGHT_APART * WEIGHT_APART;
    return place;
}

/* The weights on the device. */
static char *load_weights(framefuse_model *model, const char *given, char *error, size_t size) {
    const char *file = weights_of(model, given, error, size);
    char *data = file ? room(place_of(CONSTANTS)) : NULL;
    int code = 0;
    for (int k = 0; data && k < CONSTANTS && code == 0; k++)
        if (constants[k].bytes > 0)
            code = driver.to_device((uint64_t)(uintptr_t)(data + place_of(k)), file + constants[k].offset,
                                    (size_t)constants[k].bytes);
    if (file != NULL && data == NULL)
        snprintf(error, size, "there is no memory for the weights on the GPU");
    if (code)
        snprintf(error, size, "the weights could not be copied to the GPU: %s (code %d)", words_of(code), code);
    drop_file(&model->file);
    if (code) {
        release(data);
        data = NULL;
    }
    return data;
}

static int open_on(framefuse_model *model, int device, const char *weights, char *error, size_t size) {
    if (device < 0 || device >= MAX_DEVICES) {
        snprintf(error, size, "no GPU has the number %d", device);
        return -1;
    }
    gpu *on = &gpus[device];
    if (open_driver(error, size) || enter(on, device, error, size))
        return -1;
    model->device = device;
    model->gpu = on;
    __atomic_add_fetch(&on->models, 1, __ATOMIC_RELAXED);
    char **held = weights ? &model->weights : &on->weights;
    int answer = load_codes(on, error, size);
    if (answer == 0 && *held == NULL && (*held = load_weights(model, weights, error, size)) == NULL)
        answer = -1;
    for (int k = 0; answer == 0 && k < CONSTANTS; k++)
        model->constants[k] = *held + place_of(k);
    if (answer == 0 && driver.event(&model->done, WITHOUT_TIMES)) {
        snprintf(error, size, "the GPU gives no event");
        answer = -1;
    }
#if PRODUCTS
    if (answer == 0)
        answer = open_products(model, error, size);
#endif
    void *left;
    driver.pop(&left);
    return answer;
}

static int open_model(framefuse_model *model, int device, const char *weights, char *error, size_t size) {
    pthread_mutex_lock(&loading);
    int answer = open_on(model, device, weights, error, size);
    pthread_mutex_unlock(&loading);
    return answer;
}

static void close_model(framefuse_model *model) {
    gpu *on = model->gpu;
    void *left;
    if (on == NULL || driver.push(on->context))
        return;
    if (model->called)
        driver.wait(model->done);
#if PRODUCTS
    close_products(model);
#endif
    if (model->done != NULL)
        driver.drop_event(model->done);
    for (int k = 0; k < CONSTANTS; k++)
        release(model->own[k]);
    release(model->arena);
    release(model->weights);
    pthread_mutex_lock(&loading);
    if (__atomic_sub_fetch(&on->models, 1, __ATOMIC_RELAXED) == 0) {
        pthread_mutex_lock(&lending);
        give_up(model->device);
        pthread_mutex_unlock(&lending);
        release(on->weights);
        on->weights = NULL;
        drop_file(&shared_file);
        for (int k = 0; k <= CODES; k++) {
            if (on->modules[k] != NULL)
                driver.unload(on->modules[k]);
            on->modules[k] = on->functions[k] = NULL;
        }
    }
    pthread_mutex_unlock(&loading);
    driver.pop(&left);
}

/* A call waits for the one before it, which works in the same memory: on the same stream that costs nothing, and another
 * stream may have the handle of one that is no more. */
static int begin_call(framefuse_model *model, void *stream) {
    void *left;
    if (told(model, "the GPU cannot be had", driver.push(model->gpu->context)))
        return -1;
    model->stream = stream;
    int answer = 0;
    if (model->called)
        answer = told(model, "the stream takes no work", driver.await(stream, model->done, 0));
#if PRODUCTS
    if (answer == 0)
        answer = begin_products(model);
#endif
    if (answer)
        driver.pop(&left);
    return answer;
}

static int end_call(framefuse_model *model, int answer) {
    void *left;
    if (driver.record(model->done, model->stream) == 0)
        model->called = 1;
    driver.pop(&left);
    return answer;
}

/* From the CPU or from the same GPU, where it has been computed. */
static char *copy_of_weight(framefuse_model *model, int64_t bytes, const DLTensor *value) {
    uint64_t from = (uint64_t)(uintptr_t)data_of(value);
    if (value->device.device_type != kDLCPU && check_device(model, "a weight", value))
        return NULL;
    char *copy = room(bytes);
    if (copy == NULL)
        fail(model, "there is no memory for the weights on the GPU");
    uint64_t to = (uint64_t)(uintptr_t)copy;
    int code = 0;
    if (copy != NULL && bytes > 0 && value->device.device_type == kDLCPU)
        code = driver.to_device(to, data_of(value), (size_t)bytes);
    else if (copy != NULL && bytes > 0 && !(code = driver.within(to, from, (size_t)bytes, model->stream)))
        code = driver.synchronize(model->stream);
    if (told(model, "a weight could not be copied to the GPU", code)) {
        release(copy);
        return NULL;
    }
    return copy;
}

/* When the calls that read it are done. */
static void drop_weight(framefuse_model *model, char *weight) {
    if (weight != NULL && model->called)
        driver.wait(model->done);
    release(weight);
}

static void forget_weights(framefuse_model *model) { (void)model; }
static void set_threads(framefuse_model *model, int count) { (void)model, (void)count; }
