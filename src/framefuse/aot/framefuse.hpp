/* Calls an exported program from C++: models and results that free themselves, errors as exceptions. */
#ifndef FRAMEFUSE_HPP
#define FRAMEFUSE_HPP

#include "framefuse.h"

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

namespace framefuse {

struct error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/* Memory of the caller as a tensor, whose elements lie one behind the other: on a GPU by {kDLCUDA, its number}. */
template <class T> class view {
  public:
    view(T *data, std::vector<int64_t> shape, DLDevice device = {kDLCPU, 0}) : shape_(std::move(shape))
    {
        using value = typename std::remove_cv<T>::type;
        static_assert(std::is_arithmetic<value>::value, "elements are numbers");
        const uint8_t code = std::is_same<value, bool>::value ? kDLBool
                             : std::is_floating_point<value>::value ? kDLFloat
                             : std::is_signed<value>::value         ? kDLInt
                                                                    : kDLUInt;
        void *memory = const_cast<value *>(data);
        tensor_ = DLTensor{memory,  device, (int32_t)shape_.size(), {code, 8 * sizeof(T), 1}, shape_.data(),
                           nullptr, 0};
    }
    view(const view &) = delete; /* the tensor points into it */
    view &operator=(const view &) = delete;
    operator const DLTensor *() const { return &tensor_; }

  private:
    std::vector<int64_t> shape_;
    DLTensor tensor_;
};

/* A result of a call. */
class tensor {
  public:
    explicit tensor(DLManagedTensor *given) : given_(given) {}
    std::vector<int64_t> shape() const
    {
        return {given_->dl_tensor.shape, given_->dl_tensor.shape + given_->dl_tensor.ndim};
    }
    int64_t size() const
    {
        int64_t elements = 1;
        for (int d = 0; d < given_->dl_tensor.ndim; d++)
            elements *= given_->dl_tensor.shape[d];
        return elements;
    }
    /* Its elements, in memory whose order strides() tells. */
    template <class T> const T *data() const
    {
        if (given_->dl_tensor.dtype.bits != 8 * sizeof(T))
            throw error("the elements of the result have another size");
        return (const T *)((const char *)given_->dl_tensor.data + given_->dl_tensor.byte_offset);
    }
    std::vector<int64_t> strides() const
    {
        return {given_->dl_tensor.strides, given_->dl_tensor.strides + given_->dl_tensor.ndim};
    }
    /* The tensor of DLPack, for who takes it over: its deleter is to be called then. */
    DLManagedTensor *release() { return given_.release(); }

  private:
    struct give_back {
        void operator()(DLManagedTensor *of) const { of->deleter(of); }
    };
    std::unique_ptr<DLManagedTensor, give_back> given_;
};

/* A program with its weights, for one thread at a time; one for GPUs on the GPU number `device`. */
class model {
  public:
    explicit model(int threads = 1, const char *weights = nullptr, int device = 0)
    {
        char text[512] = "";
        loaded_.reset(framefuse_load_on(device, weights, text, sizeof text));
        if (!loaded_)
            throw error(text);
        framefuse_set_threads(loaded_.get(), threads);
    }
    /* On which stream of CUDA later calls of a program for GPUs run; the default one, unless told otherwise. */
    void set_stream(void *stream) { stream_ = stream; }
    template <class... Tensors> std::vector<tensor> operator()(const Tensors &...given)
    {
        const DLTensor *inputs[] = {given..., nullptr};
        std::vector<DLManagedTensor *> results((size_t)framefuse_output_count() + 1);
        const int count = (int)results.size() - 1;
        if (framefuse_run_on(loaded_.get(), stream_, inputs, (int)sizeof...(given), results.data(), count))
            throw error(framefuse_error(loaded_.get()));
        return std::vector<tensor>(results.begin(), results.end() - 1);
    }
    template <class T> void update_constant(const char *name, const view<T> &value)
    {
        const DLTensor *values[] = {value};
        if (framefuse_update_constants(loaded_.get(), &name, values, 1))
            throw error(framefuse_error(loaded_.get()));
    }

  private:
    struct drop {
        void operator()(framefuse_model *of) const { framefuse_free(of); }
    };
    std::unique_ptr<framefuse_model, drop> loaded_;
    void *stream_ = nullptr;
};

} // namespace framefuse
#endif
