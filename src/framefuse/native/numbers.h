/* Instructions over 64-bit words: an int64, or the bits of a double. */
#ifndef FRAMEFUSE_NUMBERS_H
#define FRAMEFUSE_NUMBERS_H

#include "base.h"

/* The operations, as NUMBER_OPS of framefuse.ir.plan. Those from REAL_SIN on are the functions of C of one real. */
#define NUMBER_OPERATIONS(X) \
    X(CONST, "const") X(ADD, "add") X(SUB, "sub") X(MUL, "mul") X(FLOORDIV, "floordiv") X(MOD, "mod") \
    X(MIN, "min") X(MAX, "max") X(AND, "and") X(OR, "or") X(XOR, "xor") X(LSHIFT, "lshift") X(RSHIFT, "rshift") \
    X(POWER, "power") X(TRUNC, "trunc") X(FLOOR, "floor") X(CEIL, "ceil") X(ROUND, "round") \
    X(REAL_CONST, "real_const") X(REAL_OF_INT, "real_of_int") X(REAL_ADD, "real_add") X(REAL_SUB, "real_sub") \
    X(REAL_MUL, "real_mul") X(REAL_DIV, "real_div") X(REAL_NEG, "real_neg") X(REAL_ABS, "real_abs") \
    X(REAL_MIN, "real_min") X(REAL_MAX, "real_max") X(REAL_POW, "real_pow") X(REAL_SQRT, "real_sqrt") \
    X(REAL_FLOOR, "real_floor") X(REAL_FLOAT32, "real_float32") X(REAL_FLOORDIV, "real_floordiv") \
    X(REAL_MOD, "real_mod") X(REAL_FMOD, "real_fmod") X(REAL_ATAN2, "real_atan2") \
    X(REAL_COPYSIGN, "real_copysign") X(REAL_SIN, "real_sin") X(REAL_COS, "real_cos") X(REAL_TAN, "real_tan") \
    X(REAL_ASIN, "real_asin") X(REAL_ACOS, "real_acos") X(REAL_ATAN, "real_atan") X(REAL_SINH, "real_sinh") \
    X(REAL_COSH, "real_cosh") X(REAL_TANH, "real_tanh") X(REAL_ASINH, "real_asinh") X(REAL_ACOSH, "real_acosh") \
    X(REAL_ATANH, "real_atanh") X(REAL_EXP, "real_exp") X(REAL_EXPM1, "real_expm1") X(REAL_LOG, "real_log") \
    X(REAL_LOG1P, "real_log1p") X(REAL_LOG2, "real_log2") X(REAL_LOG10, "real_log10")

typedef struct {
    uint8_t op;
    int32_t to, left, right;
    int64_t value; /* of a constant */
} Number;

typedef struct {
    int32_t number, from; /* a float that guards read into a number, and the register of its object */
} ReadReal;

int number_parse(PyObject *instruction, Py_ssize_t count, Number *out); /* 0, or -1 with ValueError */
bool number_run(const Number *number, int64_t *words);                  /* false: declines */
bool number_is_unary(const Number *number);
bool number_is_const(const Number *number);
bool number_chooses(const Number *number); /* the smaller or larger of two reals */
PyObject *numbers_run_py(PyObject *module, PyObject *args);

static inline double as_real(int64_t word)
{
    double value;
    memcpy(&value, &word, 8);
    return value;
}

static inline int64_t as_word(double value)
{
    int64_t word;
    memcpy(&word, &value, 8);
    return word;
}

#endif
