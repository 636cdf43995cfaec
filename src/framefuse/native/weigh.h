/* Weighs a function's compiled calls against eager ones, now and then, where compiled code may be the slower. */
#ifndef FRAMEFUSE_WEIGH_H
#define FRAMEFUSE_WEIGH_H

#include "base.h"

typedef enum { TURN_NONE = -1, TURN_EAGER, TURN_COMPILED } Turn;

typedef struct {
    bool on;                 /* calls of this function are weighed */
    bool recorded;           /* the call under way is recorded, at least in part: its time says nothing */
    uint32_t until;          /* so many compiled calls are made before the next weighing */
    int32_t turn;            /* of the weighing under way */
    double sum[2], least[2], most[2]; /* seconds of its calls, by Turn */
} Weigh;

double weigh_clock(void);
Turn weigh_turn(const Weigh *weigh);
bool weigh_add(Weigh *weigh, Turn turn, double seconds); /* true: the weighing has ended */

#endif
