/* The threads of a model: they wait for work for a short while awake, then asleep. Nobody waits for one that has not
 * begun: on a busy machine the caller may have done all of the work before another thread runs. Each begins with its own
 * part of the work, so that it mostly reads what it wrote before, and then takes pieces of the others' parts. */
enum { MOST_THREADS = 64, AWAKE = 8000, ALERT = 256, OPEN = 1 << 16 };

typedef void piece(const void *context, int64_t begin, int64_t end, int worker);

typedef struct { _Alignas(64) int64_t next; int64_t end; } part;

typedef struct crew {
    part parts[MOST_THREADS];
    pthread_mutex_t lock;
    pthread_cond_t begins;
    pthread_t ids[MOST_THREADS];
    int count; /* of the threads besides the caller's own */
    int wanted, ends;
    unsigned turn; /* which piece of work it is */
    int gate;      /* the threads at work, and OPEN while more may begin: what is below stands still then */
    piece *work;
    const void *context;
    int64_t step;
} crew;

typedef struct { crew *of; int number; } member;

static int children; /* how often this process is a child: threads do not survive a fork */
static void in_child(void) { children++; }
__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, in_child); }

/* The turn number k of a loop that waits: who waits longer lets another thread have the processor, if one wants it. */
static inline void wait_shortly(int k)
{
    if (k >= ALERT && k % 32 == 0)
        sched_yield();
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void take_pieces(crew *of, int worker)
{
    for (int k = 0, place = worker; k < of->wanted; k++, place = place + 1 < of->wanted ? place + 1 : 0) {
        part *mine = &of->parts[place];
        int64_t begin;
        while ((begin = __atomic_fetch_add(&mine->next, of->step, __ATOMIC_RELAXED)) < mine->end)
            of->work(of->context, begin, begin + of->step < mine->end ? begin + of->step : mine->end, worker);
    }
}

static int enter(crew *of)
{
    int gate = __atomic_load_n(&of->gate, __ATOMIC_RELAXED);
    while (gate & OPEN)
        if (__atomic_compare_exchange_n(&of->gate, &gate, gate + 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            return 1;
    return 0;
}

static void *live(void *argument)
{
    member self = *(member *)argument;
    free(argument);
    crew *of = self.of;
    for (unsigned done = 0;;) {
        for (int k = 0; k < AWAKE && __atomic_load_n(&of->turn, __ATOMIC_ACQUIRE) == done; k++)
            wait_shortly(k);
        if (__atomic_load_n(&of->turn, __ATOMIC_ACQUIRE) == done) {
            pthread_mutex_lock(&of->lock);
            while (of->turn == done)
                pthread_cond_wait(&of->begins, &of->lock);
            pthread_mutex_unlock(&of->lock);
        }
        done = __atomic_load_n(&of->turn, __ATOMIC_ACQUIRE);
        if (of->ends)
            return NULL;
        if (!enter(of))
            continue;
        if (self.number < of->wanted)
            take_pieces(of, self.number);
        __atomic_fetch_sub(&of->gate, 1, __ATOMIC_RELEASE);
    }
}

static void announce(crew *of)
{
    pthread_mutex_lock(&of->lock);
    __atomic_fetch_add(&of->turn, 1, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&of->begins);
    pthread_mutex_unlock(&of->lock);
}

static void dismiss(crew *of)
{
    if (of == NULL)
        return;
    of->ends = 1;
    announce(of);
    for (int k = 0; k < of->count; k++)
        pthread_join(of->ids[k], NULL);
    pthread_mutex_destroy(&of->lock);
    pthread_cond_destroy(&of->begins);
    free(of);
}

/* So many threads besides the caller's; NULL where there are none to be had. */
static crew *gather(int count)
{
    crew *of = count > 0 ? aligned_alloc(64, sizeof *of) : NULL;
    if (of == NULL)
        return NULL;
    memset(of, 0, sizeof *of);
    pthread_mutex_init(&of->lock, NULL);
    pthread_cond_init(&of->begins, NULL);
    for (int k = 0; k < count; k++) {
        member *self = malloc(sizeof *self);
        if (self == NULL)
            break;
        *self = (member){of, k + 1};
        if (pthread_create(&of->ids[k], NULL, live, self)) {
            free(self);
            break;
        }
        of->count++;
    }
    if (of->count > 0)
        return of;
    dismiss(of);
    return NULL;
}

/* The threads of a model, which come when they are first needed; those of a process that forked are its parent's. */
static crew *crew_of(framefuse_model *model)
{
    if (model->crew == NULL || model->crew_of != children) {
        model->crew = gather(model->threads - 1);
        model->crew_of = children;
    }
    return model->crew;
}

static void set_threads(framefuse_model *model, int count)
{
    if (model->crew_of == children)
        dismiss(model->crew);
    model->crew = NULL;
    model->threads = count < 1 ? 1 : count > MOST_THREADS ? MOST_THREADS : count;
}

/* Does the pieces of [0, extent) on up to `threads` threads. */
static void each(framefuse_model *model, piece *work, const void *context, int64_t extent, int threads)
{
    crew *of = threads > 1 && extent > 1 ? crew_of(model) : NULL;
    if (of == NULL) {
        if (extent > 0)
            work(context, 0, extent, 0);
        return;
    }
    if (threads > of->count + 1)
        threads = of->count + 1;
    of->work = work;
    of->context = context;
    of->step = extent / (threads * 4) > 1 ? extent / (threads * 4) : 1;
    of->wanted = threads;
    for (int k = 0; k < threads; k++)
        of->parts[k] = (part){extent / threads * k + extent % threads * k / threads,
                              extent / threads * (k + 1) + extent % threads * (k + 1) / threads};
    __atomic_store_n(&of->gate, OPEN, __ATOMIC_RELEASE);
    announce(of);
    take_pieces(of, 0);
    __atomic_fetch_and(&of->gate, ~OPEN, __ATOMIC_RELAXED);
    for (int k = 0; __atomic_load_n(&of->gate, __ATOMIC_ACQUIRE) > 0; k = k < AWAKE ? k + 1 : ALERT)
        wait_shortly(k);
}
