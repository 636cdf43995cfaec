/* Calls of operators of torch, by its stable interface of C: libtorch_cpu.so is opened when a model is loaded, and is
 * the one that the process has where it has one. A call takes words, each an argument: numbers, pointers to tensors,
 * lists and texts, and for what is optional a pointer to such a word or 0. It takes them over, and leaves its results in
 * their place. */

typedef uint64_t stable;
typedef struct { void *tensor; const int64_t *sizes; } of_torch;

static struct {
    void *library;
    int32_t (*call)(const char *, const char *, stable *, uint64_t);
    int32_t (*from_blob)(void *, int64_t, const int64_t *, const int64_t *, int64_t, int32_t, int32_t, int32_t, void **);
    int32_t (*let_go)(void *);
    int32_t (*dim)(void *, int64_t *), (*dtype)(void *, int32_t *);
    int32_t (*sizes)(void *, int64_t **), (*strides)(void *, int64_t **), (*data)(void *, void **);
    int32_t (*list)(size_t, void **), (*push)(void *, stable), (*drop_list)(void *);
    int32_t (*count)(void *, size_t *), (*item)(void *, size_t, stable *);
    int32_t (*text)(const char *, size_t, void **);
    int32_t (*some)(stable **);          /* since torch 2.13; before, */
    void *(*allocate)(size_t);           /* what C++ calls `new` */
    const char *(*why)(void);            /* since torch 2.13 */
} torch;

static const struct { const char *name; void *function; } torch_functions[] = {
    {"torch_call_dispatcher", &torch.call}, {"aoti_torch_create_tensor_from_blob", &torch.from_blob},
    {"aoti_torch_delete_tensor_object", &torch.let_go}, {"aoti_torch_get_dim", &torch.dim},
    {"aoti_torch_get_dtype", &torch.dtype}, {"aoti_torch_get_sizes", &torch.sizes},
    {"aoti_torch_get_strides", &torch.strides}, {"aoti_torch_get_data_ptr", &torch.data},
    {"torch_new_list_reserve_size", &torch.list}, {"torch_list_push_back", &torch.push},
    {"torch_delete_list", &torch.drop_list}, {"torch_list_size", &torch.count}, {"torch_list_get_item", &torch.item},
    {"torch_new_string_handle", &torch.text},
};

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

static int open_torch(char *error, size_t size) {
    int answer = 0;
    pthread_mutex_lock(&opening);
    if (torch.library == NULL) {
        void *library = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
        if (library == NULL)
            library = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_GLOBAL);
        if (library == NULL) {
            snprintf(error, size, "the program calls operators of torch (%s), and its library is not found: %.200s",
                     CALLS_OF_TORCH, dlerror());
            answer = -1;
        }
        for (size_t k = 0; answer == 0 && k < sizeof torch_functions / sizeof *torch_functions; k++) {
            void *found = dlsym(library, torch_functions[k].name);
            memcpy(torch_functions[k].function, &found, sizeof found);
            if (found == NULL) {
                snprintf(error, size, "libtorch_cpu.so has no %s: the program needs torch 2.11 or later",
                         torch_functions[k].name);
                answer = -1;
            }
        }
        if (answer == 0) {
            void *some = dlsym(library, "torch_new_stable_ivalue"), *new = dlsym(library, "_Znwm");
            void *why = dlsym(library, "torch_exception_get_what_without_backtrace");
            memcpy(&torch.some, &some, sizeof some);
            memcpy(&torch.allocate, &new, sizeof new);
            memcpy(&torch.why, &why, sizeof why);
            torch.library = library;
        }
    }
    pthread_mutex_unlock(&opening);
    return answer;
}

static int torch_fails(framefuse_model *model, const char *what) {
    const char *why = torch.why ? torch.why() : NULL;
    return fail(model, "torch fails in %s: %.400s", what, why && *why ? why : "it says on its error output why");
}

__attribute__((unused)) static int32_t dtype_of_torch(const char *name) {
    char function[64];
    int32_t (*asked)(void);
    snprintf(function, sizeof function, "aoti_torch_dtype_%s", name);
    void *found = dlsym(torch.library, function);
    memcpy(&asked, &found, sizeof found);
    return found ? asked() : -1;
}

/* ---- arguments ----------------------------------------------------------------------------------------------------- */

/* A tensor over memory of the program's, which outlives the call. */
__attribute__((unused)) static int tensor_of_torch(framefuse_model *model, char *data, int ndim, const int64_t *sizes,
                                                   const int64_t *strides, const char *dtype, stable *to) {
    void *tensor = NULL;
    if (torch.from_blob(data, ndim, sizes, strides, 0, dtype_of_torch(dtype), 0, 0, &tensor))
        return torch_fails(model, "an operand");
    *to = (stable)(uintptr_t)tensor;
    return 0;
}

