/* Calls an exported program: tensors of DLPack go in, new tensors of DLPack come out.
 *
 * Link the library, or open it with dlopen. A model belongs to one thread at a time; load it once for each thread. */
#ifndef FRAMEFUSE_H
#define FRAMEFUSE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef DLPACK_DLPACK_H_ /* include dlpack.h first to use its own declarations */
typedef enum { kDLCPU = 1, kDLCUDA = 2 } DLDeviceType;
typedef struct { DLDeviceType device_type; int32_t device_id; } DLDevice;
typedef enum { kDLInt = 0, kDLUInt = 1, kDLFloat = 2, kDLBfloat = 4, kDLComplex = 5, kDLBool = 6 } DLDataTypeCode;
typedef struct { uint8_t code; uint8_t bits; uint16_t lanes; } DLDataType;
typedef struct {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL: contiguous */
    uint64_t byte_offset;
} DLTensor;
typedef struct DLManagedTensor {
    DLTensor dl_tensor;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensor *self);
} DLManagedTensor;
#endif

#define FRAMEFUSE_VERSION 3

typedef struct framefuse_model framefuse_model;

/* The version of this interface that the library was made for. */
int framefuse_version(void);

/* A model with the weights that the library carries, or that lie in a file beside it; NULL where that cannot be, with
 * the reason in `error`. */
framefuse_model *framefuse_load(char *error, size_t size);
/* The same with the file of weights in another place; it is mapped, and must stay as it is while models live. A file whose
 * checksum is another is refused. */
framefuse_model *framefuse_load_with(const char *weights, char *error, size_t size);
/* The same of a program for GPUs on the one of this number; `weights` may be NULL. */
framefuse_model *framefuse_load_on(int device, const char *weights, char *error, size_t size);
void framefuse_free(framefuse_model *model);

/* 0 and new tensors in `outputs`, to be given back by their own deleters; or -1, with nothing in `outputs` and the
 * reason in framefuse_error. The inputs are only read. */
int framefuse_run(framefuse_model *model, const DLTensor *const *inputs, int input_count, DLManagedTensor **outputs,
                  int output_count);
/* The same on a stream of CUDA (CUstream, cudaStream_t), where results will be there when what was launched there before
 * is done; the default stream otherwise. What reads a result is launched on that stream before the result's deleter is
 * called, or has ended. A program for the CPU has no use for the stream. */
int framefuse_run_on(framefuse_model *model, void *stream, const DLTensor *const *inputs, int input_count,
                     DLManagedTensor **outputs, int output_count);

/* Copies new contents of weights, of the same dtypes, sizes and order in memory, into the model: all of them, or none
 * and -1. */
int framefuse_update_constants(framefuse_model *model, const char *const *names, const DLTensor *const *values,
                               int count);

/* On how many threads the calls of a model run, the caller's among them; one, unless told otherwise. */
void framefuse_set_threads(framefuse_model *model, int count);

/* Why the latest call failed; a text that lives as long as the model. */
const char *framefuse_error(const framefuse_model *model);

int framefuse_input_count(void);
int framefuse_output_count(void);
int framefuse_constant_count(void);

/* JSON: the arguments, inputs and weights with their dtypes and sizes, the structure of the result, and what was taken as given. */
const char *framefuse_description(void);

#ifdef __cplusplus
}
#endif
#endif
