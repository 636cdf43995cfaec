/* Runs number instructions: checked 64-bit integer and IEEE double arithmetic with Python's meaning, or declines. */
#include "numbers.h"

#include <math.h>

enum {
#define X(op, name) op,
    NUMBER_OPERATIONS(X)
#undef X
    OPS
};

static const char *const NAMES[OPS] = {
#define X(op, name) name,
    NUMBER_OPERATIONS(X)
#undef X
};

/* The functions of CPython's math are those of the C library, which it calls as well. */
typedef double (*Function)(double);
static const Function FUNCTIONS[] = {sin,  cos,   tan,   asin,  acos, atan,  sinh,  cosh, tanh,
                                     asinh, acosh, atanh, exp,  expm1, log,  log1p, log2, log10};
_Static_assert(sizeof FUNCTIONS / sizeof *FUNCTIONS == OPS - REAL_SIN,
               "a function for each operation from REAL_SIN on");

bool number_chooses(const Number *number) { return number->op == REAL_MIN || number->op == REAL_MAX; }

bool number_is_const(const Number *number) { return number->op == CONST || number->op == REAL_CONST; }

bool number_is_unary(const Number *number)
{
    switch (number->op) {
    case TRUNC: case FLOOR: case CEIL: case ROUND:
    case REAL_OF_INT: case REAL_NEG: case REAL_ABS: case REAL_SQRT: case REAL_FLOOR: case REAL_FLOAT32: return true;
    default: return number->op >= REAL_SIN;
    }
}

int number_parse(PyObject *instruction, Py_ssize_t count, Number *out)
{
    const char *name;
    PyObject *left, *right = NULL;
    Py_ssize_t to;
    memset(out, 0, sizeof *out);
    if (!PyTuple_Check(instruction) || !PyArg_ParseTuple(instruction, "snO|O", &name, &to, &left, &right)) {
        if (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_TypeError))
            PyErr_Format(PyExc_ValueError, "not a number instruction: %R", instruction);
        return -1;
    }
    int op = 0;
    while (op < OPS && strcmp(NAMES[op], name))
        op++;
    out->op = (uint8_t)op;
    out->to = (int32_t)to;
    bool good = op < OPS && to >= 0 && to < count;
    if (good && op == CONST) {
        out->value = PyLong_AsLongLong(left);
    } else if (good && op == REAL_CONST) {
        out->value = as_word(PyFloat_AsDouble(left));
    } else if (good) {
        Py_ssize_t a = PyLong_AsSsize_t(left), b = right ? PyLong_AsSsize_t(right) : 0;
        good = a >= 0 && a < count && b >= 0 && b < count;
        out->left = (int32_t)a, out->right = (int32_t)b;
    }
    if (PyErr_Occurred())
        return -1;
    if (!good) {
        PyErr_Format(PyExc_ValueError, "not a number instruction over %zd numbers: %R", count, instruction);
        return -1;
    }
    return 0;
}

static bool divide(int64_t a, int64_t b, int64_t *quotient, int64_t *remainder)
{
    if (a >= 0 && b > 0 && (b & (b - 1)) == 0) { /* blocks of a loop: a shift costs a tenth of a division */
        *quotient = a >> __builtin_ctzll((uint64_t)b), *remainder = a & (b - 1);
        return true;
    }
    if (b == 0 || (a == INT64_MIN && b == -1))
        return false;
    int64_t q = a / b, r = a % b;
    if (r != 0 && (r < 0) != (b < 0))
        q -= 1, r += b;
    *quotient = q, *remainder = r;
    return true;
}

/* Python raises OverflowError, ZeroDivisionError or goes complex where C's pow gives an infinity or a NaN. */
static bool power(double a, double b, double *out)
{
    if (a == 0 && b < 0 && isfinite(b))
        return false;
    if (a < 0 && isfinite(a) && isfinite(b) && floor(b) != b)
        return false;
    double value = pow(a, b);
    if (isinf(value) && isfinite(a) && isfinite(b))
        return false;
    *out = value;
    return true;
}

/* base ** exponent of ints, by squaring. */
static bool int_power(int64_t base, int64_t exponent, int64_t *out)
{
    if (exponent < 0)
        return false;
    int64_t value = 1;
    for (; exponent; exponent >>= 1) {
        if (exponent & 1 && __builtin_mul_overflow(value, base, &value))
            return false;
        if (exponent > 1 && __builtin_mul_overflow(base, base, &base))
            return false;
    }
    *out = value;
    return true;
}

static bool whole(double value, int64_t *out)
{
    if (!(value >= -0x1p63 && value < 0x1p63))
        return false;
    *out = (int64_t)value;
    return true;
}

/* Python's x // y and x % y: the remainder has the divisor's sign, and the quotient is the whole number nearest to what
   is left without it. After float_divmod of CPython. */
