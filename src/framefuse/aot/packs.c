/* Weights as panels: packed when a model first multiplies by them, and shared by all models whose weights these are.
 * Panels that are there stay as they are until the last model is freed, so that readers need no lock. */

typedef struct pack { const void *data; int64_t shape[10]; void *panels; } pack;

static pack shared_packs[PACKS + 1];
static pthread_mutex_t packing = PTHREAD_MUTEX_INITIALIZER;
static int models;

static void drop_packs(pack *packs)
{
    for (int k = 0; packs && k < PACKS; k++) {
        free(packs[k].panels);
        packs[k] = (pack){0};
    }
}

static void count_model(int change)
{
    pthread_mutex_lock(&packing);
    models += change;
    if (models == 0)
        drop_packs(shared_packs);
    pthread_mutex_unlock(&packing);
}