__attribute__((unused)) static int some_of_torch(framefuse_model *model, stable value, stable *to) {
    stable *held = NULL;
    if (torch.some ? torch.some(&held) : !torch.allocate || !(held = torch.allocate(sizeof *held)))
        return torch_fails(model, "an argument");
    *held = value;
    *to = (stable)(uintptr_t)held;
    return 0;
}

__attribute__((unused)) static int list_of_torch(framefuse_model *model, const stable *values, size_t count, stable *to) {
    void *list = NULL;
    int32_t bad = torch.list(count, &list);
    for (size_t k = 0; !bad && k < count; k++)
        bad = torch.push(list, values[k]);
    *to = (stable)(uintptr_t)list;
    return bad ? torch_fails(model, "a list") : 0;
}

__attribute__((unused)) static int text_of_torch(framefuse_model *model, const char *text, stable *to) {
    void *made = NULL;
    if (torch.text(text, strlen(text), &made))
        return torch_fails(model, "a text");
    *to = (stable)(uintptr_t)made;
    return 0;
}

/* ---- calls and their results --------------------------------------------------------------------------------------- */

static void let_go_of_torch(of_torch *found, size_t count) {
    for (size_t k = 0; k < count; k++)
        if (found[k].tensor)
            torch.let_go(found[k].tensor);
}

/* Marks that torch keeps beside complex numbers and their parts, in place of other numbers, become these numbers. */
static int plain_of_torch(of_torch *found) {
    static const char *const marks[] = {"aten::resolve_conj", "aten::resolve_neg"};
    for (int k = 0; k < 2; k++) {
        stable word = (stable)(uintptr_t)found->tensor;
        found->tensor = NULL;
        if (torch.call(marks[k], "", &word, LIBTORCH))
            return -1;
        found->tensor = (void *)(uintptr_t)word;
    }
    int64_t *sizes;
    if (torch.sizes(found->tensor, &sizes))
        return -1;
    found->sizes = sizes;
    return 0;
}

/* Calls an operator, whose results are `count` tensors or a list of so many, or more. */
static int call_torch(framefuse_model *model, const char *name, const char *overload, stable *stack, of_torch *found,
                      size_t count, int listed) {
    if (torch.call(name, overload, stack, LIBTORCH))
        return torch_fails(model, name);
    int bad = 0;
    if (listed) {
        void *list = (void *)(uintptr_t)*stack;
        size_t there = 0;
        bad = torch.count(list, &there) || there < count;
        for (size_t k = 0; k < there; k++) {
            stable each = 0;
            bad |= torch.item(list, k, &each);
            if (k < count)
                found[k].tensor = (void *)(uintptr_t)each;
            else if (each)
                torch.let_go((void *)(uintptr_t)each);
        }
        torch.drop_list(list);
    } else
        for (size_t k = 0; k < count; k++)
            found[k].tensor = (void *)(uintptr_t)stack[k];
    for (size_t k = 0; !bad && k < count; k++)
        bad = plain_of_torch(&found[k]);
    if (bad) {
        let_go_of_torch(found, count);
        return torch_fails(model, name);
    }
    return 0;
}

__attribute__((unused)) static int64_t size_of_torch(const of_torch *found, int dimension) { return found->sizes[dimension]; }

/* Copies a result to where the program has it. */
__attribute__((unused)) static int take_from_torch(framefuse_model *model, const of_torch *found, int ndim,
                                                   const int64_t *sizes, char *to, const int64_t *to_strides,
                                                   int64_t element, const char *dtype) {
    int64_t dims, *strides;
    int32_t kind;
    void *data;
    if (torch.dim(found->tensor, &dims) || torch.dtype(found->tensor, &kind) || torch.strides(found->tensor, &strides) ||
        torch.data(found->tensor, &data))
        return torch_fails(model, "a result");
    if (dims != ndim || kind != dtype_of_torch(dtype))
        return fail(model, "a result of torch has %lld dimensions and the dtype %d, not %d of %s", (long long)dims,
                    (int)kind, ndim, dtype);
    for (int d = 0; d < ndim; d++)
        if (found->sizes[d] != sizes[d])
            return fail(model, "a result of torch has size %lld in dimension %d, not %lld", (long long)found->sizes[d], d,
                        (long long)sizes[d]);
    for (int d = 0; d < ndim; d++)
        if (sizes[d] == 0)
            return 0;
    copy(ndim, sizes, data, strides, to, to_strides, element);
    return 0;
}
