/* Weighs a function's compiled calls against eager ones, now and then, where compiled code may be the slower. */
#include "weigh.h"

#include <time.h>

/* Eager first in each second pair: where a program's calls differ in turn, both sides have calls of both kinds. */
static const Turn turns[] = {TURN_EAGER,    TURN_COMPILED, TURN_COMPILED, TURN_EAGER,
                             TURN_COMPILED, TURN_EAGER,    TURN_EAGER,    TURN_COMPILED};
enum { TURNS = sizeof turns / sizeof *turns };

double weigh_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

Turn weigh_turn(const Weigh *weigh) { return weigh->until ? TURN_NONE : turns[weigh->turn]; }

bool weigh_add(Weigh *weigh, Turn turn, double seconds)
{
    if (weigh->until) {
        weigh->until--;
        return false;
    }
    if (turn != turns[weigh->turn]) /* another thread, or a call below this one, went on */
        return false;
    bool first = weigh->sum[turn] == 0.0;
    weigh->sum[turn] += seconds;
    if (first || seconds < weigh->least[turn])
        weigh->least[turn] = seconds;
    if (seconds > weigh->most[turn])
        weigh->most[turn] = seconds;
    return ++weigh->turn == TURNS;
}
