/* The part of an exported library for NVIDIA's GPUs that is equal in all: the driver, memory on the device, launches,
 * copies and products. The program itself stands behind it in one translation unit. */
#include "tensors.h"

#include "gpu_driver.c"

struct framefuse_model {
    char error[512];
    const char **constants; /* where each weight lies on the device */
    char **own;
    char *arena;
    int64_t arena_bytes;
    int device;
    gpu *gpu;
    void *stream;      /* of this call */
    void *done;        /* the event at whose end the one before it is */
    int called;
    void *products;    /* the library that multiplies */
    char *weights; /* where they are not those of the other models */
    weights_file file;
    int replaced;
};

static DLDevice device_of(const framefuse_model *model) { return (DLDevice){kDLCUDA, model->device}; }
static int check_device(framefuse_model *model, const char *what, const DLTensor *tensor);
static void let_go(char *memory);

#include "tensors.c"

static int check_device(framefuse_model *model, const char *what, const DLTensor *tensor) {
    if (tensor->device.device_type == kDLCUDA && tensor->device.device_id == model->device)
        return 0;
    return fail(model, "%s lies on a device of type %d, number %d: this model runs on the GPU number %d", what,
                (int)tensor->device.device_type, (int)tensor->device.device_id, model->device);
}

/* What the driver answered: 0, or -1 with its words. */
static int told(framefuse_model *model, const char *what, int code) {
    return code ? fail(model, "%s: %s (code %d)", what, words_of(code), code) : 0;
}

#include "gpu_memory.c"

/* ---- launches ---------------------------------------------------------------------------------------------------- */

/* An image with one function, and the bytes of shared memory that it takes. */
typedef struct { const char *image, *function; int shared; } code;

static const code codes[CODES + 1];

enum { SPARE = 4 }; /* behind a kernel's parameters the compiler puts pointers to memory that ours ask for none of */

static uint64_t address(const char *data) { return (uint64_t)(uintptr_t)data; }
static uint64_t single(double value) {
    float narrow = (float)value;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    return bits;
}
static int is_narrow(int64_t number) { return number == (int32_t)number; }

/* As many programs as the extent has blocks. */
static int launch(framefuse_model *model, int which, int64_t extent, int64_t blocks, unsigned threads, uint64_t *words,
                  int count) {
    uint64_t none = 0;
    void *parameters[count + SPARE];
    int64_t programs = extent <= 0 ? 0 : (extent - 1) / blocks + 1;
    if (programs == 0)
        return 0;
    if (programs > INT_MAX)
        return fail(model, "the sizes of the inputs are too large for a kernel");
    for (int k = 0; k < count + SPARE; k++)
        parameters[k] = k < count ? &words[k] : &none;
    return told(model, "a kernel could not be launched",
                driver.launch(model->gpu->functions[which], (unsigned)programs, 1, 1, threads, 1, 1,
                              (unsigned)codes[which].shared, model->stream, parameters, NULL));
}

#include "gpu_copies.c"
#include "views.c"
#if PRODUCTS
#include "gpu_products.c"
#endif