static bool real_divide(double x, double y, double *quotient, double *remainder)
{
    if (y == 0)
        return false;
    double rest = fmod(x, y), ratio = (x - rest) / y;
    if (rest == 0)
        rest = copysign(0.0, y);
    else if ((y < 0) != (rest < 0))
        rest += y, ratio -= 1.0;
    double below = floor(ratio);
    *quotient = ratio == 0 ? copysign(0.0, x / y) : ratio - below > 0.5 ? below + 1.0 : below;
    *remainder = rest;
    return true;
}

/* What CPython's math does with the result of the C library: an error where a NaN or an infinity came of a number. */
static bool function_of(Function function, double x, double *out)
{
    double value = function(x);
    if ((isnan(value) && !isnan(x)) || (isinf(value) && isfinite(x)))
        return false;
    *out = value;
    return true;
}

bool number_run(const Number *number, int64_t *words)
{
    int64_t a = words[number->left], b = words[number->right], other, *to = &words[number->to];
    double x = as_real(a), y = as_real(b), real, rest;
    switch (number->op) {
    case CONST: case REAL_CONST: *to = number->value; return true;
    case ADD: return !__builtin_add_overflow(a, b, to);
    case SUB: return !__builtin_sub_overflow(a, b, to);
    case MUL: return !__builtin_mul_overflow(a, b, to);
    case FLOORDIV: return divide(a, b, to, &other);
    case MOD: return divide(a, b, &other, to);
    case MIN: *to = a < b ? a : b; return true;
    case MAX: *to = a > b ? a : b; return true;
    case AND: *to = a & b; return true;
    case OR: *to = a | b; return true;
    case XOR: *to = a ^ b; return true;
    case LSHIFT:
        return b >= 0 && !__builtin_mul_overflow(a, a == 0 ? (__int128)1 : (__int128)1 << (b < 64 ? b : 64), to);
    case RSHIFT:
        if (b < 0)
            return false;
        *to = a >> (b < 63 ? b : 63);
        return true;
    case POWER: return int_power(a, b, to);
    case TRUNC: return whole(trunc(x), to);
    case FLOOR: return whole(floor(x), to);
    case CEIL: return whole(ceil(x), to);
    case ROUND: return whole(x - remainder(x, 1.0), to); /* half to even, whatever the mode of rounding */
    case REAL_OF_INT: real = (double)a; break;
    case REAL_ADD: real = x + y; break;
    case REAL_SUB: real = x - y; break;
    case REAL_MUL: real = x * y; break;
    case REAL_DIV:
        if (y == 0)
            return false;
        real = x / y;
        break;
    case REAL_NEG: real = -x; break;
    case REAL_ABS: real = fabs(x); break;
    /* Python's min keeps the first of equals, and of what does not compare */
    case REAL_MIN: real = y < x ? y : x; break;
    case REAL_MAX: real = y > x ? y : x; break;
    case REAL_POW:
        if (!power(x, y, &real))
            return false;
        break;
    case REAL_SQRT:
        if (x < 0)
            return false;
        real = sqrt(x);
        break;
    case REAL_FLOOR:
        if (!isfinite(x))
            return false;
        real = floor(x) + 0.0; /* math.floor gives an int, which has one zero */
        break;
    case REAL_FLOAT32: real = (double)(float)x; break;
    case REAL_FLOORDIV:
        if (!real_divide(x, y, &real, &rest))
            return false;
        break;
    case REAL_MOD:
        if (!real_divide(x, y, &rest, &real))
            return false;
        break;
    case REAL_FMOD:
        real = fmod(x, y);
        if (isnan(real) && !isnan(x) && !isnan(y))
            return false;
        break;
    case REAL_ATAN2: real = atan2(x, y); break;
    case REAL_COPYSIGN: real = copysign(x, y); break;
    default:
        if (number->op < REAL_SIN || number->op >= OPS || !function_of(FUNCTIONS[number->op - REAL_SIN], x, &real))
            return false;
    }
    *to = as_word(real);
    return true;
}

PyObject *numbers_run_py(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *instructions, *numbers;
    if (!PyArg_ParseTuple(args, "O!O!", &PyTuple_Type, &instructions, &PyTuple_Type, &numbers))
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(numbers);
    int64_t *words = PyMem_Calloc((size_t)count + 1, sizeof *words);
    if (!words)
        return PyErr_NoMemory();
    bool done = true;
    for (Py_ssize_t i = 0; i < count; i++)
        words[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(numbers, i));
    for (Py_ssize_t i = 0; done && !PyErr_Occurred() && i < PyTuple_GET_SIZE(instructions); i++) {
        Number number;
        if (number_parse(PyTuple_GET_ITEM(instructions, i), count, &number) == 0)
            done = number_run(&number, words);
    }
    PyObject *result = PyErr_Occurred() ? NULL : done ? PyTuple_New(count) : Py_NewRef(Py_None);
    for (Py_ssize_t i = 0; result && done && i < count; i++)
        PyTuple_SET_ITEM(result, i, PyLong_FromLongLong(words[i]));
    PyMem_Free(words);
    return result;
}
